"""Cancel requests by id, also before they arrive and before they have a command to kill."""

from __future__ import annotations

import asyncio
import contextlib
from collections import OrderedDict
from collections.abc import Generator
from typing import Any

from eos_agent.wire.protocol import (
    INVALID_REQUEST,
    NOT_FOUND,
    OPERATION_FAILED,
    OperationError,
    check_request_id,
)

KEPT = 256


def request_not_found(request_id: str) -> OperationError:
    hint = "only exec_command requests can be cancelled, for as long as their command is kept"
    details = {"request_id": request_id, "hint": hint}
    return OperationError(NOT_FOUND, f"request not found: {request_id}", details, reason="request_not_found")


class Cancellations:
    """State shared by cancel_request and the start of a command. Every method runs on the event loop."""

    def __init__(self) -> None:
        self._starting: dict[str, asyncio.Event] = {}
        self._cancelled: OrderedDict[str, None] = OrderedDict()

    @contextlib.contextmanager
    def starting(self, request_id: str) -> Generator[None]:
        """Mark a command as starting for the length of the block."""
        started = self._starting[request_id] = asyncio.Event()
        try:
            yield
        finally:
            started.set()
            if self._starting.get(request_id) is started:
                del self._starting[request_id]
            self._cancelled.pop(request_id, None)

    def check(self, request_id: str) -> None:
        """Check for a cancellation just before a command is spawned.

        Raises:
            OperationError: operation_failed, reason cancelled.
        """
        if request_id in self._cancelled:
            raise OperationError(
                OPERATION_FAILED,
                "the request was cancelled before its command ran",
                {"request_id": request_id},
                reason="cancelled",
            )

    async def cancel_start(self, args: dict[str, Any]) -> tuple[str, bool]:
        """Cancel a start in progress of the named request and wait for its end; return the id, and True if
        there was such a start.

        The gateway sets `in_flight` while it waits for the answer to that request; the caller then uses
        `expect`, so that the request is refused if it arrives later.
        """
        request_id = args.get("request_id")
        if not isinstance(request_id, str) or not request_id:
            details = {"argument": "request_id"}
            raise OperationError(
                INVALID_REQUEST,
                "request_id of cancel_request must be a non-empty string",
                details,
                reason="wrong_type",
            )
        check_request_id(request_id)
        started = self._starting.get(request_id)
        if started is not None:
            self._cancelled[request_id] = None
            await started.wait()
        return request_id, started is not None

    def expect(self, request_id: str) -> None:
        """Refuse the request when it arrives. The newest 256 ids are kept."""
        self._cancelled[request_id] = None
        while len(self._cancelled) > KEPT:
            self._cancelled.popitem(last=False)
