"""The agent's small HTTP surface: GET /health, POST /files/list, ANY /forward/...; anything else is 404. One
request per connection.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import re
import socket
from collections.abc import Awaitable
from typing import TYPE_CHECKING, Any, TypeVar

from eos_agent.base import log
from eos_agent.base.errors import operation_error
from eos_agent.http.access import Access, ShownCredentials, unauthorized
from eos_agent.http.answer import JSON, TEXT, HttpRefusal, answer, refused
from eos_agent.http.exchange import keep_alive
from eos_agent.http.message import MAX_HEAD_BYTES, BadMessage, Body, RequestHead
from eos_agent.http.proxy import PREFIX, ProxyTarget, ReverseProxy, parse_route
from eos_agent.serve.handlers import Handlers, Stream
from eos_agent.wire.protocol import (
    INVALID_REQUEST,
    OperationError,
    Request,
    decode_object,
    encode,
    new_request_id,
)

if TYPE_CHECKING:
    from eos_agent.http.peer import HttpPeer

T = TypeVar("T")
MAX_BODY_BYTES = 1024 * 1024
READ_TIMEOUT_S = 30
WRITE_TIMEOUT_S = 30
LINGER_S = 1.0
STRANGERS = 256  # most unauthenticated connections; a further one closes the oldest
_HOST = re.compile(r"(?:\[([^\[\]]+)\]|([^:\[\]]+))(?::[0-9]*)?")
BY_KIND = {"server_busy": 429, "server_shutting_down": 503}


class HttpServer:
    """Listens on http_host:http_port.

    /files/list and /forward require the token, except in a container with `daemon.http.auth: none`. Even
    there a process of the sandbox itself needs it for /files/list and /forward/isolated.
    """

    def __init__(self, handlers: Handlers, token: str) -> None:
        self._handlers = handlers
        get = handlers.settings.get
        self._access = Access(handlers.settings.sandbox_id, token, get("daemon.http.forward.origins", ()))
        self._wants_token = handlers.settings.local or get("daemon.http.auth", "token") == "token"
        self._max_connections: int = handlers.settings.get("daemon.server.max_concurrent_connections", 64)
        self.open = 0
        self.answering = 0  # authenticated requests
        self.forwarding = 0  # requests to /forward, with a limit of their own
        self._strangers: dict[asyncio.StreamWriter, None] = {}  # oldest first
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()
        self._own_ports: set[int] = set()
        self._forwarder = ReverseProxy(handlers.settings, lambda: handlers.sessions, self._own_ports)
        self.draining = False

    async def listen(self, *others: int) -> tuple[str, int]:
        """Open the listener; returns its address. others: ports of the agent's other listeners, to which
        nothing is forwarded either."""
        settings = self._handlers.settings
        self._server = await asyncio.start_server(
            self._accept, settings.http_host, settings.http_port, limit=MAX_HEAD_BYTES, family=socket.AF_INET
        )
        host, port = self._server.sockets[0].getsockname()[:2]
        self._own_ports.update((int(port), *others))
        return str(host), int(port)

    def close(self) -> None:
        """Stop listening and close all connections, tunnels too."""
        self.draining = True
        if self._server is not None:
            self._server.close()
        for task in self._connections:
            task.cancel()

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.get_running_loop().create_task(self._serve(reader, writer))
        self._connections.add(task)
        task.add_done_callback(self._connections.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        from eos_agent.http import peer  # h11 is loaded with the first request, not with the agent

        self.open += 1
        self._strangers[writer] = None
        if len(self._strangers) > STRANGERS:
            oldest = next(iter(self._strangers))
            del self._strangers[oldest]
            oldest.transport.abort()
        try:
            try:
                await self._one(peer.client(reader, writer))
            except BadMessage as bad:
                writer.write(_shown(refused(bad.status, "bad_request", bad.why, kind=INVALID_REQUEST)))
            except HttpRefusal as why:
                writer.write(_shown(why))
            await _end(reader, writer)
        except (OSError, asyncio.IncompleteReadError):  # TimeoutError is one
            pass
        except Exception as error:
            log.failure("http_failed", error)
        finally:
            self.open -= 1
            self._strangers.pop(writer, None)
            writer.transport.abort()

    async def _one(self, client: HttpPeer) -> None:
        request = await _in_time(_head(client))
        length = request.body
        if self.draining:
            raise HttpRefusal(503)
        if request.target.startswith(PREFIX):
            await self._forward(request, client)
        else:
            client.writer.write(answer(200, await self._answer(request, length, client), JSON))

    async def _answer(self, request: RequestHead, length: Body, client: HttpPeer) -> bytes:
        path = request.target.partition("?")[0]
        if path == "/health":
            _check_caller(request)
            _check_method(request, "GET")
            health = {"status": "ok", "service": "daemon_http"}  # enough for a liveness check
            good = not self._wants_token or self._access.shown(request, None).good
            return encode({**health, "observability": self._handlers.telemetry.lost} if good else health)
        if path != "/files/list":
            raise HttpRefusal(404)
        _check_caller(request)
        _check_method(request, "POST")
        self._authenticate(self._access.shown(request, None), client.writer, always_for_own=True)
        if self.answering >= self._max_connections:
            raise refused(
                429,
                "max_concurrent_connections",
                f"{self._max_connections} requests are being answered, which is the limit",
            )
        self.answering += 1
        try:
            return await self._list(await _in_time(_body(client, length)))
        finally:
            self.answering -= 1

    async def _forward(self, request: RequestHead, client: HttpPeer) -> None:
        _check_host(request)
        route: ProxyTarget = parse_route(request.target)
        shown = self._access.shown(request, route.prefix)
        if not shown.good and (redeemed := self._access.redeem(request, route.prefix)) is not None:
            raise redeemed
        self._access.check_page(request, shown)
        self._authenticate(shown, client.writer, always_for_own=route.session_id is not None)
        if request.fields.words("expect") not in ([], ["100-continue"]):
            raise HttpRefusal(417)
        if self.forwarding >= self._max_connections:
            raise refused(
                429,
                "max_concurrent_connections",
                f"{self._max_connections} requests are being forwarded, which is the limit",
            )
        keep_alive(client.writer)
        self.forwarding += 1
        network = "shared" if route.session_id is None else "isolated"
        try:
            with self._handlers.telemetry.request(
                new_request_id(), "daemon_http.forward", network_profile=network, port=route.port
            ):
                await self._forwarder.forward(
                    self._access.without_cookie(request), route, client, shown.secrets
                )
        finally:
            self.forwarding -= 1

    def _authenticate(
        self, shown: ShownCredentials, writer: asyncio.StreamWriter, *, always_for_own: bool
    ) -> None:
        """Check that the peer is authenticated, if the request requires it.

        Raises:
            Refused: 401.
        """
        peer = writer.get_extra_info("peername")
        wanted = self._wants_token or not peer or (always_for_own and is_own_address(peer[0]))
        if wanted and not shown.good:
            raise unauthorized("the agent's token is missing or wrong")
        self._strangers.pop(writer, None)

    async def _list(self, body: bytes) -> bytes:
        request_id = new_request_id()
        try:
            args = decode_object(body) if body.strip() else {}
        except OperationError as error:
            raise HttpRefusal(400, encode(error.envelope()), JSON) from None
        try:
            found = await self._handlers.perform(
                Request("file_list", request_id, self._handlers.settings.sandbox_id, args, {})
            )
            assert not isinstance(found, Stream)
        except Exception as error:
            shown = operation_error(error, request_id)
            if shown.kind == "internal_error":
                log.failure("request_failed", error, op="file_list", request_id=request_id)
            malformed = shown.kind == INVALID_REQUEST and shown.details.get("reason") in (
                "wrong_type",
                "missing_argument",
            )
            status = 400 if malformed else BY_KIND.get(shown.kind, 200)
            if status != 200:
                raise HttpRefusal(status, encode(shown.envelope()), JSON) from None
            return encode(shown.envelope())
        return encode(found)


def _shown(why: HttpRefusal) -> bytes:
    return answer(why.status, why.body, why.kind, *why.extra)


async def _in_time(reading: Awaitable[T]) -> T:
    try:
        async with asyncio.timeout(READ_TIMEOUT_S):
            return await reading
    except TimeoutError:
        raise HttpRefusal(408) from None


async def _head(client: HttpPeer) -> RequestHead:
    try:
        return await client.request()
    except asyncio.LimitOverrunError:
        raise BadMessage(f"the head is longer than {MAX_HEAD_BYTES} bytes", 431) from None


async def _body(client: HttpPeer, body: Body) -> bytes:
    if body.length is None:
        raise HttpRefusal(400, encode(_bad("a body needs Content-Length here")), JSON)
    if body.length > MAX_BODY_BYTES:
        raise HttpRefusal(400, encode(_bad(f"the body exceeds the byte limit of {MAX_BODY_BYTES}")), JSON)
    return await client.reader.readexactly(body.length)


async def _end(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Flush, and read from the peer for a moment longer: a reset would discard the answer at the peer."""
    async with asyncio.timeout(WRITE_TIMEOUT_S):
        if writer.can_write_eof():
            writer.write_eof()
        await writer.drain()
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(LINGER_S):
            while await reader.read(1 << 16):
                pass
    writer.close()
    async with asyncio.timeout(WRITE_TIMEOUT_S):
        await writer.wait_closed()


