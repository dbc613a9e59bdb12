"""Test in a child process if this machine can run local sandboxes. Also delete trees with owners that exist
only in a user namespace.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import eos_agent
import layerstack
from layerstack.kernel import fsync

IN_NAMESPACE = """
import errno, json, os, sys, tempfile
from layerstack.kernel import syscalls
def say(step, error):
    print(json.dumps({"step": step, "errno": errno.errorcode.get(error.errno, str(error.errno)), "message": str(error)})); sys.exit(0)
uid, gid = os.geteuid(), os.getegid()
try:
    syscalls.unshare(syscalls.CLONE_NEWNS | (syscalls.CLONE_NEWUSER if uid else 0))
    if uid:
        for name, text in (("setgroups", "deny"), ("uid_map", f"0 {uid} 1"), ("gid_map", f"0 {gid} 1")):
            with open(f"/proc/self/{name}", "w") as file: file.write(text)
    syscalls.mount("none", "/", None, syscalls.MS_REC | syscalls.MS_PRIVATE)
except OSError as error:
    say("userns" if uid else "mountns", error)
"""  # noqa: E501

OVERLAY = """
try:
    for name in ("lower", "upper", "work", "merged"): os.mkdir(os.path.join(sys.argv[1], name))
    os.chdir(sys.argv[1])
    os.setxattr("upper", ("user" if uid else "trusted") + ".overlay.probe", b"y")
    syscalls.mount("overlay", "merged", "overlay", 0, "lowerdir=lower,upperdir=upper,workdir=work," + ("userxattr" if uid else "redirect_dir=on,index=off,metacopy=off"))
    syscalls.umount("merged")
except OSError as error:
    say("overlay", error)
"""  # noqa: E501

ROOTFS = """
from eos_agent.init import mounts
plan = json.loads(sys.argv[1])
try:
    mounts.prepare(plan["workspace"], [], plan["hidden"], local=True, rootfs=plan["rootfs"])
except mounts.SetupFailed as failed:
    print(json.dumps({"step": failed.step, "errno": errno.errorcode.get(failed.errno or 0, str(failed.errno)), "message": failed.message}))
