"""Users that run programs in end-to-end tests: root from the environment of the test run, or an ordinary user
from a readable installation.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

from tests.in_namespace import ORDINARY_UID
from tests.unprivileged_install import Installed

KEPT = ("PATH", "LANG", "LC_ALL", "DOCKER_HOST")


class Person(NamedTuple):
    """A uid with its own home, and the environment of its programs. `cache`: in the home, unless it is
    shared.
    """

    name: str
    prefix: Path
    home: Path
    uid: int | None
    cache: Path | None = None

    @property
    def python(self) -> str:
        return str(self.prefix / "bin" / "python")

    def environment(self, **more: str) -> dict[str, str]:
        """HOME, caches and state below `home`, the programs of `prefix` first on PATH."""
        kept = {name: os.environ[name] for name in KEPT if name in os.environ}
        path = f"{self.prefix / 'bin'}:{kept.get('PATH', os.defpath)}"
        own = {
            "HOME": str(self.home),
            "EOS_STATE_DIR": str(self.home / "state"),
            "XDG_CACHE_HOME": str(self.cache or self.home / "cache"),
        }
        return {**kept, "PATH": path, **own, **more}

    def popen(
        self, argv: list[str], *, cwd: Path | None = None, env: dict[str, str] | None = None, **more: Any
    ) -> subprocess.Popen[str]:
        who: dict[str, Any] = (
            {} if self.uid is None else {"user": self.uid, "group": self.uid, "extra_groups": []}
        )
        return subprocess.Popen(
            argv,
            cwd=cwd or self.home,
            env=env or self.environment(),
            stdin=subprocess.DEVNULL,
            text=True,
            **who,
            **more,
        )

    def run(self, argv: list[str], *, timeout_s: float = 120, **more: Any) -> tuple[int, str, str]:
        """(exit status, standard output, standard error) of a program that ends within the time."""
        with self.popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **more) as process:
            try:
                out, err = process.communicate(timeout=timeout_s)
            except subprocess.TimeoutExpired:
                process.kill()
                raise
        return process.returncode, out, err


def root(home: Path) -> Person:
    """Return the user that runs the tests."""
    return Person("whoever runs the tests", Path(sys.prefix), home, None)


def ordinary(installed: Installed, home: Path) -> Person:
    """Return the ordinary user, and make the home its own."""
    os.chown(home, ORDINARY_UID, ORDINARY_UID)
    return Person("an ordinary user", installed.prefix, home, ORDINARY_UID)
