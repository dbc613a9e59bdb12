"""The store by itself, above a base of 50,000 files: what publishing costs beside a loop that makes the same
bytes durable, on few layers and on many; how long everybody else is kept out meanwhile; capture, opening,
memory.
"""

from __future__ import annotations

import functools
import hashlib
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType

from benchmarks.harness import Row, Series, check, in_turn, timed, token
from benchmarks.place import Place, fill
from benchmarks.rows import fsync_loop, run
from layerstack.kernel.xattrs import TRUSTED, USER
from layerstack.layers.capture import capture_tree
from layerstack.layers.index_file import build
from layerstack.store import Store
from layerstack.tree.disk import DiskTree

BASE_FILES = 50_000
LAYERS = (1, 300)
RUNS = {1: 40, 10: 20, 1000: 4}
OPENED_LAYERS = 450
CAPTURED = 10_000


class Held:
    """A store's lock that notes for how long it is held."""

    def __init__(self, store: Store) -> None:
        self._lock, self._depth, self._since = store.lock, 0, 0.0
        self.ms: list[float] = []
        store.lock = self  # type: ignore[assignment]  # pyright: ignore[reportAttributeAccessIssue]

    def __enter__(self) -> None:
        self._lock.acquire()
        self._depth += 1
        if self._depth == 1:
            self._since = time.perf_counter()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._depth == 1:
            self.ms.append((time.perf_counter() - self._since) * 1000)
        self._depth -= 1
        self._lock.release()


class Stack:
    """A store that is written to without a mount: what an upperdir holds is put there by hand. As in an
    agent, a thread removes what was thrown away, behind the answer.
    """

    def __init__(self, folder: Path, files: int = 0) -> None:
        self.root = folder
        self.base = folder / "base" / "B000001-base"
        self.base.mkdir(parents=True)
        fill(self.base, files)
        xattr_namespace = TRUSTED if os.geteuid() == 0 else USER
        Store.create(
            str(folder), workspace_root="/workspace", base_root_hash="0" * 64, xattr_namespace=xattr_namespace
        )
        self.store = Store.open(str(folder))
        self._sweeper = ThreadPoolExecutor(1)
        self.store.staging.later = self._sweeper.submit
        self.held = Held(self.store)
        self.longest: list[float] = []
        self._number = 0

    def publish(self, count: int) -> None:
        """A session, `count` new small files, publication; one of the files is read back from the head."""
        self._number += 1
        want = token()
        upper = self.store.open_upper(f"s{self._number}", origin="benchmark")
        folder = Path(upper.upperdir, f"n{self._number % 7}")
        folder.mkdir()
        for n in range(count):
            (folder / f"f{self._number}-{n}").write_text(want)
        self.held.ms.clear()
        done = upper.publish(owner="benchmark", request_id="r")
        self.longest.append(max(self.held.ms))
        assert done.source_count >= count, done
        check(self.store.snapshot().read_bytes(f"n{self._number % 7}/f{self._number}-0").decode(), want)

    def close(self) -> None:
        """Once all that was thrown away is gone."""
        self._sweeper.shutdown()
        self.store.close()

    def write(self, **files: str) -> None:
        """Publish these files."""
        self._number += 1
        upper = self.store.open_upper(f"s{self._number}", origin=f"workspace_session:s{self._number}")
        for name, text in files.items():
            Path(upper.upperdir, name).write_text(text)
        upper.publish(owner=f"workspace_session:s{self._number}", request_id="r")


def publish(place: Place) -> Iterator[Row]:
    """Session opened, files written, published, beside the loop; and the longest that each publish held the
    lock, beside one fsync.
    """
    loops = Path(tempfile.mkdtemp(prefix="loop", dir=place.home))
    locks: list[Row] = []
    for layers in LAYERS:
        stack = Stack(Path(tempfile.mkdtemp(prefix="stack", dir=place.home)), BASE_FILES)
        try:
            while len(stack.store.head.layers) < layers:
                stack.publish(1)
            for count, runs in RUNS.items():
                start, stack.longest = len(stack.store.head.layers), []

                def ours(stack: Stack = stack, count: int = count) -> None:
                    stack.publish(count)

                def one_fsync() -> None:
                    fsync_loop(loops, "x", 0)

                beside = ("write, fsync, rename", lambda count=count: fsync_loop(loops, token(), count))
                mine, loop, sync = in_turn(
                    [("eos", ours), beside, ("rename, fsync of two folders", one_fsync)], runs=runs, warm_up=1
                )
                files = f"{count} small file{'s' if count > 1 else ''}, {start} to {start + runs} layers"
                what = (
                    "opening the session, writing, one commit of the journal"
                    if count < 100
                    else "hashing and writing out each file"
                )
                yield Row(f"publish of {files}", mine, loop, "<= 2x the loop", what)
                held = Series("eos", tuple(stack.longest[-runs:]))
                locks.append(
                    Row(
                        f"lock held, {files}",
                        held,
                        sync,
                        "bookkeeping and one fsync",
                        "the fsync of the manifest's folder",
                    )
                )
        finally:
            stack.close()
            shutil.rmtree(stack.root)
    yield from locks


