"""The address at which a person's browser finds a server of a sandbox, with a ticket in it that is good for a minute."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from eos_agent.wire import proof
from eos_agent.wire.protocol import INVALID_REQUEST, OperationError

if TYPE_CHECKING:
    from eos_mcp.manager.manager import Manager


async def forward_url(manager: Manager, sandbox_id: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """The result of the operation of that name.

    Args:
        given: checked arguments: port, and what was given of workspace_session_id and path.
    Raises:
        OperationError: invalid_request: unknown, not ready or without an HTTP endpoint.
    """
    await manager.target(sandbox_id, refresh=True)  # the ports of now
    record = manager.registry.get(sandbox_id)
    if record.daemon_http is None:
        details = {"sandbox_id": sandbox_id, "hint": "start_sandbox starts it again"}
        raise OperationError(INVALID_REQUEST, f"sandbox {sandbox_id} has no HTTP endpoint", details, reason="no_endpoint")
    session = given.get("workspace_session_id")
    where = "shared" if session is None else f"isolated={quote(str(session), safe='')}"
    prefix = f"/forward/{where}/{given['port']}"
    until = int(time.time()) + proof.TICKET_S
    path, _, query = str(given.get("path") or "").lstrip("/").partition("?")
    asked = f"{quote(query, safe='=&%+,:;@/?')}&" if query else ""
    ticket = proof.ticket(record.token, sandbox_id, prefix, until)
    host = f"[{record.daemon_http.host}]" if ":" in record.daemon_http.host else record.daemon_http.host
    base = f"http://{host}:{record.daemon_http.port}{prefix}/{quote(path, safe='/%+,:;@=')}"
    return {"url": f"{base}?{asked}{proof.TICKET_KEY}={ticket}", "expires_unix_ms": until * 1000}
