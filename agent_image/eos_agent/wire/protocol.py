"""One JSON line each way: request and reply envelope, error envelope. Any OS, standard library only.

A success is the bare result object; a failure is `{"error": {"kind", "message", "details"}}`. Only a failure
has a top-level `error`.
"""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Mapping

TYPE_CHECKING = False  # importing `typing` is a tenth of a command line's life
if TYPE_CHECKING:
    from typing import Any, NamedTuple
else:
    from eos_agent.wire.namedtuple import NamedTuple

MAX_LINE_BYTES = 16 * 1024 * 1024
GATEWAY_TOKEN_KEY = "_sandbox_gateway_auth_token"
DAEMON_TOKEN_KEY = "_sandbox_daemon_auth_token"
STREAM_LOGS_KEY = "_stream_logs"
KEEP_ALIVE_KEY = "_keep_alive"
CLIENT_KEY = "_client"
REQUEST_ID_MAX, DERIVED_ID_MAX = 256, 512
"""Largest size in bytes of a client's request id, and of an id that the gateway derived from it for a request
of its own."""
TRANSPORT_KEYS = (GATEWAY_TOKEN_KEY, DAEMON_TOKEN_KEY, STREAM_LOGS_KEY, KEEP_ALIVE_KEY, CLIENT_KEY)

INVALID_REQUEST = "invalid_request"
OPERATION_FAILED = "operation_failed"
NOT_FOUND = "not_found"
OPERATION_CONFLICT = "operation_conflict"
SERVER_BUSY = "server_busy"
SERVER_SHUTTING_DOWN = "server_shutting_down"
UNKNOWN_OP = "unknown_op"
UNAUTHORIZED = "unauthorized"
BAD_JSON = "bad_json"
REQUEST_TOO_LARGE = "request_too_large"
INTERNAL_ERROR = "internal_error"
CONNECTION_ERROR = "connection_error"
PROTOCOL_ERROR = "protocol_error"
CONFIG_ERROR = "config_error"


class OperationError(Exception):
    """A failure in its wire form: kind, message, details. `reason` becomes `details.reason`."""

    def __init__(
        self, kind: str, message: str, details: Mapping[str, Any] | None = None, *, reason: str | None = None
    ) -> None:
        super().__init__(message)
        self.kind = kind
        self.message = message
        self.details: dict[str, Any] = dict(details or {})
        if reason is not None:
            self.details.setdefault("reason", reason)

    def envelope(self) -> dict[str, Any]:
        return error_envelope(self.kind, self.message, self.details)


class Request(NamedTuple):
    """One decoded request. `sandbox_id` is None in system scope; `transport` holds the stripped `_…`
    siblings."""

    op: str
    request_id: str
    sandbox_id: str | None
    args: dict[str, Any]
    transport: dict[str, Any]

    @property
    def scope(self) -> dict[str, Any]:
        return (
            {"kind": "system"}
            if self.sandbox_id is None
            else {"kind": "sandbox", "sandbox_id": self.sandbox_id}
        )


def new_request_id() -> str:
    """A UUIDv4 without the cost of importing uuid."""
    raw = bytearray(os.urandom(16))
    raw[6] = (raw[6] & 0x0F) | 0x40
    raw[8] = (raw[8] & 0x3F) | 0x80
    text = raw.hex()
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


# json.dumps makes an encoder for each call
_ENCODER = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def encode(value: object) -> bytes:
    """Encode compact UTF-8 JSON and one newline.

    A lone surrogate (from a name that is not UTF-8) becomes U+FFFD; NaN raises ValueError.
    """
    text = _ENCODER.encode(value)
    try:
        return text.encode() + b"\n"
    except UnicodeEncodeError:
        return "".join("\ufffd" if "\ud800" <= c <= "\udfff" else c for c in text).encode() + b"\n"


def encode_request(
    op: str, args: Mapping[str, Any], *, request_id: str, sandbox_id: str | None = None, **transport: Any
) -> bytes:
    """Encode a request line; `transport` holds its `_…` keys."""
    scope = {"kind": "system"} if sandbox_id is None else {"kind": "sandbox", "sandbox_id": sandbox_id}
    return encode({"op": op, "request_id": request_id, "scope": scope, "args": dict(args), **transport})


