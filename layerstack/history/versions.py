"""Versions that can be opened, and the changes between two of them or in a draft, path by path and as
patches.
"""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Callable, Generator, Iterator
from typing import NamedTuple

from layerstack.core.stack import Stack
from layerstack.errors import LayerStackError
from layerstack.history.patch import PATCH_LIMIT, Patch, patch
from layerstack.layers import delta
from layerstack.layers.chain import Chain
from layerstack.layers.delta import change_of
from layerstack.layers.snapshot import Snapshot
from layerstack.model.conflict import Fingerprint
from layerstack.model.lease import READER
from layerstack.model.paths import check
from layerstack.publish import draft_refs
from layerstack.session.upper import Upper
from layerstack.tree.state import State, equal, fingerprint

PAGE, PAGE_BYTES = 200, 256 << 10
"""Most changes of one page, and bytes of their patches after which it ends."""
ONE_PATCH_LIMIT = 1 << 20
"""Limit of the patch of a single path, in bytes."""


class Version(NamedTuple):
    """One openable version, and the publication that made it."""

    version: int
    root_hash: str
    layer_count: int
    layer_id: str | None
    """The layer that it added; None for the base and for a version that a squash made, which changes no
    file.
    """
    owner: str | None
    agent: str | None
    request_id: str | None
    created_unix_ms: int | None
    paths: int | None
    bytes: int | None
    pinned: bool
    message: str | None = None


class Change(NamedTuple):
    """One path that differs. `old` and `new` are the two sides of the patch."""

    path: str
    change: str
    """added, deleted, modified, type, attributes."""
    base: Fingerprint
    old: Fingerprint
    new: Fingerprint
    patch: Patch | None
    """None when lines cannot express the change, see `layerstack.history.patch`."""


class Page(NamedTuple):
    """Some of the changes, in byte order of paths."""

    changes: tuple[Change, ...]
    next: int | None
    """Number of the first path of the next page; None after the last."""


def versions(stack: Stack, *, after: int | None = None, limit: int = 100) -> tuple[list[Version], int | None]:
    """List openable versions older than `after`, newest first, and the `after` of the next page, or None.
    Cost: one file per version.
    """
    stems = (name.partition(".json")[0] for name in os.listdir(f"{stack.root}/manifests"))
    numbers = sorted((int(stem) for stem in stems if stem.isdecimal()), reverse=True)
    pinned = stack.pins.held
    found: list[Version] = []
    for number in numbers:
        if after is not None and number >= after:
            continue
        if len(found) == limit:
            return found, found[-1].version
        with contextlib.suppress(LayerStackError):  # closed after the listing
            found.append(_version(stack, number, pinned=number in pinned))
    return found, None


def _version(stack: Stack, number: int, *, pinned: bool) -> Version:
    manifest = stack.manifest(number)
    top = manifest.layers[0]
    layer = None if top.is_base else stack.layers.get(top.layer_id)
    if layer is None or layer.version != number:
        return Version(
            number, manifest.root_hash, len(manifest.layers), None, None, None, None, None, None, None, pinned
        )
    made = layer.members[0]
    whole = layer.id == made["layer_id"]
    return Version(
        number,
        manifest.root_hash,
        len(manifest.layers),
        layer.id,
        made["owner"],
        made["agent"],
        made["request_id"],
        made["created_unix_ms"],
        layer.about.get("paths") if whole else None,
        layer.about.get("bytes") if whole else None,
        pinned,
        made.get("message"),
    )


@contextlib.contextmanager
def opened(stack: Stack, version: int | None) -> Generator[Snapshot]:
    """Open a version for the length of the block: its layers stay on disk, and a squash does not wait for
    it.
    """
    with stack.lock:
        manifest = stack.manifest(version)
        lease = stack.leases.acquire(READER, manifest.version, manifest.layer_ids)
    try:
        yield Snapshot(manifest, stack.chain(manifest))
    finally:
        stack.release(lease)


def diff_versions(stack: Stack, old: int, new: int, *, under: str = "", start: int = 0) -> Page:
    """Give the changes from one version to another, at and below a path.

    Raises:
        NotFound: one of them cannot be opened (version_not_found).
        InvalidPath: `under` is not a path of a tree.
    Cost: that of the page and of the search for its paths, which starts at the first page unless the previous
    page was read shortly before.
    """
    check(under)
    with opened(stack, old) as before, opened(stack, new) as after:
        with stack.deltas.paths(before.chain, after.chain, under, start) as paths:
            return _page(paths, start, under, lambda path: _three(before.chain, after.chain, path))


def diff_draft(
    stack: Stack, draft_id: str, *, against: str = "base", under: str = "", start: int = 0
) -> Page:
    """Give the changes of a draft, at and below a path: `against` its base, or from the head to its work.

    Against the head, paths are left out that are equal in the draft and in the head.
    Raises:
        NotFound: the draft does not exist (draft_not_found).
        InvalidPath: `under` is not a path of a tree.
    """
    check(under)
    with _draft_opened(stack, draft_id) as (base, work):
        if against == "base":
            with stack.deltas.paths(base, work, under, start) as paths:
                return _page(paths, start, under, lambda path: _three(base, work, path))
        with stack.reading() as now, stack.deltas.paths(base, work, under, start, but=now.chain) as paths:
            head = now.chain
            return _page(
                paths, start, under, lambda path: (base.find(path), head.find(path), work.find(path))
            )


def diff_upper(stack: Stack, upper: Upper, *, against: str = "base", under: str = "", start: int = 0) -> Page:
    """Give the present changes of a session, like `diff_draft`. Each page reads all of the session's work
    again.
    """
    check(under)
    with upper.changes() as (base, work):
        paths = delta.paths(base, work, under=under)
        if against == "base":
            rest = itertools.islice(paths, start, None)
            return _page(rest, start, under, lambda path: _three(base, work, path))
        with stack.reading() as now:
            head = now.chain
            differ = (path for path in paths if not equal(head.find(path), work.find(path)))
            return _page(
                itertools.islice(differ, start, None),
                start,
                under,
                lambda path: (base.find(path), head.find(path), work.find(path)),
            )


@contextlib.contextmanager
def _draft_opened(stack: Stack, draft_id: str) -> Generator[tuple[Chain, Chain]]:
    """Give the chain of a draft's base, and the same with its work on top; the draft is kept until the end of
    the block.
    """
    manifest, layer, lease = draft_refs.stand_on(stack, draft_id, READER)
    try:
        base = stack.layers.chain(manifest)
        yield base, base.with_pending((layer,))
    finally:
        stack.release(lease)
        draft_refs.leave(stack, draft_id)


def _three(old: Chain, new: Chain, path: str) -> tuple[State | None, State | None, State | None]:
    before = old.find(path)
    return before, before, new.find(path)


def _page(
    paths: Iterator[str],
    start: int,
    under: str,
    states: Callable[[str], tuple[State | None, State | None, State | None]],
) -> Page:
    """Make a page. `paths`: those from number `start` on; only those of the page and one more are read."""
    found: list[Change] = []
    size = 0
    for at, path in enumerate(paths, start):
        base, old, new = states(path)
        made = patch(path, old, new, limit=ONE_PATCH_LIMIT if path == under else PATCH_LIMIT)
        size += len(made.data) if made is not None else 0
        if found and (len(found) == PAGE or size > PAGE_BYTES):
            return Page(tuple(found), at)
        mark = fingerprint(base)
        found.append(
            Change(
                path,
                change_of(old, new),
                mark,
                mark if old is base else fingerprint(old),
                fingerprint(new),
                made,
            )
        )
    return Page(tuple(found), None)
