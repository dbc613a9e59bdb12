"""Trees of very many files, and the memory that work on them takes."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from tests.trees import DIRECTORY, Entry

COUNT = 6_000


BASE = {"": Entry(DIRECTORY, (0o755, 0, 0)), "keep": Entry(DIRECTORY, (0o755, 0, 0))}


def fill(root: str, *, flat: bool, count: int = COUNT) -> None:
    for number in range(count):
        folder = root if flat else f"{root}/dir-{number // 500:03d}"
        if not flat and number % 500 == 0:
            os.mkdir(folder)
        os.close(os.open(f"{folder}/file-number-{number:06d}", os.O_CREAT | os.O_WRONLY, 0o644))


def growth_kib(work: Callable[[], Any]) -> tuple[Any, int]:
    """Return the function's result, and the peak of this process's memory above its present size."""

    def read(key: str) -> int:
        with open("/proc/self/status") as status:
            return next(int(line.split()[1]) for line in status if line.startswith(key))

    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")  # the peak is what is there now
    before = read("VmRSS")
    answer = work()
    return answer, read("VmHWM") - before
