"""The argument `message` of a publication."""

from __future__ import annotations

from eos_agent.wire.protocol import INVALID_REQUEST, OperationError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

MESSAGE_MAX = 10_000
"""Characters of one message."""


def message_of(args: Mapping[str, Any]) -> str | None:
    """Return the message without white space at its ends; None where it is absent or blank.

    Raises:
        OperationError: invalid_request, reason message_too_long or bad_argument (a NUL).
    """
    found = args.get("message")
    if not isinstance(found, str) or not found.strip():
        return None
    if len(found) > MESSAGE_MAX:
        raise OperationError(
            INVALID_REQUEST,
            f"message has {len(found)} characters, at most {MESSAGE_MAX} are kept",
            {"argument": "message", "limit": MESSAGE_MAX},
            reason="message_too_long",
        )
    if "\0" in found:
        raise OperationError(
            INVALID_REQUEST, "message has a NUL", {"argument": "message"}, reason="bad_argument"
        )
    return found.strip()
