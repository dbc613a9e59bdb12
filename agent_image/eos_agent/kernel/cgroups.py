"""Control groups of one agent: a cgroup below the one in which the agent was started, and in it a cgroup for
each session.

    <cgroup of the agent>/<sandbox>-<hash>.<start>/    limits for all sessions together ("workload")
                                               s7/     one session: its init and all its descendants

Version 2, if mounted, freezes and kills, and sets the limits for which it has controllers; version 1 sets the
others. Root uses detached mounts of its own, since an engine mounts the hierarchies read-only. An ordinary
user has the cgroups that were delegated to this user. cgroups(7); the kernel's cgroup-v2.rst,
cgroup-v1/{memory,pids}.rst, sched-bwc.rst; ADR 0023.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import secrets
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from eos_agent.kernel.cgroup_fs import descend, memberships, name_of, read, remove_tree, root_of, write
from layerstack.kernel import fsync

CONTROLLERS = ("memory", "pids", "cpu")
APPLIED, UNPROFILED, UNSUPPORTED, NOT_CONFIGURED = (
    "applied",
    "available_unprofiled",
    "unsupported",
    "not_configured",
)
OWN_PIDS = 8
"""Processes allowed in addition to a session's limit: its init and the helpers of file operations."""
# 6: SCHED_DEADLINE. With SCHED_RESET_ON_FORK the number differs, and no child inherits the class
REAL_TIME = (os.SCHED_FIFO, os.SCHED_RR, 6)
CONTROL_LEAF = "eos-control"
ZYGOTE_LEAF = "zygote"
PERIOD_US = 100_000


class Limits(NamedTuple):
    """Limits of a cgroup; None: no limit. `pids_max` counts threads too."""

    nano_cpus: int | None = None
    memory_high_bytes: int | None = None
    memory_max_bytes: int | None = None
    pids_max: int | None = None

    @staticmethod
    def of(value: Mapping[str, Any]) -> Limits:
        return Limits(*(value.get(name) for name in Limits._fields))


class Wanted(NamedTuple):
    """Limits from the settings: for all sessions together and for each one."""

    workload: Limits
    session: Limits


class CgroupPart(NamedTuple):
    """The agent's cgroup in one hierarchy: "" for version 2, else the controllers as in /proc/PID/cgroup."""

    hierarchy: str
    path: str
    parent_fd: int
    fd: int
    controllers: tuple[str, ...]


class Groups:
    """The agent's cgroups, made by `open_groups`.

    `state` and `reason` as in contract 7.7; `applied` are the limits enforced for each session.
    """

    def __init__(
        self, parts: list[CgroupPart], wanted: Wanted | None, state: str, reason: str | None
    ) -> None:
        self.parts = parts
        self.wanted = wanted
        self.state, self.reason = state, reason
        self.applied = Limits()
        self._numbers = 0

    @property
    def unified(self) -> CgroupPart | None:
        return next((part for part in self.parts if not part.hierarchy), None)

    def to_json(self) -> dict[str, Any]:
        """The `limits` object in answers about a session."""
        return {"state": self.state, **self.applied._asdict(), "reason": self.reason}

    # Cgroups of sessions: made and removed by the zygote

    def inherit(self, fds: list[int]) -> None:
        """Set new numbers for the descriptors, in a child that has closed all but `fds()`."""
        self.parts = [part._replace(fd=fd, parent_fd=-1) for part, fd in zip(self.parts, fds, strict=True)]

    def fds(self) -> list[int]:
        return [part.fd for part in self.parts]

    def make(self) -> str:
        """Make the cgroup of a session, with its limits; return its name, "" without cgroups.

        Raises:
            OSError: the kernel refused; the cgroup was removed again.
        """
        if not self.parts:
            return ""
        self._numbers += 1
        leaf = f"s{self._numbers}"
        try:
            for part in self.parts:
                os.mkdir(leaf, 0o755, dir_fd=part.fd)
                for controller in part.controllers:
                    self._limit(part, controller, leaf)
        except BaseException:
            self.remove(leaf)
            raise
        return leaf

    def join(self, leaf: str) -> None:
        """Move the calling process, and its later children, into a session's cgroup."""
        if leaf:
            for part in self.parts:
                write(part.fd, f"{leaf}/cgroup.procs", "0")

    def join_workload(self) -> None:
        """Move the calling process, the zygote, under the memory limit of all sessions (version 1 only).

        Pages copied at each fork and kernel memory of a new session then count for the sessions, not for the
        agent. In version 2 the zygote would share their limits of CPU time and processes too, so it is not
        moved.
        """
        for part in self.parts:
            if part.hierarchy == "memory" and part.controllers:
                with contextlib.suppress(OSError):
                    os.mkdir(ZYGOTE_LEAF, 0o755, dir_fd=part.fd)
                    write(part.fd, f"{ZYGOTE_LEAF}/cgroup.procs", "0")

    def remove(self, leaf: str) -> bool:
        """Remove a session's cgroup; False while a process in it is still exiting."""
        gone = True
        for part in self.parts if leaf else ():
            try:
                os.rmdir(leaf, dir_fd=part.fd)
            except FileNotFoundError:
                pass
            except OSError as error:
                if error.errno != errno.EBUSY:
                    raise
                gone = False
        return gone

    def _limit(self, part: CgroupPart, controller: str, leaf: str) -> None:
        if self.wanted is not None:
            limits = self.wanted.session
            pids = None if limits.pids_max is None else limits.pids_max + OWN_PIDS
            _limit(part, controller, leaf, limits._replace(pids_max=pids))

    # The agent's own cgroup: used by the agent

    def record(self, path: str) -> None:
        """Record the paths of the cgroups, for `reap` after the agent was killed."""
        where = [{"hierarchy": part.hierarchy, "path": part.path} for part in self.parts]
        fsync.write_file(path, json.dumps({"format": 1, "folders": where}).encode() + b"\n", mode=0o600)

    def close(self) -> None:
        """Kill the processes left in the cgroups of sessions and remove all these cgroups."""
        for part in self.parts:
            if part.parent_fd >= 0:
                with contextlib.suppress(OSError):
                    remove_tree(part.parent_fd, os.path.basename(part.path))
                os.close(part.parent_fd)
            os.close(part.fd)
        self.parts = []


