"""export_changes --format git: the first export of many publications, and one after one more publication."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from benchmarks.bulk_rows import repository
from benchmarks.harness import Row, Series, check, timed, token
from benchmarks.place import Place, fill
from benchmarks.rows import run

FILES, PUBLICATIONS, RUNS = 1_000, 200, 6
EXTRA = 20
"""Publications beyond PUBLICATIONS, each followed by an export of its own."""


def publications(place: Place) -> Iterator[Row]:
    """Export 200 publications as commits to a clone without them; git reads the branch back. Beside it: the
    same commits through `git fast-export | git fast-import`. Automatic squashes, which join publications, are
    off.
    """
    config = place.home / "config.yml"
    config.write_text("runtime: {layerstack: {}}\n")
    os.environ["SANDBOX_GATEWAY_CONFIG_YAML"] = str(config)
    tree = Path(tempfile.mkdtemp(prefix="w", dir=place.home))
    fill(tree, FILES)
    git = repository(tree)
    sandbox = str(place.ask("create_sandbox", {"image": "host", "workspace_root": str(tree)})["id"])
    try:

        def publish(n: int) -> str:
            text = token()
            file = {"path": f"d0000/f{n % 40:06d}.txt", "content": text, "message": text}
            place.ask("file_write", file, sandbox)
            return text

        def export(clone: str, commits: int, subject: str) -> float:
            asked = {"sandbox_id": sandbox, "dest": clone, "format": "git", "ref": "refs/heads/agents"}
            took = timed(lambda: place.ask("export_changes", asked))
            check(run(["git", "-C", clone, "log", "-1", "--format=%s", "agents"]).strip(), subject)
            counted = run(["git", "-C", clone, "rev-list", "--count", "HEAD..agents"]).strip()
            check(counted, str(commits))
            return took

        last = [publish(n) for n in range(PUBLICATIONS)][-1]
        whole: list[float] = []
        beside: list[float] = []
        clone = ""
        for n in range(RUNS):
            clone = str(place.home / f"clone{n}")
            run([*git, "clone", "-q", str(tree), clone])
            took = export(clone, PUBLICATIONS, last)
            empty = str(place.home / f"empty{n}")
            run(["git", "init", "-q", empty])
            stream = f"git -C {clone} fast-export agents | git -C {empty} fast-import --quiet"
            replay = timed(partial(run, ["sh", "-c", stream]))
            if n:
                whole.append(took)
                beside.append(replay)
        one = []
        for n in range(EXTRA):
            last = publish(n)
            one.append(export(clone, PUBLICATIONS + n + 1, last))
    finally:
        place.ask("destroy_sandbox", {"sandbox_id": sandbox})
        del os.environ["SANDBOX_GATEWAY_CONFIG_YAML"]
    yield Row(
        f"export of {PUBLICATIONS} publications as git",
        Series("eos", tuple(whole)),
        Series("git fast-export to git fast-import", tuple(beside)),
        "",
        "a clone with the workspace's commits; file mode and text of each commit are in the stream",
    )
    yield Row(
        "export after one more publication",
        Series("eos", tuple(one)),
        Series("the first export", tuple(whole)),
        "",
        "only what is new is sent",
    )
