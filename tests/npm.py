"""Packages of npm in a directory of the cache, with a node that is given. Standard library only."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence


def path_of(node: str) -> str:
    """Return PATH with the directory of `node` first."""
    return os.path.dirname(node) + os.pathsep + os.environ.get("PATH", "")


def install(node: str, target: str, packages: Sequence[str], *options: str) -> None:
    """Install packages, `name@version`, into a directory that exists; no script of theirs is run.

    Raises:
        subprocess.SubprocessError, OSError.
    """
    with open(os.path.join(target, "package.json"), "w") as file:
        json.dump({"name": "eos-tests", "private": True}, file)
    npm = os.path.join(os.path.dirname(node), "npm")
    words = ["install", "--no-audit", "--no-fund", "--ignore-scripts", "--prefer-offline", *options]
    subprocess.run(
        [npm, *words, *packages],
        cwd=target,
        env={**os.environ, "PATH": path_of(node)},
        stdin=subprocess.DEVNULL,
        stdout=sys.stderr,
        check=True,
        timeout=300,
    )
