"""How deep a directory lies: looking a name up in a merged directory asks every layer that holds the directory, until one has the name.

Measured over overlayfs: layers that touch different directories cost nearly nothing, ten that touch one double the time of a cold walk of
it. So it is counted how many layers changed entries of one and the same directory, the workspace's root included, as far as a squash could
make one layer of them now.
"""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from layerstack.core.stack import Stack
from layerstack.layers.index import Layer
from layerstack.model.paths import parent
from layerstack.squash.plan import plan


class Depth(NamedTuple):
    """What a squash could do for the head of now."""

    layers: int
    """Of the head, the base included."""
    foldable: int
    """How many of them a squash would replace."""
    entries: int
    """How many paths those list together: what the squash would cost."""
    directory: str
    """The directory that most of those touch; "" is the root."""
    sharing: int
    """How many touch it: neighbours with which a squash would make one layer of them. 0 when no two do."""


class Depths:
    """Measures a store again and again: what a layer touches is remembered. One caller at a time."""

    def __init__(self, stack: Stack) -> None:
        self._stack = stack
        self._touched: dict[str, frozenset[str]] = {}

    def measure(self) -> Depth:
        """Cost: O(directories that the foldable layers touch); each layer's paths are looked at once."""
        stack = self._stack
        head, known = stack.head, self._touched
        runs = plan(stack, stack.chain(head))
        self._touched = {}
        sharing: Counter[str] = Counter()
        for run in runs:
            of_run: Counter[str] = Counter()
            for layer in run.layers:
                touched = self._touched[layer.id] = known.get(layer.id) or _touched(layer)
                of_run.update(touched)
            sharing.update({directory: count for directory, count in of_run.items() if count > 1})
        directory, count = sharing.most_common(1)[0] if sharing else ("", 0)
        foldable = [layer for run in runs for layer in run.layers]
        return Depth(len(head.layers), len(foldable), sum(len(layer.index or ()) for layer in foldable), directory, count)


def _touched(layer: Layer) -> frozenset[str]:
    """The directories of which the layer changes an entry; what it holds only on the way there is not one."""
    return frozenset(parent(path) for path, record in (layer.index or {}).items() if path and not record.quiet)
