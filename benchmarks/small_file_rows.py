"""Exports of many small files, each beside what one would do by hand: `cp -a`, `tar`, `tar | zstd`, each with
its sync.
"""

from __future__ import annotations

import hashlib
import json
import os
import resource
import shlex
import shutil
import subprocess
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from benchmarks.harness import Row, Series
from benchmarks.place import Place
from benchmarks.rows import run
from eos_mcp.config import paths

COUNTS = {1_000: 7, 20_000: 3}
"""Files, and how often each is exported."""
FORMS = {"dir": "cp -a; sync -f", "tar": "tar; sync -f", "tar-zst": "tar \\| zstd -3; sync -f"}
GOAL = "<= 1.3x"
FILL_S = 180

FILL = """
import os, random, sys
random.seed(1)
for n in range(int(sys.argv[1])):
    if n % 100 == 0:
        os.mkdir(f"d{n // 100:04d}")
    with open(f"d{n // 100:04d}/f{n:06d}.txt", "wb") as file:
        file.write(random.randbytes(64 + n * 37 % 1500).hex().encode())
"""


class Cost(NamedTuple):
    """Of one export or copy, in milliseconds."""

    wall: float
    processor: float


def export(place: Place) -> Iterator[Row]:
    """Each format in turn with its baseline; what was exported is compared by content. Processor time is that
    of agent and gateway together.
    """
    for count, runs in COUNTS.items():
        with place.sandbox("host", files=1) as sandbox:
            source = Path(tempfile.mkdtemp(prefix="source", dir=place.home))
            subprocess.run(["python3", "-c", FILL, str(count)], cwd=source, check=True, timeout=120)
            # sessions have a /tmp of their own, so that they may not see `source`
            again = f"python3 -c {shlex.quote(FILL)} {count}"
            done = place.ask(
                "exec_command", {"cmd": f"rm -r ./* && {again}", "yield_time_ms": 30_000}, sandbox
            )
            until = time.monotonic() + FILL_S
            while done["status"] == "running" and time.monotonic() < until:
                time.sleep(0.2)
                done = place.ask(
                    "read_command_lines", {"command_session_id": done["command_session_id"]}, sandbox
                )
            assert done["status"] == "ok", done
            want = _digest(
                {
                    str(path.relative_to(source)): path.read_bytes()
                    for path in source.rglob("*")
                    if path.is_file()
                }
            )
            ours: dict[str, list[Cost]] = {form: [] for form in FORMS}
            beside: dict[str, list[Cost]] = {form: [] for form in FORMS}
            for n in range(runs + 1):
                for form in FORMS:
                    dest = place.home / f"export-{count}-{n}-{form}"
                    copy = Path(f"{dest}-copy")
                    made = _cost(
                        lambda form=form, dest=dest, sandbox=sandbox: _export(place, sandbox, form, dest),
                        lambda sandbox=sandbox: _spent(_pids(place, sandbox)),
                    )
                    by_hand = _cost(
                        lambda form=form, source=source, copy=copy: _by_hand(form, source, copy), _children
                    )
                    if n:  # the first round warms up both
                        ours[form].append(made)
                        beside[form].append(by_hand)
                    assert _digest(_content(form, dest)) == want, f"{form}: other files came"
                    for path in (dest, copy):
                        shutil.rmtree(path) if path.is_dir() else path.unlink()
        for form, title in FORMS.items():
            what = f"export of {count:,} small files, {form}"
            yield Row(
                what,
                _wall("eos", ours[form]),
                _wall(title, beside[form]),
                GOAL,
                "the calls of the kernel for each file, and Python",
            )
            yield Row(
                f"{what}: processor",
                _processor("eos", ours[form]),
                _processor(title, beside[form]),
                "-",
                "agent and gateway run at once",
            )


def _wall(name: str, costs: list[Cost]) -> Series:
    return Series(name, tuple(cost.wall for cost in costs))


def _processor(name: str, costs: list[Cost]) -> Series:
    return Series(name, tuple(cost.processor for cost in costs))


def _cost(call: Callable[[], object], spent: Callable[[], float]) -> Cost:
    before, start = spent(), time.perf_counter()
    call()
    return Cost((time.perf_counter() - start) * 1000, spent() - before)


def _export(place: Place, sandbox: str, form: str, dest: Path) -> None:
    place.ask("export_changes", {"sandbox_id": sandbox, "dest": str(dest), "format": form})


def _by_hand(form: str, source: Path, dest: Path) -> None:
    if form == "dir":
        run(["cp", "-a", str(source), str(dest)])
    else:
        packed = 'tar -C "$0" -cf "$1" .' if form == "tar" else 'tar -C "$0" -cf - . | zstd -q -3 -o "$1"'
        subprocess.run(["sh", "-c", packed, str(source), str(dest)], check=True, timeout=120)
    run(["sync", "-f", str(dest)])


def _content(form: str, dest: Path) -> dict[str, bytes]:
    if form == "dir":
        found = {str(path.relative_to(dest)): path.read_bytes() for path in dest.rglob("*") if path.is_file()}
    else:
        plain = dest
        if form == "tar-zst":
            plain = dest.with_suffix(".plain")
            run(["zstd", "-q", "-d", str(dest), "-o", str(plain)])
        with tarfile.open(plain) as archive:
            found = {
                member.name: file.read()
                for member in archive
                if (file := archive.extractfile(member)) is not None
            }
        if plain != dest:
            plain.unlink()
    return {name: data for name, data in found.items() if name.startswith("d") and name.endswith(".txt")}


def _digest(files: dict[str, bytes]) -> str:
    total = hashlib.sha256()
    for name in sorted(files):
        total.update(name.encode() + b"\0" + files[name])
    return total.hexdigest()


def _pids(place: Place, sandbox: str) -> tuple[int, ...]:
    agent = int(
        json.loads((place.home / "state" / "sandboxes" / sandbox / "endpoint.json").read_text())["pid"]
    )
    return agent, int(Path(paths.pid_path()).read_text())


def _spent(pids: tuple[int, ...]) -> float:
    """Processor time of processes so far, in ms."""
    ticks = 0
    for pid in pids:
        words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        ticks += int(words[11]) + int(words[12])
    return ticks * 1000 / os.sysconf("SC_CLK_TCK")


def _children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return (used.ru_utime + used.ru_stime) * 1000
