"""`import_changes`: what the person changed in the workspace directory becomes one publication of the
sandbox, or every conflict and no change.

The record of the copy is written before the publication under another name, and renamed after it: a gateway
that is killed in between asks the agent afterwards.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, cast

from eos_agent.wire.operation import ANSWER_S
from eos_agent.wire.protocol import (
    INVALID_REQUEST,
    OPERATION_FAILED,
    UNKNOWN_OP,
    OperationError,
    is_error,
)
from eos_mcp.agent_client.pool import AgentPool
from eos_mcp.export.facts import Fact, RecordFull
from eos_mcp.export.request import ContentOf
from eos_mcp.imports import copied, exported_facts
from eos_mcp.imports.copied import CopiedRecord
from eos_mcp.imports.directory_changes import DirectoryChanges, Row
from eos_mcp.workspace import git_directories
from eos_mcp.workspace.git_directories import Borrowed, Refusal
from eos_mcp.workspace.tree_index import Listing, look
from layerstack.kernel import fsync
from layerstack.kernel.base_xattrs import Keeping

OP = "import_tree"
ROUNDS = 5
"""Most rounds in which paths that changed while they were read are read again."""
ASK_CONTENT_S = 150.0
LISTED_MAX = 200
NAMED_MAX = 50


class ImportRequest(NamedTuple):
    """One call of `import_changes`."""

    sandbox_id: str
    workspace: str
    """The directory, resolved."""
    root_hash: str
    copy: str
    """The sandbox's base on this machine."""
    keeping: Keeping
    paths: tuple[str, ...] = ()
    dry_run: bool = False
    agent: str | None = None
    refusal: Refusal = lambda _, __: None
    """As of `git_directories.complete`: repositories outside that belong to the directory come along."""


