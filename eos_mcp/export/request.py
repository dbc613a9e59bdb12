"""One call of `export_changes` as one value, from the manager to whoever writes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from eos_mcp.config.model import Export
from eos_mcp.export.rules import REFERENCE, ExportRules, chosen
from eos_mcp.requests import arguments, bounds
from eos_mcp.requests.bounds import Bounds


@dataclass(frozen=True)
class ExportRequest:
    """What a caller wants, over what the configuration says."""

    dest: str
    """As it was given; once `pinned`, resolved: no symlink is followed from then on."""
    fmt: str = "dir"
    sandbox_id: str = ""
    version: int | None = None
    dry_run: bool = False
    """Read and compare only: the same checks, refusals and counts, and what would be written, deleted or get another mode."""
    keep_setuid: bool = False
    """Setuid and setgid bits of files are written as they are; else they are left out and named."""
    directory_mode: str = "carried"
    """`carried`, or `0700` for every directory that is made."""
    base: str | None = None
    """The copy of the workspace that the sandbox was made from; what differs from it was edited on the host."""
    rules: ExportRules = REFERENCE
    """For `dir`: what becomes of a repository's own files, of what the person changed, and of what would run by itself."""
    bound: Bounds | None = None
    """Where the caller may write; asked of the resolved destination right before it is opened. None: everywhere."""
    pinned: bool = False
    """`dest` was resolved when the call began: if it leads elsewhere now, the export is refused."""

    def at(self, place: str) -> ExportRequest:
        """With its destination resolved."""
        return replace(self, dest=place, pinned=True)

    def over(self, base: str) -> ExportRequest:
        """With the copy of the workspace, if this machine has it."""
        return replace(self, base=base)


def of(args: Mapping[str, Any], settings: Export) -> ExportRequest:
    """The arguments of a call where it has them, else the configuration.

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
