"""A disk that refuses one system call, or all of them until an operation gave up: the head is old or new, no work is lost, and a retry succeeds.

The calls are those that change something, as the kill harness wraps them. Odd ones fail with ENOSPC, even ones with EIO.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from layerstack import linux
from layerstack.errors import Invalid, PublishRejected
from layerstack.store import Store
from layerstack.upper import Upper
from tests import children
from tests.layerstack import scenario
from tests.layerstack.scenario import Places, demand, line, put, shown
from tests.layerstack.test_crash import tapped
from tests.trees import read_tree

SOAK = os.environ.get("EOS_SOAK", "") not in ("", "0")
STRIDE = 1 if SOAK else 9
UNTIL_GIVEN_UP = 10_000


class Disk:
    """Fails `width` calls from call number `first` on, counted over all operations; sound in between."""

    def __init__(self, first: int, width: int) -> None:
        self.first, self.width, self.seen = first, width, 0
        self.failed, self.sound = False, True

    def tick(self, name: str) -> None:
        if self.sound:
            return
        number, self.seen = self.seen, self.seen + 1
        if self.first <= number < self.first + self.width:
            self.failed = True
            raise OSError(errno.ENOSPC if self.first % 2 else errno.EIO, "injected", name)

    @contextlib.contextmanager
    def in_doubt(self) -> Any:
        self.sound = False
        try:
            yield
        finally:
            self.sound = True


class Outcome(NamedTuple):
    """What must be found again, and whether the fault was met at all."""

    texts: list[bytes]
    failed: bool


class History:
    """Three sessions, of which one is refused, a draft, a session on it, a write, a discard. Each operation is tried again once it failed."""

    def __init__(self, places: Places, disk: Disk) -> None:
        self.places, self.disk = places, disk
        Store.create(places.root, workspace_root="/workspace", base_root_hash="0" * 64, form=places.form)
        self.store = Store.open(places.root)
        self.texts: list[bytes] = []

    def twice(self, act: Callable[[], Any]) -> Any:
        try:
            with self.disk.in_doubt():
                return act()
        except OSError:
            return act()

    def upper(self, name: str, draft_id: str | None = None) -> Upper:
        def act() -> Upper:
            return self.store.open_upper(name, origin=f"workspace_session:{name}", draft_id=draft_id)

        opened: Upper = self.twice(act)
        return opened

    def write(self, upper: Upper, *files: tuple[str, bytes, bytes]) -> None:
        """(path, bytes, the text to find again)."""
        with shown(upper, os.path.join(self.places.mounts, "a")) as mount:
            for path, data, text in files:
                put(mount, path, data)
                self.texts.append(text)

    def settled(self, upper: Upper) -> str | None:
        """Publish; refused work becomes a draft. An upper whose work could not be put back is left to the next open, as its caller does."""

        def publish() -> str | None:
            try:
                upper.publish(owner=upper.session_id, request_id="r")
            except PublishRejected:
                draft = upper.to_draft(reason="source_conflict")
                return None if draft is None else draft.draft_id
            return None

        try:
            return self.twice(publish)  # type: ignore[no-any-return]
        except Invalid as error:
            demand(error.reason == "upper_ended" and self.disk.failed, str(error))
            return None

    def play(self) -> Outcome:
        a, b, c = (self.upper(name) for name in "abc")
        with shown(a, os.path.join(self.places.mounts, "b")) as mount, contextlib.suppress(OSError):  # EXDEV in the user form
            os.rename(f"{mount}/moved", f"{mount}/elsewhere")
        self.write(a, ("shared.txt", line(3, b"work a\n"), b"work a\n"), ("new/deep/a", b"more a\n", b"more a\n"))
        self.write(b, ("shared.txt", line(3, b"work b\n"), b"work b\n"), ("new/deep/b", b"more b\n", b"more b\n"))
        self.write(c, ("shared.txt", line(15, b"work c\n"), b"work c\n"), ("d/c", b"more c\n", b"more c\n"))
        self.settled(a)
        self.settled(c)
        draft_id = self.settled(b)
        if draft_id is not None:
            e = self.upper("e", draft_id)
            self.texts.remove(b"work b\n")
            self.write(e, ("shared.txt", line(3, b"work a\n"), b"work a\n"), ("e", b"work e\n", b"work e\n"))
            self.settled(e)
        self.twice(lambda: self.store.update_file("notes.txt", lambda old: b"written\n", owner="u", request_id="r"))
        self.texts.append(b"written\n")
        f = self.upper("f")
        self.write(f, ("thrown", b"thrown\n", b"work a\n"))
        self.twice(f.discard)
        self.twice(self.store.gc)
        self.store.close()
        return Outcome(self.texts, self.disk.failed)


def check(places: Places, outcome: Outcome) -> None:
    store = Store.open(places.root)
    demand(store.unrecovered == (), f"not recovered: {store.unrecovered}")
    trees = [scenario.look(places, store.snapshot())]
    for n, draft in enumerate(store.drafts()):
        upper = store.open_upper(f"check-{n}", origin="workspace_session:check", draft_id=draft.draft_id)
        with shown(upper, os.path.join(places.mounts, "f")) as mount:
            trees.append(read_tree(mount))
        upper.discard()
    for text in outcome.texts:
        demand(any(scenario._holds(tree, text) for tree in trees), f"{text!r} is gone")  # pyright: ignore[reportPrivateUsage]
    store.gc()
    scenario._check_nothing_left(places.root, store)  # pyright: ignore[reportPrivateUsage]
    scenario._check_usable(places, store)  # pyright: ignore[reportPrivateUsage]
    store.close()


def fail_everywhere(form: str, folder: str, width: int) -> int:
    """Plays the history once for each stride-th call, refused; checks what is there afterwards. Returns how many were met."""
    linux.mount("tmpfs", folder, "tmpfs", 0, "mode=755")
    first = met = 0
    broken: list[str] = []
    while True:
        place = os.path.join(folder, f"n{first}")
        places = scenario.prepare(place, os.path.join(place, "mounts"), form)

        def child(places: Places = places, first: int = first) -> Outcome:
            disk = Disk(first, width)
            tapped(disk.tick)
            return History(places, disk).play()

        try:
            outcome = children.call("trusted", child)
            check(places, outcome)
            if not outcome.failed:
                break
        except Exception as error:
            broken.append(f"call {first}: {type(error).__name__}: {str(error)[-1500:]}")
        first, met = first + STRIDE, met + 1
    assert not broken, f"{len(broken)} of {met} faults:\n" + "\n".join(broken[:4])
    return met


@pytest.mark.timeout(0 if SOAK else 120)
@pytest.mark.needs("overlay", "root")
@pytest.mark.parametrize("width", [1, UNTIL_GIVEN_UP], ids=["once", "until_given_up"])
def test_a_disk_that_refuses_any_call_loses_nothing_and_a_retry_succeeds_as_root(short_dir: str, width: int) -> None:
    assert children.call("trusted", fail_everywhere, "trusted", short_dir, width) > 20


@pytest.mark.timeout(0 if SOAK else 120)
@pytest.mark.needs("userns")
def test_a_disk_that_refuses_any_call_loses_nothing_and_a_retry_succeeds_in_a_user_namespace(short_dir: str) -> None:
    os.chmod(short_dir, 0o777)
    assert children.call("user", fail_everywhere, "user", short_dir, 3) > 20
