"""Search in a command's output, as grep does: the rows that match, each with its number, and rows around it.

A regular expression can take for ever on one row. So a process of its own does the matching, which ends with
the time that a search may take; the agent itself runs no expression. Rows reach it in blocks.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import os
import re
import resource
import sys
import warnings
from typing import TYPE_CHECKING, Any, NamedTuple

from eos_agent.sessions.carriage_return import collapse
from eos_agent.wire.protocol import INVALID_REQUEST, SERVER_BUSY, OperationError

if TYPE_CHECKING:
    from eos_agent.sessions.transcript import Rows, Transcript

PATTERN_BYTES = 1000
SEARCH_S = 3
"""Processor time of one search."""
LONGEST_S = 20
"""A search ends by the clock too; on a busy machine the process itself may need seconds to start."""
ROW_CHARACTERS = 2000
"""A longer row is searched in its first characters; more of it is never shown."""
SHOWN_CHARACTERS = 400
MATCHES = 200
BYTES = 20_000
BLOCK_BYTES = 256 * 1024
CONTEXT_MAX = 20
AT_ONCE = 4
MEMORY_BYTES = 512 * 1024 * 1024


def main() -> int:
    """The child: a pattern, then blocks of rows on standard input; the numbers of those that match go out."""
    find = re.compile(json.loads(sys.stdin.readline())).search
    for line in sys.stdin:
        found = [number for number, row in enumerate(json.loads(line)) if find(row)]
        sys.stdout.write(json.dumps(found) + "\n")
        sys.stdout.flush()
    return 0


class Found(NamedTuple):
    """Rows: number, text, True for a match. next: the row to go on from; None when all were searched."""

    rows: list[tuple[int, str, bool]]
    matches: int
    next: int | None
    stopped: str | None

    def json(self, start: int, total: int) -> dict[str, Any]:
        """Fields of read_command_lines with `pattern`: the rows as `grep -n` shows them."""
        lines: list[str] = []
        for at, (number, text, matches) in enumerate(self.rows):
            if at and self.rows[at - 1][0] < number - 1 and any(not row[2] for row in self.rows):
                lines.append("--")
            lines.append(f"{number}{':' if matches else '-'}{collapse(text)}")
        output = "\n".join(lines)
        found: dict[str, Any] = {
            "output": output,
            "original_token_count": math.ceil(len(output.encode("utf-8", "replace")) / 4),
            "start_offset": start,
            "end_offset": total if self.next is None else self.next,
            "match_count": self.matches,
        }
        return found if self.stopped is None else {**found, "truncated": True, "stopped": self.stopped}


def check_pattern(pattern: str) -> None:
    """Compile a pattern, without running it.

    Raises:
        OperationError: invalid_request, reason invalid_pattern.
    """
    size = len(pattern.encode("utf-8", "surrogatepass"))
    if not pattern or size > PATTERN_BYTES:
        why = f"has {size} bytes, from 1 to {PATTERN_BYTES} are accepted"
        raise _bad(why)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            re.compile(pattern)
    except re.error as error:
        raise _bad(f"is not a regular expression: {error}", position=error.pos) from None
    except (RecursionError, OverflowError):
        raise _bad("is nested too deeply or repeats too often") from None


def _bad(why: str, **more: Any) -> OperationError:
    hint = "a Python regular expression, searched in each line: error|failed"
    details = {"argument": "pattern", "hint": hint, **more}
    return OperationError(INVALID_REQUEST, f"pattern {why}", details, reason="invalid_pattern")


class OutputSearch:
    """Searches of one agent: at most four at a time."""

    def __init__(self) -> None:
        self._running = 0

    async def search(self, transcript: Transcript, pattern: str, start: int, context: int) -> Found:
        """Search the rows from `start` on, up to a page of matches.

        Raises:
            OperationError: invalid_request: the pattern; search_too_slow when it does not get through the
                first block in time. server_busy: four searches run.
        """
        check_pattern(pattern)
        if self._running >= AT_ONCE:
            raise OperationError(
                SERVER_BUSY,
                f"{AT_ONCE} searches in outputs run, which is the limit",
                {"limit": "searches in outputs", "value": AT_ONCE, "retryable": True},
                reason="max_output_searches",
            )
        self._running += 1
        try:
            return await self._search(transcript, pattern, start, context)
        finally:
            self._running -= 1

    async def _search(self, transcript: Transcript, pattern: str, start: int, context: int) -> Found:
        child = await asyncio.create_subprocess_exec(
            *_argv(),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            limit=1 << 24,
        )
        page = _OutputPage(transcript, context)
        at = start
        try:
            assert child.stdin is not None and child.stdout is not None
            _bound(child.pid)
            child.stdin.write(json.dumps(pattern).encode() + b"\n")
            async with asyncio.timeout(LONGEST_S):
                while at < transcript.total_rows:
                    block = transcript.read(at, None, BLOCK_BYTES)
                    lines = block.text.split("\n")
                    child.stdin.write(json.dumps([line[:ROW_CHARACTERS] for line in lines]).encode() + b"\n")
                    await child.stdin.drain()
                    answer = await child.stdout.readline()
                    if not answer:
                        raise TimeoutError  # it used its processor time or memory up
                    stop = page.add(block, lines, json.loads(answer))
                    if stop is not None:
                        return Found(page.rows, page.matches, stop, "matches")
                    at = block.end
        except (TimeoutError, ConnectionError, BrokenPipeError):
            if at == start:
                hint = "use a simpler expression, without nested repeats"
                raise OperationError(
                    INVALID_REQUEST,
                    f"pattern did not get through the lines from {start} on in {SEARCH_S} s of processor",
                    {"argument": "pattern", "hint": hint, "start_offset": start},
                    reason="search_too_slow",
                ) from None
            return Found(page.rows, page.matches, at, "time")
        finally:
            with contextlib.suppress(ProcessLookupError):
                child.kill()
            await child.wait()
        return Found(page.rows, page.matches, None, None)


def _argv() -> list[str]:
    """How this very program was started, with `search` as its mode; else this module alone, as in tests."""
    with open("/proc/self/cmdline", "rb") as file:
        words = [os.fsdecode(word) for word in file.read().split(b"\0")[:-1]]
    if words[-3:-1] == ["serve", "--settings"]:
        return [*words[:-3], "search", *words[-2:]]
    return [sys.executable, "-c", "from eos_agent.sessions.output_search import main; main()"]


def _bound(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        resource.prlimit(pid, resource.RLIMIT_CPU, (SEARCH_S, SEARCH_S + 1))
        resource.prlimit(pid, resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))


class _OutputPage:
    """Matching rows and those around them, in order, each once."""

    def __init__(self, transcript: Transcript, context: int) -> None:
        self.rows: list[tuple[int, str, bool]] = []
        self.matches = self._size = 0
        self._transcript, self._context = transcript, context

    def add(self, block: Rows, lines: list[str], found: list[int]) -> int | None:
        """Take the matches of one block; the number of the row that no longer fits, or None."""
        for index in found:
            number = block.start + index
            if block.dropped is not None and number > block.dropped[0]:  # its marker stands for many rows
                number += block.dropped[1] - block.dropped[0] - 1
            if self.matches >= MATCHES or self._size > BYTES:
                return number
            self.matches += 1
            last = self.rows[-1][0] if self.rows else -1
            if number <= last:  # shown already, as a row around another match
                at = next(at for at in range(len(self.rows) - 1, -1, -1) if self.rows[at][0] == number)
                self.rows[at] = (number, self.rows[at][1], True)
            else:
                for around in range(max(last + 1, number - self._context), number):
                    self._put(around, self._row(around), False)
                self._put(number, lines[index], True)
            end = min(number + 1 + self._context, self._transcript.total_rows)
            for around in range(max(self.rows[-1][0], number) + 1, end):
                self._put(around, self._row(around), False)
        return None

    def _row(self, number: int) -> str:
        return self._transcript.read(number, 1).text

    def _put(self, number: int, text: str, matches: bool) -> None:
        if len(text) > SHOWN_CHARACTERS:
            text = f"{text[:SHOWN_CHARACTERS]}… [{len(text) - SHOWN_CHARACTERS} more characters]"
        self.rows.append((number, text, matches))
        self._size += len(text) + 8
