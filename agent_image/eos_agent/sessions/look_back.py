"""The operations about the past: authors of a file's lines, changes of a draft or a version, pins, and the
rollback to an earlier version.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from eos_agent.base.publication import publish_json
from eos_agent.wire.protocol import INVALID_REQUEST, NOT_FOUND, OperationError
from eos_agent.wire.workspace_path import resolve
from layerstack.errors import LayerStackError
from layerstack.history import versions
from layerstack.history.versions import Version
from layerstack.model.conflict import path_json

if TYPE_CHECKING:
    from layerstack.history.versions import Change
    from layerstack.store import Store


def _exists(store: Store, path: str) -> bool:
    try:
        with store.reading() as snapshot:
            return snapshot.stat(path) is not None
    except LayerStackError:
        return False


def file_blame(store: Store, root: str, args: dict[str, Any]) -> dict[str, Any]:
    """The operation file_blame, contract 1.2.8. A path outside the workspace has no author."""
    try:
        path = resolve(args, root, lambda p: _exists(store, p))
    except OperationError as error:
        if error.details.get("argument") != "path":
            raise
        given: str = error.details["path"]
        message = f"no auditability record for path: {given}"
        raise OperationError(NOT_FOUND, message, {"path": given}, reason="no_auditability_record") from None
    offset: int = args.get("offset", 1)
    parts = [part._asdict() for part in store.blame(path)]
    parts = [part for part in parts if part["start_line"] + part["line_count"] > offset]
    if parts and parts[0]["start_line"] < offset:
        parts[0]["line_count"] -= offset - parts[0]["start_line"]
        parts[0]["start_line"] = offset
    return {**path_json(path), "ranges": parts}


def cursor(args: dict[str, Any]) -> int:
    """Read the cursor of a request: the number of the first entry of the page.

    Raises:
        OperationError: invalid_request; the cursor does not come from one of these operations.
    """
    given = args.get("cursor") or "0"
    if not (given.isascii() and given.isdecimal() and len(given) < 16):
        raise OperationError(
            INVALID_REQUEST,
            "cursor was not returned by this operation",
            {"argument": "cursor"},
            reason="invalid_cursor",
        )
    return int(given)


def _under(store: Store, root: str, args: dict[str, Any]) -> str:
    if not args.get("path") and not args.get("path_b64"):
        return ""
    return resolve(args, root, lambda p: _exists(store, p), allow_root=True)


def lines_of(change: Change) -> dict[str, Any]:
    """The patch as text; `binary` if the content is not UTF-8 or too large."""
    made = change.patch
    if made is None:
        return {} if "directory" in (change.old.kind, change.new.kind) else {"binary": True}
    try:
        found: dict[str, Any] = {"patch": made.data.decode()}
    except UnicodeDecodeError:
        return {"binary": True}
    return {**found, "patch_truncated": True} if made.truncated else found


def _page(page: versions.Page, row: Callable[[Change], dict[str, Any]]) -> dict[str, Any]:
    entries = [
        {**path_json(change.path), "change": change.change, **row(change), **lines_of(change)}
        for change in page.changes
    ]
    return {"entries": entries, "next": None if page.next is None else str(page.next)}


def diff_draft(store: Store, root: str, args: dict[str, Any]) -> dict[str, Any]:
    """The operation diff_draft."""
    draft_id, against = args["draft_id"], args["against"]

    def row(change: Change) -> dict[str, Any]:
        found = {"base": change.base.to_json(), "ours": change.new.to_json()}
        return {**found, "theirs": change.old.to_json()} if against == "head" else found

    page = versions.diff_draft(
        store, draft_id, against=against, under=_under(store, root, args), start=cursor(args)
    )
    return {"draft_id": draft_id, "against": against, **_page(page, row)}


def diff_versions(store: Store, root: str, args: dict[str, Any]) -> dict[str, Any]:
    """The operation diff_versions."""
    old, new = args["from"], args["to"]
    page = versions.diff_versions(store, old, new, under=_under(store, root, args), start=cursor(args))
    return {
        "from": old,
        "to": new,
        **_page(page, lambda change: {"from": change.old.to_json(), "to": change.new.to_json()}),
    }


def list_versions(store: Store, _root: str, args: dict[str, Any]) -> dict[str, Any]:
    """The operation list_versions."""
    found, after = versions.versions(store, after=args.get("after"), limit=args["limit"])
    head = store.head.version
    return {
        "versions": [_row(version, head) for version in found],
        "next": after,
    }


SHOWN_MESSAGE = 500
"""Characters of a message that a list of versions shows."""


def _row(version: Version, head: int) -> dict[str, Any]:
    row: dict[str, Any] = {**version._asdict(), "head": version.version == head}
    if version.message is None:
        del row["message"]
    else:
        row["message"] = version.message[:SHOWN_MESSAGE]
    return row


def pin_version(store: Store, _root: str, args: dict[str, Any], request_id: str) -> dict[str, Any]:
    """The operation pin_version."""
    return {
        **store.pin_version(args["version"], agent=args.get("agent"), request_id=request_id)._asdict(),
        "pinned": True,
    }


def unpin_version(store: Store, _root: str, args: dict[str, Any]) -> dict[str, Any]:
    """The operation unpin_version."""
    return {"version": args["version"], "pinned": False, "was_pinned": store.unpin_version(args["version"])}


def rollback_to(store: Store, _root: str, args: dict[str, Any], request_id: str) -> dict[str, Any]:
    """The operation rollback_to."""
    version = args["version"]
    done = store.rollback(
        version, owner=f"operation:{request_id}", request_id=request_id, agent=args.get("agent")
    )
    return {"version": version, "publish": publish_json(done), "layer_id": done.layer_id}
