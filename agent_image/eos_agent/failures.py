"""Any exception -> the error envelope that goes on the wire: kind, reason, details; nothing of our own internals."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from eos_agent.protocol import INTERNAL_ERROR, OPERATION_FAILED, OperationError, os_error
from layerstack.errors import Busy, LayerStackError, PublishRejected

if TYPE_CHECKING:
    from layerstack.changes import Conflict

INLINE_CONFLICTS = 100
INLINE_BYTES = 64 * 1024


def operation_error(error: BaseException, request_id: str | None = None) -> OperationError:
    """The error as the wire shows it. What was not raised on purpose becomes `internal_error` without its text."""
    if isinstance(error, OperationError):
        found = error
    elif isinstance(error, PublishRejected):
        found = OperationError(
            OPERATION_FAILED, error.message, {"reason": error.reason, "publish_rejection": rejection(error.conflicts, error.reason)}
        )
    elif isinstance(error, LayerStackError):
        details = {"reason": error.reason, **error.details}
        if isinstance(error, Busy):
            details.setdefault("retryable", True)
        found = OperationError(error.kind, error.message, details)
    elif isinstance(error, OSError):
        found = os_error(error)
    else:
        found = OperationError(INTERNAL_ERROR, "the agent failed on this request; its log has the details", reason="internal_error")
    if request_id:
        found.details.setdefault("request_id", request_id)
    return found


def inline_conflicts(conflicts: Sequence[Conflict], start: int = 0) -> tuple[list[dict[str, Any]], int | None]:
    """The conflicts from `start` on that fit into one answer (100 and 64 KiB), and where to go on, or None."""
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
    """The `publish_rejection` object: the reference's five keys, which name the first conflict, then all of them."""
    shown, _more = inline_conflicts(conflicts)
    first = shown[0] if shown else None
    found: dict[str, Any] = {
        "path": first["path"] if first else None,
        "reason": reason,
        "source_conflict": {"path": first["path"], "expected": first["base"], "actual": first["theirs"]} if first else None,
        "protected_drop": None,
        "message": None,
        "conflict_count": len(conflicts),
        "conflicts": shown,
    }
    if len(shown) < len(conflicts):
        found["conflicts_truncated"] = True
    return found
