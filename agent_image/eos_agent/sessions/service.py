"""Services: programs of a session that have a name and run until they are ended, or their session is. They do
not keep a session from being published.
"""

from __future__ import annotations

import asyncio
import re
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote, urlsplit

from eos_agent.sessions.output_search import check_size
from eos_agent.wire.operations_service import READY_MOST_MS, READY_MS
from eos_agent.wire.protocol import INVALID_REQUEST, OPERATION_FAILED, OperationError

if TYPE_CHECKING:
    from collections.abc import Mapping

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_TARGET = re.compile(r"[!-~]*")  # printable ASCII without blanks: it is part of a request line
_OWN_HOSTS = frozenset({"", "localhost", "127.0.0.1", "::1", "0.0.0.0"})
_KEYS = ("port", "url", "pattern", "timeout_ms")
STARTING, READY, LATE, ENDED = "starting", "ready", "late", "ended"
EXAMPLE = {"port": 8000, "timeout_ms": 30000}


class Readiness(NamedTuple):
    """The conditions of readiness, all of which must hold. target: of a GET that must be answered by 2xx or
    3xx.
    """

    port: int | None
    target: str | None
    pattern: str | None
    timeout_s: float


class Service:
    """The name and state of one service. settled: set once it is ready, late or ended."""

    def __init__(self, name: str, readiness: Readiness | None, session_id: str, *, isolated: bool) -> None:
        self.name, self.readiness = name, readiness
        self.state = STARTING
        self.seen = ""  # what the last failed check found
        self.settled = asyncio.Event()
        where = f"isolated={quote(session_id, safe='')}" if isolated else "shared"
        port = None if readiness is None else readiness.port
        self.forward = None if port is None else f"/forward/{where}/{port}/"

    def settle(self, state: str) -> None:
        self.state = state
        self.settled.set()

    def json(self, running: bool) -> dict[str, Any]:
        """The fields about the service in results and rows."""
        found: dict[str, Any] = {"service": self.name}
        if self.readiness is not None and running:
            found["ready"] = self.state == READY
            if self.state == READY and self.forward is not None:
                found["forward"] = self.forward
        return found


def check(args: Mapping[str, Any]) -> None:
    """Check the arguments of a service, before a session is used or made.

    Raises:
        OperationError: invalid_request; operation_failed, reason service_needs_session.
    """
    name = args.get("service")
    if name is None:
        if args.get("ready") is not None:
            details = {"argument": "service", "hint": "name the program with service, or leave ready out"}
            raise OperationError(
                INVALID_REQUEST,
                "ready is about a service: service is missing",
                details,
                reason="missing_argument",
            )
        return
    if not _NAME.fullmatch(name):
        raise OperationError(
            INVALID_REQUEST,
            "service must be a name of 1 to 64 letters, digits, dots, dashes and underscores",
            {"argument": "service", "value": name[:200]},
            reason="bad_service",
        )
    readiness_of(args.get("ready"))
    if args.get("workspace_session_id") is None:
        raise needs_session(name)


def needs_session(name: str) -> OperationError:
    return OperationError(
        OPERATION_FAILED,
        f"service {name} needs a session: a command without one is published when it has ended, which a "
        f"service does not",
        {
            "argument": "workspace_session_id",
            "service": name,
            "hint": "create_workspace_session, then repeat the call with its workspace_session_id",
        },
        reason="service_needs_session",
    )


def readiness_of(ready: Any) -> Readiness | None:
    """Check the argument `ready`.

    Raises:
        OperationError: invalid_request.
    """
    if ready is None:
        return None
    unknown = sorted(set(ready) - set(_KEYS))
    if unknown:
        raise _bad(f"has the unknown key {unknown[0][:100]}")
    port, url, pattern = ready.get("port"), ready.get("url"), ready.get("pattern")
    if port is None and url is None and pattern is None:
        raise _bad("names no condition: port, url or pattern")
    if port is not None and not _whole(port, 1, 65535):
        raise _bad("port must be a number from 1 to 65535")
    timeout_ms = ready.get("timeout_ms", READY_MS)
    if not _whole(timeout_ms, 1, READY_MOST_MS):
        raise _bad(f"timeout_ms must be a number from 1 to {READY_MOST_MS}")
    target = None
    if url is not None:
        of_url, target = _url(url)
        if port is not None and of_url not in (None, port):
            raise _bad(f"port is {port}, and url names port {of_url}")
        port = port or of_url
        if port is None:
            raise _bad("url names no port, and neither does port")
    if pattern is not None:
        if not isinstance(pattern, str):
            raise _bad("pattern must be a string")
        check_size(pattern)
    return Readiness(port, target, pattern, timeout_ms / 1000)


def _url(url: Any) -> tuple[int | None, str]:
    """Port, if named, and target of a URL of the session's own network, or of a path alone."""
    wrong = _bad("url must be a path, or an address of the session itself, http://127.0.0.1:PORT/PATH")
    if not isinstance(url, str) or not _TARGET.fullmatch(url):
        raise wrong
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise wrong from None
    if parts.scheme not in ("", "http") or (parts.hostname or "") not in _OWN_HOSTS or parts.username:
        raise wrong
    if not parts.netloc and not url.startswith("/"):
        raise wrong
    if parts.netloc and port is None:
        port = 80
    return port, (parts.path or "/") + (f"?{parts.query}" if parts.query else "")


def _whole(value: Any, least: int, most: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most


def _bad(why: str) -> OperationError:
    details = {"argument": "ready", "example": EXAMPLE}
    return OperationError(INVALID_REQUEST, f"ready {why}", details, reason="bad_ready")
