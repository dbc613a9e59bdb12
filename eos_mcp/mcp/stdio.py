"""The stdio runner. Imported first, and imports little: the first answer must not wait for the SDK.

Two threads carry the bytes, so that no pool of the event loop can stall them: one reads lines, one writes
them; a third takes signals, since the main thread sees one that comes just before it begins to wait only when
something else ends the wait. Until the SDK is there the reader answers handshakes from a table (handshake.py)
and keeps the rest. Descriptors 0 and 1 are moved away first and replaced by the null device and standard
error: what a library prints, or a child reads, does not touch the protocol.

The end: end of input, a broken output, SIGTERM, SIGINT and SIGHUP all end the process within three seconds,
even if a thread or the loop hangs. At the end of input, requests that are nearly done get their answer.
Commands that still run keep their output in the sandbox; the gateway decides on their end
(`eos_mcp.gateway.departed`).
"""

from __future__ import annotations

import os
import queue
import signal
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import NamedTuple, NoReturn, Protocol

from eos_mcp.mcp import handshake
from eos_mcp.mcp.server_identity import ServerIdentity
from eos_mcp.mcp.server_options import MAX_MESSAGE_BYTES

DRAIN_S = 1.0
FLUSH_S = 0.5
HARD_S = 2.6  # both and a second for tidying; then the process ends in whatever state it is
EDGE = 4096


class Pipes(NamedTuple):
    """The protocol's own descriptors, moved away from 0 and 1."""

    in_fd: int
    out_fd: int


def claim() -> Pipes:
    """Move standard input and output to private descriptors, close-on-exec; 0 becomes the null device, 1
    becomes standard error.
    """
    in_fd, out_fd = os.dup(0), os.dup(1)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    os.dup2(2, 1)
    return Pipes(in_fd, out_fd)


class Line(NamedTuple):
    """A line of the client. `answered`: the id of the request in it when its answer went out already."""

    data: bytes
    answered: str | int | None = None


class LongLine(NamedTuple):
    """A line above the limit: its beginning and its end."""

    head: bytes
    tail: bytes


Item = Line | LongLine


class Writer:
    """A thread that writes lines in order. `put` never waits."""

    def __init__(self, fd: int, on_broken: Callable[[], None]) -> None:
        self._fd, self._on_broken = fd, on_broken
        self._lines: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="stdout", daemon=True)
        self._thread.start()

    def put(self, line: bytes) -> None:
        self._lines.put(line)

    def finish(self, timeout_s: float) -> None:
        """Wait until queued lines are written, at most `timeout_s`: a client that does not read must not
        block the exit.
        """
        self._lines.put(None)
        self._thread.join(timeout_s)

    def _run(self) -> None:
        while (line := self._lines.get()) is not None:
            rest = memoryview(line)
            try:
                while rest:
                    rest = rest[os.write(self._fd, rest) :]
            except OSError:
                self._on_broken()
                return


class StdinReader:
    """A thread that reads lines. Before `attach` it answers opening requests and keeps the other lines;
    afterwards it delivers each.
    """

    def __init__(
        self, fd: int, who: ServerIdentity, write: Callable[[bytes], None], on_end: Callable[[], None]
    ) -> None:
        self._fd, self._who, self._write, self._on_end = fd, who, write, on_end
        self._lock = threading.Lock()
        self._backlog: list[Item] = []
        self._deliver: Callable[[Item], None] | None = None
        self._initialized = False
        threading.Thread(target=self._run, name="stdin", daemon=True).start()

    def attach(self, deliver: Callable[[Item], None]) -> None:
        """`deliver` gets what was kept, in order, and from then on every item, called in the reader's
        thread.
        """
        with self._lock:
            for item in self._backlog:
                deliver(item)
            self._backlog.clear()
            self._deliver = deliver

    def _run(self) -> None:
        with os.fdopen(self._fd, "rb", 1 << 16) as file:
            try:
                while data := file.readline(MAX_MESSAGE_BYTES + 2):
                    self._accept(
                        Line(data)
                        if len(data) <= MAX_MESSAGE_BYTES + 1 or data.endswith(b"\n")
                        else _skip(file, data)
                    )
            except OSError:
                pass
        self._on_end()

    def _accept(self, item: Item) -> None:
        with self._lock:
            if self._deliver is not None:
                self._deliver(item)
                return
            if isinstance(item, Line):
                found = handshake.answer(item.data, self._who)
                if found is not None and not (found.method == "initialize" and self._initialized):
                    self._write(found.reply)
                    if found.method != "initialize":
                        return
                    self._initialized = True
                    item = Line(item.data, found.request_id)
            self._backlog.append(item)