def open_store(place: Place) -> Iterator[Row]:
    """Opening a store of 450 layers, every file of it checked, beside reading and hashing the same files."""
    stack = Stack(Path(tempfile.mkdtemp(prefix="stack", dir=place.home)), BASE_FILES)
    while len(stack.store.head.layers) < OPENED_LAYERS:
        stack.publish(3)
    stack.close()
    root = stack.root

    def opened() -> None:
        Store.open(str(root)).close()

    def read() -> None:
        for folder in ("manifests", ".layer-metadata"):
            for path in (root / folder).iterdir():
                hashlib.sha256(path.read_bytes()).digest()

    ours, other = in_turn([("eos", opened), ("read and SHA-256 of the same files", read)], runs=11)
    yield Row(
        f"open of a store with {OPENED_LAYERS} layers", ours, other, "<= 200 ms", "reading 1,800 small files"
    )


LOOK = """
import re, sys
peak = lambda: int(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1]) / 1024
bare = peak()
from layerstack.store import Store
imported = peak()
store = Store.open(sys.argv[1])
upper = store.open_upper("memory", origin="benchmark")
snapshot = upper.snapshot
for n in range(0, 50_000, 7):
    assert snapshot.stat(f"d{n // 100:04d}/f{n:06d}.txt") is not None
open(upper.upperdir + "/one", "w").close()
upper.publish(owner="o", request_id="r")
store.close()
print(bare, imported, peak())
"""


def memory(place: Place) -> Iterator[Row]:
    """What a process that opens a store of 300 layers on 50,000 files, looks at 7,000 of them and publishes
    has in memory at its peak.
    """
    stack = Stack(Path(tempfile.mkdtemp(prefix="stack", dir=place.home)), BASE_FILES)
    while len(stack.store.head.layers) < LAYERS[-1]:
        stack.publish(10)
    stack.close()
    figures = [
        [float(word) for word in run([sys.executable, "-c", LOOK, str(stack.root)]).split()] for _ in range(5)
    ]
    whole, bare = (
        Series("eos", tuple(row[2] for row in figures)),
        Series("python -c pass", tuple(row[0] for row in figures)),
    )
    yield Row(
        f"peak memory with {BASE_FILES:,} files, {LAYERS[-1]} layers",
        whole,
        bare,
        "-",
        "modules, then the indexes of the layers",
        "MB",
    )


def capture(place: Place) -> Iterator[Row]:
    """Capture and index of an upperdir of 10,000 changed files, half of them copied up from the base,
    beside `cp -a` of it.
    """
    stack = Stack(Path(tempfile.mkdtemp(prefix="stack", dir=place.home)), BASE_FILES)
    ours: list[float] = []
    beside: list[float] = []
    for n in range(6):
        upper = stack.store.open_upper(f"capture{n}", origin="benchmark")
        for at in range(CAPTURED):
            folder = f"d{at // 100:04d}" if at < CAPTURED // 2 else f"new{at // 100:04d}"
            if at % 100 == 0:
                Path(upper.upperdir, folder).mkdir()
                if at < CAPTURED // 2:
                    shutil.copystat(stack.base / folder, Path(upper.upperdir, folder))
            Path(upper.upperdir, folder, f"f{at:06d}.txt").write_text(f"session {n} wrote {at}\nline two\n")
        copy = place.home / f"copy{n}"
        other = timed(functools.partial(run, ["cp", "-a", upper.upperdir, str(copy)]))
        shutil.rmtree(copy)
        found: list[int] = []

        def captured(upper_dir: str = upper.upperdir, found: list[int] = found) -> None:
            tree, chain = (
                DiskTree(upper_dir, stack.store.xattr_namespace, aside=stack.store.staging.path),
                stack.store.snapshot().chain,
            )
            capture_tree(tree, chain)
            found.append(len(build(tree, chain).changed))

        ms = timed(captured)
        assert found == [CAPTURED + CAPTURED // 200], found
        upper.discard()
        if n:
            ours.append(ms)
            beside.append(other)
    stack.close()
    yield Row(
        f"capture of {CAPTURED:,} changed files",
        Series("eos", tuple(ours)),
        Series("cp -a", tuple(beside)),
        "-",
        "six calls of the kernel per file",
    )
