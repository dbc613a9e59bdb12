"""`eos demo`: three scripted agents work at the same time in one sandbox, over MCP, on a real project."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

USAGE = """\
usage: eos demo [--backend auto|docker|local] [--image IMAGE] [--dest DIR] [--keep]

Three scripted agents work at the same time in one sandbox, over MCP: one fixes a bug and runs the tests, one adds a file, one edits the
same line as the first and is rejected without losing anything. Then the result is exported to a directory of this machine.

  --backend  auto (default): Docker when an engine answers, else the local provider; local always works on Linux
  --image    a local image that has /bin/sh; `host` or `rootfs:/abs/dir` for the local provider
  --dest     where the result goes (default: a new temporary directory)
  --keep     leave the sandbox and its gateway running and say how to reach them
"""


class DemoOptions:
    def __init__(self) -> None:
        self.backend, self.image, self.dest, self.keep = "auto", "", "", False


def parse(argv: list[str]) -> DemoOptions | None:
    """The options, or None for help. Raises ValueError that names what is wrong."""
    options, at = DemoOptions(), 0
    while at < len(argv):
        flag, _, attached = argv[at].partition("=")
        at += 1
        if flag in ("-h", "--help"):
            return None
        if flag == "--keep":
            options.keep = True
            continue
        if flag not in ("--backend", "--image", "--dest"):
            raise ValueError(f"unknown argument: {flag}")
        if not attached:
            if at == len(argv):
                raise ValueError(f"{flag} needs a value")
            attached = argv[at]
            at += 1
        setattr(options, flag[2:], attached)
    if options.backend not in ("auto", "docker", "local"):
        raise ValueError(f"--backend is auto, docker or local, not {options.backend}")
    return options


def main(argv: list[str]) -> int:
    """Run the demo; the exit status is 0 only when every step did what it says."""
    try:
        options = parse(argv)
    except ValueError as error:
        print(f"eos demo: {error}\n\n{USAGE}", file=sys.stderr, end="")
        return 2
    if options is None:
        print(USAGE, end="")
        return 0
    if not sys.platform.startswith("linux") and options.backend == "local":
        print("eos demo: the local provider needs Linux; use --backend docker", file=sys.stderr)
        return 1
    from eos_mcp.demo.run import run

    home = Path(tempfile.mkdtemp(prefix="eos-demo-"))
    try:
        return run(options, home)
    finally:
        if not options.keep:
            remove(home)


def remove(home: Path) -> None:
    """Delete the demo's own directory; what a sandbox left behind would be said, not hidden."""
    shutil.rmtree(home, ignore_errors=True)
    if home.exists():
        print(f"eos demo: could not remove {home}", file=sys.stderr)


def host_tests(directory: Path) -> tuple[int, str]:
    """Run the project's tests on this machine, in the exported tree; (exit status, last line)."""
    done = subprocess.run(
        ["/bin/sh", "tests/run.sh"],
        cwd=directory,
        capture_output=True,
        text=True,
        timeout=60,
        env={"PATH": os.environ.get("PATH", os.defpath)},
    )
    return done.returncode, done.stdout.rstrip("\n").split("\n")[-1]
