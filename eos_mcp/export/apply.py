"""The host's side of `export_changes`: check the destination, and write a stream in one of three formats.

Synchronous; the manager runs it in a thread. An export is all or nothing: after a refused stream, an exceeded
limit, a full disk or a kill the destination is unchanged (after a kill, the next export to it, or `recover`,
rolls it back).
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Generator
from typing import Any, NamedTuple

from eos_agent.wire.protocol import INVALID_REQUEST, OPERATION_FAILED, OperationError
from eos_mcp.export.archive import apply_archive
from eos_mcp.export.directory import apply_directory, disk_refused
from eos_mcp.export.dirfd import DirTree
from eos_mcp.export.owner import owned_by_folder
from eos_mcp.export.recover import recover
from eos_mcp.export.request import ExportRequest
from eos_mcp.export.stage import StepHook, no_step
from eos_mcp.export.stream import DeadlineReader, ExportLimits, ExportStream

__all__ = [
    "FORMATS",
    "DeadlineReader",
    "ExportLimits",
    "ExportRequest",
    "Guards",
    "apply",
    "check_destination",
    "recover",
]

FORMATS = ("dir", "tar", "tar-zst")


class Guards(NamedTuple):
    """Paths to which an export never writes."""

    home: str
    """Home directory: refused as a destination; directories below it are allowed."""
    own: tuple[str, ...]
    """State, cache and runtime directories of the gateway: refused with everything below them."""
    journals: str
    """Directory in the state directory with the records of running exports; absolute."""
    registry: str | None = None
    """The manager's registry file: refused, as is its directory itself."""


def check_destination(dest: str, fmt: str, guards: Guards) -> str:
    """Refuse a destination by its text, and by the path that it resolves to, before any write or request.

    Returns:
        The destination without symlinks: for a `dir` export to a symlink, the directory that the link leads
        to.
    Raises:
        OperationError: invalid_request, `details.argument` names the argument.
    """
    if fmt not in FORMATS:
        raise OperationError(
            INVALID_REQUEST,
            f"unknown export format: {fmt}, it is one of {', '.join(FORMATS)}",
            {"argument": "format"},
            reason="bad_format",
        )
    if not dest or not os.path.isabs(dest):
        raise _refused(dest, "must be an absolute path")
    if "\0" in dest:
        raise _refused(dest, "holds a NUL byte")
    lexical = _normalise(dest)
    _check_place(dest, lexical, guards)
    _check_kind(dest, lexical, fmt)
    resolved = _resolve(lexical, fmt)
    if resolved != lexical:
        _check_place(dest, resolved, guards)
        _check_kind(dest, resolved, fmt)
    return resolved


def _refused(dest: str, why: str) -> OperationError:
    return OperationError(
        INVALID_REQUEST,
        f"export destination {dest!r} {why}",
        {"argument": "dest", "dest": dest},
        reason="bad_destination",
    )


def _agent_too_old(sandbox_id: str) -> OperationError:
    details = {
        "sandbox_id": sandbox_id,
        "daemon_op": "export_stream",
        "hint": (
            "export with ignored include; sandboxes that are created from now on can leave ignored files out"
        ),
    }
    message = f"export: the agent of sandbox {sandbox_id} is too old to leave out ignored files"
    return OperationError(OPERATION_FAILED, message, details, reason="agent_too_old")


def _normalise(path: str) -> str:
    """Remove `.`, `..` and doubled slashes, by the text alone."""
    return "/" + os.path.normpath(path).lstrip("/") if os.sep == "/" else os.path.normpath(path)


def _resolve(lexical: str, fmt: str) -> str:
    """Resolve the symlinks of parent directories, and for format `dir` the last name too. For an archive the
    last name is kept: an export never writes through a link.
    """
    if fmt == "dir" and os.path.isdir(lexical):
        return os.path.realpath(lexical)
    above, name = os.path.split(lexical)
    return os.path.join(os.path.realpath(above), name)


