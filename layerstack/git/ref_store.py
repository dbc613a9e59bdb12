"""Refs of one tree: loose files over packed-refs, symbolic refs, HEAD, and those of each linked worktree.

A name is git's own, relative to the repository: `HEAD`, `refs/heads/main`, `worktrees/NAME/HEAD`. A file that
git would ignore with a warning (empty, cut short) counts as absent here too. Source: refs/files-backend.c,
refs/packed-backend.c of git.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from layerstack.git.object_format import GitRefused
from layerstack.git.objects import GitTree
from layerstack.git.ref_names import above, is_ref_name
from layerstack.tree.state import DIRECTORY, FILE, LINK, State, is_one

PACKED_MAX = 32 << 20
"""Bytes of packed-refs."""
LOOSE_MAX = 100_000
"""Files and directories of loose refs in one tree."""
REF_BYTES = 4096
"""Bytes of a loose ref; git's own are at most an id, or `ref: ` and a name."""
SYMBOLIC_MAX = 5
"""Symbolic refs that lead to one another (SYMREF_MAXDEPTH)."""
HEAD = b"HEAD"
PACKED = "packed-refs"

_ID = re.compile(rb"([0-9a-fA-F]{64}|[0-9a-fA-F]{40})(?:\s|$)")
_SYMBOLIC = re.compile(rb"ref:\s*(\S.*)", re.DOTALL)


class RefValue(NamedTuple):
    """The value of a ref: an id in lower-case hex, or the name of another ref."""

    oid: bytes | None = None
    symbolic: bytes | None = None

    @property
    def text(self) -> bytes:
        """The content of the loose file."""
        return b"ref: %s\n" % self.symbolic if self.symbolic is not None else b"%s\n" % (self.oid or b"")


class RefMap(Mapping[bytes, RefValue]):
    """All refs of one tree. Constant; `files` tells loose from packed."""

    def __init__(
        self,
        packed: dict[bytes, bytes],
        loose: dict[bytes, RefValue],
        broken: frozenset[bytes] = frozenset(),
        packed_state: State | None = None,
    ) -> None:
        self.packed, self.loose, self.broken, self.packed_state = packed, loose, broken, packed_state
        self._all = {name: RefValue(oid) for name, oid in packed.items()}
        self._all.update(loose)

    def __getitem__(self, name: bytes) -> RefValue:
        return self._all[name]

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._all)

    def __len__(self) -> int:
        return len(self._all)

    def resolve(self, name: bytes) -> bytes | None:
        """Follow symbolic refs to an id in hex; None when there is none: an unborn branch, or a circle."""
        return resolve(self._all, name)

    @property
    def branch(self) -> bytes | None:
        """The branch that HEAD names; None when HEAD is detached."""
        head = self._all.get(HEAD)
        return None if head is None else head.symbolic


def resolve(refs: Mapping[bytes, RefValue], name: bytes) -> bytes | None:
    """Follow symbolic refs to an id in hex; None when there is none.

    The refs of a linked worktree name those of the repository, except for its own ones.
    """
    own = _worktree_of(name)
    for _ in range(SYMBOLIC_MAX + 1):
        value = refs.get(name)
        if value is None:
            return None
        if value.symbolic is None:
            return value.oid
        name = value.symbolic
        if own and name.startswith((b"refs/bisect/", b"refs/worktree/", b"refs/rewritten/")):
            name = own + name
    return None


def _worktree_of(name: bytes) -> bytes:
    """Give `worktrees/NAME/` of such a ref, else nothing."""
    if not name.startswith(b"worktrees/"):
        return b""
    at = name.find(b"/", len(b"worktrees/"))
    return name[: at + 1]


def read_refs(root: str, tree: GitTree, like: RefMap | None = None) -> RefMap:
    """Read the refs of the repository at `root`.

    Args:
        like: refs of another tree; its packed-refs are taken over when they are the same file.
    Raises:
        GitRefused: the refs are in a reftable, or beyond the limits.
    """
    table = tree.find(f"{root}/reftable")
    if table is not None and table.kind == DIRECTORY:
        raise GitRefused(
            f"read the refs of {root}: they are stored as reftable, which is not merged;"
            " `git refs migrate --ref-format=files` (git 2.46 or newer) stores them as files",
            details={"repository": root},
        )
    loose: dict[bytes, RefValue] = {}
    broken: set[bytes] = set()
    _add_head(root, "", tree, loose, broken)
    left = LOOSE_MAX - _add_below(root, "refs", tree, loose, broken, LOOSE_MAX)
    for name in tree.names(f"{root}/worktrees"):
        place = f"worktrees/{name}/"
        _add_head(root, place, tree, loose, broken)
        left -= 1 + _add_below(root, f"{place}refs", tree, loose, broken, left)
    state = tree.find(f"{root}/{PACKED}")
    if state is None or state.kind != FILE:
        return RefMap({}, loose, frozenset(broken))
    if like is not None and is_one(like.packed_state, state):
        return RefMap(like.packed, loose, frozenset(broken), state)
    return RefMap(read_packed(root, state), loose, frozenset(broken), state)


