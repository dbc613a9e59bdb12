"""One live session: its upper, its init, its commands, and the gate that serialises operations on it."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any, Protocol

from eos_agent.handles.init_handle import InitHandle
from eos_agent.wire.protocol import INVALID_REQUEST, OPERATION_FAILED, OperationError
from eos_agent.zygote.specs import SessionSpec

if TYPE_CHECKING:
    from eos_agent.sessions.interruption import Unfinished
    from eos_agent.sessions.service import Service
    from layerstack.session.upper import Upper

EXPLICIT, IMPLICIT = "no_op", "publish_then_destroy"


class RunningCommand(Protocol):
    """The part of a command that its session uses; sessions.command.Command is one."""

    id: str
    text: str
    outcome: dict[str, Any]
    """Fields that the end of the session adds to the command's result."""
    service: Service | None
    """Name and state of a service; None for an ordinary command."""
    lost: OperationError | None
    """The error that callers of the command get; set before `lose`."""

    async def wait_finished(self, until: float) -> None:
        """Wait for the end of the command's processes, at most until the monotonic time `until`."""

    def row(self) -> dict[str, Any]:
        """Give the entry of the command in list_commands."""
        ...

    async def end_with_session(self, by: str) -> None:
        """Note that the operation `by` has ended init, and this service with it."""

    def lose(self) -> None:
        """End without an exit code: the processes have ended, and no init reports their exit status."""


class Session:
    """One live session. ended: set once it was removed from the table, for any reason."""

    def __init__(
        self,
        session_id: str,
        policy: str,
        spec: SessionSpec,
        upper: Upper,
        init: InitHandle,
        agent: str | None,
        request_id: str,
    ) -> None:
        self.id = session_id
        self.policy = policy
        self.spec = spec
        self.upper = upper
        self.init = init
        self.agent = agent
        self.request_id = request_id
        self.draft_id: str | None = None
        self.message: str | None = None  # of its publication: the last one that a call gave
        self.ttl_s: float | None = None
        self.readers = 0  # number of operations that use it without the gate
        self.gate = asyncio.Lock()
        self.state = "active"
        self.fresh = True  # no command was started in it so far
        self.unfinished: Unfinished | None = None  # why the work of an implicit session is not published
        self.ending = False  # the end of init is intended
        self.ended = asyncio.Event()
        self.destroyed: dict[str, Any] | None = None
        self.discarded: dict[str, Any] | None = (
            None  # set with `destroyed`: fields for the results of its commands
        )
        self.commands: dict[str, RunningCommand] = {}  # commands that have not finished
        self.created_unix_ms = self.last_activity_unix_ms = int(time.time() * 1000)
        self._used = time.monotonic()

    def touch(self) -> None:
        """Restart the time to live: the session is in use."""
        self.last_activity_unix_ms = int(time.time() * 1000)
        self._used = time.monotonic()

    def idle_left_s(self) -> float | None:
        """Seconds until the session expires: all of `ttl_s` while it is in use; None if it never does."""
        if self.ttl_s is None:
            return None
        return self.ttl_s if self.commands or self.readers else self._used + self.ttl_s - time.monotonic()

    def lifetime(self) -> dict[str, Any]:
        """`ttl_s` and `expires_unix_ms` (null while a command runs) of a session that has a time to live."""
        if self.ttl_s is None:
            return {}
        return {
            "ttl_s": self.ttl_s,
            "expires_unix_ms": None
            if self.commands
            else self.last_activity_unix_ms + round(self.ttl_s * 1000),
        }

    @property
    def owner(self) -> str:
        return f"workspace_session:{self.id}"

    async def await_commands(self, grace_s: float, doing: str, *, reason: str = "active_commands") -> None:
        """Wait up to `grace_s` for running commands; refuse if some still run. Services are not waited for.
        The caller holds the gate, so that no command is added."""
        end = time.monotonic() + grace_s
        for command in list(self.commands.values()):
            if command.service is None:
                await command.wait_finished(end)
        active = [command.id for command in self.commands.values() if command.service is None]
        if active:
            raise OperationError(
                OPERATION_FAILED,
                f"cannot {doing}: workspace session {self.id} has active command sessions: "
                f"{', '.join(active)}",
                {
                    "workspace_session_id": self.id,
                    "active_command_session_ids": active,
                    "hint": "wait for their end with read_command_lines (wait_ms), or signal_command them",
                },
                reason=reason,
            )


def check_grace(args: dict[str, Any]) -> float:
    """Read `grace_s`; 0 if absent."""
    grace = float(args.get("grace_s") or 0)
    if grace < 0:
        raise OperationError(
            INVALID_REQUEST, "grace_s must be non-negative", {"argument": "grace_s"}, reason="out_of_bounds"
        )
    return grace
