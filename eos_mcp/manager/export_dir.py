"""Format `dir`: the delta onto a directory of the host, all of it or nothing.

Files are written once, into the staging directory, while the stream is read and compared with what lies in the destination; when the whole
stream is known to be good they are put in place by renames. See `export_stage` for the journal.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
from typing import Any

from eos_agent.protocol import OPERATION_FAILED, OperationError, os_error
from eos_mcp.manager.export_preview import Preview, check_home, check_unfinished
from eos_mcp.manager.export_receive import Progress, Receiver
from eos_mcp.manager.export_stage import PREFIX, Stage, StepHook, lock, no_step
from eos_mcp.manager.export_stream import ExportStream, refused
from eos_mcp.manager.export_tree import Tree
from layerstack.durable import fsync_dir


def apply_directory(
    stream: ExportStream,
    dest: str,
    *,
    progress: Progress,
    directory_mode: str = "carried",
    dry_run: bool = False,
    base: str | None = None,
    step: StepHook = no_step,
) -> dict[str, Any]:
    """Make `dest` (resolved, absolute) show the delta of the stream.

    Args:
        base: for a dry run: the workspace that the sandbox was made from, if this machine has it.
    Returns:
        The contract's keys, `hygiene` where something was found; with `dry_run` also what `Preview` found, and nothing was written.
    Raises:
        OperationError: operation_failed; the destination is as it was before, unless `details.reason` is `rollback_failed`.
    """
    if dry_run:
        check_unfinished(dest, _staging_of(dest))
    else:
        recover(dest)
    exists = os.path.lexists(dest)
    target = Tree(dest) if exists else None
    stage: Stage | None = None
    preview: Preview | None = None
    try:
        if target is not None and not lock(target.fd):
            raise _in_flight(dest)
        if dry_run:
            preview = Preview(check_home(dest), target, Tree(base) if base is not None and os.path.isdir(base) else None)
        else:
            home, tag = (dest, "") if exists else (os.path.dirname(dest), _tag(dest))
            stage = Stage.create(home, tag, step)
            if not exists and len(_staging_of(dest)) > 1:
                raise _in_flight(dest)
        work = Receiver(stream, target, stage, directory_mode, preview)
        work.receive(progress)
        if stage is not None:
            stage.ready(work.staged_files)
            _commit(stage, dest, target)
        return work.result()
    except OSError as error:
        raise disk_refused(error, dest) from error
    finally:
        if target is not None:
            target.close()
        if preview is not None and preview.base is not None:
            preview.base.close()
        if stage is not None and not stage.kept:
            with contextlib.suppress(OSError):
                stage.destroy()


def _commit(stage: Stage, dest: str, target: Tree | None) -> None:
    """Put everything in place, or take it back."""
    opened: Tree | None = None
    try:
        if target is None:
            stage.created = True
            stage.set_phase("ready")
            os.mkdir(dest)
            target = opened = Tree(dest)
        stage.commit(target)
        if stage.created:
            fsync_dir(os.path.realpath(os.path.dirname(dest)))
        stage.set_phase("done")
    except BaseException as error:
        try:
            _roll_back(stage, dest, target)
        except OSError as second:
            stage.kept = True
            stage.close()
            details = {"path": dest, "staging": stage.path, "errno": errno.errorcode.get(second.errno or 0, "EIO")}
            raise OperationError(
                OPERATION_FAILED,
                f"export: {error}; taking it back failed as well: {second}. The next export to {dest} tries again",
                details,
                reason="rollback_failed",
            ) from error
        raise
    finally:
        if opened is not None:
            opened.close()


def _roll_back(stage: Stage, dest: str, target: Tree | None) -> None:
    if target is not None:
        stage.rollback(target)
    if stage.created:
        try:
            os.rmdir(dest)
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ENOTEMPTY):
                raise


def recover(dest: str, *, step: StepHook = no_step) -> list[str]:
    """Take back what a killed export left half done in `dest` (resolved, absolute); its staging directories are removed.

    Returns:
        `rolled_back` or `swept` for each that was found.
    Raises:
        OperationError: operation_failed, `in_flight`: an export to this destination is running; `rollback_failed`.
    """
    done: list[str] = []
    for path in _staging_of(dest):
        stage = Stage.take_over(path, step)
        if stage is None:
            if os.path.lexists(path) and os.lstat(path).st_uid == os.geteuid():
                raise _in_flight(dest)
            continue
        try:
            if stage.state().get("phase") == "ready":
                target = Tree(dest) if os.path.lexists(dest) else None
                try:
                    _roll_back(stage, dest, target)
                finally:
                    if target is not None:
                        target.close()
                done.append("rolled_back")
            else:
                done.append("swept")
        except OSError as error:
            stage.close()
            raise OperationError(
                OPERATION_FAILED,
                f"export: an earlier export to {dest} was interrupted and cannot be taken back: {error}",
                {"path": dest, "staging": path},
                reason="rollback_failed",
            ) from error
        stage.destroy()
    return done


def disk_refused(error: OSError, dest: str) -> OperationError:
    """What the destination's file system answered; it is as it was before."""
    out = os_error(error)
    if out.details.get("errno") == "ENOSPC":
        out.details["hint"] = "free space on the file system of the destination, then repeat the export"
    out.details.setdefault("path", dest)
    out.details["dest"] = dest
    return OperationError(OPERATION_FAILED, f"export to {dest}: {out.message}; the destination is as it was before", out.details)


def _in_flight(dest: str) -> OperationError:
    return refused(f"another export to {dest} is in flight", "in_flight", path=dest, retryable=True)


def _tag(dest: str) -> str:
    return hashlib.sha256(os.fsencode(os.path.basename(dest))).hexdigest()[:8] + "-"


def _staging_of(dest: str) -> list[str]:
    """Staging directories in the destination, and those beside it that were made while it did not exist."""
    out: list[str] = []
    prefix = os.fsdecode(PREFIX)
    for directory, start in ((dest, prefix), (os.path.dirname(dest), prefix + _tag(dest))):
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            out += [os.path.join(directory, name) for name in os.listdir(directory) if name.startswith(start)]
    return sorted(path for path in out if os.path.isdir(path) and not os.path.islink(path))