class Importer:
    """Imports of one gateway. `records`: the directory of the records of copies; `exports`: of exports."""

    def __init__(
        self,
        forwarder: AgentPool,
        run: Callable[..., Any],
        records: str,
        exports: str,
        check_idle: Callable[[str], None],
    ) -> None:
        """
        Args:
            run: `run(function, *args)` awaits a blocking call in a thread.
            check_idle: raises OperationError while an export changes the directory.
        """
        self.forwarder, self._run, self.records, self.exports = forwarder, run, records, exports
        self._check_idle = check_idle

    def note_copy(self, sandbox_id: str, index_path: str, git_ref: str | None = None) -> None:
        """Keep the index of the copy that a new sandbox starts from, or the commit that it starts from."""
        folder = copied.folder_of(self.records, sandbox_id)
        if git_ref is None:
            copied.note_copy(folder, index_path)
        else:
            copied.note_commit(folder, git_ref)

    def forget(self, sandbox_id: str) -> None:
        """Remove the record of a sandbox that is gone."""
        copied.forget(self.records, sandbox_id)

    def content_of(self, sandbox_id: str, request_id: str) -> ContentOf:
        """Return a function for threads, on this event loop's gateway: content that an import kept, or that a
        layer of the sandbox has.
        """
        loop = asyncio.get_running_loop()
        folder = copied.folder_of(self.records, sandbox_id)

        def content(path: bytes, digest: bytes) -> bytes | None:
            if (kept := copied.kept_content(folder, digest.hex())) is not None:
                return kept
            args = {"path": base64.b64encode(path).decode(), "digest": base64.b64encode(digest).decode()}
            ask = _Asking(self.forwarder, sandbox_id, request_id)
            try:
                asked = asyncio.run_coroutine_threadsafe(ask.step("content", args), loop)
                data = asked.result(ASK_CONTENT_S)["data"]
            except (OperationError, TimeoutError):
                return None  # the file is then a conflict
            return None if data is None else base64.b64decode(data)

        return content

    def note_export(self, request: ImportRequest) -> None:
        """Take into the record what an export to the workspace wrote; the next import would do it too, but
        with less knowledge of modes. Best effort.
        """
        with contextlib.suppress(OSError, OperationError):
            record = self._load(request)
            if copied.pending(record) is None and self._absorb(record, request):
                record.write("copied.json")

    async def run(
        self, request: ImportRequest, request_id: str, progress: Callable[[str], None]
    ) -> dict[str, Any]:
        """Import once; return the result of `import_changes`.

        Raises:
            OperationError: operation_failed: the conflicts, in `publish_rejection`; workspace_changing,
                workspace_unreadable, import_record_unreadable, copy_unknown; what the forwarder raises.
        """
        record = await self._run(self._load, request)
        await self._settle_pending(record, request.sandbox_id, request_id)
        await self._run(self._absorb, record, request)
        ask = _Asking(self.forwarder, request.sandbox_id, request_id)
        changes = DirectoryChanges(
            request.workspace, record, request.keeping, request.paths, keep=not request.dry_run
        )
        try:
            listing, rounds = await self._read(request, changes, ask, progress)
            progress(f"{len(changes.changes)} paths changed in {request.workspace}")
            done = await self._publish(request, record, changes, ask, request_id)
        finally:
            await ask.end()
            await self._run(_clean, record)
        return {
            "sandbox_id": request.sandbox_id,
            "workspace_root": request.workspace,
            "dry_run": request.dry_run,
            **_listed(changes),
            **done,
            **_left_out(listing),
            "rounds": rounds,
        }

    def _load(self, request: ImportRequest) -> CopiedRecord:
        folder = copied.folder_of(self.records, request.sandbox_id)
        return copied.load(folder, request.root_hash, request.copy)

    def _absorb(self, record: CopiedRecord, request: ImportRequest) -> int:
        return exported_facts.absorb(
            record, self.exports, request.sandbox_id, request.workspace, request.keeping
        )

    async def _settle_pending(self, record: CopiedRecord, sandbox_id: str, request_id: str) -> None:
        """Decide the record that a killed gateway left: the agent knows whether its import was published."""
        published_as = await self._run(copied.pending, record)
        if published_as is None:
            return
        ask = _Asking(self.forwarder, sandbox_id, request_id)
        found = await ask.step("find", {"published": published_as})
        await self._run(copied.accept_pending if found["published"] else copied.drop_pending, record)

    async def _read(
        self, request: ImportRequest, changes: DirectoryChanges, ask: _Asking, progress: Callable[[str], None]
    ) -> tuple[Listing, int]:
        """Send the changes of the directory as it is at one time."""
        for number in range(1, ROUNDS + 1):
            await self._run(self._check_idle, request.workspace)
            found: Borrowed = await self._run(_walk, request)
            listing = found.listing
            if number > 1:
                read, gone = await self._run(changes.candidates, listing)
                if not read and not gone:
                    return listing, number - 1
            batches = changes.rows(found)
            while (batch := await self._run(_next, batches)) is not None:
                await ask.put(batch)
            if number == 1 and not changes.new:
                return listing, 1
            progress(f"read {len(changes.new)} changed paths of {request.workspace}")
        listing = (await self._run(_walk, request)).listing
        read, gone = await self._run(changes.candidates, listing)
        if not read and not gone:
            return listing, ROUNDS
        paths = sorted({*read, *gone})
        raise OperationError(
            OPERATION_FAILED,
            f"import: {len(paths)} paths of {request.workspace} kept changing while they were read "
            f"{ROUNDS} times, nothing was published: {', '.join(paths[:5])}",
            {"unstable": paths[:NAMED_MAX], "retryable": True},
            reason="workspace_changing",
        )

    async def _publish(
        self,
        request: ImportRequest,
        record: CopiedRecord,
        changes: DirectoryChanges,
        ask: _Asking,
        request_id: str,
    ) -> dict[str, Any]:
        if not changes.changes:
            if not request.dry_run:
                await self._run(_save, record, changes, None)
            return {"no_op": True}
        batches = changes.beside()
        while (batch := await self._run(_next, batches)) is not None:
            await ask.put(batch)
        await self._run(self._check_idle, request.workspace)
        if request.dry_run:
            return await ask.step("preview", timeout_s=None)
        published_as = f"{request_id[:200]}:{os.urandom(6).hex()}"
        coming = exported_facts.facts_of(changes)
        await self._run(_save, record, changes, published_as, coming)
        try:
            done = await ask.step(
                "publish", {"agent": request.agent}, request_id=published_as, timeout_s=None
            )
        except OperationError as error:
            if "publish_rejection" in error.details:
                await self._run(copied.drop_pending, record)
                error.details["hint"] = _conflict_hint(error.details["publish_rejection"])
            raise
        await self._run(copied.accept_pending, record)
        with contextlib.suppress(OSError, OperationError, RecordFull):
            await self._run(
                exported_facts.note_import, coming, self.exports, request.sandbox_id, request.workspace
            )
        return {"no_op": done["publish"]["no_op"], **done}


def _conflict_hint(rejection: Mapping[str, Any]) -> str:
    if any("commits" in one for one in rejection.get("conflicts") or ()):
        return (
            "commits of both sides conflict: commit what is uncommitted, export_changes with format git, "
            "git merge the exported branch, then import_changes again"
        )
    return (
        "make the directory and the sandbox agree at these paths: edit or revert the file, or "
        "export_changes with on_conflict merge first; paths leaves out all but the named ones"
    )


