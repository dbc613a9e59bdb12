"""The agent's program, `sandbox-daemon serve --settings FILE`: one agent for one sandbox, from the fork of
its zygote to the end of its drain.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import functools
import gc
import json
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from eos_agent.base import log, settings, telemetry
from eos_agent.handles import init_handle, zygote_handle
from eos_agent.init import native
from eos_agent.kernel import cgroups, fd_limits, headroom, inotify_limit, namespaces, oom
from eos_agent.machine import neighbours
from eos_agent.zygote.specs import HostSpec

if TYPE_CHECKING:
    from layerstack.store import Store

VERSION = "0.1.0"
DRAIN_S = 4.0
STORE_BUSY_S, STORE_POLL_S = 10.0, 0.05
GONE = ".gone-"
"""Prefix of directories of an earlier agent that are deleted in the background."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line. Exit codes: 0 after a drain, 1 for a failed start or a lost zygote, 2 for
    usage.
    """
    args = list(sys.argv[1:] if argv is None else argv)
    if args == ["--version"]:
        sys.stdout.write(f"sandbox-daemon {VERSION}\n")
        return 0
    if len(args) != 3 or args[0] not in ("serve", "reap", "recover", "search") or args[1] != "--settings":
        sys.stderr.write("usage: sandbox-daemon serve|reap|recover|search --settings FILE\n")
        return 2
    if args[0] == "search":
        from eos_agent.sessions import output_search

        return output_search.main()
    try:
        found = settings.load(args[2])
        if args[0] == "recover":
            from eos_agent.sessions import recovery_child

            return recovery_child.main(found)
        return serve(found) if args[0] == "serve" else reap(found)
    except settings.SettingsError as error:
        log.log("settings_refused", message=str(error))
        return 1
    except Exception as error:
        shown = getattr(error, "message", None) or str(error)
        log.failure("start_failed", error, message=shown, **_refusal(error))
        return 1


def _refusal(error: Exception) -> dict[str, Any]:
    """The errno and path of an OSError, as fields of the log line."""
    if not isinstance(error, OSError) or error.errno is None:
        return {}
    return {
        "errno": errno.errorcode.get(error.errno, str(error.errno)),
        "path": None if error.filename is None else os.fsdecode(error.filename),
    }


def serve(found: settings.Settings) -> int:
    """Run until SIGTERM. Steps that need a single-threaded process come first."""
    ordinary = os.geteuid() != 0
    token = found.token()
    groups = open_groups(found)
    try:
        return _serve(found, token, ordinary, groups)
    finally:
        groups.close()


def _serve(found: settings.Settings, token: str, ordinary: bool, groups: cgroups.Groups) -> int:
    for path in (
        found.runtime_dir,
        found.layer_stack_root,
        found.scratch_root,
        os.path.dirname(found.socket_path),
    ):
        os.makedirs(path, mode=0o700, exist_ok=True)
    room = headroom.open_headroom(
        groups, found.get("runtime.workspace.session_memory_bytes", headroom.SESSION_BYTES)
    )
    if found.local:
        if ordinary:
            namespaces.enter_user_namespace()
        else:
            namespaces.enter_mount_namespace()
        if found.base_dir is not None:
            namespaces.bind_base(found.base_dir, os.path.join(found.layer_stack_root, "base"))
    host = HostSpec(
        found.provider,
        found.workspace_root,
        found.hidden_paths,
        found.private_dirs,
        found.rootfs,
        found.runtime_dir,
        found.get("runtime.workspace.max_terminals", 64),
        found.get("runtime.workspace.max_open_files", 65536),
        native.find() if found.get("runner.init", "auto") == "auto" else None,
    )
    news = neighbours.News() if found.local else None
    zygote_pid, zygote_socket = zygote_handle.fork_zygote(host, groups)
    fd_limits.raise_limit()
    oom.set_score(
        oom.Scores.here().agent
    )  # refused without the right to lower it; all others are higher anyway
    store = open_store(found, ordinary)
    try:
        record = cgroup_record(found)
        swept = cgroups.reap(record, found.sandbox_id, found.layer_stack_root, but=groups)
        if swept:
            log.line(f"boot reap removed {swept} cgroups of an earlier agent")
        groups.record(record)
        code = asyncio.run(_run(found, token, store, zygote_pid, zygote_socket, groups, room, news))
        groups.close()
        room.close()
        with contextlib.suppress(FileNotFoundError):
            os.unlink(record)
        return code
    finally:
        store.close()


def cgroup_record(found: settings.Settings) -> str:
    return os.path.join(found.runtime_dir, "cgroups.json")


def open_groups(found: settings.Settings) -> cgroups.Groups:
    """Make the agent's cgroups according to its settings."""
    wanted: cgroups.Wanted | None = None
    if found.limits is not None and "none" not in found.limits:
        wanted = cgroups.Wanted(
            *(cgroups.Limits.of(found.limits.get(key, {})) for key in ("workload", "session"))
        )
    why = str(found.limits["none"]) if found.limits is not None and "none" in found.limits else None
    return cgroups.open_groups(
        found.sandbox_id, found.layer_stack_root, wanted, why_none=why, whole=not found.local
    )


