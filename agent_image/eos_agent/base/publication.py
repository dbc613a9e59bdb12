"""JSON objects of the wire for publications, previews and rejections of the store."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from layerstack.model.conflict import path_json

if TYPE_CHECKING:
    from layerstack.errors import PublishRejected
    from layerstack.model.conflict import Conflict
    from layerstack.publish.outcome import Preview, Published
    from layerstack.session.rebase import Rebased

INLINE_CONFLICTS = 100
INLINE_BYTES = 64 * 1024


def inline_conflicts(
    conflicts: Sequence[Conflict], start: int = 0
) -> tuple[list[dict[str, Any]], int | None]:
    """The conflicts from `start` on that fit into one answer (at most 100, and 64 KiB), and the start of the
    next page, or None."""
    out: list[dict[str, Any]] = []
    size = 0
    for index in range(start, len(conflicts)):
        shown = conflicts[index].to_json()
        size += len(json.dumps(shown))
        if out and (len(out) >= INLINE_CONFLICTS or size > INLINE_BYTES):
            return out, index
        out.append(shown)
    return out, None


def rejection(conflicts: Sequence[Conflict], reason: str = "source_conflict") -> dict[str, Any]:
    """The `publish_rejection` object: the reference's five keys for the first conflict, then all
    conflicts."""
    shown, _more = inline_conflicts(conflicts)
    first = shown[0] if shown else None
    found: dict[str, Any] = {
        "path": first["path"] if first else None,
        "reason": reason,
        "source_conflict": {"path": first["path"], "expected": first["base"], "actual": first["theirs"]}
        if first
        else None,
        "protected_drop": None,
        "message": None,
        "conflict_count": len(conflicts),
        "conflicts": shown,
    }
    if len(shown) < len(conflicts):
        found["conflicts_truncated"] = True
    return found


def rejection_of(error: PublishRejected) -> dict[str, Any]:
    """The wire form of a rejected publish, for an error's `publish_rejection` and for a command's result."""
    return rejection(error.conflicts, error.reason)


def publish_json(published: Published) -> dict[str, Any]:
    """The `publish` object of a success."""
    manifest = published.manifest
    found: dict[str, Any] = {
        "no_op": published.no_op,
        "revision": {
            "manifest_version": manifest.version,
            "root_hash": manifest.root_hash,
            "layer_count": len(manifest.layers),
        },
        "route_summary": {"source_count": published.source_count, "ignored_count": published.ignored_count},
    }
    if published.rewritten:
        found["rewritten"] = dict(published.rewritten)
    if published.kept_refs:
        found["kept_refs"] = list(published.kept_refs)
    return found | left_out(published)


def left_out(done: Published | Rebased) -> dict[str, Any]:
    """The keys `notices` and `dropped`, each if not empty."""
    found: dict[str, Any] = {}
    if done.notices:
        found["notices"] = [notice.to_json() for notice in done.notices]
    if done.dropped:
        found["dropped"] = [path_json(path) for path in done.dropped]
    return found


def preview_json(preview: Preview, start: int = 0) -> dict[str, Any]:
    """The result of preview_publish, its conflicts from `start` on."""
    conflicts, more = inline_conflicts(preview.conflicts, start)
    return {
        "would_publish": preview.would_publish,
        "no_op": preview.no_op,
        "head_version": preview.head_version,
        "route_summary": {"source_count": preview.source_count, "ignored_count": preview.ignored_count},
        "conflicts": conflicts,
        "conflict_count": len(preview.conflicts),
        "notices": [notice.to_json() for notice in preview.notices],
        "dropped": [path_json(path) for path in preview.dropped],
        "refused": None
        if preview.refused is None
        else {"reason": preview.refused.reason, **preview.refused.details},
        "next": None if more is None else str(more),
    }
