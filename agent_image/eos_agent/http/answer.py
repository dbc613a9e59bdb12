"""HTTP answers of the agent itself: a status and a small body; the connection is closed after them."""

from __future__ import annotations

from eos_agent.http.message import encode_head
from eos_agent.wire.protocol import OPERATION_FAILED, OperationError, encode

WORDS = {
    100: "Continue", 200: "OK", 303: "See Other", 400: "Bad Request", 401: "Unauthorized", 403: "Forbidden", 404: "Not Found", 405: "Method Not Allowed",  # noqa: E501
    408: "Request Timeout", 413: "Payload Too Large", 417: "Expectation Failed", 429: "Too Many Requests", 431: "Request Header Fields Too Large",  # noqa: E501
    502: "Bad Gateway", 503: "Service Unavailable", 504: "Gateway Timeout",
}  # fmt: skip
JSON, TEXT = "application/json", "text/plain; charset=utf-8"


class HttpRefusal(Exception):
    """An answer that ends the request: status and body."""

    def __init__(self, status: int, body: bytes = b"", kind: str = TEXT, *extra: tuple[str, str]) -> None:
        super().__init__(status)
        self.status, self.body, self.kind, self.extra = (
            status,
            body or WORDS[status].lower().encode(),
            kind,
            extra,
        )


def refused(
    status: int,
    reason: str,
    message: str,
    *,
    kind: str = OPERATION_FAILED,
    extra: tuple[tuple[str, str], ...] = (),
) -> HttpRefusal:
    """A refusal whose body is the error envelope of the other listeners."""
    return as_envelope(status, OperationError(kind, message, reason=reason), *extra)


def as_envelope(status: int, error: OperationError, *extra: tuple[str, str]) -> HttpRefusal:
    return HttpRefusal(status, encode(error.envelope()), JSON, *extra)


def answer(status: int, body: bytes, kind: str, *extra: tuple[str, str]) -> bytes:
    """A whole response, after which the connection is closed."""
    pairs = (("Content-Type", kind), ("Content-Length", str(len(body))), *extra, ("Connection", "close"))
    return encode_head(f"HTTP/1.1 {status} {WORDS[status]}", pairs) + body
