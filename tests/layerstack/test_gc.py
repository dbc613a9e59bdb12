"""Collecting garbage while others work: nothing that an operation under way still needs is taken."""

from __future__ import annotations

import os
import threading

import pytest

from layerstack.errors import NotFound
from layerstack.kernel.fsync import no_step
from layerstack.squash import squash
from tests.layerstack.store_fixture import Stack, get, on_a_stack, put, refusing

BASE: dict[str, str | bytes | None] = {"f": "".join(f"line {n}\n" for n in range(100)), "d/g": "g\n"}


@on_a_stack({**BASE})
def test_garbage_collected_without_a_pause_takes_nothing_from_publishes_and_drafts(stack: Stack) -> None:
    """Each session is rejected once, so that its work is folded in staging, then merged by lines, so that it
    is rewritten there.
    """
    lines = get(f"{stack.base}/f").splitlines(keepends=True)
    uppers = [stack.store.open_upper(f"p{n}", origin="test") for n in range(12)]
    other = stack.store.open_upper("other", origin="test")
    put(f"{other.upperdir}/clash", "other\n")
    for n, upper in enumerate(uppers):
        put(f"{upper.upperdir}/f", "".join([*lines[: n * 8], f"by {n}\n", *lines[n * 8 + 1 :]]))
        put(f"{upper.upperdir}/clash", f"{n}\n")
        for k in range(20):
            put(f"{upper.upperdir}/own-{n}/{k}", f"{n} {k}\n")
    other.publish(owner="o", request_id="r")
    failures: list[BaseException] = []
    ended = threading.Event()

    def collect() -> None:
        while not ended.is_set():
            stack.store.gc()

    def work(n: int) -> None:
        upper = uppers[n]
        try:
            if not upper.preview().conflicts:
                raise AssertionError("no conflict")
            try:
                upper.publish(owner="o", request_id="r")
            except Exception as error:
                if type(error).__name__ != "PublishRejected":
                    raise
            os.close(upper.mount())
            put(f"{upper.upperdir}/clash", "other\n")
            upper.publish(owner="o", request_id="r")
        except BaseException as error:
            failures.append(error)

    collector = threading.Thread(target=collect)
    workers = [threading.Thread(target=work, args=(n,)) for n in range(12)]
    for thread in (collector, *workers):
        thread.start()
    for thread in workers:
        thread.join()
    ended.set()
    collector.join()
    assert failures == []
    shown = stack.shows()
    assert {f"own-{n}/{k}": f"{n} {k}\n" for n in range(12) for k in range(20)}.items() <= shown.items()
    assert all(f"by {n}\n" in shown["f"] for n in range(12))
    assert os.listdir(stack.store.staging.path) == []


@on_a_stack({**BASE}, namespaces=("trusted",))
def test_a_version_that_nobody_leases_is_refused_once_it_is_folded_away_and_never_shows_older_content(
    stack: Stack,
) -> None:
    for n in range(3):
        stack.store.update_file("d/g", lambda old, n=n: b"%d\n" % n, owner="o", request_id="r")  # type: ignore[misc]
    loose = stack.store.snapshot()
    with stack.store.reading() as held:
        real, squash.READERS_WAIT_S = squash.READERS_WAIT_S, 0.0
        try:
            assert len(stack.store.squash().blocks) == 1
        finally:
            squash.READERS_WAIT_S = real
        assert held.read_bytes("d/g") == loose.read_bytes("d/g") == b"2\n"
        assert [entry.path for entry in held.list("d")] == ["d/g"]
    stack.store.gc()
    for look in (lambda: loose.read_bytes("d/g"), lambda: loose.list("d"), lambda: loose.stat("absent")):
        with pytest.raises(NotFound) as caught:
            look()
        assert caught.value.reason == "version_not_found"
    assert stack.store.snapshot().read_bytes("d/g") == b"2\n"


@on_a_stack({**BASE})
def test_a_folded_layer_is_not_kept_for_a_later_session_of_the_name_of_its_writer(stack: Stack) -> None:
    for n in range(3):
        writer = stack.store.open_upper("name", origin="test")
        put(f"{writer.upperdir}/new", f"{n}\n")
        assert not writer.publish(owner="o", request_id="r").no_op
    stack.store.step = refusing("squash.remove_layers")
    assert len(stack.store.squash().blocks) == 1
    stack.store.step = no_step
    later = stack.store.open_upper("name", origin="test")
    assert len(stack.layer_dirs()) == 4, "the disk did not remove what was folded"
    stack.store.gc()
    assert stack.layer_dirs() == sorted(later.snapshot.manifest.layer_ids)[1:], "all but the base"
