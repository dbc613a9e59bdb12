"""A disk that refuses everything from one step of a publish on, the undoing too, and is sound again: life
goes on before anybody opens the store again.

Others publish, fold and collect; then the store is opened again, and the work of the publish that failed is
published or in a draft.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Generator

import pytest

from layerstack.errors import Invalid
from layerstack.kernel import fsync, syscalls
from tests.layerstack.kill_harness import tapped
from tests.layerstack.memory_and_disk import disagreement
from tests.layerstack.store_fixture import Base, Session, Stack, get, on_a_stack, put

BASE: Base = {"f": "".join(f"line {n}\n" for n in range(20)), "d/g": "g\n"}
STEPS_AT_LEAST = 9


def write(s: Stack, text: str) -> None:
    s.store.update_file("d/g", lambda _: text.encode(), owner="o", request_id="r")


def begin(s: Stack) -> Session:
    """A session with work that is merged by lines, or not, with what comes meanwhile."""
    session = s.session()
    put(session.at("f"), get(session.at("f")).replace("line 3\n", "work\n"))
    put(session.at("new/w"), "work\n")
    session.umount()
    return session


def publish(session: Session) -> None:
    session.upper.publish(owner="o", request_id="r")


def steps_of_a_publish(s: Stack) -> list[str]:
    found: list[str] = []
    session = begin(s)
    s.store.step = found.append
    publish(session)
    s.store.step = fsync.no_step
    return list(dict.fromkeys(found))


@contextlib.contextmanager
def small(s: Stack, name: str) -> Generator[Stack]:
    folder = f"{s.folder}/{name}"
    os.mkdir(folder)
    syscalls.mount("none", folder, "tmpfs", 0, "mode=755")
    try:
        with contextlib.closing(Stack(s.xattr_namespace.name, BASE, folder=folder)) as stack:
            yield stack
    finally:
        syscalls.umount(folder)


@on_a_stack({**BASE})
def test_work_whose_publish_no_disk_would_undo_is_published_or_kept_whatever_comes_next(s: Stack) -> None:
    dead = ""

    def tick(name: str) -> None:
        if dead == "now":
            raise OSError(errno.EIO, "injected", name)

    steps = steps_of_a_publish(s)
    assert len(steps) >= STEPS_AT_LEAST, steps
    tapped(tick)
    for number, step in enumerate(steps):
        with small(s, f"n{number}") as stack:
            write(stack, "1\n")
            session = begin(stack)

            def stepped(name: str, step: str = step) -> None:
                nonlocal dead
                if name == step:
                    dead = "now"

            stack.store.step = stepped
            with contextlib.suppress(OSError):
                publish(session)
            dead, stack.store.step = "", fsync.no_step
            assert disagreement(stack.store) == "", step
            write(stack, "2\n")
            write(stack, "3\n")
            stack.store.squash()
            stack.store.gc()
            with contextlib.suppress(Invalid):  # left to the next open
                publish(session)
            stack.store.gc()
            stack.reopen()
            assert not stack.store.unrecovered, step
            if "new/w" not in stack.shows():
                (draft,) = stack.store.drafts()
                again = stack.session(draft_id=draft.draft_id)
                assert (get(again.at("new/w")), "work\n" in get(again.at("f"))) == ("work\n", True), step
            assert stack.shows()["d/g"] == "3\n", step
            stack.store.gc()
            assert os.listdir(f"{stack.root}/staging") == [], step


@contextlib.contextmanager
def refusing_from(s: Stack, step: str) -> Generator[None]:
    """From that step on the disk refuses everything, the undoing too, until the block ends; OSError ends
    it.
    """
    dead = False

    def tick(name: str) -> None:
        if dead:
            raise OSError(errno.EIO, "injected", name)

    def stepped(name: str) -> None:
        nonlocal dead
        dead = dead or name == step

    tapped(tick)
    s.store.step = stepped
    with pytest.raises(OSError):
        yield
    assert dead, f"{step} was not passed"
    dead, s.store.step = False, fsync.no_step


def write_all(s: Stack, *texts: str) -> None:
    for text in texts:
        s.store.update_file("f", lambda _, text=text: text.encode(), owner="o", request_id="r")  # type: ignore[misc]


@on_a_stack({"f": "f\n"})
def test_work_that_a_dead_disk_left_in_a_draft_keeps_the_layers_that_it_stands_on(s: Stack) -> None:
    write_all(s, "1\n", "2\n", "3\n")
    session = s.session()
    put(session.at("kept"), "kept\n")
    session.umount()
    with refusing_from(s, "draft.fsync"):
        session.upper.to_draft(reason="put aside")
    (draft,) = s.store.drafts()
    assert disagreement(s.store) == ""
    write_all(s, "4\n", "5\n")
    assert [len(block.replaced_layer_ids) for block in s.store.squash().blocks] == [2, 2], (
        "nothing is folded over its base"
    )
    s.reopen()
    again = s.session(draft_id=draft.draft_id)
    assert (get(again.at("kept")), get(again.at("f"))) == ("kept\n", "3\n") and len(s.store.drafts()) == 1


@on_a_stack({"f": "f\n"})
def test_a_pin_that_a_dead_disk_could_not_take_back_holds_and_the_next_call_makes_it_durable(
    s: Stack,
) -> None:
    write_all(s, "1\n", "2\n", "3\n")
    with refusing_from(s, "pin.fsync_dir"):
        s.store.pin_version(2)
    assert list(s.store.pinned()) == [2] and s.store.pins.unsynced and disagreement(s.store) == ""
    s.store.squash()
    assert s.store.pin_version(2).version == 2 and not s.store.pins.unsynced
    s.reopen()
    assert list(s.store.pinned()) == [2] and s.shows(2)["f"] == "1\n"


@on_a_stack({"f": "f\n"})
def test_a_version_stays_pinned_until_a_disk_has_taken_its_unpinning(s: Stack) -> None:
    write_all(s, "1\n", "2\n", "3\n")
    s.store.pin_version(2)
    with refusing_from(s, "unpin.fsync_dir"):
        s.store.unpin_version(2)
    assert list(s.store.pinned()) == [2] and disagreement(s.store) == ""
    s.store.squash()
    assert s.shows(2)["f"] == "1\n", "a power cut may bring the pin back, and the version must be there then"
    s.store.pin_version(2)
    s.reopen()
    assert list(s.store.pinned()) == [2]
    with refusing_from(s, "unpin.fsync_dir"):
        s.store.unpin_version(2)
    assert s.store.unpin_version(2) and s.store.pinned() == {} and os.listdir(f"{s.root}/pins") == []
