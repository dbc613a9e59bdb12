"""The operation `snapshot` of one sandbox: live sessions and commands, and figures of the store."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any

from eos_agent.sessions import quarantine

if TYPE_CHECKING:
    from eos_agent.observe.agent import Agent
    from eos_agent.sessions.session import Session

MANY_DRAFTS = 100
MUCH_IN_DRAFTS = 1 << 30


async def snapshot(agent: Agent) -> dict[str, Any]:
    """Answer the operation, contract 7.2, for one sandbox. A figure that cannot be read is named in `errors`,
    and the availability is `partial`.
    """
    errors: list[str] = []
    warnings: list[str] = []
    stack: dict[str, Any] | None = None
    try:
        stats = await agent.pool.run(agent.store.layer_stats)
        stack = {
            "layer_count": len(stats["layers"]),
            "layers_bytes": stats["total_bytes"],
            "layers_allocated_bytes": stats["total_allocated_bytes"],
            "storage_allocated_bytes": stats["storage_allocated_bytes"],
            "staging_entry_count": stats["staging_entry_count"],
            "active_leases": stats["active_lease_count"],
            "draft_count": stats["draft_count"],
            "pin_count": stats["pin_count"],
            "quota": stats["quota"],
        }
        draft_bytes = stats["storage_logical_bytes"] - stats["total_bytes"]
        if stats["draft_count"] > MANY_DRAFTS or draft_bytes > MUCH_IN_DRAFTS:
            warnings.append(
                f"{stats['draft_count']} drafts hold {draft_bytes} bytes: publish or discard them "
                f"(list_drafts, discard_draft)"
            )
        if (set_apart := quarantine.warning(agent.store)) is not None:
            warnings.append(set_apart)
    except OSError as error:
        errors.append(f"stack: {error.strerror}")
    sessions = list(agent.sessions.live.values())
    found: dict[str, Any] = {
        "sandbox_id": agent.settings.sandbox_id,
        "lifecycle_state": "ready",
        "availability": "partial" if errors else "available",
        "sampled_at_unix_ms": int(time.time() * 1000),
        "errors": errors,
        "daemon": {
            "daemon_pid": os.getpid(),
            "runtime_dir": agent.settings.runtime_dir,
            "event_store": agent.telemetry.lost,
        },
        "resources": {"latest": agent.sampler.latest, "history": []},
        "workspaces": [_workspace(session, agent.sampler.latest_of(session.id)) for session in sessions],
    }
    if stack is not None:
        found["stack"] = stack
    if warnings:
        found["warnings"] = warnings
    return found


def _workspace(session: Session, latest: dict[str, Any] | None) -> dict[str, Any]:
    manifest = session.upper.snapshot.manifest
    return {
        "workspace_id": session.id,
        "lifecycle_state": "active",
        "finalization_state": session.state,
        "network_profile": session.spec.network,
        "finalize_policy": session.policy,
        "layers": {"base_root_hash": manifest.root_hash, "layer_count": len(manifest.layers)},
        "namespace_fd_count": 0,
        "resources": {"latest": latest, "history": []},
        "active_namespace_executions": [
            {
                "namespace_execution_id": command.id,
                "operation": "exec_command",
                "lifecycle_state": "running",
                "command": command.text[:1000],
            }
            for command in session.commands.values()
        ],
    }
