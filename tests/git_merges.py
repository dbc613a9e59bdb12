"""Merges by the real git: three trees of files, and what `git merge-tree --write-tree` makes of them."""

from __future__ import annotations

import itertools
import os
import re
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


class ThreeTrees(NamedTuple):
    """Ids of the trees of one case, in hex."""

    base: str
    ours: str
    theirs: str

    @property
    def ids(self) -> tuple[bytes, bytes, bytes]:
        return bytes.fromhex(self.base), bytes.fromhex(self.ours), bytes.fromhex(self.theirs)


def commit_cases(folder: Path, cases: Mapping[str, tuple[Files, Files, Files]]) -> dict[str, ThreeTrees]:
    """Make the branches NAME/base, NAME/ours and NAME/theirs of each case, the latter two as children of
    base; return NAME -> ids of the trees.
    """
    git(folder, "fast-import", "--quiet", "--force", data=b"".join(_stream(cases)))
    names = "".join(f"{name}/{side}^{{tree}}\n" for name in cases for side in SIDES)
    rows = git(folder, "cat-file", "--batch-check=%(objectname)", data=names.encode()).decode().split()
    return {name: ThreeTrees(*rows[3 * n : 3 * n + 3]) for n, name in enumerate(cases)}


def _stream(cases: Mapping[str, tuple[Files, Files, Files]]) -> Iterator[bytes]:
    marks = itertools.count(1)
    blobs: dict[bytes, int] = {}
    for name, trees in cases.items():
        base = 0
        for side, files in zip(SIDES, trees, strict=True):
            rows: list[bytes] = []
            for path, value in files.items():
                mode, content = value if isinstance(value, tuple) else ("100644", value)
                if mode == "160000":
                    rows.append(b"M 160000 %s %s\n" % (content, path.encode()))
                    continue
                if content not in blobs:
                    blobs[content] = next(marks)
                    yield b"blob\nmark :%d\ndata %d\n%s\n" % (blobs[content], len(content), content)
                rows.append(b"M %s :%d %s\n" % (mode.encode(), blobs[content], path.encode()))
            mark, branch = next(marks), f"refs/heads/{name}/{side}".encode()
            yield b"reset %s\ncommit %s\nmark :%d\n" % (branch, branch, mark)
            yield b"author A <a@example.org> 1700000000 +0000\n"
            yield b"committer A <a@example.org> 1700000000 +0000\ndata 1\nx\n"
            yield (b"from :%d\n" % base if base else b"") + b"deleteall\n" + b"".join(rows)
            base = base or mark


def merge_by_git(folder: Path, name: str, env: Mapping[str, str] | None = None) -> GitMerge:
    """Merge the branches of a case. A `.gitattributes` in the work tree counts."""
    words = ["merge-tree", "--write-tree", "-z", "--name-only", "--no-messages"]
    done = subprocess.run(
        ["git", *NO_DIRECTORY_RENAMES, *words, f"{name}/ours", f"{name}/theirs"],
        cwd=folder,
        env={"PATH": os.environ["PATH"], "HOME": str(folder), **QUIET, **(env or {})},
        capture_output=True,
        timeout=GIT_S,
        check=False,
    )
    assert done.returncode in (0, 1), done.stderr
    tree, *paths = done.stdout.rstrip(b"\0").split(b"\0")
    aside = re.compile(rb"~%s_(ours|theirs)(_\d+)?$" % name.encode())
    return GitMerge(done.returncode == 0, tree.decode(), frozenset(aside.sub(b"", path) for path in paths))


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
