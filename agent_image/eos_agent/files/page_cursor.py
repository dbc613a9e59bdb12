"""Cursors of pages, as clients send them back: bytes in URL-safe base64."""

from __future__ import annotations

import base64
import binascii

from eos_agent.wire.protocol import INVALID_REQUEST, OperationError


def encode(raw: bytes) -> str:
    """Encode what `decode` gives back."""
    return base64.urlsafe_b64encode(raw).decode("ascii")


def decode(cursor: str, operation: str) -> bytes:
    """Decode a cursor; `operation` is named when it is not one.

    Raises:
        OperationError: invalid_request, reason invalid_cursor.
    """
    try:
        return base64.b64decode(cursor.encode(), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        raise invalid(operation) from None


def invalid(operation: str) -> OperationError:
    """The error for a cursor that no page of `operation` returned."""
    return OperationError(
        INVALID_REQUEST,
        f"cursor does not come from {operation}",
        {"argument": "cursor"},
        reason="invalid_cursor",
    )
