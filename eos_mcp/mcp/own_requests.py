"""Requests to the gateway that are not tool calls: for resources, prompts, completion, subscriptions, and to
find the sandbox of a call that names none.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import mcp.types as types
from mcp.shared.exceptions import MCPError
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from eos_agent.wire.protocol import (
    INVALID_REQUEST,
    NOT_FOUND,
    OperationError,
    is_error,
    new_request_id,
)
from eos_mcp.gateway_client.aio import GatewayClient, ToolGateway

READ_S = 30.0
RESOURCE_NOT_FOUND = -32002
"""Code of an unknown resource before 2026-07-28, which has INVALID_PARAMS for it."""


class OwnRequests:
    """The requests of one server."""

    def __init__(self, gateway: ToolGateway) -> None:
        self._gateway = gateway

    async def ask(
        self, op: str, args: Mapping[str, Any], sandbox_id: str | None = None, *, timeout_s: float = READ_S
    ) -> dict[str, Any]:
        """Send one request and return the result.

        Raises:
            OperationError: the gateway could not be asked, or its answer is an error.
        """
        reply = await self._gateway.request(
            op, args, sandbox_id=sandbox_id, request_id=new_request_id(), timeout_s=timeout_s
        )
        if is_error(reply):
            error = reply["error"]
            raise OperationError(str(error["kind"]), str(error["message"]), error.get("details"))
        return reply

    async def has_gateway(self) -> bool:
        """Return False when the gateway of this user is not running: nothing is started to list nothing."""
        return not isinstance(self._gateway, GatewayClient) or await self._gateway.is_running()


def resource_error(error: OperationError, uri: str, protocol_version: str) -> MCPError:
    """The protocol error for a resource that cannot be read."""
    if is_absent(error):
        return unknown_resource(uri, protocol_version, error.message)
    code = types.INVALID_PARAMS if error.kind == INVALID_REQUEST else types.INTERNAL_ERROR
    return MCPError(code, error.message, {"uri": uri, "kind": error.kind, **error.details})


def unknown_resource(uri: str, protocol_version: str, why: str = "no resource has this URI") -> MCPError:
    """The protocol error for a resource that does not exist, as each era has it."""
    modern = protocol_version in MODERN_PROTOCOL_VERSIONS
    code = types.INVALID_PARAMS if modern else RESOURCE_NOT_FOUND
    return MCPError(code, f"resource not found: {why}", {"uri": uri})


def is_absent(error: OperationError) -> bool:
    """Return True for a sandbox, or a thing in it, that does not exist."""
    return error.kind == NOT_FOUND or error.details.get("reason") in _ABSENT


_ABSENT = frozenset(
    {
        "sandbox_not_found",
        "version_not_found",
        "file_not_found",
        "draft_not_found",
        "not_a_directory",
        "command_not_found",
    }
)
