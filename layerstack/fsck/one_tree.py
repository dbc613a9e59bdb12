"""Check one tree of a layer or a draft against its index, its digest, and the rules for entries of such a
tree.

The tree is walked in byte order of whole paths, the order of the index and of the digest, so that all three
are read in parallel: memory is that of the widest directory.
"""

from __future__ import annotations

import errno
import hashlib
import os
import stat
from collections.abc import Callable, Generator, Iterator
from typing import NamedTuple

from layerstack.errors import StoreCorrupt
from layerstack.kernel import content
from layerstack.kernel.whiteout import get_overlay_xattr, is_whiteout
from layerstack.kernel.xattrs import XattrNamespace
from layerstack.layers.index_file import PLAIN_FORMAT, IndexRow, format_of, row_of
from layerstack.tree.state import (
    DIRECTORY,
    FILE,
    LINK,
    SPECIAL,
    SYSTEM_XATTRS,
    WHITEOUT,
    kind_of,
    list_xattrs,
)

Say = Callable[[str, str, str], None]
"""(path in the tree, what is wrong, how it was found)."""


class EntryOnDisk(NamedTuple):
    """One entry of a tree with its digest."""

    path: bytes
    kind: str
    mode: int
    size: int
    opaque: bool
    digest: bytes | None
    """SHA-256 of a file's bytes or of a symlink's target."""
    line: bytes
    """The bytes that the digest of the layer includes for it, without the path."""


class TreeFindings(NamedTuple):
    """Result of reading a tree."""

    digest: str
    entries: int
    bytes: int


def in_byte_order(root: bytes, failed: Callable[[bytes, OSError], None]) -> Iterator[bytes]:
    """Give every path of the tree, the root first as `b""`, in the order of their bytes; `failed` is called
    for directories that cannot be listed.

    All paths below `d` begin with `d/`, so they are adjacent, at the place where `d/` sorts among the names
    beside `d`.
    """

    def here(path: bytes) -> Iterator[tuple[bytes, bool]]:
        keys: list[tuple[bytes, bool]] = []
        try:
            with os.scandir(root + b"/" + path if path else root) as entries:
                for entry in entries:
                    keys.append((entry.name, False))
                    if entry.is_dir(follow_symlinks=False):
                        keys.append((entry.name + b"/", True))
        except OSError as error:
            failed(path, error)
        keys.sort()
        prefix = path + b"/" if path else b""
        for name, inside in keys:
            yield prefix + name.removesuffix(b"/"), inside

    yield b""
    open_now = [here(b"")]
    while open_now:
        found = next(open_now[-1], None)
        if found is None:
            open_now.pop()
        elif found[1]:
            open_now.append(here(found[0]))
        else:
            yield found[0]


def read_entry(
    root: bytes, path: bytes, xattr_namespace: XattrNamespace, say: Say, *, plain: bool = False
) -> EntryOnDisk:
    """Read one entry completely. Entries that a layer must not contain are reported; `plain` as in `compare`.
    Raises OSError.
    """
    full = os.fsdecode(root + b"/" + path if path else root)
    shown = os.fsdecode(path)
    status = os.lstat(full)
    kind = kind_of(status.st_mode)
    if kind == SPECIAL:
        if is_whiteout(status):
            return EntryOnDisk(path, WHITEOUT, 0, 0, False, None, b"w")
        say(shown, "is a FIFO, socket or device, which a layer never contains", "its kind")
        return EntryOnDisk(path, SPECIAL, 0, 0, False, None, b"s")
    xattrs: dict[str, bytes] = {}
    for name in list_xattrs(full):
        if name in SYSTEM_XATTRS:
            continue
        if (shown_name := xattr_namespace.shown(name)) is not None:
            xattrs[shown_name] = os.getxattr(full, name, follow_symlinks=False)
        elif name in (xattr_namespace.redirect, xattr_namespace.metacopy) or (
            name == xattr_namespace.whiteout and kind == FILE and not status.st_size
        ):
            say(shown, f"has the xattr {name}, which a layer never has", "its xattrs")
    meta = (stat.S_IMODE(status.st_mode), status.st_uid, status.st_gid)
    about = repr((meta, sorted(xattrs.items()))).encode()
    if kind == DIRECTORY:
        opaque_value = get_overlay_xattr(full, xattr_namespace.opaque)
        if opaque_value not in (None, b"y"):
            say(
                shown,
                f"its xattr {xattr_namespace.opaque} is {opaque_value!r}, and only y is written",
                "its xattrs",
            )
        opaque = opaque_value == b"y"
        return EntryOnDisk(path, kind, meta[0], 0, opaque, None, (b"o" if opaque else b"d") + about)
    if kind == LINK:
        digest = hashlib.sha256(os.fsencode(os.readlink(full))).digest()
    else:
        digest = content.digest_at(full, plain=plain)
    return EntryOnDisk(path, kind, meta[0], status.st_size, False, digest, kind.encode() + digest + about)


