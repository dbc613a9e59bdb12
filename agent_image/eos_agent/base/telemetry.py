"""Spans and events of requests: buffered, then written to disk by a thread.

The current span is a context variable, so `span(...)` and `event(...)` need no handle; outside of a traced
request they do nothing. Attributes are numbers, ids and names of this program, never the text of a command,
an environment, a path or a file's content.
"""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import json
import re
import threading
import time
from collections import deque
from collections.abc import Mapping
from contextvars import ContextVar, Token
from types import TracebackType
from typing import TYPE_CHECKING, Literal

from eos_agent.base import log
from eos_agent.base.rotating_log import Segments
from eos_agent.wire.protocol import OperationError

if TYPE_CHECKING:
    from eos_agent.base.settings import Settings
    from layerstack.model.lease import Lease

COMPLETED, ERROR, CANCELLED, TIMED_OUT = "completed", "error", "cancelled", "timed_out"
DISPATCH = "daemon.dispatch"
FLUSH_S = 0.1
"""Seconds for which records are collected before they are written together. A killed agent loses the records
of this time."""
NO_REQUEST = "daemon"
"""The trace id of the agent's own work."""
PENDING_MAX = 16_384
ID_MAX = 200
"""Largest length of a trace id in characters. The trace id of a longer request id is its beginning and a
hash."""
_SPAN_IDS = re.compile(rb'"span":"(?:d|np)-(\d{1,18})"')
_COUNTERS = re.compile(rb'"_counters":(\{[^{}]*\})')

_ENCODER = json.JSONEncoder(separators=(",", ":"))  # json.dumps makes an encoder for each call
_quoted = json.encoder.encode_basestring_ascii

Plain = str | int | float | bool | None


def trace_id(request_id: str) -> str:
    """The trace id of a request: the request id, shortened if it is too long."""
    if len(request_id) <= ID_MAX:
        return request_id
    return f"{request_id[:64]}~{hashlib.sha256(request_id.encode('utf-8', 'surrogatepass')).hexdigest()}"


