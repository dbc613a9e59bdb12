"""One live session: its claim on a version, its runner, its commands, and the gate through which everything goes."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

from eos_agent.zygote import Runner, SessionSpec

if TYPE_CHECKING:
    from eos_agent.command import Command
    from layerstack.store import Upper

EXPLICIT, IMPLICIT = "no_op", "publish_then_destroy"


class Session:
    """One live session. `ended` is set once it is out of the table, whatever the reason."""

    def __init__(
        self, session_id: str, policy: str, spec: SessionSpec, upper: Upper, runner: Runner, agent: str | None, request_id: str
    ) -> None:
        self.id = session_id
        self.policy = policy
        self.spec = spec
        self.upper = upper
        self.runner = runner
        self.agent = agent
        self.request_id = request_id
        self.draft_id: str | None = None
        self.gate = asyncio.Lock()
        self.state = "active"
        self.ending = False  # the runner's end is our own doing
        self.ended = asyncio.Event()
        self.destroyed: dict[str, Any] | None = None
        self.commands: dict[str, Command] = {}  # those that have not finished
        self.created_unix_ms = self.last_activity_unix_ms = int(time.time() * 1000)
        self._shell: list[str] | None = None

    async def which_shell(self) -> list[str] | None:
        if self._shell is None:
            self._shell = await self.runner.which_shell()
        return self._shell

    def on_event(self, event: dict[str, Any]) -> None:
        command = self.commands.get(str(event.get("key")))
        if command is not None:
            command.on_event(event)

    @property
    def owner(self) -> str:
        return f"workspace_session:{self.id}"