def check_index(path: str) -> str:
    """Check an index file from start to end, and give the checksum in its header; `rows` then reads its
    lines.

    Raises:
        StoreCorrupt: naming it.
        OSError.
    """

    def wrong(what: str) -> StoreCorrupt:
        return StoreCorrupt(f"{path}: {what}", details={"file": path})

    total, count, last = hashlib.sha256(), 0, b""
    with open(path, "rb") as file:
        words = file.readline().rstrip(b"\n").split(b" ")
        if len(words) != 4 or words[0] != b"eos-index":
            raise wrong("not an index")
        format_of(words[1], path)
        for line in file:
            total.update(line)
            count += 1
            last = line
    if total.hexdigest().encode() != words[3] or not last.endswith(b"\n"):
        raise wrong("the checksum does not match its content")
    if b"%d" % count != words[2]:
        raise wrong(f"has {count} paths, its header says {words[2].decode('ascii', 'replace')}")
    return words[3].decode()


def is_plain(path: str) -> bool:
    """Check whether the digests in a checked index file are plain SHA-256: it is older than `content`'s
    second kind of digest.
    """
    with open(path, "rb") as file:
        return format_of(file.readline().split(b" ")[1], path) == PLAIN_FORMAT


def rows(path: str) -> Iterator[IndexRow]:
    """Read the lines of an index file that `check_index` accepted. Raises StoreCorrupt for one that is not a
    row.
    """
    with open(path, "rb") as file:
        file.readline()
        for line in file:
            try:
                yield row_of(line.rstrip(b"\n"))
            except (ValueError, KeyError) as error:
                raise StoreCorrupt(
                    f"{path}: a line is not a row of an index ({error})", details={"file": path}
                ) from None


def compare(
    root: str,
    xattr_namespace: XattrNamespace,
    listed: Iterator[IndexRow] | None,
    say: Say,
    blind: Callable[[str], None],
    *,
    plain: bool = False,
) -> Generator[None, None, TreeFindings | None]:
    """Walk a tree, reporting each difference; yields at intervals, so that the caller can measure time.

    Args:
        listed: the rows of its index; None: the tree has no index.
        plain: digests are the SHA-256 of the bytes, as in files from before `content` had a second kind of
            digest.
        blind: called with a path that this process may not read; nothing can then be said about the whole
            tree.
    Returns:
        The findings, or None when some of the tree could not be read.
    """
    top, total = os.fsencode(root), hashlib.sha256()
    count, size, whole = 0, 0, True

    def failed(path: bytes, error: OSError) -> None:
        nonlocal whole
        whole = False
        if error.errno in (errno.EACCES, errno.EPERM):
            blind(os.fsdecode(path))
        else:
            say(os.fsdecode(path), f"cannot be read: {error.strerror}", "reading it")

    row = next(listed, None) if listed is not None else None
    for path in in_byte_order(top, failed):
        yield
        while row is not None and listed is not None and os.fsencode(row.path) < path:
            if whole:  # else it may be in a directory that could not be listed
                say(row.path, "is gone, the index lists it", "the index")
            row = next(listed, None)
        here = row if row is not None and os.fsencode(row.path) == path else None
        if listed is not None and here is None:
            say(os.fsdecode(path), "is not in the layer's index", "the index")
        elif listed is not None:
            row = next(listed, None)
        try:
            entry = read_entry(top, path, xattr_namespace, say, plain=plain)
        except OSError as error:
            failed(path, error)
            continue
        if here is not None:
            _against(here, entry, say)
        total.update(b"%d:%s%d:%s" % (len(path), path, len(entry.line), entry.line))
        count += 1
        size += entry.size if entry.kind in (FILE, LINK) else 0
    while whole and row is not None and listed is not None:
        say(row.path, "is gone, the index lists it", "the index")
        row = next(listed, None)
    return TreeFindings(total.hexdigest(), count, size) if whole else None


def _against(row: IndexRow, entry: EntryOnDisk, say: Say) -> None:
    if row.record.kind != entry.kind or row.record.opaque != entry.opaque:
        names = {
            FILE: "a file",
            LINK: "a symlink",
            DIRECTORY: "a directory",
            WHITEOUT: "a whiteout",
            SPECIAL: "a special file",
        }
        have, want = (
            "an opaque directory" if o else names[k]
            for k, o in ((entry.kind, entry.opaque), (row.record.kind, row.record.opaque))
        )
        say(row.path, f"is {have}, published was {want}", "the index")
    elif row.digest is not None and row.digest != entry.digest:
        grown = f": {entry.size} bytes, published were {row.size}" if row.size != entry.size else ""
        say(
            row.path,
            ("its content is" if entry.kind == FILE else "its target is") + f" not what was published{grown}",
            "SHA-256 in the index",
        )
    elif row.mode != entry.mode:
        say(row.path, f"its mode is {entry.mode:04o}, published was {row.mode:04o}", "the index")
