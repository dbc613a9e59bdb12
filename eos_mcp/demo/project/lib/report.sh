# The reports. Each reads one file and prints lines of "NAME AMOUNT".

bookings() {
    awk -f "$here/lib/parse.awk" "$1"
}

report_balance() {
    format_cents "$(bookings "$1" | cut -d' ' -f2 | sum)"
}

# by_key FIELD FILE: totals of the bookings with the same key, sorted by key.
by_key() {
    bookings "$2" | awk -v field="$1" '
        { key = $field; if (field == 1) key = substr(key, 1, 7); total[key] += $2 }
        END { for (key in total) print key, total[key] }' | sort |
        while read -r key cents; do
            echo "$key $(format_cents "$cents")"
        done
}

report_monthly() {
    by_key 1 "$1"
}

report_category() {
    by_key 3 "$1"
}
