"""Format `dir`: apply the delta to a directory of the host, all of it or nothing.

Files are written once, into the staging directory, while the stream is read and compared with the
destination. Once the whole stream is verified they are renamed into place. See `export.stage` for the
journal.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shlex
from typing import Any

from eos_agent.wire.protocol import OPERATION_FAILED, OperationError, os_error
from eos_mcp.export.dirfd import DirTree
from eos_mcp.export.dry_run import DryRun, check_home
from eos_mcp.export.flock import lock
from eos_mcp.export.guard import ExportGuard, guarding
from eos_mcp.export.new_directory import FreshReceiver, commit_new
from eos_mcp.export.owner import owned_by_folder
from eos_mcp.export.receive import Progress, Receiver
from eos_mcp.export.recover import (
    TRY_AGAIN,
    check_unfinished,
    in_flight,
    is_changing,
    recover,
    roll_back,
    strangers,
    tag,
)
from eos_mcp.export.request import ExportRequest
from eos_mcp.export.stage import ExportStage, StepHook, no_step
from eos_mcp.export.stream import ExportStream, refused
from eos_mcp.export.voucher import find_records

_HINTS = {
    "ENOSPC": (
        "free space on the file systems of the destination and of the state directory, where exports "
        "are recorded; then repeat the export"
    ),
    "EPERM": "lsattr -d shows whether the path, or the directory that contains it, is immutable or "
    "append-only (chattr -i, chattr -a); a directory "
    "with a sticky bit lets only owners replace files. Or export to another directory, or in format tar",
    "EXDEV": "something else is mounted there, or the file system cannot move directories, as an overlay "
    "(the root of a container) cannot: export "
    "to a new directory beside it, or in format tar",
    "EROFS": "export to another directory, or in format tar to another file system",
}


def apply_directory(
    stream: ExportStream,
    request: ExportRequest,
    *,
    journals: str,
    progress: Progress,
    step: StepHook = no_step,
) -> dict[str, Any]:
    """Apply the delta of the stream to the destination (pinned).

    Args:
        journals: directory in the state directory with the records of running exports.
    Returns:
        The contract's keys, and `hygiene` if it found files; with `dry_run` also the findings of `DryRun`,
        and nothing was written.
    Raises:
        OperationError: operation_failed; the destination is unchanged, unless `details.reason` is
            `rollback_failed`.
    """
    dest, dry_run = request.dest, request.dry_run
    if dry_run:
        check_unfinished(dest, journals)
    else:
        recover(dest, journals)
    with contextlib.ExitStack() as stack:
        try:
            target = DirTree(dest) if os.path.lexists(dest) else None
            made = _made(request, new=target is None)
            if target is not None:
                stack.callback(target.close)
                if not lock(target.fd):
                    raise in_flight(dest)
            if dry_run:
                preview = DryRun(check_home(dest), target)
                guard = stack.enter_context(guarding(request, target, stream))
                work = Receiver(stream, target, None, request, guard, preview)
                work.receive(progress)
                return {**work.result(), **made, **strangers(dest, None)}
            home = target
            if home is None:
                home = DirTree(os.path.dirname(dest))
                stack.callback(home.close)
            where, label = (dest, "") if target is not None else (os.path.dirname(dest), tag(dest))
            stage = ExportStage.create(journals, home, where, dest, label, step)
            stack.callback(_end, stage)
            _check_alone(stage, dest, journals)
            guard = stack.enter_context(guarding(request, target, stream))
            if target is None:
                fresh = FreshReceiver(stream, stage, request, guard)
                stack.callback(fresh.close)
                if fresh.atomic:
                    fresh.receive(progress)
                    fresh.begin_sync()
                    guard.ready(fresh.tree)
                    _commit_new(stage, dest, fresh, guard)
                    return {**fresh.result(), **made, **strangers(dest, stage), **_left(stage)}
            work = Receiver(stream, target, stage, request, guard)
            work.receive(progress)
            guard.ready()
            stage.ready(work.staged_files)
            _commit(stage, dest, target, guard)
            return {**work.result(), **made, **strangers(dest, stage), **_left(stage)}
        except OSError as error:
            raise disk_refused(error, dest) from error


def _made(request: ExportRequest, *, new: bool) -> dict[str, Any]:
    """Return the keys that tell a new destination from one that was filled."""
    if not new:
        return {"created": False}
    workspace = request.rules.workspace
    source = "the workspace" if workspace is None else shlex.quote(workspace)
    hint = (
        f"the destination is a new directory: it gets the changed files only, not the whole project. For the "
        f"whole project copy {source} to another new directory (cp -a) and export to that one, or export to "
        f"{source}"
    )
    return {"created": True, "hint": hint}


def _check_alone(stage: ExportStage, dest: str, journals: str) -> None:
    """Refuse to commit while another export to the same destination runs: two that began at the same time
    detect each other here.
    """
    found = find_records(journals, dest, but=stage.voucher)
    busy = [
        *found.alive,
        *(voucher.said for voucher in found.dead if is_changing(voucher.said)),
    ]  # the latter ended since `recover` ran
    for voucher in found.dead:
        voucher.close()
    if busy:
        raise in_flight(dest, busy[0])


def _left(stage: ExportStage) -> dict[str, Any]:
    """Remove the staging of a finished export; return its path if that fails, for example since a replaced
    file is immutable.
    """
    _end(stage)
    return {"left_staging": [stage.path]} if stage.voucher.said.staging(stage.home) is not None else {}


def _end(stage: ExportStage) -> None:
    if stage.ended:
        return
    stage.ended = True
    if stage.kept:
        stage.voucher.close()
        return
    with contextlib.suppress(OSError):
        stage.destroy()


def _commit_new(stage: ExportStage, dest: str, work: FreshReceiver, guard: ExportGuard) -> None:
    """Rename the whole tree into its place; on a failure it is removed with the staging directory."""
    try:
        commit_new(stage, work, os.fsencode(os.path.basename(dest)))
    except FileExistsError:
        message = f"{dest} was made by another program during the export"
        raise refused(message, "destination_changed", path=dest, retryable=True) from None
    guard.finish(work.tree)


def _commit(stage: ExportStage, dest: str, target: DirTree | None, guard: ExportGuard) -> None:
    """Commit, or roll back."""
    opened: DirTree | None = None
    name = os.fsencode(os.path.basename(dest))
    try:
        if target is None:
            stage.created = True
            stage.set_phase("ready")
            try:
                os.mkdir(name, dir_fd=stage.home.fd)
            except FileExistsError:
                stage.created = False
                message = f"{dest} was made by another program or another export during this export"
                raise refused(message, "destination_changed", path=dest, retryable=True) from None
            target = opened = stage.home.below(name)
            owned_by_folder(target.fd, stage.home.fd)
        stage.commit(target)
        if stage.created:
            os.fsync(stage.home.fd)
        guard.check(stage.annexes.all())
        stage.step("export.done")
        stage.set_phase("done")
    except BaseException as error:
        try:
            roll_back(stage, name, target)
        except Exception as second:  # any exception: keep the staging directory with the replaced files
            stage.kept = True
            stage.leave()
            code = errno.errorcode.get(second.errno or 0, "EIO") if isinstance(second, OSError) else "EIO"
            details = {"path": dest, "staging": stage.path, "errno": code, "hint": TRY_AGAIN}
            raise OperationError(
                OPERATION_FAILED,
                f"export: {error}; taking it back failed as well: {second}. The next export to {dest} "
                f"tries again",
                details,
                reason="rollback_failed",
            ) from error
        raise
    else:
        guard.finish(target)
    finally:
        if opened is not None:
            opened.close()


def disk_refused(error: OSError, dest: str) -> OperationError:
    """Convert an error of the destination's file system, after the rollback."""
    out = os_error(error)
    if (hint := _HINTS.get(str(out.details.get("errno")))) is not None:
        out.details["hint"] = hint
    out.details.setdefault("path", dest)
    out.details["dest"] = dest
    return OperationError(
        OPERATION_FAILED, f"export to {dest}: {out.message}; the destination is as it was before", out.details
    )
