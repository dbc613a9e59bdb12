"""The running commands of a session as list_workspace_sessions shows them; the start and end of its
services.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from eos_agent.sessions.service import Service, needs_session, readiness_of
from eos_agent.sessions.session import EXPLICIT
from eos_agent.wire.protocol import OPERATION_FAILED, OperationError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from eos_agent.base.pool import Pool
    from eos_agent.sessions.session import RunningCommand, Session

SHOWN = 20
ROUNDS = 3
TEXT = 200
LEFT_OUT = frozenset({"workspace_session_id", "request_id", "exit_code"})
"""Keys of list_commands that are redundant for a running command of a named session."""


def running(session: Session) -> list[dict[str, Any]]:
    """List the newest 20 running commands of a session, oldest first, each with its text truncated."""
    rows: list[dict[str, Any]] = []
    for command in list(session.commands.values())[-SHOWN:]:
        row = {key: value for key, value in command.row().items() if key not in LEFT_OUT}
        text = str(row.get("command", ""))
        row["command"] = text if len(text) <= TEXT else f"{text[:TEXT]}…"
        rows.append(row)
    return rows


def services(session: Session) -> list[RunningCommand]:
    """The running services of a session, oldest first."""
    return [command for command in session.commands.values() if command.service is not None]


def service_of(args: Mapping[str, Any], session: Session) -> Service | None:
    """The service that the arguments of exec_command ask for; None for an ordinary command.

    Raises:
        OperationError: invalid_request; operation_failed, reason service_needs_session, or service_running if
            the session has a service of that name.
    """
    name = args.get("service")
    if name is None:
        return None
    if session.policy != EXPLICIT:
        raise needs_session(name)
    for command in services(session):
        if command.service is not None and command.service.name == name:
            raise _is_running(session, command, name)
    return Service(
        name, readiness_of(args.get("ready")), session.id, isolated=session.spec.network == "isolated"
    )


def _is_running(session: Session, command: RunningCommand, name: str) -> OperationError:
    details = {
        "workspace_session_id": session.id,
        "service": name,
        "command_session_id": command.id,
        "hint": "read_command_lines shows its output; signal_command ends it; or choose another name",
    }
    return OperationError(
        OPERATION_FAILED,
        f"service {name} runs in workspace session {session.id} already: {command.id}",
        details,
        reason="service_running",
    )


async def services_ended(ended: list[RunningCommand], by: str) -> dict[str, Any]:
    """Report the end of services after the init of their session was ended; returns the field of the answer
    that lists them.

    Args:
        ended: the services that ran before.
        by: the operation that ended the init.
    """
    rows: list[dict[str, Any]] = []
    for command in ended:
        assert command.service is not None
        rows.append({"service": command.service.name, "command_session_id": command.id})
        await command.end_with_session(by)
    return {"services_stopped": rows} if rows else {}


async def other_processes(session: Session, pool: Pool) -> list[dict[str, Any]]:
    """List the processes of a session, as InitHandle.processes does, without those of its services.

    Those of services come and go between the two lists that are compared; so a process counts that is among
    the others in each of several rounds.
    """
    left = await session.init.processes()
    keys = [command.id for command in services(session)]
    if not left or not keys:
        return left
    for number in range(ROUNDS):
        own = await pool.run(lambda: session.init.pids_of(keys))
        if number:
            now = {process["pid"] for process in await session.init.processes()}
            left = [process for process in left if process["pid"] in now]
        left = [process for process in left if process["pid"] not in own]
        if not left:
            break
    return left
