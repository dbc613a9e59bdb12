"""Hard links that a session split: overlayfs copies a file up under the name that is written to, and its
other names keep the old content.

Split links are reported as a notice and not joined again, since the session itself saw separate files. They
are searched for only where a changed path had several names, among the entries of the layer that has the
file. Source: overlayfs.rst, "Non-standard behavior".
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

SCANNED_MAX = 50_000
"""Entries of a layer that are scanned; in a larger layer only names in the same directory are found."""
NOTICES_MAX = 100


def split_links(tree: Tree, chain: Chain, paths: Sequence[str]) -> tuple[Notice, ...]:
    """Make notices of the kind `split_link`.

    Args:
        tree: captured on `chain`.
        paths: files of it that have several names in the chain.
    """
    notices: list[Notice] = []
    for path in paths:
        shown_by, state = chain.layer_of(path), chain.find(path)
        if shown_by is None or state is None or len(notices) >= NOTICES_MAX:
            continue
        others = [
            name
            for name in _names(shown_by, path, state.inode)
            if name != path and chain.layer_of(name) is shown_by and _shows_old(tree, name)
        ]
        if others:
            notices.append(
                Notice("split_link", path, others=tuple(sorted(others, key=byte_order)[:NOTICES_MAX]))
            )
    return tuple(notices)


def _shows_old(tree: Tree, name: str) -> bool:
    """Check whether the other name still shows the chain's file. The tree may have made it a name of the new
    file, rewritten or deleted it.
    """
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
    """List the names of a file in one layer."""
    if not isinstance(layer.tree, DiskTree):
        return []
    if layer.names_of is None:
        layer.names_of = _groups(layer)
    found = layer.names_of.get(inode, [])
    return found or [other for other in _siblings(layer.tree, path) if layer.tree.state(other).inode == inode]


def _siblings(tree: DiskTree, path: str) -> list[str]:
    return [join(parent_of(path), name) for name, kind in tree.scan(parent_of(path)) if kind == FILE]


def _groups(layer: Layer) -> dict[tuple[int, int], list[str]]:
    """Find the names of each file that has several, unless the layer is too large."""
    assert isinstance(layer.tree, DiskTree)
    found: dict[tuple[int, int], list[str]] = {}
    waiting, seen = [""], 0
    while waiting:
        at = waiting.pop()
        with os.scandir(layer.tree.full(at)) as entries:
            for entry in entries:
                seen += 1
                if seen > SCANNED_MAX:
                    return {}
                if entry.is_dir(follow_symlinks=False):
                    waiting.append(join(at, entry.name))
                elif entry.is_file(follow_symlinks=False):
                    status = entry.stat(follow_symlinks=False)
                    if status.st_nlink > 1:
                        found.setdefault((status.st_dev, status.st_ino), []).append(join(at, entry.name))
    return found
