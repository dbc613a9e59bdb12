#!/bin/sh
# Runs every tests/test_*.sh and says which failed; exit status 1 when one did.
cd "$(dirname "$0")/.." || exit 1
here=$PWD
failed=0 passed=0
expect() { # expect NAME WANT GOT
    if [ "$2" = "$3" ]; then
        passed=$((passed + 1)); echo "ok    $1"
    else
        failed=$((failed + 1)); echo "FAIL  $1: want '$2', got '$3'"
    fi
}
for file in tests/test_*.sh; do
    . "./$file"
done
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
