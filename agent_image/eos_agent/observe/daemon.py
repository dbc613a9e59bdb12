"""The operation `daemon`: the agent's own process, from /proc and from its own tables. Contract 7.8."""

from __future__ import annotations

import asyncio
import os
import time
from typing import TYPE_CHECKING, Any

from eos_agent.kernel import procfs

if TYPE_CHECKING:
    from eos_agent.observe.agent import Agent

_ROLLUP = {
    "proportional_set_size_bytes": ("Pss",),
    "unique_set_size_bytes": ("Private_Clean", "Private_Dirty"),
    "private_dirty_bytes": ("Private_Dirty",),
    "anonymous_huge_pages_bytes": ("AnonHugePages",),
}
_STATUS = {
    "virtual_memory_bytes": "VmSize",
    "resident_memory_bytes": "VmRSS",
    "peak_resident_memory_bytes": "VmHWM",
    "anonymous_memory_bytes": "RssAnon",
    "file_memory_bytes": "RssFile",
    "shared_memory_bytes": "RssShmem",
    "data_memory_bytes": "VmData",
    "swap_bytes": "VmSwap",
}
_IO = {
    "io_read_bytes": "read_bytes",
    "io_write_bytes": "write_bytes",
    "read_syscalls": "syscr",
    "write_syscalls": "syscw",
}
_SWITCHES = {
    "voluntary_context_switches": "voluntary_ctxt_switches",
    "involuntary_context_switches": "nonvoluntary_ctxt_switches",
}


async def daemon(agent: Agent) -> dict[str, Any]:
    """Answer the operation. A figure that cannot be read is null, and named in `warnings`."""
    inside = known(agent)
    return {"view": "daemon", "scope": "sandbox", "daemon": await agent.pool.run(lambda: measure(inside))}


def known(agent: Agent) -> dict[str, Any]:
    """Figures from the agent's tables; on the event loop, which owns these tables."""
    settings, sessions, telemetry = agent.settings, agent.sessions, agent.telemetry
    live = list(sessions.live.values())
    threads = settings.get("daemon.server.max_blocking_threads", 8)
    return {
        "runtime_config": {
            "worker_threads": 1,
            "max_blocking_threads": threads,
            "blocking_thread_keep_alive_s": None,
            "max_concurrent_connections": settings.get("daemon.server.max_concurrent_connections", 64),
            "max_active_commands": settings.get("runtime.command.max_active", 32),
            "max_blocking_queue_depth": None,
            "max_command_queue_depth": 0,
            "infrastructure_thread_allowance": None,
        },
        "runtime_usage": {
            "active_async_tasks": len(asyncio.all_tasks()),
            "active_blocking_tasks": agent.pool.active,
            "blocking_queue_depth": agent.pool.waiting,
            "blocking_admission_in_use": agent.pool.active + agent.pool.waiting,
            "connection_admission_in_use": agent.connections.in_use,
            "active_commands": agent.commands.active,
            "command_queue_depth": 0,
        },
        "ownership": {
            "open_workspaces": len(live),
            "live_holders": sum(not session.init.gone.done() for session in live),
            "exited_unreaped_holders": 0,
            "namespace_fd_count": 0,
            "control_fd_count": 1 + len(live),
            "namespace_control_fd_count": len(live),
            "active_scratch_directories": None,
            "persisted_workspace_handles": 0,
            "active_layer_leases": sum(
                lease.kind not in ("draft", "pin", "reader") for lease in sessions.store.leases.all()
            ),
        },
        "lifecycle": {
            **sessions.lifecycle.to_json(),
            "dropped_event_total": telemetry.lost["dropped_storage"] + telemetry.lost["dropped_oversized"],
            "retained_event_count": telemetry.kept,
        },
        "allocator": {
            "supported": False,
            **dict.fromkeys(("allocated_bytes", "active_bytes", "mapped_bytes", "resident_bytes")),
        },
        "diagnostics": agent.diagnostics.to_json(),
        "transcripts": settings.transcripts,
    }


def own_figures() -> dict[str, int]:
    """Figures for the diagnostics; blocking. `unreaped` is 0: the zygote reaps each init at once."""
    seen = procfs.look(os.getpid())
    status = procfs.fields(procfs.read("/proc/self/status"))
    return {
        "cpu_us": seen.cpu_us if seen else 0,
        "memory_bytes": procfs.kilobytes(status.get("RssAnon")) or 0,
        "unreaped": 0,
    }


def measure(inside: dict[str, Any]) -> dict[str, Any]:
    """The `daemon` object of the answer; blocking."""
    inside = dict(inside)
    transcripts = inside.pop("transcripts")
    warnings: list[str] = []

    def noted(name: str, value: Any) -> Any:
        if value is None:
            warnings.append(f"{name} cannot be read")
        return value

    seen = procfs.look(os.getpid())
    status = procfs.fields(procfs.read("/proc/self/status"))
    rollup = procfs.fields(procfs.read("/proc/self/smaps_rollup"))
    io = procfs.fields(procfs.read("/proc/self/io"))
    memberships = procfs.cgroups("self")
    found: dict[str, Any] = {
        "available": seen is not None,
        "error": None if seen is not None else "/proc/self/stat cannot be read",
        "sampled_at_unix_ms": int(time.time() * 1000),
        "pid": os.getpid(),
        "name": seen.name if seen else None,
        "state": seen.state if seen else None,
    }
    found |= {name: noted(name, procfs.kilobytes(status.get(key))) for name, key in _STATUS.items()}
    for name, keys in _ROLLUP.items():
        parts = [procfs.kilobytes(rollup.get(key)) for key in keys]
        found[name] = noted(name, None if None in parts else sum(part or 0 for part in parts))
    found |= {
        "cpu_time_us": seen.cpu_us if seen else None,
        "start_time_ticks": seen.started_ticks if seen else None,
    }
    found["thread_count"] = seen.threads if seen else None
    found["file_descriptor_count"] = noted("file_descriptor_count", _descriptors())
    found |= {name: noted(name, procfs.number(io.get(key))) for name, key in _IO.items()}
    found |= {name: noted(name, procfs.number(status.get(key))) for name, key in _SWITCHES.items()}
    found["cgroup_memberships"] = memberships or []
    found["cgroup_path"] = noted("cgroup_path", procfs.cgroup_path(memberships))
    inside["ownership"] = {**inside["ownership"], "active_scratch_directories": _count(transcripts)}
    return {**found, "warnings": warnings[:16], **inside}


def _count(path: str) -> int | None:
    found = procfs.entries(path)
    return None if found is None else len(found)


def _descriptors() -> int | None:
    found = _count("/proc/self/fd")
    return None if found is None else found - 1  # without the descriptor that lists the directory