class _Asking:
    """The requests of one import. The agent's side is opened with the first rows."""

    def __init__(self, forwarder: AgentPool, sandbox_id: str, request_id: str) -> None:
        self._forwarder, self._sandbox_id, self._request_id = forwarder, sandbox_id, request_id
        self._import_id = ""
        self._count = 0

    async def put(self, batch: Sequence[Row]) -> None:
        await self.step("put", {"entries": batch})

    async def step(
        self,
        name: str,
        more: dict[str, Any] | None = None,
        *,
        request_id: str | None = None,
        timeout_s: float | None = 4 * ANSWER_S,
    ) -> dict[str, Any]:
        """Perform one step of the agent's operation.

        Raises:
            OperationError: the agent's error, or the forwarder's; agent_too_old.
        """
        args: dict[str, Any] = {"step": name, **(more or {})}
        if name not in ("open", "find", "content"):
            if not self._import_id:
                self._import_id = (await self.step("open"))["import_id"]
            args["import_id"] = self._import_id
        self._count += 1
        own_id = request_id or f"{self._request_id[:200]}:import-{self._count}"
        reply = await self._forwarder.request(
            self._sandbox_id, OP, args, request_id=own_id, timeout_s=timeout_s
        )
        if not is_error(reply):
            return reply
        error = reply["error"]
        if error.get("kind") == UNKNOWN_OP:
            raise OperationError(
                OPERATION_FAILED,
                f"the agent of sandbox {self._sandbox_id} is too old for import_changes",
                {"sandbox_id": self._sandbox_id, "hint": "create another sandbox"},
                reason="agent_too_old",
            )
        raise OperationError(error["kind"], error["message"], error.get("details") or {})

    async def end(self) -> None:
        """Let the agent remove what is left; best effort."""
        if self._import_id:
            with contextlib.suppress(OperationError):
                await self.step("discard")


def _walk(request: ImportRequest) -> Borrowed:
    return git_directories.complete(request.workspace, look(request.workspace), request.refusal)


def _next(batches: Iterator[list[Row]]) -> list[Row] | None:
    return next(batches, None)


def _save(
    record: CopiedRecord,
    changes: DirectoryChanges,
    published_as: str | None,
    coming: dict[str, Fact] | None = None,
) -> None:
    """Record the entries that were read; with an id only once that request is published.

    Args:
        coming: the facts that the record of exports will get.
    """
    before, seen = dict(record.changed), dict(record.seen)
    record.changed.update(changes.settled())
    exported_facts.will_see(record, coming or {})
    if changes.kept:
        folder = os.path.join(record.folder, "content")
        fsync.sync_files(folder, changes.kept, [folder])
    if published_as is None:
        record.write("copied.json")
        return
    record.write("next.json", published_as)
    record.changed, record.seen = before, seen


def _clean(record: CopiedRecord) -> None:
    """Remove content that no entry names, unless it is not known yet which record is valid."""
    if not os.path.exists(os.path.join(record.folder, "next.json")):
        record.remove_unused_content()


def _listed(changes: DirectoryChanges) -> dict[str, Any]:
    paths = sorted(changes.changes)
    shown = [
        {"path": os.fsencode(path).decode("utf-8", "replace"), "change": changes.changes[path]}
        for path in paths[:LISTED_MAX]
    ]
    return {"changed": shown, "changed_count": len(paths)}


def _left_out(listing: Listing) -> dict[str, Any]:
    left = [os.fsencode(p).decode("utf-8", "replace") for p in (*listing.special, *listing.staging)]
    return {"left_out": left[:NAMED_MAX]} if left else {}


def checked_paths(given: object, workspace: str) -> tuple[str, ...]:
    """Check the argument `paths`: relative to the workspace, or absolute inside it.

    Raises:
        OperationError: invalid_request, reason bad_argument.
    """
    found: list[str] = []
    for one in cast("list[object]", given) if isinstance(given, list) else []:
        path = one if isinstance(one, str) else ""
        if os.path.isabs(path):
            path = os.path.relpath(path, workspace)
        path = os.path.normpath(path) if path else ""
        if not path or path == ".." or path.startswith("../") or "\0" in path:
            raise OperationError(
                INVALID_REQUEST,
                f"paths: {one!r} is not a path in the workspace {workspace}",
                {"argument": "paths", "value": one},
                reason="bad_argument",
            )
        if path == ".":
            return ()
        found.append(path)
    return tuple(found)
