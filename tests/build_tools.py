"""Build tools that tests run on this machine: the real cargo, not a proxy, and the TypeScript compiler.
`python tests/build_tools.py` installs the latter into the cache, outside every checkout, with the node of
`tests/inspector.py`.
"""

from __future__ import annotations

import fcntl
import functools
import os
import shutil
import subprocess
import sys

if __name__ == "__main__":  # run as a file: the checkout is what `tests` is found in
    sys.path[:0] = [os.path.dirname(os.path.dirname(os.path.abspath(__file__)))]

from tests import images, inspector, npm

TYPESCRIPT = "5.9.3"


class ToolMissing(Exception):
    """Error for a missing tool; the text names the package or the command that installs it."""


def program(name: str, package: str) -> str:
    """Return the path of a program of a package of the distribution."""
    found = shutil.which(name)
    if found is None:
        raise ToolMissing(f"no {name} (package {package})")
    return found


@functools.cache
def cargo() -> str:
    """Return the directory of the real cargo and rustc: a proxy of rustup looks for its toolchain in a home
    that sessions do not have.
    """
    path = os.environ.get("PATH", "") + os.pathsep + os.path.join(os.path.expanduser("~"), ".cargo", "bin")
    found, rustc = shutil.which("cargo", path=path), shutil.which("rustc", path=path)
    if found is None or rustc is None:
        raise ToolMissing("no cargo (package cargo)")
    done = subprocess.run(
        [rustc, "--print", "sysroot"], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60
    )
    own = os.path.join(done.stdout.strip(), "bin")
    return own if os.access(os.path.join(own, "cargo"), os.X_OK) else os.path.dirname(found)


def _typescript_folder() -> str:
    return os.path.join(images.cache_dir(), f"typescript-{TYPESCRIPT}")


@functools.cache
def tsc() -> tuple[str, str]:
    """Return (node, script), which run the TypeScript compiler."""
    script = os.path.join(_typescript_folder(), "node_modules", "typescript", "bin", "tsc")
    if not os.path.exists(script):
        raise ToolMissing(f"TypeScript is not in {_typescript_folder()}: python tests/build_tools.py")
    return inspector.node(), script


def install() -> None:
    """Install TypeScript with npm, unless it is installed."""
    target = _typescript_folder()
    os.makedirs(target, exist_ok=True)
    with open(f"{target}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            tsc()
            return
        except ToolMissing:
            pass
        npm.install(inspector.node(), target, [f"typescript@{TYPESCRIPT}"])


if __name__ == "__main__":
    try:
        install()
        print(" ".join(tsc()))
    except (ToolMissing, inspector.InspectorMissing, subprocess.SubprocessError, OSError) as problem:
        sys.exit(f"TypeScript: {problem}")
