"""Signals to the processes of a command: to one process, to its group, or to its whole tree until all of it
has ended.
"""

from __future__ import annotations

import os
import signal

from eos_agent.kernel.process_tag import TaggedProcess, has_tag, list_processes

TERM_GRACE_S = 0.1
KILL_LIMIT_S = 5.0


class Kill:
    """The killing of one process tree: SIGTERM, a grace period, then SIGKILL until every process of the tree
    has ended."""

    def __init__(self, number: int, group: int, tag: int) -> None:
        self.number = number
        self.due = 0.0
        self._group, self._tag = group, tag
        self._started = 0.0
        self._pause_s = 0.002

    def advance(self, now: float) -> bool:
        """Send the signals that are due at `now`; True once the tree has ended or KILL_LIMIT_S has passed."""
        members = [
            p
            for p in list_processes()
            if p.alive and ((self._group and p.group == self._group) or has_tag(p, self._tag))
        ]
        if not members or (self._started and now > self._started + KILL_LIMIT_S):
            return True
        if not self._started:
            self._started = now
            self._send(members, signal.SIGTERM)
        elif now >= self._started + TERM_GRACE_S:
            self._send(members, signal.SIGKILL)
        self.due = now + self._pause_s
        self._pause_s = min(self._pause_s * 2, 0.02)
        return False

    def _send(self, members: list[TaggedProcess], signum: int) -> None:
        if self._group:
            send_to_group(self._group, signum)
        for process in members:
            if process.group != self._group:
                send(process.pid, signum)
        if signum == signal.SIGTERM:  # a stopped process would see it only when continued
            for process in members:
                if process.state in "Tt":
                    send(process.pid, signal.SIGCONT)


def send(pid: int, signum: int) -> bool:
    try:
        os.kill(pid, signum)
    except ProcessLookupError:
        return False
    except PermissionError:  # it lives, and this process may not signal it
        pass
    return True


def send_to_group(group: int, signum: int) -> bool:
    return send(-group, signum)
