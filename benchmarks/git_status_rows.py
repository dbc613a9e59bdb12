"""git in a session: the first `git status` of 50,000 files, beside the one of the workspace."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.bulk_rows import repository
from benchmarks.harness import Row, Series, check, timed
from benchmarks.place import Place, fill
from benchmarks.rows import run

FILES, RUNS = 50_000, 7
STATUS = "git status --porcelain | wc -l"


def status(place: Place) -> Iterator[Row]:
    """The first status of each new session, through the gateway."""
    tree = Path(tempfile.mkdtemp(prefix="w", dir=place.home))
    fill(tree, FILES)
    repository(tree)
    sandbox = place.ask("create_sandbox", {"image": "host", "workspace_root": str(tree)})["id"]
    ours: list[float] = []
    beside: list[float] = []
    for _ in range(RUNS):
        session = place.ask("create_workspace_session", {}, sandbox)["workspace_session_id"]
        args = {"cmd": STATUS, "workspace_session_id": session, "yield_time_ms": 30_000}

        def in_session(args: dict[str, Any] = args) -> None:
            check(place.ask("exec_command", args, sandbox)["output"], "0")

        ours.append(timed(in_session))
        beside.append(timed(lambda: check(run(["sh", "-c", f"cd {tree} && {STATUS}"]), "0")))
        place.ask("destroy_workspace_session", {"workspace_session_id": session}, sandbox)
    place.ask("destroy_sandbox", {"sandbox_id": sandbox})
    yield Row(
        f"first git status of {FILES:,} files in a session",
        Series("eos", tuple(ours)),
        Series("git status of the workspace", tuple(beside)),
        "<= 3x",
        "one lstat for each file through the overlay; no file is opened",
    )
