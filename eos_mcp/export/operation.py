"""`export_changes`: one at a time per sandbox; a thread reads the agent's stream, checks it and writes to the
host.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import AsyncGenerator, Callable
from dataclasses import replace
from typing import Any

from eos_agent.wire.protocol import OPERATION_FAILED, OperationError
from eos_mcp.agent_client.pool import AgentPool
from eos_mcp.config.model import Export
from eos_mcp.export import apply, exported, facts, reserve
from eos_mcp.export.apply import ExportRequest
from eos_mcp.export.blocking_reader import BlockingReader


class Exports:
    """The running exports. `records`: directory of the records of exports, by sandbox and destination."""

    def __init__(
        self,
        settings: Export,
        guards: apply.Guards,
        forwarder: AgentPool,
        run: Callable[..., Any],
        records: str,
    ) -> None:
        """`run(function, *args)` awaits a blocking call in a thread."""
        self.settings, self.guards, self.forwarder, self._run, self.records = (
            settings,
            guards,
            forwarder,
            run,
            records,
        )
        self._under_way: set[str] = set()
        reserve.keep(guards.journals)

    def check(self, request: ExportRequest) -> ExportRequest:
        """Return the request with its destination resolved.

        Raises:
            OperationError: the destination is refused, before the sandbox is asked.
        """
        return request.at(apply.check_destination(request.dest, request.fmt, self.guards))

    def forget(self, sandbox_id: str) -> None:
        """Remove the records of a sandbox that is gone."""
        facts.forget(self.records, sandbox_id)

    @contextlib.asynccontextmanager
    async def alone(self, sandbox_id: str) -> AsyncGenerator[None]:
        """Let no other export or import of the sandbox run during the block; a dry run counts too.

        Raises:
            OperationError: operation_failed, reason export_in_flight.
        """
        if sandbox_id in self._under_way:
            details = {"sandbox_id": sandbox_id, "retryable": True}
            raise OperationError(
                OPERATION_FAILED,
                f"an export or import of sandbox {sandbox_id} is already in flight",
                details,
                reason="export_in_flight",
            )
        self._under_way.add(sandbox_id)
        try:
            yield
        finally:
            self._under_way.discard(sandbox_id)

    async def run(
        self, request: ExportRequest, workspace: str, request_id: str, progress: Callable[[str], None]
    ) -> dict[str, Any]:
        """Run one export, in a block of `alone`; return the result of `export_changes`.

        Args:
            request: result of `check`.
            workspace: the directory that the sandbox was made from.
        Raises:
            OperationError: what the forwarder and `export.apply` raise.
        """
        sandbox_id = request.sandbox_id
        try:
            limits = apply.ExportLimits(
                self.settings.max_stream_bytes,
                self.settings.max_decompressed_bytes,
                self.settings.max_apply_entries,
            )
            exclude = request.rules.ignored == "exclude"
            wanted: dict[str, Any] = {"digests": True, "sparse": True}
            wanted["ignored"] = "exclude" if exclude else "count"
            if request.fmt == "dir":
                record = facts.place_of(self.records, sandbox_id, request.dest)
                request = replace(request, rules=request.rules._replace(workspace=workspace, record=record))
                if await self._run(os.path.lexists, request.dest):
                    wanted["earlier"] = True
                    wanted["ignored"] = "mark" if exclude else "count"
                    wanted["outputs"] = request.rules.times != "keep"
                    if request.base is None or not await self._run(os.path.isdir, request.base):
                        wanted["base"] = True
            if "earlier" not in wanted:  # no record of an earlier export prevents it
                wanted["runs"] = True
            if request.version is not None:
                wanted["version"] = request.version
            async with self.forwarder.stream(sandbox_id, "export_stream", wanted, request_id=request_id) as (
                connected,
                received,
            ):
                reader = BlockingReader(connected, received)
                result: dict[str, Any] = await self._run(
                    lambda: apply.apply(reader, request, limits=limits, places=self.guards, progress=progress)
                )
            if not request.dry_run and not request.rules.skip_unsafe and not result.get("kept_back_count"):
                with contextlib.suppress(OSError):  # the export is done; without the note it counts as none
                    await self._run(
                        exported.note, self.records, sandbox_id, result["manifest_version"], request.dest
                    )
            return result
        finally:
            await self._run(reserve.keep, self.guards.journals)


def guards(own: tuple[str, ...], registry: str, state_dir: str) -> apply.Guards:
    """Return the paths of a gateway to which exports never write."""
    return apply.Guards(
        home=os.path.expanduser("~"), own=own, journals=journals_of(state_dir), registry=registry
    )


def journals_of(state_dir: str) -> str:
    """Return the directory with the records of running exports."""
    return os.path.join(state_dir, "exports")
