"""Event loop of the stdio runner: pass the reader's lines to the lanes until the shutdown begins. Imports the
SDK.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc

import anyio

from eos_mcp.mcp.app import App, log_to_stderr
from eos_mcp.mcp.eras import Lanes
from eos_mcp.mcp.stdio import DRAIN_S, END_OF_INPUT, FAILURE, Ending, Item, Line, StdinReader, Writer, leave


def serve(app: App, reader: StdinReader, writer: Writer, ending: Ending) -> None:
    """Run an event loop until the shutdown, then exit the process."""
    log_to_stderr()
    try:
        anyio.run(_serve, app, reader, writer, ending)
    except BaseException:
        ending.begin(FAILURE)
        raise


async def _serve(app: App, reader: StdinReader, writer: Writer, ending: Ending) -> None:
    gc.freeze()  # imported modules stay: no later collection walks the SDK
    loop = asyncio.get_running_loop()
    over = asyncio.Event()
    async with anyio.create_task_group() as tasks:
        lanes = Lanes(app.server, tasks, writer.put)

        def handle(item: Item) -> None:
            if isinstance(item, Line):
                lanes.route(item.data, answered=item.answered)
            else:
                lanes.too_long(item.head, item.tail)

        def deliver(item: Item) -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: no client is left to answer
                loop.call_soon_threadsafe(handle, item)

        def wake() -> None:
            loop.call_soon_threadsafe(over.set)

        reader.attach(deliver)
        ending.on_begin(wake)
        await over.wait()
        if app.subscriptions is not None:
            app.subscriptions.close()
        if ending.reason == END_OF_INPUT:
            with anyio.move_on_after(DRAIN_S):
                await lanes.idle()
        app.tools.closing = True
        tasks.cancel_scope.cancel()
    leave(writer, 0)  # without closing the loop, which would wait for its threads
