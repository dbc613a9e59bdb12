"""Names of one file that a session parted: overlayfs copies a file up by the name that is written to, and its other names keep the old content.

Told as a notice; nothing is put together again, since the session itself saw them apart. Looked for only where a changed path was one of several
names, among the entries of the layer that has them.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from layerstack.layers.chain import Chain
from layerstack.layers.index import Layer
from layerstack.model.conflict import Notice
from layerstack.model.paths import byte_order, join
from layerstack.model.paths import parent as parent_of
from layerstack.tree.disk import DiskTree, Tree
from layerstack.tree.state import DIRECTORY, FILE

LOOKED_AT_MAX = 50_000
"""Entries of a layer; in a larger one only what lies in the same directory is found."""
TOLD_MAX = 100


def split_links(tree: Tree, chain: Chain, paths: Sequence[str]) -> tuple[Notice, ...]:
    """Notices of the kind `split_link`.

    Args:
        tree: sealed on `chain`.
        paths: files of it that have several names in the chain.
    """
    told: list[Notice] = []
    for path in paths:
        holder, state = chain.holder(path), chain.find(path)
        if holder is None or state is None or len(told) >= TOLD_MAX:
            continue
        others = [
            name for name in _names(holder, path, state.inode) if name != path and chain.holder(name) is holder and _shows_old(tree, name)
        ]
        if others:
            told.append(Notice("split_link", path, others=tuple(sorted(others, key=byte_order)[:TOLD_MAX])))
    return tuple(told)


def _shows_old(tree: Tree, name: str) -> bool:
    """Does the other name still show what the chain has? The tree may have made it a name of the new file, rewritten it or taken it away."""
    at = ""
    for part in name.split("/"):
        child = next((child for child in tree.scan(at) if child.name == part), None)
        if child is None:
            return not tree.opaque(at)
        if child.kind != DIRECTORY:
            return False
        at = join(at, part)
    return False


def _names(layer: Layer, path: str, inode: tuple[int, int]) -> list[str]:
    """The names of a file in one layer."""
    if not isinstance(layer.tree, DiskTree):
        return []
    if layer.names_of is None:
        layer.names_of = _groups(layer)
    found = layer.names_of.get(inode, [])
    return found or [other for other in _siblings(layer.tree, path) if layer.tree.state(other).inode == inode]


def _siblings(tree: DiskTree, path: str) -> list[str]:
    return [join(parent_of(path), name) for name, kind in tree.scan(parent_of(path)) if kind == FILE]


def _groups(layer: Layer) -> dict[tuple[int, int], list[str]]:
    """The names of each file that has several, where the layer is not too large."""
    assert isinstance(layer.tree, DiskTree)
    found: dict[tuple[int, int], list[str]] = {}
    waiting, seen = [""], 0
    while waiting:
        at = waiting.pop()
        with os.scandir(layer.tree.full(at)) as entries:
            for entry in entries:
                seen += 1
                if seen > LOOKED_AT_MAX:
                    return {}
                if entry.is_dir(follow_symlinks=False):
                    waiting.append(join(at, entry.name))
                elif entry.is_file(follow_symlinks=False):
                    status = entry.stat(follow_symlinks=False)
                    if status.st_nlink > 1:
                        found.setdefault((status.st_dev, status.st_ino), []).append(join(at, entry.name))
    return found
