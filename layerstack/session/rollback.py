"""Make the head show an earlier version again, by one new layer on top: no published layer is removed.

Times are restored too, also those of files whose content equals the head's: a tool that builds by time then
finds up to date what was up to date in the earlier version, and no later output of other inputs (ADR 0048). A
difference in times alone makes no version.
"""

from __future__ import annotations

from typing import NamedTuple

from layerstack.core.quota import Sizes
from layerstack.core.stack import Stack
from layerstack.layers.chain import Chain
from layerstack.layers.delta import tops
from layerstack.layers.index import Layer
from layerstack.layers.index_file import build
from layerstack.layers.index_record import record
from layerstack.layers.packed_index import PackedIndex
from layerstack.model.paths import ancestors, byte_order
from layerstack.publish.outcome import Published
from layerstack.publish.publish import ROUNDS, Author, HeadMoved, Work, publish
from layerstack.tree.disk import PATH_MAX, DiskTree
from layerstack.tree.fileops import make_directory
from layerstack.tree.state import DIRECTORY, FILE, State


def rollback(stack: Stack, version: int, author: Author) -> Published:
    """See `Store.rollback`.

    When the head moves, the versions are compared again; after `ROUNDS` rounds under the lock.
    """
    for _ in range(ROUNDS):
        try:
            return _once(stack, version, author)
        except HeadMoved:
            continue
    with stack.lock:
        return _once(stack, version, author)


def _once(stack: Stack, version: int, author: Author) -> Published:
    with stack.lease(version) as wanted, stack.reading() as now, stack.staging.temporary_names() as new_name:
        stack.step("rollback.compare")
        if next(tops(now.chain, wanted.chain), None) is None:
            return Published(True, now.manifest, None, 0, 0, (), ())
        stack.quota.admit(now.manifest, lambda: _copied(now.chain, wanted.chain))
        stack.step("rollback.build")
        tree = DiskTree(new_name("rollback"), stack.xattr_namespace, aside=stack.staging.path)
        done = _write(tree, now.chain, wanted.chain)
        indexed = build(tree, now.chain, touched=done.retimed.__contains__)
        work = Work(tree, indexed, now.version, now.chain, (), done.linked, done.written)
        return publish(stack, work, author, merge=False, exact=True)


def _copied(now: Chain, target: Chain) -> int:
    """Count the bytes of the files that will be copied: those of the base. All other files will be hard
    links.
    """
    sizes = Sizes()
    for _, _, new, _ in tops(now, target, times=True):
        if new is not None and new.kind == FILE and not new.linkable:
            sizes.add(new)
    return sizes.total()


class _Done(NamedTuple):
    linked: dict[str, int]
    """Bytes of the linked files, by the layer that holds them."""
    retimed: PackedIndex
    """Files that are there for their time alone."""
    written: set[str]
    """Files that were last written by `file_write` or `file_edit`, those that the rollback removes
    included.
    """


def _write(tree: DiskTree, now: Chain, target: Chain) -> _Done:
    """Write the layer that shows `target` on top of `now`: hard links, copies of files of the base,
    whiteouts.
    """
    linked: dict[str, Sizes] = {}
    retimed, written = PackedIndex(), set[str]()
    by_hand: dict[str, frozenset[str]] = {}

    def is_written(shown_by: Layer, path: str) -> bool:
        if shown_by.id not in by_hand:
            by_hand[shown_by.id] = frozenset(shown_by.about.get("written", ()))
        return path in by_hand[shown_by.id]

    open_now: dict[str, State] = {}  # directories that were made and may still get entries

    def folder(path: str) -> None:
        if path not in open_now:
            state = target.find(path)
            assert state is not None and state.kind == DIRECTORY
            make_directory(tree.full(path), state)
            open_now[path] = state

    def close(before: bytes) -> None:
        """Set the times of directories whose whole content sorts before a path; "0" is the byte after "/"."""
        for known in [known for known in open_now if known and byte_order(known) + b"0" <= before]:
            tree.set_times(known, open_now.pop(known).times)

    for path, _, new, only_time in tops(now, target, times=True):
        close(byte_order(path))
        for ancestor in ancestors(path):
            folder(ancestor)
        shown_by = (now if new is None else target).layer_of(path)
        assert shown_by is not None
        if is_written(shown_by, path):
            written.add(path)
        if new is None:
            tree.whiteout(path)
        elif new.kind == DIRECTORY:
            folder(path)
        else:
            tree.put(path, new)
            if only_time:
                retimed.add(byte_order(path), record(FILE, quiet=True))
            if new.linkable and new.kind == FILE:
                linked.setdefault(shown_by.id, Sizes()).add(new)
    close(b"\xff" * PATH_MAX)
    tree.set_times("", open_now.pop("").times)
    return _Done({layer_id: sizes.total() for layer_id, sizes in linked.items()}, retimed, written)
