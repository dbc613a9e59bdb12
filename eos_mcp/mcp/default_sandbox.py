"""The sandbox of a call that names none: the one whose workspace the client works in, or the only one."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from eos_agent.wire.protocol import INVALID_REQUEST, OperationError
from eos_mcp.catalog import Operation
from eos_mcp.mcp.json_values import Object, rows
from eos_mcp.requests.roots import inside

NEVER = frozenset({"destroy_sandbox"})
"""Operations that always need an explicit sandbox_id."""
GONE = frozenset({"failed", "stopped", "stopping", "creating"})
SHOWN = 20
CLIENTS = 64
"""Names of clients that are remembered, at most; more than one of them speak to a server over HTTP only."""


def wants(operation: Operation) -> bool:
    """Return True when calls of this operation need a sandbox."""
    if operation.name in NEVER:
        return False
    inner = operation.argument("sandbox_id")
    return operation.scope == "sandbox_required" or (
        operation.scope == "system" and inner is not None and inner.required
    )


def choose(listed: Object, places: Sequence[str], name: str) -> str:
    """Return the id of the sandbox of a call that names none.

    Args:
        listed: the answer of list_sandboxes.
        places: directories in which the client works, resolved.
        name: the operation, for the error.
    Raises:
        OperationError: invalid_request, reason `sandbox_ambiguous` with the sandboxes, or `no_sandbox`.
    """
    found = [row for row in rows(listed.get("sandboxes")) if row.get("state") not in GONE]
    if not found:
        hint = "create_sandbox(image, workspace_root) makes one; list_sandboxes shows those that failed"
        raise OperationError(
            INVALID_REQUEST,
            f"{name} needs a sandbox, and there is none that runs",
            {"argument": "sandbox_id", "hint": hint},
            reason="no_sandbox",
        )
    here = [row for row in found if _holds(row, places)]
    for chosen in (here, found):
        if len(chosen) == 1:
            return str(chosen[0].get("id"))
    shown = [
        {key: row.get(key) for key in ("id", "state", "workspace_root")} for row in (here or found)[:SHOWN]
    ]
    details: dict[str, Any] = {
        "argument": "sandbox_id",
        "sandboxes": shown,
        "count": len(here or found),
        "hint": "pass the id of the one that is meant as sandbox_id",
    }
    raise OperationError(
        INVALID_REQUEST,
        f"sandbox_id is required for {name}: {len(here or found)} sandboxes may be meant",
        details,
        reason="sandbox_ambiguous",
    )


class LastChosen:
    """The sandbox that each client's calls went to last: a text names it only when it is another one."""

    def __init__(self) -> None:
        self._last = dict[str | None, str]()

    def changes(self, client: str | None, sandbox_id: str) -> bool:
        """Note that calls of the client of this name go to a sandbox; return True when it is another one."""
        if len(self._last) >= CLIENTS and client not in self._last:
            self._last.clear()
        before, self._last[client] = self._last.get(client), sandbox_id
        return before != sandbox_id


def _holds(row: Object, places: Sequence[str]) -> bool:
    root = row.get("workspace_root")
    return isinstance(root, str) and any(inside(place, [os.path.realpath(root)]) for place in places)
