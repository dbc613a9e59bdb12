"""The message of a publication: what its author says about the change."""

from __future__ import annotations

MESSAGE_MAX = 10_000
"""Characters of one message."""
SUBJECT_MAX = 200


def first_line(message: str) -> str:
    """Give the subject: the first line that has text, cut to SUBJECT_MAX characters."""
    line = next((line.strip() for line in message.splitlines() if line.strip()), "")
    return line if len(line) <= SUBJECT_MAX else line[: SUBJECT_MAX - 1] + "…"
