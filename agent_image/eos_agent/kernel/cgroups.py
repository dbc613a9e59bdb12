"""Control groups of one agent: a folder of its own below the cgroup that it was started in, and in that one leaf for each session.

    <cgroup of the agent>/<sandbox>-<hash>.<start>/    limits of all sessions together ("workload")
                                               s7/     one session: its pid 1 and all that descends from it

Version 2 is used for freezing and killing wherever it is, and for limits where it has the controllers; version 1 has those elsewhere. As root
the hierarchies are mounted for ourselves, detached: an engine's own mounts of them are read-only, and nobody sees ours. An ordinary user
has what was delegated to it. cgroups(7); the kernel's cgroup-v2.rst, cgroup-v1/{memory,pids}.rst, sched-bwc.rst; ADR 0023.
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
APPLIED, UNPROFILED, UNSUPPORTED, NOT_CONFIGURED = "applied", "available_unprofiled", "unsupported", "not_configured"
OWN_PIDS = 8
"""What a session may have beyond its limit of processes: its pid 1 and the helpers of file operations."""
REAL_TIME = (os.SCHED_FIFO, os.SCHED_RR, 6)  # 6: SCHED_DEADLINE; with SCHED_RESET_ON_FORK it is another number, and no child has it
CONTROL_LEAF = "eos-control"
ZYGOTE_LEAF = "zygote"
PERIOD_US = 100_000


class Limits(NamedTuple):
    """None: no limit. `pids_max` counts threads too."""

    nano_cpus: int | None = None
    memory_high_bytes: int | None = None
    memory_max_bytes: int | None = None
    pids_max: int | None = None

    @staticmethod
    def of(value: Mapping[str, Any]) -> Limits:
        return Limits(*(value.get(name) for name in Limits._fields))


class Wanted(NamedTuple):
    """What the settings ask for: limits of all sessions together and of each one."""

    workload: Limits
    session: Limits


class CgroupPart(NamedTuple):
    """The agent's folder in one hierarchy: "" is version 2, else the controllers of a hierarchy of version 1, as /proc/PID/cgroup has them."""

    hierarchy: str
    path: str
    parent_fd: int
    fd: int
    controllers: tuple[str, ...]


class Groups:
    """The agent's folders, made by `open_groups`. `state` and `reason` are the words of contract 7.7; `applied` is what each session is held to."""

    def __init__(self, parts: list[CgroupPart], wanted: Wanted | None, state: str, reason: str | None) -> None:
        self.parts = parts
        self.wanted = wanted
        self.state, self.reason = state, reason
        self.applied = Limits()
        self._numbers = 0

    @property
    def unified(self) -> CgroupPart | None:
        return next((part for part in self.parts if not part.hierarchy), None)

    def told(self) -> dict[str, Any]:
        """The `limits` of a session's answers."""
        return {"state": self.state, **self.applied._asdict(), "reason": self.reason}

    # Leaves: made and removed by the zygote

    def inherit(self, fds: list[int]) -> None:
        """In a child that keeps these descriptors of `fds()` only."""
        self.parts = [part._replace(fd=fd, parent_fd=-1) for part, fd in zip(self.parts, fds, strict=True)]

    def fds(self) -> list[int]:
        return [part.fd for part in self.parts]

    def make(self) -> str:
        """A leaf with the limits of a session; its name, "" where there are no cgroups.

        Raises:
            OSError: the kernel refused; nothing is left of it.
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
        """Put the calling process, and what it will start, into a leaf."""
        if leaf:
            for part in self.parts:
                write(part.fd, f"{leaf}/cgroup.procs", "0")

    def join_workload(self) -> None:
        """Put the calling process, the zygote, among what is held to the limit of all sessions together, by memory alone: what it copies at each
        fork, and the kernel's own memory of a new session, is then taken from the sessions' part and not from the agent's. In version 2, where it
        would have to share their processor time and their number of processes too, it stays where it is."""
        for part in self.parts:
            if part.hierarchy == "memory" and part.controllers:
                with contextlib.suppress(OSError):
                    os.mkdir(ZYGOTE_LEAF, 0o755, dir_fd=part.fd)
                    write(part.fd, f"{ZYGOTE_LEAF}/cgroup.procs", "0")

    def remove(self, leaf: str) -> bool:
        """Whether nothing is left of it; a process that is on its way out makes it wait."""
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

    # The folder itself: the agent's business

    def record(self, path: str) -> None:
        """Write down where the folders are, for whoever comes after an agent that was killed."""
        where = [{"hierarchy": part.hierarchy, "path": part.path} for part in self.parts]
        fsync.write_file(path, json.dumps({"format": 1, "folders": where}).encode() + b"\n", mode=0o600)

    def close(self) -> None:
        """Kill what is left in the leaves and remove all of it."""
        for part in self.parts:
            if part.parent_fd >= 0:
                with contextlib.suppress(OSError):
                    remove_tree(part.parent_fd, os.path.basename(part.path))
                os.close(part.parent_fd)
            os.close(part.fd)
        self.parts = []


NONE = Groups([], None, UNSUPPORTED, "not enforced: this process was started without cgroups")


def open_groups(sandbox_id: str, store: str, wanted: Wanted | None, *, why_none: str | None = None, whole: bool = False) -> Groups:
    """Make the agent's folders. Never fails: what cannot be had is missing from `applied` and told in `reason`.

    Args:
        store: the layer stack's path; with the id it makes a name that no other agent's folder on this machine has.
        wanted: None when nothing limits sessions, because of `why_none` where that is a decision.
        whole: the cgroup that we are in is the container's own, and all in it is ours to move (version 2 wants no process beside folders).
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
            missing.setdefault(controller, "no such controller is available to this process")
    groups = Groups(parts, wanted, UNSUPPORTED, None)
    _apply(groups, wanted, missing)
    if whole:
        _keep_for_the_agent(groups, wanted)
    return groups


