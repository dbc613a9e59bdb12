# One booking a line: DATE AMOUNT CATEGORY TEXT. Prints DATE CENTS CATEGORY; blank lines and comments are skipped.
/^[ \t]*(#|$)/ { next }
{
    if ($1 !~ /^[0-9][0-9][0-9][0-9]-[0-9][0-9]-[0-9][0-9]$/ || $2 !~ /^-?[0-9]+\.[0-9][0-9]$/) {
        printf "line %d is no booking: %s\n", NR, $0 > "/dev/stderr"
        bad = 1
        next
    }
    cents = $2
    sub(/\./, "", cents)
    print $1, cents + 0, $3
}
END { exit bad }
