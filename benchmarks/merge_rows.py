"""Three-way merges of one large text beside `git merge-file`: time, and peak memory of a process of its
own.
"""

from __future__ import annotations

import random
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from benchmarks.harness import Row, Series, in_turn
from benchmarks.place import Place
from benchmarks.rows import run
from layerstack.text.merge import Merged
from layerstack.text.merge import merge as merge_lines

REWRITTEN, LONG, EDITS = 8_000, 100_000, 100
MERGE = """
import re, sys
from layerstack.text.merge import merge
texts = [open(name, "rb").read() for name in sys.argv[1:]]
peak = lambda: int(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1]) / 1024
before = peak()
merge(*texts)
print(peak() - before)
"""
CHILD = """
import resource, subprocess, sys
subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL)
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024)
"""


def rewrite(chance: random.Random, common: bool) -> bytes:
    """8,000 lines of which the other side has none, or only the blank ones and braces that are a third of
    them.
    """
    often = ["", "}", "{", "    return", "    }"]
    return "".join(
        (chance.choice(often) if common and n % 3 == 0 else f"line {chance.random()}") + "\n"
        for n in range(REWRITTEN)
    ).encode()


def edited(lines: list[str], chance: random.Random, places: range) -> bytes:
    """100 lines of these places replaced, far from each other."""
    changed = list(lines)
    for at in chance.sample(places, EDITS):
        changed[at] = f"edited {chance.random()}"
    return ("\n".join(changed) + "\n").encode()


def merge(place: Place) -> Iterator[Row]:
    """Two rewrites of one file against each other, and scattered edits on both sides; the bytes that git
    merges to are compared.
    """
    chance = random.Random(5)
    folder = Path(tempfile.mkdtemp(prefix="merge", dir=place.home))
    lines = [f"line {n} {chance.random()}" for n in range(LONG)]
    scattered = (
        ("\n".join(lines) + "\n").encode(),
        edited(lines, chance, range(0, LONG, 4)),
        edited(lines, chance, range(2, LONG, 4)),
    )
    cases: dict[str, tuple[tuple[bytes, ...], str]] = {
        "two rewrites of 8,000 lines": (tuple(rewrite(chance, False) for _ in range(3)), "<= 300 ms"),
        "the same, blank lines and braces in common": (
            tuple(rewrite(chance, True) for _ in range(3)),
            "<= 300 ms",
        ),
        f"{EDITS} scattered edits on each side of {LONG:,} lines": (scattered, "-"),
    }
    for number, (name, (texts, goal)) in enumerate(cases.items()):
        names = [str(folder / f"{number}-{side}") for side in ("base", "ours", "theirs")]
        for path, text in zip(names, texts, strict=True):
            Path(path).write_bytes(text)
        found: list[Merged] = []
        told: list[bytes] = []
        git = ["git", "merge-file", "-p", names[1], names[0], names[2]]

        def ours(texts: tuple[bytes, ...] = texts, found: list[Merged] = found) -> None:
            found.append(merge_lines(*texts))

        def theirs(git: list[str] = git, told: list[bytes] = told) -> None:
            told.append(output(git))

        mine, other = in_turn([("eos", ours), ("git merge-file", theirs)], runs=7)
        assert found[-1].content == told[-1] if found[-1].content is not None else b"<<<<<<< " in told[-1], (
            name
        )
        yield Row(f"merge: {name}", mine, other, goal, "Python, line by line")
        memory = tuple(float(run([sys.executable, "-c", MERGE, *names])) for _ in range(3))
        their_memory = tuple(float(run([sys.executable, "-S", "-c", CHILD, *git])) for _ in range(3))
        beside = Series("git merge-file, all of it", their_memory)
        yield Row(
            f"memory of it: {name}",
            Series("eos", memory),
            beside,
            "<= 50 MB",
            "beyond the three texts, at the peak",
            "MB",
        )


def output(words: list[str]) -> bytes:
    """What a program says that may end with the number of conflicts."""
    return subprocess.run(words, capture_output=True, timeout=120, check=False).stdout