NONE = Groups([], None, UNSUPPORTED, "not enforced: this process was started without cgroups")


def open_groups(
    sandbox_id: str, store: str, wanted: Wanted | None, *, why_none: str | None = None, whole: bool = False
) -> Groups:
    """Make the agent's cgroups. Never fails: a limit that is not available is missing in `applied` and named
    in `reason`.

    Args:
        store: the layer stack's path; with the id it makes the name unique on this machine.
        wanted: the limits; None sets none, and `why_none` has the reason if there is one.
        whole: our cgroup is the container's own, so all its processes may be moved (version 2 allows no
            processes in a cgroup that has child cgroups with controllers).
    """
    name = f"{folder_name(sandbox_id, store)}.{secrets.token_hex(4)}"
    missing: dict[str, str] = {}
    parts: list[CgroupPart] = []
    ours = memberships()
    wants = CONTROLLERS if wanted is not None else ()
    for hierarchy, own in ours.items():
        controllers = tuple(c for c in wants if c in hierarchy.split(","))
        if hierarchy and not controllers:
            continue
        try:
            parts.append(_open(hierarchy, own, name, controllers or wants, whole))
        except OSError as error:
            elsewhere = {name for known in ours for name in known.split(",")}
            refused = controllers or [c for c in wants if c not in elsewhere]
            missing.update(dict.fromkeys(refused, f"{error.strerror} ({name_of(hierarchy)})"))
    if wanted is None:
        state = (UNPROFILED if why_none is None else NOT_CONFIGURED) if parts else UNSUPPORTED
        reason = why_none or "no limits are configured for this sandbox"
        return Groups(parts, None, state, reason)
    for controller in wants:
        if not any(controller in part.controllers for part in parts):
            missing.setdefault(controller, "the controller is not available to this process")
    groups = Groups(parts, wanted, UNSUPPORTED, None)
    _apply(groups, wanted, missing)
    if whole:
        _keep_for_the_agent(groups, wanted)
    return groups


def _keep_for_the_agent(groups: Groups, wanted: Wanted) -> None:
    """Protect from reclaim, in version 2, the memory of the container that sessions may not use."""
    part, most = groups.unified, wanted.workload.memory_max_bytes
    if part is not None and "memory" in part.controllers and most is not None:
        with contextlib.suppress(OSError, ValueError):  # a container without a limit has no such memory
            write(
                part.parent_fd,
                f"{CONTROL_LEAF}/memory.min",
                str(max(0, int(read(part.parent_fd, "memory.max")) - most)),
            )


