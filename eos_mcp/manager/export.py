"""The host's side of `export_changes`: where it may write, and one call that reads a stream and writes it in one of three formats.

Synchronous; the manager runs it in a thread. An export is all or nothing: a refused stream, a cap, a full disk or a kill leave the
destination as it was (after a kill: from the next export to it, or `recover`, on).
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Generator
from typing import Any, NamedTuple

from eos_agent.protocol import INVALID_REQUEST, OPERATION_FAILED, OperationError
from eos_mcp.manager.export_archive import apply_archive
from eos_mcp.manager.export_dir import apply_directory, disk_refused
from eos_mcp.manager.export_recover import recover
from eos_mcp.manager.export_rules import REFERENCE, Rules
from eos_mcp.manager.export_stage import StepHook, no_step
from eos_mcp.manager.export_stream import ExportLimits, ExportStream, Reader

__all__ = ["FORMATS", "ExportLimits", "Guards", "Reader", "apply", "check_destination", "recover"]

FORMATS = ("dir", "tar", "tar-zst")


class Guards(NamedTuple):
    """Places that an export never writes to."""

    home: str
    """Refused as such; what is below it is allowed."""
    own: tuple[str, ...]
    """Our state, cache and runtime directories: refused with all that is below them."""
    journals: str
    """Of the state directory: where exports that are under way are on record; absolute."""
    registry: str | None = None
    """The manager's registry file: refused, and its directory as such."""


def check_destination(dest: str, fmt: str, guards: Guards) -> None:
    """Whether an export may go to `dest`: by its text, and by what it resolves to. Nothing is written and no sandbox is asked.

    Raises:
        OperationError: invalid_request, `details.argument` tells which argument.
    """
    if fmt not in FORMATS:
        raise OperationError(
            INVALID_REQUEST, f"unknown export format: {fmt}, it is one of {', '.join(FORMATS)}", {"argument": "format"}, reason="bad_format"
        )
    if not dest or not os.path.isabs(dest):
        raise _refused(dest, "must be an absolute path")
    if "\0" in dest:
        raise _refused(dest, "holds a NUL byte")
    lexical = _fold(dest)
    _check_place(dest, lexical, guards)
    _check_kind(dest, lexical, fmt)
    resolved = _resolve(lexical)
    if resolved != lexical:
        _check_place(dest, resolved, guards)
        _check_kind(dest, resolved, fmt)


def _refused(dest: str, why: str) -> OperationError:
    return OperationError(
        INVALID_REQUEST, f"export destination {dest!r} {why}", {"argument": "dest", "dest": dest}, reason="bad_destination"
    )


def _fold(path: str) -> str:
    """Without `.`, `..` and doubled slashes, by the text alone."""
    return "/" + os.path.normpath(path).lstrip("/") if os.sep == "/" else os.path.normpath(path)


def _resolve(lexical: str) -> str:
    """Symlinks of the directories on the way are followed, the last name is kept: a link there is never written through."""
    above, name = os.path.split(lexical)
    return os.path.join(os.path.realpath(above), name)


def resolved(dest: str) -> str:
    """The place that an export to `dest` goes to."""
    return _resolve(_fold(dest))


def _check_place(dest: str, place: str, guards: Guards) -> None:
    if os.path.dirname(place) == place:
        raise _refused(dest, "is the root directory")
    if ".export" in place.split(os.sep):
        raise _refused(dest, "has a component named .export")
    for home in {_fold(guards.home), os.path.realpath(guards.home)}:
        if place == home:
            raise _refused(dest, "is the home directory; name a directory below it")
    if guards.registry is not None:
        for registry in {_fold(guards.registry), os.path.realpath(guards.registry)}:
            if place in (registry, os.path.dirname(registry)):
                raise _refused(dest, "is the manager's registry or its directory")
    for own in guards.own:
        for root in {_fold(own), os.path.realpath(own)}:
            if place == root or place.startswith(root + os.sep):
                raise _refused(dest, f"lies in a directory of this program, {own}")


def _check_kind(dest: str, place: str, fmt: str) -> None:
    if fmt == "dir":
        if os.path.lexists(place) and (os.path.islink(place) or not os.path.isdir(place)):
            raise _refused(dest, "exists and is not a directory" + (" but a symlink" if os.path.islink(place) else ""))
        return
    if os.path.isdir(place) and not os.path.islink(place):
        raise _refused(dest, f"is a directory; format {fmt} writes a file")
    if not os.path.isdir(os.path.dirname(place)):
        raise _refused(dest, "has no parent directory")


def apply(
    reader: Reader,
    *,
    dest: str,
    fmt: str,
    limits: ExportLimits,
    places: Guards,
    progress: Callable[[str], None],
    directory_mode: str = "carried",
    dry_run: bool = False,
    keep_setuid: bool = False,
    base: str | None = None,
    rules: Rules = REFERENCE,
    allowed: Callable[[str], None] | None = None,
    step: StepHook = no_step,
) -> dict[str, Any]:
    """Read one export stream and write it to `dest`.

    Args:
        reader: the agent's answer to `export_stream`, from its first line on; each read has its own deadline.
        directory_mode: `carried`, or `0700` for every directory that is made.
        dry_run: read and compare only: the same checks, refusals and counts, and what would be written, deleted or get another mode.
        keep_setuid: setuid and setgid bits of files are written as they are; else they are left out and named.
        base: the copy of the workspace that the sandbox was made from; what differs from it was edited on the host.
        rules: for `dir`: what the caller allows.
        allowed: raises where the caller may not write; asked of the resolved destination right before it is opened.
        step: where tests stop; the names begin with `export.`.
    Returns:
        The result object of `export_changes`.
    Raises:
        OperationError: invalid_request for the destination (asked again, now that the sandbox has answered), else operation_failed.
    Memory: one piece of 1 MiB at a time, and some 20 bytes per entry.
    """
    with ExportStream(reader, limits) as stream:
        check_destination(dest, fmt, places)
        if os.name != "posix":
            raise OperationError(OPERATION_FAILED, "export: this system has no descriptor-relative file calls", reason="not_available")
        place = resolved(dest)
        if allowed is not None:
            allowed(place)
        if fmt == "dir":
            with _parents_of(place, dry_run):
                return apply_directory(
                    stream,
                    place,
                    journals=places.journals,
                    progress=progress,
                    directory_mode=directory_mode,
                    dry_run=dry_run,
                    keep_setuid=keep_setuid,
                    base=base,
                    rules=rules,
                    step=step,
                )
        return apply_archive(
            stream, place, fmt, journals=places.journals, progress=progress, dry_run=dry_run, keep_setuid=keep_setuid, step=step
        )


@contextlib.contextmanager
def _parents_of(place: str, dry_run: bool) -> Generator[None]:
    """Make the directories that `place` lies in; they go again when the export fails. A dry run makes and removes none."""
    missing: list[str] = []
    above = os.path.dirname(place)
    while not dry_run and not os.path.lexists(above):
        missing.append(above)
        above = os.path.dirname(above)
    try:
        if missing:
            os.makedirs(missing[0], exist_ok=True)
        yield
    except BaseException as error:
        for directory in missing:
            with contextlib.suppress(OSError):
                os.rmdir(directory)
        if isinstance(error, OSError):
            raise disk_refused(error, place) from error
        raise
