"""Sizes on disk of the output of ended commands, and the order in which outputs are deleted when the sum is
too large."""

from __future__ import annotations

from collections import OrderedDict


class KeptOutput:
    """The sizes. The oldest output of the session with the largest sum is deleted first, so that a session
    that prints much does not delete the output of others.
    """

    def __init__(self) -> None:
        self.bytes = 0
        self._owner: dict[str, str] = {}
        self._of: dict[str, OrderedDict[str, int]] = {}  # session -> command -> bytes, oldest first
        self._sums: dict[str, int] = {}

    def add(self, command_id: str, session_id: str, size: int) -> None:
        """Add an ended command; one without output on disk is not recorded, since deleting it would free no
        space."""
        if size <= 0:
            return
        self.bytes += size
        self._owner[command_id] = session_id
        self._of.setdefault(session_id, OrderedDict())[command_id] = size
        self._sums[session_id] = self._sums.get(session_id, 0) + size

    def remove(self, command_id: str) -> None:
        session_id = self._owner.pop(command_id, None)
        if session_id is None:
            return
        size = self._of[session_id].pop(command_id)
        self.bytes -= size
        self._sums[session_id] -= size
        if not self._of[session_id]:
            del self._of[session_id], self._sums[session_id]

    def next_deleted(self) -> str:
        """Id of the command whose output is deleted next; defined while `bytes` is not 0."""
        most = max(self._sums, key=self._sums.__getitem__)
        return next(iter(self._of[most]))
