"""The internal operation import_tree: the gateway sends the changes of a workspace directory in several
requests, and the agent publishes them as one layer.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import os
from typing import TYPE_CHECKING, Any, cast

from eos_agent.base.publication import preview_json, publish_json, rejection_of
from eos_agent.sessions import disk_space
from eos_agent.wire.protocol import (
    INVALID_REQUEST,
    NOT_FOUND,
    OPERATION_FAILED,
    SERVER_BUSY,
    OperationError,
)
from layerstack.errors import PublishRejected
from layerstack.publish.publish import Author

if TYPE_CHECKING:
    from eos_agent.sessions.table import Sessions
    from layerstack.session.incoming import Incoming, IncomingEntry

IDLE_S = 600.0
"""Time without a request after which an import is discarded: its gateway was killed."""
OPEN_MAX = 4
ENTRIES_MAX = 20_000
"""Most entries of one request."""
OWNER = "host"
STEPS = ("open", "put", "preview", "publish", "discard", "find", "content")
CONTENT_MAX = 8 << 20
"""Most bytes of a file in one answer."""
FIND_LAYERS = 1_000
"""Most publications that a search for an earlier import looks at, newest first."""


class _OpenImport:
    """An import that receives entries."""

    def __init__(self, incoming: Incoming) -> None:
        self.incoming = incoming
        self.lock = asyncio.Lock()
        self.expiry: asyncio.TimerHandle | None = None


class Imports:
    """The imports of one agent. Its methods run on the event loop."""

    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions
        self._open: dict[str, _OpenImport] = {}

    async def perform(self, args: dict[str, Any], request_id: str) -> dict[str, Any]:
        """Perform one step.

        Args:
            args: `step`: open; put (`entries`); preview and publish (`agent`); discard; find (`published`:
                the id under which an earlier import would have been published); content (`path`, `digest`: a
                file of any layer). All but open, find and content name the `import_id`.
        Raises:
            OperationError: invalid_request; not_found, reason import_not_found; operation_failed with
                `publish_rejection` in the details; server_busy, reason import_limit.
        """
        step = args.get("step")
        if step not in STEPS:
            raise _malformed("step")
        if step == "open":
            return await self._begin()
        if step == "find":
            return self._find(_text(args, "published"))
        if step == "content":
            return await self._sessions.pool.run(lambda: self._content(args))
        import_id = _text(args, "import_id")
        found = self._open.get(import_id)
        if found is None:
            raise OperationError(
                NOT_FOUND,
                f"import {import_id} is not open: it ended, or the agent was started again",
                {"import_id": import_id, "retryable": True},
                reason="import_not_found",
            )
        self._extend(import_id, found)
        if step == "put":
            return await self._put(found, args)
        if step == "discard":
            await self._discard(import_id)
            return {"discarded": True}
        if step == "preview":
            async with found.lock:
                shown = await self._sessions.captures.run(found.incoming.preview, request_id=request_id)
            return preview_json(shown)
        return await self._publish(import_id, found, args, request_id)

    async def _begin(self) -> dict[str, Any]:
        from layerstack.session.incoming import Incoming

        if len(self._open) >= OPEN_MAX:
            raise OperationError(
                SERVER_BUSY,
                f"{len(self._open)} imports are open, which is the limit",
                {"limit": OPEN_MAX, "retryable": True},
                reason="import_limit",
            )
        import_id = os.urandom(8).hex()
        found = _OpenImport(await self._sessions.pool.run(lambda: Incoming(self._sessions.store)))
        self._open[import_id] = found
        self._extend(import_id, found)
        return {"import_id": import_id, "head_version": self._sessions.store.head.version}

    def _extend(self, import_id: str, found: _OpenImport) -> None:
        if found.expiry is not None:
            found.expiry.cancel()
        loop = asyncio.get_running_loop()
        found.expiry = loop.call_later(IDLE_S, lambda: loop.create_task(self._discard(import_id)))

    async def _discard(self, import_id: str) -> None:
        found = self._open.pop(import_id, None)
        if found is None:
            return
        if found.expiry is not None:
            found.expiry.cancel()
        async with found.lock:
            await self._sessions.pool.run(found.incoming.discard)

    async def _put(self, found: _OpenImport, args: dict[str, Any]) -> dict[str, Any]:
        given = args.get("entries")
        rows = cast("list[object]", given) if isinstance(given, list) else []
        if rows is not given or len(rows) > ENTRIES_MAX:
            raise _malformed("entries")

        def put() -> None:
            for row in rows:
                _put_row(found.incoming, row)

        async with found.lock:
            await self._sessions.pool.run(put)
        return {"entries": len(rows)}

    async def _publish(
        self, import_id: str, found: _OpenImport, args: dict[str, Any], request_id: str
    ) -> dict[str, Any]:
        store = self._sessions.store
        agent = args.get("agent")
        author = Author(OWNER, request_id, agent if isinstance(agent, str) else None)

        def publish() -> dict[str, Any]:
            disk_space.check(store, 1)
            done = store.auto_squash.with_room(lambda: found.incoming.publish(author))
            return {"publish": publish_json(done), "layer_id": done.layer_id}

        async with found.lock:
            try:
                done = await self._sessions.captures.run(publish, request_id=request_id)
            except PublishRejected as error:
                rejection = rejection_of(error)
                raise OperationError(
                    OPERATION_FAILED,
                    "the import was rejected: nothing was published",
                    {"publish_rejection": rejection},
                    reason=str(rejection["reason"]),
                ) from None
        await self._discard(import_id)
        return done

    def _content(self, args: dict[str, Any]) -> dict[str, Any]:
        from layerstack.model.paths import check
        from layerstack.session.incoming import stored_file

        digest = _bytes(args, "digest")
        if digest is None:
            raise _malformed("digest")
        found = stored_file(self._sessions.store, check(_path(args, "path")), digest)
        if found is None or found.size > CONTENT_MAX:
            return {"data": None}
        return {"data": base64.b64encode(found.data(CONTENT_MAX)).decode("ascii")}

    def _find(self, request_id: str) -> dict[str, Any]:
        """Tell whether a request has published a layer."""
        store, seen = self._sessions.store, 0
        for layer in store.chain(store.head).published:
            if layer.is_base:
                break
            for member in layer.members:
                if member.get("request_id") == request_id:
                    return {"published": True, "layer_id": member.get("layer_id")}
                if (seen := seen + 1) >= FIND_LAYERS:
                    return {"published": False}
        return {"published": False}


def _put_row(incoming: Incoming, given: object) -> None:
    row = cast("dict[str, Any]", given) if isinstance(given, dict) else {}
    if row.get("side") not in ("base", "ours"):
        raise _malformed("entries")
    side: str = row["side"]
    if "offset" in row:
        incoming.write(side, _path(row, "path"), _number(row, "offset") or 0, _bytes(row, "data") or b"")
    else:
        incoming.put(side, _entry(row))


def _entry(row: dict[str, Any]) -> IncomingEntry:
    from layerstack.session.incoming import IncomingEntry

    given = row.get("xattrs")
    if given is not None and not isinstance(given, dict):
        raise _malformed("xattrs")
    xattrs = None if given is None else cast("dict[str, Any]", given)
    return IncomingEntry(
        _path(row, "path"),
        _text(row, "kind"),
        _number(row, "mode"),
        _number(row, "mtime_ns"),
        os.fsdecode(_bytes(row, "target") or b""),
        _bytes(row, "data") or b"",
        _number(row, "size") or 0,
        _bytes(row, "digest"),
        None if xattrs is None else {str(name): _decoded(value, "xattrs") for name, value in xattrs.items()},
        _path(row, "same_as") if "same_as" in row else None,
    )


def _malformed(name: str) -> OperationError:
    return OperationError(
        INVALID_REQUEST, f"import_tree: {name} is malformed", {"argument": name}, reason="bad_argument"
    )


def _text(args: dict[str, Any], name: str) -> str:
    value = args.get(name)
    if not isinstance(value, str) or not value:
        raise _malformed(name)
    return value


def _number(row: dict[str, Any], name: str) -> int | None:
    value = row.get(name)
    if value is not None and (not isinstance(value, int) or isinstance(value, bool)):
        raise _malformed(name)
    return value


def _decoded(value: Any, name: str) -> bytes:
    if not isinstance(value, str):
        raise _malformed(name)
    try:
        return base64.b64decode(value, validate=True)
    except (binascii.Error, ValueError):
        raise _malformed(name) from None


def _bytes(row: dict[str, Any], name: str) -> bytes | None:
    return None if row.get(name) is None else _decoded(row[name], name)


def _path(row: dict[str, Any], name: str) -> str:
    return os.fsdecode(_decoded(row.get(name), name))