def reap(found: settings.Settings) -> int:
    """Remove the cgroups that a killed agent left; called when its sandbox is removed. Exit code 0, also
    without such cgroups.
    """
    cgroups.reap(cgroup_record(found), found.sandbox_id, found.layer_stack_root)
    return 0


def open_store(found: settings.Settings, ordinary: bool) -> Store:
    """Open the store, or create it at the first start. Sessions of a dead agent are only listed: `_run`
    recovers them later.
    """
    from eos_agent.sessions.recovery import SWEPT
    from layerstack.core.publish_rules import REBASE, PublishRules
    from layerstack.kernel.xattrs import TRUSTED, USER
    from layerstack.store import Store
    from layerstack.text.build_roles import INPUTS, patterns
    from layerstack.units.units import NamedUnits

    log.line("live remount kernel gate: NOT PROVEN (live remount is not part of this version)")
    reaped = _sweep_scratch(found)
    Store.create(
        found.layer_stack_root,
        workspace_root=found.workspace_root,
        base_root_hash=found.base_root_hash,
        xattr_namespace=USER if ordinary else TRUSTED,
    )
    store = _opened(found.layer_stack_root)
    store.quota.bytes = found.get("runtime.layerstack.quota_bytes", None)
    store.quota.layers = found.get("runtime.layerstack.quota_layers", None)
    units = [NamedUnits(**unit) for unit in found.get("runtime.layerstack.units", ())]
    store.rules = PublishRules(
        found.get("runtime.layerstack.merge_adjacent", "conflict") == "merge",
        tuple(units),
        found.get("runtime.layerstack.git", REBASE),
    )
    store.inputs = patterns(found.get("runtime.layerstack.inputs", INPUTS))
    log.line(
        f"boot reap removed {reaped} transcripts; no process, mount or network of an earlier agent "
        f"outlives it"
    )
    if not any(not session.quarantined for session in store.dead.all()):  # else it follows their recovery
        log.line(SWEPT.format(0))
    for session in store.dead.all():
        log.log(
            "quarantined" if session.quarantined else "recovering",
            session=session.session_id,
            tries=session.tries,
            why=session.why,
        )
    for file, what in store.damaged.items():
        log.log("set_apart", file=file, what=what)
    return store


def _opened(root: str) -> Store:
    """Open the store; wait a moment if a recovery process of the previous agent (`recovery_child`), which
    locks the store until it ends, still runs.
    """
    from layerstack.errors import StoreBusy
    from layerstack.store import Store

    deadline = time.monotonic() + STORE_BUSY_S
    while True:
        try:
            return Store.open(root, step=telemetry.on_step, recover=False)
        except StoreBusy:
            if time.monotonic() > deadline:
                raise
            time.sleep(STORE_POLL_S)


def _sweep_scratch(found: settings.Settings) -> int:
    """Move transcripts of an earlier agent to a directory that is deleted later, and write the empty
    inventory that tools look for.
    """
    from layerstack.kernel import fsync

    os.makedirs(os.path.join(found.scratch_root, ".export"), mode=0o700, exist_ok=True)
    os.makedirs(found.transcripts, mode=0o700, exist_ok=True)
    names = [name for name in os.listdir(found.transcripts) if not name.startswith(GONE)]
    gone = os.path.join(found.transcripts, GONE + os.urandom(8).hex())
    try:
        if names:
            os.mkdir(gone, 0o700)
        for name in names:
            os.rename(os.path.join(found.transcripts, name), os.path.join(gone, name))
    except OSError:  # no space for a directory: delete them now, which frees space
        for name in names:
            fsync.remove_tree(os.path.join(found.transcripts, name))
    inventory = json.dumps({"schema_version": 1, "sessions": []}).encode() + b"\n"
    fsync.write_file(os.path.join(found.scratch_root, "manager.json"), inventory)
    return len(names)


