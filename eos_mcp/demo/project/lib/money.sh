# Amounts are whole cents.

# format_cents CENTS: 123456 -> 1234.56
format_cents() {
    printf '%d.%02d\n' $(($1 / 100)) $(($1 % 100))
}

# sum: adds the numbers on standard input, one a line.
sum() {
    total=0
    while read -r n; do
        total=$((total + n))
    done
    echo "$total"
}
