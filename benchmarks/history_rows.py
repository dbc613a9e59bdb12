"""What looks back over many layers: squash beside a copy of the same files, blame beside git's."""

from __future__ import annotations

import functools
import random
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from benchmarks.harness import Row, Series, timed
from benchmarks.place import Place
from benchmarks.rows import run
from benchmarks.store_rows import Stack
from layerstack.history.blame import Cache
from layerstack.kernel.fsync import sync_tree_of
from layerstack.squash.squash import Squashed

FOLDED_LAYERS = 100
FOLDED_FILES = {1_000: 7, 20_000: 3}
BLAMED_LINES, GENERATIONS, EDITS = 15_000, 50, 150


def squash(place: Place) -> Iterator[Row]:
    """Folding 100 layers that hold so many files together, beside `cp -a` of these layers; a pin keeps what
    was folded before apart.

    As in an agent, what was replaced is removed by a thread, behind the answer.
    """
    for files, runs in FOLDED_FILES.items():
        stack = Stack(Path(tempfile.mkdtemp(prefix="stack", dir=place.home)), 2_000)
        ours: list[float] = []
        beside: list[float] = []
        for n in range(runs + 1):
            stack.store.pin_version(stack.store.head.version)
            for layer in range(FOLDED_LAYERS):
                upper = stack.store.open_upper(f"fold{n}-{layer}", origin="benchmark")
                for at in range(files // FOLDED_LAYERS):
                    folder = Path(upper.upperdir, f"d{(at + layer) % 20:04d}")
                    folder.mkdir(exist_ok=True)
                    (folder / f"r{n}-{layer}-{at}").write_text(f"{n} {layer} {at}\n")
                upper.publish(owner=f"o{layer}", request_id="r")
            layers = [
                str(stack.root / "layers" / layer_id)
                for layer_id in stack.store.head.layer_ids[:FOLDED_LAYERS]
            ]
            copy = place.home / "copy"
            copy.mkdir()
            other = timed(functools.partial(run, ["cp", "-a", *layers, str(copy)]))
            shutil.rmtree(copy)
            sync_tree_of(str(place.home))  # else the squash would pay for the journal of the copy
            found: list[Squashed] = []

            def fold(stack: Stack = stack, found: list[Squashed] = found) -> None:
                found.append(stack.store.squash())

            ms = timed(fold)
            assert stack.store.staging.wait_removed(timeout_s=120)
            assert [len(block.replaced_layer_ids) for block in found[0].blocks] == [FOLDED_LAYERS], found
            if n:
                ours.append(ms)
                beside.append(other)
        stack.close()
        shutil.rmtree(stack.root)
        goal = "<= 80 ms" if files == 1_000 else "-"
        what = "a link, an index line and an owner for each file"
        yield Row(
            f"squash of {FOLDED_LAYERS} layers, {files:,} files",
            Series("eos", tuple(ours)),
            Series("cp -a", tuple(beside)),
            goal,
            what,
        )


def blame(place: Place) -> Iterator[Row]:
    """The owners of 15,000 lines after 50 publications of 150 edits each, beside `git blame` of the same
    history; the owners are compared.
    """
    chance = random.Random(7)
    lines = [f"line {n} of the first text {chance.random()}" for n in range(BLAMED_LINES)]
    stack = Stack(Path(tempfile.mkdtemp(prefix="stack", dir=place.home)))
    tree = Path(tempfile.mkdtemp(prefix="git", dir=place.home))
    git = [
        "git",
        "-C",
        str(tree),
        "-c",
        "maintenance.auto=false",
        "-c",
        "gc.auto=0",
        "-c",
        "user.name=b",
        "-c",
        "user.email=b@example.org",
    ]
    run([*git, "init", "-q"])
    for generation in range(GENERATIONS):
        for at in chance.sample(range(BLAMED_LINES), EDITS) if generation else ():
            lines[at] = f"generation {generation} wrote {at} {chance.random()}"
        text = "\n".join(lines) + "\n"
        stack.write(text=text)
        (tree / "text").write_text(text)
        run([*git, "add", "text"])
        run([*git, "commit", "-q", "-m", f"s{generation + 1}"])
    cold: list[float] = []
    again: list[float] = []
    beside: list[float] = []
    shown: list[str] = []
    for n in range(8):
        stack.store.blames = Cache(stack.root)
        ms, second = timed(lambda: stack.store.blame("text")), timed(lambda: stack.store.blame("text"))
        other = timed(lambda: shown.append(run([*git, "blame", "--line-porcelain", "text"])))
        if n:
            cold.append(ms)
            again.append(second)
            beside.append(other)
    theirs = [
        f"workspace_session:{line[8:]}" for line in shown[-1].splitlines() if line.startswith("summary ")
    ]
    mine = [part.owner for part in stack.store.blame("text") for _ in range(part.line_count)]
    assert mine == theirs, "git sees other owners"
    stack.close()
    what = f"blame of {BLAMED_LINES:,} lines, {GENERATIONS} generations"
    yield Row(
        f"{what}, cold",
        Series("eos", tuple(cold)),
        Series("git blame", tuple(beside)),
        "<= 800 ms",
        "49 diffs of neighbouring texts",
    )
    yield Row(
        f"{what}, again",
        Series("eos", tuple(again)),
        Series("git blame", tuple(beside)),
        "<= 20 ms",
        "a look-up",
    )
