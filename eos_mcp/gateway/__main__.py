"""`python -m eos_mcp.gateway serve …`, and the file that a client starts by its path with `python -P`."""

from __future__ import annotations

import os
import sys


def _find_own_packages() -> None:
    """Import the packages beside this file when it was started by its path: they belong to the client that
    started it. In sys.path they come after the standard library and before any other installed copy.
    """
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    others = [index for index, entry in enumerate(sys.path) if os.path.isdir(os.path.join(entry, "eos_mcp"))]
    place = others[0] if others else len(sys.path)
    sys.path[place:place] = [root, os.path.join(root, "agent_image")]


if not __package__:
    _find_own_packages()

from eos_mcp.gateway.serve import main  # noqa: E402

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