def decode_object(line: bytes) -> dict[str, Any]:
    """Decode the JSON object of one line.

    Raises:
        OperationError: bad_json.
    """
    try:
        value = _DECODER.decode(
            line.decode(json.detect_encoding(line), "surrogatepass")
        )  # like json.loads, which makes a decoder for each call
    except (ValueError, RecursionError):
        raise OperationError(BAD_JSON, "the request line is not JSON", reason="bad_json") from None
    if not isinstance(value, dict):
        raise OperationError(BAD_JSON, "the request line is not a JSON object", reason="bad_json")
    return value  # type: ignore[no-any-return, unused-ignore]


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")  # NaN and Infinity: Python reads them, `encode` refuses them


_INFINITY = float("inf")


def _finite(text: str) -> float:
    value = float(text)
    if value in (_INFINITY, -_INFINITY):
        raise ValueError(f"{text[:40]} is beyond what a double can hold")  # Python would read it as Infinity
    return value


_DECODER = json.JSONDecoder(parse_constant=_no_constant, parse_float=_finite)


def check_request_id(found: str, longest: int = REQUEST_ID_MAX) -> None:
    """Refuse an id of more than `longest` bytes: invalid_request, reason too_long. Drafts, layers and logs
    keep the id."""
    if len(found) * 4 > longest and (size := len(found.encode("utf-8", "surrogatepass"))) > longest:
        details = {"argument": "request_id", "value": found[:200], "max_bytes": longest}
        raise OperationError(
            INVALID_REQUEST,
            f"request_id is {size} bytes, at most {longest} are accepted",
            details,
            reason="too_long",
        )


def decode_request(value: Mapping[str, Any]) -> Request:
    """Check the envelope. Unknown top-level keys are ignored.

    Raises:
        OperationError: invalid_request that names the key.
    """

    def text(key: str) -> str:
        found = value.get(key)
        if not isinstance(found, str):
            raise OperationError(
                INVALID_REQUEST, f"{key} must be a string", {"argument": key}, reason="bad_envelope"
            )
        return found

    op = text("op")
    if not op:
        raise OperationError(
            INVALID_REQUEST, "op must be non-empty", {"argument": "op"}, reason="bad_envelope"
        )
    request_id = text("request_id")
    check_request_id(request_id, DERIVED_ID_MAX)
    listed, args = value.get("scope"), value.get("args")
    if not isinstance(listed, dict):
        raise OperationError(
            INVALID_REQUEST, "scope must be an object", {"argument": "scope"}, reason="bad_envelope"
        )
    if not isinstance(args, dict):
        raise OperationError(
            INVALID_REQUEST, "args must be an object", {"argument": "args"}, reason="bad_envelope"
        )
    scope: dict[str, Any] = listed  # pyright: ignore[reportUnknownVariableType]
    kind, sandbox_id = scope.get("kind"), None
    if kind == "sandbox":
        sandbox_id = scope.get("sandbox_id")
        if not isinstance(sandbox_id, str) or not sandbox_id.strip():
            raise OperationError(
                INVALID_REQUEST,
                "scope.sandbox_id must be a non-empty string",
                {"argument": "scope"},
                reason="bad_envelope",
            )
    elif kind != "system":
        raise OperationError(
            INVALID_REQUEST, f"unknown scope kind: {kind!r}", {"argument": "scope"}, reason="bad_envelope"
        )
    transport = {key: value[key] for key in TRANSPORT_KEYS if key in value}
    given: dict[str, Any] = args  # pyright: ignore[reportUnknownVariableType]
    return Request(op, request_id, sandbox_id, dict(given), transport)


def error_envelope(kind: str, message: str, details: Mapping[str, Any] | None = None) -> dict[str, Any]:
    return {"error": {"kind": kind, "message": message, "details": dict(details or {})}}


def is_error(reply: Mapping[str, Any]) -> bool:
    return "error" in reply


def os_error(error: OSError, *, kind: str = OPERATION_FAILED) -> OperationError:
    """The wire form of an error of the kernel, with errno's name and the path."""
    name = errno.errorcode.get(error.errno or 0, "EIO")
    details: dict[str, Any] = {"reason": "os_error", "errno": name}
    if error.filename is not None:
        details["path"] = (
            os.fsdecode(error.filename) if isinstance(error.filename, (str, bytes)) else str(error.filename)
        )
    if name == "ENOSPC":
        details["reason"], details["retryable"] = "disk_full", True
        details["hint"] = "free space on the file system of the store, then repeat the call"
    return OperationError(kind, f"{error.strerror or error} [{name}]", details)