def read_packed(root: str, state: State) -> dict[bytes, bytes]:
    """Read packed-refs: name -> id in hex.

    Raises:
        GitRefused: the file has more than PACKED_MAX bytes.
    """
    if state.size > PACKED_MAX:
        raise GitRefused(
            f"read {root}/{PACKED}: it has {state.size:,} bytes, at most {PACKED_MAX:,} are read;"
            " delete refs that are not needed",
            details={"repository": root},
        )
    return parse_packed(state.data(PACKED_MAX))


def _add_head(root: str, place: str, tree: GitTree, loose: dict[bytes, RefValue], broken: set[bytes]) -> None:
    state = tree.find(f"{root}/{place}HEAD")
    if state is not None:
        name = os.fsencode(place) + HEAD
        value = loose_value(state)
        if value is None:
            broken.add(name)
        else:
            loose[name] = value


def _add_below(
    root: str, top: str, tree: GitTree, loose: dict[bytes, RefValue], broken: set[bytes], left: int
) -> int:
    """Add the loose refs below a directory and return the number of entries that were read."""
    count, folders = 0, [top]
    while folders:
        folder = folders.pop()
        for step in tree.names(f"{root}/{folder}"):
            count += 1
            if count > left:
                raise GitRefused(
                    f"read the loose refs of {root}: there are more than {LOOSE_MAX:,} files and directories;"
                    " `git pack-refs --all` puts them into one file",
                    details={"repository": root},
                )
            path = f"{folder}/{step}"
            name = os.fsencode(path)
            state = tree.find(f"{root}/{path}")
            if state is None or step.startswith(".") or step.endswith(".lock"):
                continue
            if state.kind == DIRECTORY:
                folders.append(path)
                continue
            value = loose_value(state) if is_ref_name(name) else None
            if value is None:
                broken.add(name)
            else:
                loose[name] = value
    return count


def loose_value(state: State) -> RefValue | None:
    """Read a loose ref; None when git would call it broken."""
    if state.kind == LINK:  # what git wrote for HEAD before 2005, and with core.preferSymlinkRefs
        target = os.fsencode(state.target)
        return RefValue(None, target) if target.startswith(b"refs/") and is_ref_name(target) else None
    if state.kind != FILE or state.size > REF_BYTES:
        return None
    return parse_loose(state.data(REF_BYTES))


def parse_loose(data: bytes) -> RefValue | None:
    """Parse the content of a loose ref; None when git would call it broken."""
    symbolic = _SYMBOLIC.match(data)
    if symbolic is not None:
        name = symbolic[1].rstrip()
        return RefValue(None, name) if is_ref_name(name) else None
    found = _ID.match(data)
    if found is None or not found[1].strip(b"0"):
        return None
    return RefValue(found[1].lower())


def parse_packed(data: bytes) -> dict[bytes, bytes]:
    """Parse packed-refs: name -> id in hex. Lines that git would not have written are left out."""
    found: dict[bytes, bytes] = {}
    for line in data.split(b"\n"):
        oid, space, name = line.partition(b" ")
        if space and oid[:1] not in b"#^" and _ID.fullmatch(oid) is not None and is_ref_name(name):
            found[name] = oid.lower()
    return found


def without_packed(data: bytes, gone: set[bytes]) -> bytes:
    """Remove refs from the bytes of packed-refs, each with its peeled line."""
    kept: list[bytes] = []
    skipping = False
    for line in data.split(b"\n"):
        skipping = skipping if line.startswith(b"^") else line.partition(b" ")[2] in gone
        if not skipping:
            kept.append(line)
    return b"\n".join(kept)


def ref_files(wanted: Mapping[bytes, RefValue], old: RefMap) -> dict[str, bytes | None]:
    """List the files below the repository that turn the refs `old` into `wanted`: the fewest loose files, and
    packed-refs only where a ref of it is deleted.

    Returns:
        Path -> its new content, or None to remove the path. Removals come first. Content replaces whatever
        is there, a directory with all that is below it too.
    """
    gone: dict[str, bytes | None] = {}
    written: dict[str, bytes | None] = {}
    unpacked: set[bytes] = set()
    for name, value in old.items():
        if name not in wanted:
            if name in old.loose:
                gone[os.fsdecode(name)] = None
            if name in old.packed:
                unpacked.add(name)
        elif wanted[name] != value:
            written[os.fsdecode(name)] = wanted[name].text
    for name, value in wanted.items():
        if name not in old:
            written[os.fsdecode(name)] = value.text
    for path in written:
        for folder in above(os.fsencode(path)):
            if folder in old.broken:
                gone[os.fsdecode(folder)] = None
    if unpacked:
        assert old.packed_state is not None
        written[PACKED] = without_packed(old.packed_state.data(PACKED_MAX), unpacked)
    return gone | dict(sorted(written.items()))
