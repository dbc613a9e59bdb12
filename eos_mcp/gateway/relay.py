"""Requests that need nothing of the gateway but the way: on to the agent in one turn of the loop, the result
back in another, by callbacks.

The long way (server, route, forward: a coroutine per request) is what decides; this takes from it what it
would do unchanged. A request goes here when it lay there whole, is for an agent that is known to be ready,
and a kept connection to that one is at rest. Whatever then comes but a result (an error, a connection that
breaks, the end of the time) goes back to the long way as an Outcome, which words it. ADR 0027.
"""

from __future__ import annotations

import asyncio
import json
import socket
import time
from typing import Any, NamedTuple, Protocol, cast

from eos_agent.wire import protocol
from eos_agent.wire.protocol import SERVER_SHUTTING_DOWN, OperationError, Request
from eos_mcp import catalog
from eos_mcp.agent_client import pool
from eos_mcp.agent_client.deadlines import Deadlines
from eos_mcp.agent_client.line_socket import LineSocket, TooLong
from eos_mcp.agent_client.pool import AgentPool, AgentTarget, Pooled

LONGEST = 16 * 1024
"""Bytes of a request that surely fit into the buffer of a connection at rest; a longer one takes the long
way.
"""


class Outcome(NamedTuple):
    """How a request ended that was sent to its agent here: the agent's line, without its newline, or why
    there is none.
    """

    reply: bytes | OperationError
    started: float


class RelayRoutes(Protocol):
    """Part of the router that the relay uses."""

    executing: set[tuple[str, str]]

    def straight(self, request: Request) -> AgentTarget | None:
        """Return the agent of a request that needs no wait and no change; None: take the slow path."""
        ...

    def succeeded(self, request: Request) -> None:
        """Do what the slow path does after a result."""
        ...


class RelayServer(Protocol):
    """Server that owns the connections."""

    def deliver(self, connected: socket.socket, reply: bytes) -> None:
        """Send the answer, with its newline, and close the connection."""
        ...

    def long_way(self, connected: socket.socket, request: Request, outcome: Outcome | None) -> None:
        """Go on in a coroutine; without an outcome nothing was sent."""
        ...


class _Flight:
    """One request between its client and its agent."""

    __slots__ = ("address", "budget_s", "client", "data", "line", "proving", "request", "started", "target")

    def __init__(
        self,
        client: socket.socket,
        request: Request,
        target: AgentTarget,
        data: bytes,
        budget_s: float | None,
    ) -> None:
        self.client, self.request, self.target, self.data, self.budget_s = (
            client,
            request,
            target,
            data,
            budget_s,
        )
        self.started = time.monotonic()
        self.proving = False
        self.line: LineSocket
        self.address: tuple[str, int]


