"""Run a function in a child process: in its own mount namespace as root, or in a user namespace as an
ordinary user. Mounts end with it.

The child is a fork, so it has closures and imported modules. The result is returned by pickle; an exception
becomes ChildFailed with the child's traceback in its text.
"""

from __future__ import annotations

import gc
import os
import pickle
import select
import signal
import sys
import time
import traceback
import warnings
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

from layerstack.kernel import syscalls

P = ParamSpec("P")
T = TypeVar("T")

TIMEOUT_S, SOAK_TIMEOUT_S = 170.0, 7_000.0
"""Time limit of a child in seconds: below pytest's own limit, so that the child is killed and reaped."""

ORDINARY_UID = 65534
"""Uid that a test of root takes for the ordinary user."""


class ChildFailed(AssertionError):
    """Error of a function that raised; `kind` is the name of the exception's class, the text ends with the
    child's traceback.
    """

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(f"in the child: {text}")
        self.kind = kind


class ChildDied(Exception):
    """Error of a child that ended without an answer; `signal` killed it, 0 when it exited with `code`."""

    def __init__(self, status: int) -> None:
        self.signal = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
        self.code = os.WEXITSTATUS(status) if os.WIFEXITED(status) else -1
        super().__init__(
            f"child ended by signal {self.signal}" if self.signal else f"child exited with {self.code}"
        )


def timeout_s() -> float:
    """Return the time limit of this run. Call it each time: `--soak` is known only after the import of this
    module.
    """
    return TIMEOUT_S if os.environ.get("EOS_SOAK", "") in ("", "0") else SOAK_TIMEOUT_S


def enter_mount_namespace() -> None:
    """Make a private copy of all mounts; needs CAP_SYS_ADMIN."""
    syscalls.unshare(syscalls.CLONE_NEWNS)
    syscalls.mount("none", "/", None, syscalls.MS_REC | syscalls.MS_PRIVATE)


def become(uid: int) -> None:
    """Set all ids and drop all groups, so that no right of root is left."""
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)
    syscalls.prctl(syscalls.PR_SET_DUMPABLE, 1)


def enter_user_namespace() -> None:
    """Make this user uid 0 of a new user namespace with private mounts; only in a single-threaded process."""
    uid, gid = os.geteuid(), os.getegid()
    syscalls.unshare(syscalls.CLONE_NEWUSER | syscalls.CLONE_NEWNS)
    for name, text in (("setgroups", "deny"), ("uid_map", f"0 {uid} 1"), ("gid_map", f"0 {gid} 1")):
        with open(f"/proc/self/{name}", "w") as file:
            file.write(text)
    syscalls.mount("none", "/", None, syscalls.MS_REC | syscalls.MS_PRIVATE)


def enter(namespace: str | None) -> None:
    """Enter a namespace. None: no change. "trusted": a mount namespace. "user": an ordinary uid (when
    root), then a user and mount namespace. "uid": only that uid.
    """
    if namespace == "trusted":
        enter_mount_namespace()
    elif namespace in ("user", "uid"):
        if os.geteuid() == 0:
            become(ORDINARY_UID)
        if namespace == "user":
            enter_user_namespace()
    elif namespace is not None:
        raise ValueError(namespace)


def fork() -> int:
    """os.fork without Python 3.12's warning about threads: ours are C threads of pytest's faulthandler, which
    hold no lock of the child.

    The child does not collect the parent's garbage: a zstd compressor in it would wait for ever for its
    threads, which exist only in the parent.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if pid == 0:
        gc.freeze()
    return pid


def _serve(
    function: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    namespace: str | None,
    answer_fd: int,
    parent: int,
) -> None:
    """Run the child; does not return."""
    code = 1
    try:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        try:
            enter(namespace)
            syscalls.prctl(syscalls.PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() not in (parent, 0):
                os._exit(1)
            answer = pickle.dumps((True, function(*args, **kwargs)))
        except BaseException as error:
            answer = pickle.dumps((False, (type(error).__name__, "".join(traceback.format_exception(error)))))
        with open(answer_fd, "wb") as out:
            out.write(answer)
        code = 0
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def call(namespace: str | None, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
    """Call function(*args, **kwargs) in a child in the given namespace (see `enter`), for at most
    `timeout_s`.

    Raises:
        ChildFailed: the function raised.
        ChildDied: the child was killed or exited by itself.
    """
    read_fd, write_fd = os.pipe()
    parent = os.getpid()
    sys.stdout.flush()
    sys.stderr.flush()
    pid = fork()
    if pid == 0:
        os.close(read_fd)
        _serve(function, args, kwargs, namespace, write_fd, parent)
    os.close(write_fd)
    try:
        received = _read_all(read_fd, pid, limit_s=timeout_s())
    finally:
        os.close(read_fd)
    _, status = os.waitpid(pid, 0)
    if not received:
        raise ChildDied(status)
    good, value = pickle.loads(received)
    if not good:
        raise ChildFailed(*value)
    return value  # type: ignore[no-any-return]


def _read_all(fd: int, pid: int, *, limit_s: float) -> bytes:
    end = time.monotonic() + limit_s
    parts: list[bytes] = []
    while True:
        left = end - time.monotonic()
        try:
            ready = select.select([fd], [], [], left)[0] if left > 0 else []
        except BaseException:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            raise
        if not ready:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            raise TimeoutError(f"a child of the test was not done after {limit_s:.0f} s")
        part = os.read(fd, 1 << 16)
        if not part:
            return b"".join(parts)
        parts.append(part)
