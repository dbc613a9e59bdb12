"""Fold adjacent layers into one tree that shows the same: private layers before a publish, published ones at a squash."""

from __future__ import annotations

from collections.abc import Sequence

from layerstack.chain import Chain
from layerstack.index import Layer
from layerstack.paths import join
from layerstack.states import DIRECTORY, WHITEOUT
from layerstack.tree import Tree


def fold(block: Sequence[Layer], below: Chain, target: Tree) -> None:
    """Write what the layers of `block` show on top of `below` into `target`, which holds nothing but its root, like the newest layer's.

    A whiteout stays only where `below` shows the name and nothing of the result hides it; a directory that hid what is below stays opaque.
    Files are shared by hard link. Cost: O(entries of the block).
    """

    def go(path: str, layers: Sequence[Layer], *, cut: bool) -> bool:
        names: set[str] = set()
        for layer in layers:
            names.update(child.name for child in layer.tree.scan(path))
        some = False
        for name in sorted(names):
            child = join(path, name)
            found = [(layer, rec) for layer in layers if (rec := layer.get(child)) is not None]
            if not found:
                continue
            top, rec = found[0]
            if rec.kind == WHITEOUT:
                if not cut and below.holder(child) is not None:
                    target.whiteout(child)
                    some = True
            elif rec.kind != DIRECTORY:
                target.put(child, top.tree.state(child))
                some = True
            else:
                some = directory(child, found, cut=cut) or some
        return some

    def directory(path: str, found: Sequence[tuple[Layer, object]], *, cut: bool) -> bool:
        merged: list[Layer] = []
        hit = False
        for layer, _ in found:
            rec = layer.get(path)
            if rec is None or rec.kind != DIRECTORY:
                hit = True
                break
            merged.append(layer)
            if rec.opaque:
                hit = True
                break
        under = below.find(path) if not cut else None
        under_directory = under is not None and under.kind == DIRECTORY
        state = found[0][0].tree.state(path)
        quiet = not cut and not hit and all((rec := layer.get(path)) is not None and rec.quiet for layer, _ in found)
        target.put(path, state)
        if hit and not cut and under_directory:
            target.mark_opaque(path)
        some = go(path, merged, cut=cut or hit or not under_directory)
        if not some and quiet:
            target.rmdir(path)
            return False
        target.set_times(path, state.times)
        return True

    root = block[0].tree.state("")
    target.set_attributes("", root)
    go("", block, cut=False)
    target.set_times("", root.times)
