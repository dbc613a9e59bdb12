"""Times of the files that a `dir` export writes over the user's: a build in the destination must not take an
output for up to date when one of its inputs was replaced.

Written inputs get the time of the export, in the order of their own times. Outputs keep their times, unless
the destination has an input that differs from the sandbox's: then they get a time before that of this input.
All files keep their times in a new or empty directory, and with `times: keep`.
"""

from __future__ import annotations

import os
import stat
import time
from array import array
from collections.abc import Iterator

from eos_mcp.export.dirfd import DirTree
from eos_mcp.export.facts import digest_of
from eos_mcp.export.names import reserved
from eos_mcp.export.stage import ExportStage
from eos_mcp.export.stream import SortedPaths
from layerstack.export import pax
from layerstack.model.spread_times import below, spread
from layerstack.text.build_roles import INPUTS, patterns
from layerstack.text.gitignore import FILE_MAX, IgnoreRules, named

_INPUT, _OUTPUT = b"i", b"o"


class Times:
    """Collector of the files of a stream while it is read; decides the times when all are staged."""

    def __init__(self, target: DirTree | None, *, keep: bool) -> None:
        """`target`: the destination before the export, None while it does not exist."""
        there = target is not None and any(reserved(name) is None for name in target.names(b""))
        self._target = target if there and not keep else None
        self._kind = bytearray()
        self._at = array("Q")
        self._time = array("q")
        self._bound: int | None = None

    @property
    def keeps(self) -> bool:
        """Tell whether all files keep their times."""
        return self._target is None

    def written(self, n: int, header: pax.Header) -> None:
        """Note that entry `n`, a file, is written."""
        if not self.keeps:
            self._kind += _OUTPUT if header.output else _INPUT
            self._at.append(n)
            self._time.append(max(-(1 << 63), min(header.mtime_ns, (1 << 63) - 1)))

    def stays(self, header: pax.Header, old: os.stat_result | None, *, differs: bool) -> None:
        """Note that a file of the destination stays at the path of an entry. `differs`: in content; else only
        in time.
        """
        if self.keeps or header.output or old is None or not stat.S_ISREG(old.st_mode):
            return
        if differs or old.st_mtime_ns < header.mtime_ns:
            self._lower(old.st_mtime_ns)

    def _lower(self, mtime: int) -> None:
        self._bound = mtime if self._bound is None else min(self._bound, mtime)

    def decide(self, index: SortedPaths, base: DirTree | None) -> dict[int, int]:
        """Return other times for written entries, by their number: outputs first, then inputs.

        Args:
            index: the paths of the stream.
            base: the copy of the workspace that the sandbox was made from, if this machine has it; without it
                each input of the destination that the stream does not name counts as different from the
                sandbox's.
        Cost: if outputs are written, one lstat of every file of the destination.
        """
        found: dict[int, int] = {}
        if self._target is None or not self._at:
            return found
        inputs = array("q", sorted({self._time[k] for k, kind in enumerate(self._kind) if kind == _INPUT[0]}))
        first = spread(inputs, 1, time.time_ns())
        outputs = {self._time[k] for k, kind in enumerate(self._kind) if kind == _OUTPUT[0]}
        if outputs:
            for mtime in _others(self._target, index, base):
                self._lower(mtime)
        limit = 0 if self._bound is None else below(self._bound)
        lowered = array("q", sorted(at for at in outputs if self._bound is not None and at >= limit))
        under = spread(lowered, 1 + max((at for at in outputs if at < limit), default=0), limit)
        for k, n in enumerate(self._at):
            if self._kind[k] == _OUTPUT[0] and self._bound is not None and self._time[k] >= limit:
                found[n] = under(self._time[k])
        for k, n in enumerate(self._at):
            if self._kind[k] == _INPUT[0]:
                found[n] = first(self._time[k])
        return found


def apply(stage: ExportStage, times: dict[int, int]) -> Iterator[tuple[bytes, int]]:
    """Set the times of staged files, in this order; yield each path with its resulting time. All names of one
    file share one time, the last one: that of an input if one of the names is an input.
    """
    files = [(n, what) for n in times if (what := stage[n]).staged and what.letter in (b"f", b"h")]
    for n, what in files:
        os.utime(
            b"new/%d" % n, ns=(times[n], times[n]), dir_fd=stage.place(what.path).fd, follow_symlinks=False
        )
    for n, what in files:
        status = stage.place(what.path).lstat(b"new/%d" % n)
        if status is not None:
            stage.put(n, what._replace(mtime_ns=status.st_mtime_ns))
            yield what.path, status.st_mtime_ns


def _others(target: DirTree, index: SortedPaths, base: DirTree | None) -> Iterator[int]:
    """Yield the times of inputs of the destination that the stream does not name and that differ in the
    sandbox, or have a later time there.
    """
    rules, by_hand = IgnoreRules(lambda path: _text(target, path)), patterns(INPUTS)
    waiting = [b""]
    while waiting:
        directory = waiting.pop()
        for name in target.names(directory):
            path = directory + b"/" + name if directory else name
            status = target.lstat(path)
            if status is None or path == b".git":
                continue
            text = os.fsdecode(path)
            if stat.S_ISDIR(status.st_mode):
                if not rules.ignored(text, True):
                    waiting.append(path)
                continue
            if not stat.S_ISREG(status.st_mode) or index.find(path) is not None:
                continue
            if (not rules.ignored(text, False) or named(by_hand, text)) and _is_another(
                target, path, status, base
            ):
                yield status.st_mtime_ns


def _is_another(target: DirTree, path: bytes, status: os.stat_result, base: DirTree | None) -> bool:
    was = None if base is None else base.lstat(path)
    if base is None or was is None or not stat.S_ISREG(was.st_mode) or was.st_size != status.st_size:
        return True
    if status.st_mtime_ns <= was.st_mtime_ns:
        return status.st_mtime_ns < was.st_mtime_ns
    return digest_of(target, path) != digest_of(base, path)


def _text(target: DirTree, path: str) -> bytes | None:
    fd = target.open_file(os.fsencode(path))
    if fd is None:
        return None
    with os.fdopen(fd, "rb") as file:
        return file.read(FILE_MAX + 1)