"""  # noqa: E501

REMOVE = """
from layerstack.kernel import fsync
fsync.remove_tree(sys.argv[1])
"""

STATFS_OVERLAY = "overlay"
TRIAL = ".probe-"


class Problem(NamedTuple):
    """A requirement that this machine does not meet, in the words of an error."""

    reason: str
    message: str
    details: dict[str, Any]


def problem(state_dir: str, python: Sequence[str]) -> Problem | None:
    """Try a mount namespace (as an ordinary user inside a user namespace) and an overlay whose upperdir is in
    `state_dir`; None when both work.

    Args:
        python: the command line of an interpreter that has `layerstack`, the bundle's.
    """
    if sys.platform != "linux":
        return Problem(
            "not_linux",
            "local sandboxes need Linux; use an image and Docker",
            {"hint": "start Docker and name an image"},
        )
    mine = f"{TRIAL}{os.getpid()}-"
    for name in os.listdir(state_dir):
        if name.startswith(TRIAL) and not name.startswith(
            mine
        ):  # left by a gateway that was killed during a probe
            remove_tree(os.path.join(state_dir, name), lambda: python)
    trial = os.path.join(state_dir, f"{mine}{os.urandom(4).hex()}")
    os.makedirs(trial, mode=0o700)
    try:
        done = _run(python, IN_NAMESPACE + OVERLAY, trial)
    finally:
        remove_tree(trial, lambda: python)
    if done.returncode != 0:
        return Problem(
            "probe_failed", f"the probe for local sandboxes failed: {done.stderr.strip()[-300:]}", {}
        )
    if not done.stdout.strip():
        return None
    found: dict[str, str] = json.loads(done.stdout)
    details: dict[str, Any] = {"errno": found["errno"], "step": found["step"], "directory": state_dir}
    if found["step"] == "userns":
        limit = (
            "user.max_user_namespaces is 0 or reached"
            if found["errno"] == "ENOSPC"
            else "the kernel or a security module forbids them to ordinary users"
        )
        hint = (
            "allow them (sysctl user.max_user_namespaces, kernel.unprivileged_userns_clone, "
            "kernel.apparmor_restrict_unprivileged_userns), or use a Docker image"
        )
        return Problem(
            "userns_forbidden",
            f"user namespaces are not available here [{found['errno']}]: {limit}; {hint}",
            {**details, "hint": hint},
        )
    if found["step"] == "mountns":
        hint = "run on the host, or give this container CAP_SYS_ADMIN"
        return Problem(
            "mountns_forbidden",
            f"a mount namespace is refused [{found['errno']}]: {hint}",
            {**details, "hint": hint},
        )
    kind = _file_system_of(state_dir)
    if kind == STATFS_OVERLAY:
        hint = "set EOS_STATE_DIR to a directory on ext4, xfs, btrfs or tmpfs"
        message = (
            f"the store at {state_dir} is on an overlay file system, which cannot be the upper "
            f"directory of another; {hint}"
        )
        return Problem("store_on_overlay", message, {**details, "hint": hint, "file_system": kind})
    hint = "load the overlay module, or set EOS_STATE_DIR to another file system, or use a Docker image"
    message = (
        f"overlayfs does not work in {state_dir} ({kind or 'unknown file system'}) "
        f"[{found['errno']}]: {found['message']}; {hint}"
    )
    return Problem("overlay_unsupported", message, {**details, "hint": hint, "file_system": kind})


def rootfs_problem(rootfs: str, hidden: Sequence[str], python: Sequence[str]) -> Problem | None:
    """Try to make `rootfs` the root of a session; None when that works."""
    plan = {"rootfs": rootfs, "hidden": list(hidden), "workspace": "/workspace"}
    done = _run(python, IN_NAMESPACE + ROOTFS, json.dumps(plan))
    if done.returncode != 0:
        return Problem(
            "probe_failed",
            f"the probe for local sandboxes failed: {done.stderr.strip()[-300:]}",
            {"argument": "image"},
        )
    if not done.stdout.strip():
        return None
    found: dict[str, str] = json.loads(done.stdout)
    details: dict[str, Any] = {"argument": "image", "errno": found["errno"], "step": found["step"]}
    if found["errno"] == "EACCES" and "hidden" in found["message"]:
        hint = "copy the tree to a directory of your own and use that"
        message = (
            f"{rootfs} is hidden from sessions (state of a gateway, data of a container engine, keys); {hint}"
        )
        return Problem("rootfs_hidden", message, {**details, "hint": hint})
    hint = (
        "copy the tree to a directory of your own on a file system that works below an overlay (ext4, "
        "xfs, btrfs, tmpfs)"
    )
    message = (
        f"{rootfs} cannot be the root of a session: {found['step']}: {found['message']} "
        f"[{found['errno']}]; {hint}"
    )
    return Problem("rootfs_unusable", message, {**details, "hint": hint})


def remove_tree(path: str, python: Callable[[], Sequence[str]]) -> None:
    """Delete a tree of a sandbox, whatever the modes of its directories. Entries that an ordinary user may
    not delete directly are deleted in a user namespace, in which their owner is root.

    Raises:
        OSError: something is still there.
    """
    try:
        fsync.remove_tree(path)
        return
    except (OSError, RecursionError):
        if not os.path.lexists(path):
            return
    done = _run(python(), IN_NAMESPACE + REMOVE, path)
    if os.path.lexists(path):  # deeper than Python's recursion limit
        done = subprocess.run(
            ["rm", "-rf", "--one-file-system", "--", path], capture_output=True, text=True, check=False
        )
    if os.path.lexists(path):
        raise OSError(1, f"still there: {(done.stderr or done.stdout).strip()[-300:]}", path)


def _run(python: Sequence[str], code: str, argument: str) -> subprocess.CompletedProcess[str]:
    """Run `code` in a new single-threaded interpreter, which imports the packages from its own path or from
    this process's.
    """
    packages = dict.fromkeys(
        os.path.dirname(os.path.abspath(path))
        for package in (layerstack, eos_agent)
        for path in package.__path__
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(packages)}
    argv = [*python, "-c", code, argument]
    return subprocess.run(
        argv,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def _file_system_of(path: str) -> str:
    """Return the type of the file system of `path`, by the longest mount point above it."""
    best, kind = "", ""
    real = os.path.realpath(path)
    try:
        with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as file:
            for line in file:
                left, _, right = line.partition(" - ")
                point = left.split()[4].encode().decode("unicode_escape", "replace")
                if (real == point or real.startswith(point.rstrip("/") + "/")) and len(point) >= len(best):
                    best, kind = point, right.split()[0]
    except (OSError, IndexError):
        pass
    return kind
