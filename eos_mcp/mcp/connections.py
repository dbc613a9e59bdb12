"""The SDK's connection of a request: it has state of one client, and an exit stack that ends with it."""

from __future__ import annotations

from typing import Any

from mcp.server import ServerRequestContext
from mcp.server.connection import Connection


def connection_of(ctx: ServerRequestContext[Any]) -> Connection:
    """The connection that a request came on. The SDK says that handlers may use its `state` and `exit_stack`,
    and gives them no public way to it.
    """
    return ctx.session._connection  # pyright: ignore[reportPrivateUsage]