class _LineBuffer(Protocol):
    def readline(self, limit: int, /) -> bytes: ...


def _skip(file: _LineBuffer, data: bytes) -> LongLine:
    head, tail = data[:EDGE], data[-EDGE:]
    while more := file.readline(1 << 16):
        tail = (tail + more)[-EDGE:]
        if more.endswith(b"\n"):
            break
    return LongLine(head, tail)


class Ending:
    """Reason and start of the shutdown. `begin` may be called often, in any thread, but not in a signal
    handler: it locks.
    """

    def __init__(self) -> None:
        self.reason = ""
        self._wake: Callable[[], None] | None = None
        self._lock = threading.RLock()  # `wake` may begin an end itself

    @property
    def watched(self) -> bool:
        """True once `on_begin` was called; before, nothing runs that needs a clean-up."""
        return self._wake is not None

    def on_begin(self, wake: Callable[[], None]) -> None:
        """`wake` is called once, in whatever thread; at once when the end has begun already."""
        with self._lock:
            self._wake = wake
            if self.reason:
                self._go(wake)

    def begin(self, reason: str) -> None:
        with self._lock:
            if self.reason:
                return
            self.reason = reason
            if self._wake is not None:
                self._go(self._wake)

    def _go(self, wake: Callable[[], None]) -> None:
        threading.Thread(
            target=_hard_end, args=(int(self.reason == FAILURE),), name="end", daemon=True
        ).start()
        wake()


END_OF_INPUT = "end of input"
FAILURE = "failure"


def _hard_end(code: int) -> None:
    time.sleep(HARD_S)
    os._exit(code)


ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class Signals:
    """A thread that takes SIGTERM, SIGINT and SIGHUP. Made in the main thread.

    The handler of C that Python installs writes the number of the signal into a pipe, in whatever thread the
    kernel chose and whatever the main thread does; the handler in Python, which only the main thread runs,
    does nothing.
    """

    def __init__(self, ending: Ending) -> None:
        self._ending = ending
        self._numbers, woken = os.pipe()  # socket would be six more modules before the first answer
        os.set_blocking(woken, False)
        signal.set_wakeup_fd(woken, warn_on_full_buffer=False)
        for number in ENDING:
            if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:  # nohup(1) ignores it
                signal.signal(number, _noted)
        threading.Thread(target=self._run, name="signals", daemon=True).start()

    def _run(self) -> None:
        while number := os.read(self._numbers, 1):
            if number[0] not in ENDING:
                continue
            if self._ending.reason or not self._ending.watched:
                os._exit(0)  # asked twice, or nothing runs yet
            os.write(2, f"{signal.Signals(number[0]).name}: shutting down\n".encode())
            self._ending.begin("signal")


def _noted(number: int, frame: FrameType | None) -> None:
    pass


def run(pipes: Pipes, who: ServerIdentity, serve: Callable[[StdinReader, Writer, Ending], None]) -> NoReturn:
    """Serve on `pipes` until the end, and end the process.

    Args:
        serve: called in the main thread while lines flow; it imports the SDK, and returns when the end has
            begun and all is tidied.
    """
    ending = Ending()
    Signals(ending)
    writer = Writer(pipes.out_fd, lambda: ending.begin("output closed"))
    reader = StdinReader(pipes.in_fd, who, writer.put, lambda: ending.begin(END_OF_INPUT))
    try:
        serve(reader, writer, ending)
    except BaseException:
        import traceback

        traceback.print_exc()
        leave(writer, 1)
    leave(writer, 0)


def leave(writer: Writer, code: int) -> NoReturn:
    """Write queued answers for at most `FLUSH_S`, then exit without waiting for any thread."""
    writer.finish(FLUSH_S)
    sys.stderr.flush()
    os._exit(code)
