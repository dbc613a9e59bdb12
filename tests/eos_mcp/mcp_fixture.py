"""A server on our own runner and transports with tools that misbehave: `python mcp_fixture.py stdio|http|sse
GATE [PORT-OPTIONS]`.

GATE is a file; the SDK is imported when it exists ("-": at once). The tools run in this process; there is no
sandbox behind them.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from typing import Any

if __name__ == "__main__":
    sys.path[0] = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    from eos_mcp.mcp import stdio

    PIPES = stdio.claim() if sys.argv[1] == "stdio" else None

from eos_agent.wire.operation import Argument, Operation
from eos_agent.wire.protocol import INVALID_REQUEST, OperationError
from eos_mcp.gateway_client.aio import GatewayRequest, ToolGateway
from eos_mcp.mcp.server_identity import identity
from eos_mcp.mcp.server_options import ServerOptions

SECONDS = Argument("seconds", "float", help="How long.", default=600.0)


def operation(name: str, *arguments: Argument, **more: Any) -> Operation:
    return Operation(
        name, "runtime", "command", f"Title of {name}", f"Does {name}.", arguments, scope="system", **more
    )


OPERATIONS = (
    operation("fast", Argument("text", "string", help="Comes back.", default="")),
    operation("slow", SECONDS),
    operation("block", SECONDS),
    operation("stick", SECONDS),
    operation("big", Argument("size", "integer", help="Characters.", required=True)),
    operation("noisy"),
    operation("cat"),
    operation("refuse"),
    operation("crash"),
)


class FixtureGateway(ToolGateway):
    """Gateway that does what the tool's name says; reports each begin and cancellation on standard error."""

    def __init__(self) -> None:
        self.limiter: Any = None

    async def perform(self, request: GatewayRequest) -> dict[str, Any]:
        import anyio
        from anyio import to_thread

        op, args = request.op, request.args
        if op == "fast":
            return {"text": args["text"]}
        if op == "slow":
            say(f"BEGUN {args['seconds']}")
            try:
                await anyio.sleep(args["seconds"])
            except BaseException:
                say(f"CANCELLED {args['seconds']}")
                raise
            say(f"DONE {args['seconds']}")
            return {"text": "slow"}
        if op == "block":
            self.limiter = self.limiter or anyio.CapacityLimiter(64)
            await to_thread.run_sync(sleep, args["seconds"], limiter=self.limiter, abandon_on_cancel=True)
            return {"text": "blocked"}
        if op == "stick":
            sleep(args["seconds"])
            return {"text": "stuck"}
        if op == "big":
            return {"text": "é" * args["size"]}
        if op == "noisy":
            print("PRINTED", flush=True)
            os.write(1, b"RAW\n")
            subprocess.run(["sh", "-c", "echo CHILD"], check=True)
            return {"text": "noisy"}
        if op == "cat":
            return {"text": subprocess.run(["cat"], stdout=subprocess.PIPE, check=True).stdout.decode()}
        if op == "refuse":
            raise OperationError(INVALID_REQUEST, "refused", {"why": "on purpose"}, reason="refused")
        raise ValueError("a secret of ours")


def sleep(seconds: float) -> None:
    say("BEGUN")
    time.sleep(seconds)


def say(text: str) -> None:
    os.write(2, text.encode() + b"\n")


def main() -> None:
    transport, gate = sys.argv[1:3]
    options = ServerOptions(
        transport=transport,
        port=0,
        token_file=os.environ.get("FIXTURE_TOKEN_FILE"),
        host=os.environ.get("FIXTURE_HOST", "127.0.0.1"),
    )
    if PIPES is None:
        from eos_mcp.mcp import app, http, http_unproven

        http_unproven.HEAD_S = 3.0  # tests wait until it is over
        sys.exit(http.run(options, app.build(options, gateway=FixtureGateway(), operations=OPERATIONS)))

    def serve(reader: stdio.StdinReader, writer: stdio.Writer, ending: stdio.Ending) -> None:
        while gate != "-" and not os.path.exists(gate):
            threading.Event().wait(0.01)
        print("A MODULE PRINTS WHILE IT IS IMPORTED", flush=True)
        from eos_mcp.mcp import app, event_loop

        event_loop.serve(
            app.build(options, gateway=FixtureGateway(), operations=OPERATIONS), reader, writer, ending
        )

    stdio.run(PIPES, identity(options), serve)


if __name__ == "__main__":
    main()
