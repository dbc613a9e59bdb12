"""Cancel the one-off commands of a client that went away.

A client that wants it (an MCP server) names itself by a random id in each `exec_command` and keeps one
connection open with `hold_client`. The kernel closes that connection however the client ends. After
`GRACE_S` without one, the commands that the client started are cancelled by their request ids; their work
becomes drafts.
"""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict
from collections.abc import Awaitable, Callable
from typing import Any

from eos_agent.wire.protocol import INVALID_REQUEST, OperationError
from eos_mcp.config.log import log
from eos_mcp.requests import caller

GRACE_S = 10.0
CLIENTS, COMMANDS = 256, 256
"""Most clients, and newest commands of each, that are remembered."""
DETACH = "detach"

Cancel = Callable[[str, str], Awaitable[bool]]
"""Sandbox and request id -> True when a command was cancelled; raises OperationError."""


class DepartedClients:
    """The clients of one gateway and the requests by which they started commands."""

    def __init__(self, cancel: Cancel, *, grace_s: float = GRACE_S) -> None:
        self._cancel, self._grace_s = cancel, grace_s
        self._held: Counter[str] = Counter()
        self._started: OrderedDict[str, OrderedDict[tuple[str, str], None]] = OrderedDict()
        self._tasks: set[asyncio.Task[None]] = set()
        self._stopped = asyncio.Event()

    def note(self, client: object, sandbox_id: str, request_id: str, args: dict[str, Any]) -> None:
        """Note a command without a session that is to end with its client."""
        name = client_id(client)
        if name is None or args.get("workspace_session_id") or args.get("on_disconnect") == DETACH:
            return
        commands = self._started.setdefault(name, OrderedDict())
        self._started.move_to_end(name)
        commands[sandbox_id, request_id] = None
        if len(commands) > COMMANDS:
            commands.popitem(last=False)
        if len(self._started) > CLIENTS:
            self._started.popitem(last=False)

    async def hold(self, client: object) -> dict[str, Any]:
        """Answer `hold_client`: wait until its connection is closed.

        Raises:
            OperationError: invalid_request.
        """
        name = client_id(client)
        if name is None:
            message = "client must be 1 to 64 ASCII letters and digits"
            raise OperationError(INVALID_REQUEST, message, {"argument": "client"}, reason="bad_argument")
        self._held[name] += 1
        try:
            await self._until_closed()
        finally:
            self._held[name] -= 1
            if not self._held[name]:
                del self._held[name]
        if self._stopped.is_set():  # the gateway ends: clients find the next one, and commands keep running
            return {"client": name}
        task = asyncio.get_running_loop().create_task(self._end(name))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return {"client": name}

    async def _until_closed(self) -> None:
        """Wait until the client has closed its connection, or until `stop`."""
        ends = [asyncio.ensure_future(one) for one in (caller.wait_closed(), self._stopped.wait())]
        try:
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for one in ends:
                one.cancel()
            await asyncio.gather(*ends, return_exceptions=True)

    @property
    def holding(self) -> int:
        """Number of connections that only show that their client lives."""
        return sum(self._held.values())

    def stop(self) -> None:
        """Release the held connections and cancel nothing further."""
        self._stopped.set()
        for task in self._tasks:
            task.cancel()

    async def _end(self, name: str) -> None:
        await asyncio.sleep(self._grace_s)
        if name in self._held:
            return
        for sandbox_id, request_id in self._started.pop(name, OrderedDict()):
            try:
                if await self._cancel(sandbox_id, request_id):
                    log("client_gone", sandbox_id=sandbox_id, request_id=request_id, cancelled=True)
            except OperationError:
                continue  # its sandbox is gone, or the command ended long ago


def client_id(value: object) -> str | None:
    """Return a valid id of a client, else None."""
    return (
        value
        if isinstance(value, str) and 0 < len(value) <= 64 and value.isascii() and value.isalnum()
        else None
    )
