"""The operation diff_session: the unpublished changes of a live session or a draft."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from eos_agent.base import telemetry
from eos_agent.sessions import look_back
from eos_agent.wire.protocol import INVALID_REQUEST, NOT_FOUND, OperationError
from eos_agent.wire.workspace_path import resolve
from layerstack.history import versions
from layerstack.model.conflict import path_json

if TYPE_CHECKING:
    from eos_agent.sessions.table import Sessions
    from layerstack.history.versions import Change, Page

STATUS = {"added": "A", "deleted": "D", "modified": "M", "attributes": "M", "type": "T"}


async def diff_session(sessions: Sessions, args: dict[str, Any], request_id: str) -> dict[str, Any]:
    """Compare a session, which is frozen for the call, or a draft with its base or with the head."""
    session_id, draft_id = args.get("workspace_session_id"), args.get("draft_id")
    if (session_id is None) == (draft_id is None):
        raise OperationError(
            INVALID_REQUEST,
            "diff_session takes either workspace_session_id or draft_id",
            {"argument": "workspace_session_id"},
            reason="one_of_two",
        )
    against, start = args["against"], look_back.cursor(args)
    store, root = sessions.store, sessions.settings.workspace_root
    under = ""
    if args.get("path") or args.get("path_b64"):
        under = resolve(args, root, lambda _path: False, allow_root=True)
    if draft_id is not None:
        page = await sessions.captures.run(
            lambda: versions.diff_draft(store, draft_id, against=against, under=under, start=start),
            request_id=request_id,
        )
        return {"draft_id": draft_id, "against": against, **_page(page, start)}
    assert session_id is not None
    async with sessions.use(session_id, kind=NOT_FOUND) as session:
        upper = session.upper
        await session.init.freeze()
        try:
            with telemetry.span("workspace_session.capture_changes", preview=True):
                page = await sessions.captures.run(
                    lambda: versions.diff_upper(store, upper, against=against, under=under, start=start),
                    request_id=request_id,
                )
        finally:
            await session.init.thaw()
        version = upper.snapshot.version
    found = {"workspace_session_id": session_id, "base_version": version, "against": against}
    return {**found, **_page(page, start)}


def _page(page: Page, start: int) -> dict[str, Any]:
    gone: dict[tuple[str | None, int | None], str] = {}
    for change in page.changes:
        if change.change == "deleted" and change.old.kind == "file" and change.old.size:
            gone.setdefault((change.old.digest, change.old.size), change.path)
    return {
        "entries": [_row(change, gone) for change in page.changes],
        "start": start,
        "next": None if page.next is None else str(page.next),
    }


def _row(change: Change, gone: dict[tuple[str | None, int | None], str]) -> dict[str, Any]:
    row: dict[str, Any] = {**path_json(change.path), "status": STATUS.get(change.change, "M")}
    row["change"] = change.change
    if change.change == "added" and change.new.kind == "file":
        source = gone.pop((change.new.digest, change.new.size), None)
        if source is not None:
            row |= {"from" + key.removeprefix("path"): value for key, value in path_json(source).items()}
    return row | look_back.lines_of(change)
