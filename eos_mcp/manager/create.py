"""`create_sandbox`: checks, the base, then one sandbox after another. On a failure everything that this call
made is removed.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import time
from collections.abc import AsyncGenerator, Callable
from typing import Any, NamedTuple

from eos_agent.machine import private_dirs
from eos_agent.wire import protocol
from eos_agent.wire.protocol import INVALID_REQUEST, OPERATION_FAILED, SERVER_BUSY, OperationError
from eos_mcp.config import paths
from eos_mcp.config.load import ConfigError, agent_config, check_profile_fits
from eos_mcp.config.log import log
from eos_mcp.export import recover
from eos_mcp.manager import prune, readable
from eos_mcp.manager.manager_parts import ManagerParts
from eos_mcp.providers.image_name import HOST_IMAGE, ROOTFS_PREFIX
from eos_mcp.providers.provider import Provider, SandboxPlan, new_token, wait_ready
from eos_mcp.record.registry import SandboxRecord, quota_of
from eos_mcp.requests import caller, roots
from eos_mcp.requests.bounds import NO_BOUNDS, Bounds
from eos_mcp.workspace import base, git_program

Progress = Callable[[str], None]
WARNED = 20
"""Maximum of left-out entries of a base that the records of its sandboxes and the progress name."""


class WantedSandboxes(NamedTuple):
    """The sandboxes that a request asks for.

    caller_path: the caller's PATH. git_identity: "host" carries the user's identity in, "none" does not.
    git_ref: a commit to check out in place of the directory's present state.
    """

    image: str
    workspace: str
    number: int
    caller_path: str
    git_identity: str = "host"
    git_ref: str | None = None

    def identity(self) -> dict[str, str | bool]:
        """Read the identity that the sandboxes get, with the host's git."""
        if self.git_identity == "host":
            return {**git_program.identity(self.workspace)}
        return {"replaces": True} if self.image == HOST_IMAGE else {}


class _Batch:
    """The sandboxes of one call: their ids, and the number of those that have no record yet."""

    def __init__(self, count: int) -> None:
        self.left = count
        self.ids = [f"eos-{protocol.new_request_id()}" for _ in range(count)]


