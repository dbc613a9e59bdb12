"""The store by itself: what publishing costs beside a loop that makes the same bytes durable, on few layers and on many."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from benchmarks.harness import Row, check, in_turn, token
from benchmarks.place import Place
from benchmarks.rows import fsync_loop
from layerstack.form import TRUSTED, USER
from layerstack.store import Store

MANY_LAYERS = 100
RUNS = {1: 30, 10: 20, 1000: 2}


class Stack:
    """A store with an empty base, written to without a mount: what an upperdir holds is put there by hand."""

    def __init__(self, folder: Path) -> None:
        os.makedirs(folder / "base" / "B000001-base")
        form = TRUSTED if os.geteuid() == 0 else USER
        Store.create(str(folder), workspace_root="/workspace", base_root_hash="0" * 64, form=form)
        self.store = Store.open(str(folder))
        self._number = 0

    def publish(self, count: int) -> None:
        """A session, `count` new small files, publication; one of the files is read back from the head."""
        self._number += 1
        want = token()
        upper = self.store.open_upper(f"s{self._number}", origin="benchmark")
        folder = Path(upper.upperdir, f"d{self._number % 7}")
        folder.mkdir()
        for n in range(count):
            (folder / f"f{self._number}-{n}").write_text(want)
        done = upper.publish(owner="benchmark", request_id="r")
        assert done.source_count >= count, done
        check(self.store.snapshot().read_bytes(f"d{self._number % 7}/f{self._number}-0").decode(), want)


def publish(place: Place) -> Iterator[Row]:
    """Session opened, files written, published, beside the loop. On one layer each series starts anew."""
    loops = Path(tempfile.mkdtemp(prefix="loop", dir=place.home))
    for layers in (1, MANY_LAYERS):
        for count, runs in RUNS.items():
            stack = Stack(Path(tempfile.mkdtemp(prefix="stack", dir=place.home)))
            try:
                for _ in range(layers - 1):
                    stack.publish(1)

                def ours(stack: Stack = stack, count: int = count) -> None:
                    stack.publish(count)

                beside = ("write, fsync, rename", lambda count=count: fsync_loop(loops, token(), count))
                mine, loop = in_turn([("eos", ours), beside], runs=runs, warm_up=1)
            finally:
                stack.store.close()
            many = f"{layers} to {layers + runs} layers"
            what = (
                "the syncs: one commit with a journal, one for each file and folder without"
                if count < 100
                else "hashing and writing out each file"
            )
            yield Row(f"publish of {count} small file{'s' if count > 1 else ''}, {many}", mine, loop, "<= 2x the loop", what)
