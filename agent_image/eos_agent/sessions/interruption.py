"""Commands that did not finish: their work becomes a draft and is not published."""

from __future__ import annotations

import signal
from typing import NamedTuple

INTERRUPTED, FAILED = "interrupted", "command_failed"
_PUBLISH = (
    "nothing was published; the work is kept in draft_id. If it is complete, publish it: "
    "create_workspace_session with draft_id, then publish_workspace_session with the session's id"
)


class PublishRule(NamedTuple):
    """The rule for publishing an implicit session's work after a command that did not end by exit(0).

    interrupted: publish also after a signal, a timeout or a cancellation. on_failure: publish after an exit
    code other than 0.
    """

    interrupted: bool = False
    on_failure: bool = True


DEFAULT_RULE = PublishRule()


class Unfinished(NamedTuple):
    """The refusal of a publication: the `reason` of the rejection and of the draft, a sentence, and the next
    step."""

    reason: str
    message: str
    hint: str = _PUBLISH


class CommandEnd(NamedTuple):
    """The end of a command's leader: exit code, signal, timeout or cancellation."""

    exit_code: int | None
    signal: str | None
    timed_out: bool
    cancelled: bool


def unfinished(end: CommandEnd, rule: PublishRule) -> Unfinished | None:
    """Return the refusal for the end of a command; None if its work is published.

    A shell that exits with 128 + N because its child was killed counts as exited, not as killed.
    """
    how = (
        "was ended by its timeout_ms"
        if end.timed_out
        else "was cancelled"
        if end.cancelled
        else f"was ended by signal {end.signal}"
        if end.signal is not None
        else None
    )
    if how is not None:
        return (
            None if rule.interrupted else Unfinished(INTERRUPTED, f"the command {how} before it had finished")
        )
    if not rule.on_failure and end.exit_code:
        message = f"the command exited with code {end.exit_code}, and publish_on_failure is false"
        return Unfinished(FAILED, message)
    return None


def signal_name(number: int) -> str:
    """Name of a signal without SIG, as signal_command accepts it: 15 -> TERM; real-time signals are named by
    their number."""
    try:
        return signal.Signals(number).name.removeprefix("SIG")
    except ValueError:
        return str(number)
