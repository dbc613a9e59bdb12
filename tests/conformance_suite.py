"""Find the official conformance suite of MCP, and run scenarios of it; `python tests/conformance_suite.py`
installs it into the cache, outside every checkout, with the node of `tests/inspector.py`.
"""

from __future__ import annotations

import fcntl
import functools
import json
import os
import subprocess
import sys

if __name__ == "__main__":  # run as a file: the checkout is what `tests` is found in
    sys.path[:0] = [os.path.dirname(os.path.dirname(os.path.abspath(__file__)))]

from tests import images, inspector, npm

PACKAGE, VERSION = "@modelcontextprotocol/conformance", "0.2.0-alpha.12"
INTEGRITY = "sha512-eXtZFgmtZiU5SsvXty+RGXGnyIqEVm3GLU/HZmg1wMjtKOocPZZgD9HQKd30oJhio5UB0wFJmsc6r8u48Q+EYA=="
"""npm's digest of the package."""


class SuiteMissing(Exception):
    """Error for a missing suite; the text says how to install it."""


def folder() -> str:
    return os.path.join(images.cache_dir(), f"conformance-{VERSION}")


@functools.cache
def command() -> tuple[str, str]:
    """Return (node, script), which run the suite."""
    package = os.path.join(folder(), "node_modules", *PACKAGE.split("/"))
    try:
        with open(os.path.join(folder(), "package-lock.json")) as file:
            locked = json.load(file)["packages"][f"node_modules/{PACKAGE}"]
        with open(os.path.join(package, "package.json")) as file:
            about = json.load(file)
    except (OSError, KeyError, ValueError):
        raise SuiteMissing(f"the suite is not in {folder()}: python tests/conformance_suite.py") from None
    if (locked.get("version"), locked.get("integrity")) != (VERSION, INTEGRITY):
        raise SuiteMissing(f"{folder()} has {locked.get('version')} {locked.get('integrity')}")
    (script,) = set(about["bin"].values()) if isinstance(about["bin"], dict) else {about["bin"]}
    return inspector.node(), os.path.normpath(os.path.join(package, script))


def install() -> None:
    """Install the suite with npm, unless it is installed."""
    target = folder()
    os.makedirs(target, exist_ok=True)
    with open(f"{target}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            command()
            return
        except SuiteMissing:
            pass
        npm.install(inspector.node(), target, [f"{PACKAGE}@{VERSION}"], "--omit=dev")


if __name__ == "__main__":
    try:
        install()
        print(" ".join(command()))
    except (SuiteMissing, inspector.InspectorMissing, subprocess.SubprocessError, OSError) as problem:
        sys.exit(f"conformance suite: {problem}")