def _keep_for_the_agent(groups: Groups, wanted: Wanted) -> None:
    """In version 2: what the sessions may not have of the container's memory is not taken back from who is beside them."""
    part, most = groups.unified, wanted.workload.memory_max_bytes
    if part is not None and "memory" in part.controllers and most is not None:
        with contextlib.suppress(OSError, ValueError):  # a container without a limit has nothing to keep
            write(part.parent_fd, f"{CONTROL_LEAF}/memory.min", str(max(0, int(read(part.parent_fd, "memory.max")) - most)))


def _apply(groups: Groups, wanted: Wanted, missing: dict[str, str]) -> None:
    """Set the limits of all sessions, try those of one, and find out what holds."""
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
        groups.reason = "not enforced: " + "; ".join(f"{controller}: {why}" for controller, why in missing.items())


def _leave_out_what_real_time_may_not_join(groups: Groups, missing: dict[str, str]) -> None:
    """A kernel with CONFIG_RT_GROUP_SCHED lets a process of real-time priority into no cgroup whose processor time has no real-time share,
    as a new one has none: EINVAL. Our sessions would inherit our priority. Only then it is tried, since joining may wait for the kernel."""
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
    """The errno of a child that joins a leaf, or 0."""
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


# Where we are, and where our folder can be


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


def _places(root: int, own: str, controllers: tuple[str, ...], whole: bool) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Cgroups of version 2 whose folders get controllers: our own when nothing but us is in it, else the nearest one above, else our own if
    it was delegated to an ordinary user, who may arrange what is in it. Whoever asks for the next one could not write to the last."""
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
    """Let the folders of a cgroup have these controllers, as far as that can be."""
    if os.access("cgroup.type", os.F_OK, dir_fd=here):  # all but the root of all
        _make_room(here)
    for controller in offered:
        with contextlib.suppress(OSError):
            write(here, "cgroup.subtree_control", f"+{controller}")


def _make_room(fd: int) -> None:
    """Move what is in a cgroup into a leaf of it: only then its folders may have controllers."""
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
    """Kill and remove what earlier agents of this store left; how many folders that were. Holds the store, so that none of them lives."""
    base = folder_name(sandbox_id, store)
    own = {(part.hierarchy, part.path) for part in but.parts} if but is not None else set[tuple[str, str]]()
    found: set[tuple[str, str]] = set()
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError), open(record, encoding="utf-8") as file:
        found = {(str(one["hierarchy"]), str(one["path"])) for one in json.load(file)["folders"]}
    for part in but.parts if but is not None else ():
        with contextlib.suppress(OSError):
            found |= {(part.hierarchy, os.path.join(os.path.dirname(part.path), name)) for name in os.listdir(part.parent_fd)}
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
