"""`export_changes`: one at a time per sandbox; a thread reads the agent's stream, checks it and writes to the
host.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
from collections.abc import AsyncGenerator, Callable
from dataclasses import replace
from typing import Any

from eos_agent.wire.protocol import OPERATION_FAILED, OperationError
from eos_mcp.agent_client.pool import AgentPool
from eos_mcp.config.model import Export
from eos_mcp.export import apply, exported, facts, reserve
from eos_mcp.export.apply import ExportRequest

CHUNK = 1 << 20
"""Bytes that are requested at a time while a line is read."""
STREAM_SILENCE_S = 120.0


class BlockingReader:
    """The bytes of one connection, each read with a deadline."""

    def __init__(
        self, connection: socket.socket, received: bytes, *, silence_s: float = STREAM_SILENCE_S
    ) -> None:
        self._whole = 0
        if os.name == "posix":  # SO_RCVTIMEO: the kernel keeps the deadline, and one call can fill a chunk
            connection.setblocking(True)
            connection.setsockopt(
                socket.SOL_SOCKET,
                socket.SO_RCVTIMEO,
                struct.pack("@ll", int(silence_s), int(silence_s % 1 * 1e6)),
            )
            self._whole = socket.MSG_WAITALL
        else:
            connection.settimeout(silence_s)
        self._connection = connection
        self._held = memoryview(received)

    def read(self, n: int, /) -> bytes:
        """Read n bytes, fewer only at a deadline or the end; empty at the end.

        Raises:
            TimeoutError: silence; OSError: the connection was lost.
        """
        if not self._held:
            return self._receive(n, self._whole)
        piece, self._held = bytes(self._held[:n]), self._held[n:]
        return piece

    def _receive(self, n: int, flags: int) -> bytes:
        try:
            return self._connection.recv(n, flags)
        except BlockingIOError:
            raise TimeoutError from None

    def readline(self, limit: int, /) -> bytes:
        """Read up to and including the next newline, at most `limit` bytes."""
        line = bytearray()
        while not line.endswith(b"\n") and len(line) < limit:
            if not self._held:
                self._held = memoryview(self._receive(CHUNK, 0))
                if not self._held:
                    break
            end = bytes(self._held).find(b"\n") + 1 or len(self._held)
            end = min(end, limit - len(line))
            line += self._held[:end]
            self._held = self._held[end:]
        return bytes(line)


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
