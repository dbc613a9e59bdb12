"""The message of a publication: its author's own words about the change."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

SUBJECT_MAX = 200


def first_line(message: str) -> str:
    """Give the subject: the first line that has text, cut to SUBJECT_MAX characters."""
    line = next((line.strip() for line in message.splitlines() if line.strip()), "")
    return line if len(line) <= SUBJECT_MAX else line[: SUBJECT_MAX - 1] + "…"


SQUASHED_MAX = 1 << 20
"""Characters of the messages that a squashed layer keeps whole, those of its newest publications; of older
ones it keeps the subject.
"""


def bounded_messages(members: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Shorten the messages of a squashed layer's publications, newest first."""
    left, found = SQUASHED_MAX, list[dict[str, Any]]()
    for member in members:
        message = member.get("message")
        if isinstance(message, str):
            left -= len(message)
            if left < 0:
                member = {**member, "message": first_line(message)}
        found.append(member)
    return found
