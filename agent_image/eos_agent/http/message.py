"""Heads of HTTP/1 messages as values, and how long their bodies are. What two readers could take for
different things is refused.

Source: RFC 9110, RFC 9112; what smuggling lives on is section 11.2 of the latter: two lengths, a length and a
coding, bare CR or LF, spaces before a colon, folded lines.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

MAX_HEAD_BYTES = 64 * 1024
MAX_FIELDS = 128
_TOKEN = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_VALUE = re.compile(r"[\t\x20-\x7e\x80-\xff]*")
_TARGET = re.compile(r"[\x21-\x7e\x80-\xff]+")
_HOP_BY_HOP = frozenset(
    (
        "connection",
        "keep-alive",
        "proxy-connection",
        "proxy-authenticate",
        "proxy-authorization",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    )
)


class BadMessage(Exception):
    """No HTTP/1 message, or one that two readers may understand differently. `status` answers it."""

    def __init__(self, why: str, status: int = 400) -> None:
        super().__init__(why)
        self.why, self.status = why, status


class Body(NamedTuple):
    """How a body ends: after `length` bytes, with its last chunk, or with the connection."""

    length: int | None
    chunked: bool

    @property
    def empty(self) -> bool:
        return self.length == 0


NO_BODY = Body(0, False)
CHUNKED = Body(None, True)
UNTIL_CLOSE = Body(None, False)


class Fields:
    """Header fields in their order; names in any case."""

    def __init__(self, pairs: Iterable[tuple[str, str]]) -> None:
        self.pairs = list(pairs)

    def all(self, name: str) -> list[str]:
        return [value for other, value in self.pairs if other.lower() == name]

    def get(self, name: str) -> str | None:
        """The first value, None when there is none."""
        return next(iter(self.all(name)), None)

    def words(self, name: str) -> list[str]:
        """The elements of a list field, in lower case."""
        return [word.strip().lower() for value in self.all(name) for word in value.split(",") if word.strip()]

    def without(self, *names: str) -> list[tuple[str, str]]:
        """Fields for the next hop: neither hop-by-hop fields, nor those that Connection names, nor `names`,
        nor Content-Length.
        """
        gone = {*_HOP_BY_HOP, "content-length", *self.words("connection"), *names}
        return [(name, value) for name, value in self.pairs if name.lower() not in gone]


class RequestHead(NamedTuple):
    """The head of a request. target is in origin form; minor is the n of HTTP/1.n."""

    method: str
    target: str
    minor: int
    fields: Fields

    @property
    def upgrade(self) -> str | None:
        """The protocol that the client wants to go on in, if it does."""
        return (
            self.fields.get("upgrade")
            if self.minor and "upgrade" in self.fields.words("connection")
            else None
        )

    @property
    def body(self) -> Body:
        """Raises: BadMessage."""
        return _body(self.fields, self.minor) or NO_BODY


class ResponseHead(NamedTuple):
    """The head of a response."""

    status: int
    reason: str
    minor: int
    fields: Fields

    def body(self, method: str) -> Body:
        """How the body of the answer to a request of this method ends. Raises: BadMessage."""
        if method == "HEAD" or self.status in (204, 304):
            return NO_BODY
        return _body(self.fields, self.minor) or UNTIL_CLOSE


def parse_request(raw: bytes) -> RequestHead:
    """The head up to and with its empty line.

    Raises:
        BadMessage: also for a request of HTTP/1.1 without Host, or with two of them.
    """
    first, fields = _head(raw)
    words = first.split(" ")
    if len(words) != 3 or not _TOKEN.fullmatch(words[0]) or words[2] not in ("HTTP/1.0", "HTTP/1.1"):
        raise BadMessage("no request line of HTTP/1.0 or HTTP/1.1")
    method, target, minor = words[0], words[1], int(words[2][-1])
    if not target.startswith("/") or not _TARGET.fullmatch(target):
        raise BadMessage("the target must be a path")
    hosts = fields.all("host")
    if len(hosts) != 1 and (minor or hosts):
        raise BadMessage("there must be one Host")
    return RequestHead(method, target, minor, fields)


def parse_response(raw: bytes) -> ResponseHead:
    """The head up to and with its empty line. Raises: BadMessage."""
    first, fields = _head(raw)
    found = re.fullmatch(r"HTTP/1\.([0-9]) ([1-9][0-9]{2})(?: ([\t\x20-\x7e\x80-\xff]*))?", first)
    if found is None:
        raise BadMessage("no status line of HTTP/1")
    return ResponseHead(int(found[2]), found[3] or "", int(found[1]), fields)


def encode_head(first: str, pairs: Iterable[tuple[str, str]]) -> bytes:
    return "".join((first, "\r\n", *(f"{name}: {value}\r\n" for name, value in pairs), "\r\n")).encode(
        "latin-1"
    )


def _head(raw: bytes) -> tuple[str, Fields]:
    first, *lines = raw.decode("latin-1").split("\r\n")[:-2]
    if len(lines) > MAX_FIELDS:
        raise BadMessage(f"more than {MAX_FIELDS} header fields", 431)
    pairs: list[tuple[str, str]] = []
    for line in lines:
        name, colon, value = line.partition(":")
        if not colon or not _TOKEN.fullmatch(name) or not _VALUE.fullmatch(value):
            raise BadMessage("a header line is malformed")
        pairs.append((name, value.strip(" \t")))
    return first, Fields(pairs)


def _body(fields: Fields, minor: int) -> Body | None:
    """Parse the fields that frame a body; None without any."""
    codings, lengths = fields.all("transfer-encoding"), fields.all("content-length")
    if codings:
        if lengths:
            raise BadMessage("Content-Length beside Transfer-Encoding")
        if minor == 0 or len(codings) != 1 or codings[0].lower() != "chunked":
            raise BadMessage("the only transfer coding is chunked, once, in HTTP/1.1")
        return CHUNKED
    if not lengths:
        return None
    if len(lengths) != 1 or not re.fullmatch(r"[0-9]{1,18}", lengths[0]):
        raise BadMessage("Content-Length must be one number")
    return Body(int(lengths[0]), False)
