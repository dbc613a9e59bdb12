"""`eos-mcp`, `sandbox-mcp` and `python -m eos_mcp`: the MCP server. Imports nothing that delays the first
answer.
"""

from __future__ import annotations

import sys

from eos_mcp import __version__
from eos_mcp.mcp.server_options import EOS, SANDBOX, HelpShown, ServerOptions, ServerUsageError, parse, usage


def main(argv: list[str] | None = None) -> None:
    """The server with our tools. Never returns."""
    _run(EOS, sys.argv[1:] if argv is None else argv)


def sandbox_mcp(argv: list[str] | None = None) -> None:
    """The server with exactly the reference's tools, under its name. Never returns."""
    _run(SANDBOX, sys.argv[1:] if argv is None else argv)


def _run(program: str, words: list[str]) -> None:
    try:
        options = parse(program, words, version=__version__)
    except HelpShown as shown:
        sys.stdout.write(str(shown))
        raise SystemExit(0) from None
    except ServerUsageError as error:
        sys.stderr.write(f"{program}: {error}\n\n{usage(program)}")
        raise SystemExit(2) from None
    if program == SANDBOX or options.gateway_endpoint is not None or options.gateway_token is not None:
        _check_gateway(options)
    if options.transport == "stdio":
        _stdio(options)
    from eos_mcp.mcp.http import run

    raise SystemExit(run(options))


def _check_gateway(options: ServerOptions) -> None:
    """Exit with status 2 when the gateway options are invalid; eos-mcp reports a bad environment in its tool
    results.
    """
    from eos_agent.wire.protocol import OperationError
    from eos_mcp.gateway_client import sync

    try:
        sync.discover(endpoint=options.gateway_endpoint, token=options.gateway_token)
    except OperationError as error:
        sys.stderr.write(f"{options.program}: {error.message}\n")
        raise SystemExit(2) from None


def _stdio(options: ServerOptions) -> None:
    from eos_mcp.mcp import stdio

    pipes = stdio.claim()
    from eos_mcp.mcp.server_identity import identity

    def serve(reader: stdio.StdinReader, writer: stdio.Writer, ending: stdio.Ending) -> None:
        from eos_mcp.mcp import app, event_loop

        event_loop.serve(app.build(options), reader, writer, ending)

    stdio.run(pipes, identity(options), serve)


if __name__ == "__main__":
    main()
