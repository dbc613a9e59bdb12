"""Heads of HTTP/1 messages as values, and the framing of their bodies. `peer` reads them with h11."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

MAX_HEAD_BYTES = 64 * 1024
PIECE_BYTES = 64 * 1024
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
    """A message is not HTTP/1, or two readers may understand it differently. status: the status of the
    answer."""

    def __init__(self, why: str, status: int = 400) -> None:
        super().__init__(why)
        self.why, self.status = why, status


class Body(NamedTuple):
    """The framing of a body, which ends after `length` bytes, with its last chunk, or with the connection."""

    length: int | None
    chunked: bool

    @property
    def empty(self) -> bool:
        return self.length == 0


NO_BODY = Body(0, False)
CHUNKED = Body(None, True)
UNTIL_CLOSE = Body(None, False)


class Fields:
    """Header fields in their order; look-ups ignore the case of names."""

    def __init__(self, pairs: Iterable[tuple[str, str]]) -> None:
        self.pairs = list(pairs)

    def all(self, name: str) -> list[str]:
        return [value for other, value in self.pairs if other.lower() == name]

    def get(self, name: str) -> str | None:
        """The first value of a field; None without the field."""
        return next(iter(self.all(name)), None)

    def words(self, name: str) -> list[str]:
        """The elements of a list field, in lower case."""
        return [word.strip().lower() for value in self.all(name) for word in value.split(",") if word.strip()]

    def without(self, *names: str) -> list[tuple[str, str]]:
        """Fields for the next hop: without hop-by-hop fields, fields that Connection names, `names`, and
        Content-Length.
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
        """The protocol to which the client wants to switch; None without an upgrade."""
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
        """The framing of this response's body, for a request of that method. Raises: BadMessage."""
        if method == "HEAD" or self.status in (204, 304):
            return NO_BODY
        return _body(self.fields, self.minor) or UNTIL_CLOSE


def encode_head(first: str, pairs: Iterable[tuple[str, str]]) -> bytes:
    return "".join((first, "\r\n", *(f"{name}: {value}\r\n" for name, value in pairs), "\r\n")).encode(
        "latin-1"
    )


def chunk(piece: bytes) -> bytes:
    """Encode a piece of a body as one chunk; an empty piece makes the last chunk."""
    return b"%x\r\n%b\r\n" % (len(piece), piece)


def _body(fields: Fields, minor: int) -> Body | None:
    """The framing that the fields declare; None if they declare none. `peer` has checked each field by
    itself."""
    coded, length = fields.get("transfer-encoding") is not None, fields.get("content-length")
    if coded and length is not None:
        raise BadMessage("Content-Length beside Transfer-Encoding")
    if coded and not minor:
        raise BadMessage("Transfer-Encoding in HTTP/1.0")
    if coded:
        return CHUNKED
    return None if length is None else Body(int(length), False)
