"""Merges by the real git: three trees of files, and what `git merge-tree --write-tree` makes of them."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from tests.git_trees import QUIET, git

Files = Mapping[str, bytes | tuple[str, bytes]]
"""Path -> content, or (mode, content): 100644, 100755, 120000 (content: the target), 160000 (content: a
commit's id in hex).
"""
SIDES = ("base", "ours", "theirs")
NO_DIRECTORY_RENAMES = ("-c", "merge.directoryRenames=false")
GIT_S = 170


class GitMerge(NamedTuple):
    """The outcome of git's merge."""

    clean: bool
    tree: str
    """The resulting tree's id in hex; with conflict markers in its files when not clean."""
    conflicts: frozenset[bytes]
    """Paths in conflict. A path that git moved aside as `PATH~BRANCH` is PATH here."""


def commit_trees(folder: Path, base: Files, ours: Files, theirs: Files) -> dict[str, str]:
    """Make the branches base, ours and theirs, the latter two as children of base; return branch -> id of
    the tree in hex.
    """
    git(folder, "fast-import", "--quiet", "--force", data=b"".join(_stream(base, ours, theirs)))
    found = git(folder, "rev-parse", *(f"{side}^{{tree}}" for side in SIDES)).decode().split()
    return dict(zip(SIDES, found, strict=True))


def _stream(base: Files, ours: Files, theirs: Files) -> Iterator[bytes]:
    blobs: dict[bytes, int] = {}
    for mark, (side, files) in enumerate(zip(SIDES, (base, ours, theirs), strict=True), 1):
        rows: list[bytes] = []
        for path, value in files.items():
            mode, content = value if isinstance(value, tuple) else ("100644", value)
            if mode == "160000":
                rows.append(b"M 160000 %s %s\n" % (content, path.encode()))
                continue
            if content not in blobs:
                blobs[content] = len(blobs) + 10
                yield b"blob\nmark :%d\ndata %d\n%s\n" % (blobs[content], len(content), content)
            rows.append(b"M %s :%d %s\n" % (mode.encode(), blobs[content], path.encode()))
        yield b"reset refs/heads/%s\n" % side.encode()
        yield b"commit refs/heads/%s\nmark :%d\n" % (side.encode(), mark)
        yield b"author A <a@example.org> 1700000000 +0000\ncommitter A <a@example.org> 1700000000 +0000\n"
        yield b"data 1\nx\n" + (b"" if mark == 1 else b"from :1\n") + b"deleteall\n" + b"".join(rows)


def merge_by_git(folder: Path, *, program: str = "git", env: Mapping[str, str] | None = None) -> GitMerge:
    """Merge the branches ours and theirs. A `.gitattributes` in the work tree counts."""
    words = ["merge-tree", "--write-tree", "-z", "--name-only", "--no-messages", "ours", "theirs"]
    done = subprocess.run(
        [program, *NO_DIRECTORY_RENAMES, *words],
        cwd=folder,
        env={"PATH": os.environ["PATH"], "HOME": str(folder), **QUIET, **(env or {})},
        capture_output=True,
        timeout=GIT_S,
        check=False,
    )
    assert done.returncode in (0, 1), done.stderr
    tree, *paths = done.stdout.rstrip(b"\0").split(b"\0")
    plain = frozenset(path.split(b"~ours")[0].split(b"~theirs")[0] for path in paths)
    return GitMerge(
        done.returncode == 0,
        tree.decode(),
        plain,
    )


def files_of(folder: Path, tree: str) -> dict[str, bytes]:
    """Read all regular files of a tree by one `cat-file`."""
    rows = git(folder, "ls-tree", "-r", "-z", tree).rstrip(b"\0").split(b"\0")
    names = {row.split(b"\t", 1)[1].decode(): row.split()[2] for row in rows if row.split()[1] == b"blob"}
    data = git(folder, "cat-file", "--batch", data=b"".join(oid + b"\n" for oid in names.values()))
    found: dict[str, bytes] = {}
    at = 0
    for name in names:
        end = data.index(b"\n", at)
        size = int(data[at:end].split()[2])
        found[name] = data[end + 1 : end + 1 + size]
        at = end + size + 2
    return found
