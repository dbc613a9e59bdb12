"""Requests to the gateway of a person, without a program in between."""

from __future__ import annotations

from typing import Any

from eos_agent.wire.protocol import is_error
from eos_mcp.gateway_client import sync
from tests.end_to_end.cli_user import Sandbox


class Direct:
    """Requests to the gateway without a program in between; each opens a connection of its own."""

    def __init__(self, sandbox: Sandbox) -> None:
        self.id = sandbox.id
        (path,) = sandbox.desk.state.rglob("gateway.sock")
        token = token_of(sandbox)
        self.settings = sync.GatewaySettings(sync.parse_endpoint(str(path)), token, autostart=False)

    def ask(self, op: str, **args: Any) -> dict[str, Any]:
        return sync.call(self.settings, op, args, sandbox_id=self.id, timeout_s=120)

    def do(self, op: str, **args: Any) -> dict[str, Any]:
        reply = self.ask(op, **args)
        assert not is_error(reply), (op, reply)
        return reply


def token_of(sandbox: Sandbox) -> str:
    """Read the gateway's token. The programs refuse the file of another user, which this process may read."""
    (path,) = sandbox.desk.state.rglob("gateway.token")
    return path.read_text().strip()
