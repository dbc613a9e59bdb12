"""One bundle of this machine for all processes of a run, which no test changes."""

from __future__ import annotations

import fcntl
import os

from agent_image import build
from tests import leaks


def made() -> build.Bundle:
    """Return the bundle; the first caller builds it, which takes 4 s of processor time. Both users of a test
    may read it.
    """
    folder = leaks.shared() / "bundles"
    with open(leaks.shared() / "bundle.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        name = leaks.shared() / "bundle"
        if not name.exists():
            built = build.build(str(folder))
            os.chmod(folder, 0o755)  # a user's own is closed
            name.symlink_to(built.path)
        path = os.readlink(name)
    return build.Bundle(path, os.path.basename(path))
