"""ASGI middleware: check Host, Origin and bearer token of each HTTP request before MCP reads it.

Host and Origin are checked for any bound address: a web page whose name resolves to this machine (DNS
rebinding) sends its own name. A numeric address cannot be such a name; other names must be in a list.
"""

from __future__ import annotations

import hmac
import ipaddress
import json
import socket
from collections.abc import Callable, Sequence
from typing import Any

from starlette.types import ASGIApp, Receive, Scope, Send


class HttpGuard:
    """Middleware that answers 421 for a foreign Host, 403 for a foreign Origin, 401 without the token, and
    else calls the inner application.
    """

    def __init__(
        self,
        inner: ASGIApp,
        *,
        token: str,
        bind_host: str,
        names: Sequence[str] = (),
        passed: Callable[[Any], None] | None = None,
    ) -> None:
        """
        Args:
            passed: called with the peer (address, port) of each accepted request.
        """
        self._inner = inner
        self._passed = passed
        self._token = token.encode()
        self._bound = _address(bind_host)
        self._names = {"localhost", *(name.lower() for name in names)}
        if self._bound is None:
            self._names.add(bind_host.lower())
        elif not self._bound.is_loopback:
            self._names.add(socket.gethostname().lower())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._inner(scope, receive, send)
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})
            return
        status, why = self._judge(scope["headers"])
        if status == 200:
            if self._passed is not None:
                self._passed(scope["client"])
            await self._inner(scope, receive, send)
        else:
            await _refuse(send, status, why)

    def _judge(self, headers: Sequence[tuple[bytes, bytes]]) -> tuple[int, str]:
        hosts = [value for name, value in headers if name == b"host"]
        if len(hosts) != 1 or not self._ours(hosts[0].decode("latin-1")):
            return (
                421,
                "this server does not serve that Host; start it with --allow-host NAME to allow the name",
            )
        for origin in (value.decode("latin-1") for name, value in headers if name == b"origin"):
            scheme, separator, rest = origin.partition("://")
            if not separator or scheme not in ("http", "https") or not self._ours(rest):
                return 403, "requests from this Origin are not allowed"
        bearers = [value for name, value in headers if name == b"authorization"]
        if len(bearers) == 1:
            kind, _, token = bearers[0].partition(b" ")
            if kind.lower() == b"bearer" and hmac.compare_digest(token.strip(), self._token):
                return 200, ""
        return 401, "a bearer token is required: Authorization: Bearer TOKEN"

    def _ours(self, host: str) -> bool:
        name = _name(host)
        if name is None:
            return False
        if name in self._names:
            return True
        address = _address(name)
        if address is None or self._bound is None:
            return False
        if self._bound.is_unspecified:
            return True
        return address.is_loopback if self._bound.is_loopback else address == self._bound


def _name(host: str) -> str | None:
    """Return the name of `name`, `name:port` or `[v6]:port` in lower case; None for anything else."""
    if host.startswith("["):
        name, bracket, port = host[1:].partition("]")
        if not bracket or (port and not (port[0] == ":" and _digits(port[1:]))):
            return None
        return name.lower()
    name, colon, port = host.partition(":")
    if not name or (colon and not _digits(port)):
        return None
    return name.lower()


def _digits(text: str) -> bool:
    return text.isascii() and text.isdigit()


def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(text)
    except ValueError:
        return None


async def _refuse(send: Send, status: int, why: str) -> None:
    body = json.dumps({"error": {"status": status, "message": why}}, separators=(",", ":")).encode() + b"\n"
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
        (b"connection", b"close"),
    ]
    if status == 401:
        headers.append((b"www-authenticate", b'Bearer realm="eos"'))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
