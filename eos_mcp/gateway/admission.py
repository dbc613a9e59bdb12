"""Limits on the connections of a gateway: strangers, which have not sent the token yet, and clients."""

from __future__ import annotations

import contextlib
import socket

from eos_agent.wire.protocol import INTERNAL_ERROR, OperationError

STRANGERS = 256
"""Most strangers. They do not count against the limit of clients; for one more, the oldest stranger is
disconnected.
"""


class Admission:
    """Counts of connections: `meet` at accept, `admit` after a correct token, `leave` at the end."""

    def __init__(self, max_clients: int) -> None:
        self._max_clients = max_clients
        self._strangers: dict[socket.socket, None] = {}  # oldest first
        self._clients: set[socket.socket] = set()

    def meet(self, connected: socket.socket) -> None:
        """Count a stranger. Above the limit the oldest is shut down: its reader then receives the end of the
        stream.
        """
        self._strangers[connected] = None
        if len(self._strangers) > STRANGERS:
            oldest = next(iter(self._strangers))
            del self._strangers[oldest]
            with contextlib.suppress(OSError):
                oldest.shutdown(socket.SHUT_RDWR)

    def admit(self, connected: socket.socket) -> None:
        """Count a connection with a correct token as a client.

        Raises:
            OperationError: internal_error, reason gateway_at_capacity.
        """
        self._strangers.pop(connected, None)
        if len(self._clients) >= self._max_clients:
            raise OperationError(
                INTERNAL_ERROR,
                f"the gateway serves {self._max_clients} connections already",
                {
                    "max_concurrent_connections": self._max_clients,
                    "reason": "gateway_at_capacity",
                    "retryable": True,
                },
            )
        self._clients.add(connected)

    def leave(self, connected: socket.socket) -> None:
        """Remove a connection from the counts."""
        self._strangers.pop(connected, None)
        self._clients.discard(connected)