def _apply(groups: Groups, wanted: Wanted, missing: dict[str, str]) -> None:
    """Set the limits of all sessions, try those of a single session, and record which of them the kernel
    accepted."""
    _leave_out_what_real_time_may_not_join(groups, missing)
    for number, part in enumerate(groups.parts):
        good: list[str] = []
        for controller in part.controllers:
            try:
                _limit(part, controller, ".", wanted.workload)
                os.mkdir("try", dir_fd=part.fd)
                try:
                    groups._limit(part, controller, "try")  # pyright: ignore[reportPrivateUsage]
                finally:
                    os.rmdir("try", dir_fd=part.fd)
                good.append(controller)
            except OSError as error:
                missing[controller] = f"{error.strerror} ({name_of(part.hierarchy)})"
        groups.parts[number] = part._replace(controllers=tuple(good))
    held = {controller: part for part in groups.parts for controller in part.controllers}
    session = wanted.session
    groups.applied = Limits(
        session.nano_cpus or wanted.workload.nano_cpus if "cpu" in held else None,
        session.memory_high_bytes if "memory" in held and not held["memory"].hierarchy else None,
        session.memory_max_bytes if "memory" in held else None,
        session.pids_max if "pids" in held else None,
    )
    groups.state = APPLIED if held else UNSUPPORTED
    if missing:
        groups.reason = "not enforced: " + "; ".join(
            f"{controller}: {why}" for controller, why in missing.items()
        )


def _leave_out_what_real_time_may_not_join(groups: Groups, missing: dict[str, str]) -> None:
    """Leave controllers out that a process of real-time priority cannot join.

    With CONFIG_RT_GROUP_SCHED such a process gets EINVAL when it joins a cgroup without a real-time share. A
    new cgroup has no share, and sessions would inherit our priority. A join is tried only if we have such a
    priority, since it may take long.
    """
    if os.sched_getscheduler(0) not in REAL_TIME:
        return
    kept: list[CgroupPart] = []
    for part in groups.parts:
        refused = _refuses(part)
        if refused:
            why = f"{os.strerror(refused)} ({name_of(part.hierarchy)}) for a process of real-time priority"
            missing.update(dict.fromkeys(part.controllers, why))
            _drop(part)
        else:
            kept.append(part)
    groups.parts = kept


def _refuses(part: CgroupPart) -> int:
    """Let a child process join a cgroup of a session; return the errno of the attempt, or 0."""
    os.mkdir("try", dir_fd=part.fd)
    try:
        pid = os.fork()
        if pid == 0:
            code = errno.EINVAL
            try:
                write(part.fd, "try/cgroup.procs", "0")
                code = 0
            except OSError as error:
                code = error.errno or code
            finally:
                os._exit(code)
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    finally:
        os.rmdir("try", dir_fd=part.fd)


def _drop(part: CgroupPart) -> None:
    os.close(part.fd)
    os.rmdir(os.path.basename(part.path), dir_fd=part.parent_fd)
    os.close(part.parent_fd)


def _limit(part: CgroupPart, controller: str, leaf: str, limits: Limits) -> None:
    if controller == "pids" and limits.pids_max is not None:
        write(part.fd, f"{leaf}/pids.max", str(limits.pids_max))
    elif controller == "memory" and limits.memory_max_bytes is not None:
        if part.hierarchy:
            write(part.fd, f"{leaf}/memory.limit_in_bytes", str(limits.memory_max_bytes))
        else:
            write(part.fd, f"{leaf}/memory.max", str(limits.memory_max_bytes))
            if limits.memory_high_bytes is not None:
                write(part.fd, f"{leaf}/memory.high", str(limits.memory_high_bytes))
    elif controller == "cpu" and limits.nano_cpus is not None:
        quota = max(1000, limits.nano_cpus * PERIOD_US // 10**9)
        if part.hierarchy:
            write(part.fd, f"{leaf}/cpu.cfs_quota_us", str(quota))
        else:
            write(part.fd, f"{leaf}/cpu.max", f"{quota} {PERIOD_US}")


# Our cgroup, and its possible parents


def _open(hierarchy: str, own: str, name: str, controllers: tuple[str, ...], whole: bool) -> CgroupPart:
    root = root_of(hierarchy)
    try:
        if hierarchy:
            return _folder(hierarchy, root, own, name, controllers)
        for path, enabled in _places(root, own, controllers, whole):
            try:
                part = _folder("", root, path, name, enabled)
            except OSError as error:
                if error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS):
                    raise
                continue
            try:
                for controller in enabled:
                    write(part.fd, "cgroup.subtree_control", f"+{controller}")
            except BaseException:
                _drop(part)
                raise
            return part
        return _folder("", root, own, name, ())
    finally:
        os.close(root)


