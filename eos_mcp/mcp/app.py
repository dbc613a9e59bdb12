"""The SDK's low-level Server with our tools on it, the same for every transport."""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence
from typing import Any, NamedTuple

from mcp.server.caching import CacheHint
from mcp.server.lowlevel import Server

from eos_mcp.catalog import Operation
from eos_mcp.gateway_client.aio import GatewayClient, ToolGateway
from eos_mcp.mcp import resources
from eos_mcp.mcp.server_identity import CACHE_SCOPE, CACHE_TTL_MS, identity
from eos_mcp.mcp.server_options import ServerOptions
from eos_mcp.mcp.tools import Tools


class App(NamedTuple):
    """`server` speaks the protocol, `tools` performs the calls; set `tools.closing` before calls are aborted
    at the end.
    """

    server: Server[Any]
    tools: Tools


def log_to_stderr() -> None:
    """Log warnings and errors, ours and the SDK's, one line each, on standard error."""
    logging.basicConfig(
        stream=sys.stderr, level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )


def build(
    options: ServerOptions,
    *,
    gateway: ToolGateway | None = None,
    operations: Sequence[Operation] | None = None,
) -> App:
    """Make the server of this command line.

    Args:
        gateway: where requests go; default: the one that the options name.
        operations: a catalog of the caller's own instead of the tool set's.
    """
    who = identity(options)
    target = gateway or GatewayClient(endpoint=options.gateway_endpoint, token=options.gateway_token)
    tools = Tools(options, target, operations)
    hint = CacheHint(ttl_ms=CACHE_TTL_MS, scope=CACHE_SCOPE)
    server: Server[Any] = Server(
        who.name,
        version=who.version,
        title=who.title,
        instructions=who.instructions,
        cache_hints={
            "server/discover": hint,
            "tools/list": hint,
            "resources/list": hint,
            "resources/templates/list": hint,
            "prompts/list": hint,
        },
        on_list_tools=tools.list,
        on_call_tool=tools.call,
        on_list_resources=resources.list_resources,
        on_list_resource_templates=resources.list_templates,
        on_read_resource=resources.read_resource,
        on_list_prompts=resources.list_prompts,
        on_get_prompt=resources.get_prompt,
    )
    return App(server, tools)
