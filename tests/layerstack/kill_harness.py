"""Kill a process at every durable act of a history, and check the remains."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

from layerstack.kernel import syscalls
from layerstack.store import Store
from tests import in_namespace
from tests.layerstack import crash_history
from tests.layerstack.crash_history import Expected, Journal, Places
from tests.trees import Tree

CALLS = (
    "rename",
    "link",
    "unlink",
    "mkdir",
    "rmdir",
    "fsync",
    "symlink",
    "mknod",
    "setxattr",
    "removexattr",
    "chmod",
)


SOAK = os.environ.get("EOS_SOAK", "") not in ("", "0")


STRIDE = 1 if SOAK else 48
"""Stride over unnamed acts; see `chosen`."""


Which = Literal["first", "last", "both"]


class Recorded(NamedTuple):
    """The acts of an undisturbed run in their order, named steps as the store calls them, system calls as
    `call:...`; and its versions.
    """

    acts: list[str]
    expected: Expected


def tapped(tick: Callable[[str], None]) -> None:
    """From here on `tick("call:rename")` runs before each system call that changes something on disk. In a
    child only.
    """

    def tap(module: Any, name: str, label: str) -> None:
        real = getattr(module, name)

        def wrapped(*args: Any, **kwargs: Any) -> Any:
            tick(f"call:{label}")
            return real(*args, **kwargs)

        setattr(module, name, wrapped)

    for name in CALLS:
        tap(os, name, name)
    tap(syscalls, "renameat2", "rename")
    tap(syscalls, "syncfs", "fsync")


def _record(places: Places, journal: Journal) -> Recorded:
    acts: list[str] = []
    trees: dict[int, Tree] = {}

    def recording() -> Recorded:
        own = os.getpid()
        tapped(lambda name: acts.append(name) if os.getpid() == own else None)
        crash_history.play(places, journal, acts.append, trees=trees)
        return Recorded(acts, Expected(trees))

    return in_namespace.call("trusted", recording)


def _play_until(places: Places, journal: Journal, number: int, broken_by: Callable[[], None]) -> None:
    """Play the history and die by SIGKILL right before act `number`, counted from 0; a number beyond the last
    has no effect.
    """
    broken_by()
    seen = 0

    def tick(name: str) -> None:
        nonlocal seen
        if seen == number:
            os.kill(os.getpid(), signal.SIGKILL)
        seen += 1

    tapped(tick)
    crash_history.play(places, journal, tick)


def chosen(acts: list[str], stride: int, which: Which = "both") -> list[int]:
    """Return the acts to cut at: with a stride of 1 all of them, else the first or the last of each named
    step, or both, and every stride-th system call.
    """
    last = {name: number for number, name in enumerate(acts)}
    first = {name: number for number, name in reversed(list(enumerate(acts)))}
    ends = {"first": (first,), "last": (last,), "both": (first, last)}[which]

    def taken(number: int, name: str) -> bool:
        return (
            number % stride == 0
            if name.startswith("call:")
            else stride == 1 or any(end[name] == number for end in ends)
        )

    return [number for number, name in enumerate(acts) if taken(number, name)]


def intact() -> None:
    """Leave the library unchanged."""


def kill_everywhere(
    namespace: str,
    folder: str,
    stride: int,
    *,
    which: Which = "both",
    every: int = 1,
    broken_by: Callable[[], None] = intact,
    all_of_them: bool = True,
) -> list[str]:
    """Runs the history once for each chosen act, killed there, and once to its end; checks what is left.
    Returns the names of the acts.

    Runs in a child that may mount; the store lies in memory, since a killed process loses nothing of the page
    cache anyway.
    Args:
        which: of the acts of one name, when not all are cut at.
        every: only every so many of the chosen acts.
        broken_by: breaks the library in the processes that are killed; those that record and check have it
            whole.
        all_of_them: go on to the end, and tell all that are broken; else the first one ends it.
    """
    syscalls.mount("tmpfs", folder, "tmpfs", 0, "mode=755")

    def fresh(name: str) -> tuple[Places, Journal]:
        place = os.path.join(folder, name)
        return crash_history.prepare(place, os.path.join(place, "mounts"), namespace), Journal(
            os.path.join(place, "journal")
        )

    recorded = _record(*fresh("recorded"))
    names = [*recorded.acts, "the end"]
    broken: list[str] = []
    for number in [*chosen(recorded.acts, stride, which)[::every], len(recorded.acts)]:
        places, journal = fresh(f"n{number}")
        try:
            try:
                in_namespace.call("trusted", _play_until, places, journal, number, broken_by)
            except in_namespace.ChildDied as died:
                assert died.signal == signal.SIGKILL, died
            crash_history.check(places, journal.read(), recorded.expected)
        except Exception as error:
            broken.append(f"killed before act {number}, {names[number]}: {type(error).__name__}: {error}")
            if not all_of_them:
                break
    assert not broken, f"{len(broken)} of {len(recorded.acts)} acts:\n" + "\n".join(broken[:12])
    return recorded.acts


CUT_TWICE = (
    "commit.rename_metadata",
    "commit.rename_manifest",
    "draft.json.rename",
    "draft.rename",
    "upper.renew",
    "session.end",
)
"""Before these the process is killed whose leavings a second one opens, which is killed too."""


def _open_until(places: Places, number: int) -> None:
    """Opens a store and dies right before act `number` of that."""
    seen, own = 0, os.getpid()

    def tick(name: str) -> None:
        nonlocal seen
        if os.getpid() == own:
            if seen == number:
                os.kill(own, signal.SIGKILL)
            seen += 1

    tapped(tick)
    Store.open(places.root, step=tick).close()


def kill_the_open(folder: str, stride: int) -> int:
    """For the last of each act CUT_TWICE: kills the history there, then on copies of what is left an open at
    every stride-th act. How many.
    """
    syscalls.mount("tmpfs", folder, "tmpfs", 0, "mode=755")

    def fresh(name: str) -> tuple[Places, Journal]:
        place = os.path.join(folder, name)
        return crash_history.prepare(place, os.path.join(place, "mounts"), "trusted"), Journal(
            os.path.join(place, "journal")
        )

    recorded = _record(*fresh("recorded"))
    cuts = 0
    for name in CUT_TWICE:
        number = len(recorded.acts) - 1 - recorded.acts[::-1].index(name)
        places, journal = fresh(f"n{number}")
        with contextlib.suppress(in_namespace.ChildDied):
            in_namespace.call("trusted", _play_until, places, journal, number, intact)
        act, alive = 0, False
        while not alive:
            copy = os.path.join(folder, f"n{number}-{act}")
            subprocess.run(["cp", "-a", os.path.join(folder, f"n{number}"), copy], check=True)
            again = Places(os.path.join(copy, "store"), os.path.join(copy, "mounts"), places.xattr_namespace)
            try:
                in_namespace.call("trusted", _open_until, again, act)
                alive = True
            except in_namespace.ChildDied as died:
                assert died.signal == signal.SIGKILL, died
            try:
                crash_history.check(again, journal.read(), recorded.expected)
            except Exception as error:
                raise AssertionError(
                    f"killed before {name}, the open before its act {act}: {error}"
                ) from error
            act += stride
            cuts += 1
    return cuts
