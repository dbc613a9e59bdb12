"""Search a command's output as grep does: return the matching rows, each with its number, and rows around
them.

A regular expression may never end on one row. So a separate process does the matching, and is killed at
the time limit of a search; the agent itself neither compiles nor runs an expression. The process gets the
rows in blocks.
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

from eos_agent.sessions.carriage_return import collapse, plain_row
from eos_agent.wire.protocol import INVALID_REQUEST, SERVER_BUSY, OperationError

if TYPE_CHECKING:
    from eos_agent.sessions.transcript import Rows, Transcript

PATTERN_BYTES = 1000
SEARCH_S = 3
"""Processor time of one search, in seconds."""
LONGEST_S = 20
"""Elapsed time of one search, in seconds, with the start of the process."""
ROW_CHARACTERS = 2000
"""Characters of a row that are searched; the rest of a longer row is skipped, and never shown."""
SHOWN_CHARACTERS = 400
MATCHES = 200
BYTES = 20_000
BLOCK_BYTES = 256 * 1024
CONTEXT_MAX = 20
AT_ONCE = 4
MEMORY_BYTES = 512 * 1024 * 1024


def main() -> int:
    """Run the child: read a pattern, then blocks of rows, from standard input; write what is wrong with the
    pattern, or null, then the numbers of matching rows."""
    pattern = json.loads(sys.stdin.readline())
    wrong: tuple[str, int | None] | None = None
    find = None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            find = re.compile(pattern).search
    except re.error as error:
        wrong = f"is not a regular expression: {error}", error.pos
    except (RecursionError, OverflowError):
        wrong = "is nested too deeply or repeats too often", None
    _say(wrong)
    for line in sys.stdin if find is not None else ():
        _say([number for number, row in enumerate(json.loads(line)) if find is not None and find(row)])
    return 0


def _say(value: object) -> None:
    sys.stdout.write(json.dumps(value) + "\n")
    sys.stdout.flush()


class Found(NamedTuple):
    """The result of a search. rows: number, text, True for a match. next: the row at which the next search
    starts; None if all rows were searched."""

    rows: list[tuple[int, str, bool]]
    matches: int
    next: int | None
    stopped: str | None

    def json(self, start: int, total: int) -> dict[str, Any]:
        """The fields of read_command_lines with `pattern`: the rows in the form of `grep -n`."""
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


def check_size(pattern: str) -> None:
    """Check the length of a pattern. Compiling one may take seconds, so that the child does it.

    Raises:
        OperationError: invalid_request, reason invalid_pattern.
    """
    size = len(pattern.encode("utf-8", "surrogatepass"))
    if not pattern or size > PATTERN_BYTES:
        why = f"has {size} bytes, from 1 to {PATTERN_BYTES} are accepted"
        raise _bad(why)


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
            OperationError: invalid_request for the pattern, and search_too_slow if the first block takes too
                long; server_busy while four searches run.
        """
        check_size(pattern)
        if self._running >= AT_ONCE:
            raise OperationError(
                SERVER_BUSY,
                f"{AT_ONCE} searches of outputs are running, which is the limit",
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
            _limit_process(child.pid)
            child.stdin.write(json.dumps(pattern).encode() + b"\n")
            async with asyncio.timeout(LONGEST_S):
                _check(await child.stdout.readline())
                while at < transcript.total_rows:
                    block = transcript.read(at, None, BLOCK_BYTES)
                    lines = block.text.split("\n")
                    searched = [plain_row(line[:ROW_CHARACTERS]) for line in lines]
                    child.stdin.write(json.dumps(searched).encode() + b"\n")
                    await child.stdin.drain()
                    answer = await child.stdout.readline()
                    if not answer:
                        raise TimeoutError  # the process has reached its limit of processor time or memory
                    stop = page.add(block, lines, json.loads(answer))
                    if stop is not None:
                        return Found(page.rows, page.matches, stop, "matches")
                    at = block.end
        except (TimeoutError, ConnectionError, BrokenPipeError):
            if at == start:
                hint = "use a simpler expression, without nested repeats"
                raise OperationError(
                    INVALID_REQUEST,
                    f"pattern needed more than {SEARCH_S} s of processor time in the lines from {start} on",
                    {"argument": "pattern", "hint": hint, "start_offset": start},
                    reason="search_too_slow",
                ) from None
            return Found(page.rows, page.matches, at, "time")
        finally:
            with contextlib.suppress(ProcessLookupError):
                child.kill()
            await child.wait()
        return Found(page.rows, page.matches, None, None)


def _check(said: bytes) -> None:
    """Read what the child says of the pattern; nothing when it has used up its processor time or memory."""
    if not said:
        raise TimeoutError
    wrong = json.loads(said)
    if wrong is not None:
        why, position = wrong
        raise _bad(why, **({} if position is None else {"position": position}))


def _argv() -> list[str]:
    """The command line of this process with `search` as its mode; if it is not the agent's (in tests), one
    that runs this module alone."""
    with open("/proc/self/cmdline", "rb") as file:
        words = [os.fsdecode(word) for word in file.read().split(b"\0")[:-1]]
    if words[-3:-1] == ["serve", "--settings"]:
        return [*words[:-3], "search", *words[-2:]]
    return [sys.executable, "-c", "from eos_agent.sessions.output_search import main; main()"]


def _limit_process(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        resource.prlimit(pid, resource.RLIMIT_CPU, (SEARCH_S, SEARCH_S + 1))
        resource.prlimit(pid, resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))


class _OutputPage:
    """A page of matching rows and the rows around them, in order, each once."""

    def __init__(self, transcript: Transcript, context: int) -> None:
        self.rows: list[tuple[int, str, bool]] = []
        self.matches = self._size = 0
        self._transcript, self._context = transcript, context

    def add(self, block: Rows, lines: list[str], found: list[int]) -> int | None:
        """Add the matches of one block; return the number of the first row that does not fit, or None."""
        for index in found:
            number = block.start + index
            if block.dropped is not None and number > block.dropped[0]:  # its marker replaces many rows
                number += block.dropped[1] - block.dropped[0] - 1
            if self.matches >= MATCHES or self._size > BYTES:
                return number
            self.matches += 1
            last = self.rows[-1][0] if self.rows else -1
            if number <= last:  # already on the page, as a row around another match
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
