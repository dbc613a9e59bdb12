"""The project that the demo's agents work on: a small shell program with tests that run by `sh` alone, and a
git history.

`project/` has the files at the end of the history; `history/` has older contents for earlier commits. This
module writes the repository object by object, so that a machine without git gets the same one.
"""

from __future__ import annotations

import hashlib
import os
import stat
import struct
import zlib
from pathlib import Path
from typing import NamedTuple

SOURCE = Path(__file__).parent


class SampleCommit(NamedTuple):
    """One commit of the history: its files, and the older text that some of them have."""

    message: str
    unix_s: int
    files: tuple[str, ...]
    older: str | None = None


AUTHOR = "Mira Tal <mira@example.org>"
CORE = ("README.md", "bin/tally", "lib/parse.awk", "data/sample.txt", ".gitignore")
TESTS = ("tests/run.sh", "tests/test_balance.sh")
REPORTS = ("lib/report.sh", "lib/money.sh", "tests/test_reports.sh")
HISTORY = (
    SampleCommit("tally: the balance of a file", 1767612000, CORE, older="1"),
    SampleCommit("tests: run by sh alone", 1767698400, CORE + TESTS, older="1"),
    SampleCommit(
        "reports: totals by month and by category, in whole cents", 1767784800, CORE + TESTS + REPORTS
    ),
    SampleCommit(
        "tests: money; docs: the file format",
        1767871200,
        (*CORE, *TESTS, *REPORTS, "tests/test_money.sh", "docs/format.md"),
    ),
)


def _bytes_of(path: str, older: str | None) -> bytes:
    if older is not None:
        earlier = SOURCE / "history" / older / path
        if earlier.is_file():
            return earlier.read_bytes()
    name = "dot-gitignore" if path == ".gitignore" else path
    return (SOURCE / "project" / name).read_bytes()


def _mode(path: str) -> int:
    return 0o755 if path.startswith("bin/") or (path.endswith(".sh") and path.startswith("tests/")) else 0o644


class Repository:
    """Writer of loose git objects below `.git`."""

    def __init__(self, root: Path) -> None:
        self.git = root / ".git"
        for name in ("objects", "refs/heads", "refs/tags"):
            (self.git / name).mkdir(parents=True)
        (self.git / "HEAD").write_text("ref: refs/heads/main\n")
        (self.git / "config").write_text(
            "[core]\n\trepositoryformatversion = 0\n\tfilemode = true\n\tbare = false\n"
        )

    def put(self, kind: str, body: bytes) -> bytes:
        """Store one object and return its 20-byte name."""
        whole = f"{kind} {len(body)}\0".encode() + body
        name = hashlib.sha1(whole, usedforsecurity=False).digest()
        path = self.git / "objects" / name.hex()[:2] / name.hex()[2:]
        if not path.exists():
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(zlib.compress(whole))
        return name

    def tree(self, blobs: dict[str, tuple[int, bytes]]) -> bytes:
        """Store the tree object of {path: (mode, blob name)} with its subtrees; return its name."""
        here: dict[str, tuple[str, bytes]] = {}
        below: dict[str, dict[str, tuple[int, bytes]]] = {}
        for path, (mode, blob) in blobs.items():
            first, _, rest = path.partition("/")
            if rest:
                below.setdefault(first, {})[rest] = (mode, blob)
            else:
                here[first] = (f"100{mode:o}", blob)
        for name, inside in below.items():
            here[name] = ("40000", self.tree(inside))
        order = sorted(here, key=lambda n: n + "/" if n in below else n)
        return self.put("tree", b"".join(f"{here[n][0]} {n}".encode() + b"\0" + here[n][1] for n in order))

    def commit(
        self, commit: SampleCommit, parent: bytes | None
    ) -> tuple[bytes, dict[str, tuple[int, bytes]]]:
        blobs = {
            path: (_mode(path), self.put("blob", _bytes_of(path, commit.older))) for path in commit.files
        }
        lines = [f"tree {self.tree(blobs).hex()}"] + ([f"parent {parent.hex()}"] if parent else [])
        who = f"{AUTHOR} {commit.unix_s} +0000"
        lines += [f"author {who}", f"committer {who}", "", commit.message, ""]
        return self.put("commit", "\n".join(lines).encode()), blobs

    def index(self, root: Path, blobs: dict[str, tuple[int, bytes]]) -> None:
        """Write the index, version 2, so that `git status` finds a clean work tree without reading it."""
        entries = b""
        for path in sorted(blobs):
            mode, blob = blobs[path]
            s = os.lstat(root / path)
            times = (
                s.st_ctime_ns // 10**9,
                s.st_ctime_ns % 10**9,
                s.st_mtime_ns // 10**9,
                s.st_mtime_ns % 10**9,
            )
            numbers = (s.st_dev, s.st_ino, stat.S_IFREG | mode, s.st_uid, s.st_gid, s.st_size)
            head = struct.pack(">10I", *(n & 0xFFFFFFFF for n in (*times, *numbers)))
            name = path.encode()
            entry = head + blob + struct.pack(">H", len(name)) + name
            entries += entry + b"\0" * (8 - len(entry) % 8)
        whole = b"DIRC" + struct.pack(">II", 2, len(blobs)) + entries
        (self.git / "index").write_bytes(whole + hashlib.sha1(whole, usedforsecurity=False).digest())


def unpack(root: Path) -> int:
    """Write the project with its git history into the empty directory `root`; returns the number of
    commits.
    """
    repository = Repository(root)
    name: bytes | None = None
    blobs: dict[str, tuple[int, bytes]] = {}
    for commit in HISTORY:
        name, blobs = repository.commit(commit, name)
    assert name is not None
    (repository.git / "refs/heads/main").write_text(name.hex() + "\n")
    for path in HISTORY[-1].files:
        target = root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(_bytes_of(path, None))
        target.chmod(_mode(path))
    repository.index(root, blobs)
    return len(HISTORY)
