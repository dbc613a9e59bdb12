"""One end of an HTTP/1 connection; h11 parses its bytes to heads and pieces of bodies. ADR 0066.

h11 accepts heads that another reader may understand differently, so `_check` reads the bytes of a head first.
RFC 9112, section 11.2, describes request smuggling; it uses two lengths, a length and a coding, bare CR or
LF, folded lines.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, Iterable

import h11

from eos_agent.http.message import (
    MAX_HEAD_BYTES,
    PIECE_BYTES,
    BadMessage,
    Body,
    Fields,
    RequestHead,
    ResponseHead,
)

MAX_FIELDS = 128
_AMBIGUOUS = re.compile(rb"(?<!\r)\n|\r(?!\n)|\n[ \t]|[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")
_LENGTHS = re.compile(rb"\ncontent-length[ \t]*:([^\r\n]*)", re.IGNORECASE)
_LENGTH = re.compile(rb"[ \t]*[0-9]{1,18}[ \t]*")
_QUOTED = re.compile(r":? (?:bytearray\()?b['\"]")
_NOT_ASCII = re.compile(rb"[\x80-\xff]")


class HttpPeer:
    """A client or a server, for one request. connection: h11's state of the connection, in the opposite
    role."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, connection: h11.Connection
    ) -> None:
        self.reader, self.writer = reader, writer
        self._connection = connection

    async def request(self) -> RequestHead:
        """Read the head of a client's request.

        Raises:
            BadMessage: also for a request of HTTP/1.1 without Host, or with two of them.
            asyncio.LimitOverrunError: the head is longer than the reader's limit.
            asyncio.IncompleteReadError: the connection ended before the head did.
        """
        return parse_request(self._connection, await self.reader.readuntil(b"\r\n\r\n"))

    def send_request(self, method: str, target: str, pairs: Iterable[tuple[str, str]]) -> None:
        """Buffer the head of a request to a server. The fields declare the framing of its body.

        Raises:
            BadMessage: h11 refuses to send such a head.
        """
        fields = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in pairs]
        try:
            raw = self._connection.send(h11.Request(method=method, target=target, headers=fields))
        except h11.LocalProtocolError as error:
            raise BadMessage(_without_bytes(error)) from None
        self.writer.write(raw)

    def framed(self, piece: bytes) -> bytes:
        """Frame a piece of a request's body for the server; an empty piece ends the body."""
        return self._connection.send(h11.Data(data=piece) if piece else h11.EndOfMessage())

    async def response(self) -> ResponseHead:
        """Read the next head of a server's response, which may be an informational one. Raises: as
        `request`."""
        return parse_response(self._connection, await self.reader.readuntil(b"\r\n\r\n"))

    async def pieces(self, body: Body) -> AsyncGenerator[bytes]:
        """Yield the content of the body that follows the head, without its framing, about PIECE_BYTES at a
        time; chunk extensions and trailers are left out.

        Raises:
            BadMessage: a chunk is malformed.
            asyncio.IncompleteReadError: the connection ended before the body did.
        """
        if body.chunked:
            async for piece in self._chunks():
                yield piece
            return
        left = (
            body.length
        )  # None: until the connection ends. No parser is needed, and h11 would copy each byte three times
        while left != 0:
            piece = await self.reader.read(PIECE_BYTES if left is None else min(left, PIECE_BYTES))
            if not piece:
                if left is None:
                    return
                raise asyncio.IncompleteReadError(b"", left)
            if left is not None:
                left -= len(piece)
            yield piece

    def unread(self) -> bytes:
        """Bytes that were read after the end of a body: the beginning of a tunnel."""
        return self._connection.trailing_data[0]

    async def _chunks(self) -> AsyncGenerator[bytes]:
        ended = False
        while True:
            try:
                event = self._connection.next_event()
            except h11.RemoteProtocolError as error:
                if ended:
                    raise asyncio.IncompleteReadError(b"", None) from None
                raise BadMessage(_without_bytes(error)) from None
            if isinstance(event, h11.Data):
                yield event.data
            elif event is h11.NEED_DATA:
                piece = await self.reader.read(PIECE_BYTES)
                ended = not piece
                self._connection.receive_data(piece)
            else:
                return


def client(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> HttpPeer:
    return HttpPeer(reader, writer, h11.Connection(h11.SERVER, MAX_HEAD_BYTES))


def server(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> HttpPeer:
    return HttpPeer(reader, writer, h11.Connection(h11.CLIENT, MAX_HEAD_BYTES))


def parse_request(connection: h11.Connection, raw: bytes) -> RequestHead:
    """Parse the head of a request, including its empty line. Raises: BadMessage."""
    method, space, rest = raw.partition(b" ")
    line, end, fields = rest.partition(b"\r\n")
    if not line.isascii():  # a URI is ASCII: other bytes are escaped, which means the same
        line = _NOT_ASCII.sub(lambda found: b"%%%02X" % found[0][0], line)
    event = _head(connection, b"".join((method, space, line, end, fields)))
    if not isinstance(event, h11.Request) or event.http_version not in (b"1.0", b"1.1"):
        raise BadMessage("no request line of HTTP/1.0 or HTTP/1.1")
    target = event.target.decode()
    if not target.startswith("/") or event.method == b"CONNECT":
        raise BadMessage("the target must be a path")
    return RequestHead(event.method.decode(), target, int(event.http_version[-1:]), _fields(event))


def parse_response(connection: h11.Connection, raw: bytes) -> ResponseHead:
    """Parse the head of a response, including its empty line. Raises: BadMessage."""
    event = _head(connection, raw)
    if not isinstance(event, h11.Response | h11.InformationalResponse) or event.http_version[:2] != b"1.":
        raise BadMessage("no status line of HTTP/1")
    reason, minor = event.reason.decode("latin-1"), int(event.http_version[-1:])
    return ResponseHead(event.status_code, reason, minor, _fields(event))


def _head(connection: h11.Connection, raw: bytes) -> object:
    """h11's event for a head.

    Raises:
        BadMessage: h11 refuses the head, or `_check` does.
    """
    _check(raw)
    connection.receive_data(raw)
    try:
        return connection.next_event()
    except h11.RemoteProtocolError as error:
        raise BadMessage(_without_bytes(error)) from None


def _check(raw: bytes) -> None:
    """Refuse heads that h11 would accept: with bare CR or LF, folded lines, control characters, two lengths,
    a length of more than 18 digits, or more than MAX_FIELDS fields.
    """
    if raw.count(b"\r\n") - 2 > MAX_FIELDS:
        raise BadMessage(f"more than {MAX_FIELDS} header fields", 431)
    if _AMBIGUOUS.search(raw):
        raise BadMessage("a header line is malformed")
    lengths: list[bytes] = _LENGTHS.findall(raw)
    if len(lengths) > 1 or not all(map(_LENGTH.fullmatch, lengths)):
        raise BadMessage("Content-Length must be one number")


def _fields(event: h11.Request | h11.Response | h11.InformationalResponse) -> Fields:
    """The fields, with their names spelled as received."""
    return Fields(
        (name.decode("latin-1"), value.decode("latin-1")) for name, value in event.headers.raw_items()
    )


def _without_bytes(error: h11.ProtocolError) -> str:
    """The text of h11's error without the line or value that it quotes, which may contain a token."""
    return _QUOTED.split(str(error))[0]
