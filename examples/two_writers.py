"""Change one line by two commands at once: one is published, the other is rejected and kept as a draft.

python examples/two_writers.py [IMAGE]
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from one_session import ask


def main(image: str = "host") -> None:
    with tempfile.TemporaryDirectory(prefix="eos-example-") as workspace:
        Path(workspace, "colour.txt").write_text("grey\n")
        sandbox = ask("create_sandbox", {"image": image, "workspace_root": workspace})["id"]
        try:
            # Both have started, and so stand on the same version, before either ends.
            running = [
                ask(
                    "exec_command",
                    {"cmd": f"read go; echo {colour} > colour.txt", "agent": colour, "yield_time_ms": 0},
                    sandbox,
                )
                for colour in ("red", "blue")
            ]
            ended = [
                ask(
                    "write_command_stdin",
                    {"command_session_id": r["command_session_id"], "stdin": "\n", "yield_time_ms": 10000},
                    sandbox,
                )
                for r in running
            ]
            for colour, result in zip(("red", "blue"), ended, strict=True):
                print(colour, "was rejected" if result.get("publish_rejected") else "was published")
            print("the head has:", ask("file_read", {"path": "colour.txt"}, sandbox)["content"])
            lost = ended[1]
            conflict = lost["publish_rejection"]["conflicts"][0]
            print(
                f"the conflict: {conflict['path']}, {conflict['class']}, published first by "
                f"{conflict['theirs_layer']['agent']}"
            )
            reopened = ask(
                "create_workspace_session", {"draft_id": lost["draft_id"], "draft_base": "own"}, sandbox
            )
            kept = {"path": "colour.txt", "workspace_session_id": reopened["workspace_session_id"]}
            print("the draft still has:", ask("file_read", kept, sandbox)["content"])
        finally:
            ask("destroy_sandbox", {"sandbox_id": sandbox})


if __name__ == "__main__":
    main(*sys.argv[1:2])
