"""Paths that git ignores in the export stream: counted by the rules of the exported version, left out on
request, and marked for a receiver that compares.
"""

from __future__ import annotations

import functools
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from layerstack.export import pax
from layerstack.export.ignored import COUNT, EXCLUDE, MARK, IgnoredPaths
from layerstack.export.stream import stream
from layerstack.layers.index_cursor import Digests
from layerstack.model.run_table import rows_of
from tests.export_streams import Stack, Unpacked, joined, unpack
from tests.trees import DIRECTORY, FILE, Entry, Tree

pytestmark = pytest.mark.needs("overlay")
Call = Callable[..., Any]


def base() -> Tree:
    owner = (os.geteuid(), os.getegid())
    tree: Tree = {name: Entry(DIRECTORY, (0o755, *owner)) for name in ("", "build", "src", "old")}
    for name in ("build/was", "gone.log", "src/a", "old/x", "old/y.log"):
        tree[name] = Entry(FILE, (0o644, *owner), b"12345")
    tree[".gitignore"] = Entry(FILE, (0o644, *owner), b"*.log\n/build/\n!kept.log\nout/\n")
    return tree


def edit(root: str) -> None:
    def put(path: str, size: int) -> None:
        os.makedirs(os.path.dirname(os.path.join(root, path)), exist_ok=True)
        Path(root, path).write_bytes(b"x" * size)

    for n, path in enumerate(("build/b", "build/deep/c", "build.py", "new.log", "kept.log", "src/out/o"), 1):
        put(path, n)
    put("one.log", 100)
    os.link(f"{root}/one.log", f"{root}/one.txt")
    os.symlink("x", f"{root}/link.log")
    os.unlink(f"{root}/gone.log")
    os.unlink(f"{root}/build/was")
    shutil.rmtree(f"{root}/old")
    put("old/new", 1)
    put("old/z.log", 7)
    put("large.log", 1 << 18)


@pytest.fixture
def exported(short_dir: str, in_mount_namespace: Call) -> Callable[[Callable[[Stack], Any]], Any]:
    form = "trusted" if os.geteuid() == 0 else "user"

    def run(look: Callable[[Stack], Any]) -> Any:
        def child() -> Any:
            stack = Stack(short_dir, base(), form)
            try:
                stack.publish(edit)
                return look(stack)
            finally:
                stack.close()

        return in_mount_namespace(child)

    return run


def sent(stack: Stack, treatment: str | None, *, earlier: bool, offset: int = 0) -> Unpacked:
    snapshot = stack.snapshot()
    rules = stack.store.routes.rules(snapshot.manifest.version)
    digests = Digests(stack.store.root)
    try:
        pieces = stream(
            snapshot,
            digests=digests,
            holes=True,
            earlier=snapshot.earlier if earlier else None,
            root=None if earlier else stack.store.root,
            ignored=None if treatment is None else IgnoredPaths(rules, treatment),
            offset=offset,
        )
        return unpack(joined(pieces))
    finally:
        digests.close()


def kinds(found: Unpacked) -> dict[str, bytes]:
    """Path -> kind or type of every entry, those of runs too."""
    out: dict[str, bytes] = {}
    decoder, tar, at = pax.PaxDecoder(), found.tar, 0
    while True:
        header = decoder.block(tar[at : at + pax.BLOCK])
        at += pax.BLOCK
        if decoder.needs:
            size = decoder.needs
            decoder.records(tar[at : at + size])
            at += size
        elif header is None:
            return out
        elif header.kind == pax.RUN:
            rows = rows_of(tar[at : at + header.table])
            assert rows is not None
            out |= {os.fsdecode(row.path): pax.DIRECTORY if row.directory else pax.FILE for row in rows}
            at += header.size + -header.size % pax.BLOCK
        else:
            out[os.fsdecode(header.path)] = header.kind or header.type
            at += header.size + -header.size % pax.BLOCK


FILES = {"files": 8, "bytes": 1 + 2 + 4 + 6 + 100 + 0 + 7 + (1 << 18)}
"""build/b, build/deep/c, new.log, src/out/o, one.log, link.log, old/z.log, large.log."""
SOURCE = {"build.py", "kept.log", "old", "old/new", "old/x", "one.txt", "src"}
IN_BUILD = {"build", "build/b", "build/deep", "build/deep/c", "build/was"}
LOGS = {"gone.log", "large.log", "link.log", "new.log", "old/y.log", "old/z.log", "one.log"}
IGNORED = IN_BUILD | LOGS | {"src/out", "src/out/o"}


@pytest.mark.parametrize("earlier", [False, True], ids=["in runs", "one by one"])
def test_ignored_files_are_counted_and_the_stream_is_otherwise_the_same(
    exported: Call, earlier: bool
) -> None:
    def look(stack: Stack) -> Any:
        return sent(stack, None, earlier=earlier), sent(stack, COUNT, earlier=earlier)

    plain, counted = exported(look)
    assert (counted.header["ignored"], counted.trailer["ignored"]) == ("count", FILES)
    assert counted.tar == plain.tar and kinds(counted).keys() == SOURCE | IGNORED
    assert "ignored" not in plain.header and "ignored" not in plain.trailer


@pytest.mark.parametrize("earlier", [False, True], ids=["in runs", "one by one"])
def test_nothing_of_ignored_paths_is_sent_and_a_further_name_of_an_ignored_file_is_a_file(
    exported: Call, earlier: bool
) -> None:
    found = exported(functools.partial(sent, treatment=EXCLUDE, earlier=earlier))
    assert found.trailer["ignored"] == FILES
    assert kinds(found).keys() == SOURCE
    assert kinds(found)["one.txt"] == pax.FILE and kinds(found)["old/x"] == pax.WHITEOUT


def test_a_mark_stands_for_each_ignored_path_that_is_not_below_another(exported: Call) -> None:
    def look(stack: Stack) -> Any:
        whole = sent(stack, MARK, earlier=True)
        rest = sent(stack, MARK, earlier=True, offset=len(whole.tar) // 2)
        return whole, rest

    found, rest = exported(look)
    assert found.trailer["ignored"] == FILES and rest.tar == found.tar[len(found.tar) // 2 :]
    marks = {path for path, kind in kinds(found).items() if kind == pax.IGNORED}
    topmost = {"build", *LOGS, "src/out"}
    assert marks == topmost and kinds(found).keys() == SOURCE | topmost
    assert found.trailer["files"] == len({"build.py", "kept.log", "old/new", "one.txt"})


def test_the_rules_are_those_of_the_exported_version(exported: Call) -> None:
    def look(stack: Stack) -> Any:
        stack.publish(lambda root: Path(root, ".gitignore").write_bytes(b"*.py\n"))
        return sent(stack, EXCLUDE, earlier=False)

    found = exported(look)
    assert found.trailer["ignored"] == {"files": 1, "bytes": 3}
    assert kinds(found).keys() == {".gitignore", *SOURCE, *IGNORED} - {"build.py"}
