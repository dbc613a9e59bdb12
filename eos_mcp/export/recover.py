"""Roll back or report killed exports, found only by the records in the gateway's state directory."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import stat
from typing import Any

from eos_agent.wire.protocol import OPERATION_FAILED, OperationError
from eos_mcp.export.dirfd import DirTree
from eos_mcp.export.names import NAMED_MAX
from eos_mcp.export.stage import ExportStage, NotVouched, StepHook, clear_away, no_step, state_of
from eos_mcp.export.stream import refused
from eos_mcp.export.voucher import Said, Voucher, find_records
from eos_mcp.workspace.staging_prefix import PREFIX

TRY_AGAIN = (
    "make the destination writable and free space there, then repeat the call: it first rolls that export "
    "back. The files that it replaced are in the directory that staging names, which is kept until then"
)


def recover(dest: str, folder: str, *, step: StepHook = no_step) -> list[str]:
    """Roll back killed exports to `dest` (resolved, absolute), to a directory in it or above it; remove their
    staging directories.

    Args:
        folder: the directory of the records, in the state directory.
    Returns:
        For each record `rolled_back` or `swept`; `left` if its staging directory cannot be removed; `ignored`
        if the directory or journal is not the one that its export left.
    Raises:
        OperationError: operation_failed, `in_flight`: such an export is running; `rollback_failed`.
    """
    found = find_records(folder, dest)
    done: list[str] = []
    waiting = list(found.dead)
    try:
        if found.alive:
            raise in_flight(dest, found.alive[0])
        while waiting:
            done += _recover_one(waiting.pop(0), step)
    finally:
        for voucher in waiting:
            voucher.close()
    return done


def _recover_one(voucher: Voucher, step: StepHook) -> list[str]:
    """Roll back one export. The voucher is closed at the end; its record stays if another try may succeed."""
    home = voucher.said.open_home()
    if home is None:  # the directory was renamed, or its disk is not mounted
        voucher.close()
        return []
    try:
        if voucher.said.id is None:  # killed while the staging directory was empty
            with contextlib.suppress(OSError):
                os.rmdir(voucher.said.name, dir_fd=home.fd)
            voucher.drop()
            return []
        gone = home.lstat(voucher.said.name) is None
        if gone and not voucher.said.annexes:
            voucher.drop()
            return []
        try:
            stage = None if gone else ExportStage.take_over(home, voucher, step)
        except NotVouched:
            voucher.drop()
            return ["ignored"]
        if stage is None:
            return ["swept" if _swept(home, voucher, step) else "left"]
        return ["rolled_back"] if _roll_back_and_remove(stage, home, voucher) else ["rolled_back", "left"]
    except OSError as error:
        voucher.close()
        said = voucher.said
        details: dict[str, Any] = {
            "path": said.dest,
            "staging": os.path.join(said.home, os.fsdecode(said.name)),
            "hint": TRY_AGAIN,
        }
        message = (
            f"export: an earlier export to {said.dest} was interrupted and cannot be rolled back: {error}"
        )
        if error.errno == errno.ENODEV:
            where = os.path.join(said.dest, os.fsdecode(error.filename))
            message = (
                f"export: an earlier export to {said.dest} was interrupted while a file system was mounted "
                f"at {where}, which is not mounted now"
            )
            details["hint"] = (
                f"mount it at {where} again and repeat the call; exports to other destinations work. If the "
                f"file system is lost, move {voucher.path} to another directory: {details['staging']} is "
                f"then kept, with the files that the export replaced in its directory undo"
            )
        raise OperationError(OPERATION_FAILED, message, details, reason="rollback_failed") from error
    finally:
        home.close()


def _swept(home: DirTree, voucher: Voucher, step: StepHook) -> bool:
    """Remove the staging of an export that needs no rollback; False: it cannot be removed (an immutable file,
    a mount). The voucher then stays, so that each later export, which is not prevented, tries again and names
    the directory in its result.
    """
    try:
        clear_away(home, voucher, step)
    except OSError:
        return False
    return True


def _roll_back_and_remove(stage: ExportStage, home: DirTree, voucher: Voucher) -> bool:
    """Roll back and remove the staging directory; False: rolled back, but the directory cannot be removed."""
    target: DirTree | None = None
    done = False
    try:
        name = (
            b""
            if voucher.said.home == voucher.said.dest
            else os.fsencode(os.path.basename(voucher.said.dest))
        )
        if not name:
            target = DirTree(os.dup(home.fd))
        elif (there := home.lstat(name)) is not None and stat.S_ISDIR(there.st_mode):
            target = home.below(name)
        roll_back(stage, name, target)
        done = True
    finally:
        if target is not None:
            target.close()
        if not done:
            stage.leave()
    try:
        stage.destroy()
    except OSError:
        return False
    return True


def roll_back(stage: ExportStage, name: bytes, target: DirTree | None) -> None:
    """Roll back the steps of an export. `name`: the destination's name in the stage's home, if that export
    made it.
    """
    if target is not None:
        stage.rollback(target)
    if stage.created:
        try:
            os.rmdir(name, dir_fd=stage.home.fd)
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ENOTEMPTY, errno.ENOTDIR):
                raise
    stage.set_phase("back")


def check_unfinished(dest: str, folder: str) -> None:
    """Report killed exports without a change; a staging directory that needs only removal is left to the next
    export.

    Raises:
        OperationError: operation_failed: `in_flight`, or `export_unfinished`: an export was killed while it
            changed the destination. The next export would roll that back first, so its result cannot be
            predicted now.
    """
    found = find_records(folder, dest)
    unfinished = [voucher.said for voucher in found.dead if is_changing(voucher.said)]
    for voucher in found.dead:
        voucher.close()
    if found.alive:
        raise in_flight(dest, found.alive[0])
    if unfinished:
        said = unfinished[0]
        details = {
            "path": dest,
            "staging": os.path.join(said.home, os.fsdecode(said.name)),
            "hint": "the next export without dry_run rolls it back first",
        }
        message = (
            f"export: an earlier export to {said.dest} was interrupted while it changed it; a dry run "
            f"cannot tell what comes after that"
        )
        raise OperationError(OPERATION_FAILED, message, details, reason="export_unfinished")


def roll_back_killed(workspace: str, folder: str) -> None:
    """Roll back killed exports to `workspace` (resolved, absolute), before and after it is copied.

    Raises:
        OperationError: operation_failed: `in_flight`, an export is changing `workspace` now;
            `rollback_failed`.
    """
    found = find_records(folder, workspace)
    waiting = list(found.dead)
    try:
        for said in found.alive:
            if is_changing(said):
                message = f"workspace {workspace}: an export to {said.dest} is changing it now"
                raise OperationError(
                    OPERATION_FAILED, message, {"path": workspace, "retryable": True}, reason="in_flight"
                )
        while waiting:
            _recover_one(waiting.pop(0), no_step)
    finally:
        for voucher in waiting:
            voucher.close()


def is_changing(said: Said) -> bool:
    """Tell whether an export has begun to change its destination, and has neither finished nor rolled
    back.
    """
    home = said.open_home()
    if home is None:
        return False
    try:
        if said.staging(home) is None:
            return False
        tree = home.below(said.name)
        try:
            return state_of(tree, said).get("phase") == "ready"
        finally:
            tree.close()
    except (OSError, NotVouched):
        return False
    finally:
        home.close()


def in_flight(dest: str, other: Said | None = None) -> OperationError:
    to = dest if other is None or other.dest == dest else f"{other.dest}, which {dest} touches,"
    return refused(f"another export to {to} is in flight", "in_flight", path=dest, retryable=True)


def tag(dest: str) -> str:
    """Return the part of a staging directory's name that identifies a destination that does not exist yet."""
    return hashlib.sha256(os.fsencode(os.path.basename(dest))).hexdigest()[:8] + "-"


def strangers(dest: str, own: ExportStage | None) -> dict[str, Any]:
    """List directories with the name of a staging directory of this destination that belong to other
    gateways; they are not changed.
    """
    found: list[str] = []
    for directory, start in ((dest, PREFIX), (os.path.dirname(dest), PREFIX + tag(dest).encode())):
        with contextlib.suppress(OSError):
            for name in os.listdir(os.fsencode(directory)):
                path = os.path.join(os.fsencode(directory), name)
                if (
                    name.startswith(start)
                    and (own is None or name != own.voucher.said.name)
                    and stat.S_ISDIR(os.lstat(path).st_mode)
                ):
                    found.append(path.decode("utf-8", "replace"))
    if not found:
        return {}
    return {"ignored_staging": sorted(found)[:NAMED_MAX], "ignored_staging_count": len(found)}
