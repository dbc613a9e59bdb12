"""`sandbox-observability-cli`."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from eos_mcp.cli import program


def main(argv: Sequence[str] | None = None) -> int:
    return program.main("observability", "sandbox-observability-cli", argv)


if __name__ == "__main__":
    sys.exit(main())
