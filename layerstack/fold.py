"""Fold adjacent layers into one tree that shows the same: private layers before a publish, published ones at a squash."""

from __future__ import annotations

from collections.abc import Sequence

from layerstack.chain import Chain
from layerstack.index import Layer, Record
from layerstack.paths import parent as parent_of
from layerstack.states import DIRECTORY, WHITEOUT
from layerstack.tree import Tree

Listed = tuple[int, Layer, Record]
"""A record of a path: the rank of its layer in the block, 0 the newest; the layer; the record."""


def fold(block: Sequence[Layer], below: Chain, target: Tree) -> dict[str, Layer]:
    """Write what the layers of `block` show on top of `below` into `target`, which holds nothing but its root, like the newest layer's.

    A whiteout stays only where `below` shows the name and nothing of the result hides it; a directory that hid what is below stays opaque.
    Files are shared by hard link.
    Returns:
        Of each file and symlink, the layer that it is from.
    Cost: O(entries of the block); names come from the indexes, not from the disk.
    """
    listed: dict[str, list[Listed]] = {}
    for rank, layer in enumerate(block):
        for path, rec in (layer.index or {}).items():
            listed.setdefault(path, []).append((rank, layer, rec))
    children: dict[str, list[str]] = {}
    for path in sorted(listed):
        if path:
            children.setdefault(parent_of(path), []).append(path)
    sources: dict[str, Layer] = {}

    def go(path: str, last: int, *, cut: bool) -> bool:
        """What is in a directory. Layers older than rank `last` have nothing to say; `cut`: nothing of `below` shows here."""
        some = False
        for child in children.get(path, ()):
            rank, top, rec = listed[child][0]
            if rank > last:
                continue
            if rec.kind == WHITEOUT:
                if not cut and below.holder(child) is not None:
                    target.whiteout(child)
                    some = True
            elif rec.kind != DIRECTORY:
                target.put(child, top.tree.state(child))
                sources[child] = top
                some = True
            else:
                some = directory(child, last, cut=cut) or some
        return some

    def directory(path: str, last: int, *, cut: bool) -> bool:
        hit, quiet = False, not cut
        for rank, _, rec in listed[path]:
            if rank > last:
                break
            if rec.kind != DIRECTORY:
                hit, last = True, rank - 1
                break
            quiet = quiet and rec.quiet
            if rec.opaque:
                hit, last = True, rank
                break
        under = below.find(path) if not cut else None
        under_directory = under is not None and under.kind == DIRECTORY
        state = listed[path][0][1].tree.state(path)
        target.put(path, state)
        if hit and not cut and under_directory:
            target.mark_opaque(path)
        some = go(path, last, cut=cut or hit or not under_directory)
        if not some and quiet and not hit:
            target.rmdir(path)
            return False
        target.set_times(path, state.times)
        return True

    root = block[0].tree.state("")
    target.set_attributes("", root)
    go("", len(block) - 1, cut=False)
    target.set_times("", root.times)
    return sources
