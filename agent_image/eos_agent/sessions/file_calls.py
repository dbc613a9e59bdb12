"""File operations of sessions; the init of a live session performs them inside its mount."""

from __future__ import annotations

import asyncio
import base64
import os
from typing import TYPE_CHECKING, Any

from eos_agent.base import log, telemetry
from eos_agent.files.move import COPY_NEEDED
from eos_agent.files.search import KILL_S, SEARCH_S
from eos_agent.sessions.gone import LOST
from eos_agent.wire.protocol import NOT_FOUND, OperationError
from layerstack.kernel import tempnames

if TYPE_CHECKING:
    from eos_agent.handles.init_handle import InitHandle
    from eos_agent.sessions.table import Sessions

WRITING = ("write", "edit")
KILLED = "operation_killed"
"""Reason of the error of a file operation whose process was killed."""
UNDO_TRIES = 3


def path_of(result: dict[str, Any]) -> str:
    """Return the path in the result of a file operation, relative to the workspace."""
    raw = result.get("path_b64")
    return str(result["path"]) if raw is None else os.fsdecode(base64.b64decode(raw))


async def file_op(
    sessions: Sessions,
    session_id: str,
    name: str,
    args: dict[str, Any],
    data: bytes | None,
    message: str | None = None,
) -> dict[str, Any]:
    """Perform a file operation inside the mount of a session; a long operation runs in a worker, so that init
    can serve commands.
    """
    async with sessions.use(session_id, kind=NOT_FOUND) as session:
        session.message = message or session.message
        with telemetry.span("namespace.exec.file_op", op=name):
            try:
                if name == "patch":
                    done = await _patch(session.init, args)
                else:
                    in_worker = name == "delete" and args["recursive"]
                    done = (await session.init.file_op(name, args, data, in_worker=in_worker))[0]
                for one in (done,) if name in WRITING else done.get("files", ()):
                    if one["type"] != "delete":
                        session.upper.note_written(path_of(one))
                return done
            except OperationError as error:
                if error.details.get("reason") != COPY_NEEDED:
                    raise
                return (await session.init.file_op(name, {**args, "copy": True}, data, in_worker=True))[0]


async def _patch(init: InitHandle, args: dict[str, Any]) -> dict[str, Any]:
    """Apply a patch in a worker. If its processes are killed, as for lack of memory, the files that were
    exchanged are put back.
    """
    args = {**args, "passing": tempnames.place_name()}
    try:
        return (await init.file_op("patch", args, in_worker=True))[0]
    except OperationError as error:
        if error.details.get("reason") == KILLED:
            await _undo_patch(init, args)
        raise


async def _undo_patch(init: InitHandle, args: dict[str, Any]) -> None:
    for _ in range(UNDO_TRIES):
        try:
            await init.file_op("undo_patch", args, in_worker=True)
            return
        except OperationError as error:
            log.failure("patch_not_undone", error, session=init.spec.session_id)


async def walk(sessions: Sessions, name: str, args: dict[str, Any], request_id: str) -> dict[str, Any]:
    """The operations file_search (`search`) and file_list with a glob (`glob`). A version is walked in a
    session that is made for the call. The gate is not held during a walk.
    """
    session_id: str | None = args.pop("workspace_session_id", None)
    version: int | None = args.pop("version", None)
    limit_s = SEARCH_S + KILL_S
    if session_id is not None:
        return await _walk_in(sessions, session_id, name, args, limit_s)
    own = await sessions.create_implicit(agent=None, request_id=request_id, version=version)
    try:
        with telemetry.span("namespace.exec.file_op", op=name):
            found = (await own.init.file_op(name, args, in_worker=True, limit_s=limit_s))[0]
            return found if version is None else {**found, "version": version}
    finally:
        await asyncio.shield(sessions.finalize(own))


async def _walk_in(
    sessions: Sessions, session_id: str, name: str, args: dict[str, Any], limit_s: float
) -> dict[str, Any]:
    """Walk in a live session; repeat the walk if the session got a new init during it."""
    while True:
        async with sessions.use(session_id, kind=NOT_FOUND) as session:
            init = session.init
        session.readers += 1
        try:
            with telemetry.span("namespace.exec.file_op", op=name):
                return (await init.file_op(name, args, in_worker=True, limit_s=limit_s))[0]
        except OperationError as error:
            if error.details.get("reason") != LOST:
                raise
            async with sessions.use(
                session_id, kind=NOT_FOUND
            ):  # raises the error of an ended session: published, destroyed or lost
                if session.init is init:
                    raise
        finally:
            session.readers -= 1
            session.touch()