def _bad(message: str) -> dict[str, Any]:
    return OperationError(INVALID_REQUEST, message, reason="bad_request").envelope()


def _check_method(request: RequestHead, method: str) -> None:
    if request.method != method:
        raise HttpRefusal(405, b"", TEXT, ("Allow", method))


def _check_host(request: RequestHead) -> None:
    """Refuse a Host that is neither `localhost` nor an address literal, so that a web page cannot reach a
    listener by a name (DNS rebinding)."""
    if not _plain_host(request.fields.get("host") or "localhost"):
        raise HttpRefusal(403)


def _check_caller(request: RequestHead) -> None:
    """Check Host as `_check_host` does, and Origin, if there is one, by the same rule."""
    _check_host(request)
    for origin in request.fields.all("origin"):
        if not _plain_host(origin.partition("://")[2]):
            raise HttpRefusal(403)


def _plain_host(host: str) -> bool:
    found = _HOST.fullmatch(host)
    if found is None:
        return False
    name = (found[1] or found[2]).lower()
    if name == "localhost":
        return found[1] is None
    try:
        return (ipaddress.ip_address(name).version == 6) is (found[1] is not None)
    except ValueError:
        return False


def is_own_address(address: str) -> bool:
    """True if a peer with that address is a process of this sandbox. Such a process can use 127.0.0.0/8 and
    the addresses of the interfaces, which are those that bind(2) accepts.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.bind((address, 0))
        except OSError:
            return False
    return True
