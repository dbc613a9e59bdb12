"""The manager: records, their states, and the operations over them. One per gateway, on its event loop;
blocking calls run in threads.

    creating -> ready -> stopping -> stopped, then the record is removed
    failed      its container vanished; only a destroy ends this state
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import sys
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, TypeVar

from eos_agent.machine import neighbours, private_dirs
from eos_agent.wire.operation import ANSWER_S
from eos_agent.wire.protocol import (
    INTERNAL_ERROR,
    INVALID_REQUEST,
    OPERATION_FAILED,
    UNKNOWN_OP,
    OperationError,
    is_error,
)
from eos_mcp import catalog
from eos_mcp.agent_client.pool import AgentPool
from eos_mcp.config import paths
from eos_mcp.config.load import Config
from eos_mcp.config.log import log
from eos_mcp.export import exported, git_export, recover, request
from eos_mcp.export.apply import ExportLimits
from eos_mcp.export.git_export import GitExports
from eos_mcp.export.operation import Exports, guards
from eos_mcp.imports.importer import Importer, ImportRequest, checked_paths
from eos_mcp.manager import browser_address, diagnose, fleet, prune, readable
from eos_mcp.manager.create import Creation, WantedSandboxes
from eos_mcp.manager.hung_agents import Silence
from eos_mcp.manager.metrics import Metrics
from eos_mcp.providers import image_name
from eos_mcp.providers.docker import DockerProvider
from eos_mcp.providers.image_name import HOST_IMAGE
from eos_mcp.providers.local import LocalProvider
from eos_mcp.providers.provider import FoundSandbox, Provider, ask_ready
from eos_mcp.record.registry import AgentAddress, Registry, RegistryError, SandboxRecord
from eos_mcp.requests import arguments, bounds, roots
from eos_mcp.workspace import base

THREADS = 32
BACKENDS = ("auto", "docker", "local", "none")
ASK_BEFORE_DESTROY_S = 2.0
CHECK_BEFORE_DESTROY_S = 120.0
DISCARDED_PATHS = 100
ASK_TOPOLOGY_S = 5.0
RECONCILE_WAIT_S = 5.0
DEAD_KEYS = ("workspace_session_id", "state", "reason", "paths", "bytes")
OF_SANDBOX_SCOPE = frozenset({"cgroup"})
"""Operations on one sandbox that its agent cannot answer alone."""
Progress = Callable[[str], None]
Result = TypeVar("Result")


class Manager:
    """The operations of the manager, and the addresses for requests to sandboxes. `start` comes first,
    `close` last.
    """

    def __init__(self, config: Config, state_dir: str, *, backend: str, instance_id: str) -> None:
        self.config = config
        self.state_dir = state_dir
        self.backend = backend
        self.forwarder = AgentPool(self.target)
        cache = paths.cache_dir()
        self.bases = base.cache_dir(os.path.join(cache, "bases"))
        self.bundles = os.path.join(cache, "bundles")
        token_dir = os.path.dirname(paths.token_file())
        own_token = token_dir if os.path.basename(token_dir) == ".ephemeral-sandbox" else paths.token_file()
        self.own = tuple(dict.fromkeys((state_dir, cache, self.bases, own_token)))
        private = (
            list(dict.fromkeys((*self.own, paths.socket_path())))
            if own_token != token_dir
            else list(self.own)
        )
        registry_path = config.manager.registry_path or os.path.join(state_dir, "registry.json")
        self.registry = Registry(registry_path)
        rings = os.path.join(os.path.dirname(registry_path), "observability-resources")
        self.metrics = Metrics(config, rings, lambda: list(self.registry), self.provider)
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="manager")
        self.providers: dict[str, Provider] = {}
        if backend in ("auto", "docker"):
            self.docker = DockerProvider(config, cache, instance_id)
            self.providers["docker"] = self.docker
        if backend in ("auto", "local"):
            self.providers["local"] = LocalProvider(
                config,
                state_dir,
                cache,
                private,
                self.docker.data_roots if "docker" in self.providers else list,
            )
        records = os.path.join(state_dir, "export-records")
        self.exports = Exports(
            config.manager.export,
            guards(self.own, registry_path, state_dir),
            self.forwarder,
            self.run,
            records,
        )
        limits = config.manager.export
        self.git_exports = GitExports(
            self.exports.guards,
            ExportLimits(limits.max_stream_bytes, limits.max_decompressed_bytes, limits.max_apply_entries),
            self.forwarder,
            self.run,
            records,
        )
        self.imports = Importer(
            self.forwarder, self.run, os.path.join(state_dir, "import-records"), records, self._check_idle
        )
        self.creation = Creation(self)
        self.silence = Silence(self)
        self.closing = threading.Event()
        self._said: dict[str, str] = {}
        self._reconciling: dict[str, asyncio.Task[None]] = {}
        self._refreshing: dict[str, asyncio.Task[FoundSandbox | None]] = {}
        self._handlers: dict[
            str, Callable[[dict[str, Any], str, Progress], Coroutine[Any, Any, dict[str, Any]]]
        ] = {
            "create_sandbox": self._create,
            "list_docker_images": self._images,
            "list_workspace_directories": self._directories,
            "destroy_sandbox": self._destroy,
            "start_sandbox": self._start,
            "prune": self._prune,
            "forward_url": self._forward_url,
            "list_sandboxes": self._list,
            "inspect_sandbox": self._inspect,
            "squash_layerstacks": self._squash,
            "export_changes": self._export,
            "import_changes": self._import,
            "snapshot": self._snapshot,
            "resources": self._resources,
            "cgroup": self._cgroup,
        }

    async def start(self) -> None:
        """Read the registry and check the state of its sandboxes. Containers are looked up in the background;
        operations wait for the result.

        Raises:
            OperationError: internal_error, reason registry_unreadable or no such backend.
        """
        if self.backend not in BACKENDS:
            raise OperationError(
                INTERNAL_ERROR,
                f"no backend is called {self.backend}: {', '.join(BACKENDS)}",
                reason="unknown_backend",
            )
        try:
            private_dirs.make(self.state_dir)
            with contextlib.suppress(OSError):  # a creation reports the error
                if os.path.isdir(paths.cache_dir()):
                    private_dirs.make(paths.cache_dir())
            self.registry = Registry.open(self.registry.path)
        except RegistryError as error:
            raise OperationError(
                INTERNAL_ERROR, str(error), {"path": self.registry.path}, reason="registry_unreadable"
            ) from error
        except OSError as error:
            raise OperationError(
                INTERNAL_ERROR, f"{error.filename}: {error.strerror}", reason="state_dir_unusable"
            ) from error
        await self.run(self.tell_neighbours)
        for name in self.providers:
            self._reconciling[name] = asyncio.create_task(self._reconcile(name))
        self.metrics.watch()

    def tell_neighbours(self) -> None:
        """Register our paths, so that other gateways of this machine hide them from their sessions."""
        if sys.platform == "linux":
            import pwd

            homes = [
                os.path.expanduser("~")
            ]  # for a container with an arbitrary uid: no passwd entry, or one without a home
            with contextlib.suppress(KeyError):
                homes.insert(0, pwd.getpwuid(os.getuid()).pw_dir)
            problems: list[str] = []
            for home in homes:
                try:
                    neighbours.note(home, self.own)
                except OSError as error:
                    problems.append(str(error))
                else:
                    break
            else:
                log("neighbours_untold", error="; ".join(problems))

    async def close(self) -> None:
        """Save state that is only in memory; sandboxes keep running."""
        self.closing.set()
        self.forwarder.close()
        self.metrics.close()
        for task in self._reconciling.values():
            task.cancel()
        await asyncio.gather(*self._reconciling.values(), return_exceptions=True)
        if any(record.activity_revision for record in self.registry):
            self.registry.save()
        self._pool.shutdown(wait=False, cancel_futures=True)
        docker = self.providers.get("docker")
        if isinstance(docker, DockerProvider):
            docker.close()

    async def run(self, function: Callable[..., Result], *args: Any) -> Result:
        """Run a blocking call in one of the manager's own threads."""
        return await asyncio.get_running_loop().run_in_executor(self._pool, function, *args)

    def handles(self, op: str, scope_kind: str) -> bool:
        return (
            op in OF_SANDBOX_SCOPE
            if scope_kind == "sandbox"
            else op in self._handlers and op not in OF_SANDBOX_SCOPE
        )

    async def handle(
        self, op: str, args: dict[str, Any], *, request_id: str, progress: Progress
    ) -> dict[str, Any]:
        """Perform one operation and return its result.

        Args:
            progress: called from any thread, in order, before this returns.
        Raises:
            OperationError: as the contract's error matrix says.
        """
        image = args.get("image")
        await self._wait_reconciled(
            args.get("sandbox_id"), "local" if isinstance(image, str) and image_name.is_local(image) else None
        )
        return await self._handlers[op](args, request_id, progress)

    async def target(self, sandbox_id: str, *, refresh: bool = False) -> AgentAddress:
        """Return the address of the agent of a ready sandbox.

        Args:
            refresh: ask the provider, since ports change when a container restarts; a dead local agent is
                started again.
        Raises:
            OperationError: invalid_request: unknown, not ready, or without an endpoint; internal_error when
                the provider failed.
        """
        await self._wait_reconciled(sandbox_id)
        record = self.registry.get(sandbox_id)
        if record.state != "ready":
            details = {"sandbox_id": sandbox_id, "state": record.state}
            raise OperationError(
                INVALID_REQUEST,
                f"sandbox {sandbox_id} is {record.state}, not ready",
                details,
                reason="wrong_state",
            )
        if refresh or record.daemon is None:
            await self._refresh(record)
            record = self.registry.get(sandbox_id)
        target = record.target()
        if target is None:
            raise OperationError(
                INVALID_REQUEST,
                f"sandbox {sandbox_id} has no endpoint",
                {"sandbox_id": sandbox_id},
                reason="no_endpoint",
            )
        return target

    async def explain(self, sandbox_id: str, op: str, broken: OperationError | None) -> OperationError | None:
        """Call `diagnose.explain`."""
        return await diagnose.explain(self, sandbox_id, op, broken)

    def note_silence(self, sandbox_id: str) -> None:
        """Note that the agent of a sandbox missed an answer."""
        self.silence.note(sandbox_id)

    def http_base(self, sandbox_id: str) -> str | None:
        """URL of the HTTP surface of a sandbox's agent; None if it has none."""
        record = self.registry.find(sandbox_id)
        return None if record is None else browser_address.http_base(record)

    def note_activity(self, sandbox_id: str) -> None:
        record = self.registry.find(sandbox_id)
        if record is not None:
            self.registry.note(record.but(activity_revision=record.activity_revision + 1))

    def sandbox_count(self) -> int:
        return len(self.registry)

    def backends(self) -> dict[str, Any]:
        """Return the state of each provider; `problem` is its last error, None without one."""
        return {name: {"problem": self._said.get(name)} for name in self.providers}

    def provider(self, name: str) -> Provider:
        found = self.providers.get(name)
        if found is None:
            hint = f"start the gateway with --backend {name} or auto"
            raise OperationError(
                INTERNAL_ERROR,
                f"this gateway has no {name} provider; {hint}",
                {"hint": hint},
                reason="backend_off",
            )
        return found

    def provider_for(self, image: str) -> Provider:
        """Return the local provider for `host` and `rootfs:/abs/dir`, Docker's for any other image."""
        return self.provider("local" if image_name.is_local(image) else "docker")

    async def _wait_reconciled(self, sandbox_id: Any = None, provider: str | None = None) -> None:
        """Wait until the sandbox or provider was reconciled, but not for an engine that hangs: then the
        registry's state is used.
        """
        record = self.registry.find(sandbox_id) if isinstance(sandbox_id, str) else None
        name = record.provider if record is not None else provider
        tasks = [task for key, task in self._reconciling.items() if name in (None, key) and not task.done()]
        if tasks:
            await asyncio.wait(tasks, timeout=RECONCILE_WAIT_S)

    async def _refresh(self, record: SandboxRecord) -> None:
        """Ask the provider; concurrent callers for one sandbox share one request."""
        task = self._refreshing.get(record.id)
        if task is None:
            task = asyncio.create_task(self.run(self.provider(record.provider).revive, record))
            self._refreshing[record.id] = task
            task.add_done_callback(lambda _: self._refreshing.pop(record.id, None))
        found = await asyncio.shield(task)
        now = self.registry.find(record.id)
        if now is None or now.state != "ready":
            return
        if found is None:
            self.registry.put(now.but(state="failed", daemon=None, daemon_http=None))
            details = {"sandbox_id": record.id, "hint": "destroy_sandbox removes the record"}
            raise OperationError(
                INTERNAL_ERROR,
                f"nothing of sandbox {record.id} exists any more",
                details,
                reason="sandbox_vanished",
            )
        if found.daemon is not None and (there := found.of(now)) != now:
            self.registry.put(there)

    async def _reconcile(self, name: str) -> None:
        """Compare the registry with the provider: remove half-made sandboxes, mark vanished ones as failed,
        adopt sandboxes without a record, and update ports.
        """
        known = [record for record in self.registry if record.provider == name]
        try:
            adopted = {record.id: record for record in await self.run(self.providers[name].adopt)}
        except OperationError as error:
            self._said[name] = error.message
            log("reconcile_failed", provider=name, error=error.message)
            return
        for record in known:
            await self._reconcile_one(record, adopted.pop(record.id, None))
        for record in adopted.values():
            if self.registry.find(record.id) is None:  # it may have been created during the await
                log("adopted", sandbox_id=record.id, provider=name)
                self.registry.put(record)

    async def _reconcile_one(self, record: SandboxRecord, alive: SandboxRecord | None) -> None:
        if self.registry.find(record.id) is not record:
            return  # another call changed it during the await
        if record.state in ("creating", "stopped"):
            log("removing_half_made", sandbox_id=record.id)
            try:
                await self.run(self.provider(record.provider).destroy, record)
            except OperationError as error:
                self.registry.put(record.but(state="failed"))
                log("remove_failed", sandbox_id=record.id, error=error.message)
            else:
                self.registry.remove(record.id)
                await self.run(self.imports.forget, record.id)
        elif record.state == "stopping" or alive is None:
            if record.state != "failed":
                self.registry.put(record.but(state="failed", daemon=None, daemon_http=None))
        else:
            data = {**record.provider_data, **alive.provider_data}
            there = record.but(
                state="ready",
                daemon=alive.daemon,
                daemon_http=alive.daemon_http,
                token=alive.token,
                provider_data=data,
            )
            if there != record:
                self.registry.put(there)

    async def _create(self, args: dict[str, Any], request_id: str, progress: Progress) -> dict[str, Any]:
        image = arguments.text(args, "image", "create_sandbox")
        workspace = arguments.text(args, "workspace_root", "create_sandbox")
        count = arguments.count(args)
        caller_path = args.get("caller_path")
        path = caller_path if isinstance(caller_path, str) else os.environ.get("PATH", os.defpath)
        git_ref = None if args.get("git_ref") is None else arguments.text(args, "git_ref", "create_sandbox")
        identity = arguments.choice(args, "git_identity", ("host", "none"))
        wanted = WantedSandboxes(image, workspace, count, path, identity, git_ref)
        records = await self.creation.create(wanted, progress, bounds.of_request(args))
        shown = [{**record.public(), "readable": readable.of(record)} for record in records]
        return shown[0] if count == 1 else {"sandboxes": shown}

    async def _images(self, args: dict[str, Any], request_id: str, progress: Progress) -> dict[str, Any]:
        """List images. When both providers are on and Docker does not answer, only the local image is listed;
        without the local provider a failing engine is an error.
        """
        found: set[str] = set()
        failed: OperationError | None = None
        for name, provider in self.providers.items():
            try:
                found.update(await self.run(provider.images))
                self._said.pop(name, None)
            except OperationError as error:
                failed = error
                self._said[name] = error.message
        if failed is not None and HOST_IMAGE not in found:
            raise failed
        return {"images": sorted(found)}

    async def _directories(self, args: dict[str, Any], request_id: str, progress: Progress) -> dict[str, Any]:
        path = (
            arguments.text(args, "path", "list_workspace_directories")
            if args.get("path") is not None
            else None
        )
        configured, allowed = self.config.manager.workspace_roots, bounds.of_request(args).roots
        if allowed is not None:
            within = [os.path.realpath(root) for root in configured or ("/",)]
            allowed = tuple(
                root for root in allowed if roots.inside(root, within) and os.path.realpath(root) == root
            )
        return await self.run(roots.list_directories, path, configured if allowed is None else allowed)

    async def _list(self, args: dict[str, Any], request_id: str, progress: Progress) -> dict[str, Any]:
        return {
            "sandboxes": list(
                await asyncio.gather(*(self.silence.shown(record, ask=False) for record in self.registry))
            )
        }

    async def _inspect(self, args: dict[str, Any], request_id: str, progress: Progress) -> dict[str, Any]:
        record = self.registry.get(arguments.text(args, "sandbox_id", "inspect_sandbox"))
        return {**await self.silence.shown(record, ask=True), "readable": readable.of(record)}

    async def _destroy(self, args: dict[str, Any], request_id: str, progress: Progress) -> dict[str, Any]:
        asked = _checked("destroy_sandbox", args)
        if_clean, dry_run = asked["if_clean"], asked["dry_run"]
        sandbox_id = arguments.text(args, "sandbox_id", "destroy_sandbox")
        record = self.registry.get(sandbox_id)
        discarded = (
            await self._would_discard(record, request_id, exactly=if_clean)
            if record.state == "ready"
            else None
        )
        if if_clean:
            _refuse_unpublished(record, discarded)
        if dry_run:
            return {
                **record.public(),
                "dry_run": True,
                **({} if discarded is None else {"discarded": discarded}),
            }
        record = self.registry.move(sandbox_id, ("ready", "failed", "stopped"), "stopping")
        self.forwarder.forget(sandbox_id)
        try:
            warnings = await self.run(self.provider(record.provider).destroy, record)
        except BaseException as error:
            self.registry.move(sandbox_id, ("stopping",), "failed")
            if isinstance(error, OperationError):
                error.details.setdefault("hint", "destroy_sandbox may be called again")
            raise
        final = self.registry.move(sandbox_id, ("stopping",), "stopped", daemon=None, daemon_http=None)
        self.registry.remove(sandbox_id)
        self.silence.forget(sandbox_id)
        await self.run(self.metrics.forget, sandbox_id)
        await self.run(self.exports.forget, sandbox_id)
        await self.run(self.imports.forget, sandbox_id)
        result = final.public()
        if discarded is not None:
            result["discarded"] = discarded
        if warnings:
            result["warnings"] = warnings
        return result

    async def _would_discard(
        self, record: SandboxRecord, request_id: str, *, exactly: bool
    ) -> dict[str, Any] | None:
        """Return the work that a destroy would discard: unexported layers, open sessions, drafts, dead
        sessions that are not drafts.

        None when the agent does not answer.

        `unpublished`: `paths`, their `count`, `bytes` and `truncated` are of the sessions; each of its
        `drafts` and `dead_sessions` has figures of its own.

        Args:
            exactly: scan each session like a publish, however long that takes.
        """
        target = record.target()
        if target is None or await self.run(lambda: ask_ready(target, timeout_s=0.5)) is not None:
            return None
        timeout_s = CHECK_BEFORE_DESTROY_S if exactly else ASK_BEFORE_DESTROY_S
        own_id = f"{request_id}:unpublished"
        try:
            found = await self.forwarder.request(
                record.id, "unpublished_work", {"clean": exactly}, request_id=own_id, timeout_s=timeout_s
            )
        except OperationError:
            return None
        if is_error(found):
            return None
        sessions: list[dict[str, Any]] = found["sessions"]
        drafts: list[dict[str, Any]] = found["drafts"]
        dead: list[dict[str, Any]] = found.get("dead_sessions", [])
        work: list[dict[str, Any]] = [row for row in sessions if not row["clean"]]
        changed: list[Any] = [path for row in work for path in row["paths"]]
        unexported = await self.run(self._unexported, record.id, found)
        return {
            "layers": int(found["layers"]),
            "sessions": [str(row["workspace_session_id"]) for row in sessions],
            "drafts": [str(row.get("draft_id")) for row in drafts],
            "unpublished": {
                "sessions": [str(row["workspace_session_id"]) for row in work],
                "paths": changed[:DISCARDED_PATHS],
                "count": sum(int(row["count"]) for row in work),
                "bytes": sum(int(row["bytes"]) for row in work),
                "truncated": len(changed) > DISCARDED_PATHS or any(row["truncated"] for row in work),
                "drafts": [{key: row.get(key) for key in ("draft_id", "paths", "bytes")} for row in drafts],
                **(
                    {"dead_sessions": [{key: row.get(key) for key in DEAD_KEYS} for row in dead]}
                    if dead
                    else {}
                ),
            },
            **({"unexported": unexported} if unexported is not None else {}),
        }

    def _unexported(self, sandbox_id: str, found: dict[str, Any]) -> dict[str, Any] | None:
        """The newest publication and the last export, if versions were published since; None if none were.

        Args:
            found: the agent's answer. An agent of an earlier release does not give `newest_version`.
        """
        newest, last = found.get("newest_version"), exported.last(self.exports.records, sandbox_id)
        if not found["layers"] or (isinstance(newest, int) and last is not None and newest <= last.version):
            return None
        about = (
            {"exported_version": None}
            if last is None
            else {"exported_version": last.version, "dest": last.dest}
        )
        return {"newest_version": newest, **about}

    async def _start(self, args: dict[str, Any], request_id: str, progress: Progress) -> dict[str, Any]:
        """Start a sandbox whose container was stopped or whose agent is dead. An agent that does not answer
        is replaced; an agent that answers is left alone.
        """
        sandbox_id = arguments.text(args, "sandbox_id", "start_sandbox")
        record = self.registry.get(sandbox_id)
        if record.state not in ("ready", "failed"):
            details = {"sandbox_id": sandbox_id, "state": record.state, "wanted": "ready"}
            raise OperationError(
                INVALID_REQUEST,
                f"sandbox {sandbox_id} is {record.state}: it cannot be started",
                details,
                reason="wrong_state",
            )
        progress(f"starting {sandbox_id}")
        found = await self.silence.revive(record, progress)
        if found is None:
            details = {"sandbox_id": sandbox_id, "hint": "destroy_sandbox removes the record"}
            raise OperationError(
                INTERNAL_ERROR,
                f"nothing of sandbox {sandbox_id} exists any more",
                details,
                reason="sandbox_vanished",
            )
        there = found.of(record)
        new = {key: getattr(there, key) for key in ("daemon", "daemon_http", "token", "provider_data")}
        moved = self.registry.move(sandbox_id, ("ready", "failed"), "ready", **new)
        return moved.public()

    async def _forward_url(self, args: dict[str, Any], request_id: str, progress: Progress) -> dict[str, Any]:
        given = _checked("forward_url", args)
        sandbox_id = arguments.text(args, "sandbox_id", "forward_url")
        await self.target(sandbox_id, refresh=True)  # a restarted container has other ports
        return browser_address.forward_url(self.registry.get(sandbox_id), given)

    async def _prune(self, args: dict[str, Any], request_id: str, progress: Progress) -> dict[str, Any]:
        dry_run = _checked("prune", args)["dry_run"]
        async with self.creation.paused():
            used = {
                record.shared_base.root_hash for record in self.registry if record.shared_base is not None
            }
            docker = self.providers.get("docker")
            return await self.run(
                lambda: prune.perform(
                    prune.Places(self.bases, self.bundles, self.registry.path),
                    used,
                    docker if isinstance(docker, DockerProvider) else None,
                    dry_run=dry_run,
                    progress=progress,
                )
            )

    async def _squash(self, args: dict[str, Any], request_id: str, progress: Progress) -> dict[str, Any]:
        record = self.registry.get(arguments.text(args, "sandbox_id", "squash_layerstacks"))
        await self.target(record.id)
        op = "squash_layerstack"
        reply = await self.forwarder.request(record.id, op, {}, request_id=request_id, timeout_s=None)
        if is_error(reply) and reply["error"].get("kind") == UNKNOWN_OP:
            details = {
                "sandbox_id": record.id,
                "daemon_op": op,
                "hint": (
                    "its work is kept: create another sandbox for new work, and save this one's "
                    "(export_changes, file_read) before you destroy it"
                ),
            }
            raise OperationError(
                OPERATION_FAILED,
                f"the agent of sandbox {record.id} is too old for {op}",
                details,
                reason="agent_too_old",
            )
        return reply

    async def _export_git(self, args: dict[str, Any], request_id: str, progress: Progress) -> dict[str, Any]:
        call = git_export.call_of(args)
        workspace = self.registry.get(call.sandbox_id).workspace_root
        call = await self.run(self.git_exports.check, replace(call, workspace=workspace))
        await self.target(call.sandbox_id)
        async with self.exports.alone(call.sandbox_id):
            return await self.git_exports.run(call, request_id, progress)

    async def _export(self, args: dict[str, Any], request_id: str, progress: Progress) -> dict[str, Any]:
        if git_export.wants_git(args):
            return await self._export_git(args, request_id, progress)
        wanted = request.of(args, self.config.manager.export)
        if wanted.bound is not None:
            await self.run(wanted.bound.check, wanted.dest, "dest")
        wanted = await self.run(self.exports.check, wanted)
        await self.target(wanted.sandbox_id)
        record = self.registry.get(wanted.sandbox_id)
        if (shared := record.shared_base) is not None:
            wanted = wanted.over(os.path.join(self.bases, shared.root_hash, "base", base.BASE_LAYER))
        if wanted.rules.on_conflict == "merge":
            wanted = replace(wanted, content_of=self.imports.content_of(record.id, request_id))
        async with self.exports.alone(record.id):
            result = await self.exports.run(wanted, record.workspace_root, request_id, progress)
            incoming = self._import_request(record)
            if wanted.fmt == "dir" and not wanted.dry_run and wanted.dest == incoming.workspace:
                await self.run(self.imports.note_export, incoming)
        return result

    async def _import(self, args: dict[str, Any], request_id: str, progress: Progress) -> dict[str, Any]:
        given = _checked("import_changes", args)
        record = self.registry.get(arguments.text(args, "sandbox_id", "import_changes"))
        bound = bounds.of_request(args)
        roots.check_root(record.workspace_root, self.config.manager.workspace_roots)
        await self.run(bound._replace(allow_sensitive=True).check, record.workspace_root, "workspace_root")
        await self.run(base.check_workspace, record.workspace_root, self.own)
        await self.run(bound.check, record.workspace_root, "workspace_root")
        await self.target(record.id)
        wanted = self._import_request(record)._replace(
            paths=checked_paths(given.get("paths"), record.workspace_root),
            dry_run=given["dry_run"],
            agent=given.get("agent"),
            refusal=functools.partial(self.creation.refusal, bound),
        )
        async with self.exports.alone(record.id):
            return await self.imports.run(wanted, request_id, progress)

    def _import_request(self, record: SandboxRecord) -> ImportRequest:
        root_hash = record.shared_base.root_hash if record.shared_base is not None else ""
        return ImportRequest(
            record.id,
            os.path.realpath(record.workspace_root),
            root_hash,
            os.path.join(self.bases, root_hash, "base", base.BASE_LAYER),
            self.provider(record.provider).keeping(),
        )

    def _check_idle(self, workspace: str) -> None:
        """Roll back what a killed export left in a directory; raise while a running one changes it."""
        recover.roll_back_killed(workspace, self.exports.guards.journals)

    async def _snapshot(self, args: dict[str, Any], request_id: str, progress: Progress) -> dict[str, Any]:
        return await self._fleet(request_id).snapshot()

    async def _resources(self, args: dict[str, Any], request_id: str, progress: Progress) -> dict[str, Any]:
        _checked("resources", args)
        return await self._fleet(request_id).resources()

    def _fleet(self, request_id: str) -> fleet.Fleet:
        limits = self.config.manager.observability_snapshot
        ready = [record for record in self.registry if record.state == "ready"]
        asking = fleet.Asking(
            self.forwarder, request_id, limits.max_concurrent_requests, limits.timeout_ms / 1000
        )
        return fleet.Fleet(ready, asking, lambda sandbox_id: self.run(self.metrics.latest, sandbox_id))

    async def _cgroup(self, args: dict[str, Any], request_id: str, progress: Progress) -> dict[str, Any]:
        """Return cgroup figures. The agent answers for a session, and for a sandbox without samples of an
        engine.
        """
        given = _checked("cgroup", args)
        record = self.registry.get(arguments.text(args, "sandbox_id", "cgroup"))
        await self.target(record.id)
        availability, errors, series = "", list[str](), list[dict[str, Any]]()
        if given["scope"] == "sandbox" and fleet.counted_outside(record):
            availability, errors, series = await self.run(self.metrics.series, record.id, given["window_ms"])
        if not series:
            asked = {name: given[name] for name in ("scope", "window_ms")}
            reply = await self.forwarder.request(
                record.id, "cgroup", asked, request_id=request_id, timeout_s=ANSWER_S
            )
            if errors and not is_error(reply):
                reply["availability"], reply["errors"] = (
                    fleet.second_best(reply["availability"]),
                    [*errors, *reply["errors"]],
                )
            return reply
        topology: dict[str, Any] | None = None
        try:
            reply = await self.forwarder.request(
                record.id, "topology", {}, request_id=f"{request_id}:topology", timeout_s=ASK_TOPOLOGY_S
            )
            topology = reply.get("topology")
        except OperationError as error:
            availability, errors = "partial", [*errors, fleet.cut(error.message)]
        return {
            "view": "cgroup",
            "scope": "sandbox",
            "availability": availability,
            "errors": errors,
            "series": series,
            "topology": topology,
        }


