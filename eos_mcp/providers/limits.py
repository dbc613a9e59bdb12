"""The limits of a sandbox's sessions, in the form that its agent reads: for all together ("workload") and for
each ("session").

One session may use the workload's part of the profile. The limit of all together is higher, so that a session
at its limit leaves something to the others, and lower than that of the sandbox, so that the agent never waits
for resources that its sessions hold. `memory.high` is not set: a process above it is put to sleep and neither
ends nor continues (ADR 0031).
"""

from __future__ import annotations

import os
from typing import Any

from eos_mcp.config.model import ResourceProfile

RUNNER_PIDS = 256
"""Number added to the profile's limit of processes for the container: the init of each session counts, and a
second session needs room.
"""
LOCAL_SESSION_PIDS = 4096
AGENT_CPU = 20
"""N: the agent keeps 1/N of a container's processor time, since an exhausted quota stops every process in the
container.
"""


def none(why: str) -> dict[str, Any]:
    """Limits under which sessions share the sandbox's resources."""
    return {"none": why}


def of_profile(profile: ResourceProfile, nano_cpus: int) -> dict[str, Any]:
    """Return the limits of a container with `profile`; `nano_cpus`: its share of the machine."""
    if not profile.separate_workload_cgroup:
        return none("separate_workload_cgroup is false: sessions share the cgroup of their sandbox")
    reserve = profile.control_plane_pids_reserve
    return {
        "workload": {
            "nano_cpus": nano_cpus - nano_cpus // AGENT_CPU,
            "memory_max_bytes": (profile.memory_high_bytes + profile.memory_max_bytes) // 2,
            "pids_max": profile.pids_max + RUNNER_PIDS - reserve,
        },
        "session": {"memory_max_bytes": profile.memory_high_bytes, "pids_max": profile.pids_max - reserve},
    }


def of_machine() -> dict[str, Any]:
    """Return the limits of a local sandbox without a profile: most of the machine for a session, with a
    reserve for the host.
    """
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return {
        "workload": {"memory_max_bytes": memory * 7 // 8},
        "session": {"memory_max_bytes": memory * 3 // 4, "pids_max": LOCAL_SESSION_PIDS},
    }
