"""The rule for an export to a directory, restated on trees: the expected destination, compared with the
result of the product's own writer.

The destination is the base as a person has it, with owners, groups, setgid folders and attributes of their
own. Afterwards it shows the version: kinds, contents, targets, modes. What replaces a file has that file's
owner, group and attributes; what is new has what its folder says, and, of a directory with the setgid bit,
the group and the bit. What the version has as in the base is not touched. Names of one file are names of one
file, holes are holes. Other names of a file, outside of the destination, show what they did.
"""

from __future__ import annotations

import contextlib
import io
import os
from collections.abc import Generator
from random import Random

from eos_mcp.export.apply import ExportLimits, ExportRequest, Guards, apply
from layerstack.export.stream import stream
from layerstack.layers.index_cursor import Digests
from layerstack.layers.snapshot import Snapshot
from tests.export_streams import joined
from tests.layerstack.kept import Side
from tests.trees import DIRECTORY, FILE, LINK, Besides, Tree, read_tree, write_tree

SETGID = 0o2000
IDS = (0, 1001, 1002)
OWN = ("user.person", b"mine")
"""An attribute that no session sets."""


def every_id() -> bool:
    """May this process give a file to anybody? In a user namespace there is nobody else."""
    with open("/proc/self/uid_map") as file:
        return os.geteuid() == 0 and int(file.read().split()[2]) > max(IDS)


def as_a_person_has_it(base: Tree, random: Random) -> Tree:
    """The same with other owners where this process may give them, setgid folders, attributes."""
    out: Tree = {}
    for path, entry in sorted(base.items()):
        mode, uid, gid = entry.meta
        if every_id() and random.random() < 0.5:
            uid, gid = random.choice(IDS), random.choice(IDS)
        if entry.is_dir and random.random() < 0.3:
            mode |= SETGID
        xattrs = (*entry.xattrs, OWN) if entry.kind == FILE and random.random() < 0.3 else entry.xattrs
        out[path] = entry._replace(meta=(mode, uid, gid), xattrs=tuple(sorted(xattrs)))
    return out


def expected(base: Tree, person: Tree, version: Tree, besides: Besides, *, root: bool) -> Tree:
    """What the destination is afterwards. Names of one file have what the first of them has."""
    out: Tree = {"": person[""]}
    first: dict[tuple[int, int], str] = {}
    for path in sorted(version, key=os.fsencode):
        if not path:
            continue
        entry, old = version[path], person.get(path)
        folder = out[path.rpartition("/")[0]]
        if entry.kind == FILE and base.get(path) != entry:
            before = first.setdefault(besides[path].inode, path)
            if before != path:
                out[path] = out[before]
                continue
        if old is not None and base.get(path) == entry:
            out[path] = old
        elif old is not None and old.kind == entry.kind:
            mode = old.meta[0] & SETGID | entry.meta[0] if entry.is_dir else entry.meta[0]
            out[path] = entry._replace(meta=(mode, *old.meta[1:]), xattrs=old.xattrs)
        else:
            inherits = root or folder.meta[0] & SETGID
            mode = entry.meta[0] | (folder.meta[0] & SETGID if entry.is_dir else 0)
            owner = (folder.meta[1] if root else os.geteuid(), folder.meta[2] if inherits else os.getegid())
            out[path] = entry._replace(meta=(mode, *owner), xattrs=())
    return out


@contextlib.contextmanager
def digests_of(root: str) -> Generator[Digests]:
    digests = Digests(root)
    try:
        yield digests
    finally:
        digests.close()


def delivery(snapshot: Snapshot, store: str, folder: str, base: Tree, version: Side, random: Random) -> str:
    """Return the fault of an export of the version to a new directory in `folder`; '' without one."""
    dest, records = f"{folder}/dest", f"{folder}/records"
    os.makedirs(records, mode=0o700)
    person = as_a_person_has_it(base, random)
    write_tree(dest, person)
    outside, before, after = f"{folder}/outside", Besides(), Besides()
    os.mkdir(outside)
    for n, path in enumerate(sorted(path for path, entry in person.items() if entry.kind == FILE)):
        if random.random() < 0.3:
            os.link(f"{dest}/{path}", f"{outside}/{n}")
    others = read_tree(outside, before)
    person, besides = read_tree(dest), Besides()
    with digests_of(store) as digests:
        data = joined(stream(snapshot, digests=digests, holes=True))
    places = Guards(home="/nonexistent-home", own=(), journals=records)
    apply(
        io.BytesIO(data),
        ExportRequest(dest),
        limits=ExportLimits(),
        places=places,
        progress=lambda line: None,
    )
    if (read_tree(outside, after), [at.mtime_ns for at in after.values()]) != (
        others,
        [at.mtime_ns for at in before.values()],
    ):
        return "a name outside of the destination leads to another file, or one with other attributes"
    got, want = (
        read_tree(dest, besides),
        expected(base, person, version.tree, version.besides, root=os.geteuid() == 0),
    )
    for path in sorted(got.keys() | want.keys()):
        one, other = got.get(path), want.get(path)
        if one is None or other is None or (one.kind, one.body) != (other.kind, other.body):
            return f"{path!r}: got {one}, want {other}"
        if (one.meta != other.meta and one.kind != LINK) or one.meta[1:] != other.meta[1:]:
            return f"{path!r}: owner and mode are {one.meta}, not {other.meta}"
        if one.kind != DIRECTORY and one.xattrs != other.xattrs:
            return f"{path!r}: attributes are {one.xattrs}, not {other.xattrs}"
    return _names_and_holes(base, version, besides)


def _names_and_holes(base: Tree, version: Side, besides: Besides) -> str:
    own = [
        path
        for path in sorted(version.tree)
        if version.tree[path].kind == FILE and version.tree[path] != base.get(path)
    ]
    for which, other in ((version.besides, besides), (besides, version.besides)):
        first: dict[tuple[int, int], str] = {}
        for path in own:
            before = first.setdefault(which[path].inode, path)
            if other[path].inode != other[before].inode:
                return (
                    f"{before!r} and {path!r} are {'no more' if which is version.besides else 'now'} "
                    f"names of one file"
                )
    for path in own:
        if besides[path].data > version.besides[path].data:
            return f"{path!r} holds {besides[path].data} bytes, in the version {version.besides[path].data}"
    return ""
