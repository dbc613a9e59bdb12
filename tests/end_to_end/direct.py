"""Requests to the gateway of a person, without a program in between."""

from __future__ import annotations

from typing import Any

from eos_agent.wire.protocol import is_error
from eos_mcp.config import token_file
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
    """The gateway's token, as its person's programs find it."""
    (path,) = sandbox.desk.state.rglob("gateway.token")
    found = token_file.read(str(path))
    assert found is not None
    return found
