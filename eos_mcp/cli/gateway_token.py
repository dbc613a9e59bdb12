"""`sandbox-gateway-token path|read|ensure|write`: the token file, for scripts."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from eos_agent.wire.protocol import OperationError
from eos_mcp.cli import output
from eos_mcp.config import paths, token_file

USAGE = """usage: sandbox-gateway-token path | read | ensure | write
  path    print the path of the token file
  read    check it and print the token
  ensure  create one when there is none, then print the token
  write   store one line from standard input
"""


def main(argv: Sequence[str] | None = None) -> int:
    words = sys.argv[1:] if argv is None else list(argv)
    if words in (["--help"], ["-h"]):
        return output.page(USAGE)
    if len(words) != 1 or words[0] not in ("path", "read", "ensure", "write"):
        output.write_error(USAGE.encode())
        return output.USAGE
    try:
        return do(words[0])
    except OperationError as error:
        output.write_error(f"sandbox-gateway-token: {error.message}\n".encode("utf-8", "replace"))
        return output.FAILED


def do(verb: str) -> int:
    if verb == "path":
        return output.page(paths.token_file())
    if verb == "ensure":
        return output.page(token_file.ensure())
    if verb == "write":
        token_file.write(sys.stdin.buffer.read(1 << 16).decode("utf-8", "surrogateescape"))
        return output.OK
    token = token_file.read()
    if token is None:
        output.write_error(
            (
                f"sandbox-gateway-token: there is no {paths.token_file()}; run: sandbox-gateway-token "
                f"ensure\n"
            ).encode()
        )
        return output.FAILED
    return output.page(token)


if __name__ == "__main__":
    sys.exit(main())
