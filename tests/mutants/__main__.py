"""`python -m tests.mutants [NAME...]`: apply each mutant to a copy of the packages and run the tests that
should notice it.
"""

from __future__ import annotations

import sys

from tests.mutants.runner import NoVerdict, copied
from tests.mutants.table import MUTANTS, page


def main(names: list[str]) -> int:
    """0: all were noticed. 1: one survived. 2: for one there is no verdict."""
    if names == ["--table"]:
        print(page(), end="")
        return 0
    unknown = set(names) - {mutant.name for mutant in MUTANTS}
    if unknown:
        print(
            f"no mutant is called {', '.join(sorted(unknown))}; there are "
            f"{', '.join(mutant.name for mutant in MUTANTS)}",
            file=sys.stderr,
        )
        return 2
    worst = 0
    with copied() as copy:
        for mutant in MUTANTS:
            if names and mutant.name not in names:
                continue
            try:
                outcome = copy.run(mutant)
            except NoVerdict as error:
                print(f"{mutant.name:4} NO VERDICT {error}", flush=True)
                worst = 2
                continue
            print(
                f"{mutant.name:4} {'noticed' if outcome.noticed else 'SURVIVED'} after "
                f"{outcome.seconds:.1f} s: {mutant.what}",
                flush=True,
            )
            worst = max(worst, int(not outcome.noticed))
    return worst


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
