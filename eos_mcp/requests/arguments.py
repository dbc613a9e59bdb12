"""Argument checks of the manager's operations, since a raw request skips those of the clients. Unknown
arguments are ignored.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from eos_agent.wire.operation import U64_MAX
from eos_agent.wire.protocol import INVALID_REQUEST, OperationError


def text(
    args: Mapping[str, Any], name: str, op: str, *, default: str | None = None, non_empty: bool = True
) -> str:
    """Return a string argument.

    Raises:
        OperationError: invalid_request: missing, not a string, blank, or with a lone surrogate, which file
            system calls refuse.
    """
    value = args.get(name, default)
    if value is None:
        raise OperationError(
            INVALID_REQUEST, f"{name} is required for {op}", {"argument": name}, reason="missing_argument"
        )
    if not isinstance(value, str):
        raise OperationError(
            INVALID_REQUEST, f"{name} must be a string", {"argument": name}, reason="bad_argument"
        )
    if any("\ud800" <= c <= "\udfff" for c in value):
        raise OperationError(
            INVALID_REQUEST, f"{name} must be valid Unicode", {"argument": name}, reason="bad_argument"
        )
    if non_empty and not value.strip():
        raise OperationError(
            INVALID_REQUEST, f"{name} must be a non-empty string", {"argument": name}, reason="bad_argument"
        )
    return value


def count(args: Mapping[str, Any]) -> int:
    """Return `count`, 1 or more.

    Raises:
        OperationError: invalid_request.
    """
    value = args.get("count", 1)
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= U64_MAX:
        details = {"argument": "count", **({"value": value} if isinstance(value, int) else {})}
        raise OperationError(
            INVALID_REQUEST, f"count must be an integer from 1 to {U64_MAX}", details, reason="bad_argument"
        )
    return value


def flag(args: Mapping[str, Any], name: str) -> bool:
    """Return a boolean argument, false by default.

    Raises:
        OperationError: invalid_request: any other type, which must not count as false.
    """
    value = args.get(name, False)
    if not isinstance(value, bool):
        raise OperationError(
            INVALID_REQUEST, f"{name} must be a boolean", {"argument": name}, reason="bad_argument"
        )
    return value


def choice(args: Mapping[str, Any], name: str, choices: Sequence[str]) -> str:
    """Return one of `choices`, the first by default.

    Raises:
        OperationError: invalid_request.
    """
    value = args.get(name, choices[0])
    if value not in choices:
        raise OperationError(
            INVALID_REQUEST,
            f"{name} must be one of {', '.join(choices)}, not {value!r}",
            {"argument": name, "choices": list(choices)},
            reason="bad_argument",
        )
    return str(value)
