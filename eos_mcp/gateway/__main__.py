"""`python -m eos_mcp.gateway serve …`, and the file that a client starts by its path with `python -P`."""

from __future__ import annotations

import os
import sys

if not __package__:  # started by path: find the packages where this file lies, after whatever is installed
    _root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    sys.path += [folder for folder in (_root, os.path.join(_root, "agent_image")) if folder not in sys.path]

from eos_mcp.gateway.serve import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
