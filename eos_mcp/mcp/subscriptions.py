"""Notifications about published versions, for clients that subscribed to `eos://SANDBOX/versions`.

The gateway sends no events, so the newest version of a sandbox is asked for while a client subscribes to it:
one request every `INTERVAL_S` for each sandbox, however many clients subscribe. Up to 2025-11-25 a client
subscribes with resources/subscribe and is notified on its connection; from 2026-07-28 on it opens a stream
with subscriptions/listen.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from typing import Any

import mcp.types as types
from mcp.server import ServerRequestContext
from mcp.server.connection import Connection
from mcp.server.subscriptions import ListenHandler
from mcp.shared.exceptions import MCPError
from mcp.shared.subscriptions import ResourceUpdated, ServerEvent

from eos_agent.wire.protocol import OperationError
from eos_mcp.mcp import resource_uris
from eos_mcp.mcp.connections import connection_of
from eos_mcp.mcp.own_requests import OwnRequests, is_absent, unknown_resource
from eos_mcp.mcp.resource_uris import ResourceName

log = logging.getLogger("eos.mcp")

INTERVAL_S = 1.0
SILENT_INTERVAL_S = 10.0
"""Seconds between two questions to a sandbox that does not answer."""
ASK_S = 10.0
SANDBOXES_MAX = 64
"""Most sandboxes that are watched at a time."""
URIS_MAX = 64
"""Most subscriptions of one connection or stream."""
STREAMS_MAX = 256
NO_UPDATES = "only eos://SANDBOX/versions has updates"
_STATE = "eos.subscriptions"

_Context = ServerRequestContext[Any]
Listener = Callable[[ServerEvent], None]


class Watch:
    """The newest version of each sandbox that a client subscribes to. A bus of the SDK: listeners get
    `ResourceUpdated` with the URI of the versions. Use it only in the event loop.
    """

    def __init__(self, own: OwnRequests) -> None:
        self._own = own
        self._listeners: dict[object, Listener] = {}
        self._wanted: dict[str, int] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def subscribe(self, listener: Listener) -> Callable[[], None]:
        """Call `listener` with each event until the returned function is called."""
        token = object()
        self._listeners[token] = listener
        return lambda: self._listeners.pop(token, None) and None

    async def publish(self, event: ServerEvent) -> None:
        for listener in list(self._listeners.values()):
            listener(event)
        await asyncio.sleep(0)

    async def exists(self, sandbox: str) -> bool:
        """Return False for a sandbox that does not exist; one that does not answer exists."""
        if not await self._own.has_gateway():
            return False
        try:
            await self._own.ask("layerstack", {}, sandbox, timeout_s=ASK_S)
        except OperationError as error:
            return not is_absent(error)
        return True

    def hold(self, sandbox: str) -> None:
        """Watch a sandbox until `release` was called as often.

        Raises:
            MCPError: SANDBOXES_MAX are watched already.
        """
        if sandbox not in self._wanted and len(self._wanted) >= SANDBOXES_MAX:
            raise MCPError(
                types.INTERNAL_ERROR, f"versions of {SANDBOXES_MAX} sandboxes are watched, which is the most"
            )
        self._wanted[sandbox] = self._wanted.get(sandbox, 0) + 1
        if sandbox not in self._tasks:
            self._tasks[sandbox] = asyncio.get_running_loop().create_task(
                self._poll(sandbox), name=f"versions of {sandbox}"
            )

    def release(self, sandbox: str) -> None:
        self._wanted[sandbox] -= 1
        if not self._wanted[sandbox]:
            del self._wanted[sandbox]
            self._tasks.pop(sandbox).cancel()

    async def _poll(self, sandbox: str) -> None:
        known: object = None
        uri = ResourceName(sandbox, resource_uris.VERSIONS).uri()
        while True:
            wait_s = INTERVAL_S
            try:
                reply = await self._own.ask("layerstack", {}, sandbox, timeout_s=ASK_S)
            except OperationError as error:
                if is_absent(error):
                    return
                log.info("versions of %s: %s", sandbox, error.message)
                wait_s = SILENT_INTERVAL_S
            else:
                newest = reply.get("manifest_version")
                if known is not None and newest != known:
                    await self.publish(ResourceUpdated(uri=uri))
                known = newest
            await asyncio.sleep(wait_s)


class Subscriptions:
    """The handlers of resources/subscribe, resources/unsubscribe and subscriptions/listen."""

    def __init__(self, own: OwnRequests) -> None:
        self._watch = Watch(own)
        self._listen = ListenHandler(self._watch, max_subscriptions=STREAMS_MAX)

    async def subscribe(self, ctx: _Context, params: types.SubscribeRequestParams) -> types.EmptyResult:
        name = _watchable(params.uri)
        if name is None:
            raise unknown_resource(params.uri, ctx.protocol_version, NO_UPDATES)
        if not await self._watch.exists(name.sandbox):
            raise unknown_resource(params.uri, ctx.protocol_version, "no such sandbox")
        self._of(ctx).add(params.uri, name.sandbox)
        return types.EmptyResult()

    async def unsubscribe(self, ctx: _Context, params: types.UnsubscribeRequestParams) -> types.EmptyResult:
        self._of(ctx).remove(params.uri)
        return types.EmptyResult()

    async def listen(
        self, ctx: _Context, params: types.SubscriptionsListenRequestParams
    ) -> types.SubscriptionsListenResult:
        """Serve one stream. Of what the client asks for only versions of sandboxes that exist are
        acknowledged: nothing else changes.
        """
        wanted = list(dict.fromkeys(params.notifications.resource_subscriptions or ()))
        if len(wanted) > URIS_MAX:
            raise MCPError(types.INVALID_PARAMS, f"a stream has at most {URIS_MAX} subscriptions")
        found = [name for uri in wanted if (name := _watchable(uri)) is not None]
        names = [name for name in found if await self._watch.exists(name.sandbox)]
        uris = [name.uri() for name in names]
        honoured = types.SubscriptionFilter(resource_subscriptions=uris or None)
        with contextlib.ExitStack() as held:
            for name in names:
                self._watch.hold(name.sandbox)
                held.callback(self._watch.release, name.sandbox)
            return await self._listen(ctx, params.model_copy(update={"notifications": honoured}))

    def close(self) -> None:
        """End all streams with their final result."""
        self._listen.close()

    def _of(self, ctx: _Context) -> _Connected:
        connection = connection_of(ctx)
        found = connection.state.get(_STATE)
        if not isinstance(found, _Connected):
            found = connection.state[_STATE] = _Connected(connection, self._watch)
            connection.exit_stack.callback(found.close)
        return found


class _Connected:
    """The subscriptions of one connection of the older era."""

    def __init__(self, connection: Connection, watch: Watch) -> None:
        self._connection, self._watch = connection, watch
        self._held: dict[str, str] = {}
        self._sending: dict[str, asyncio.Task[None]] = {}
        self._unsubscribe = watch.subscribe(self._updated)

    def add(self, uri: str, sandbox: str) -> None:
        if uri in self._held:
            return
        if len(self._held) >= URIS_MAX:
            raise MCPError(types.INVALID_PARAMS, f"a connection has at most {URIS_MAX} subscriptions")
        self._watch.hold(sandbox)
        self._held[uri] = sandbox

    def remove(self, uri: str) -> None:
        sandbox = self._held.pop(uri, None)
        if sandbox is not None:
            self._watch.release(sandbox)

    def close(self) -> None:
        self._unsubscribe()
        for uri in list(self._held):
            self.remove(uri)
        for task in self._sending.values():
            task.cancel()

    def _updated(self, event: ServerEvent) -> None:
        """Send in a task: a client that does not read must not stop the others. While one notification of a
        URI waits to be written, another one says nothing more.
        """
        uri = event.uri if isinstance(event, ResourceUpdated) else ""
        if uri not in self._held or uri in self._sending:
            return
        task = asyncio.get_running_loop().create_task(self._connection.send_resource_updated(uri))
        self._sending[uri] = task
        task.add_done_callback(lambda _: self._sending.pop(uri, None) and None)


def _watchable(uri: str) -> ResourceName | None:
    """The versions of a sandbox, without a page; None for another resource."""
    name = resource_uris.parse(uri)
    return name if name is not None and name.kind == resource_uris.VERSIONS and not name.page else None
