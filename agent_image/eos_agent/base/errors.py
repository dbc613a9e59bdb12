"""Turn any exception into the error of the wire: kind, reason, details, without internals."""

from __future__ import annotations

from typing import Any

from eos_agent.base.publication import rejection_of
from eos_agent.wire.protocol import INTERNAL_ERROR, OPERATION_FAILED, OperationError, os_error
from layerstack.errors import Busy, LayerStackError, PublishRejected, QuotaExceeded

QUOTA_HINT = (
    "make room: run squash_layerstacks, unpin versions, close sessions and discard drafts whose work is no "
    "longer needed; "
    "then repeat it. A changed quota applies to new sandboxes only"
)
NEVER_HINT = (
    "this work alone is larger than the quota: remove files that need not be published from the "
    "session, then "
    "repeat it. A larger quota (runtime.layerstack.quota_bytes) applies to new sandboxes only"
)
HINTS = {
    "version_not_found": "list_versions shows the versions that can be opened",
    "cancelled": "nothing was published and nothing is lost: repeat the request",
    "checkpoint_not_found": "list_workspace_sessions shows the checkpoints of each session",
    "draft_not_found": "list_workspace_sessions shows the drafts that are kept",
}


def quota_hint(error: QuotaExceeded) -> str:
    """The hint for a quota error: how to make room."""
    return NEVER_HINT if error.details.get("retryable") is False else QUOTA_HINT


def operation_error(error: BaseException, request_id: str | None = None) -> OperationError:
    """The wire form of an error. An error not raised on purpose becomes `internal_error`, without its
    text."""
    if isinstance(error, OperationError):
        found = error
    elif isinstance(error, PublishRejected):
        details: dict[str, Any] = {"reason": error.reason, "publish_rejection": rejection_of(error)}
        found = OperationError(OPERATION_FAILED, error.message, details)
    elif isinstance(error, LayerStackError):
        details = {"reason": error.reason, **error.details}
        if isinstance(error, Busy):
            details.setdefault("retryable", True)
        if isinstance(error, QuotaExceeded):
            details.setdefault("hint", quota_hint(error))
        elif error.reason in HINTS:
            details.setdefault("hint", HINTS[error.reason])
        found = OperationError(error.kind, error.message, details)
    elif isinstance(error, OSError):
        found = os_error(error)
    else:
        found = OperationError(
            INTERNAL_ERROR,
            "the agent failed on this request; its log has the details",
            reason="internal_error",
        )
    if request_id:
        found.details.setdefault("request_id", request_id)
    return found
