"""The SDK's low-level Server with our tools on it, the same for every transport."""

from __future__ import annotations

import logging
import sys
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, NamedTuple

import mcp.types as types
from mcp.server import ServerRequestContext
from mcp.server.caching import CacheHint
from mcp.server.lowlevel import Server
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from eos_mcp.catalog import Operation
from eos_mcp.gateway_client.aio import GatewayClient, ToolGateway
from eos_mcp.mcp import client_log, empty_lists, handshake
from eos_mcp.mcp.completion import Completion
from eos_mcp.mcp.own_requests import OwnRequests
from eos_mcp.mcp.prompts import Prompts
from eos_mcp.mcp.resources import Resources
from eos_mcp.mcp.same_key_order import order_keys
from eos_mcp.mcp.server_identity import CACHE_SCOPE, CACHE_TTL_MS, ServerIdentity, identity
from eos_mcp.mcp.server_options import EOS, ServerOptions
from eos_mcp.mcp.subscriptions import Subscriptions
from eos_mcp.mcp.tools import Tools

Discover = Callable[[ServerRequestContext[Any], types.RequestParams | None], Awaitable[types.DiscoverResult]]


class App(NamedTuple):
    """`server` speaks the protocol, `tools` performs the calls; set `tools.closing` before calls are aborted
    at the end, and close `subscriptions`, whose streams end at no other time.
    """

    server: Server[Any]
    tools: Tools
    subscriptions: Subscriptions | None = None


def log_to_stderr() -> None:
    """Log warnings and errors, ours and the SDK's, one line each, on standard error."""
    logging.basicConfig(
        stream=sys.stderr, level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    client_log.attach()


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
    if options.program != EOS:
        return App(_drop_in(who, tools), tools)
    own = OwnRequests(target)
    resources, subscriptions = Resources(own, options.sandbox_id), Subscriptions(own)
    prompts = Prompts(own, resources, tools.names)
    server: Server[Any] = Server(
        who.name,
        version=who.version,
        title=who.title,
        instructions=who.instructions,
        cache_hints={
            "server/discover": _FIXED,
            "tools/list": _FIXED,
            "prompts/list": _FIXED,
            "resources/templates/list": _FIXED,
            "resources/list": _CHANGING,
            "resources/read": _CHANGING,
        },
        on_list_tools=tools.list,
        on_call_tool=tools.call,
        on_list_resources=resources.list,
        on_list_resource_templates=resources.templates,
        on_read_resource=resources.read,
        on_subscribe_resource=subscriptions.subscribe,
        on_unsubscribe_resource=subscriptions.unsubscribe,
        on_subscriptions_listen=subscriptions.listen,
        on_list_prompts=prompts.list,
        on_get_prompt=prompts.get,
        on_completion=Completion(own, resources, prompts).complete,
    )
    server.add_request_handler("logging/setLevel", types.SetLevelRequestParams, client_log.set_level)
    server.add_request_handler("server/discover", types.RequestParams, _discovery(who))
    server.middleware += [client_log.send_warnings, order_keys]
    return App(server, tools, subscriptions)


_FIXED = CacheHint(ttl_ms=CACHE_TTL_MS, scope=CACHE_SCOPE)
_CHANGING = CacheHint(ttl_ms=0, scope="private")


def _drop_in(who: ServerIdentity, tools: Tools) -> Server[Any]:
    """The server of `sandbox-mcp`, which has the tools of the reference and no more."""
    server: Server[Any] = Server(
        who.name,
        version=who.version,
        title=who.title,
        instructions=who.instructions,
        cache_hints={
            "server/discover": _FIXED,
            "tools/list": _FIXED,
            "resources/list": _FIXED,
            "resources/templates/list": _FIXED,
            "prompts/list": _FIXED,
        },
        on_list_tools=tools.list,
        on_call_tool=tools.call,
        on_list_resources=empty_lists.list_resources,
        on_list_resource_templates=empty_lists.list_templates,
        on_read_resource=empty_lists.read_resource,
        on_list_prompts=empty_lists.list_prompts,
        on_get_prompt=empty_lists.get_prompt,
    )
    server.middleware.append(order_keys)
    return server


def _discovery(who: ServerIdentity) -> Discover:
    """The handler of server/discover. The SDK's own would announce changes of all lists, since it serves
    subscriptions/listen.
    """
    found = types.DiscoverResult(
        supported_versions=list(MODERN_PROTOCOL_VERSIONS),
        capabilities=types.ServerCapabilities.model_validate(handshake.capabilities(who.name)),
        instructions=who.instructions,
    )

    async def discover(
        ctx: ServerRequestContext[Any], params: types.RequestParams | None
    ) -> types.DiscoverResult:
        return found

    return discover
