"""The operation `topology`: the processes of each session, from /proc. Contract 7.7."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from eos_agent.kernel import procfs
from eos_agent.kernel.procfs import ProcessStat
from eos_agent.observe import daemon

if TYPE_CHECKING:
    from eos_agent.observe.agent import Agent
    from eos_agent.sessions.session import Session

MAX_PROCESSES, MAX_WARNINGS = 512, 16
LIMITS = ("nano_cpus", "memory_high_bytes", "memory_max_bytes", "pids_max")


class InitState(NamedTuple):
    """A session and its init at the start of the call."""

    session_id: str
    pid: int
    pid_namespace: str | None
    mount_namespace: str | None
    limits: dict[str, Any]


async def topology(agent: Agent) -> dict[str, Any]:
    """Answer the operation from /proc. A process that ends during the call is left out."""
    return {"view": "topology", "scope": "sandbox", "topology": await tree(agent)}


async def tree(agent: Agent) -> dict[str, Any]:
    """The `topology` object of the answer."""
    inits = [
        _init_state(session)
        for session in sorted(agent.sessions.live.values(), key=lambda session: session.id)
    ]
    known = daemon.known(agent)
    return await agent.pool.run(lambda: _tree(inits, known))


def _init_state(session: Session) -> InitState:
    init = session.init
    return InitState(
        session.id, init.pid, init.namespaces.get("pid"), init.namespaces.get("mnt"), init.group.limits()
    )


def _tree(inits: list[InitState], known: dict[str, Any]) -> dict[str, Any]:
    warnings: list[str] = []
    everyone = procfs.everybody()
    workspaces: list[dict[str, Any]] = []
    left = MAX_PROCESSES
    truncated = False
    for init in inits:
        members = [seen for seen in procfs.below(init.pid, everyone) if seen.state not in ("X", "x")]
        rows: list[dict[str, Any]] = []
        for seen in members[:left]:
            row = _row(seen, init)
            if row is not None:
                rows.append(row)
        truncated = truncated or len(members) > left
        left -= min(left, len(members))
        if not members and len(warnings) < MAX_WARNINGS:
            warnings.append(f"workspace {init.session_id}: its holder {init.pid} is gone")
        workspaces.append(_workspace(init, rows))
    return {
        "schema_version": 2,
        "available": True,
        "source": "proc_namespaces",
        "error": None,
        "truncated": truncated,
        "warnings": warnings,
        "workspaces": workspaces,
        "daemon": daemon.measure(known),
    }


def _workspace(init: InitState, rows: list[dict[str, Any]]) -> dict[str, Any]:
    own = procfs.cgroups(init.pid)
    state = "active" if any(row["kind"] == "process" for row in rows) else "idle" if rows else "partial"
    return {
        "workspace_id": init.session_id,
        "state": state,
        "holder_pid": init.pid,
        "cgroup_path": procfs.cgroup_path(own),
        "applied_cgroup_limits": {name: init.limits[name] for name in LIMITS}
        if init.limits["state"] == "applied"
        else None,
        "workload_cgroup_state": init.limits["state"],
        "workload_cgroup_reason": init.limits["reason"],
        "pid_namespace": init.pid_namespace,
        "mount_namespace": init.mount_namespace,
        "processes": rows,
    }


def _row(seen: ProcessStat, init: InitState) -> dict[str, Any] | None:
    """The row of one process; None if it has ended, or is not in its session's mount namespace."""
    mount = procfs.link(f"/proc/{seen.pid}/ns/mnt")
    if mount is not None and init.mount_namespace is not None and mount != init.mount_namespace:
        return None
    status = procfs.fields(procfs.read(f"/proc/{seen.pid}/status"))
    inner = (status.get("NSpid") or "").split()
    if not status or len(inner) < 2:
        return None
    return {
        "pid": seen.pid,
        "namespace_pid": int(inner[-1]),
        "parent_pid": seen.parent,
        "name": seen.name,
        "state": seen.state,
        "kind": "namespace_init" if seen.pid == init.pid else "process",
        "cgroup_memberships": procfs.cgroups(seen.pid) or [],
        "resident_memory_bytes": procfs.kilobytes(status.get("VmRSS"))
        or 0,  # the value of /proc/PID/stat is inexact: 0 for the native init
        "cpu_time_us": seen.cpu_us,
        "start_time_ticks": seen.started_ticks,
    }
