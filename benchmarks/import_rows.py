"""import_changes on a large workspace: after one changed file, and without a change, beside `git status`."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

from benchmarks.bulk_rows import repository
from benchmarks.harness import Row, Series, check, timed, token
from benchmarks.place import Place, fill
from benchmarks.rows import run

FILES = 50_000
RUNS = 6


def one_changed(place: Place) -> Iterator[Row]:
    """Import after an edit of one of 50,000 files, and without one; beside `git status` of that tree."""
    tree = Path(tempfile.mkdtemp(prefix="w", dir=place.home))
    fill(tree, FILES)
    git = repository(tree)
    made: dict[str, list[float]] = {"edit": [], "none": [], "status": []}
    asked = {"image": "host", "workspace_root": str(tree)}
    sandbox = str(place.ask("create_sandbox", asked)["id"])
    try:

        def bring(want: int) -> None:
            done = place.ask("import_changes", {"sandbox_id": sandbox})
            check(str(done["changed_count"]), str(want))

        for n in range(RUNS):
            want = token()
            (tree / "d0000/f000001.txt").write_text(f"{want}\n")
            ms = timed(lambda: bring(1))
            got = place.ask("file_read", {"path": "d0000/f000001.txt"}, sandbox)["content"]
            check(got, want)
            none = timed(lambda: bring(0))
            status = timed(lambda: run([*git, "status", "--porcelain"]))
            if n:
                made["edit"].append(ms)
                made["none"].append(none)
                made["status"].append(status)
    finally:
        place.ask("destroy_sandbox", {"sandbox_id": sandbox})
    beside = Series("git status", tuple(made["status"]))
    what = "two walks with one lstat for each file; the copy's index is read"
    goal = "<= 2,000 ms"
    yield Row(f"import of 1 of {FILES:,} files", Series("eos", tuple(made["edit"])), beside, goal, what)
    yield Row("the same without a change", Series("eos", tuple(made["none"])), beside, goal, what)