def _check_place(dest: str, place: str, guards: Guards) -> None:
    if os.path.dirname(place) == place:
        raise _refused(dest, "is the root directory")
    if ".export" in place.split(os.sep):
        raise _refused(dest, "has a component named .export")
    for home in {_normalise(guards.home), os.path.realpath(guards.home)}:
        if place == home:
            raise _refused(dest, "is the home directory; name a directory below it")
    if guards.registry is not None:
        for registry in {_normalise(guards.registry), os.path.realpath(guards.registry)}:
            if place in (registry, os.path.dirname(registry)):
                raise _refused(dest, "is the manager's registry or its directory")
    for own in guards.own:
        for root in {_normalise(own), os.path.realpath(own)}:
            if place == root or place.startswith(root + os.sep):
                raise _refused(dest, f"is in a directory of this program, {own}")


def _check_kind(dest: str, place: str, fmt: str) -> None:
    if fmt == "dir":
        if os.path.lexists(place) and not os.path.isdir(place):
            raise _refused(
                dest,
                "exists and is not a directory"
                + (" but a symlink that leads to none" if os.path.islink(place) else ""),
            )
        return
    if os.path.isdir(place) and not os.path.islink(place):
        raise _refused(dest, f"is a directory; format {fmt} writes a file")
    if not os.path.isdir(os.path.dirname(place)):
        raise _refused(dest, "has no parent directory")


def apply(
    reader: DeadlineReader,
    request: ExportRequest,
    *,
    limits: ExportLimits,
    places: Guards,
    progress: Callable[[str], None],
    step: StepHook = no_step,
) -> dict[str, Any]:
    """Read one export stream and write it to the destination of `request`.

    Args:
        reader: the agent's answer to `export_stream`, from its first line; each read has its own deadline.
        step: hook at which tests stop; the names begin with `export.`.
    Returns:
        The result object of `export_changes`.
    Raises:
        OperationError: invalid_request for the destination (checked again after the sandbox's answer), else
            operation_failed.
    Memory: one chunk of 1 MiB, and some 20 bytes per entry.
    """
    with ExportStream(reader, limits) as stream:
        place = check_destination(request.dest, request.fmt, places)
        if request.pinned and place != request.dest:
            raise _refused(request.dest, f"leads to {place} now, and did not when the export began")
        if os.name != "posix":
            raise OperationError(
                OPERATION_FAILED,
                "export: this system has no descriptor-relative file calls",
                reason="not_available",
            )
        request = request.at(place)
        if request.rules.ignored == "exclude" and not stream.without_ignored:
            raise _agent_too_old(request.sandbox_id)
        if request.bound is not None:
            request.bound.check(place, "dest")
        if request.fmt == "dir":
            with _parents_of(place, request.dry_run):
                return apply_directory(
                    stream, request, journals=places.journals, progress=progress, step=step
                )
        return apply_archive(stream, request, journals=places.journals, progress=progress, step=step)


@contextlib.contextmanager
def _parents_of(place: str, dry_run: bool) -> Generator[None]:
    """Make the directories above `place`; remove them again when the export fails. A dry run makes and
    removes none.
    """
    missing: list[str] = []
    above = os.path.dirname(place)
    while not dry_run and not os.path.lexists(above):
        missing.append(os.path.basename(above))
        above = os.path.dirname(above)
    made: list[DirTree] = []
    try:
        if missing:
            made.append(DirTree(above))
        for name in reversed(missing):
            made.append(_made_in(made[-1], os.fsencode(name)))
        yield
    except BaseException as error:
        for name, tree in zip(missing, reversed(made[:-1]), strict=False):
            with contextlib.suppress(OSError):
                os.rmdir(name, dir_fd=tree.fd)
        if isinstance(error, OSError):
            raise disk_refused(error, place) from error
        raise
    finally:
        for tree in made:
            tree.close()


def _made_in(folder: DirTree, name: bytes) -> DirTree:
    """Make a directory, or accept one that another process has just made, but not a symlink. As root, give it
    the owner of its parent.
    """
    made = False
    with contextlib.suppress(FileExistsError):
        os.mkdir(name, dir_fd=folder.fd)
        made = True
    tree = folder.below(name)
    if made:
        owned_by_folder(tree.fd, folder.fd)
    return tree
