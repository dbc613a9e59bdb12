"""The agent's small HTTP surface: GET /health and POST /files/list; anything else is 404. One request per connection."""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
import socket
from typing import Any

from eos_agent import log
from eos_agent.failures import operation_error
from eos_agent.handlers import Handlers, Stream
from eos_agent.protocol import INVALID_REQUEST, UNAUTHORIZED, OperationError, Request, decode_object, encode, new_request_id

MAX_HEAD_BYTES = 64 * 1024
MAX_BODY_BYTES = 1024 * 1024
READ_TIMEOUT_S = 30
CROWDED_READ_S = 2  # for the connections over the limit, which are read only so that they see the refusal
WRITE_TIMEOUT_S = 30
WORDS = {
    200: "OK", 400: "Bad Request", 401: "Unauthorized", 403: "Forbidden", 404: "Not Found", 405: "Method Not Allowed", 413: "Payload Too Large",
    429: "Too Many Requests", 503: "Service Unavailable",
}  # fmt: skip
BY_KIND = {"server_busy": 429, "server_shutting_down": 503}


class Refused(Exception):
    """An answer that ends the request: status and body."""

    def __init__(self, status: int, body: bytes = b"", kind: str = "text/plain; charset=utf-8") -> None:
        super().__init__(status)
        self.status, self.body, self.kind = status, body or WORDS[status].lower().encode(), kind


class HttpServer:
    """Listens on http_host:http_port. The token is wanted on /files/list by the local provider and with `daemon.http.auth: token`."""

    def __init__(self, handlers: Handlers, token: str) -> None:
        self._handlers = handlers
        self._token = token.encode()
        self._wants_token = handlers.settings.local or handlers.settings.get("daemon.http.auth", "none") == "token"
        self._max_connections: int = handlers.settings.get("daemon.server.max_concurrent_connections", 64)
        self.open = 0
        self._server: asyncio.Server | None = None
        self.draining = False

    async def listen(self) -> tuple[str, int]:
        settings = self._handlers.settings
        self._server = await asyncio.start_server(
            self._serve, settings.http_host, settings.http_port, limit=MAX_HEAD_BYTES, family=socket.AF_INET
        )
        host, port = self._server.sockets[0].getsockname()[:2]
        return str(host), int(port)

    def close(self) -> None:
        self.draining = True
        if self._server is not None:
            self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.open += 1
        try:
            try:
                crowded = self.open > self._max_connections
                async with asyncio.timeout(CROWDED_READ_S if crowded else READ_TIMEOUT_S):
                    method, target, headers = await _head(reader)
                    body = await _body(reader, headers)
                if crowded:
                    raise Refused(429)
                status, content, kind = 200, *await self._answer(method, target, headers, body, writer)
            except Refused as refused:
                status, content, kind = refused.status, refused.body, refused.kind
            head = (
                f"HTTP/1.1 {status} {WORDS[status]}\r\nContent-Type: {kind}\r\nContent-Length: {len(content)}\r\nConnection: close\r\n\r\n"
            )
            writer.write(head.encode() + content)
            writer.close()
            async with asyncio.timeout(WRITE_TIMEOUT_S):
                await writer.wait_closed()
        except (ConnectionError, TimeoutError, asyncio.IncompleteReadError):
            pass
        except Exception as error:
            log.failure("http_failed", error)
        finally:
            self.open -= 1
            writer.transport.abort()

    async def _answer(
        self, method: str, target: str, headers: dict[str, str], body: bytes, writer: asyncio.StreamWriter
    ) -> tuple[bytes, str]:
        if self.draining:
            raise Refused(503)
        path = target.partition("?")[0]
        if path == "/health":
            _check_caller(headers)
            if method != "GET":
                raise Refused(405)
            return encode({"status": "ok", "service": "daemon_http", "observability": self._handlers.telemetry.lost}), "application/json"
        if path == "/files/list":
            _check_caller(headers)
            if method != "POST":
                raise Refused(405)
            self._authenticate(headers, writer)
            return await self._list(body), "application/json"
        raise Refused(404)

    def _authenticate(self, headers: dict[str, str], writer: asyncio.StreamWriter) -> None:
        peer = writer.get_extra_info("peername")
        if not self._wants_token and peer and not is_own_address(peer[0]):
            return
        scheme, _, given = headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not hmac.compare_digest(given.strip().encode(), self._token):
            error = OperationError(UNAUTHORIZED, "the agent's token is missing or wrong", reason="unauthorized")
            raise Refused(401, encode(error.envelope()), "application/json")

    async def _list(self, body: bytes) -> bytes:
        request_id = new_request_id()
        try:
            args = decode_object(body) if body.strip() else {}
        except OperationError as error:
            raise Refused(400, encode(error.envelope()), "application/json") from None
        try:
            found = await self._handlers.perform(Request("file_list", request_id, self._handlers.settings.sandbox_id, args, {}))
            assert not isinstance(found, Stream)
        except Exception as error:
            shown = operation_error(error, request_id)
            if shown.kind == "internal_error":
                log.failure("request_failed", error, op="file_list", request_id=request_id)
            malformed = shown.kind == INVALID_REQUEST and shown.details.get("reason") in ("wrong_type", "missing_argument")
            status = 400 if malformed else BY_KIND.get(shown.kind, 200)
            if status != 200:
                raise Refused(status, encode(shown.envelope()), "application/json") from None
            return encode(shown.envelope())
        return encode(found)


async def _head(reader: asyncio.StreamReader) -> tuple[str, str, dict[str, str]]:
    try:
        raw = await reader.readuntil(b"\r\n\r\n")
    except asyncio.LimitOverrunError:
        raise Refused(400) from None
    first, *lines = raw.decode("latin-1").split("\r\n")[:-2]
    words = first.split(" ")
    if len(words) != 3 or not words[2].startswith("HTTP/1."):
        raise Refused(400)
    headers: dict[str, str] = {}
    for line in lines:
        name, colon, value = line.partition(":")
        if not colon or not name or name != name.strip():
            raise Refused(400)
        headers[name.lower()] = value.strip()
    return words[0], words[1], headers


async def _body(reader: asyncio.StreamReader, headers: dict[str, str]) -> bytes:
    if "transfer-encoding" in headers:
        raise Refused(400, encode(_bad("a body needs Content-Length here")), "application/json")
    length = headers.get("content-length", "0")
    if not length.isdecimal() or len(length) > 20:
        raise Refused(400)
    if int(length) > MAX_BODY_BYTES:
        raise Refused(400, encode(_bad(f"the body exceeds the byte limit of {MAX_BODY_BYTES}")), "application/json")
    return await reader.readexactly(int(length))


def _bad(message: str) -> dict[str, Any]:
    return OperationError(INVALID_REQUEST, message, reason="bad_request").envelope()


def _check_caller(headers: dict[str, str]) -> None:
    """Host must be loopback or an address literal, and so must Origin when there is one: a page of the web reaches no listener by a name."""
    if not _plain_host(headers.get("host", "localhost")):
        raise Refused(403)
    origin = headers.get("origin")
    if origin is not None and not _plain_host(origin.partition("://")[2]):
        raise Refused(403)


def _plain_host(host: str) -> bool:
    name = host[1:].partition("]")[0] if host.startswith("[") else host.rpartition(":")[0] or host
    if name == "localhost":
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def is_own_address(address: str) -> bool:
    """Whether a peer of that address is a process of this sandbox, which picks among all of 127.0.0.0/8 and the interfaces: what can be bound."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.bind((address, 0))
        except OSError:
            return False
    return True
