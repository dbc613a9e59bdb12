"""What a squash may fold: runs of neighbouring layers that no lease keeps apart."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from layerstack.layers.chain import Chain
from layerstack.layers.index import Layer
from layerstack.model.manifest import Manifest

if TYPE_CHECKING:
    from layerstack.core.stack import Stack


class SquashRun(NamedTuple):
    """Layers to fold, newest first, and the chain below them."""

    layers: tuple[Layer, ...]
    below: Chain

    @property
    def first_version(self) -> int:
        """That of its oldest member."""
        return self.layers[-1].first_version

    @property
    def version(self) -> int:
        """The folded layer's own: that of its newest member. Nobody's base lies inside, so one suffices."""
        return self.layers[0].version

    def holds_inside(self, version: int) -> bool:
        """Would the tree of that version be lost?"""
        return self.first_version <= version < self.version

    def is_in(self, head: Manifest) -> bool:
        """Are its layers still neighbours there?"""
        ids, wanted = head.layer_ids, tuple(layer.id for layer in self.layers)
        if wanted[0] not in ids:
            return False
        at = ids.index(wanted[0])
        return ids[at : at + len(wanted)] == wanted


def boundaries(stack: Stack, layers: Sequence[Layer]) -> set[str]:
    """Ids of the layers, of those given newest first, on which somebody's base ends."""
    found: set[str] = set()
    for lease in stack.leases.boundaries():
        top = next((layer for layer in layers if layer.version <= lease.version), None)
        if top is not None:
            found.add(top.id)
    return found


def plan(stack: Stack, chain: Chain) -> list[SquashRun]:
    """The maximal runs of two or more layers that are neither the base, nor the newest layer of a lease, nor known to be damaged.

    None while damaged work is set apart: on which version it stands nobody knows.
    """
    if stack.damaged:
        return []
    layers, stops = chain.published, boundaries(stack, chain.published)
    runs: list[SquashRun] = []
    start = 0
    for at, layer in enumerate(layers):
        if layer.is_base or layer.id in stops or layer.id in stack.unfoldable:
            if at - start >= 2:
                runs.append(SquashRun(layers[start:at], Chain(layers[at:], chain.shelf, chain.form)))
            start = at + 1
    return runs


def gain(stack: Stack) -> int:
    """By how many layers a squash would shorten the head now."""
    return sum(len(run.layers) - 1 for run in plan(stack, stack.chain(stack.head)))
