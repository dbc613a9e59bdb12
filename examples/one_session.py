"""Run one workspace session from start to publish: its writes are private until then.

    python examples/one_session.py [IMAGE]

Uses the gateway of this user (started on demand), or the one of EOS_STATE_DIR. IMAGE is `host` (no Docker)
unless given.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

from eos_mcp.gateway_client import sync


def ask(op: str, args: dict[str, Any], sandbox_id: str | None = None) -> dict[str, Any]:
    """One request; an error envelope ends the program with its message."""
    reply = sync.call(sync.discover(), op, args, sandbox_id=sandbox_id)
    if "error" in reply:
        raise SystemExit(f"{op}: {reply['error']['message']}")
    return reply


def main(image: str = "host") -> None:
    with tempfile.TemporaryDirectory(prefix="eos-example-") as workspace:
        Path(workspace, "greeting.txt").write_text("hello\n")
        sandbox = ask("create_sandbox", {"image": image, "workspace_root": workspace})["id"]
        try:
            session = ask("create_workspace_session", {"agent": "example"}, sandbox)["workspace_session_id"]
            cmd = "echo world >> greeting.txt; cat greeting.txt"
            ran = ask(
                "exec_command", {"workspace_session_id": session, "cmd": cmd, "yield_time_ms": 30000}, sandbox
            )
            print("the session sees:", ran["output"].split("\n"))
            print(
                "the head still has:",
                ask("file_read", {"path": "greeting.txt"}, sandbox)["content"].split("\n"),
            )
            done = ask("publish_workspace_session", {"workspace_session_id": session}, sandbox)
            print("published as version", done["publish"]["revision"]["manifest_version"])
            print(
                "now the head has:",
                ask("file_read", {"path": "greeting.txt"}, sandbox)["content"].split("\n"),
            )
            print(
                "the directory on this machine is untouched:",
                Path(workspace, "greeting.txt").read_text().split(),
            )
        finally:
            ask("destroy_sandbox", {"sandbox_id": sandbox})


if __name__ == "__main__":
    main(*sys.argv[1:2])
