"""One end of an HTTP/1 connection: h11 makes heads and pieces of bodies of its bytes. ADR 0066.

h11 accepts more than two readers would agree on, so `_check` reads the bytes of a head first. What smuggling
lives on is in RFC 9112, section 11.2: two lengths, a length and a coding, bare CR or LF, folded lines.
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
    """A client or a server, for one request. `connection`: h11's view of it, in the opposite role."""

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
        """Buffer the head of a request to a server. The fields say how its body is framed.

        Raises:
            BadMessage: h11 does not send such a head.
        """
        fields = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in pairs]
        try:
            raw = self._connection.send(h11.Request(method=method, target=target, headers=fields))
        except h11.LocalProtocolError as error:
            raise BadMessage(_without_bytes(error)) from None
        self.writer.write(raw)

    def framed(self, piece: bytes) -> bytes:
        """A piece of a request's body as the server gets it; an empty one ends the body."""
        return self._connection.send(h11.Data(data=piece) if piece else h11.EndOfMessage())

    async def response(self) -> ResponseHead:
        """Read the next head of a server's answer, an informational one too. Raises: as `request`."""
        return parse_response(self._connection, await self.reader.readuntil(b"\r\n\r\n"))

    async def pieces(self, body: Body) -> AsyncGenerator[bytes]:
        """The content of the body that follows the head, without its framing, about PIECE_BYTES at a time;
        extensions of chunks and trailers are left out.

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
        )  # None: until the connection ends. No parser is needed, and h11 copies each byte thrice
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
        """Bytes after the last chunk of a body that were read with it: the beginning of a tunnel."""
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
    """The head of a request, up to and with its empty line. Raises: BadMessage."""
    method, space, rest = raw.partition(b" ")
    line, end, fields = rest.partition(b"\r\n")
    if not line.isascii():  # a URI is ASCII: such bytes mean what their escapes mean
        line = _NOT_ASCII.sub(lambda found: b"%%%02X" % found[0][0], line)
    event = _head(connection, b"".join((method, space, line, end, fields)))
    if not isinstance(event, h11.Request) or event.http_version not in (b"1.0", b"1.1"):
        raise BadMessage("no request line of HTTP/1.0 or HTTP/1.1")
    target = event.target.decode()
    if not target.startswith("/") or event.method == b"CONNECT":
        raise BadMessage("the target must be a path")
    return RequestHead(event.method.decode(), target, int(event.http_version[-1:]), _fields(event))


def parse_response(connection: h11.Connection, raw: bytes) -> ResponseHead:
    """The head of an answer, up to and with its empty line. Raises: BadMessage."""
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
    """Refuse what h11 accepts: bare CR and LF, folded lines, control characters, a length twice or of more
    than 18 digits, more fields than MAX_FIELDS.
    """
    if raw.count(b"\r\n") - 2 > MAX_FIELDS:
        raise BadMessage(f"more than {MAX_FIELDS} header fields", 431)
    if _AMBIGUOUS.search(raw):
        raise BadMessage("a header line is malformed")
    lengths: list[bytes] = _LENGTHS.findall(raw)
    if len(lengths) > 1 or not all(map(_LENGTH.fullmatch, lengths)):
        raise BadMessage("Content-Length must be one number")


def _fields(event: h11.Request | h11.Response | h11.InformationalResponse) -> Fields:
    """The fields with names as they were written."""
    return Fields(
        (name.decode("latin-1"), value.decode("latin-1")) for name, value in event.headers.raw_items()
    )


def _without_bytes(error: h11.ProtocolError) -> str:
    """h11's text without the line or value that it quotes, which may hold a token."""
    return _QUOTED.split(str(error))[0]
