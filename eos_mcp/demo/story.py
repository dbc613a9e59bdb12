"""Output of the demo: one line per step, with the seconds since the start and the name of the agent."""

from __future__ import annotations

import sys
import time

WIDTH = 9


class Story:
    """Printer of steps to standard output; `times` keeps the seconds that the summary shows."""

    def __init__(self, *, colour: bool | None = None) -> None:
        self.start = time.monotonic()
        self.colour = sys.stdout.isatty() if colour is None else colour
        self.paint = {"alice": "36", "bob": "33", "carol": "35"}

    def elapsed_s(self) -> float:
        return time.monotonic() - self.start

    def heading(self, text: str) -> None:
        print(f"\n{text}\n", flush=True)

    def say(self, who: str, text: str, *more: str) -> None:
        """Print one step, and below it lines of its result."""
        name = f"{who:<{WIDTH}}"
        if self.colour and who in self.paint:
            name = f"\033[{self.paint[who]}m{name}\033[0m"
        print(f"{self.elapsed_s():7.2f} s  {name}{text}", flush=True)
        for line in more:
            print(f"{'':{11 + WIDTH}}| {line}", flush=True)
