"""Errors of a request to the gateway that got no reply: one table for programs (`sync`) and servers (`aio`).
Standard library only.
"""

from __future__ import annotations

import errno

from eos_agent.wire.protocol import (
    CONNECTION_ERROR,
    PROTOCOL_ERROR,
    OperationError,
)
from eos_mcp.config import paths

TYPE_CHECKING = False  # importing `typing` is a tenth of a command line's life
if TYPE_CHECKING:
    from typing import Any, NamedTuple
else:
    from eos_agent.wire.namedtuple import NamedTuple

_HINT = (
    "the sandbox runs without the gateway, and the operation may be running there: check before you repeat it"
)
_READ_HINT = "the next call finds the gateway or starts it again"


class Fault(NamedTuple):
    """A failure without a reply: its text, and kind and reason of the error for a program and for a server.
    The two differ, and both are kept: scripts and agents depend on them.
    """

    text: str
    program: tuple[str, str]
    server: tuple[str, str]


BROKEN = Fault(
    "lost the gateway at {endpoint}: {found}",
    (CONNECTION_ERROR, "gateway_lost"),
    (CONNECTION_ERROR, "connection_lost"),
)
CLOSED = Fault(
    "lost the gateway at {endpoint}: it closed the connection without a reply (see {log})",
    (PROTOCOL_ERROR, "gateway_lost"),
    (CONNECTION_ERROR, "connection_lost"),
)
CUT = Fault(
    "the gateway at {endpoint} closed the connection in the middle of its reply (see {log})",
    (PROTOCOL_ERROR, "gateway_lost"),
    (PROTOCOL_ERROR, "unusable_answer"),
)
UNUSABLE = Fault(
    "the reply of the gateway at {endpoint} {found}",
    (PROTOCOL_ERROR, "unusable_answer"),
    (PROTOCOL_ERROR, "unusable_answer"),
)


class NoReply(Exception):
    """A fault of a connection, with the end of its message."""

    def __init__(self, fault: Fault, found: str = "") -> None:
        super().__init__(found)
        self.fault, self.found = fault, found


class GatewayCall(NamedTuple):
    """The request that an error is about."""

    endpoint: str
    op: str
    request_id: str
    of_server: bool

    def error(self, failure: NoReply | OSError) -> OperationError:
        """Return the error for a request that got no reply. Only a read is reported as safe to repeat: a
        command that is sent twice runs twice.
        """
        from eos_mcp import catalog

        operation = catalog.find(self.op)
        reads = operation is not None and operation.read_only
        details: dict[str, Any] = {
            "endpoint": self.endpoint,
            "retryable": reads,
            "request_id": self.request_id,
            "hint": _READ_HINT if reads else _HINT,
        }
        if isinstance(failure, OSError):
            details["errno"] = errno.errorcode.get(failure.errno or 0, "EIO")
            failure = NoReply(BROKEN, failure.strerror or str(failure))
        elif failure.fault is CLOSED:
            details["errno"] = "ECONNRESET"
        kind, reason = failure.fault.server if self.of_server else failure.fault.program
        text = failure.fault.text.format(endpoint=self.endpoint, found=failure.found, log=paths.log_path())
        return OperationError(kind, text, details, reason=reason)
