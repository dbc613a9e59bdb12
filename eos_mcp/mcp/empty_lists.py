"""Empty lists of resources and prompts of the drop-in program, for clients that ask without reading the
capabilities.
"""

from __future__ import annotations

from typing import Any

import mcp.types as types
from mcp.server import ServerRequestContext
from mcp.shared.exceptions import MCPError

_Context = ServerRequestContext[Any]
_Page = types.PaginatedRequestParams | None


async def list_resources(ctx: _Context, params: _Page) -> types.ListResourcesResult:
    return types.ListResourcesResult(resources=[])


async def list_templates(ctx: _Context, params: _Page) -> types.ListResourceTemplatesResult:
    return types.ListResourceTemplatesResult(resource_templates=[])


async def read_resource(ctx: _Context, params: types.ReadResourceRequestParams) -> types.ReadResourceResult:
    raise MCPError(types.INVALID_PARAMS, f"no such resource: {params.uri}", {"uri": str(params.uri)})


async def list_prompts(ctx: _Context, params: _Page) -> types.ListPromptsResult:
    return types.ListPromptsResult(prompts=[])


async def get_prompt(ctx: _Context, params: types.GetPromptRequestParams) -> types.GetPromptResult:
    raise MCPError(types.INVALID_PARAMS, f"no such prompt: {params.name}")
