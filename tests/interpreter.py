"""Find a Python that a local session can start, for any place of the checkout."""

from __future__ import annotations

import os
import shutil
import sys

OWN_OF_SESSIONS = ("/tmp/", "/run/", "/dev/shm/")


def in_sessions() -> str:
    """Return the interpreter of the test run, or the one that its environment was made from when it is below
    a directory that sessions have for themselves.
    """
    system = shutil.which("python3", path="/usr/local/bin:/usr/bin:/bin")
    for program in (sys.executable, os.path.realpath(sys._base_executable), system):  # type: ignore[attr-defined]
        if program and not any(
            path.startswith(OWN_OF_SESSIONS) for path in (os.path.abspath(program), os.path.realpath(program))
        ):
            return str(program)
    raise AssertionError(f"{sys.executable} is not there in sessions, and no other Python is")
