"""`sandbox-gateway serve …`: the gateway in the foreground."""

from __future__ import annotations

import sys
from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    from eos_mcp.gateway import serve

    return serve.main(list(sys.argv[1:] if argv is None else argv))


if __name__ == "__main__":
    sys.exit(main())
