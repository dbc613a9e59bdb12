"""Publications of a commit beside those of the same file without git, in one repository of few files and of
many: on a head that did not move, and on one to which another session has committed.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from benchmarks.harness import Row, Series, check, timed, token
from benchmarks.place import Place
from benchmarks.store_rows import Stack
from layerstack.kernel import syscalls
from layerstack.session.upper import Upper

FILES = (2_000, 50_000)
RUNS, WARM_UP = 15, 2
SETTINGS = ("gc.auto=0", "maintenance.auto=false", "core.checkStat=minimal", "core.trustctime=false")
ENVIRONMENT = {
    "PATH": os.environ.get("PATH", os.defpath),
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_GLOBAL": "/dev/null",
    "GIT_AUTHOR_NAME": "A",
    "GIT_AUTHOR_EMAIL": "a@example.org",
    "GIT_COMMITTER_NAME": "A",
    "GIT_COMMITTER_EMAIL": "a@example.org",
}


def git(folder: str, *words: str) -> str:
    settings = [word for setting in SETTINGS for word in ("-c", setting)]
    done = subprocess.run(
        ["git", "-C", folder, *settings, *words],
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
        env=ENVIRONMENT,
    )
    return done.stdout


class Sessions:
    """Sessions of one store, mounted while something is written in them."""

    def __init__(self, folder: Path, files: int) -> None:
        self._at = str(folder / "view")
        Path(self._at).mkdir()
        (folder / "stack").mkdir()
        self.stack, self._number = Stack(folder / "stack", files), 0

    def prepared(self, write: Callable[[str], None]) -> Upper:
        """Open a session, write in its mount, unmount it."""
        self._number += 1
        name = f"g{self._number}"
        upper = self.stack.store.open_upper(name, origin=f"workspace_session:{name}", agent=name)
        fd = upper.mount()
        syscalls.move_mount(fd, self._at)
        os.close(fd)
        try:
            write(self._at)
        finally:
            syscalls.umount(self._at)
        return upper

    def shown(self, read: Callable[[str], str]) -> str:
        """Read something in a session of the head."""
        found: list[str] = []
        self.prepared(lambda view: found.append(read(view))).discard()
        return found[0]


class Side(NamedTuple):
    """Publications with git or without: how a file is written, and the newest text read back."""

    sessions: Sessions
    write: Callable[[str, str], Callable[[str], None]]
    read: Callable[[str], Callable[[str], str]]

    def publish(self, n: int, moved: bool) -> float:
        """Publish a new text of one file, on a head to which another session published if `moved`."""
        mine, other, text = f"d0000/f{n % 50:06d}.txt", f"d0001/f{100 + n % 50:06d}.txt", token()
        upper = self.sessions.prepared(self.write(mine, text))
        if moved:
            _publish(self.sessions.prepared(self.write(other, token())))
        took = timed(lambda: _publish(upper))
        check(self.sessions.shown(self.read(mine)), text)
        return took


def commit(file: str, text: str) -> Callable[[str], None]:
    def write(view: str) -> None:
        Path(view, file).write_text(text)
        git(view, "add", file)
        git(view, "commit", "-q", "-m", text)

    return write


def edit(file: str, text: str) -> Callable[[str], None]:
    return lambda view: check(str(Path(view, file).write_text(text)), str(len(text)))


def publish(place: Place) -> Iterator[Row]:
    """One commit of one file, beside a publication of the same file in a store without a repository; the
    subject of the commit is read back from the head by git.
    """
    if os.geteuid() != 0:
        print("git: mounts need root; left out", file=sys.stderr)
        return
    for files in FILES:
        with contextlib.ExitStack() as undo:
            sides: list[Side] = []
            for number, (write, read) in enumerate(((commit, _subject), (edit, _text))):
                sessions = Sessions(Path(tempfile.mkdtemp(prefix=f"git{number}", dir=place.home)), files)
                undo.callback(sessions.stack.close)
                sides.append(Side(sessions, write, read))
            _publish(sides[0].sessions.prepared(_first))
            for moved in (False, True):
                runs = [[side.publish(n, moved) for side in sides] for n in range(WARM_UP + RUNS)][WARM_UP:]
                ours, beside = (tuple(run[n] for run in runs) for n in (0, 1))
                yield Row(
                    f"publish a commit, {files:,} files, "
                    + ("head with another's commit" if moved else "head unmoved"),
                    Series("eos", ours),
                    Series("the same without git", beside),
                    "<= 3 times, <= 60 ms",
                    "reading and writing the index" if moved else "",
                )


def _first(view: str) -> None:
    git(view, "init", "-q", "-b", "main")
    git(view, "add", ".")
    git(view, "commit", "-q", "-m", "first")
    git(view, "repack", "-adq")


def _publish(upper: Upper) -> None:
    upper.publish(owner="benchmark", request_id="r")


def _subject(_: str) -> Callable[[str], str]:
    return lambda view: git(view, "log", "-1", "--format=%s")


def _text(file: str) -> Callable[[str], str]:
    return lambda view: Path(view, file).read_text()
