expect "balance of the sample" 2138.00 "$(sh bin/tally balance data/sample.txt)"
expect "a missing file is named" "tally: cannot read none" "$(sh bin/tally balance none 2>&1)"
