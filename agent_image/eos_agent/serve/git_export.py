"""The internal operations export_git_heads and export_git: the publications of a version as commits of git.

The stream has the form of export_stream: a line of JSON, frames with their length before them, an empty
frame, a line of JSON. The frames together are the entries of a pack.
"""

from __future__ import annotations

import json
import struct
from collections.abc import AsyncGenerator, Iterator
from typing import TYPE_CHECKING, Any, cast

from eos_agent.base import telemetry
from eos_agent.base.errors import operation_error
from eos_agent.base.pool import Pool
from eos_agent.wire.protocol import INVALID_REQUEST, OperationError

if TYPE_CHECKING:
    from layerstack.export.git_commits import ExportedRef, GitExport, GitExportRequest
    from layerstack.store import Store

FORMAT = 1
FRAME_BYTES = 1 << 20
TEXT_MAX = 200


def heads(store: Store, args: dict[str, Any]) -> dict[str, Any]:
    """Give the newest version with the commits that HEAD names in it and named at creation.

    Args:
        args: previous: null or the commit of the destination's ref; `in_tip` then tells whether it is HEAD's
            commit or one of its ancestors.
    """
    from layerstack.export.git_commits import heads_of, is_in_tip

    previous = args.get("previous")
    with store.reading() as snapshot:
        found = heads_of(snapshot)
        return {
            "in_tip": previous is not None and is_in_tip(snapshot, found, _oid(previous)),
            "version": snapshot.manifest.version,
            "is_repository": found.is_repository,
            "object_format": found.fmt.name,
            "parent": None if found.parent is None else found.parent.hex(),
            "tip": None if found.tip is None else found.tip.hex(),
        }


def request_of(args: dict[str, Any]) -> tuple[int, GitExportRequest]:
    """Check the arguments of export_git.

    Args:
        args: version; sandbox_id; history; has_tip; dry_run; previous: null or an object with oid, tree,
            version, contains_tip, in_tip, history.
    Raises:
        OperationError: invalid_request, reason bad_argument.
    """
    from layerstack.export.git_commits import HISTORIES, GitExportRequest

    version, sandbox_id, history = args.get("version"), args.get("sandbox_id"), args.get("history")
    if type(version) is not int:
        raise _malformed("version")
    if not isinstance(sandbox_id, str) or not 0 < len(sandbox_id) <= TEXT_MAX:
        raise _malformed("sandbox_id")
    if history not in HISTORIES:
        raise _malformed("history")
    return version, GitExportRequest(
        sandbox_id,
        history,
        _previous(args.get("previous")),
        args.get("has_tip") is True,
        args.get("dry_run") is True,
    )


def _previous(given: Any) -> ExportedRef | None:
    from layerstack.export.git_commits import ExportedRef

    if given is None:
        return None
    if not isinstance(given, dict):
        raise _malformed("previous")
    known = cast("dict[str, Any]", given)
    version: Any = known.get("version")
    history: Any = known.get("history") or []
    if (version is not None and type(version) is not int) or not isinstance(history, list):
        raise _malformed("previous")
    ids: list[Any] = history  # pyright: ignore[reportUnknownVariableType]
    return ExportedRef(
        _oid(known.get("oid")),
        _oid(known.get("tree")),
        version,
        known.get("contains_tip") is True,
        known.get("in_tip") is True,
        frozenset(map(_oid, ids)),
    )


def _oid(text: Any) -> bytes:
    if not isinstance(text, str) or len(text) not in (40, 64) or text.strip("0123456789abcdef"):
        raise _malformed("previous")
    return bytes.fromhex(text)


def _malformed(name: str) -> OperationError:
    return OperationError(
        INVALID_REQUEST, f"export_git: {name} is malformed", {"argument": name}, reason="bad_argument"
    )


async def pack_pieces(
    store: Store, pool: Pool, args: dict[str, Any], span: telemetry.Span | telemetry.Nothing
) -> AsyncGenerator[bytes]:
    """Yield the stream in pieces, each made in a thread of `pool`. The version has a lease until the end."""
    from layerstack.export.git_commits import GitExport

    broken: BaseException | None = None
    try:
        version, request = request_of(args)
        with telemetry.within(span):
            leased = pool.entered(store.lease(version))
        async with leased as snapshot:
            export = await pool.run(lambda: GitExport(store, snapshot, request))
            pieces = _frames(export)
            while piece := await pool.run(lambda: next(pieces, b"")):
                yield piece
    except BaseException as error:
        broken = error
        raise
    finally:
        span.end(broken)


def _frames(export: GitExport) -> Iterator[bytes]:
    yield json.dumps({"format": FORMAT, "object_format": export.fmt.name}).encode() + b"\n"
    waiting = bytearray()
    trailer: dict[str, Any]
    try:
        for piece in export.pieces():
            waiting += piece
            if len(waiting) >= FRAME_BYTES:
                yield struct.pack(">I", len(waiting)) + bytes(waiting)
                waiting.clear()
        trailer = export.result()
    except Exception as error:
        waiting.clear()
        shown = operation_error(error)
        trailer = {"error": {"kind": shown.kind, "message": shown.message, "details": shown.details}}
    if waiting:
        yield struct.pack(">I", len(waiting)) + bytes(waiting)
    yield bytes(4) + json.dumps(trailer).encode() + b"\n"