class Relay:
    """One per gateway, made inside its loop."""

    def __init__(self, routes: RelayRoutes, forwarder: AgentPool) -> None:
        self._routes, self._forwarder = routes, forwarder
        self._flights: set[_Flight] = set()
        self._deadlines = Deadlines()
        self._empty: asyncio.Event | None = None

    def __len__(self) -> int:
        """Requests under way."""
        return len(self._flights)

    def take(self, server: RelayServer, client: socket.socket, request: Request, size: int) -> bool:
        """Send the request on; False: nothing was done, it needs the long way.

        Args:
            size: bytes of the request's line.
        """
        if size > LONGEST or (target := self._routes.straight(request)) is None:
            return False
        try:
            data = pool.request_data(target, request.op, request.args, request.request_id)
        except ValueError:  # a number that JSON has no word for
            return False
        pooled = self._forwarder.at_rest(target)
        if pooled is None:
            return False
        flight = _Flight(
            client, request, target, data, catalog.budget_s(catalog.find(request.op), request.args)
        )
        self._flights.add(flight)
        if request.op == "exec_command":
            self._routes.executing.add((target.sandbox_id, request.request_id))
        self._begin(server, flight, pooled)
        return True

    async def finish(self, server: RelayServer, grace_s: float) -> None:
        """Wait at most `grace_s` for requests in flight, then answer the rest with the error that the gateway
        stops.
        """
        if self._flights:
            self._empty = asyncio.Event()
            try:
                async with asyncio.timeout(grace_s):
                    await self._empty.wait()
            except TimeoutError:
                details = {"reason": "gateway_stopping", "retryable": True}
                for flight in list(self._flights):
                    self._fail(
                        server,
                        flight,
                        OperationError(SERVER_SHUTTING_DOWN, "the gateway is stopping", details),
                    )
        self._deadlines.close()

    def _begin(self, server: RelayServer, flight: _Flight, pooled: Pooled) -> None:
        """A connection that has been idle proves itself first, as on the long way."""
        flight.line, flight.address = pooled.line, pooled.address
        flight.line.watch(lambda: self._arrived(server, flight))
        if flight.started - pooled.used_at < pool.TRUSTED_IDLE_S:
            self._send(server, flight)
            return
        flight.proving = True
        self._deadlines.set(
            flight, flight.started + pool.READY_TIMEOUT_S, lambda: self._give_back(server, flight)
        )
        self._put(server, flight, pool.ping_data(flight.target))

    def _send(self, server: RelayServer, flight: _Flight) -> None:
        flight.proving = False
        if flight.budget_s is None:
            self._deadlines.clear(flight)
        else:
            self._deadlines.set(
                flight, flight.started + flight.budget_s, lambda: self._expired(server, flight)
            )
        self._put(server, flight, flight.data)

    def _put(self, server: RelayServer, flight: _Flight, data: bytes) -> None:
        try:
            rest = flight.line.send_at_once(data)
        except OSError as error:
            self._broken(server, flight, error)
        else:
            if rest:  # an incomplete line is not a request: the agent ignores it
                self._give_back(server, flight)

    def _arrived(self, server: RelayServer, flight: _Flight) -> None:
        try:
            line = flight.line.receive(protocol.MAX_LINE_BYTES)
            if line is None:
                return
            if not (line.startswith(b"{") and line.endswith(b"}\n")):
                raise ValueError("the reply is not a JSON object")
        except (OSError, EOFError, TooLong, ValueError) as error:
            self._broken(server, flight, error)
            return
        if flight.proving:
            if _proved(line, flight.target) and not flight.line.pending:
                self._send(server, flight)
            else:
                self._give_back(server, flight)
            return
        self._end(flight)
        self._forwarder.keep(flight.target.sandbox_id, flight.line, flight.address)
        if b'"error"' in line:
            server.long_way(flight.client, flight.request, Outcome(line[:-1], flight.started))
            return
        self._forget(flight)
        server.deliver(flight.client, line)
        self._routes.succeeded(flight.request)

    def _broken(self, server: RelayServer, flight: _Flight, error: Exception) -> None:
        if flight.proving:
            self._give_back(server, flight)
            return
        self._forwarder.forget(flight.target.sandbox_id)  # its other connections end the same way
        self._fail(server, flight, pool.gone(flight.request.op, error))

    def _expired(self, server: RelayServer, flight: _Flight) -> None:
        self._fail(server, flight, pool.late(flight.target.sandbox_id, flight.request.op, flight.budget_s))

    def _fail(self, server: RelayServer, flight: _Flight, error: OperationError) -> None:
        flight.line.close()
        self._end(flight)
        server.long_way(flight.client, flight.request, Outcome(error, flight.started))

    def _give_back(self, server: RelayServer, flight: _Flight) -> None:
        """The agent has seen nothing of it: the long way begins with it."""
        flight.line.close()
        self._end(flight)
        server.long_way(flight.client, flight.request, None)

    def _end(self, flight: _Flight) -> None:
        self._deadlines.clear(flight)
        self._flights.discard(flight)
        if self._empty is not None and not self._flights:
            self._empty.set()

    def _forget(self, flight: _Flight) -> None:
        """Remove a finished request from the executing ones; the slow path does this itself."""
        self._routes.executing.discard((flight.target.sandbox_id, flight.request.request_id))


def _proved(line: bytes, target: AgentTarget) -> bool:
    try:
        value = json.loads(line)
    except ValueError:
        return False
    return isinstance(value, dict) and pool.is_ready(cast("dict[str, Any]", value), target)