def _refuse_unpublished(record: SandboxRecord, found: dict[str, Any] | None) -> None:
    """Refuse a destroy_sandbox with `if_clean`, before any change; published layers do not count.

    Raises:
        OperationError: unpublished_work; unpublished_unknown when the agent could not be asked.
    """
    if found is None:
        details: dict[str, Any] = {
            "sandbox_id": record.id,
            "state": record.state,
            "hint": (
                "start_sandbox first, then ask again; without if_clean its unpublished work is discarded"
            ),
        }
        message = f"the agent of sandbox {record.id} does not say whether anything is unpublished"
        raise OperationError(OPERATION_FAILED, message, details, reason="unpublished_unknown")
    work, drafts = found["unpublished"], found["drafts"]
    dead: list[Any] = work.get("dead_sessions", [])
    if work["sessions"] or drafts or dead:
        hint = "end the commands, publish the sessions, publish or discard the drafts"
        if dead:
            hint += ", recover_workspace_session or destroy_workspace_session for dead sessions"
        details = {
            "sandbox_id": record.id,
            "unpublished": work,
            "hint": f"{hint}; without if_clean all of it is discarded",
        }
        message = (
            f"sandbox {record.id} has unpublished work or running commands: {len(work['sessions'])} "
            f"sessions, {len(drafts)} drafts"
        )
        if dead:
            message += f", {len(dead)} dead sessions whose work is not a draft"
        raise OperationError(OPERATION_FAILED, message, details, reason="unpublished_work")


def _checked(op: str, args: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments with their defaults.

    Raises:
        OperationError: invalid_request.
    """
    operation = catalog.find(op)
    assert operation is not None
    return catalog.check_arguments(operation, args, server=True)