def _gone(found: settings.Settings) -> list[Callable[[], None]]:
    from layerstack.kernel import fsync

    there = [
        os.path.join(found.transcripts, name)
        for name in os.listdir(found.transcripts)
        if name.startswith(GONE)
    ]
    return [functools.partial(fsync.remove_tree, path) for path in there]


async def _run(
    found: settings.Settings,
    token: str,
    store: Store,
    zygote_pid: int,
    zygote_socket: socket.socket,
    groups: cgroups.Groups,
    room: headroom.Headroom,
    news: neighbours.News | None,
) -> int:
    from eos_agent.base.pool import Pool
    from eos_agent.handles.environment import base_environment
    from eos_agent.http.http_server import HttpServer
    from eos_agent.kernel import container_isolation
    from eos_agent.serve.handlers import Handlers
    from eos_agent.serve.server import AgentServer
    from eos_agent.sessions.commands import Commands
    from eos_agent.sessions.squash import Policy
    from eos_agent.sessions.table import Sessions
    from eos_agent.wire import proof
    from layerstack.kernel import fsync

    zygote = zygote_handle.ZygoteHandle(
        zygote_pid,
        zygote_socket,
        groups,
        news=news,
        answer_s=found.get("runtime.workspace.runner_answer_s", init_handle.ANSWER_S),
        inotify_most=found.get("runtime.workspace.max_inotify_instances", inotify_limit.INSTANCES),
    )
    await zygote.start()
    pool, exports = Pool(found.get("daemon.server.max_blocking_threads", 8)), Pool(2)
    sweeper = Pool(1)
    store.staging.later = sweeper.later
    for removal in (*store.behind, *_gone(found)):
        sweeper.later(removal)
    store.behind.clear()
    sessions = Sessions(found, store, zygote, pool, room)
    commands = Commands(found, sessions, base_environment(found))
    recorder = telemetry.Telemetry.of(found)
    store.leases.on_change = telemetry.on_lease
    handlers = Handlers(found, store, sessions, commands, pool, exports, recorder)
    policies = "runtime.layerstack.autosquash_policies."
    policy = Policy(
        found.get(policies + "squash_at_n_layers", None),
        found.get(policies + "squash_at_shared_directory_layers", None),
    )
    if policy != Policy():
        handlers.squashes.watch(policy)
    server, http = AgentServer(handlers, token), HttpServer(handlers, token)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    if not found.local and found.get("daemon.network.neighbours", "deny") == "deny":
        container_isolation.leave_neighbours(
            os.path.join(os.path.dirname(found.endpoint_path), "nameservers.json")
        )
    tcp = await server.listen()
    web = await http.listen(tcp[1])
    endpoint = {
        "format": 1,
        "pid": os.getpid(),
        "started": _started(),
        "proof": proof.FORMAT,
        "tcp": list(tcp),
        "http": list(web),
    }
    fsync.write_file(found.pid_path, f"{os.getpid()}\n".encode())
    fsync.write_file(found.endpoint_path, json.dumps(endpoint).encode() + b"\n", mode=0o600)
    gc.collect()
    gc.freeze()  # later collections skip the objects that exist now
    handlers.sampler.watch()
    sessions.recovering.start()
    log.log(
        "ready",
        sandbox=found.sandbox_id,
        pid=os.getpid(),
        version=store.head.version,
        tcp=list(tcp),
        http=list(web),
    )

    stopped = loop.create_task(stop.wait())
    waited: list[asyncio.Future[Any]] = [stopped, zygote.lost]
    await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
    zygote_lost = zygote.lost.done()
    log.log("draining", why="the zygote is gone" if zygote_lost else "signal")
    server.draining = http.draining = True
    await sessions.recovering.close()
    await sessions.drain(DRAIN_S)
    await server.close(1.0)
    sessions.captures.stop()
    http.close()
    await handlers.squashes.close()
    await handlers.sampler.close()
    await zygote.close()
    sessions.captures.close()
    pool.close()
    exports.close()
    handlers.checks.close()
    store.staging.later = None
    sweeper.close()
    recorder.close()
    for path in (found.endpoint_path, found.pid_path):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
    log.log("stopped")
    return 1 if zygote_lost else 0


def _started() -> int:
    """Start time of this process in clock ticks since boot; pid and start time together are unique."""
    with open("/proc/self/stat", "rb") as file:
        return int(file.read().rpartition(b")")[2].split()[19])


if __name__ == "__main__":
    sys.exit(main())
