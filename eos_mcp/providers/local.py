"""Sandboxes without Docker: the same agent on this machine, its sessions in namespaces, as root or as an
ordinary user.

    <state>/sandboxes/<id>/  agent.json daemon.yml token endpoint.json daemon.log  layer-stack/ workspace/
                             run/

The agent is detached: it outlives the gateway. A gateway that finds the agent dead starts it again at the
next use.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import signal
import stat
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

from agent_image import build
from eos_agent.machine import private_dirs
from eos_agent.wire import proof
from eos_agent.wire.protocol import INTERNAL_ERROR, INVALID_REQUEST, OperationError, os_error
from eos_mcp.config.load import Config
from eos_mcp.config.log import log
from eos_mcp.providers import freezer, image_name, limits, local_probe, passed_on
from eos_mcp.providers.full_disk import disk_full, refused
from eos_mcp.providers.host_processes import HostProcess, agents_of, descendants, is_agent, is_ours
from eos_mcp.providers.image_name import HOST_IMAGE, ROOTFS_PREFIX
from eos_mcp.providers.provider import (
    LOG_LINES,
    FoundSandbox,
    Made,
    Progress,
    SandboxPlan,
    log_excerpt,
    new_token,
)
from eos_mcp.record.registry import AgentEndpoint, SandboxRecord, SharedBase, quota_of
from eos_mcp.record.sample_ring import EngineSample
from layerstack.kernel import fsync
from layerstack.kernel.base_xattrs import Keeping

SOCKET_PATH_MAX = 100
START_POLL_S = 0.003


class Listens(NamedTuple):
    """The endpoint.json of an agent. `proves`: its version proves itself; `started` is absent in older
    versions.
    """

    tcp: AgentEndpoint
    http: AgentEndpoint
    proves: bool
    pid: int
    started: int | None


class LocalProvider:
    """Provider of sandboxes below `state_dir`. `private`: the gateway's files and directories, hidden in
    every session; `engines` returns the data directories of container engines, which are hidden too.
    """

    name = "local"

    def __init__(
        self,
        config: Config,
        state_dir: str,
        cache_dir: str,
        private: list[str],
        engines: Callable[[], list[str]],
    ) -> None:
        self.config = config
        self.state_dir = state_dir
        self.bundles = os.path.join(cache_dir, "bundles")
        self.private = private
        self.engines = engines
        self._children: dict[int, subprocess.Popen[bytes]] = {}
        self._starting = threading.Lock()
        self._works = False

    def folder(self, sandbox_id: str) -> str:
        return os.path.join(self.state_dir, "sandboxes", sandbox_id)

    def check_image(self, image: str) -> None:
        rootfs = image_name.check_rootfs(image) if image != HOST_IMAGE else None
        problem = self._problem()
        if problem is not None:
            raise OperationError(INTERNAL_ERROR, problem.message, problem.details, reason=problem.reason)
        if rootfs is not None:
            refused = local_probe.rootfs_problem(rootfs, self._hidden(), self._python())
            if refused is not None:
                raise OperationError(
                    INVALID_REQUEST,
                    f"image {image}: {refused.message}",
                    refused.details,
                    reason=refused.reason,
                )

    def keeping(self) -> Keeping:
        """Return the attributes that stores can have; an ordinary user mounts them in a user namespace."""
        ordinary = os.geteuid() != 0
        return Keeping(escape=ordinary, acls=not ordinary)

    def _hidden(self) -> list[str]:
        """List the gateway's files and directories and those of the configuration; the agent adds the
        built-in list.
        """
        return [*self.private, *self.engines(), *self.config.manager.local_daemon.hidden_paths]

    def images(self) -> list[str]:
        """List `host`, where sandboxes can run."""
        return [HOST_IMAGE] if self._problem() is None else []

    def _problem(self) -> local_probe.Problem | None:
        """Return the reason why sandboxes cannot run here, or None. Only None is remembered."""
        if self._works:
            return None
        private_dirs.make(self.state_dir)
        problem = local_probe.problem(self.state_dir, self._python())
        self._works = problem is None
        return problem

    def create(self, plan: SandboxPlan, progress: Progress) -> Made:
        folder = self.folder(plan.sandbox_id)
        try:
            bundle = self._bundle(progress)
            for path in (folder, f"{folder}/layer-stack/base", f"{folder}/workspace", f"{folder}/run"):
                private_dirs.make(path)
            progress(f"base {plan.base.root_hash} bound read-only")
            settings = self._settings(plan, folder)
            fsync.write_file(f"{folder}/daemon.yml", plan.yaml, mode=0o600)
            fsync.write_file(f"{folder}/token", plan.token.encode() + b"\n", mode=0o600)
            fsync.write_file(f"{folder}/agent.json", json.dumps(settings, indent=1).encode(), mode=0o600)
            endpoint = self._start(plan.sandbox_id, bundle)
        except BaseException as error:
            with contextlib.suppress(Exception):
                self._remove(plan.sandbox_id)
            if isinstance(error, OSError):
                raise os_error(error, kind=INTERNAL_ERROR) from error
            raise
        base = SharedBase(
            source=plan.base.source, target=f"{folder}/layer-stack/base", root_hash=plan.base.root_hash
        )
        return Made(endpoint.tcp, endpoint.http, base, None, self._reach(plan.sandbox_id, endpoint))

    def exited(self, record: SandboxRecord) -> str | None:
        if self._endpoint(record.id) is not None:
            return None
        return None if self._agent(record.id) is not None else "the agent has exited"

    def log_tail(self, record: SandboxRecord) -> list[str]:
        return self._log(record.id)

    def _lies_elsewhere(self, sandbox_id: str) -> str | None:
        """Return the directory in which the sandbox was made if that is not its present one: the state
        directory was copied or moved. The agent named in its files may serve the original: do not connect to
        it, and do not end it.
        """
        folder = self.folder(sandbox_id)
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            with open(os.path.join(folder, "agent.json"), encoding="utf-8") as file:
                made_at = os.path.dirname(str(json.load(file)["layer_stack_root"]))
            try:
                return None if os.path.samefile(made_at, folder) else made_at
            except FileNotFoundError:
                return made_at if os.path.isdir(folder) else None
        return None

    def _check_place(self, sandbox_id: str) -> None:
        made_at = self._lies_elsewhere(sandbox_id)
        if made_at is not None:
            folder = self.folder(sandbox_id)
            here, there = (os.path.dirname(os.path.dirname(path)) for path in (folder, made_at))
            hint = (
                f"use the state directory under its own name again: move it back to {there}, or export "
                f"from there; a copy can only be inspected and destroyed"
            )
            raise OperationError(
                INTERNAL_ERROR,
                f"sandbox {sandbox_id} was made in {made_at} and is now in {folder}: it works only in the "
                f"directory in which it was made",
                {"sandbox_id": sandbox_id, "state_dir": here, "made_in": there, "hint": hint},
                reason="state_dir_moved",
            )

    def find(self, record: SandboxRecord) -> FoundSandbox | None:
        if not os.path.exists(os.path.join(self.folder(record.id), "agent.json")):
            return None
        endpoint = self._endpoint(record.id)
        return FoundSandbox(False) if endpoint is None else self._found(record.id, endpoint)

    def revive(self, record: SandboxRecord) -> FoundSandbox | None:
        found = self.find(record)
        if found is None or found.running:
            return found
        self._check_place(record.id)
        with self._starting:
            found = self.find(record)  # another thread may have started it
            if found is None or found.running:
                return found
            try:
                self._renew_hidden(record.id)
                if self._agent(record.id) is None:  # an agent that is starting has already read its token
                    self._renew_token(record.id)
                endpoint = self._start(record.id, self._bundle(lambda _: None))
            except OSError as error:
                raise refused(error, self.folder(record.id)) from error
        return self._found(record.id, endpoint)

    def _found(self, sandbox_id: str, endpoint: Listens) -> FoundSandbox:
        return FoundSandbox(
            True, endpoint.tcp, endpoint.http, self._token(sandbox_id), self._reach(sandbox_id, endpoint)
        )

    def _reach(self, sandbox_id: str, endpoint: Listens) -> dict[str, Any]:
        """Return the entry for connecting to the agent: its unix socket, at which only processes of this user
        can listen, unlike at its port.
        """
        path = self._socket_path(self.folder(sandbox_id))
        with contextlib.suppress(OSError, ValueError, KeyError):
            with open(os.path.join(self.folder(sandbox_id), "agent.json"), encoding="utf-8") as file:
                path = str(json.load(file)["socket_path"])
        return {"socket_path": path, "proves": endpoint.proves}

    def _token(self, sandbox_id: str) -> str | None:
        try:
            with open(os.path.join(self.folder(sandbox_id), "token"), encoding="ascii") as file:
                return file.read().strip() or None
        except (OSError, ValueError):
            return None

    def _renew_token(self, sandbox_id: str) -> None:
        """Make a new token for a new start of the agent, which makes the old token invalid. On a full disk
        the old token stays.
        """
        try:
            fsync.write_file(f"{self.folder(sandbox_id)}/token", new_token().encode() + b"\n", mode=0o600)
        except OSError as error:
            log("token_kept", sandbox_id=sandbox_id, error=str(error))

    def replace(self, record: SandboxRecord) -> None:
        with self._starting:
            try:
                self._stop(record.id)
            except OSError as error:
                raise refused(error, self.folder(record.id)) from error

    def is_frozen(self, record: SandboxRecord) -> bool:
        agent = self._agent(record.id)
        return agent is not None and (agent.is_stopped() or freezer.frozen(agent.pid) is not None)

    def _renew_hidden(self, sandbox_id: str) -> None:
        """Write the present hidden paths: the configuration may have changed since the sandbox was made."""
        path = f"{self.folder(sandbox_id)}/agent.json"
        with open(path, encoding="utf-8") as file:
            settings: dict[str, Any] = json.load(file)
        if settings["private_dirs"] != self._hidden():
            fsync.write_file(
                path, json.dumps({**settings, "private_dirs": self._hidden()}, indent=1).encode(), mode=0o600
            )

    def usage(self, record: SandboxRecord) -> EngineSample | None:
        """Return None: only the agent knows the processes of its sandbox."""
        return None

    def destroy(self, record: SandboxRecord) -> list[str]:
        return self._remove(record.id)

    def adopt(self) -> list[SandboxRecord]:
        """Find sandboxes that have a directory and no record, as after a loss of the registry."""
        records: list[SandboxRecord] = []
        with contextlib.suppress(FileNotFoundError):
            for name in sorted(os.listdir(os.path.join(self.state_dir, "sandboxes"))):
                with contextlib.suppress(OSError, ValueError, KeyError):
                    records.append(self._record_of(name))
        return records

    def _record_of(self, sandbox_id: str) -> SandboxRecord:
        folder = self.folder(sandbox_id)
        with open(f"{folder}/agent.json", encoding="utf-8") as file:
            settings: dict[str, Any] = json.load(file)
        with open(f"{folder}/token", encoding="ascii") as file:
            token = file.read().strip()
        endpoint = self._endpoint(sandbox_id)
        source = os.path.join(str(settings["base_dir"]), "B000001-base")
        return SandboxRecord(
            id=sandbox_id,
            workspace_root=str(settings["workspace_root"]),
            state="ready",
            daemon=endpoint.tcp if endpoint else None,
            daemon_http=endpoint.http if endpoint else None,
            shared_base=SharedBase(
                source=source,
                target=f"{settings['layer_stack_root']}/base",
                root_hash=str(settings["base_root_hash"]),
            ),
            quota=quota_of(settings["config"]),
            provider="local",
            image=HOST_IMAGE if settings.get("rootfs") is None else f"{ROOTFS_PREFIX}{settings['rootfs']}",
            token=token,
            created_unix_ms=os.stat(f"{folder}/agent.json").st_mtime_ns // 1_000_000,
            provider_data=self._reach(sandbox_id, endpoint) if endpoint else {},
        )

    def _bundle(self, progress: Progress) -> build.Bundle:
        try:
            progress("installing daemon assets")
            return build.build(self.bundles)
        except build.BuildError as error:
            raise OperationError(
                INTERNAL_ERROR, f"the agent's runtime cannot be made: {error}", reason="bundle_failed"
            ) from error

    def _python(self) -> list[str]:
        """Return an interpreter for a probe: the bundle's if it was made, else this process's."""
        bundle = build.known(self.bundles)
        return [sys.executable, "-s"] if bundle is None else build.python_argv(bundle.path)

    def _settings(self, plan: SandboxPlan, folder: str) -> dict[str, Any]:
        rootfs = plan.image.removeprefix(ROOTFS_PREFIX) if plan.image != HOST_IMAGE else None
        masks: list[str] = plan.sections["runner"]["mount_mask"]["hidden_paths"]
        sections = json.loads(json.dumps(plan.sections))
        sections["daemon"]["http"]["auth"] = "token"
        profile = self.config.manager.local_profile()
        return {
            "format": 1,
            "sandbox_id": plan.sandbox_id,
            "provider": "local",
            "workspace_root": plan.workspace_root,
            "layer_stack_root": f"{folder}/layer-stack",
            "scratch_root": f"{folder}/workspace",
            "runtime_dir": f"{folder}/run",
            "base_root_hash": plan.base.root_hash,
            "base_dir": plan.base.path,
            "token_file": f"{folder}/token",
            "tcp_host": "127.0.0.1",
            "tcp_port": 0,
            "http_host": "127.0.0.1",
            "http_port": 0,
            "socket_path": self._socket_path(folder),
            "pid_path": f"{folder}/run/runtime.pid",
            "endpoint_path": f"{folder}/endpoint.json",
            "rootfs": rootfs,
            "hidden_paths": [path for path in masks if rootfs is not None or os.path.exists(path)],
            "image_env": passed_on.variables(own_root=rootfs is not None),
            "container_env": dict(self.config.manager.docker.container_env),
            "path": plan.caller_path if rootfs is None else None,
            "private_dirs": self._hidden(),
            "limits": limits.of_machine()
            if profile is None
            else limits.of_profile(profile, profile.nano_cpus),
            "git_identity": dict(plan.git_identity),
            "config": sections,
        }

    def _socket_path(self, folder: str) -> str:
        """Return a path in the sandbox's directory, or in a short private directory when that path is too
        long for a unix socket.
        """
        path = f"{folder}/run/runtime.sock"
        if len(os.fsencode(path)) <= SOCKET_PATH_MAX:
            return path
        short = os.path.join(
            "/tmp", f"eos-{os.getuid()}-{hashlib.sha256(os.fsencode(folder)).hexdigest()[:12]}"
        )
        os.makedirs(short, mode=0o700, exist_ok=True)
        owner = os.lstat(short)
        if (
            owner.st_uid != os.getuid()
            or not stat.S_ISDIR(owner.st_mode)
            or owner.st_mode & private_dirs.MAY_WRITE
        ):
            raise OSError(
                17, "exists and belongs to another user, is writable for others, or is not a directory", short
            )
        return f"{short}/runtime.sock"

    def _start(self, sandbox_id: str, bundle: build.Bundle) -> Listens:
        """Start the agent detached and wait for its endpoint.json.

        An agent that takes longer than `ready_timeout_s` is not ended: it keeps running, and the next call
        waits for it instead of starting another.

        Raises:
            OperationError: internal_error: agent_starting; disk_full; a missing power of this machine that a
                probe finds is named.
        """
        folder = self.folder(sandbox_id)
        agent, child = self._agent(sandbox_id), None
        if agent is None:
            child = self._launch(folder, bundle)
        pid = child.pid if child is not None else agent.pid if agent is not None else 0

        def ended() -> bool:
            return child.poll() is not None if child is not None else agent is None or not agent.alive()

        deadline = time.monotonic() + self.config.manager.local_daemon.ready_timeout_s
        gone = False
        while time.monotonic() < deadline:
            gone = ended()
            endpoint = self._endpoint(sandbox_id, pid=pid)
            if endpoint is not None and not gone:
                return endpoint
            if gone:
                break
            time.sleep(START_POLL_S)
        said = self._log(sandbox_id)
        if not gone:
            raise self._late(sandbox_id, pid, said)
        self._stop(sandbox_id)
        full = disk_full(said, folder)
        if full is not None:
            raise full
        self._works = False
        problem = self._problem()
        if problem is not None:
            raise OperationError(
                INTERNAL_ERROR,
                problem.message,
                {**problem.details, "daemon_log": said},
                reason=problem.reason,
            )
        excerpt = log_excerpt(said)
        how = "exited" if child is None else f"exited with {child.returncode}"
        message = f"starting daemon: the agent of {sandbox_id} {how}" + (f": {excerpt}" if excerpt else "")
        raise OperationError(
            INTERNAL_ERROR, message, {"stage": "start", "daemon_log": said}, reason="agent_exited"
        )

    def _launch(self, folder: str, bundle: build.Bundle) -> subprocess.Popen[bytes]:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(f"{folder}/endpoint.json")
        environment = {
            name: os.environ[name] for name in ("HOME", "USER", "PATH", "LANG", "TZ") if name in os.environ
        }
        with open(f"{folder}/daemon.log", "ab") as said_to:
            os.fchmod(said_to.fileno(), 0o600)
            child = subprocess.Popen(
                [*bundle.argv(), "serve", "--settings", f"{folder}/agent.json"],
                stdin=subprocess.DEVNULL,
                stdout=said_to,
                stderr=said_to,
                cwd="/",
                env=environment,
                start_new_session=True,
            )
        self._children[child.pid] = child
        return child

    def _late(self, sandbox_id: str, pid: int, said: list[str]) -> OperationError:
        waited = self.config.manager.local_daemon.ready_timeout_s
        details = {
            "stage": "start",
            "sandbox_id": sandbox_id,
            "pid": pid,
            "retryable": True,
            "hint": (
                "it is still starting: repeat the call; if that does not help, start_sandbox replaces a "
                "frozen agent"
            ),
            "daemon_log": said,
        }
        message = (
            f"starting daemon: the agent of {sandbox_id}, process {pid}, has not written its address "
            f"within {waited:g} s"
        )
        return OperationError(INTERNAL_ERROR, message, details, reason="agent_starting")

    def _endpoint(self, sandbox_id: str, *, pid: int | None = None) -> Listens | None:
        """Read the agent's endpoint.json; None unless the process that wrote it is alive."""
        folder = self.folder(sandbox_id)
        try:
            with open(os.path.join(folder, "endpoint.json"), encoding="ascii") as file:
                value: dict[str, Any] = json.load(file)
            number, started = int(value["pid"]), value.get("started")
            tcp, http = (
                AgentEndpoint(host=str(value[key][0]), port=int(value[key][1])) for key in ("tcp", "http")
            )
        except (OSError, ValueError, KeyError, TypeError, IndexError):
            return None
        if self._lies_elsewhere(sandbox_id) is not None:
            return None
        listens = Listens(
            tcp,
            http,
            value.get("proof") == proof.FORMAT,
            number,
            started if isinstance(started, int) else None,
        )
        if pid is not None:
            return listens if number == pid else None
        if listens.started is not None:  # pid and start time name one process only
            return listens if HostProcess(number, listens.started).alive() and is_ours(number) else None
        return listens if is_agent(number, os.path.join(folder, "agent.json"), self.bundles) else None

    def _agents(self, sandbox_id: str) -> list[HostProcess]:
        """List the agent's processes: those started with this sandbox's settings file, oldest first, and the
        one in its endpoint.json.
        """
        found = agents_of(os.path.join(self.folder(sandbox_id), "agent.json"), self.bundles)
        listens = self._endpoint(sandbox_id)
        if listens is not None and listens.started is not None:
            found = list(dict.fromkeys((*found, HostProcess(listens.pid, listens.started))))
        return found

    def _agent(self, sandbox_id: str) -> HostProcess | None:
        self._reap()
        return next(iter(self._agents(sandbox_id)), None)

    def _reap(self) -> None:
        for pid, child in list(self._children.items()):
            if child.poll() is not None:
                self._children.pop(pid, None)

    def _log(self, sandbox_id: str) -> list[str]:
        try:
            with open(
                os.path.join(self.folder(sandbox_id), "daemon.log"), encoding="utf-8", errors="replace"
            ) as file:
                return [line.rstrip("\n") for line in deque(file, maxlen=LOG_LINES)]
        except OSError:
            return []

    def _stop(self, sandbox_id: str) -> list[str]:
        """End the agent and all processes that it started: SIGTERM, and SIGKILL after `stop_timeout_s`."""
        agents = self._agents(sandbox_id)
        tree = {process.pid: process for agent in agents for process in (agent, *descendants(agent.pid))}
        warnings: list[str] = []
        for agent in agents:
            agent.signal(signal.SIGTERM)
        if agents and not _gone(
            lambda: any(agent.alive() for agent in agents),
            self.config.manager.local_daemon.stop_timeout_s,
            self._reap,
        ):
            warnings.append(
                f"the agent did not stop within {self.config.manager.local_daemon.stop_timeout_s:g} s and "
                f"was killed"
            )
        for process in tree.values():
            process.signal(signal.SIGKILL)
        held: list[str] = []
        for process in tree.values():
            found = freezer.frozen(process.pid) if process.alive() else None
            if found is not None and not found.killable and not freezer.thaw(found, tree.keys()):
                held.append(found.by)
        if not _gone(lambda: any(process.alive() for process in tree.values()), 5.0, self._reap):
            left = [process.pid for process in tree.values() if process.alive()]
            details: dict[str, Any] = {"processes": left}
            message = f"processes {left} of sandbox {sandbox_id} do not end"
            if held:
                hint = (
                    f"they are frozen: run `echo THAWED > {held[0]}/freezer.state` as a user who may, "
                    f"then repeat the call"
                )
                details |= {"frozen_by": sorted(set(held)), "hint": hint, "retryable": True}
                message += f": they are in a frozen cgroup that cannot be thawed from here, {held[0]}"
            raise OperationError(INTERNAL_ERROR, message, details, reason="processes_left")
        return warnings

    def _remove(self, sandbox_id: str) -> list[str]:
        folder = self.folder(sandbox_id)
        warnings = self._stop(sandbox_id)
        if self._lies_elsewhere(sandbox_id) is None:  # else its files name processes of the original
            self._reap_cgroups(folder)
            with contextlib.suppress(OSError, ValueError, KeyError):
                with open(f"{folder}/agent.json", encoding="utf-8") as file:
                    socket_dir = os.path.dirname(str(json.load(file)["socket_path"]))
                if not socket_dir.startswith(folder):
                    fsync.remove_tree(socket_dir)
        try:
            local_probe.remove_tree(folder, self._python)
        except OSError as error:
            wrapped = os_error(error, kind=INTERNAL_ERROR)
            raise OperationError(
                INTERNAL_ERROR,
                f"sandbox {sandbox_id}: {folder} cannot be removed: {wrapped.message}",
                wrapped.details,
            ) from error
        return warnings

    def _reap_cgroups(self, folder: str) -> None:
        """Remove the cgroups that a killed agent left; an agent that ended by itself has removed them and
        their record.
        """
        if os.path.exists(f"{folder}/run/cgroups.json"):
            argv = [*self._bundle(lambda _: None).argv(), "reap", "--settings", f"{folder}/agent.json"]
            subprocess.run(
                argv, stdin=subprocess.DEVNULL, capture_output=True, env={}, cwd="/", timeout=30, check=False
            )


def _gone(there: Callable[[], bool], timeout_s: float, reap: Callable[[], None]) -> bool:
    """Wait until `there` returns False; return False after the timeout."""
    deadline = time.monotonic() + timeout_s
    while True:
        reap()
        if not there():
            return True
        if time.monotonic() >= deadline:
            return False
        time.sleep(0.005)
