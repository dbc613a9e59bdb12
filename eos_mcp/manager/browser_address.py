"""The address at which a browser reaches a server in a sandbox; it holds a ticket that is valid for a
minute.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from eos_agent.wire import proof
from eos_agent.wire.protocol import INVALID_REQUEST, OperationError
from eos_mcp.record.registry import SandboxRecord


def forward_url(record: SandboxRecord, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the result of the operation of that name.

    Args:
        record: of a ready sandbox, with its present ports.
        given: checked arguments: port, and what was given of workspace_session_id and path.
    Raises:
        OperationError: invalid_request: the sandbox has no HTTP endpoint.
    """
    if record.daemon_http is None:
        details = {"sandbox_id": record.id, "hint": "start_sandbox starts it again"}
        raise OperationError(
            INVALID_REQUEST, f"sandbox {record.id} has no HTTP endpoint", details, reason="no_endpoint"
        )
    session = given.get("workspace_session_id")
    where = "shared" if session is None else f"isolated={quote(str(session), safe='')}"
    prefix = f"/forward/{where}/{given['port']}"
    until = int(time.time()) + proof.TICKET_S
    path, _, query = str(given.get("path") or "").lstrip("/").partition("?")
    asked = f"{quote(query, safe='=&%+,:;@/?')}&" if query else ""
    ticket = proof.ticket(record.token, record.id, prefix, until)
    base = f"{http_base(record)}{prefix}/{quote(path, safe='/%+,:;@=')}"
    return {"url": f"{base}?{asked}{proof.TICKET_KEY}={ticket}", "expires_unix_ms": until * 1000}


def http_base(record: SandboxRecord) -> str | None:
    """URL of the HTTP surface of a sandbox's agent; None without an endpoint."""
    at = record.daemon_http
    if at is None:
        return None
    return f"http://[{at.host}]:{at.port}" if ":" in at.host else f"http://{at.host}:{at.port}"
