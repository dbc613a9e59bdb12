"""Commits, trees and tags as values: parsed from the bytes of an object, and written to the same bytes.

What `git fsck --strict` calls an error in a tree is refused here, since a merge would write it again. Commits
are read as leniently as git reads them: old histories have odd names and dates. Source: fsck.c, commit.c,
tree-walk.c, path.c of git.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from layerstack.git.object_format import CorruptObject, ObjectFormat, Oid

FILE_MODE, EXECUTABLE, SYMLINK, DIRECTORY, GITLINK = 0o100644, 0o100755, 0o120000, 0o40000, 0o160000
MODES = frozenset((FILE_MODE, EXECUTABLE, SYMLINK, DIRECTORY, GITLINK))
_BLOBS = frozenset((FILE_MODE, EXECUTABLE, SYMLINK))
PARENTS_MAX = 4096
"""Parents of one commit that are read."""

_DATE = re.compile(rb"> (-?\d{1,20}) [+-]\d")
_HFS_IGNORED = re.compile(b"\xe2\x80[\x8c-\x8f\xaa-\xae]|\xe2\x81[\xaa-\xaf]|\xef\xbb\xbf")
"""Characters that HFS+ leaves out of names."""
_NTFS_GIT = re.compile(rb"(?:\.git|git~1)(?:[ .]*)(?:[:\\].*)?", re.IGNORECASE | re.DOTALL)


class Commit(NamedTuple):
    """A commit. Author and committer are whole lines: name, address, seconds and zone."""

    tree: Oid
    parents: tuple[Oid, ...]
    author: bytes
    committer: bytes
    headers: tuple[tuple[bytes, bytes], ...] = ()
    """Further headers in their order (encoding, gpgsig, mergetag ...); lines of one value are joined by
    LF."""
    message: bytes = b""

    def without(self, *names: bytes) -> Commit:
        """Leave out headers, such as signatures, which do not hold for a changed commit."""
        return self._replace(headers=tuple(row for row in self.headers if row[0] not in names))

    @property
    def committed(self) -> int:
        """The committer's date in seconds; 0 where the line has none."""
        return date_of(self.committer)


SIGNATURES = (b"gpgsig", b"gpgsig-sha256")
"""Headers that sign a commit."""


class CommitLinks(NamedTuple):
    """The part of a commit that a walk needs."""

    tree: Oid
    parents: tuple[Oid, ...]
    committed: int


class TreeEntry(NamedTuple):
    """One entry of a tree: a name of one step, a mode of git, the id of a blob, tree or commit."""

    name: bytes
    mode: int
    oid: Oid

    @property
    def is_tree(self) -> bool:
        return self.mode == DIRECTORY

    @property
    def is_blob(self) -> bool:
        """True for a file or a symlink."""
        return self.mode in _BLOBS


def date_of(line: bytes) -> int:
    """Give the seconds of an author's or committer's line; 0 where it has none."""
    found = _DATE.search(line)
    return max(0, min(int(found[1]), 1 << 62)) if found else 0


def parse_links(data: bytes, fmt: ObjectFormat) -> CommitLinks:
    """Parse tree, parents and date, whatever the rest of the commit is.

    Raises:
        CorruptObject: no tree, or a line of a parent that is not one.
    """
    tree, parents, at = _links(data, fmt)
    ends = data.find(b"\n\n", at - 1)
    begins = data.find(b"\ncommitter ", at - 1, ends + 1 if ends >= 0 else len(data))
    line = data[begins + 11 : data.find(b"\n", begins + 1)] if begins >= 0 else b""
    return CommitLinks(tree, parents, date_of(line))


def _links(data: bytes, fmt: ObjectFormat) -> tuple[Oid, tuple[Oid, ...], int]:
    width = fmt.hex_size
    tree = fmt.from_hex(data[5 : 5 + width]) if data.startswith(b"tree ") else None
    if tree is None or data[5 + width : 6 + width] != b"\n":
        raise CorruptObject("a commit without a tree in its first line")
    at, parents = 6 + width, list[Oid]()
    while data.startswith(b"parent ", at):
        parent = fmt.from_hex(data[at + 7 : at + 7 + width])
        if parent is None or data[at + 7 + width : at + 8 + width] != b"\n":
            raise CorruptObject(f"a commit whose parent {len(parents) + 1} is not an id")
        parents.append(parent)
        at += 8 + width
        if len(parents) > PARENTS_MAX:
            raise CorruptObject(f"a commit with more than {PARENTS_MAX} parents")
    return tree, tuple(parents), at


def parse_commit(data: bytes, fmt: ObjectFormat) -> Commit:
    """Parse a commit; `format_commit` gives the same bytes again.

    Raises:
        CorruptObject: a header that is missing or out of order, or has a NUL; no empty line after them.
    """
    tree, parents, at = _links(data, fmt)
    ends = data.find(b"\n\n", at - 1)
    if ends < 0:
        raise CorruptObject("a commit without an empty line after its headers")
    rows: list[tuple[bytes, bytes]] = []
    if data.find(b"\0", at, ends) >= 0:
        raise CorruptObject("a commit with a NUL in its headers")
    for line in data[at:ends].split(b"\n"):
        if line.startswith(b" ") and rows:
            rows[-1] = rows[-1][0], rows[-1][1] + b"\n" + line[1:]
            continue
        name, space, value = line.partition(b" ")
        if not name or not space:
            raise CorruptObject(f"a commit with the header {line[:60]!r}")
        rows.append((name, value))
    if [name for name, _ in rows[:2]] != [b"author", b"committer"]:
        raise CorruptObject("a commit without author and committer after its parents")
    return Commit(tree, parents, rows[0][1], rows[1][1], tuple(rows[2:]), data[ends + 2 :])


