expect "monthly, first line" "2026-01 1117.50" "$(sh bin/tally monthly data/sample.txt | head -n 1)"
expect "monthly, one line a month" 3 "$(sh bin/tally monthly data/sample.txt | wc -l | tr -d ' ')"
expect "category, sorted" "bank" "$(sh bin/tally category data/sample.txt | head -n 1 | cut -d' ' -f1)"
