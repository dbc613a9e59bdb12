"""The interface of a provider. Calls block and run in threads; a call that raises has removed all that it
made.
"""

from __future__ import annotations

import json
import secrets
import socket
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol

from eos_agent.wire import proof, protocol
from eos_agent.wire.protocol import INTERNAL_ERROR, OperationError
from eos_mcp.agent_client.line_socket import check_owner
from eos_mcp.record.registry import AgentAddress, AgentEndpoint, SandboxRecord, SharedBase
from eos_mcp.record.sample_ring import EngineSample
from eos_mcp.workspace.base import BaseTree
from layerstack.kernel.base_xattrs import Keeping

Progress = Callable[[str], None]
LOG_LINES = 200
FIRST_POLL_S, EAGER_POLL_S, EAGER_FOR_S = 0.005, 0.025, 2.0
LOOK_S = 0.2
"""Seconds between checks, while waiting for an agent, if it has ended: for a container each check is a call
to a busy engine.
"""


class SandboxPlan(NamedTuple):
    """A sandbox to make. `sections`: the agent's configuration with defaults; `yaml`: the bytes from which it
    was read.
    """

    sandbox_id: str
    image: str
    workspace_root: str
    base: BaseTree
    token: str
    sections: dict[str, Any]
    yaml: bytes
    caller_path: str
    created_unix_ms: int
    git_identity: Mapping[str, str | bool]
    """As `git_identity` of the agent's settings (eos_agent.base.git_identity)."""


class Made(NamedTuple):
    """A sandbox whose agent was started; it may not answer yet."""

    daemon: AgentEndpoint
    daemon_http: AgentEndpoint
    shared_base: SharedBase
    resource_profile: dict[str, Any] | None
    provider_data: dict[str, Any]


class FoundSandbox(NamedTuple):
    """The present state of a sandbox. `running` False: it exists and its agent does not run.

    `paused`: all its processes are frozen, until `revive`. `token` and `reach` (entries of the record's
    provider_data for connecting to its agent) are None when the values in the record are still valid.
    """

    running: bool
    daemon: AgentEndpoint | None = None
    daemon_http: AgentEndpoint | None = None
    token: str | None = None
    reach: dict[str, Any] | None = None
    paused: bool = False

    def of(self, record: SandboxRecord) -> SandboxRecord:
        """Return `record` with what was found."""
        data = record.provider_data if self.reach is None else {**record.provider_data, **self.reach}
        token = record.token if self.token is None else self.token
        return record.but(daemon=self.daemon, daemon_http=self.daemon_http, token=token, provider_data=data)


class Provider(Protocol):
    """Makes, finds, restarts and removes sandboxes of one kind."""

    name: str

    def check_image(self, image: str) -> None:
        """Refuse an image that does not exist, before the workspace is copied.

        Raises:
            OperationError: internal_error, reason image_not_found, or the provider does not work on this
                machine.
        """
        ...

    def keeping(self) -> Keeping:
        """Return the attributes of a workspace that its stores can have, and their xattr namespace."""
        ...

    def images(self) -> list[str]:
        """List the images that create_sandbox accepts."""
        ...

    def create(self, plan: SandboxPlan, progress: Progress) -> Made:
        """Make the sandbox and start its agent."""
        ...

    def exited(self, record: SandboxRecord) -> str | None:
        """Return the reason why the agent can no longer become ready; None while it can."""
        ...

    def log_tail(self, record: SandboxRecord) -> list[str]:
        """Return the last lines of the agent's log."""
        ...

    def find(self, record: SandboxRecord) -> FoundSandbox | None:
        """Return the present state of the sandbox; None when nothing of it exists."""
        ...

    def revive(self, record: SandboxRecord) -> FoundSandbox | None:
        """Find the sandbox and start a dead agent again."""
        ...

    def replace(self, record: SandboxRecord) -> None:
        """End an agent that runs and does not answer, with all processes of the sandbox; `revive` starts
        another agent. The work of sessions becomes drafts.

        Raises:
            OperationError: internal_error: it does not end.
        """
        ...

    def is_frozen(self, record: SandboxRecord) -> bool:
        """Tell whether the agent's process is stopped or frozen, as far as the host can see."""
        ...

    def usage(self, record: SandboxRecord) -> EngineSample | None:
        """Return the resources that the sandbox has used, as counted from outside; None when nothing counts
        them.

        Raises:
            OperationError: internal_error: the engine did not report them.
        """
        ...

    def destroy(self, record: SandboxRecord) -> list[str]:
        """Remove everything of the sandbox; missing parts are not an error.

        Returns:
            Warnings: steps that failed without a lasting effect.
        Raises:
            OperationError: internal_error: something is still there.
        """
        ...

    def adopt(self) -> list[SandboxRecord]:
        """Find running sandboxes of this instance by their labels or files, without the registry."""
        ...


