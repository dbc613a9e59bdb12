"""The process in which dead sessions' work becomes drafts, `sandbox-daemon recover --settings FILE`, and the
agent's handle of it.

Reading the files that a session left may take hours or gigabytes. So a process with limits of its own reads
them; it is the first that the kernel kills when memory runs out, and it ends with the thread of the agent
that started it. The agent itself reads none of these files. Each session is one line of JSON to the process
and one back.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import resource
import select
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from eos_agent.base.settings import Settings
    from layerstack.recovery.dead_sessions import DeadSession
    from layerstack.store import Store

MEMORY_BYTES = 256 * 1024 * 1024
"""Bytes of memory that the process may use in addition to those that the agent uses when it starts the
process."""
OOM_SCORE = 900
NICE = 5
KILL_S = 10.0
LINE_MAX = 1 << 20
EXIT_MEMORY = 70


class RecoveryAnswer(NamedTuple):
    """The result of a try. error None: it succeeded, with a draft, or without one if the session had no
    unpublished work."""

    error: str | None = None
    draft_id: str | None = None
    no_space: bool = False
    busy: bool = False
    """True if a process still writes to the session, or the try was stopped: the try does not count."""


def main(settings: Settings) -> int:
    """Run the child: answer requests on standard input until its end. Exit code 70: memory ran out."""
    from layerstack.kernel import syscalls

    syscalls.prctl(syscalls.PR_SET_PDEATHSIG, signal.SIGKILL)
    hello: dict[str, Any] = json.loads(sys.stdin.readline() or "{}")
    if not hello or os.getppid() != hello["parent"]:
        return 0
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w", encoding="ascii") as file:
        file.write(str(OOM_SCORE))
    with contextlib.suppress(OSError):
        os.nice(NICE)
    limit = int(hello["memory_bytes"])
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    from layerstack.recover_one import Beside

    beside = Beside(settings.layer_stack_root, hello["staging"], hello["lock_fd"])
    for line in sys.stdin:
        answer = _answer(beside, json.loads(line))
        sys.stdout.write(json.dumps(answer._asdict()) + "\n")
        sys.stdout.flush()
        if answer.error == MEMORY:
            return EXIT_MEMORY
    return 0


MEMORY = "it needs more memory than one session's recovery may take"


def _answer(beside: Any, asked: dict[str, Any]) -> RecoveryAnswer:
    from layerstack.errors import LayerStackError, StoreBusy
    from layerstack.recovery.dead_sessions import NO_SPACE

    try:
        draft = beside.recover(asked["session_id"], asked["version"], asked["layers"])
    except MemoryError:
        return RecoveryAnswer(MEMORY)
    except StoreBusy as error:
        return RecoveryAnswer(error.message, busy=True)
    except (OSError, LayerStackError) as error:
        if isinstance(error, OSError) and error.errno == errno.ENOMEM:
            return RecoveryAnswer(MEMORY)  # an allocation in C failed, such as opendir(3)'s
        return RecoveryAnswer(
            str(error)[:4096], no_space=isinstance(error, OSError) and error.errno in NO_SPACE
        )
    except Exception as error:
        return RecoveryAnswer(f"{type(error).__name__}: {error}"[:4096])
    return RecoveryAnswer(draft_id=None if draft is None else draft.draft_id)


class RecoveryProcess:
    """The agent's handle of the process, which is started at the first request, and again after it was
    killed. Used from one thread, except `stop`, which any thread may call.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._argv = _own_argv()
        self._process: subprocess.Popen[bytes] | None = None
        self._staging: str | None = None
        self._received = b""
        self._stopped = False

    @property
    def possible(self) -> bool:
        """False if this process was not started by the agent's command line (in tests), so that the command
        line of the child is unknown.
        """
        return self._argv is not None

    def recover(self, session: DeadSession, timeout_s: float) -> RecoveryAnswer:
        """Perform one try. On return the try has ended, unless the kernel cannot end the child."""
        if self._stopped:
            return RecoveryAnswer("the agent is shutting down", busy=True)
        try:
            process = self._started()
            asked = {
                "session_id": session.session_id,
                "version": session.base_version,
                "layers": session.lease.layer_ids,
            }
            assert process.stdin is not None
            process.stdin.write(json.dumps(asked).encode() + b"\n")
            process.stdin.flush()
            line = self._line(process, time.monotonic() + timeout_s)
        except TimeoutError:
            self.end()
            return RecoveryAnswer(f"it took longer than {timeout_s:g} s")
        except (OSError, EOFError) as error:
            return RecoveryAnswer(self._failure(error), busy=self._stopped)
        answer = RecoveryAnswer(**json.loads(line))
        if answer.error == MEMORY:
            self.end()
        return answer

    def _failure(self, error: BaseException) -> str:
        process = self._process
        code = (
            process.wait(KILL_S)
            if process is not None and isinstance(error, (EOFError, BrokenPipeError))
            else None
        )
        self.end()
        if code is None:
            return f"the process that recovers it could not be used: {error}"
        return (
            f"the process that recovered it was killed by signal {-code}"
            if code < 0
            else f"the process that recovered it ended with {code}"
        )

    def _started(self) -> subprocess.Popen[bytes]:
        if self._process is not None:
            return self._process
        assert self._argv is not None
        staging = self._store.staging.name("recovery")
        fd = self._store.lock_fd
        environment = {
            name: os.environ[name] for name in ("PATH", "HOME", "LANG", "PYTHONPATH") if name in os.environ
        }
        try:
            process = subprocess.Popen(
                self._argv,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                cwd="/",
                env=environment,
                pass_fds=(fd,),
                start_new_session=True,
            )
        except OSError:
            self._store.staging.forget(staging)
            raise
        self._process, self._staging, self._received = process, staging, b""
        memory = MEMORY_BYTES + _data_bytes()
        hello = {"parent": os.getpid(), "memory_bytes": memory, "staging": staging, "lock_fd": fd}
        assert process.stdin is not None
        process.stdin.write(json.dumps(hello).encode() + b"\n")
        process.stdin.flush()
        if self._stopped:
            process.kill()
        return process

    def _line(self, process: subprocess.Popen[bytes], deadline: float) -> bytes:
        """Read one line. Raises TimeoutError, EOFError."""
        assert process.stdout is not None
        waiting = select.poll()
        waiting.register(process.stdout.fileno(), select.POLLIN)
        while b"\n" not in self._received:
            if len(self._received) > LINE_MAX or not waiting.poll(
                max(0.0, deadline - time.monotonic()) * 1000
            ):
                raise TimeoutError
            piece = os.read(process.stdout.fileno(), 65536)
            if not piece:
                raise EOFError("it ended")
            self._received += piece
        line, _, self._received = self._received.partition(b"\n")
        return line

    def stop(self) -> None:
        """End the try in progress now, and refuse further tries."""
        self._stopped = True
        process = self._process
        if process is not None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()

    def end(self) -> None:
        """End the process, and delete its entry in staging."""
        process, staging = self._process, self._staging
        self._process = self._staging = None
        if process is not None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            for pipe in (process.stdin, process.stdout):
                with contextlib.suppress(OSError):
                    assert pipe is not None
                    pipe.close()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(KILL_S)
        if staging is not None:
            if os.path.isdir(staging):
                with contextlib.suppress(OSError):
                    self._store.staging.discard_directory(staging)
            self._store.staging.forget(staging)


def _own_argv() -> list[str] | None:
    """The command line of this process with `recover` in the place of `serve`; None if it is not the
    agent's."""
    with open("/proc/self/cmdline", "rb") as file:
        words = [os.fsdecode(word) for word in file.read().split(b"\0")[:-1]]
    return [*words[:-3], "recover", *words[-2:]] if words[-3:-1] == ["serve", "--settings"] else None


def _data_bytes() -> int:
    """Private memory of this process, as RLIMIT_DATA counts it."""
    with open("/proc/self/status", encoding="ascii") as file:
        return next((int(line.split()[1]) * 1024 for line in file if line.startswith("VmData:")), 0)
