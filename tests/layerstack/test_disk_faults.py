"""A disk that refuses one system call, or all of them until an operation gave up: the head is old or new, no
work is lost, and a retry succeeds.

The calls are those that change something, as the kill harness wraps them, and those that write bytes. They
fail with ENOSPC and with EIO: in the gate odd ones with the first and even ones with the other, in a soak
each of them with both.
"""

from __future__ import annotations

import builtins
import contextlib
import errno
import io
import os
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from layerstack.errors import Invalid, NotFound, PublishRejected
from layerstack.kernel import fsync, syscalls
from layerstack.session.upper import Upper
from layerstack.store import Store
from tests import in_namespace
from tests.layerstack import crash_history
from tests.layerstack.crash_history import Places, demand, line, put, shown
from tests.layerstack.kill_harness import tapped
from tests.layerstack.memory_and_disk import disagreement
from tests.trees import Tree, read_tree

SOAK = os.environ.get("EOS_SOAK", "") not in ("", "0")
STRIDE = 1 if SOAK else 97
UNTIL_GIVEN_UP = 10_000
CODES = (errno.EIO, errno.ENOSPC)


def writes_tapped(tick: Callable[[str], None]) -> None:
    """From here on `tick("call:write")` runs before bytes go into a file, whichever way. In a child only."""

    class Written(io.BufferedWriter):
        def write(self, data: Any, /) -> int:
            tick("call:write")
            return super().write(data)

    def tap(module: Any, name: str) -> None:
        real = getattr(module, name)

        def wrapped(*args: Any, **kwargs: Any) -> Any:
            tick("call:write")
            return real(*args, **kwargs)

        setattr(module, name, wrapped)

    real_open = builtins.open

    def opened(file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
        return (
            Written(io.FileIO(file, mode.replace("b", "")))
            if mode in ("wb", "xb")
            else real_open(file, mode, *args, **kwargs)
        )

    setattr(builtins, "open", opened)  # noqa: B010
    for module, name in ((os, "write"), (os, "sendfile"), (syscalls, "sync_file_range")):
        tap(module, name)


class Disk:
    """Fails `width` calls from call number `first` on with `code`, counted over all operations; sound in
    between.
    """

    def __init__(self, first: int, width: int, code: int) -> None:
        self.first, self.width, self.code, self.seen = first, width, code, 0
        self.failed, self.sound = False, True

    def tick(self, name: str) -> None:
        if self.sound:
            return
        number, self.seen = self.seen, self.seen + 1
        if self.first <= number < self.first + self.width:
            self.failed = True
            raise OSError(self.code, "injected", name)

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
    """Sessions that are published, rewritten, refused, put aside, reopened, carried over to the head, thrown
    away; a write, pins, squashes, a rollback, collections. Each operation is tried again once it failed, and
    memory must agree with the disk before and after that.
    """

    def __init__(self, places: Places, disk: Disk) -> None:
        self.places, self.disk = places, disk
        Store.create(
            places.root,
            workspace_root="/workspace",
            base_root_hash="0" * 64,
            xattr_namespace=places.xattr_namespace,
        )
        self.store = Store.open(places.root)
        self.texts: list[bytes] = []

    def view(self) -> tuple[int, Tree]:
        return self.store.head.version, crash_history.look(self.places, self.store.snapshot())

    def agreed(self, when: str) -> None:
        demand(disagreement(self.store) == "", f"{when}: {disagreement(self.store)}")

    def twice(self, act: Callable[[], Any]) -> Any:
        version, tree = self.view()
        try:
            with self.disk.in_doubt():
                done = act()
        except OSError as error:
            demand(
                error.errno == self.disk.code and "injected" in str(error),
                f"the error is not the disk's: {error!r}",
            )
            self.agreed("after it failed")
            now, shown = self.view()
            demand(now in (version, version + 1), f"the head went from {version} to {now}")
            done = act()
            demand(
                shown in (tree, self.view()[1]),
                "between failure and retry the head showed neither the old tree nor the new",
            )
        self.agreed("in the end")
        return done

    def upper(self, name: str, draft_id: str | None = None, draft_base: str = "own") -> Upper:
        def act() -> Upper:
            return self.store.open_upper(
                name, origin=f"workspace_session:{name}", draft_id=draft_id, draft_base=draft_base
            )

        opened: Upper = self.twice(act)
        return opened

    def write(self, upper: Upper, *files: tuple[str, bytes, bytes]) -> None:
        """(path, bytes, the text to find again)."""
        with shown(upper, os.path.join(self.places.mounts, "a")) as mount:
            for path, data, text in files:
                put(mount, path, data)
                self.texts.append(text)

    def settled(self, upper: Upper) -> str | None:
        """Publish; refused work becomes a draft. An upper whose work could not be put back is left to the
        next open, as its caller does.
        """

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

    def carried_over(self, upper: Upper) -> None:
        """To the head; whenever that fails the session shows what it did, and once it is done what it did
        beside what the head does.
        """
        place = os.path.join(self.places.mounts, "a")

        def seen() -> Tree:
            with shown(upper, place) as mount:
                return read_tree(mount)

        before, version = seen(), upper.snapshot.version

        def rebase() -> None:
            try:
                upper.rebase()
            except OSError:
                self.disk.sound = True
                demand(
                    (seen(), upper.snapshot.version) == (before, version),
                    "what could not be carried over is not as it was",
                )
                raise

        self.twice(rebase)
        version, head = self.view()
        demand(
            upper.snapshot.version == version and seen() == {**before, **head},
            "the session shows another tree than the merge",
        )

    def put_aside(self, upper: Upper) -> str | None:
        """None when the work is left to the next open."""
        try:
            draft = self.twice(lambda: upper.to_draft(reason="put aside"))
        except Invalid as error:
            demand(error.reason == "upper_ended" and self.disk.failed, str(error))
            return None
        demand(draft is not None, "the work is in no draft")
        return str(draft.draft_id)

    def update(self, text: bytes) -> None:
        def appended(old: bytes | None) -> bytes:
            return (old or b"").removesuffix(text) + text

        self.twice(lambda: self.store.update_file("notes.txt", appended, owner="u", request_id="r"))

    def play(self) -> Outcome:
        a, b, c = (self.upper(name) for name in "abc")
        with (
            shown(a, os.path.join(self.places.mounts, "b")) as mount,
            contextlib.suppress(OSError),
        ):  # EXDEV in the user namespace
            os.rename(f"{mount}/moved", f"{mount}/elsewhere")
        self.write(
            a, ("shared.txt", line(3, b"work a\n"), b"work a\n"), ("new/deep/a", b"more a\n", b"more a\n")
        )
        self.write(
            b, ("shared.txt", line(3, b"work b\n"), b"work b\n"), ("new/deep/b", b"more b\n", b"more b\n")
        )
        self.write(c, ("shared.txt", line(15, b"work c\n"), b"work c\n"), ("d/c", b"more c\n", b"more c\n"))
        self.settled(a)
        self.settled(c)
        draft_id = self.settled(b)
        if draft_id is not None:
            e = self.upper("e", draft_id)
            self.texts.remove(b"work b\n")
            self.write(e, ("shared.txt", line(3, b"work a\n"), b"work a\n"), ("e", b"work e\n", b"work e\n"))
            self.settled(e)
        self.update(b"written\n")
        self.texts.append(b"written\n")
        f = self.upper("f")
        self.write(f, ("thrown", b"thrown\n", b"work a\n"))
        self.twice(f.discard)
        self.look_back()
        self.twice(self.store.gc)
        self.store.close()
        return Outcome(self.texts, self.disk.failed)

    def look_back(self) -> None:
        """History from here on: pins, squashes, a draft that is carried over, a rollback, a draft that is
        thrown away.
        """
        store = self.store
        g, h = self.upper("g"), self.upper("h")
        self.write(g, ("g", b"work g\n", b"work g\n"))
        self.write(h, ("h", b"work h\n", b"work a\n"))
        kept, thrown = self.put_aside(g), self.put_aside(h)
        for text in (b"once more\n", b"and once more\n"):
            self.update(text)
        self.twice(lambda: store.pin_version(2))
        self.twice(store.squash)
        if kept is not None:
            k = self.upper("k", kept)
            self.write(k, ("k", b"work k\n", b"work k\n"))
            self.carried_over(k)
            self.write(k, ("late", b"late k\n", b"late k\n"))
            self.settled(k)
        pinned = store.head.version
        self.twice(lambda: store.pin_version(pinned))
        self.twice(lambda: store.rollback(2, owner="r", request_id="r"))
        self.twice(lambda: store.unpin_version(2))
        self.update(b"after the rollback\n")
        self.twice(store.squash)
        demand(
            pinned in store.pinned() and 2 not in store.pinned(),
            f"pinned is {pinned}, pins are {store.pinned()}",
        )
        if thrown is not None:

            def discard() -> None:
                with contextlib.suppress(NotFound):
                    store.discard_draft(thrown)

            self.twice(discard)
            demand(thrown not in [draft.draft_id for draft in store.drafts()], "a discarded draft is listed")


def check(places: Places, outcome: Outcome) -> None:
    store = Store.open(places.root)
    demand(store.unrecovered == (), f"not recovered: {store.unrecovered}")
    trees = [crash_history.look(places, store.snapshot(version)) for version in [None, *store.pinned()]]
    for n, draft in enumerate(store.drafts()):
        upper = store.open_upper(f"check-{n}", origin="workspace_session:check", draft_id=draft.draft_id)
        with shown(upper, os.path.join(places.mounts, "f")) as mount:
            trees.append(read_tree(mount))
        upper.discard()
    for text in outcome.texts:
        demand(any(crash_history._holds(tree, text) for tree in trees), f"{text!r} is gone")  # pyright: ignore[reportPrivateUsage]
    store.gc()
    crash_history._check_nothing_left(places.root, store)  # pyright: ignore[reportPrivateUsage]
    crash_history._check_usable(places, store)  # pyright: ignore[reportPrivateUsage]
    store.close()


def fail_everywhere(namespace: str, folder: str, width: int, stride: int = STRIDE) -> int:
    """Plays the history once as it is, then once for each stride-th call, refused; checks what is there
    afterwards. Returns how many calls there are.

    With a stride of 1 every call is refused with each of CODES, else with one of them in turn.
    """
    syscalls.mount("tmpfs", folder, "tmpfs", 0, "mode=755")
    broken: list[str] = []

    def run(first: int, code: int) -> int:
        place = os.path.join(folder, f"n{first}-{code}")
        places = crash_history.prepare(place, os.path.join(place, "mounts"), namespace)

        def child() -> tuple[Outcome, int]:
            disk = Disk(first, width, code)
            tapped(disk.tick)
            writes_tapped(disk.tick)
            return History(places, disk).play(), disk.seen

        try:
            outcome, calls = in_namespace.call("trusted", child)
            check(places, outcome)
            return calls
        finally:
            fsync.remove_tree(place)

    calls = run(UNTIL_GIVEN_UP, errno.EIO)
    faults = [
        (n, code)
        for n in range(0, calls, stride)
        for code in (CODES if stride == 1 else (CODES[n // stride % 2],))
    ]
    for first, code in faults:
        try:
            run(first, code)
        except Exception as error:
            broken.append(
                f"call {first}, {errno.errorcode[code]}: {type(error).__name__}: {str(error)[-1500:]}"
            )
    assert not broken, f"{len(broken)} of {len(faults)} faults:\n" + "\n".join(broken[:4])
    return calls


@pytest.mark.timeout(7200 if SOAK else 120)
@pytest.mark.needs("overlay", "root")
@pytest.mark.parametrize("width", [1, UNTIL_GIVEN_UP], ids=["once", "until_given_up"])
def test_a_disk_that_refuses_any_call_loses_nothing_and_a_retry_succeeds_as_root(
    short_dir: str, width: int
) -> None:
    assert in_namespace.call("trusted", fail_everywhere, "trusted", short_dir, width) > 300


@pytest.mark.timeout(7200 if SOAK else 120)
@pytest.mark.needs("userns")
def test_a_disk_that_refuses_any_call_loses_nothing_and_a_retry_succeeds_in_a_user_namespace(
    short_dir: str,
) -> None:
    os.chmod(short_dir, 0o777)
    assert in_namespace.call("user", fail_everywhere, "user", short_dir, 3) > 300
