"""Which Python a session of the machine itself can start, wherever the checkout lies."""

from __future__ import annotations

import os
import shutil
import sys

OWN_OF_SESSIONS = ("/tmp/", "/run/", "/dev/shm/")


def in_sessions() -> str:
    """The interpreter of the test run, or where it lies below a folder of which sessions have their own, the
    one behind its environment.
    """
    system = shutil.which("python3", path="/usr/local/bin:/usr/bin:/bin")
    for program in (sys.executable, os.path.realpath(sys._base_executable), system):  # type: ignore[attr-defined]
        if program and not any(
            path.startswith(OWN_OF_SESSIONS) for path in (os.path.abspath(program), os.path.realpath(program))
        ):
            return str(program)
    raise AssertionError(f"{sys.executable} is not there in sessions, and no other Python is")