def _places(
    root: int, own: str, controllers: tuple[str, ...], whole: bool
) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield candidates of version 2 for the parent of our cgroup: the agent's present one if no other process
    is in it, else the nearest cgroup above it whose children have controllers, else the present one if it was
    delegated to this user. The caller asks for the next candidate if the last was not writable."""
    start = own
    here = descend(root, own)
    try:
        offered = [c for c in controllers if c in read(here, "cgroup.controllers").split()]
        if not offered:
            return
        if whole:
            _give(here, offered)
    finally:
        os.close(here)
    while True:
        fd = descend(root, own)
        try:
            enabled = tuple(c for c in controllers if c in read(fd, "cgroup.subtree_control").split())
        finally:
            os.close(fd)
        if enabled:
            yield own, enabled
        if own in ("/", ""):
            break
        own = os.path.dirname(own)
    here = descend(root, start)
    try:
        if not whole and os.geteuid() and os.access("cgroup.subtree_control", os.W_OK, dir_fd=here):
            _give(here, offered)
            yield start, tuple(c for c in offered if c in read(here, "cgroup.subtree_control").split())
    finally:
        os.close(here)


def _give(here: int, offered: list[str]) -> None:
    """Enable controllers for the children of a cgroup, as far as the kernel allows."""
    if os.access("cgroup.type", os.F_OK, dir_fd=here):  # absent in the root cgroup
        _make_room(here)
    for controller in offered:
        with contextlib.suppress(OSError):
            write(here, "cgroup.subtree_control", f"+{controller}")


def _make_room(fd: int) -> None:
    """Move the processes of a cgroup into a child cgroup, since only children of a cgroup without processes
    may have controllers (cgroup-v2.rst)."""
    with contextlib.suppress(FileExistsError):
        os.mkdir(CONTROL_LEAF, dir_fd=fd)
    for _ in range(16):
        pids = read(fd, "cgroup.procs").split()
        if not pids:
            return
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                write(fd, f"{CONTROL_LEAF}/cgroup.procs", pid)


def _folder(hierarchy: str, root: int, parent: str, name: str, controllers: tuple[str, ...]) -> CgroupPart:
    parent_fd = descend(root, parent)
    try:
        os.mkdir(name, 0o755, dir_fd=parent_fd)
        fd = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=parent_fd)
    except BaseException:
        os.close(parent_fd)
        raise
    return CgroupPart(hierarchy, os.path.join(parent, name), parent_fd, fd, controllers)


def folder_name(sandbox_id: str, store: str) -> str:
    return f"{sandbox_id[:80]}-{hashlib.sha256(os.fsencode(store)).hexdigest()[:8]}"


def reap(record: str, sandbox_id: str, store: str, *, but: Groups | None = None) -> int:
    """Kill and remove the cgroups of earlier agents of this store; return their number.

    The caller holds the lock of the store, so all these agents have ended.
    """
    base = folder_name(sandbox_id, store)
    own = {(part.hierarchy, part.path) for part in but.parts} if but is not None else set[tuple[str, str]]()
    found: set[tuple[str, str]] = set()
    with (
        contextlib.suppress(OSError, ValueError, KeyError, TypeError),
        open(record, encoding="utf-8") as file,
    ):
        found = {(str(one["hierarchy"]), str(one["path"])) for one in json.load(file)["folders"]}
    for part in but.parts if but is not None else ():
        with contextlib.suppress(OSError):
            found |= {
                (part.hierarchy, os.path.join(os.path.dirname(part.path), name))
                for name in os.listdir(part.parent_fd)
            }
    removed = 0
    for hierarchy, path in sorted(found - own):
        if os.path.basename(path).rpartition(".")[0] != base:
            continue
        with contextlib.suppress(OSError):
            root = root_of(hierarchy)
            try:
                removed += remove_tree(root, path.lstrip("/"))
            finally:
                os.close(root)
    return removed