def new_token() -> str:
    return secrets.token_hex(32)


def ask_ready(target: AgentAddress, *, timeout_s: float = 5.0) -> str | None:
    """Ask the agent `sandbox_daemon_ready`, after both sides have proved themselves. None when the agent is
    ready, else the reason.
    """
    transport = (
        {} if target.proves or target.socket_path is not None else {protocol.DAEMON_TOKEN_KEY: target.token}
    )
    line = protocol.encode_request(
        "sandbox_daemon_ready", {}, request_id="docker-readiness", sandbox_id=target.sandbox_id, **transport
    )
    deadline = time.monotonic() + timeout_s
    try:
        with _connect(target, timeout_s) as connection:
            if target.proves:
                nonce = proof.new_nonce()
                connection.sendall(protocol.encode(proof.hello(target.sandbox_id, nonce)))
                met = _object(_line(connection, deadline))
                line = protocol.encode(proof.check(target.token, target.sandbox_id, nonce, met)) + line
            connection.sendall(line)
            reply = _object(_line(connection, deadline))
    except (OSError, EOFError, ValueError, proof.WrongProof) as error:
        return str(error)
    try:
        return str(reply["error"]["message"]) if "error" in reply else None
    except (TypeError, KeyError):
        return "the answer has neither a result nor a readable error"


def _connect(target: AgentAddress, timeout_s: float) -> socket.socket:
    if target.socket_path is None:
        return socket.create_connection((target.host, target.port), timeout=timeout_s)
    connection = socket.socket(socket.AF_UNIX)
    try:
        connection.settimeout(timeout_s)
        connection.connect(target.socket_path)
        check_owner(connection, target.socket_path)
    except BaseException:
        connection.close()
        raise
    return connection


def _line(connection: socket.socket, deadline: float) -> bytes:
    answer = b""
    while not answer.endswith(b"\n"):
        connection.settimeout(max(0.01, deadline - time.monotonic()))
        piece = connection.recv(65536)
        if not piece:
            raise EOFError("the connection was closed without a reply")
        answer += piece
        if len(answer) > protocol.MAX_LINE_BYTES:
            raise ValueError("the reply has no end")
    return answer


def _object(line: bytes) -> dict[str, Any]:
    value: Any = json.loads(line)
    if not isinstance(value, dict):
        raise ValueError("the reply is not a JSON object")
    return value  # pyright: ignore[reportUnknownVariableType]


def wait_ready(
    provider: Provider,
    record: SandboxRecord,
    *,
    timeout_s: float,
    poll_s: float,
    given_up: Callable[[], bool],
) -> None:
    """Wait until the agent of `record` answers; poll fast at first, since most answer within a quarter of a
    second.

    Args:
        given_up: true once no caller waits for the result.
    Raises:
        OperationError: internal_error with the stage, the agent's last answer or log message, and the end of
            its log in details.daemon_log.
    """
    target = record.target()
    assert target is not None
    started = time.monotonic()
    deadline = started + timeout_s
    pause, said, looked = FIRST_POLL_S, "nobody listened", started
    reason, exited = "readiness_timeout", None
    while time.monotonic() < deadline and not given_up():
        answer = ask_ready(target, timeout_s=max(0.05, min(5.0, deadline - time.monotonic())))
        if answer is None:
            return
        said = answer
        if time.monotonic() - looked >= LOOK_S:
            looked, exited = time.monotonic(), provider.exited(record)
        if exited is not None:
            reason = "agent_exited"
            break
        time.sleep(min(pause, max(0.0, deadline - time.monotonic())))
        pause = min(
            pause * 1.5, poll_s if time.monotonic() - started > EAGER_FOR_S else min(EAGER_POLL_S, poll_s)
        )
    log = provider.log_tail(record)
    excerpt = log_excerpt(log)
    message = f"waiting for readiness: {exited or f'no answer within {timeout_s:g} s ({said})'}" + (
        f": {excerpt}" if excerpt else ""
    )
    raise OperationError(
        INTERNAL_ERROR,
        message,
        {"stage": "readiness", "sandbox_id": record.id, "daemon_log": log[-LOG_LINES:]},
        reason=reason,
    )


def log_excerpt(lines: list[str]) -> str:
    """Return the last message in an agent's log, or its last line."""
    for line in reversed(lines):
        try:
            value: Any = json.loads(line)
            message = value.get("message")
        except (ValueError, AttributeError):
            continue
        if message:
            return str(message)
    return lines[-1].strip() if lines else ""
