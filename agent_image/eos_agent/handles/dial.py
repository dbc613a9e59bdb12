"""Connect to a server of the sandbox, on the address family at which it listens."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
from collections.abc import Sequence

from eos_agent.wire.protocol import OPERATION_FAILED, OperationError

LOOPBACK = "127.0.0.1"
LOOPBACK_6 = "::1"


def family_of(address: str) -> int:
    return socket.AF_INET6 if ":" in address else socket.AF_INET


async def server_of_the_sandbox(port: int, *, timeout_s: float) -> socket.socket:
    """Return a non-blocking connection to a server in the network that the agent shares with shared sessions.

    Raises:
        OperationError: as `first_that_answers`.
    """
    sockets: list[tuple[str, socket.socket]] = []
    for address in (LOOPBACK, LOOPBACK_6):
        try:
            sockets.append(
                (
                    address,
                    socket.socket(
                        family_of(address),
                        socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC,
                        socket.IPPROTO_TCP,
                    ),
                )
            )
        except OSError as error:
            if error.errno != errno.EAFNOSUPPORT:
                raise
    return await first_that_answers(sockets, port, timeout_s=timeout_s, where="the sandbox")


async def first_that_answers(
    candidates: Sequence[tuple[str, socket.socket]], port: int, *, timeout_s: float, where: str
) -> socket.socket:
    """Connect each socket to its address, in this order, until a server accepts; return that socket and close
    the others.

    Raises:
        OperationError: operation_failed; reason connect_failed if no address accepts, connect_timed_out if
            all together take longer than timeout_s.
    """
    loop = asyncio.get_running_loop()
    code = 0
    found: socket.socket | None = None
    try:
        async with asyncio.timeout(timeout_s):
            for address, sock in candidates:
                try:
                    await loop.sock_connect(sock, (address, port))
                except OSError as error:
                    code = code or error.errno or errno.EIO
                else:
                    found = sock
                    return sock
    except TimeoutError:
        raise OperationError(
            OPERATION_FAILED,
            f"a server on port {port} of {where} did not accept the connection within {timeout_s:g} s",
            {"port": port, "retryable": True},
            reason="connect_timed_out",
        ) from None
    finally:
        for _, sock in candidates:
            if sock is not found:
                sock.close()
    message = f"no server answers on port {port} of {where}: {os.strerror(code)}"
    raise OperationError(
        OPERATION_FAILED,
        message,
        {"port": port, "errno": errno.errorcode.get(code, "EIO")},
        reason="connect_failed",
    )
