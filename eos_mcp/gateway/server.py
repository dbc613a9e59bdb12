"""The gateway's listening sockets, and a task per connection (connection.py)."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import Callable

from eos_mcp.config.log import log
from eos_mcp.gateway.admission import Admission
from eos_mcp.gateway.connection import Answer, ClientConnection
from eos_mcp.gateway.listen import Listener

ACCEPT_PAUSE_S = 0.1


class GatewayServer:
    """Server on `listeners`, from `start` to `stop_accepting` and `finish`."""

    def __init__(
        self,
        listeners: list[Listener],
        token: str,
        answer: Answer,
        *,
        max_connections: int,
        holding: Callable[[], int] = lambda: 0,
    ) -> None:
        """Prepare to serve.

        Args:
            holding: number of open connections that only show that their client lives.
        """
        self.listeners = listeners
        self.last_request_at = time.monotonic()
        self._token = token.encode()
        self._answer = answer
        self._admission = Admission(max_connections)
        self._open: dict[ClientConnection, asyncio.Task[None]] = {}
        self._accepting = False
        self._holding = holding

    @property
    def busy(self) -> bool:
        """True while a connection is open that waits for work."""
        return len(self._open) > self._holding()

    def start(self) -> None:
        self._accepting = True
        for listener in self.listeners:
            self._watch(listener.socket)

    async def stop_accepting(self) -> None:
        self._accepting = False
        for listener in self.listeners:
            asyncio.get_running_loop().remove_reader(listener.socket)

    def accept_pending(self) -> None:
        """Serve the connections in the backlogs; called when no further client can connect."""
        for listener in self.listeners:
            with contextlib.suppress(OSError):
                while True:
                    connected, _ = listener.socket.accept()
                    self._start(connected)

    async def finish(self, grace_s: float) -> None:
        """Wait at most `grace_s` for requests in flight, then answer the rest with the error that the gateway
        stops.
        """
        if self._open:
            await asyncio.wait(self._open.values(), timeout=grace_s)
        for task in list(self._open.values()):
            task.cancel()
        if self._open:
            await asyncio.wait(self._open.values(), timeout=1)

    def _watch(self, listening: socket.socket) -> None:
        if self._accepting:
            asyncio.get_running_loop().add_reader(listening, self._accept, listening)

    def _accept(self, listening: socket.socket) -> None:
        try:
            connected, _ = listening.accept()
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):  # the client left
            return
        except OSError as error:  # no free descriptor: connections that end release some
            log("accept_failed", error=str(error))
            loop = asyncio.get_running_loop()
            loop.remove_reader(listening)
            loop.call_later(ACCEPT_PAUSE_S, self._watch, listening)
            return
        self._start(connected)

    def _start(self, connected: socket.socket) -> None:
        self.last_request_at = time.monotonic()
        self._admission.meet(connected)
        connection = ClientConnection(connected, self._token, self._admission, self._answer)
        task = asyncio.create_task(self._serve(connection))
        self._open[connection] = task

    async def _serve(self, connection: ClientConnection) -> None:
        try:
            await connection.serve()
        except Exception as error:
            log("connection_failed", error=repr(error))
        finally:
            del self._open[connection]
            self.last_request_at = time.monotonic()
