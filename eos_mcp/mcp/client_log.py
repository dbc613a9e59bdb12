"""Warnings of this server as notifications/message, for a client that asked for them.

Up to 2025-11-25 a client asks with logging/setLevel, for its connection; from 2026-07-28 on a request asks in
its `_meta`, for itself. Only what was logged while a request of that client was handled is sent, before its
answer: a warning may have another client's paths in it. Standard error has all of them.
"""

from __future__ import annotations

import contextvars
import logging
from typing import Any, Final, NamedTuple

import mcp.types as types
from mcp.server import ServerRequestContext
from mcp.server.context import CallNext, HandlerResult
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from eos_mcp.mcp.connections import connection_of

LOGGER = "eos.mcp"
MESSAGES_MAX = 32
"""Most messages of one request; later ones are left out."""
TEXT_CHARACTERS = 2000
_STATE = "eos.log_level"
_LEVELS: Final[dict[str, int]] = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "notice": logging.INFO + 5,
    "warning": logging.WARNING,
    "error": logging.ERROR,
    "critical": logging.CRITICAL,
    "alert": logging.CRITICAL + 5,
    "emergency": logging.CRITICAL + 10,
}


class _Heard(NamedTuple):
    """Records of one request, from `level` on."""

    level: int
    records: list[logging.LogRecord]


_request: contextvars.ContextVar[_Heard | None] = contextvars.ContextVar("eos_mcp_heard", default=None)


async def set_level(ctx: ServerRequestContext[Any], params: types.SetLevelRequestParams) -> types.EmptyResult:
    """Handle logging/setLevel."""
    connection_of(ctx).state[_STATE] = _LEVELS[params.level]
    return types.EmptyResult()


async def send_warnings(ctx: ServerRequestContext[Any], call_next: CallNext) -> HandlerResult:
    """Middleware: send what a request logged before its answer."""
    level = _asked(ctx)
    if level is None or ctx.request_id is None:
        return await call_next(ctx)
    heard = _Heard(level, [])
    token = _request.set(heard)
    try:
        result = await call_next(ctx)
    except Exception:
        await _send(ctx, heard)
        raise
    finally:
        _request.reset(token)
    await _send(ctx, heard)
    return result


class ClientLog(logging.Handler):
    """Handler of our logger that keeps a record for the client whose request is being handled."""

    def emit(self, record: logging.LogRecord) -> None:
        heard = _request.get()
        if heard is not None and record.levelno >= heard.level and len(heard.records) < MESSAGES_MAX:
            heard.records.append(record)


def attach() -> ClientLog:
    """Send warnings of our logger to clients from now on; once for a process."""
    handler = ClientLog()
    logging.getLogger(LOGGER).addHandler(handler)
    return handler


def _asked(ctx: ServerRequestContext[Any]) -> int | None:
    """The level that this client wants; None: it did not ask."""
    if ctx.protocol_version in MODERN_PROTOCOL_VERSIONS:
        name = (ctx.meta or {}).get(types.LOG_LEVEL_META_KEY)
        return _LEVELS.get(name) if isinstance(name, str) else None
    found = connection_of(ctx).state.get(_STATE)
    return found if isinstance(found, int) else None


async def _send(ctx: ServerRequestContext[Any], heard: _Heard) -> None:
    for record in heard.records:
        text = record.getMessage()[:TEXT_CHARACTERS]
        params = types.LoggingMessageNotificationParams(level=_name(record.levelno), logger=LOGGER, data=text)
        await ctx.session.send_notification(
            types.LoggingMessageNotification(params=params), related_request_id=ctx.request_id
        )


def _name(number: int) -> types.LoggingLevel:
    if number >= logging.CRITICAL:
        return "critical"
    if number >= logging.ERROR:
        return "error"
    return "warning" if number >= logging.WARNING else "info"
