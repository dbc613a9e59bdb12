"""Print the table of the tasks: `python -m tests.tasks [IMAGE]`; without an image on the machine itself."""

from __future__ import annotations

import sys
import tempfile

from tests import probes
from tests.tasks.project import desk
from tests.tasks.table import GIT, TASKS, cost


def main(image: str = "host") -> int:
    """Do all tasks in one sandbox; 1 when one costs more than it did."""
    more = 0
    print("| task | calls | before | tokens | before |\n|---|---|---|---|---|")
    with tempfile.TemporaryDirectory(prefix="eos-t-", dir=probes.scratch_root()) as root:
        with desk(root, image) as place:
            for task in (*TASKS[:-1], GIT, TASKS[-1]):
                found = cost(task, place)
                print(
                    f"| {task.name} | {found.calls} | {task.calls} | {found.tokens} | {task.tokens} |",
                    flush=True,
                )
                more += task is not GIT and (found.calls > task.calls or found.tokens > task.tokens)
    return int(more > 0)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:2]))
