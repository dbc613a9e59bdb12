"""Rules for changes in a destination: the arguments of one call, else the settings of `manager.export`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from eos_agent.wire.protocol import INVALID_REQUEST, OperationError
from eos_mcp.config.model import Export
from eos_mcp.requests import arguments

ON_CONFLICT = ("fail", "overwrite", "keep", "merge")
TIMES = ("fresh", "keep")
IGNORED = ("include", "exclude")


class ExportRules(NamedTuple):
    """The defaults check nothing and write everything, as the reference does; `chosen` returns those of a
    call.
    """

    git: str = "include"
    """`auto`: not into a repository; `include`; `exclude`."""
    on_conflict: str = "overwrite"
    """`merge`: files that the user edited are merged, as far as they merge; the rest as with `fail`."""
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
    ignored: str = "include"
    """Paths that git ignores by the `.gitignore` files of the version: `exclude` neither writes nor deletes
    them.
    """


REFERENCE = ExportRules()


def chosen(args: Mapping[str, Any], settings: Export) -> ExportRules:
    """Take the arguments of a call, and where it has none the configuration.

    Raises:
        OperationError: invalid_request.
    """
    return ExportRules(
        times=_one_of(args, "times", TIMES, "fresh"),
        ignored=_one_of(args, "ignored", IGNORED, settings.ignored),
        git="include" if arguments.flag(args, "with_git") else settings.git,
        on_conflict=_one_of(args, "on_conflict", ON_CONFLICT, settings.on_conflict),
        allow_unsafe=arguments.flag(args, "allow_unsafe") or settings.allow_unsafe,
        skip_unsafe=arguments.flag(args, "skip_unsafe") or settings.skip_unsafe,
    )


def _one_of(args: Mapping[str, Any], name: str, choices: tuple[str, ...], default: str) -> str:
    found = arguments.text(args, name, "export_changes", default=default)
    if found not in choices:
        message = f"unknown {name}: {found}, it is one of {', '.join(choices)}"
        raise OperationError(INVALID_REQUEST, message, {"argument": name}, reason="bad_argument")
    return found
