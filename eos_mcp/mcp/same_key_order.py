"""The definitions of `tools/list` with the same bytes in both eras: the SDK's models order the keys of a
schema differently in each, and a client that changes the era would lose its model's cached prompt.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mcp.server import ServerRequestContext
from mcp.server.context import CallNext, HandlerResult

SCHEMAS = ("inputSchema", "outputSchema")
ORDER = ("$schema", "type", "properties", "required")
"""First keys of a schema; the others follow as they are."""


async def order_keys(ctx: ServerRequestContext[Any, Any], call_next: CallNext) -> HandlerResult:
    """Order the keys of the schemas in a result of `tools/list`. A middleware of the SDK's server."""
    result = await call_next(ctx)
    if ctx.method != "tools/list" or not isinstance(result, dict):
        return result
    return {**result, "tools": [_ordered_tool(tool) for tool in result.get("tools") or ()]}


def _ordered_tool(tool: Mapping[str, Any]) -> dict[str, Any]:
    return {key: _ordered(value) if key in SCHEMAS else value for key, value in tool.items()}


def _ordered(schema: Mapping[str, Any]) -> dict[str, Any]:
    first = {key: schema[key] for key in ORDER if key in schema}
    return first | {key: value for key, value in schema.items() if key not in first}
