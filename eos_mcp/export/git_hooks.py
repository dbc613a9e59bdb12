"""The directory of git hooks in the repository that is or contains a destination: git runs the files that an
export writes there.

Git is asked, since the setting may be in the configuration of a linked worktree's or a submodule's
repository, in an included file, or in the user's configuration. Without git, or when git fails, only
`.git/config` is read.
"""

from __future__ import annotations

import os
import shutil
import subprocess

from eos_mcp.export.dirfd import DirTree
from eos_mcp.export.hygiene_git import hooks_path

_CONFIG_MAX = 1 << 18
ANSWER_S = 10.0


def within(dest: str, target: DirTree | None) -> bytes:
    """Return the directory of hooks as a path in the destination (resolved, absolute); empty without one
    below it.

    Cost: one run of git when the destination is a repository or inside one.
    """
    top = None if target is None else _top(dest)
    if top is None or target is None:
        return b""
    found = _asked(dest) or (_read(target) if top == dest else b"")
    if not found:
        return b""
    here = os.fsencode(dest)
    path = os.path.normpath(os.path.join(os.fsencode(top), os.path.expanduser(found)))
    inside = path.removeprefix(here + b"/") if path.startswith(here + b"/") else b""
    above, _, name = inside.rpartition(b"/")
    return above if name == b"_" and above else inside  # husky: the hooks in `_` run the files beside `_`


def _top(dest: str) -> str | None:
    """Return the top of the working tree that contains `dest`, or `dest` if it is a bare repository."""
    at = dest
    while not os.path.lexists(os.path.join(at, ".git")):
        if at == os.path.dirname(at):
            return (
                dest
                if all(os.path.exists(os.path.join(dest, name)) for name in ("HEAD", "objects", "refs"))
                else None
            )
        at = os.path.dirname(at)
    return at


def _asked(dest: str) -> bytes:
    """Ask git for `core.hooksPath`; empty where it is not set or git fails."""
    git = shutil.which("git")
    if git is None:
        return b""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    argv = [git, "-C", dest, "config", "--type=path", "--get", "core.hooksPath"]
    try:
        done = subprocess.run(
            argv,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            env=environment,
            timeout=ANSWER_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return b""
    return done.stdout.rstrip(b"\n") if done.returncode == 0 else b""


def _read(target: DirTree) -> bytes:
    fd = target.open_file(b".git/config")
    if fd is None:
        return b""
    with open(fd, "rb") as file:
        return hooks_path(file.read(_CONFIG_MAX))
