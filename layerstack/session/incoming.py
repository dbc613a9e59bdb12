"""Changes that were made outside of every session, in a directory that was copied earlier: published as one
layer, merged as those of a session.

Two trees in staging: the earlier content of the directory, as a layer on the base, and its changes since, as
a layer on both. The base of the merge is thus a state that no version of the store may have.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import NamedTuple

from layerstack.core.stack import Stack
from layerstack.errors import Invalid
from layerstack.kernel.base_xattrs import ACLS
from layerstack.layers.capture import capture_tree
from layerstack.layers.chain import Chain
from layerstack.layers.index import Layer
from layerstack.layers.index_file import build
from layerstack.model.manifest import LayerId
from layerstack.model.paths import ancestors, check
from layerstack.model.paths import parent as parent_of
from layerstack.publish.outcome import Preview, Published
from layerstack.publish.publish import Author, Work, preview, publish
from layerstack.text.build_roles import Roles
from layerstack.tree.disk import DiskTree
from layerstack.tree.fileops import make_directory, set_meta, write_copy
from layerstack.tree.memory import MemoryTree
from layerstack.tree.state import DIRECTORY, FILE, LINK, WHITEOUT, State

BASE_VERSION = 1
"""The version of a new store: the base alone."""
NEW_DIRECTORY = 0o755
UNKNOWN_BYTES = 32
"""Number of random bytes behind a NUL that stand for content that the store has lost: they differ from every
file and never merge as text.
"""
NOTHING = "n"
"""Kind of an incoming entry that removes the one sent before."""


class IncomingEntry(NamedTuple):
    """One entry of the directory."""

    path: str
    kind: str
    """`f`, `l`, `d`, `w` (absent), or `n` (remove the entry that was sent before)."""
    mode: int | None = None
    """Permission bits; None: those of the entry below, or of the content that `digest` names."""
    mtime_ns: int | None = None
    target: str = ""
    data: bytes = b""
    """The first bytes of a file."""
    size: int = 0
    digest: bytes | None = None
    """The content of a file of this path that the store may have: no data follows."""
    xattrs: Mapping[str, bytes] | None = None
    """Names as a base stores them; None: those of the entry below."""
    same_as: str | None = None
    """Another path of these entries with the same inode."""


def stored_file(stack: Stack, path: str, digest: bytes, size: int | None = None) -> State | None:
    """Find a file with this content at a path, in any layer of the store or in the base. Without a lease: its
    layer may be removed after a squash.
    """
    with stack.reading() as snapshot:
        chain = snapshot.chain
        for layer in (*chain.path_index.listing(path), chain.base):
            record = layer.get(path)
            if record is None or record.kind != FILE:
                continue
            try:
                state = layer.tree.state(path)
                fits = state.kind == FILE and size in (None, state.size)
                if fits and state.digest() == digest:
                    return state
            except FileNotFoundError:  # a squash removed the layer
                continue
    return None


class Incoming:
    """The two trees of one import, in staging until `discard`. One caller at a time."""

    def __init__(self, stack: Stack) -> None:
        stack.check_open()
        self._stack = stack
        with stack.reading() as snapshot:
            head = snapshot.chain
            self._below = Chain([head.base], head.path_index, head.xattr_namespace)
        self._roots = [stack.staging.name("incoming-base"), stack.staging.name("incoming")]
        base, ours = (
            DiskTree(root, stack.xattr_namespace, aside=stack.staging.path, step=stack.step)
            for root in self._roots
        )
        try:
            root = self._below.find("")
            assert root is not None
            for tree in (base, ours):
                make_directory(tree.root, root)
        except BaseException:
            self.discard()
            raise
        self._trees = {"base": base, "ours": ours}
        self._overrides: set[str] = set()

    def discard(self) -> None:
        """Remove what is left in staging. Idempotent."""
        for root in self._roots:
            self._stack.staging.discard(root)

    # ---- entries

    def put(self, side: str, entry: IncomingEntry) -> None:
        """Make an entry, in the place of an earlier one of the same path.

        Args:
            side: `base`: the directory's earlier content, where it differs from the base; `ours`: its content
                now, where it differs from the earlier one.
        Raises:
            InvalidPath, Invalid: a malformed entry. OSError.
        """
        if check(entry.path) == "" or entry.kind not in (FILE, LINK, DIRECTORY, WHITEOUT, NOTHING):
            raise Invalid(
                f"entry {entry.path!r} of kind {entry.kind!r} cannot be imported", reason="bad_entry"
            )
        tree, path = self._trees[side], entry.path
        if side == "base":
            self._overrides.add(path)
        if entry.kind == NOTHING:
            if os.path.lexists(tree.full(path)):
                tree.remove(path)
            return
        self._reach(side, path)
        full = tree.full(path)
        if entry.kind == DIRECTORY and os.path.isdir(full) and not os.path.islink(full):
            self._attributes(side, entry, full)
            return
        if os.path.lexists(full):
            tree.remove(path)
        if entry.kind == WHITEOUT:
            if self._under(side, path) is not None:
                tree.whiteout(path)
        elif entry.kind == DIRECTORY:
            os.mkdir(full)
            self._attributes(side, entry, full)
        elif entry.kind == LINK:
            os.symlink(entry.target, full)
            self._attributes(side, entry, full)
        elif entry.same_as is not None:
            os.link(tree.full(check(entry.same_as)), full, follow_symlinks=False)
        elif entry.digest is not None:
            self._stored(side, entry, full)
        else:
            with open(
                os.open(full, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb"
            ) as file:
                file.write(entry.data)
                file.truncate(entry.size)
            self._attributes(side, entry, full)

    def write(self, side: str, path: str, offset: int, data: bytes) -> None:
        """Write more bytes of a file that `put` made; its time stays."""
        full = self._trees[side].full(check(path))
        fd = os.open(full, os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            before = os.fstat(fd)
            view = memoryview(data)
            while view:
                written = os.pwrite(fd, view, offset)
                offset, view = offset + written, view[written:]
            os.utime(fd, ns=(before.st_atime_ns, before.st_mtime_ns))
        finally:
            os.close(fd)

    def _under(self, side: str, path: str) -> State | None:
        """State of the path in the tree that the side lies on."""
        if side == "ours":
            base = self._trees["base"]
            for at in (*ancestors(path)[1:], path):
                kind = base.kind(at)
                if kind is None:
                    break
                if kind == WHITEOUT:
                    return None
                if at == path:
                    return base.state(path)
                if kind != DIRECTORY:
                    return None
        return self._below.find(path)

    def _reach(self, side: str, path: str) -> None:
        """Make the directories above a path, as they are in the tree below; new ones have mode 0755."""
        tree = self._trees[side]
        for above in ancestors(path)[1:]:
            full = tree.full(above)
            if os.path.isdir(full) and not os.path.islink(full):
                continue
            if os.path.lexists(full):
                tree.remove(above)
            state = self._under(side, above)
            if state is not None and state.kind == DIRECTORY:
                make_directory(full, state)
            else:
                os.mkdir(full)
                set_meta(full, (NEW_DIRECTORY, *self._owner(side, above)))

    def _owner(self, side: str, path: str) -> tuple[int, int]:
        """Owner and group of the entry below, else of its directory."""
        state = self._under(side, path)
        if state is None:
            state = self._trees[side].state(parent_of(path))
        return state.meta[1], state.meta[2]

    def _attributes(self, side: str, entry: IncomingEntry, full: str) -> None:
        under = self._under(side, entry.path)
        if under is not None and under.kind != entry.kind:
            under = None
        mode = entry.mode if entry.mode is not None else under.meta[0] if under is not None else 0o644
        xattrs = under.xattrs if entry.xattrs is None and under is not None else {}
        raw = {self._stack.xattr_namespace.stored(name): value for name, value in xattrs.items()}
        for name, value in (raw if entry.xattrs is None else entry.xattrs).items():
            if entry.xattrs is not None and not (name.startswith("user.") or name in ACLS):
                raise Invalid(f"attribute {name!r} cannot be imported", reason="bad_entry")
            os.setxattr(full, name, value, follow_symlinks=False)
        owner = self._owner(side, entry.path)
        set_meta(full, (mode & 0o7777, *owner), symlink=entry.kind == LINK)
        if entry.mtime_ns is not None:
            os.utime(full, ns=(entry.mtime_ns, entry.mtime_ns), follow_symlinks=False)

    def _stored(self, side: str, entry: IncomingEntry, full: str) -> None:
        """Make a file with content that the store has at this path, in any of its layers; content that no
        layer has any more is replaced by bytes that equal no file.
        """
        assert entry.digest is not None
        found = stored_file(self._stack, entry.path, entry.digest, entry.size)
        if found is None:
            with open(
                os.open(full, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb"
            ) as file:
                file.write(b"\0" + os.urandom(UNKNOWN_BYTES))
            self._attributes(side, entry, full)
            return
        write_copy(full, found)
        if entry.mode is not None or entry.xattrs is not None:
            self._attributes(side, entry, full)

    # ---- the end

    def _base(self) -> Chain:
        """Chain of the directory's earlier content."""
        tree = self._trees["base"]
        capture_tree(tree, self._below)
        index = build(tree, self._below, hashes=False).records
        layer = Layer(LayerId("incoming-base"), tree, BASE_VERSION, index)
        stack = self._stack
        stack.layers.path_index.count_as_touched(self._overrides, stack.head.version)
        return self._below.with_pending((layer,))

    def preview(self) -> Preview:
        """Return the result that `publish` would have now, and keep the trees."""
        stack = self._stack
        with stack.staging.temporary_names():
            base = self._base()
            tree = MemoryTree.load(self._trees["ours"])
            dropped = capture_tree(tree, base).dropped
            return preview(stack, tree, base=base, version=BASE_VERSION, dropped=dropped)

    def publish(self, author: Author) -> Published:
        """Publish the changes as one layer on top of the head, as `publish.publish`; all or nothing."""
        stack = self._stack
        with stack.staging.temporary_names():
            base, tree = self._base(), self._trees["ours"]
            roles = Roles(stack.routes.ignored(BASE_VERSION), stack.inputs, ())
            captured = capture_tree(tree, base, is_input=roles.is_input)
            touched = captured.touched.__contains__ if captured.touched else None
            indexed = build(tree, base, touched=touched)
            work = Work(tree, indexed, BASE_VERSION, base, captured.dropped)
            return publish(stack, work, author)
