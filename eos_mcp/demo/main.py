"""`eos demo`: arguments, the demo in a directory of its own, and the removal of that directory."""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path

from eos_mcp.demo.options import USAGE, parse


def main(argv: list[str]) -> int:
    """Run the demo; the exit status is 0 only when every step succeeded."""
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
    """Delete the demo's directory, and report what cannot be deleted."""
    shutil.rmtree(home, ignore_errors=True)
    if home.exists():
        print(f"eos demo: could not remove {home}", file=sys.stderr)
