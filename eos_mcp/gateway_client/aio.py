"""Calls to the gateway from an event loop: one connection and one line each way per call, cancellable at any
point.

`eos_mcp.gateway_client.sync` finds and starts a gateway; this module waits for its replies. It connects to
the socket itself; where no process listens, the blocking `sync.connect`, which starts a gateway, runs in a
thread.
"""

from __future__ import annotations

import asyncio
import errno
import secrets
import select
import socket
import time
import weakref
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, NamedTuple

import anyio
from anyio import to_thread

from eos_agent.wire.protocol import (
    CONNECTION_ERROR,
    UNAUTHORIZED,
    OperationError,
    is_error,
    new_request_id,
)
from eos_mcp.config import token_file
from eos_mcp.gateway_client import faults, sync
from eos_mcp.gateway_client.faults import NoReply
from eos_mcp.gateway_client.frames import ReplyParser, UnusableReply, encode_line

Progress = Callable[[str], Awaitable[None]]

_CHUNK = 256 * 1024
_STARTERS = 4  # threads that may wait for a gateway to be started


class GatewayRequest(NamedTuple):
    """One request of a tool to the gateway."""

    op: str
    args: Mapping[str, Any]
    sandbox_id: str | None
    """None: an operation of the gateway or its manager."""
    request_id: str
    timeout_s: float
    on_progress: Progress | None = None


class ToolGateway(ABC):
    """The gateway as tools see it."""

    async def request(
        self,
        op: str,
        args: Mapping[str, Any],
        *,
        sandbox_id: str | None,
        request_id: str,
        timeout_s: float,
        on_progress: Progress | None = None,
    ) -> dict[str, Any]:
        """Send one request and return the reply, which may be an error envelope.

        Raises:
            OperationError: connection_error, protocol_error, config_error, request_too_large.
        """
        return await self.perform(GatewayRequest(op, args, sandbox_id, request_id, timeout_s, on_progress))

    @abstractmethod
    async def perform(self, request: GatewayRequest) -> dict[str, Any]:
        """Perform `request`."""


class GatewayClient(ToolGateway):
    """Client of this user's gateway, or of the gateway that the command line names.

    The gateway is looked up at the first call: an MCP server whose gateway cannot be found still starts, and
    its tools report the reason.
    """

    def __init__(self, *, endpoint: str | None = None, token: str | None = None) -> None:
        self._endpoint, self._token = endpoint, token
        self._settings: sync.GatewaySettings | None = None
        self._starters: anyio.CapacityLimiter | None = None
        self._client = secrets.token_hex(8)
        self._held: socket.socket | None = None

    async def perform(self, request: GatewayRequest) -> dict[str, Any]:
        started = time.monotonic()
        settings = self._settings or sync.discover(endpoint=self._endpoint, token=self._token)
        try:
            async with asyncio.timeout(request.timeout_s):
                # Encode before connecting: the connect wakes the gateway, which then finds the line.
                line = self._line(request, settings.token)
                if request.op == "exec_command" and "workspace_session_id" not in request.args:
                    await self._hold(settings)
                with await self._connect(settings) as sock:
                    self._settings = settings
                    if settings.token is None:  # a gateway that was just started has made its token
                        line = self._line(request, token_file.read())
                    reply = await _exchange(sock, line, request.on_progress)
            if is_error(reply) and reply["error"].get("kind") == UNAUTHORIZED:
                self._settings = None  # the token file may have been replaced: read it again at the next call
            return reply
        except TimeoutError:
            raise _late(request, time.monotonic() - started) from None
        except (OSError, NoReply) as error:
            this = faults.GatewayCall(str(settings.endpoint), request.op, request.request_id, of_server=True)
            raise this.error(error) from None

    def _line(self, request: GatewayRequest, token: str | None) -> bytes:
        return encode_line(
            request.op,
            request.args,
            sandbox_id=request.sandbox_id,
            request_id=request.request_id,
            token=token,
            stream_logs=request.on_progress is not None,
            client=self._client,
        )

    async def is_running(self) -> bool:
        """Return True when the gateway accepts a connection; none is started.

        Raises:
            OperationError: config_error.
        """
        settings = self._settings or sync.discover(endpoint=self._endpoint, token=self._token)
        if settings.endpoint.kind != "unix":
            return True  # of another person or machine: only a request can tell
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK) as sock:
            return sock.connect_ex(settings.endpoint.path) in (0, errno.EAGAIN)

    async def _hold(self, settings: sync.GatewaySettings) -> None:
        """Keep a connection by which the gateway notices the end of this process (`gateway.departed`)."""
        if self._held is not None and not _is_closed(self._held):
            return
        if self._held is not None:
            self._held.close()
        self._held = held = await self._connect(settings)
        weakref.finalize(self, held.close)
        token = settings.token if settings.token is not None else token_file.read()
        request = GatewayRequest("hold_client", {"client": self._client}, None, new_request_id(), 0)
        await asyncio.get_running_loop().sock_sendall(self._held, self._line(request, token))

    async def _connect(self, settings: sync.GatewaySettings) -> socket.socket:
        endpoint = settings.endpoint
        if endpoint.kind == "unix":
            sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
            try:
                sock.connect(
                    endpoint.path
                )  # not loop.sock_connect: it takes EAGAIN, a full backlog, for a pending connect
            except OSError:
                sock.close()
            else:
                return sock
        # No process listens, its backlog is full, or the endpoint is TCP: the blocking `sync.connect` waits,
        # names the fault and starts a gateway.
        if self._starters is None:
            self._starters = anyio.CapacityLimiter(_STARTERS)
        found = await to_thread.run_sync(
            sync.connect, settings, limiter=self._starters, abandon_on_cancel=True
        )
        found.setblocking(False)
        return found


def _is_closed(sock: socket.socket) -> bool:
    """Return True when the other end closed the connection, or answered on it (an older gateway)."""
    poll = select.poll()
    poll.register(sock, select.POLLIN | select.POLLRDHUP)
    return bool(poll.poll(0))


def _late(request: GatewayRequest, waited_s: float) -> OperationError:
    details = {
        "timeout_s": request.timeout_s,
        "retryable": False,
        "request_id": request.request_id,
        "hint": "the operation may still be running: check before you repeat it, or start the server with a "
        "larger --timeout-s",
    }
    message = f"no answer from the gateway within {waited_s:.0f} s"
    return OperationError(CONNECTION_ERROR, message, details, reason="timeout")


async def _exchange(sock: socket.socket, line: bytes, on_progress: Progress | None) -> dict[str, Any]:
    sent: OSError | None = None
    try:
        await asyncio.get_running_loop().sock_sendall(sock, line)
    except OSError as error:
        sent = error  # the gateway may have answered and closed without reading all of it
    try:
        return await _reply(sock, on_progress)
    except (OSError, NoReply):
        if sent is not None:
            raise sent from None
        raise


async def _reply(sock: socket.socket, on_progress: Progress | None) -> dict[str, Any]:
    loop, parser = asyncio.get_running_loop(), ReplyParser()
    while True:
        try:
            frame = parser.frame()
        except UnusableReply as error:
            raise NoReply(faults.UNUSABLE, str(error)) from None
        if frame is None:
            chunk = await loop.sock_recv(sock, _CHUNK)
            if not chunk:
                raise NoReply(faults.CUT if parser.inside else faults.CLOSED)
            parser.feed(chunk)
        elif not isinstance(frame, str):
            return frame
        elif on_progress is not None:
            await on_progress(frame)
