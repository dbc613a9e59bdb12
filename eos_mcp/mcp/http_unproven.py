"""Limits on HTTP connections that did not send the token yet, in time and number.

Authenticated connections are not counted and not closed.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

HEAD_S = 10.0
"""Seconds between connect and the first request with the right token."""
STRANGERS = 256
PER_PEER = 128
"""Limit for one address; above it, the oldest connection of that address is closed."""


class Door:
    """Unauthenticated connections of one server. The first accepted request of a connection removes it."""

    def __init__(self) -> None:
        self._waiting: dict[
            tuple[str, int], tuple[H11Protocol, asyncio.TimerHandle]
        ] = {}  # by the peer's address and port, oldest first
        self._of: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._waiting)

    def meet(self, connection: H11Protocol) -> None:
        peer = connection.client
        if peer is None:  # not of TCP, or gone already
            return
        self._waiting[peer] = (connection, connection.loop.call_later(HEAD_S, self._turn_away, peer))
        self._of[peer[0]] += 1
        if self._of[peer[0]] > PER_PEER:
            self._turn_away(next(each for each in self._waiting if each[0] == peer[0]))
        elif len(self._waiting) > STRANGERS:
            self._turn_away(next(iter(self._waiting)))

    def passed(self, peer: tuple[str, int] | None) -> None:
        """Remove a connection that sent the token or was closed."""
        found = self._waiting.pop(peer, None) if peer is not None else None
        if peer is not None and found is not None:
            found[1].cancel()
            self._of[peer[0]] -= 1
            if not self._of[peer[0]]:
                del self._of[peer[0]]

    def _turn_away(self, peer: tuple[str, int]) -> None:
        connection, _ = self._waiting[peer]
        self.passed(peer)
        connection.transport.abort()

    def protocol(self) -> type[asyncio.Protocol]:
        """Return the class that uvicorn instantiates for each connection."""
        door = self

        class UnprovenConnection(H11Protocol):
            def connection_made(self, transport: Any) -> None:
                super().connection_made(transport)
                door.meet(self)

            def connection_lost(self, exc: Exception | None) -> None:
                door.passed(self.client)
                super().connection_lost(exc)

        return UnprovenConnection
