"""Depth of a directory: the number of layers that a lookup in the merged directory has to read.

Overlayfs looks a name up in every layer that has the directory, until one has the name. Measured over
overlayfs: layers that touch different directories cost nearly nothing, ten that touch one directory double
the time of a cold walk of it. The depth therefore counts the layers that changed entries of one directory,
which may be the workspace's root, and that a squash could replace by one layer now.
"""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from layerstack.core.stack import Stack
from layerstack.layers.index import Layer
from layerstack.model.paths import parent
from layerstack.squash.plan import plan


class Depth(NamedTuple):
    """Effect that a squash would have on the present head."""

    layers: int
    """Layers of the head, the base included."""
    squashable: int
    """Layers that a squash would replace."""
    entries: int
    """Paths that the replaced layers list together: the cost of the squash."""
    directory: str
    """Directory that most of the replaced layers touch; "" is the root."""
    sharing: int
    """Layers that touch this directory and that a squash would replace by one layer. 0 when there are not two
    of them.
    """


class Depths:
    """Depths of one store. The directories that a layer touches are remembered for the next measurement.

    One caller at a time.
    """

    def __init__(self, stack: Stack) -> None:
        self._stack = stack
        self._touched: dict[str, frozenset[str]] = {}

    def measure(self) -> Depth:
        """Measure the head.

        Cost: O(directories that the squashable layers touch); each layer's paths are read once.
        """
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
        squashable = [layer for run in runs for layer in run.layers]
        return Depth(
            len(head.layers),
            len(squashable),
            sum(len(layer.index or ()) for layer in squashable),
            directory,
            count,
        )


def _touched(layer: Layer) -> frozenset[str]:
    """Directories in which the layer changes an entry; the mere ancestors of such are left out."""
    return frozenset(
        parent(path) for path, record in (layer.index or {}).items() if path and not record.quiet
    )
