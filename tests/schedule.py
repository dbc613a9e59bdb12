"""Order of the tests, and what one process of a run gets at a time, so that processors do not idle.

End-to-end tests wait for most of their time, for engines, disks and ending processes; the others compute.
Both kinds are spread evenly over the run, because side by side they take the time of one.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

from xdist.scheduler.loadfile import LoadFileScheduling  # pyright: ignore[reportMissingTypeStubs]

FIRST = (
    "tests/test_quality.py",
    "tests/layerstack/test_state_machine.py",
    "tests/layerstack/test_crash.py",
    "tests/layerstack/test_faults_are_found.py",
    "tests/test_build.py",
    "tests/layerstack/test_many_files.py",
    "tests/layerstack/test_disk_faults.py",
    "tests/layerstack/test_power_cut.py",
    "tests/test_wheel.py",
    "tests/test_private_dirs.py",
    "tests/eos_agent/test_cgroups.py",
    "tests/eos_agent/test_recovering.py",
    "tests/eos_agent/test_confinement.py",
    "tests/eos_agent/test_commands.py",
)
"""The longest files beside the end-to-end tests: at the end of a run each would keep one process alone."""
LONG = tuple(
    f"tests/end_to_end/test_{name}.py"
    for name in (
        "errors",
        "recovery",
        "starts",
        "forward",
        "sandbox_lifetime",
        "limits",
        "docker_provider",
        "demo",
        "inspector",
        "docker_confinement",
        "mcp_sandbox",
        "full_disk",
        "local_provider",
    )
)
"""End-to-end files of more than 40 s: none is in the last quarter of a run, where it would keep one process
alone.
"""
APART = tuple(file for file in FIRST if "/layerstack/" in file or file == "tests/test_quality.py")
"""Files whose tests share no fixture: several processes may run them at once."""
WAITING = "tests/end_to_end/"

T = TypeVar("T")


def file_of(nodeid: str) -> str:
    return nodeid.partition("::")[0]


def spread(some: list[T], others: list[T]) -> list[T]:
    """Return both lists as one, each in its order, with `some` evenly between the `others`."""
    placed = [(n / max(1, len(some)), item) for n, item in enumerate(some)]
    placed += [((n + 0.5) / max(1, len(others)), item) for n, item in enumerate(others)]
    return [item for _, item in sorted(placed, key=lambda pair: pair[0])]


def places(files: Iterable[str]) -> dict[str, int]:
    """Return the place of each file in the run: FIRST come first among those that compute, and the last third
    of those that wait are short.
    """
    found = list(dict.fromkeys(files))
    computing = [file for file in FIRST if file in found]
    computing += [file for file in found if file not in FIRST and not file.startswith(WAITING)]
    long = [file for file in LONG if file in found]
    short = [file for file in found if file.startswith(WAITING) and file not in LONG]
    last = len(short) * 2 // 3
    waiting = spread(long, short[:last]) + short[last:]
    return {file: n for n, file in enumerate(spread(waiting, computing))}


class FileScheduling(LoadFileScheduling):
    """One file at a time to a process, as with --dist=loadfile; of APART one test."""

    def _split_scope(self, nodeid: str) -> str:
        return nodeid if nodeid.startswith(APART) else super()._split_scope(nodeid)
