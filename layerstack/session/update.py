"""A write without a session: read a file of the head, transform it, publish."""

from __future__ import annotations

import os
from collections.abc import Callable

from layerstack.core.stack import Stack
from layerstack.errors import InvalidPath
from layerstack.layers.chain import Chain
from layerstack.layers.index_file import build
from layerstack.layers.snapshot import Snapshot, not_a_file
from layerstack.model.manifest import Manifest
from layerstack.model.paths import ancestors, check
from layerstack.publish.outcome import Published
from layerstack.publish.publish import ROUNDS, Author, HeadMoved, Work, publish
from layerstack.tree.disk import DiskTree
from layerstack.tree.fileops import make_directory, set_attributes, set_meta
from layerstack.tree.state import DIRECTORY, FILE, LINK, State

Change = Callable[[bytes | None], bytes]
"""Bytes of a file, None when there is none -> its new bytes."""

NEW_FILE, NEW_DIRECTORY = 0o644, 0o755


def update_file(
    stack: Stack,
    path: str,
    change: Change,
    *,
    owner: str,
    request_id: str,
    agent: str | None,
    limit: int | None,
    message: str | None = None,
) -> Published:
    """See `Store.update_file`; one caller at a time.

    The file is read again if another publish changed it in between.
    """
    stack.check_open()
    check(path)
    if path == "":
        raise InvalidPath("the path is the workspace root, not a file", details={"path": path})
    author = Author(owner, request_id, agent, message=message)
    for _ in range(ROUNDS):
        try:
            with stack.reading() as snapshot:
                return _once(stack, path, change, author, snapshot, limit)
        except HeadMoved:
            continue
    with stack.lock, stack.reading() as snapshot:
        return _once(stack, path, change, author, snapshot, limit)


def _once(
    stack: Stack, path: str, change: Change, author: Author, snapshot: Snapshot, limit: int | None
) -> Published:
    head, chain = snapshot.manifest, snapshot.chain
    above, there = _look(chain, path)
    new = change(None if there is None else there.data(limit))
    if there is not None and there.size == len(new) and there.data() == new:
        stack.sync_head()
        return Published(True, head, None, 0, 0, (), ())
    stack.quota.admit(head, lambda: len(new))
    with stack.staging.temporary_names() as new_name:
        tree = DiskTree(new_name("update"), stack.xattr_namespace, aside=stack.staging.path, step=stack.step)
        _write(tree, path, new, above, there)
        return publish(stack, _work(tree, head, chain)._replace(written=(path,)), author, merge=False)


def _look(chain: Chain, path: str) -> tuple[list[tuple[str, State | None]], State | None]:
    """Find the states of the directories above the file, None for those to make, and of the file. Raises
    NotAFile.
    """
    above: list[tuple[str, State | None]] = []
    for ancestor in ancestors(path):
        state = chain.find(ancestor) if not above or above[-1][1] is not None else None
        if state is not None and state.kind != DIRECTORY:
            raise not_a_file(
                path,
                "Symlink" if state.kind == LINK else "Other",
                parent=ancestor if state.kind == LINK else None,
            )
        above.append((ancestor, state))
    there = chain.find(path) if above[-1][1] is not None else None
    if there is not None and there.kind != FILE:
        raise not_a_file(
            path, "Directory" if there.kind == DIRECTORY else "Symlink" if there.kind == LINK else "Other"
        )
    return above, there


def _write(
    tree: DiskTree, path: str, data: bytes, above: list[tuple[str, State | None]], there: State | None
) -> None:
    """Write the layer tree of one changed file.

    Directories have the head's attributes; new ones have the owner of their parent.
    """
    above_state = above[0][1]
    assert above_state is not None
    there_already = [(directory, state) for directory, state in above if state is not None]
    for directory, state in above:
        if state is not None:
            make_directory(tree.full(directory), state)
            above_state = state
        else:
            os.mkdir(tree.full(directory))
            set_meta(tree.full(directory), (NEW_DIRECTORY, above_state.meta[1], above_state.meta[2]))
    full = tree.full(path)
    fd = os.open(full, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with open(fd, "wb") as file:
        file.write(data)
    if there is None:
        set_meta(full, (NEW_FILE, above_state.meta[1], above_state.meta[2]))
        there_already.pop()  # a name was added to this one: its time is now
    else:
        set_attributes(full, there)
    for directory, state in reversed(there_already):
        tree.set_times(directory, state.times)


def _work(tree: DiskTree, head: Manifest, chain: Chain) -> Work:
    return Work(tree, build(tree, chain), head.version, chain, ())
