"""Check the arguments of a request: names, types, bounds, defaults. Any OS, standard library only."""

from __future__ import annotations

import math
from collections.abc import Mapping

from eos_agent.wire.operation import (
    ANSWER_S,
    ARRAY_DEPTH,
    DEFAULT_YIELD_MS,
    NO_BUDGET,
    U64_MAX,
    Argument,
    Operation,
)
from eos_agent.wire.operations_service import READY_MOST_MS, READY_MS
from eos_agent.wire.protocol import INVALID_REQUEST, OperationError

TYPE_CHECKING = False  # importing `typing` is a tenth of a command line's life
if TYPE_CHECKING:
    from typing import Any, TypeGuard


def check_arguments(
    operation: Operation, args: Mapping[str, Any], *, server: bool = False, bounds: bool = True
) -> dict[str, Any]:
    """Return the arguments with defaults filled in. Checks names first, then types, missing ones, bounds and
    choices.

    Args:
        server: the request is raw: unknown names are ignored, an array or object may be given as JSON text,
            `server_default` replaces a missing argument.
        bounds: False skips bounds and choices: the command lines leave these checks to the server, so that
            their exit code is that of the server's error.
    Raises:
        OperationError: invalid_request; details name `argument` and, if it was given, `value`.
    """
    known = {a.name: a for a in operation.arguments if a.name != "sandbox_id" or operation.scope == "system"}
    unknown = sorted(name for name in args if name not in known)
    if unknown and not server:
        details: dict[str, Any] = {"argument": unknown[0], "known": sorted(known)}
        raise OperationError(
            INVALID_REQUEST,
            f"unknown argument for {operation.name}: {unknown[0]}",
            details,
            reason="unknown_argument",
        )
    checked = {
        name: _typed(operation, known[name], value, server) for name, value in args.items() if name in known
    }
    for argument in known.values():
        if argument.name in checked:
            continue
        if argument.default is not None:
            checked[argument.name] = argument.default
        elif server and argument.server_default is not None:
            checked[argument.name] = argument.server_default
        elif (
            argument.required
            and known.get(beside := f"{argument.name}_b64") is not None
            and checked.get(beside)
        ) or (argument.required and argument.beside and checked.get(argument.beside)):
            checked[argument.name] = ""
        elif argument.required:
            message = f"{argument.name} is required for {operation.name}"
            raise OperationError(
                INVALID_REQUEST, message, {"argument": argument.name}, reason="missing_argument"
            )
    if bounds:
        for name, value in checked.items():
            _within(operation, known[name], value)
    return checked


def budget_s(operation: Operation | None, args: Mapping[str, Any]) -> float | None:
    """Return the seconds that a gateway waits for the answer: 30 plus the operation's own wait; None means
    without a limit."""
    if operation is None:
        return ANSWER_S
    waits = operation.waits
    if isinstance(waits, str):
        argument = operation.argument(waits)
        value = args.get(waits, argument.default if argument is not None else None)
        if value is None:
            value = DEFAULT_YIELD_MS if waits == "yield_time_ms" else 0
        given = (
            float(value)
            if isinstance(value, (int, float)) and not isinstance(value, bool) and _finite(value)
            else 0.0
        )
        waits = max(0.0, given / 1000 if waits.endswith("_ms") else given, _ready_s(args))
    return None if waits == NO_BUDGET else ANSWER_S + waits


def _ready_s(args: Mapping[str, Any]) -> float:
    """Seconds that exec_command waits at most until a service is ready; 0 without `ready`."""
    ready = args.get("ready")
    if not _is_object(ready) or args.get("yield_time_ms") is not None:
        return 0.0
    given = ready.get("timeout_ms", READY_MS)
    known = isinstance(given, (int, float)) and not isinstance(given, bool) and _finite(given)
    return min(given if known else READY_MS, READY_MOST_MS) / 1000


