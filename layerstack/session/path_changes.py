"""Delete, move or change paths of the head without a session: one layer of whiteouts, hard links and new
files, with no mount.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

from layerstack.core.stack import Stack
from layerstack.errors import AlreadyExists, InvalidPath, NotADirectory, NotEmpty, NotFound
from layerstack.layers.chain import Chain
from layerstack.layers.index_file import build
from layerstack.layers.snapshot import Snapshot, not_a_file
from layerstack.model.file_change import FileChange
from layerstack.model.paths import ancestors, check, join
from layerstack.model.paths import parent as parent_of
from layerstack.publish.outcome import Published
from layerstack.publish.publish import ROUNDS, Author, HeadMoved, Work, publish
from layerstack.tree.disk import DiskTree
from layerstack.tree.fileops import make_directory, set_attributes, set_meta
from layerstack.tree.state import DIRECTORY, FILE, LINK, State

NEW_FILE, NEW_DIRECTORY = 0o644, 0o755
T = TypeVar("T")


class Reshaped(NamedTuple):
    """Result of a deletion or a move: the publication, and the kind of the entry: `f`, `l` or `d`."""

    published: Published
    kind: str


def delete_path(stack: Stack, path: str, author: Author, *, recursive: bool) -> Reshaped:
    """Publish a layer that deletes a file, a symlink or a directory of the head, with no publish in between.

    Raises:
        NotFound: the path does not exist. NotEmpty: a directory that is not empty, without `recursive`.
        NotAFile: an ancestor is not a directory, or is a symlink. InvalidPath: the path is the root.
        All else as `publish.publish`.
    """
    _check(path)

    def attempt(snapshot: Snapshot) -> Reshaped:
        chain = snapshot.chain
        state = _there(chain, path)
        if state.kind == DIRECTORY and not recursive and chain.names(path, stop_above=0):
            raise NotEmpty(f"{path}: the directory is not empty", details={"path": path})

        def write(layer: _Layer) -> None:
            layer.remove(path)

        return Reshaped(_publish(stack, snapshot, author, write), state.kind)

    return _on_head(stack, attempt)


def move_path(stack: Stack, source: str, target: str, author: Author, *, overwrite: bool) -> Reshaped:
    """Publish a layer that moves the head's entry at `source` to `target`.

    Content, modes, owners, xattrs, times and hard links are kept; missing parents are made.
    Args:
        overwrite: a file or symlink may replace another, a directory an empty one.
    Raises:
        AlreadyExists, NotEmpty, NotADirectory, NotAFile: the entry at `target` cannot be replaced.
        InvalidPath: `target` is `source`, or is inside it.
        All else as `delete_path`.
    Cost: O(entries below `source`): hard links, and copies of files of the base (reflinks where there
    are); all of it is hashed.
    """
    _check(source)
    _check(target)
    if target == source or target.startswith(source + "/"):
        raise InvalidPath(
            f"{source} cannot be moved to {target}, which is the same path or inside it",
            details={"path": target},
        )

    def attempt(snapshot: Snapshot) -> Reshaped:
        chain = snapshot.chain
        state = _there(chain, source)
        _look_where(chain, target)
        over = chain.find(target)
        if over is not None:
            _may_replace(chain, state, target, over, overwrite=overwrite)

        def write(layer: _Layer) -> None:
            layer.remove(source)
            layer.fill(target, source)

        return Reshaped(_publish(stack, snapshot, author, write), state.kind)

    return _on_head(stack, attempt)


def change_files(stack: Stack, plan: Callable[[Snapshot], Sequence[FileChange]], author: Author) -> Published:
    """Publish a layer that changes, makes and deletes files of the head, with no publish in between.

    Args:
        plan: version -> its changes, at most one for each path; called again when the head moved. Its
            exceptions are raised.
    Raises:
        NotAFile: an ancestor is not a directory, or is a symlink. All else as `publish.publish`.
    """

    def attempt(snapshot: Snapshot) -> Published:
        changes = plan(snapshot)
        for change in changes:
            _check(change.path)
            _look_where(snapshot.chain, change.path)

        def write(layer: _Layer) -> None:
            for change in changes:
                layer.change(change)

        size = sum(len(change.data) for change in changes if change.data is not None)
        written = tuple(change.path for change in changes if change.data is not None)
        return _publish(stack, snapshot, author, write, size=size, written=written)

    return _on_head(stack, attempt)


def _check(path: str) -> None:
    if check(path) == "":
        raise InvalidPath("the root can be neither deleted nor moved", details={"path": path})


def _there(chain: Chain, path: str) -> State:
    """Find the state of the entry at `path`; symlinks among its ancestors are not followed.

    Raises NotFound, NotAFile.
    """
    _look_where(chain, path, missing=NotFound(f"{path}: no such file", details={"path": path}))
    found = chain.find(path)
    if found is None:
        raise NotFound(f"{path}: no such file", details={"path": path})
    return found


def _look_where(chain: Chain, path: str, *, missing: NotFound | None = None) -> None:
    """Check that each ancestor is a directory. The first that does not exist raises `missing`, if given."""
    for ancestor in ancestors(path):
        state = chain.find(ancestor)
        if state is None:
            if missing is not None:
                raise missing
            return
        if state.kind != DIRECTORY:
            raise not_a_file(
                path,
                "Symlink" if state.kind == LINK else "Other",
                parent=ancestor if state.kind == LINK else None,
            )


def _may_replace(chain: Chain, state: State, target: str, over: State, *, overwrite: bool) -> None:
    """Check as rename(2) does: a file or symlink may replace another, a directory an empty one."""
    if not overwrite:
        raise AlreadyExists(f"{target}: exists already", details={"path": target})
    if over.kind == DIRECTORY:
        if state.kind != DIRECTORY:
            raise not_a_file(target, "Directory")
        if chain.names(target, stop_above=0):
            raise NotEmpty(f"{target}: the directory is not empty", details={"path": target})
    elif state.kind == DIRECTORY:
        raise NotADirectory(
            f"{target}: a directory cannot take the place of a file", details={"path": target}
        )


def _on_head(stack: Stack, attempt: Callable[[Snapshot], T]) -> T:
    """Repeat an attempt when another publish changed the same paths in between; the last round holds the
    lock.
    """
    stack.check_open()

    for _ in range(ROUNDS):
        try:
            with stack.reading() as snapshot:
                return attempt(snapshot)
        except HeadMoved:
            continue
    with stack.lock, stack.reading() as snapshot:
        return attempt(snapshot)


def _publish(
    stack: Stack,
    snapshot: Snapshot,
    author: Author,
    write: Callable[[_Layer], None],
    *,
    size: int = 0,
    written: tuple[str, ...] = (),
) -> Published:
    """Build the layer and publish it. `size`: bytes of new files; those of hard links are counted in the
    layer.
    """
    head, chain = snapshot.manifest, snapshot.chain
    stack.quota.admit(head, lambda: size)
    with stack.staging.temporary_names() as new_name:
        tree = DiskTree(new_name("reshape"), stack.xattr_namespace, aside=stack.staging.path, step=stack.step)
        layer = _Layer(tree, chain)
        write(layer)
        layer.close()
        work = Work(tree, build(tree, chain), head.version, chain, (), layer.linked_bytes(), written)
        return publish(stack, work, author, merge=False)


class _Layer:
    """Layer tree that is being built.

    The ancestors of a change have the head's attributes and times; a directory that gets or loses a name has
    the present time.
    """

    def __init__(self, tree: DiskTree, chain: Chain) -> None:
        self._tree, self._chain = tree, chain
        self._folders: dict[str, State | None] = {}
        self._touched: set[str] = set()
        self._linked: dict[str, dict[tuple[int, int], int]] = {}

    def remove(self, path: str) -> None:
        self._reach(path)
        self._tree.whiteout(path)

    def change(self, change: FileChange) -> None:
        """Write the file with the attributes of `like`, or delete it."""
        path, data = change.path, change.data
        if data is None:
            if self._chain.find(path) is not None:
                self.remove(path)
            return
        self._reach(path, touch=self._chain.find(path) is None)
        full = self._tree.full(path)
        fd = os.open(full, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with open(fd, "wb") as file:
            file.write(data)
        like = self._chain.find(change.like) if change.like is not None else None
        if like is None:
            above = self._tree.state(parent_of(path))
            set_meta(full, (change.mode(NEW_FILE), above.meta[1], above.meta[2]))
        else:
            set_attributes(full, like)
            if change.executable is not None:
                os.chmod(full, change.mode(like.meta[0]))

    def fill(self, target: str, source: str) -> None:
        """Put the head's entry at `source` at `target`, with its modes, owners, xattrs, times and hard
        links.
        """
        self._reach(target)
        self._fill(target, source)

    def _fill(self, target: str, source: str) -> None:
        state = self._chain.find(source)
        if state is None:
            return
        self._tree.put(target, state)
        if state.kind == FILE:
            self._count(source, state)
        elif state.kind == DIRECTORY:
            for name in sorted(self._chain.names(source)):
                self._fill(join(target, name), join(source, name))
            self._tree.set_times(target, state.times)

    def _count(self, source: str, state: State) -> None:
        shown_by = self._chain.layer_of(source)
        if state.linkable and shown_by is not None:
            self._linked.setdefault(shown_by.id, {})[state.inode] = state.size

    def _reach(self, path: str, *, touch: bool = True) -> None:
        """Make the directories above `path`; new ones have mode 0755 and the owner of their parent.

        touch: a name is added or removed.
        """
        tree = self._tree
        for ancestor in ancestors(path):
            if ancestor in self._folders:
                continue
            state = self._chain.find(ancestor)
            self._folders[ancestor] = state
            if state is not None:
                make_directory(tree.full(ancestor), state)
                continue
            shown_by = tree.state(parent_of(ancestor))
            os.mkdir(tree.full(ancestor))
            set_meta(tree.full(ancestor), (NEW_DIRECTORY, shown_by.meta[1], shown_by.meta[2]))
            self._touched.add(parent_of(ancestor))
        if touch:
            self._touched.add(parent_of(path))

    def close(self) -> None:
        """Set the times of directories, all of which changed while the layer was made."""
        for path, state in reversed(self._folders.items()):
            if state is not None and path not in self._touched:
                self._tree.set_times(path, state.times)

    def linked_bytes(self) -> dict[str, int]:
        """Bytes of files that are hard links to files of a published layer, by that layer."""
        return {layer_id: sum(sizes.values()) for layer_id, sizes in self._linked.items()}