class Creation:
    """Creates sandboxes for one manager. Two calls over one workspace copy it once."""

    def __init__(self, manager: ManagerParts) -> None:
        self.manager = manager
        self._copying: dict[str, asyncio.Lock] = {}
        self._under_way = 0
        self._to_come = 0
        """Number of sandboxes of running calls that have no record yet."""
        self._pause = asyncio.Lock()

    @contextlib.asynccontextmanager
    async def paused(self) -> AsyncGenerator[None]:
        """Block new creations while the block runs.

        Raises:
            OperationError: server_busy, reason creating: a creation is running whose base and runtime no
                record names yet.
        """
        async with self._pause:
            if self._under_way:
                details = {"creating": self._under_way, "retryable": True}
                raise OperationError(
                    SERVER_BUSY,
                    "sandboxes are being created, and nothing was changed: try again when they are ready",
                    details,
                    reason="creating",
                )
            yield

    async def create(
        self, wanted: WantedSandboxes, progress: Progress, bounds: Bounds = NO_BOUNDS
    ) -> list[SandboxRecord]:
        """Create the wanted sandboxes, ready, over one base; fewer when the client hangs up, which then gets
        no answer.

        Raises:
            OperationError: reason sandbox_limit, when there would be more than `manager.max_sandboxes`:
                server_busy, or invalid_request when their number alone exceeds it; invalid_request for the
                workspace, operation_failed while preparing the base, else internal_error. No record,
                container, process or directory of this call is left.
        """
        async with self._pause:
            self._under_way += 1
        try:
            self._make_room(wanted.number)
            batch = _Batch(wanted.number)
            self._to_come += wanted.number
            try:
                return await self._create(wanted, batch, progress, bounds)
            finally:
                self._to_come -= batch.left
                await self.manager.run(self._forget_unmade, batch)
        finally:
            self._under_way -= 1

    def _forget_unmade(self, batch: _Batch) -> None:
        for sandbox_id in batch.ids:
            if self.manager.registry.find(sandbox_id) is None:
                self.manager.imports.forget(sandbox_id)

    def _make_caches(self) -> None:
        """Create the cache directories early: local sessions of other gateways can only hide existing
        paths.
        """
        missing = [path for path in (paths.cache_dir(), self.manager.bases) if not os.path.isdir(path)]
        if missing:
            with contextlib.suppress(OSError):  # the copy reports the error
                for path in missing:
                    private_dirs.make(path)
                self.manager.tell_neighbours()

    def _make_room(self, count: int) -> None:
        limit, there = self.manager.config.manager.max_sandboxes, len(self.manager.registry) + self._to_come
        if there + count > limit:
            details: dict[str, Any] = {
                "limit": limit,
                "sandboxes": there,
                "count": count,
                "retryable": count <= limit,
            }
            details["hint"] = (
                "ask for fewer, export and destroy sandboxes that are done with, or raise "
                "manager.max_sandboxes in the configuration"
            )
            message = (
                f"{count} more would make {there + count} sandboxes, at most {limit} exist at once "
                f"(manager.max_sandboxes)"
            )
            raise OperationError(
                SERVER_BUSY if count <= limit else INVALID_REQUEST, message, details, reason="sandbox_limit"
            )

    async def _create(
        self, wanted: WantedSandboxes, batch: _Batch, progress: Progress, bounds: Bounds
    ) -> list[SandboxRecord]:
        manager = self.manager
        image, workspace, count, caller_path = (
            wanted.image,
            wanted.workspace,
            wanted.number,
            wanted.caller_path,
        )
        roots.check_root(workspace, manager.config.manager.workspace_roots)
        roots_alone = bounds._replace(allow_sensitive=True)  # first: reveal nothing about paths outside
        await manager.run(roots_alone.check, workspace, "workspace_root")
        if image.startswith(ROOTFS_PREFIX):
            await manager.run(bounds.check_rootfs, image)
        if os.path.isabs(workspace):
            await manager.run(self._roll_back_killed, workspace)  # a killed export may have made it
        await manager.run(base.check_workspace, workspace, manager.own)
        await manager.run(bounds.check, workspace, "workspace_root")
        provider = manager.provider_for(image)
        await manager.run(provider.check_image, image)
        yaml, sections = self._agent_sections(provider)
        progress(f"building base of {workspace}")
        await manager.run(self._make_caches)
        async with self._copying.setdefault(os.path.realpath(workspace), asyncio.Lock()):
            tree = await manager.run(
                lambda: base.prepare(
                    workspace,
                    manager.bases,
                    special_files=manager.config.manager.base.special_files,
                    keeping=provider.keeping(),
                    check_idle=lambda: self._roll_back_killed(workspace),
                    refusal=functools.partial(self.refusal, bounds),
                    git_ref=wanted.git_ref,
                    progress=progress,
                )
            )
            index = base.index_of(os.path.realpath(workspace), manager.bases)
            for sandbox_id in batch.ids:  # a later copy replaces the index
                await manager.run(manager.imports.note_copy, sandbox_id, index, wanted.git_ref)
        await manager.run(
            bounds.check, workspace, "workspace_root"
        )  # a directory of the path may have been replaced before the copy
        await manager.run(prune.note_user, manager.bases, tree.root_hash, manager.registry.path)
        how = "reused" if tree.reused else "built"
        progress(f"base {how}: source {tree.source}, root_hash {tree.root_hash}, {tree.size_bytes} bytes")
        if image == HOST_IMAGE:
            tree = tree._replace(warnings=(*readable.unseen_on_path(caller_path, workspace), *tree.warnings))
        for warning in tree.warnings[:WARNED]:
            progress(f"warning: {warning}")
        identity = await manager.run(wanted.identity)
        made: list[SandboxRecord] = []
        try:
            for number, sandbox_id in enumerate(batch.ids, 1):
                if made and caller.is_gone():
                    log("create_abandoned", made=len(made), count=count)
                    break
                progress(f"creating sandbox {number}/{count}")
                self._to_come -= 1
                batch.left -= 1
                plan = SandboxPlan(
                    sandbox_id=sandbox_id,
                    image=image,
                    workspace_root=workspace,
                    base=tree,
                    token=new_token(),
                    sections=sections,
                    yaml=yaml,
                    caller_path=caller_path,
                    created_unix_ms=time.time_ns() // 1_000_000,
                    git_identity=identity,
                )
                made.append(await self._one(provider, plan, progress))
        except Exception:  # a cancelled call leaves `creating`: the next gateway removes it when no thread works on it any longer  # noqa: E501
            if made:
                progress("destroying failed batch")
                for record in reversed(made):
                    await self._remove_half_made(provider, record)
                progress("failed batch destroyed")
            raise
        return made

    def refusal(self, bounds: Bounds, folder: str, names_workspace: bool) -> str | None:
        """Return the reason why a git directory outside of the workspace may not be copied. One that names
        the workspace belongs to it, wherever it lies; objects that a file of the workspace names do not.
        """
        try:
            if not names_workspace:
                roots.check_root(folder, self.manager.config.manager.workspace_roots)
            (bounds._replace(roots=None) if names_workspace else bounds).check(folder, "workspace_root")
            base.check_workspace(folder, self.manager.own)
        except OperationError as error:
            return error.message
        return None

    def _roll_back_killed(self, workspace: str) -> None:
        if "\0" not in workspace:
            recover.roll_back_killed(os.path.realpath(workspace), self.manager.exports.guards.journals)

    def _agent_sections(self, provider: Provider) -> tuple[bytes, dict[str, Any]]:
        """Read the agent's configuration, again for each call.

        Raises:
            OperationError: operation_failed, reason config_invalid, naming file, key and line.
        """
        config = self.manager.config
        try:
            yaml = config.daemon_yaml()
            agent = agent_config(yaml)
            if provider.name == "docker":
                check_profile_fits(agent, config.manager.docker.profile().daemon_runtime_profile)
        except ConfigError as error:
            file = config.daemon_yaml_path() or "the built-in document"
            details = {
                "file": file,
                "field": error.field,
                "line": error.line,
                "hint": "correct the file and repeat the call; the gateway keeps running",
            }
            where = "" if file in error.message else f"{file}: "
            raise OperationError(
                OPERATION_FAILED,
                f"daemon configuration: {where}{error.message}",
                details,
                reason="config_invalid",
            ) from error
        return yaml, agent.model_dump(mode="json")

    async def _one(self, provider: Provider, plan: SandboxPlan, progress: Progress) -> SandboxRecord:
        manager = self.manager
        record = SandboxRecord(
            id=plan.sandbox_id,
            workspace_root=plan.workspace_root,
            state="creating",
            provider="local" if provider.name == "local" else "docker",
            image=plan.image,
            token=plan.token,
            created_unix_ms=plan.created_unix_ms,
            quota=quota_of(plan.sections),
            warnings=list(plan.base.warnings[:WARNED]),
        )
        manager.registry.put(record)
        try:
            progress(f"creating runtime sandbox {record.id}")
            made = await manager.run(provider.create, plan, progress)
            progress(f"runtime sandbox created: {record.id}")
            record = record.but(
                daemon=made.daemon,
                daemon_http=made.daemon_http,
                shared_base=made.shared_base,
                resource_profile=made.resource_profile,
                provider_data=made.provider_data,
            )
            manager.registry.note(record)
            progress(f"daemon published on {made.daemon.host}:{made.daemon.port}")
            progress("waiting for readiness")
            docker = manager.config.manager.docker
            timeout_s, poll_s = docker.readiness_timeout_ms / 1000, docker.readiness_poll_ms / 1000
            closing = manager.closing.is_set
            await manager.run(
                lambda: wait_ready(provider, record, timeout_s=timeout_s, poll_s=poll_s, given_up=closing)
            )
            progress("ready")
            manager.forwarder.seen(record.id)
            record = manager.registry.move(record.id, ("creating",), "ready")
            progress(f"sandbox ready: {record.id}")
            return record
        except Exception:
            progress("destroying failed sandbox")
            await self._remove_half_made(provider, record)
            progress("failed sandbox destroyed")
            raise

    async def _remove_half_made(self, provider: Provider, record: SandboxRecord) -> None:
        """Remove a half-made sandbox; if that fails it stays listed as failed, so that a destroy can be tried
        again.
        """
        try:
            await self.manager.run(provider.destroy, record)
        except OperationError as error:
            log("take_back_failed", sandbox_id=record.id, error=error.message)
            self.manager.registry.put(record.but(state="failed"))
        else:
            self.manager.registry.remove(record.id)
