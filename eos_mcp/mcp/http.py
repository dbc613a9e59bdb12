"""Streamable HTTP at `/mcp`, or the older HTTP+SSE at `/sse` and `/messages/`, behind one guard. Imports the
SDK and uvicorn.
"""

from __future__ import annotations

import errno
import os
import signal
import socket
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import uvicorn
from mcp.server.sse import SseServerTransport
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.server.transport_security import TransportSecuritySettings
from starlette.applications import Starlette
from starlette.routing import Mount, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from eos_agent.wire.protocol import CONFIG_ERROR, OperationError
from eos_mcp.config import paths, token_file
from eos_mcp.mcp.app import App, build, log_to_stderr
from eos_mcp.mcp.http_guard import HttpGuard
from eos_mcp.mcp.http_unproven import Door
from eos_mcp.mcp.server_options import MAX_MESSAGE_BYTES, ServerOptions

GRACEFUL_S = 2
BACKLOG = 256
# HttpGuard checks every path and knows the bound address; the SDK's own check knows three names only.
_UNCHECKED = TransportSecuritySettings(enable_dns_rebinding_protection=False)


def application(app: App, options: ServerOptions, token: str, door: Door) -> ASGIApp:
    """The ASGI application of `options.transport`; Every request must carry `token`; `door` limits
    connections that did not.
    """
    inner = _streamable(app) if options.transport == "http" else _sse(app)
    return HttpGuard(
        inner, token=token, bind_host=options.host, names=options.allow_hosts, passed=door.passed
    )


def run(options: ServerOptions, app: App | None = None) -> int:
    """Serve until SIGTERM or SIGINT, then end the process; returns only when it cannot begin, with the exit
    code. A line on standard error says where it listens.
    """
    try:
        path = os.path.abspath(options.token_file or os.path.join(paths.state_dir(), "mcp.token"))
        token = token_file.ensure(path)
        listener = listen(options.host, options.port)
    except OperationError as error:
        sys.stderr.write(f"{options.program}: {error.message.replace('gateway token file', 'token file')}\n")
        return 2
    log_to_stderr()
    host, port = listener.getsockname()[:2]
    app = app or build(options)
    door = Door()
    config = uvicorn.Config(
        application(app, options, token, door),
        http=door.protocol(),
        log_level="warning",
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=GRACEFUL_S,
        lifespan="on",
    )
    server = _Server(config, app)
    where = f"http://{f'[{host}]' if ':' in host else host}:{port}/{'mcp' if options.transport == 'http' else 'sse'}"  # noqa: E501
    sys.stderr.write(
        f"{options.program}: listening on {where}; clients send the token in {path} as Authorization: "
        f"Bearer\n"
    )
    sys.stderr.flush()
    # uvicorn shuts down at these signals and then raises them again: ignore the second ones.
    signal.signal(signal.SIGTERM, lambda _number, _frame: None)
    signal.signal(signal.SIGINT, lambda _number, _frame: None)
    if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:  # nohup(1) ignores it
        signal.signal(signal.SIGHUP, lambda _number, _frame: signal.raise_signal(signal.SIGTERM))
    server.run(sockets=[listener])
    sys.stderr.flush()
    os._exit(0)  # without waiting for a thread that is stuck


def listen(host: str, port: int) -> socket.socket:
    """A listening TCP socket.

    Raises:
        OperationError: config_error that names address and next step.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((host, port))
        sock.listen(BACKLOG)
    except OSError as error:
        sock.close()
        hint = (
            "; another program listens there: choose another --port, or 0 for any free one"
            if error.errno == errno.EADDRINUSE
            else ""
        )
        raise OperationError(
            CONFIG_ERROR, f"cannot listen on {host} port {port}: {error.strerror or error}{hint}"
        ) from None
    return sock


class _Server(uvicorn.Server):
    """Server that marks the tools as closing before it cuts off requests, so that their commands continue."""

    def __init__(self, config: uvicorn.Config, app: App) -> None:
        super().__init__(config)
        self._app = app

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._app.tools.closing = True
        if self._app.subscriptions is not None:
            self._app.subscriptions.close()
        await super().shutdown(sockets=sockets)


def _streamable(app: App) -> Starlette:
    manager = StreamableHTTPSessionManager(
        app.server, security_settings=_UNCHECKED, max_request_body_size=MAX_MESSAGE_BYTES
    )

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncGenerator[None]:
        async with manager.run():
            yield

    async def mcp(scope: Scope, receive: Receive, send: Send) -> None:
        await manager.handle_request(scope, receive, send)

    return Starlette(routes=[Route("/mcp", endpoint=_Asgi(mcp))], lifespan=lifespan)


def _sse(app: App) -> Starlette:
    transport = SseServerTransport(
        "/messages/", security_settings=_UNCHECKED, max_request_body_size=MAX_MESSAGE_BYTES
    )

    async def events(scope: Scope, receive: Receive, send: Send) -> None:
        async with transport.connect_sse(scope, receive, send) as (read, write):
            await app.server.run(read, write, app.server.create_initialization_options())

    return Starlette(
        routes=[
            Route("/sse", endpoint=_Asgi(events), methods=["GET"]),
            Mount("/messages/", app=transport.handle_post_message),
        ]
    )


class _Asgi:
    """A Route takes an ASGI application only as an instance of a class."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._app(scope, receive, send)
