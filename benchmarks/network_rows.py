"""Isolated sessions and the way into them: what an own network costs at creation, and what /forward adds to a
request and to a long answer.
"""

from __future__ import annotations

import http.client
import os
from collections.abc import Callable, Iterator

from benchmarks.harness import Row, in_turn
from benchmarks.place import Place

BODY_BYTES = 64 << 20
SERVER = f"""
import http.server, socket

class Answer(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        size = {BODY_BYTES} if self.path == "/long" else 2
        self.send_response(200)
        self.send_header("Content-Length", str(size))
        self.end_headers()
        for _ in range(max(size >> 20, 1)):
            self.wfile.write(b"x" * min(size, 1 << 20))

    def log_message(self, *_):
        pass

server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answer)
print("port", server.server_address[1], flush=True)
server.serve_forever()
"""


def isolated(place: Place) -> Iterator[Row]:
    """A session with a network of its own, beside one that shares the sandbox's; creation and end
    together.
    """
    with place.sandbox("host") as sandbox:

        def made(profile: str) -> Callable[[], None]:
            def create() -> None:
                found = place.ask("create_workspace_session", {"network_profile": profile}, sandbox)
                place.ask(
                    "destroy_workspace_session",
                    {"workspace_session_id": found["workspace_session_id"]},
                    sandbox,
                )

            return create

        ours, beside = in_turn([("isolated", made("isolated")), ("shared", made("shared"))], runs=60)
        takes = (
            "a namespace and a veth pair, under one lock of the kernel (rtnl); no runner that waits for it"
        )
        yield Row("create and destroy an isolated session", ours, beside, "", takes)


def forward(place: Place) -> Iterator[Row]:
    """A request to a server in an isolated session, beside the same server in a shared session, asked
    directly. A connection each.
    """
    with place.sandbox("host") as sandbox:
        token_file = os.path.join(os.environ["EOS_STATE_DIR"], "sandboxes", sandbox, "token")
        with open(token_file, encoding="ascii") as file:
            token = file.readline().strip()
        agent = int(place.ask("inspect_sandbox", {"sandbox_id": sandbox})["daemon_http"]["port"])
        inside, behind = serve(place, sandbox, "isolated")
        _, direct = serve(place, sandbox, "shared")

        def get(port: int, path: str, size: int) -> Callable[[], None]:
            def ask() -> None:
                connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
                connection.request("GET", path, headers={"X-Eos-Token": token})
                answer, got = connection.getresponse(), 0
                while piece := answer.read(1 << 18):
                    got += len(piece)
                connection.close()
                if (answer.status, got) != (200, size):
                    raise AssertionError(f"{answer.status}, {got} bytes of {size}")

            return ask

        at = f"/forward/isolated={inside}/{behind}"
        sides = [("/forward", get(agent, f"{at}/", 2)), ("direct", get(direct, "/", 2))]
        ours, beside = in_turn(sides, runs=200)
        yield Row(
            "GET of 2 bytes from a server in a session",
            ours,
            beside,
            "",
            "a second connection, two heads parsed, one frame to the runner",
        )
        sides = [
            ("/forward", get(agent, f"{at}/long", BODY_BYTES)),
            ("direct", get(direct, "/long", BODY_BYTES)),
        ]
        ours, beside = in_turn(sides, runs=15)
        yield Row(
            "GET of 64 MiB from a server in a session",
            ours,
            beside,
            "",
            "each piece is read and written once more, on the agent's loop",
        )


def serve(place: Place, sandbox: str, profile: str) -> tuple[str, int]:
    """A session with a server in it, and the port that it took."""
    session = str(
        place.ask("create_workspace_session", {"network_profile": profile}, sandbox)["workspace_session_id"]
    )
    place.ask(
        "file_write", {"path": "server.py", "content": SERVER, "workspace_session_id": session}, sandbox
    )
    args = {
        "cmd": "exec python3 server.py",
        "tty": False,
        "workspace_session_id": session,
        "yield_time_ms": 0,
    }
    command = place.ask("exec_command", args, sandbox)["command_session_id"]
    output = ""
    while not output.startswith("port "):
        output = str(place.ask("read_command_lines", {"command_session_id": command}, sandbox)["output"])
        if "Traceback" in output:
            raise RuntimeError(output)
    return session, int(output.split()[1])
