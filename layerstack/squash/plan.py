"""Plan of a squash: the runs of adjacent layers that no lease keeps apart."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from layerstack.layers.chain import Chain
from layerstack.layers.index import Layer
from layerstack.model.manifest import Manifest

if TYPE_CHECKING:
    from layerstack.core.stack import Stack


class SquashRun(NamedTuple):
    """Layers to squash, newest first, and the chain below them."""

    layers: tuple[Layer, ...]
    below: Chain

    @property
    def first_version(self) -> int:
        """First version of the oldest layer of the run."""
        return self.layers[-1].first_version

    @property
    def version(self) -> int:
        """Version of the new layer: that of the newest layer of the run.

        Only readers may hold a lease on a version inside the run, so one version suffices.
        """
        return self.layers[0].version

    def holds_inside(self, version: int) -> bool:
        """Return True when a squash of the run would lose the tree of the version."""
        return self.first_version <= version < self.version

    def is_in(self, head: Manifest) -> bool:
        """Return True when the layers of the run are still adjacent in `head`."""
        ids, wanted = head.layer_ids, tuple(layer.id for layer in self.layers)
        if wanted[0] not in ids:
            return False
        at = ids.index(wanted[0])
        return ids[at : at + len(wanted)] == wanted


def boundaries(stack: Stack, layers: Sequence[Layer]) -> set[str]:
    """Find the layers, among `layers` (newest first), each of which is the newest layer of a leased version:
    their ids. Leases of readers do not count.
    """
    found: set[str] = set()
    for lease in stack.leases.boundaries():
        top = next((layer for layer in layers if layer.version <= lease.version), None)
        if top is not None:
            found.add(top.id)
    return found


def plan(stack: Stack, chain: Chain) -> list[SquashRun]:
    """Maximal runs of two or more layers that a squash may replace.

    A run has neither the base, nor the newest layer of a lease, nor a layer that is known to be damaged.
    There are no runs while a damaged file is quarantined: the version that its work needs is unknown.
    """
    if stack.damaged:
        return []
    layers, stops = chain.published, boundaries(stack, chain.published)
    runs: list[SquashRun] = []
    start = 0
    for at, layer in enumerate(layers):
        if layer.is_base or layer.id in stops or layer.id in stack.not_squashed:
            if at - start >= 2:
                runs.append(
                    SquashRun(layers[start:at], Chain(layers[at:], chain.path_index, chain.xattr_namespace))
                )
            start = at + 1
    return runs


def gain(stack: Stack) -> int:
    """Number of layers by which a squash would shorten the head now."""
    return sum(len(run.layers) - 1 for run in plan(stack, stack.chain(stack.head)))
