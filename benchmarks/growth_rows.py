"""How publishing, looking at and squashing a session grows with its files, and what memory that takes; and a
sparse file of 1 TiB.
"""

from __future__ import annotations

import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from benchmarks.harness import Row, Series
from benchmarks.place import Place

COUNTS = (12_500, 25_000, 50_000, 100_000)
RUNS = 2
GOAL, MEMORY_GOAL = "exponent <= 1.1", "<= 100 MB"

LOOK = """
import json, os, sys, time
from layerstack.history import versions as history
from layerstack.export.stream import stream
from layerstack.kernel.xattrs import TRUSTED, USER
from layerstack.layers.index_cursor import Digests
from layerstack.store import Store

root, count = sys.argv[1], int(sys.argv[2])
os.makedirs(root + "/base/B000001-base/keep")
Store.create(root, workspace_root="/workspace", base_root_hash="0" * 64, xattr_namespace=TRUSTED if os.geteuid() == 0 else USER)
store = Store.open(root)
found = {}

def status(key):
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith(key))

def look(name, work):
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")
    before, wall, processor = status("VmRSS"), time.perf_counter(), time.process_time()
    answer = work()
    found[name] = [(time.perf_counter() - wall) * 1000, (time.process_time() - processor) * 1000, (status("VmHWM") - before) / 1024]
    return answer

def fill(upper):
    for n in range(count):
        folder = f"{upper.upperdir}/d{n // 100:05d}"
        if n % 100 == 0:
            os.mkdir(folder)
        with open(f"{folder}/f{n:07d}.txt", "w") as file:
            file.write(f"line one of {n}\\n")

def export():
    digests = Digests(root)
    size = sum(len(piece) if isinstance(piece, bytes) else piece.size for piece in stream(store.snapshot(), digests=digests, holes=True, root=root))
    digests.close()
    assert size > count * 64  # the digest of each

def publish(upper):
    return upper.publish(owner="o", request_id="r")

upper = store.open_upper("a", origin="benchmark")
fill(upper)
assert look("preview", upper.preview).source_count == count + (count + 99) // 100
assert look("publish", lambda: publish(upper)).manifest.version == 2
look("export stream", export)
assert len(look("first diff page of 200", lambda: history.diff_versions(store, 1, 2)).changes) == 200
upper = store.open_upper("b", origin="benchmark")
open(upper.upperdir + "/more", "w").close()
publish(upper)
assert len(look("squash", store.squash).blocks) == 1
assert not look("rollback", lambda: store.rollback(1, owner="o", request_id="r")).no_op
assert not look("rollback of that", lambda: store.rollback(4, owner="o", request_id="r")).no_op
upper = store.open_upper("c", origin="benchmark", version=1)
fill(upper)
look("to_draft", lambda: upper.to_draft(reason="benchmark"))
store.close()
print(json.dumps(found))
"""  # noqa: E501

SPARSE = """
import json, os, sys, time
from layerstack.export.stream import stream
from layerstack.kernel.xattrs import TRUSTED, USER
from layerstack.layers.index_cursor import Digests
from layerstack.store import Store

root, size = sys.argv[1], int(sys.argv[2])
os.makedirs(root + "/base/B000001-base/keep")
Store.create(root, workspace_root="/workspace", base_root_hash="0" * 64, xattr_namespace=TRUSTED if os.geteuid() == 0 else USER)
store = Store.open(root)
upper = store.open_upper("a", origin="benchmark")
with open(upper.upperdir + "/disk.img", "wb") as file:
    for at in range(0, size, size // 16):
        os.pwrite(file.fileno(), os.urandom(8192), at + 12_345)
    file.truncate(size)
found = {}

def look(name, work):
    start = time.perf_counter()
    answer = work()
    found[name] = (time.perf_counter() - start) * 1000
    return answer

assert look("preview", upper.preview).source_count == 1
assert look("publish", lambda: upper.publish(owner="o", request_id="r")).source_count == 1
digests = Digests(root)
sent = look("export stream", lambda: sum(len(p) if isinstance(p, bytes) else p.size for p in stream(store.snapshot(), digests=digests, holes=True, root=root)))
assert 131_072 <= sent < 1 << 20, sent
digests.close()
store.close()
print(json.dumps(found))
"""  # noqa: E501


def _run(code: str, place: Place, *words: str) -> dict[str, list[float] | float]:
    """In a process of its own, whose memory is that of the store alone."""
    root = tempfile.mkdtemp(prefix="growth", dir=place.home)
    done = subprocess.run(
        [sys.executable, "-c", code, root, *words], check=True, capture_output=True, text=True, timeout=600
    )
    subprocess.run(["rm", "-rf", root], check=True, timeout=120)
    found: dict[str, list[float] | float] = json.loads(done.stdout)
    return found


def growth(place: Place) -> Iterator[Row]:
    """Each step on sessions of 12,500 to 100,000 files, in processes of their own; the exponent is that of
    the least processor times.
    """
    made: dict[int, list[dict[str, list[float]]]] = {count: [] for count in COUNTS}
    for _ in range(RUNS):
        for count in COUNTS:
            made[count].append(_run(LOOK, place, str(count)))  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    for name in made[COUNTS[0]][0]:
        least = {count: min(run[name][1] for run in runs) for count, runs in made.items()}
        for count, runs in made.items():
            ms = Series("eos", tuple(run[name][0] for run in runs))
            yield Row(f"{name}, {count:,} files", ms, None, "-", f"processor: {least[count]:.0f} ms")
        yield Row(
            f"{name}: exponent",
            Series("eos", (exponent(least),)),
            None,
            GOAL,
            "least squares over the logarithms",
            "",
        )
        memory = Series("eos", tuple(run[name][2] for run in made[COUNTS[-1]]))
        yield Row(
            f"{name}: memory for {COUNTS[-1]:,} files",
            memory,
            None,
            MEMORY_GOAL,
            "the packed list of paths",
            "MiB",
        )


def exponent(costs: dict[int, float]) -> float:
    """The slope of a line through the logarithms: 1 is proportional."""
    points = [(math.log(count), math.log(cost)) for count, cost in costs.items()]
    x, y = (statistics.fmean(point[axis] for point in points) for axis in (0, 1))
    return sum((a - x) * (b - y) for a, b in points) / sum((a - x) ** 2 for a, _ in points)


def sparse(place: Place) -> Iterator[Row]:
    """A file of 1 TiB with 128 KiB of data."""
    found = [_run(SPARSE, place, str(1 << 40)) for _ in range(3)]
    for name in found[0]:
        ms = Series("eos", tuple(float(run[name]) for run in found))  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
        yield Row(
            f"{name} of a sparse file of 1 TiB", ms, None, "seconds", "the data, and a line for each hole"
        )


def manifests(place: Place) -> Iterator[Row]:
    """The size of `manifests/` when a store has had so many layers."""
    from benchmarks.store_rows import Stack

    stack = Stack(Path(tempfile.mkdtemp(prefix="stack", dir=place.home)))
    sizes: dict[int, float] = {}
    for layers in (56, 112, 225, 450):
        while len(stack.store.head.layers) < layers:
            stack.publish(1)
        folder = Path(stack.root, "manifests")
        sizes[layers] = sum(os.stat(path).st_size for path in folder.iterdir()) / 1024
        yield Row(
            f"size of manifests/ with {layers} layers",
            Series("eos", (sizes[layers],)),
            None,
            "-",
            "a file of one layer's name each",
            "KiB",
        )
    yield Row("size of manifests/: exponent", Series("eos", (exponent(sizes),)), None, GOAL, "", "")
    stack.close()
