"""`export_changes --format git`: publications and agents' commits become commits at a ref of a repository."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeGuard

from eos_agent.wire.protocol import INVALID_REQUEST, OperationError, is_error
from eos_mcp.agent_client.pool import AgentPool
from eos_mcp.export import apply, exported, git_refs_record
from eos_mcp.export.apply import Guards
from eos_mcp.export.blocking_reader import BlockingReader
from eos_mcp.export.destination_git import git_failed
from eos_mcp.export.git_repository import GitRepository, RefState, ref_moved
from eos_mcp.export.git_stream import receive, sandbox_refused
from eos_mcp.export.stream import ExportLimits, refused
from eos_mcp.requests import arguments, bounds
from eos_mcp.requests.bounds import Bounds

FORMAT = "git"
HISTORIES = ("publish", "session", "one")
HEADS_S = 120.0
_NOT_IN_A_REF = re.compile(r"[^A-Za-z0-9_-]+")
_OID = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")


@dataclass(frozen=True)
class GitExportCall:
    """The arguments of a call. `dest`: a repository; empty for that of the workspace."""

    sandbox_id: str
    dest: str
    ref: str
    history: str
    dry_run: bool
    bound: Bounds | None = None
    workspace: str = ""


def wants_git(args: Mapping[str, Any]) -> bool:
    return args.get("format") == FORMAT


def call_of(args: Mapping[str, Any]) -> GitExportCall:
    """Read the arguments of a call.

    Raises:
        OperationError: invalid_request.
    """
    op = "export_changes"
    sandbox_id = arguments.text(args, "sandbox_id", op)
    history = arguments.text(args, "history", op, default="publish")
    if history not in HISTORIES:
        raise OperationError(
            INVALID_REQUEST,
            f"unknown history: {history}, it is one of {', '.join(HISTORIES)}",
            {"argument": "history"},
            reason="bad_argument",
        )
    ref = arguments.text(args, "ref", op, default=f"refs/heads/eos/{_NOT_IN_A_REF.sub('-', sandbox_id)}")
    return GitExportCall(
        sandbox_id,
        arguments.text(args, "dest", op, default="", non_empty=False),
        ref,
        history,
        arguments.flag(args, "dry_run"),
        bounds.of_request(args),
    )


class GitExports:
    """Exports to git of one gateway.

    Args:
        records: directory of the records of exports.
        run: awaits a blocking call in a thread.
    """

    def __init__(
        self,
        guards: Guards,
        limits: ExportLimits,
        forwarder: AgentPool,
        run: Callable[..., Awaitable[Any]],
        records: str,
    ) -> None:
        self._guards, self._limits, self._forwarder = guards, limits, forwarder
        self._run, self._records = run, records

    def check(self, call: GitExportCall) -> GitExportCall:
        """Return the call with its destination resolved; the workspace's repository by default.

        Raises:
            OperationError: the destination is refused, before the sandbox is asked.
        """
        dest = call.dest or call.workspace
        if call.bound is not None:
            call.bound.check(dest, "dest")
        place = apply.check_destination(dest, "dir", self._guards)
        if not os.path.isdir(place):
            raise OperationError(
                INVALID_REQUEST,
                f"export destination {dest!r} is not a directory; the format git writes to a repository",
                {"argument": "dest", "dest": dest},
                reason="bad_destination",
            )
        return replace(call, dest=place)

    async def run(
        self, call: GitExportCall, request_id: str, progress: Callable[[str], None]
    ) -> dict[str, Any]:
        """Run one export, in a block of `Exports.alone`; return the result of `export_changes`.

        Raises:
            OperationError: see docs/protocol.md.
        """
        repository, before = await self._run(self._open, call)
        heads = await self._heads(call, before, request_id)
        wanted = await self._run(self._plan, call, repository, before, heads)
        if not call.dry_run:
            await self._run(repository.sweep)
            await self._run(os.makedirs, self._guards.journals, 0o700, True)
        async with self._forwarder.stream(call.sandbox_id, "export_git", wanted, request_id=request_id) as (
            connected,
            received,
        ):
            reader = BlockingReader(connected, received)
            result: dict[str, Any] = await self._run(
                lambda: self._write(call, repository, before, heads, reader, request_id, progress)
            )
            return result

    def _open(self, call: GitExportCall) -> tuple[GitRepository, RefState | None]:
        repository = GitRepository(call.dest)
        repository.check_ref(call.ref)
        return repository, repository.ref_state(call.ref, call.sandbox_id)

    async def _heads(self, call: GitExportCall, before: RefState | None, request_id: str) -> dict[str, Any]:
        reply = await self._forwarder.request(
            call.sandbox_id,
            "export_git_heads",
            {"previous": None if before is None else before.oid},
            request_id=f"{request_id[:200]}:heads",
            timeout_s=HEADS_S,
        )
        if is_error(reply):
            raise sandbox_refused(reply["error"])
        for name in ("parent", "tip"):
            if reply.get(name) is not None and not _OID.fullmatch(str(reply[name])):
                raise refused(f"the sandbox names {reply[name]!r} as its {name}", "bad_stream")
        return reply

    def _plan(
        self,
        call: GitExportCall,
        repository: GitRepository,
        before: RefState | None,
        heads: dict[str, Any],
    ) -> dict[str, Any]:
        """Compare the sandbox's heads with the repository, and make the arguments of `export_git`."""
        parent, tip = heads.get("parent"), heads.get("tip")
        if not heads.get("is_repository") and not call_has_own_dest(call):
            raise git_failed(
                "the workspace of the sandbox is not a git repository",
                "not_a_repository",
                hint="run `git init` in it before the sandbox is made, or name another repository as dest",
            )
        if (heads.get("is_repository") or parent) and heads.get("object_format") != repository.object_format:
            raise git_failed(
                f"the sandbox has {heads.get('object_format')} objects and {call.dest} has"
                f" {repository.object_format}",
                "object_format",
            )
        if parent is not None and not repository.has(parent):
            raise git_failed(
                f"{call.dest} lacks the commit {parent}, which the workspace had checked out at creation",
                "parent_missing",
                parent=parent,
                dest=call.dest,
                hint="name the repository that the workspace is a clone of, or fetch the commit into it",
            )
        previous: dict[str, Any] | None = None
        if before is not None:
            in_tip = heads.get("in_tip") is True
            record = git_refs_record.read(self._records, call.sandbox_id)
            left = record.get(repository.common, {}).get(call.ref)
            if not in_tip and (before.oid != left if left is not None else not before.is_ours):
                raise ref_moved(call.ref, before.oid, left)
            previous = {
                "oid": before.oid,
                "tree": before.tree,
                "version": before.version,
                "in_tip": in_tip,
                "history": repository.history(before.oid, parent),
                "contains_tip": tip is not None
                and repository.has(tip)
                and repository.is_ancestor(tip, before.oid),
            }
        return {
            "version": heads.get("version"),
            "sandbox_id": call.sandbox_id,
            "history": call.history,
            "dry_run": call.dry_run,
            "has_tip": tip is not None and repository.has_reachable(tip),
            "previous": previous,
        }

    def _write(
        self,
        call: GitExportCall,
        repository: GitRepository,
        before: RefState | None,
        heads: dict[str, Any],
        reader: BlockingReader,
        request_id: str,
        progress: Callable[[str], None],
    ) -> dict[str, Any]:
        old = None if before is None else before.oid
        folder = None if call.dry_run else self._guards.journals
        pack, trailer = receive(reader, self._limits, repository.object_format, folder)
        with pack:
            head = trailer.get("head")
            if head is not None and not _OID.fullmatch(str(head)):
                raise refused(f"the sandbox names {head!r} as the new commit", "bad_stream")
            result = _result(call, heads, trailer)
            if call.dry_run or head is None or head == old:
                return result
            progress(f"checking {trailer['objects']} objects")
            if trailer["objects"]:
                name = re.sub(r"[^A-Za-z0-9]", "", request_id)[:40] + os.urandom(4).hex()
                with repository.receiving(name) as incoming:
                    incoming.take(pack, head, old)
            elif old is not None and not repository.is_ancestor(old, head):
                raise refused(f"the sandbox named {head}, which does not follow {old}", "bad_stream")
            repository.set_ref(call.ref, head, old, f"eos: export of sandbox {call.sandbox_id}")
            with contextlib.suppress(OSError):  # the trailers say it too
                git_refs_record.note(self._records, call.sandbox_id, repository.common, call.ref, head)
            with contextlib.suppress(OSError):
                exported.note(self._records, call.sandbox_id, result["manifest_version"], call.dest)
        return result


