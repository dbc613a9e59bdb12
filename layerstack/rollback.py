"""Make the head show what an earlier version showed, by one new layer on top: nothing that was published is taken away."""

from __future__ import annotations

from typing import TYPE_CHECKING

from layerstack.chain import Chain
from layerstack.delta import at, delta
from layerstack.index_file import build
from layerstack.paths import ancestors
from layerstack.projection import Snapshot
from layerstack.publish import ROUNDS, Author, HeadMoved, Published, Work, publish
from layerstack.states import DIRECTORY, FILE, State, make_directory
from layerstack.tree import DiskTree

if TYPE_CHECKING:
    from layerstack.store import Store


def rollback(store: Store, version: int, author: Author) -> Published:
    """See `Store.rollback`. A head that moves meanwhile is compared again, after three rounds under the lock."""
    return store.quota.with_room(lambda: _rounds(store, version, author))


def _rounds(store: Store, version: int, author: Author) -> Published:
    for _ in range(ROUNDS):
        try:
            return _once(store, version, author)
        except HeadMoved:
            continue
    with store.lock:
        return _once(store, version, author)


def _once(store: Store, version: int, author: Author) -> Published:
    with store.lease(version) as wanted, store.reading() as now, store.scrap.scrap() as scrap:
        store.step("rollback.compare")
        paths = delta(now.chain, wanted.chain)
        if not paths:
            return Published(True, now.manifest, None, 0, 0, (), ())
        store.quota.admit(now.manifest, lambda: _copied(paths, now.chain, wanted.chain))
        store.step("rollback.build")
        tree = DiskTree(scrap("rollback"), store.form, aside=store.scrap.path)
        linked = _write(tree, paths, now.chain, wanted)
        work = Work(tree, build(tree, now.chain), now.version, now.chain, (), linked)
        return publish(store, work, author, merge=False, exact=True)


def _copied(paths: list[str], now: Chain, target: Chain) -> int:
    """Bytes of the files that will be copied: those of the base. The others are links to what is there."""
    sizes: dict[tuple[int, int], int] = {}
    for path in paths:
        difference = at(now, target, path)
        new = None if difference is None else difference.new
        if new is not None and new.kind == FILE and not new.linkable:
            sizes[new.inode] = new.size
    return sum(sizes.values())


def _write(tree: DiskTree, paths: list[str], now: Chain, wanted: Snapshot) -> dict[str, int]:
    """The layer that on top of `now` shows `wanted`: hard links to its files, copies of those of the base, whiteouts.

    Returns:
        Bytes of the linked files, by the layer that holds them.
    """
    target = wanted.chain
    inodes: dict[str, dict[tuple[int, int], int]] = {}
    folders: dict[str, State] = {}

    def folder(path: str) -> None:
        if path not in folders:
            state = target.find(path)
            assert state is not None and state.kind == DIRECTORY
            make_directory(tree.full(path), state)
            folders[path] = state

    folder("")
    hidden = ""  # the last path below which nothing is left to say
    for path in paths:
        if hidden and path.startswith(hidden + "/"):
            continue
        difference = at(now, target, path)
        assert difference is not None
        for ancestor in ancestors(path):
            folder(ancestor)
        if difference.new is None:
            tree.whiteout(path)
            hidden = path
        elif difference.new.kind == DIRECTORY:
            folder(path)
        else:
            tree.put(path, difference.new)
            hidden = path
            if difference.new.linkable and difference.new.kind == FILE:
                holder = target.holder(path)
                assert holder is not None
                inodes.setdefault(holder.id, {})[difference.new.inode] = difference.new.size
    for path, state in reversed(folders.items()):
        tree.set_times(path, state.times)
    return {layer_id: sum(sizes.values()) for layer_id, sizes in inodes.items()}
