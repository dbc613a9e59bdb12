"""`sandbox-catalog-export`: the catalog document on standard output, indented."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence

from eos_mcp import catalog
from eos_mcp.cli import output


def main(argv: Sequence[str] | None = None) -> int:
    words = sys.argv[1:] if argv is None else argv
    if words:
        output.write_error(b"usage: sandbox-catalog-export\n")
        return output.USAGE
    return output.page(json.dumps(catalog.document(), indent=2, ensure_ascii=False))


if __name__ == "__main__":
    sys.exit(main())
