"""One bundle of this machine for all processes of a run, which no test changes."""

from __future__ import annotations

import fcntl
import os
import shutil
from pathlib import Path

from agent_image import build
from tests import leaks
from tests.unprivileged_install import link_or_copy


def made() -> build.Bundle:
    """Return the bundle; the first caller builds it, which takes 4 s of processor time. Both users of a test
    may read it, until `build.build` is given its directory, which that closes: see `own_cache`.
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


def root_cache() -> Path:
    """Return a cache directory ($XDG_CACHE_HOME) of this user with the bundle in it, one for all processes of
    the run.
    """
    bundle = made()
    cache = leaks.shared() / "cache"
    with open(leaks.shared() / "bundle.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        folder = cache / "eos" / "bundles"
        if not folder.exists():
            staged = leaks.shared() / "bundles-of-the-cache"
            own_cache(bundle, str(staged))
            for path in (cache, cache / "eos"):
                path.mkdir(mode=0o700, exist_ok=True)
            staged.rename(folder)
    return cache


def own_cache(bundle: build.Bundle, folder: str) -> str:
    """Make `folder` a closed cache of bundles with this one in it, for a caller that builds there; its files
    are hard links.
    """
    shutil.copytree(os.path.dirname(bundle.path), folder, symlinks=True, copy_function=link_or_copy)
    os.chmod(folder, 0o700)
    return folder
