"""Wait until a service is ready: a line of its output matches, its port accepts a connection, its URL is
answered.
"""

from __future__ import annotations

import asyncio
import os
import re
import socket
from typing import TYPE_CHECKING, Any

from eos_agent.handles import dial
from eos_agent.sessions.carriage_return import plain_row
from eos_agent.sessions.service import ENDED, LATE, READY, Readiness, Service
from eos_agent.sessions.transcript import Transcript
from eos_agent.wire.protocol import OPERATION_FAILED, SERVER_BUSY, OperationError

if TYPE_CHECKING:
    from eos_agent.sessions.command import Command
    from eos_agent.sessions.output_search import OutputSearch
    from eos_agent.sessions.session import Session

FIRST_PAUSE_S, LAST_PAUSE_S = 0.05, 0.5
CONNECT_S, ANSWER_S = 2.0, 5.0
LINE_BYTES = 4096
BLOCK_BYTES = 256 * 1024
LAST_BYTES = 2000
"""Bytes of the newest output that an error about a service shows."""
_SPECIAL = frozenset("\\.^$*+?{}[]|()")
_STATUS = re.compile(rb"HTTP/\d(?:\.\d)? ([1-5]\d\d)\b")


async def watch(command: Command, service: Service, readiness: Readiness, searches: OutputSearch) -> None:
    """Settle the service: ready, late after its time limit, or ended. Never raises but CancelledError."""
    checks = asyncio.ensure_future(_become_ready(command, service, readiness, searches))
    over = asyncio.ensure_future(command.over.wait())
    try:
        await asyncio.wait({checks, over}, timeout=readiness.timeout_s, return_when=asyncio.FIRST_COMPLETED)
        if command.over.is_set():
            service.settle(ENDED)
        elif not checks.done():
            service.settle(LATE)
        elif (error := checks.exception()) is not None:
            service.seen = str(error)
            service.settle(LATE)
        else:
            service.settle(READY)
    finally:
        checks.cancel()
        over.cancel()
        await asyncio.gather(checks, over, return_exceptions=True)


async def _become_ready(
    command: Command, service: Service, readiness: Readiness, searches: OutputSearch
) -> None:
    if readiness.pattern is not None:
        await _line_matches(command, service, readiness.pattern, searches)
    pause_s = FIRST_PAUSE_S
    while readiness.port is not None:
        try:
            fd = await command.session.init.connect(readiness.port, timeout_s=CONNECT_S)
        except OperationError as error:
            service.seen = error.message
        else:
            if readiness.target is None:
                os.close(fd)
                return
            service.seen = await _answer(fd, readiness.port, readiness.target)
            if not service.seen:
                return
        await asyncio.sleep(pause_s)
        pause_s = min(pause_s * 2, LAST_PAUSE_S)


async def _answer(fd: int, port: int, target: str) -> str:
    """Send a GET; return "" if it was answered by 2xx or 3xx, else what was found."""
    head = (
        f"GET {target} HTTP/1.1\r\nHost: {dial.LOOPBACK}:{port}\r\nAccept: */*\r\nConnection: close\r\n\r\n"
    )
    try:
        async with asyncio.timeout(ANSWER_S):
            reader, writer = await asyncio.open_connection(sock=socket.socket(fileno=fd), limit=LINE_BYTES)
            try:
                writer.write(head.encode("ascii"))
                line = await reader.readline()
            finally:
                writer.transport.abort()
    except TimeoutError:
        return f"GET {target} was not answered within {ANSWER_S:g} s"
    except (OSError, ValueError) as error:  # ValueError: the first line is too long
        return f"GET {target} failed: {error}"
    found = _STATUS.match(line)
    if found is None:
        return f"GET {target} was answered by something that is not HTTP"
    return "" if found[1][:1] in (b"2", b"3") else f"GET {target} was answered by {found[1].decode()}"


async def _line_matches(command: Command, service: Service, pattern: str, searches: OutputSearch) -> None:
    """Return once a row of the output matches.

    Raises:
        OperationError: the expression needs too much time.
    """
    output, at, searched = command.output, 0, -1
    pause_s = FIRST_PAUSE_S
    service.seen = "no line of the output matches pattern"
    while True:
        if output.total_bytes != searched:
            searched, total = output.total_bytes, output.total_rows
            try:
                if await _found(command, pattern, at, searches):
                    return
                at = max(at, total - 1)  # the last row may be unfinished
            except OperationError as error:
                if error.kind != SERVER_BUSY:
                    raise
                searched = -1
            if set(pattern) & _SPECIAL:  # each search starts a process
                pause_s = min(pause_s * 2, 4 * LAST_PAUSE_S)
        await asyncio.sleep(pause_s)


async def _found(command: Command, pattern: str, start: int, searches: OutputSearch) -> bool:
    if set(pattern) & _SPECIAL:
        return (await searches.search(command.output, pattern, start, 0)).matches > 0
    while start < command.output.total_rows:
        block = command.output.read(start, None, BLOCK_BYTES)
        if any(pattern in plain_row(row) for row in block.text.split("\n")):
            return True
        start = block.end
    return False


async def check(session: Session, service: Service, searches: OutputSearch) -> None:
    """Refuse, before the start, an expression that is wrong, and a port that answers already: another server
    would count as ready.

    Raises:
        OperationError: invalid_request, reason invalid_pattern; operation_failed, reason port_in_use.
    """
    readiness = service.readiness
    if readiness is None:
        return
    if readiness.pattern is not None and set(readiness.pattern) & _SPECIAL:
        await searches.search(Transcript(""), readiness.pattern, 0, 0)
    if readiness.port is None:
        return
    try:
        os.close(await session.init.connect(readiness.port, timeout_s=CONNECT_S))
    except OperationError:
        return
    details = {
        "port": readiness.port,
        "service": service.name,
        "hint": "let it use another port, or end the server that uses this one",
    }
    message = (
        f"port {readiness.port} is in use: a server answers there before service {service.name} was started"
    )
    raise OperationError(OPERATION_FAILED, message, details, reason="port_in_use")


def failure(command: Command, service: Service) -> OperationError | None:
    """The error of a service that ended or was not ready in time; None for one that is ready or starting."""
    details: dict[str, Any] = {
        "service": service.name,
        "command_session_id": command.id,
        "workspace_session_id": command.session.id,
    }
    lines = command.output.tail(0, LAST_BYTES).text
    details["last_lines"] = "\n".join(plain_row(row) for row in lines.split("\n"))
    if service.state == ENDED:
        how = f"signal {command.signal}" if command.signal else f"exit code {command.exit_code}"
        details |= {"exit_code": command.exit_code}
        if command.signal:
            details["signal"] = command.signal
        if command.left_behind:
            details |= {
                "left_behind": command.left_behind,
                "hint": "it left processes in the background: start it in the foreground",
            }
        return OperationError(
            OPERATION_FAILED,
            f"service {service.name} ended with {how} before it was ready",
            details,
            reason="service_ended",
        )
    if service.state == LATE and service.readiness is not None:
        details["hint"] = (
            "it still runs: read_command_lines shows its output and if it is ready, signal_command ends it"
        )
        why = f" ({service.seen})" if service.seen else ""
        return OperationError(
            OPERATION_FAILED,
            f"service {service.name} was not ready within {service.readiness.timeout_s:g} s{why}",
            details,
            reason="service_not_ready",
        )
    return None