def _typed(operation: Operation, argument: Argument, value: Any, server: bool) -> Any:
    kind = argument.kind
    ok = False
    if kind in ("string", "path"):
        ok = isinstance(value, str)
    elif kind == "integer":
        ok = isinstance(value, int) and not isinstance(value, bool)
        lowest = int(min(0, argument.minimum or 0))
        if ok and not lowest <= value <= U64_MAX:
            raise _refused(
                operation, argument, value, f"must be an integer from {lowest} to {U64_MAX}", "out_of_bounds"
            )
    elif kind == "float":
        ok = isinstance(value, (int, float)) and not isinstance(value, bool)
        if ok and not _finite(value):
            raise _refused(operation, argument, value, "must be finite", "out_of_bounds")
    elif kind == "boolean":
        ok = isinstance(value, bool)
    elif kind == "json_array":
        if server and isinstance(value, str):
            import json

            try:
                value = json.loads(value)
            except (ValueError, RecursionError):
                value = None
        ok = _plain(value)
    elif kind == "json_object":
        if server and isinstance(value, str):
            import json

            try:
                value = json.loads(value)
            except (ValueError, RecursionError):
                value = None
        ok = _is_object(value) and _plain(list(value.values()))
    if not ok:
        words = {
            "string": "a string",
            "path": "a string",
            "integer": "an integer",
            "float": "a number",
            "boolean": "true or false",
            "json_array": "an array",
            "json_object": "an object",
        }
        raise _refused(operation, argument, value, f"must be {words[kind]}", "wrong_type")
    return value


LONGEST = {
    "agent": 256,
    "user": 256,
    "workspace_session_id": 128,
    "command_session_id": 128,
    "draft_id": 128,
    "checkpoint_id": 128,
    "label": 256,
    "after": 128,
    "service": 64,
    "cursor": 65536,
}
"""Largest size in bytes of each argument that is kept, logged and shown to other clients. The size of a
request bounds all other arguments."""


def _within(operation: Operation, argument: Argument, value: Any) -> None:
    longest = LONGEST.get(argument.name)
    if longest is not None and isinstance(value, str) and len(value) * 4 > longest:
        size = len(value.encode("utf-8", "surrogatepass"))
        if size > longest:
            raise _refused(
                operation,
                argument,
                value,
                f"is {size} bytes, at most {longest} are accepted",
                "too_long",
                max_bytes=longest,
            )
    if argument.choices and value not in argument.choices:
        raise _refused(
            operation,
            argument,
            value,
            f"must be one of {', '.join(argument.choices)}",
            "bad_choice",
            choices=list(argument.choices),
        )
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        if argument.minimum is not None and value < argument.minimum:
            raise _refused(
                operation,
                argument,
                value,
                f"must be at least {argument.minimum:g}",
                "out_of_bounds",
                minimum=argument.minimum,
            )
        if argument.maximum is not None and value > argument.maximum:
            raise _refused(
                operation,
                argument,
                value,
                f"must be at most {argument.maximum:g}",
                "out_of_bounds",
                maximum=argument.maximum,
            )


def _refused(
    operation: Operation, argument: Argument, value: Any, must: str, reason: str, **more: Any
) -> OperationError:
    details = {"argument": argument.name, "value": _shown(value), **more}
    return OperationError(
        INVALID_REQUEST, f"{argument.name} of {operation.name} {must}", details, reason=reason
    )


def _shown(value: Any) -> Any:
    """Shorten a refused value for an error message, and replace values that JSON cannot represent."""
    if isinstance(value, (list, dict)):
        return "an array" if isinstance(value, list) else "an object"
    if isinstance(value, (int, float)) and not (_finite(value) and abs(value) <= U64_MAX):
        return str(value)[:200]
    return value[:200] if isinstance(value, str) else value


def _finite(value: float) -> bool:
    """Test that a float can hold the value: an integer of JSON may be too large."""
    try:
        return math.isfinite(value)
    except OverflowError:
        return False


def _is_array(value: object) -> TypeGuard[list[Any]]:
    return isinstance(value, list)


def _is_object(value: object) -> TypeGuard[dict[str, Any]]:
    return isinstance(value, dict)


def _plain(value: Any) -> bool:
    """Test for an array without NaN or infinity, nested at most ARRAY_DEPTH deep: recursive code would reach
    Python's recursion limit on a deeper one."""
    if not _is_array(value):
        return False
    level = value
    for _ in range(ARRAY_DEPTH):
        if any(isinstance(each, float) and not math.isfinite(each) for each in level):
            return False
        inner: list[Any] = []
        for each in level:
            inner.extend(each if _is_array(each) else each.values() if _is_object(each) else ())
        level = inner
        if not level:
            return True
    return False