def format_commit(commit: Commit) -> bytes:
    """Write a commit as git does."""
    rows = [(b"tree", commit.tree.hex().encode()), *((b"parent", p.hex().encode()) for p in commit.parents)]
    rows += [(b"author", commit.author), (b"committer", commit.committer), *commit.headers]
    head = b"".join(b"%s %s\n" % (name, value.replace(b"\n", b"\n ")) for name, value in rows)
    return head + b"\n" + commit.message


def tag_target(data: bytes, fmt: ObjectFormat) -> tuple[Oid, str]:
    """Give the id that a tag object names, and the kind that it says that object has.

    Raises:
        CorruptObject: the first two lines are not those of a tag.
    """
    found = re.match(rb"object ([0-9a-f]+)\ntype (commit|tree|blob|tag)\n", data)
    oid = fmt.from_hex(found[1]) if found else None
    if found is None or oid is None:
        raise CorruptObject("a tag without an object in its first lines")
    return oid, found[2].decode()


def name_fault(name: bytes) -> str | None:
    """Say why `git fsck --strict` refuses a name in a tree; None for a good one."""
    if not name:
        return "an empty name"
    if b"/" in name or b"\0" in name:
        return "a slash or NUL in a name"
    if name in (b".", b".."):
        return f"the name {name.decode()}"
    if name[:1] not in b".gG\xe2\xef" and b"\\" not in name:
        return None
    shown = _HFS_IGNORED.sub(b"", name).lower()
    if shown == b".git" or any(_NTFS_GIT.fullmatch(part) for part in name.split(b"\\")):
        return "a name that some file systems take for .git"
    return None


def _order(entry: TreeEntry) -> bytes:
    return entry.name + b"/" if entry.mode == DIRECTORY else entry.name


def parse_tree(data: bytes, fmt: ObjectFormat) -> list[TreeEntry]:
    """Parse a tree in its order. Modes are read as git reads them: 100664 is 100644.

    Raises:
        CorruptObject: what fsck calls an error, except zeros before a mode.
    """
    size, at, end = fmt.size, 0, len(data)
    entries: list[TreeEntry] = []
    seen: set[bytes] = set()
    last = b""
    while at < end:
        space = data.find(b" ", at, at + 8)
        nul = data.find(b"\0", space + 1) if space > at else -1
        if nul < 0 or nul + 1 + size > end:
            raise CorruptObject(f"a tree that ends within entry {len(entries) + 1}")
        octal, name = data[at:space], data[space + 1 : nul]
        if octal.strip(b"01234567"):
            raise CorruptObject(f"a tree with the mode {octal!r}")
        entry = TreeEntry(name, _mode(int(octal, 8)), data[nul + 1 : nul + 1 + size])
        order = _order(entry)
        if fault := name_fault(name):
            raise CorruptObject(f"a tree with {fault}: {name[:60]!r}")
        if name in seen or order <= last:
            raise CorruptObject(f"a tree whose entry {name[:60]!r} is there twice or out of order")
        if not any(entry.oid):
            raise CorruptObject(f"a tree whose entry {name[:60]!r} has the null id")
        seen.add(name)
        entries.append(entry)
        last, at = order, nul + 1 + size
    return entries


def _mode(mode: int) -> int:
    kind = mode & 0o170000
    if kind == 0o100000:
        return EXECUTABLE if mode & 0o100 else FILE_MODE
    if kind not in MODES:
        raise CorruptObject(f"a tree with the mode {mode:o}")
    return kind


def entry_named(rows: Sequence[TreeEntry], name: bytes) -> TreeEntry | None:
    """Find an entry in a tree that `parse_tree` gave."""
    for order in (name, name + b"/"):
        at = bisect_left(rows, order, key=_order)
        if at < len(rows) and rows[at].name == name:
            return rows[at]
    return None


def format_tree(entries: Iterable[TreeEntry]) -> bytes:
    """Write a tree in git's order.

    Raises:
        CorruptObject: a name or a mode that `git fsck --strict` refuses, or a name that is there twice.
    """
    rows = sorted(entries, key=_order)
    names = {row.name for row in rows}
    for row in rows:
        if (fault := name_fault(row.name)) or row.mode not in MODES:
            raise CorruptObject(
                f"a tree to write with {fault or f'the mode {row.mode:o}'}: {row.name[:60]!r}"
            )
    if len(names) != len(rows):
        raise CorruptObject("a tree to write with one name twice")
    return b"".join(b"%o %s\0%s" % row for row in ((row.mode, row.name, row.oid) for row in rows))
