"""Counters of the ends of sessions: the `lifecycle` object of the operation daemon."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Generator
from typing import Any


class Lifecycle:
    """Counters since the agent's start."""

    def __init__(self) -> None:
        self._exits = self._attempts = self._failures = self._done = 0
        self._exit: str | None = None
        self._failure: str | None = None
        self._result: str | None = None
        self._duration_ms: float | None = None

    def holder_exited(self, reason: str) -> None:
        """Count an init that has ended, intended or not."""
        self._exits += 1
        self._exit = reason

    @contextlib.contextmanager
    def cleaning(self) -> Generator[None]:
        """Count and time the block: from the end of a session's processes until its work is published, kept
        or discarded.
        """
        begun = time.monotonic()
        self._attempts += 1
        try:
            yield
        except BaseException as error:
            self._failures += 1
            self._failure, self._result = type(error).__name__, "failed"
            raise
        else:
            self._done += 1
            self._result = "completed"
        finally:
            self._duration_ms = round((time.monotonic() - begun) * 1000, 3)

    def to_json(self) -> dict[str, Any]:
        return {
            "holder_exit_total": self._exits,
            "cleanup_attempt_total": self._attempts,
            "cleanup_failure_total": self._failures,
            "cleanup_terminal_total": self._done,
            "last_holder_exit_reason": self._exit,
            "last_cleanup_failure": self._failure,
            "last_cleanup_result": self._result,
            "last_cleanup_duration_ms": self._duration_ms,
        }
