"""One call of `export_changes` as a value."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from eos_mcp.config.model import Export
from eos_mcp.export.rules import REFERENCE, ExportRules, chosen
from eos_mcp.requests import arguments, bounds
from eos_mcp.requests.bounds import Bounds

ContentOf = Callable[[bytes, bytes], bytes | None]
"""(path, digest) -> the content of a file, if it is stored."""


@dataclass(frozen=True)
class ExportRequest:
    """The arguments of a call, with the defaults of the configuration."""

    dest: str
    """Destination as given; resolved if `pinned`: no symlink is followed afterwards."""
    fmt: str = "dir"
    sandbox_id: str = ""
    version: int | None = None
    dry_run: bool = False
    """Only read and compare: the same checks, refusals and counts, and a list of the changes."""
    keep_setuid: bool = False
    """Write setuid and setgid bits of files; else they are left out and listed."""
    directory_mode: str = "carried"
    """`carried`: modes of the sandbox; `0700` for every directory that is made."""
    base: str | None = None
    """The base of the sandbox on this machine; files that differ from it were edited on the host."""
    rules: ExportRules = REFERENCE
    """Rules of a `dir` export for a repository's own files, for changed files, and for files that would run
    by themselves.
    """
    bound: Bounds | None = None
    """Bounds that are checked against the resolved destination right before it is opened. None: no bounds."""
    pinned: bool = False
    """True: `dest` was resolved when the call began; if it now leads elsewhere, the export is refused."""

    content_of: ContentOf | None = None
    """Earlier content of a destination's file, the base of a merge; called in the thread of the export."""

    def at(self, place: str) -> ExportRequest:
        """Return the request with its destination resolved."""
        return replace(self, dest=place, pinned=True)

    def over(self, base: str) -> ExportRequest:
        """Return the request with the copy of the workspace, if this machine has it."""
        return replace(self, base=base)


def of(args: Mapping[str, Any], settings: Export) -> ExportRequest:
    """Read the arguments of a call, with the configuration for absent ones.

    Raises:
        OperationError: invalid_request.
    """
    op, version = "export_changes", args.get("version")
    return ExportRequest(
        dest=arguments.text(args, "dest", op, non_empty=False),
        fmt=arguments.text(args, "format", op, default="dir", non_empty=False),
        sandbox_id=arguments.text(args, "sandbox_id", op),
        version=version if isinstance(version, int) else None,
        dry_run=arguments.flag(args, "dry_run"),
        keep_setuid=arguments.flag(args, "keep_setuid"),
        directory_mode=settings.directory_mode,
        rules=chosen(args, settings),
        bound=bounds.of_request(args),
    )
