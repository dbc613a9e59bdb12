"""Rules for changes in a destination: the arguments of one call, else the settings of `manager.export`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from eos_agent.wire.protocol import INVALID_REQUEST, OperationError
from eos_mcp.config.model import Export
from eos_mcp.requests import arguments

ON_CONFLICT = ("fail", "overwrite", "keep")
TIMES = ("fresh", "keep")


class ExportRules(NamedTuple):
    """The defaults check nothing and write everything, as the reference does; `chosen` returns those of a
    call.
    """

    git: str = "include"
    """`auto`: not into a repository; `include`; `exclude`."""
    on_conflict: str = "overwrite"
    allow_unsafe: bool = True
    workspace: str | None = None
    """The directory of which the sandbox has a copy."""
    times: str = "keep"
    """`fresh`: replaced files get a time from which builds detect the change (`export.times`); `keep`: the
    time in the sandbox.
    """
    record: str | None = None
    """The file with the record of what exports of this sandbox wrote to this destination."""
    skip_unsafe: bool = False
    """Files that the host would run by itself are left out and listed; all others are written."""


REFERENCE = ExportRules()


def chosen(args: Mapping[str, Any], settings: Export) -> ExportRules:
    """Take the arguments of a call, and where it has none the configuration.

    Raises:
        OperationError: invalid_request.
    """
    on_conflict = arguments.text(args, "on_conflict", "export_changes", default=settings.on_conflict)
    if on_conflict not in ON_CONFLICT:
        raise OperationError(
            INVALID_REQUEST,
            f"unknown on_conflict: {on_conflict}, it is one of {', '.join(ON_CONFLICT)}",
            {"argument": "on_conflict"},
            reason="bad_argument",
        )
    times = arguments.text(args, "times", "export_changes", default="fresh")
    if times not in TIMES:
        message = f"unknown times: {times}, it is one of {', '.join(TIMES)}"
        raise OperationError(INVALID_REQUEST, message, {"argument": "times"}, reason="bad_argument")
    return ExportRules(
        times=times,
        git="include" if arguments.flag(args, "with_git") else settings.git,
        on_conflict=on_conflict,
        allow_unsafe=arguments.flag(args, "allow_unsafe") or settings.allow_unsafe,
        skip_unsafe=arguments.flag(args, "skip_unsafe") or settings.skip_unsafe,
    )
