"""The reverse proxy: `/forward/shared/PORT/REST` and `/forward/isolated=SESSION/PORT/REST` are forwarded to a
server of the sandbox.

    client --- request, Connection: close --- agent --- the same, shortened --- server

The agent removes the prefix, hop-by-hop fields and its own token.

Each connection has one request, on both sides. Bodies are forwarded in pieces, in both directions at once: a
server may answer before it has read the whole request. After status 101 the connection is a tunnel until both
sides have ended it, or it was idle for too long.
"""

from __future__ import annotations

import asyncio
import re
import socket
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import unquote

from eos_agent.handles import dial
from eos_agent.http import exchange
from eos_agent.http.answer import HttpRefusal, as_envelope, refused
from eos_agent.http.exchange import Exchange, gone
from eos_agent.http.message import MAX_HEAD_BYTES, RequestHead
from eos_agent.wire.protocol import INVALID_REQUEST, NOT_FOUND, OperationError

if TYPE_CHECKING:
    from eos_agent.base.settings import Settings
    from eos_agent.handles.init_handle import InitHandle
    from eos_agent.http.peer import HttpPeer
    from eos_agent.sessions.table import Sessions

PREFIX = "/forward/"
_PORT = re.compile(r"[0-9]{1,5}")
_REPLACED = (
    "host",
    "expect",
    "forwarded",
    "x-forwarded-for",
    "x-forwarded-host",
    "x-forwarded-proto",
    "x-forwarded-prefix",
)
_STATUS = {"connect_failed": 502, "connect_timed_out": 504, "session_lost": 502}


class ProxyTarget(NamedTuple):
    """The target of a request: a port of an isolated session, or with session None of the sandbox's own
    network. prefix: the part that was removed from the path.
    """

    session_id: str | None
    port: int
    prefix: str
    target: str


def parse_route(target: str) -> ProxyTarget:
    """Parse a request target that starts with PREFIX. The part after the port is forwarded unchanged, byte
    for byte.

    Raises:
        Refused: 400.
    """
    path, mark, query = target.partition("?")
    where, _, rest = path.removeprefix(PREFIX).partition("/")
    port, _, rest = rest.partition("/")
    network, equals, session_id = unquote(where).partition("=")
    if (network, equals) != ("shared", "") and (network != "isolated" or not session_id):
        raise refused(
            400,
            "bad_route",
            "the path must be /forward/shared/PORT/... or /forward/isolated=SESSION/PORT/...",
            kind=INVALID_REQUEST,
        )
    if not _PORT.fullmatch(port) or not 1 <= int(port) <= 65535:
        raise refused(400, "bad_route", "the port must be a number from 1 to 65535", kind=INVALID_REQUEST)
    return ProxyTarget(session_id or None, int(port), f"{PREFIX}{where}/{port}", f"/{rest}{mark}{query}")


class ReverseProxy:
    """Forwards requests. closed_ports: the agent's own ports, to which nothing is forwarded."""

    def __init__(self, settings: Settings, sessions: Callable[[], Sessions], closed_ports: set[int]) -> None:
        self._sessions = sessions
        self._closed_ports = closed_ports
        self._connect_s: float = settings.get("daemon.http.forward.connect_timeout_s", 10)
        self._response_s: float = settings.get("daemon.http.forward.response_timeout_s", 30)

    async def forward(
        self, request: RequestHead, route: ProxyTarget, client: HttpPeer, secrets: Sequence[str]
    ) -> None:
        """Serve one request. secrets: names of fields that are not forwarded.

        Raises:
            Refused: the answer for the client, which was sent nothing so far.
            ConnectionError: a response broke off; the caller resets the client's connection, so that the
                client notices.
        """
        from eos_agent.http import peer  # h11 is loaded with the first request, not with the agent

        sock, init = await self._connect(route)
        reader, writer = await asyncio.open_connection(sock=sock, limit=MAX_HEAD_BYTES)

        def abort(_reason: object = None) -> None:
            writer.transport.abort()

        if init is not None:
            init.gone.add_done_callback(abort)  # our sockets would keep the dead session's network alive
        watch = asyncio.get_running_loop().create_task(_end_with(client, writer))
        try:
            whole = Exchange(request, client, peer.server(reader, writer), self._response_s)
            await whole.run(route.target, self._fields(request, route, secrets))
        finally:
            watch.cancel()
            if init is not None:
                init.gone.remove_done_callback(abort)
            abort()

    async def _connect(self, route: ProxyTarget) -> tuple[socket.socket, InitHandle | None]:
        try:
            if route.session_id is None:
                if route.port in self._closed_ports:
                    raise refused(403, "own_port", "this port is the agent's own")
                return await dial.server_of_the_sandbox(route.port, timeout_s=self._connect_s), None
            session = self._session(route.session_id)
            fd = await session.connect(route.port, timeout_s=self._connect_s)
            return socket.socket(fileno=fd), session
        except OperationError as error:
            raise as_envelope(_STATUS.get(str(error.details.get("reason")), 502), error) from None

    def _session(self, session_id: str) -> InitHandle:
        try:
            session = self._sessions().find(session_id, kind=NOT_FOUND)
        except OperationError as error:
            raise as_envelope(404, error) from None
        if session.spec.network != "isolated":
            raise refused(
                403,
                "no_address",
                f"session {session_id} has no network of its own: its servers are at /forward/shared/PORT/",
            )
        session.touch()
        return session.init

    def _fields(
        self, request: RequestHead, route: ProxyTarget, secrets: Sequence[str]
    ) -> list[tuple[str, str]]:
        host = request.fields.get("host")
        return [
            ("Host", f"{dial.LOOPBACK}:{route.port}"),
            *request.fields.without(*_REPLACED, *secrets),
            *([("X-Forwarded-Host", host)] if host else []),
            ("X-Forwarded-Proto", "http"),
            ("X-Forwarded-Prefix", route.prefix),
        ]


async def _end_with(client: HttpPeer, server: asyncio.StreamWriter) -> None:
    """Close the connection to the server once the client has closed its own: while the server is silent,
    neither the server nor this process would notice.
    """
    while not gone(client.writer):
        await asyncio.sleep(exchange.GONE_POLL_S)
    client.writer.transport.abort()
    server.transport.abort()


__all__ = ["PREFIX", "HttpRefusal", "ProxyTarget", "ReverseProxy", "parse_route"]