def call_has_own_dest(call: GitExportCall) -> bool:
    """Tell whether the repository is another one than the workspace's."""
    return bool(call.dest) and os.path.realpath(call.dest) != os.path.realpath(call.workspace or "/")


LEFT_OUT = {
    "other_refs": "commits that are not on the sandbox's checked-out branch, which alone is exported: switch "
    "to that branch or merge it in a session, publish, and export again",
    "left_out": "a name that git refuses",
}
"""Key of the sandbox's answer -> why what it lists is not exported."""


def _is_object(value: object) -> TypeGuard[Mapping[str, Any]]:
    return isinstance(value, Mapping)


def _rows(value: Any) -> list[Any]:
    """Give a JSON array; [] for anything else."""
    found: list[Any] = value if isinstance(value, list) else []  # pyright: ignore[reportUnknownVariableType]
    return found


def _result(call: GitExportCall, heads: dict[str, Any], trailer: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {
        "format": FORMAT,
        "dest": call.dest,
        "ref": call.ref,
        "parent": trailer.get("parent"),
        "head": trailer.get("head"),
        "manifest_version": heads.get("version"),
        "commits": trailer.get("commits"),
        "commit_count": trailer.get("commit_count"),
    }
    if trailer.get("empty_directories"):
        found["empty_directories"] = trailer["empty_directories"]
    left = [(row, why) for key, why in LEFT_OUT.items() for row in _rows(trailer.get(key))]
    if left:
        found["left_out"] = {
            "count": len(left),
            "paths": [row for row, _ in left],
            "why": [
                {"count": count, "why": why}
                for key, why in LEFT_OUT.items()
                if (count := len(_rows(trailer.get(key))))
            ],
        }
    if trailer.get("ignored_count"):
        found["ignored"] = {"files": trailer["ignored_count"], "included": False}
    large = _rows(trailer.get("large"))
    if large:
        found["hygiene"] = [
            {"path": str(row.get("path")), "why": f"large file: {row.get('bytes')} bytes"}
            for row in large
            if _is_object(row)
        ]
    if call.dry_run:
        found["dry_run"] = True
    return found