class Span:
    """A span of a request; as a context manager it is the parent of the spans begun inside.

    `status` may be set to override the outcome of the block; `attrs` may be added until the span ends.
    """

    __slots__ = (
        "_base",
        "_begun",
        "_token",
        "at",
        "attrs",
        "dur_ms",
        "id",
        "name",
        "owner",
        "parent",
        "status",
        "trace",
    )

    def __init__(
        self, owner: Telemetry, trace: str, parent: Span | None, name: str, attrs: dict[str, Plain]
    ) -> None:
        self.owner, self.trace, self.name, self.attrs = owner, trace, name, attrs
        self.id = f"{'np' if name.startswith('namespace.') else 'd'}-{next(owner.numbers)}"
        self.parent = None if parent is None else parent.id
        self.status = ""
        self.dur_ms = 0.0
        self._begun = time.perf_counter()
        self._base: float = time.time() - self._begun if parent is None else parent._base
        self.at = self._base + self._begun
        self._token: Token[Span | None] | None = None
        owner.open[self.id] = self.parent

    def __enter__(self) -> Span:
        self._token = _current.set(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> Literal[False]:
        if self._token is not None:
            _current.reset(self._token)
            self._token = None
        self.end(error)
        return False

    def end(self, error: BaseException | None = None) -> None:
        """End a span that is not used as a context manager. Idempotent."""
        if self.owner.open.pop(self.id, self) is self:
            return
        self.dur_ms = (time.perf_counter() - self._begun) * 1000
        if error is not None:
            self.attrs = {**self.attrs, **_error_attributes(error)}
        if not self.status:
            self.status = (
                COMPLETED
                if error is None
                else CANCELLED
                if isinstance(error, asyncio.CancelledError)
                else ERROR
            )
        self.owner.keep(self)

    def line(self, attrs: str, more: str = "") -> str:
        parent = "" if self.parent is None else f',"parent":"{self.parent}"'
        begin = f'{{"kind":"span","ts":{int(self.at * 1000 + self.dur_ms)},"trace":{_quoted(self.trace)},"span":"{self.id}"{parent}'  # noqa: E501
        middle = (
            f'"name":{_quoted(self.name)},"dur_ms":{self.dur_ms:.3f},"status":"{self.status}","attrs":{attrs}'
        )
        return f'{begin},{middle},"at":{self.at * 1000:.3f}{more}}}\n'


class Nothing:
    """The span of code that is not traced."""

    __slots__ = ("attrs", "status")

    def __init__(self) -> None:
        self.attrs: dict[str, Plain] = {}
        self.status = ""

    def __enter__(self) -> Nothing:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> Literal[False]:
        return False

    def end(self, error: BaseException | None = None) -> None:
        pass


class Event:
    """An event: a point in time."""

    __slots__ = ("at", "attrs", "name", "parent", "trace")

    def __init__(self, trace: str, parent: str | None, name: str, attrs: dict[str, Plain]) -> None:
        self.trace, self.parent, self.name, self.attrs = trace, parent, name, attrs
        self.at = time.time()

    def line(self, attrs: str, more: str = "") -> str:
        parent = "" if self.parent is None else f',"parent":"{self.parent}"'
        begin = f'{{"kind":"event","ts":{int(self.at * 1000)},"trace":{_quoted(self.trace)}{parent}'
        return f'{begin},"name":{_quoted(self.name)},"attrs":{attrs},"at":{self.at * 1000:.3f}{more}}}\n'


_current: ContextVar[Span | None] = ContextVar("eos_span", default=None)
_phases: ContextVar[Phases | None] = ContextVar("eos_phases", default=None)


def current() -> Span | None:
    return _current.get()


def span(name: str, **attrs: Plain) -> Span | Nothing:
    """A child of the current span; outside of a traced request it does nothing."""
    parent = _current.get()
    return Nothing() if parent is None else Span(parent.owner, parent.trace, parent, name, attrs)


def event(name: str, **attrs: Plain) -> None:
    """Record an event in the current span."""
    parent = _current.get()
    if parent is not None:
        parent.owner.keep(Event(parent.trace, parent.id, name, attrs))


class within:
    """Make a span the current one for the length of the block, without ending it; with None there is no
    current span."""

    __slots__ = ("_span", "_token")

    def __init__(self, span: Span | Nothing | None) -> None:
        self._span = span if isinstance(span, Span) else None

    def __enter__(self) -> None:
        self._token = _current.set(self._span)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _current.reset(self._token)


class Phases:
    """Consecutive child spans, each begun by a named step of the store (`on_step`), in any thread."""

    def __init__(self, names: Mapping[str, str], first: str = "") -> None:
        self._names, self._first = names, first
        self._parent: Span | None = None
        self._now: Span | None = None

    def __enter__(self) -> Phases:
        self._parent = _current.get()
        self._token = _phases.set(self)
        if self._first:
            self._begin(self._first)
        return self

    def _begin(self, name: str) -> None:
        if self._parent is not None and (self._now is None or self._now.name != name):
            if self._now is not None:
                self._now.end()
            self._now = Span(self._parent.owner, self._parent.trace, self._parent, name, {})

    def step(self, step: str) -> None:
        name = self._names.get(step)
        if name is not None:
            self._begin(name)

    def note(self, **attrs: Plain) -> None:
        """Add attributes to the current phase."""
        if self._now is not None:
            self._now.attrs.update(attrs)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> Literal[False]:
        _phases.reset(self._token)
        if self._now is not None:
            self._now.end(error)
        return False


PUBLISHING = {"publish.plan": "layerstack.publish"}
SQUASHING = {
    "squash.plan": "layerstack.squash.plan",
    "squash.fold": "layerstack.squash.flatten",
    "commit.rename_metadata": "layerstack.squash.commit",
}


def on_step(step: str) -> None:
    """The store's `step` hook in an agent: a durable step ends a phase of the request and begins the next."""
    phases = _phases.get()
    if phases is not None:
        phases.step(step)


def on_lease(change: str, lease: Lease) -> None:
    """The store's hook for changes of leases."""
    event(f"lease.{change}", holder=lease.kind, version=lease.version, layer_count=len(lease.layer_ids))


def _error_attributes(error: BaseException) -> dict[str, Plain]:
    """The attributes that an error adds to its span: names, no text."""
    if isinstance(error, OperationError):
        return {"error": error.kind, "reason": str(error.details.get("reason") or "")[:64]}
    return {"error": type(error).__name__[:64], "reason": str(getattr(error, "reason", "") or "")[:64]}


class Telemetry:
    """The spans and events of one agent. `request` begins a trace."""

    def __init__(self, path: str | None, *, max_bytes: int = 4 << 20, max_line: int = 16384) -> None:
        """path: the newer segment; None disables telemetry.

        Raises:
            OSError: the directory cannot be made.
        """
        self.enabled = path is not None
        self._max_line = max_line
        self.numbers = itertools.count(1)
        self.open: dict[str, str | None] = {}
        """Number of each span that has not ended -> number of its parent."""
        self._pending: deque[Span | Event] = deque()
        self._flushing = threading.Lock()
        self._lost = {"dropped_storage": 0, "dropped_oversized": 0, "truncated_records": 0}
        self._lost_written = dict(self._lost)
        self._wake, self._closing = threading.Event(), threading.Event()
        self._waiting = False
        self._thread: threading.Thread | None = None
        self._segments = None if path is None else Segments(path, max_bytes)
        if self._segments is not None:
            self._resume(self._segments.tail())
            self._thread = threading.Thread(target=self._work, name="eos-telemetry", daemon=True)
            self._thread.start()

    @staticmethod
    def of(settings: Settings) -> Telemetry:
        """Build telemetry from the configuration; if its directory cannot be made, log the error and record
        nothing."""
        if not settings.get("observability.enabled", True):
            return Telemetry(None)
        try:
            return Telemetry(
                f"{settings.runtime_dir}/observability/observability.ndjson",
                max_bytes=settings.get("observability.max_disk_bytes", 4 << 20),
                max_line=settings.get("observability.max_line_bytes", 16384),
            )
        except OSError as error:
            log.failure("telemetry_off", error)
            return Telemetry(None)

    def _resume(self, tail: bytes) -> None:
        """Continue span numbers and counters from the end of the files, after a restart."""
        last = max((int(number) for number in _SPAN_IDS.findall(tail)), default=0)
        self.numbers = itertools.count(last + 1)
        for found in reversed(_COUNTERS.findall(tail)):
            try:
                counters = json.loads(found)
                self._lost.update({key: int(counters[key]) for key in self._lost})
            except (ValueError, KeyError, TypeError):
                continue
            self._lost_written = dict(self._lost)
            return

    def request(self, request_id: str, name: str = DISPATCH, **attrs: Plain) -> Span | Nothing:
        """The root span of a request."""
        return Span(self, trace_id(request_id), None, name, attrs) if self.enabled else Nothing()

    def happened(self, name: str, attrs: Mapping[str, Plain]) -> None:
        """Record an event that no request caused; on the event loop."""
        if self.enabled:
            self.keep(Event(NO_REQUEST, None, name, dict(attrs)))

    def keep(self, record: Span | Event) -> None:
        if len(self._pending) >= PENDING_MAX:
            self._lost["dropped_storage"] += 1
            return
        self._pending.append(record)
        if not self._waiting:
            self._waiting = True
            self._wake.set()

    @property
    def lost(self) -> dict[str, int]:
        """Counters of records that were lost or truncated since the files began."""
        return dict(self._lost)

    @property
    def kept(self) -> int:
        """Number of records that can be read."""
        return 0 if self._segments is None else self._segments.lines + len(self._pending)

    def _work(self) -> None:
        while not self._closing.is_set():
            self._wake.wait()
            self._closing.wait(FLUSH_S)
            self._wake.clear()
            self.flush()

    def flush(self) -> None:
        """Write buffered records. Blocking; on return every span that ended before the call is written or
        counted as lost."""
        segments = self._segments
        if segments is None:
            return
        with self._flushing:
            self._waiting = False
            lines: list[bytes] = []
            while self._pending:
                line = self._line(self._pending.popleft())
                if line is not None:
                    lines.append(line)
            if lines:
                self._lost["dropped_storage"] += len(lines) - segments.write(lines)

    def _line(self, record: Span | Event) -> bytes | None:
        attrs, more = _ENCODER.encode(record.attrs) if record.attrs else "{}", ""
        line = record.line(attrs)
        if len(line) > self._max_line:
            self._lost["truncated_records"] += 1
            attrs, more = "{}", f',"_truncated":{len(line)}'
            line = record.line(attrs, more)
            if len(line) > self._max_line:
                self._lost["dropped_oversized"] += 1
                return None
        if self._lost != self._lost_written:
            longer = record.line(attrs, f'{more},"_counters":{_ENCODER.encode(self._lost)}')
            if len(longer) <= self._max_line:
                line, self._lost_written = longer, dict(self._lost)
        return line.encode()

    def read(self) -> list[bytes]:
        """Read the lines of all records, oldest first; blocking."""
        if self._segments is None:
            return []
        self.flush()
        return [line for data in self._segments.read() for line in data.split(b"\n") if line]

    def close(self) -> None:
        """Write buffered records and stop."""
        self._closing.set()
        self._wake.set()
        if self._thread is not None:
            self._thread.join(5)
        self.flush()
        if self._segments is not None:
            self._segments.close()
