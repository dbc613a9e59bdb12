"""Trees as values: read one from disk, write one to disk, draw one. A tree is {path: Entry}; '' is its root
directory.

An Entry is what a version is made of: kind, content, permission bits, owner, xattrs. No times, no inodes.
"""

from __future__ import annotations

import os
import stat
from typing import NamedTuple

from hypothesis import strategies as st

FILE, LINK, DIRECTORY = "f", "l", "d"


class Entry(NamedTuple):
    """The state of one path."""

    kind: str
    meta: tuple[int, int, int]
    """Permission bits with setuid, setgid and sticky; owner; group."""
    body: bytes = b""
    """Content of a file, target of a symlink."""
    xattrs: tuple[tuple[str, bytes], ...] = ()

    @property
    def is_dir(self) -> bool:
        return self.kind == DIRECTORY


Tree = dict[str, Entry]


class Beside(NamedTuple):
    """Properties of a path outside its state: a version keeps them, but never compares them."""

    mtime_ns: int
    inode: tuple[int, int]
    data: int
    """Number of bytes of a file outside holes; all bytes of a small file."""
    links: int


Besides = dict[str, Beside]
SMALL = 1 << 14
"""Smallest size in bytes of a file that is examined for holes."""

XATTRS_LEFT_OUT = ("security.selinux",)


class GhostName(AssertionError):
    """Error: a name is listed and cannot be opened, since a whiteout is visible in a directory that is not
    merged.
    """


def data_of(full: str, size: int) -> int:
    """Bytes of a file that are no holes."""
    if size < SMALL:
        return size
    found, at = 0, 0
    with open(full, "rb") as file:
        while at < size:
            try:
                at = os.lseek(file.fileno(), at, os.SEEK_DATA)
            except OSError:  # no data is left
                break
            end = os.lseek(file.fileno(), at, os.SEEK_HOLE)
            found, at = found + end - at, end
    return found


def read_tree(root: str, besides: Besides | None = None) -> Tree:
    """Read the tree at `root`, without FIFOs, sockets and devices, which are not state. `besides` receives
    the properties outside the state.
    """
    tree: Tree = {}

    def visit(path: str, full: str) -> None:
        try:
            status = os.lstat(full)
        except FileNotFoundError:
            raise GhostName(f"{path!r} is listed, but not there") from None
        meta = (stat.S_IMODE(status.st_mode), status.st_uid, status.st_gid)
        if stat.S_ISDIR(status.st_mode):
            kind, body = DIRECTORY, b""
        elif stat.S_ISLNK(status.st_mode):
            kind, body = LINK, os.fsencode(os.readlink(full))
        elif stat.S_ISREG(status.st_mode):
            with open(full, "rb") as file:
                kind, body = FILE, file.read()
        else:
            return
        names = [n for n in os.listxattr(full, follow_symlinks=False) if n not in XATTRS_LEFT_OUT]
        if besides is not None:
            data = data_of(full, status.st_size) if kind == FILE else 0
            besides[path] = Beside(status.st_mtime_ns, (status.st_dev, status.st_ino), data, status.st_nlink)
        tree[path] = Entry(
            kind, meta, body, tuple(sorted((n, os.getxattr(full, n, follow_symlinks=False)) for n in names))
        )
        if kind == DIRECTORY:
            for name in sorted(os.listdir(full)):
                visit(f"{path}/{name}" if path else name, f"{full}/{name}")

    visit("", root)
    return tree


def write_tree(root: str, tree: Tree) -> None:
    """Make `tree` at `root`, which is an empty directory or absent. Owners are set when this process may."""
    for path in sorted(tree, key=os.fsencode):
        entry = tree[path]
        full = f"{root}/{path}" if path else root
        if entry.kind == DIRECTORY:
            os.makedirs(full, exist_ok=not path)
        elif entry.kind == LINK:
            os.symlink(os.fsdecode(entry.body), full)
        else:
            with open(full, "xb") as file:
                file.write(entry.body)
    for path in sorted(
        tree, key=os.fsencode, reverse=True
    ):  # children first: a directory may be closed to its owner
        entry = tree[path]
        full = f"{root}/{path}" if path else root
        if os.geteuid() == 0:
            os.chown(full, entry.meta[1], entry.meta[2], follow_symlinks=False)
        for name, value in entry.xattrs:
            os.setxattr(full, name, value, follow_symlinks=False)
        if entry.kind != LINK:
            os.chmod(full, entry.meta[0])


def ancestors(path: str) -> list[str]:
    """Proper ancestors, topmost first; the root has none."""
    return [] if not path else ["", *(path[:at] for at, c in enumerate(path) if c == "/")]


def difference(got: Tree, want: Tree) -> str:
    """Return the first paths in which two trees differ, for a message."""
    paths = sorted(p for p in got.keys() | want.keys() if got.get(p) != want.get(p))
    return "; ".join(f"{p!r}: got {got.get(p)}, want {want.get(p)}" for p in paths[:4]) + (
        f"; {len(paths)} paths" if len(paths) > 4 else ""
    )


# What hypothesis draws from

NAMES = (
    "a",
    "b",
    "c",
    "d",
    "ig",
    "x.o",
    ".wh.x",
    ".wh..wh..opq",
    "n\nl",
    "-v",
    os.fsdecode(b"\xff\xfe"),
    " s ",
)
"""Names that a store of files must handle: docker's whiteouts, invalid UTF-8, a newline, a leading dash,
blanks.
"""
TEXTS = (
    b"",
    b"".join(b"line %d\n" % n for n in range(3)),
    b"".join(b"line %d\n" % n for n in range(14)),
    b"no newline at the end",
    b"binary\0one",
    b"binary\0two",
)
IGNORES = (b"ig/\n*.o\n", b"*.o\n", b"ig\n", b"c/\n!x.o\n", b"")
MODES = (0o644, 0o755, 0o600, 0o700)

names = st.sampled_from(NAMES)
texts = st.sampled_from(TEXTS)


def _tree(paths: list[tuple[list[str], int]], modes: list[int], ignore: bytes, root_mode: int) -> Tree:
    owner = (os.geteuid(), os.getegid())
    tree: Tree = {
        "": Entry(DIRECTORY, (root_mode, *owner)),
        ".gitignore": Entry(FILE, (0o644, *owner), ignore),
    }
    for n, (parts, what) in enumerate(paths):
        path = "/".join(parts)
        if any(tree[a].kind != DIRECTORY for a in ancestors(path) if a in tree) or path in tree:
            continue
        for above in ancestors(path):
            tree.setdefault(above, Entry(DIRECTORY, (0o755, *owner)))
        mode = modes[n % len(modes)]
        if what == 0:
            tree[path] = Entry(DIRECTORY, (mode | 0o100, *owner))
        elif what == 1:
            tree[path] = Entry(LINK, (0o777, *owner), (b"a", b"../c", b"/abs")[n % 3])
        else:
            tree[path] = Entry(FILE, (mode, *owner), TEXTS[what % len(TEXTS)])
    return tree


def trees(size: int = 14) -> st.SearchStrategy[Tree]:
    """Small trees with a `.gitignore`, hostile names, directory modes, owned by this process."""
    path = st.lists(names, min_size=1, max_size=3)
    return st.builds(
        _tree,
        st.lists(st.tuples(path, st.integers(0, 11)), min_size=2, max_size=size),
        st.lists(st.sampled_from(MODES), min_size=1, max_size=4),
        st.sampled_from(IGNORES),
        st.sampled_from((0o755, 0o751)),
    )
