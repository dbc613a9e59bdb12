"""Times of a layer that later publications need, from its metadata or else from a walk of the layer."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from layerstack.core.stack import Stack
from layerstack.layers.index import Layer, LayerTimes
from layerstack.layers.snapshot import Snapshot
from layerstack.text.build_roles import Roles
from layerstack.text.gitignore import named
from layerstack.tree.state import DIRECTORY, FILE, WHITEOUT

KEY = "times"
AHEAD_MAX_NS = 24 * 3600 * 10**9
"""Most that the time of a file may be ahead of the clock. A later one was set on purpose, and no other time
has to be later than it.
"""


def joined(times: Iterable[LayerTimes]) -> LayerTimes:
    """Combine the times of layers, for the layer that replaces them."""
    each = list(times)
    oldest = min((one.oldest_input for one in each if one.oldest_input is not None), default=None)
    return LayerTimes(oldest, max((one.newest for one in each), default=0), any(one.removes for one in each))


def recorded(layer: Layer) -> LayerTimes | None:
    """Give the times in the layer's metadata; None where it has none."""
    recorded = layer.about.get(KEY)
    return (
        None
        if recorded is None
        else LayerTimes(recorded["oldest_input"], recorded["newest"], recorded["removes"])
    )


def times_of(stack: Stack, layer: Layer) -> LayerTimes:
    """Give the recorded times, else those of the layer's files: then each listed file counts, also one of
    which only the mode changed.
    """
    if layer.times is None:
        layer.times = recorded(layer) or _walked(stack, layer)
    return layer.times


def _walked(stack: Stack, layer: Layer) -> LayerTimes:
    roles = Roles(stack.routes.ignored(layer.version), stack.inputs, layer.about.get("written", ()))
    oldest: int | None = None
    newest, removes = 0, False
    for path in layer.paths():
        record = layer.get(path)
        if record is None or record.quiet:
            continue
        if record.kind == WHITEOUT:
            removes = True
            continue
        mtime = layer.tree.state(path).times[1]
        newest = max(newest, mtime)
        if roles.is_output(path, record.kind == DIRECTORY):
            continue
        if record.kind != FILE:
            removes = removes or record.masks
        elif oldest is None or mtime < oldest:
            oldest = mtime
    return LayerTimes(oldest, newest, removes)


def newest_in(layers: Iterable[Layer]) -> int:
    """Find the newest time in published layers, without times that were set on purpose; a layer without
    recorded times counts with the time of its publication.
    """
    limit, newest = time.time_ns() + AHEAD_MAX_NS, 0
    for layer in layers:
        recorded = layer.times
        if recorded is not None:
            at = recorded.newest
        elif (kept := layer.about.get(KEY)) is not None:
            at = kept["newest"]
        else:
            at = published_ns(layer) or 0
        if newest < at <= limit:
            newest = at
    return newest


def published_ns(layer: Layer) -> int | None:
    """Give the latest time at which the newest publication in the layer can have been made; None for the
    base, and where it is not recorded.
    """
    if layer.is_base:
        return None
    at = layer.members[0].get("created_unix_ms")
    return None if at is None else (int(at) + 1) * 1_000_000


def outputs_of(stack: Stack, version: Snapshot) -> Callable[[str, str], bool]:
    """Give the predicate (layer, path): True when that file of a version is an output of builds."""
    ignored = stack.routes.ignored(version.version)
    written: dict[str, frozenset[str]] = {
        layer.id: frozenset(layer.about.get("written", ()))
        for layer in version.chain.published
        if not layer.is_base
    }
    return lambda layer_id, path: (
        ignored(path, False)
        and path not in written.get(layer_id, frozenset())
        and not named(stack.inputs, path)
    )
