"""Undo inside a session, in each kind of sandbox: over the command line and over MCP."""

from __future__ import annotations

import os
import sys

import pytest

from tests.end_to_end.cli_user import Sandbox
from tests.end_to_end.places import DOCKER, ORDINARY, ROOT, in_places
from tests.eos_mcp.mcp_wire import Wire, call

pytestmark = [pytest.mark.needs("overlay")]


def over_mcp(sandbox: Sandbox, session: str) -> None:
    """Restore the newest checkpoint, and make another one, by tools; their texts name the ids."""
    env = {**os.environ, **sandbox.desk.person.environment(**sandbox.desk.env)}
    given = {"workspace_session_id": session}
    with Wire([sys.executable, "-m", "eos_mcp", "--sandbox-id", sandbox.id], env=env) as wire:
        wire.open()
        listed = wire.ask(call(1, "list_workspace_sessions", {}))["result"]["content"][0]["text"]
        assert "checkpoint-1 (it builds)" in listed and "checkpoint-2" in listed
        said = wire.ask(call(2, "restore_session", given))["result"]["content"][0]["text"]
        assert "checkpoint_id checkpoint-2 returns to it" in said, said
        made = wire.ask(call(3, "checkpoint_session", {**given, "label": "again"}))["result"]
        assert "checkpoint-3 (again)" in made["content"][0]["text"]
        wrong = wire.ask(call(4, "restore_session", {**given, "checkpoint_id": "nine"}))["result"]
        assert wrong["isError"] and "checkpoint-1, checkpoint-2, checkpoint-3" in wrong["content"][0]["text"]


@in_places(ROOT, ORDINARY, DOCKER)
def test_a_session_goes_back_and_forth_and_publishes_what_it_shows(sandbox: Sandbox) -> None:
    session = sandbox.session()
    about = ("--workspace-session-id", session)
    sandbox.shell("echo good > a.txt; mkdir n; echo x > n/one; ln n/one n/two; rm -r d; chmod 750 n", session)
    sandbox.shell("echo note > /tmp/note", session)
    made = sandbox.do("checkpoint_session", *about, "--label", "it builds")
    sandbox.shell("echo bad > a.txt; rm -r n; mkdir d; echo late > d/late", session)
    done = sandbox.do("restore_session", *about)
    assert (done["checkpoint_id"], done["label"]) == (made["checkpoint_id"], "it builds")
    seen = "cat /tmp/note a.txt; stat -c %a n; [ n/one -ef n/two ] && echo linked; [ -e d ] || echo gone"
    assert sandbox.shell(seen, session)["output"] == "note\ngood\n750\nlinked\ngone"
    back = sandbox.do("restore_session", *about, "--checkpoint-id", done["undo_checkpoint_id"])
    assert back["undo_checkpoint_id"] == made["checkpoint_id"] and sandbox.read("d/late", session) == "late"
    if sandbox.desk.person.uid is None:  # the server runs as the user of this process
        over_mcp(sandbox, session)
    else:
        sandbox.do("restore_session", *about)
    sandbox.do("publish_workspace_session", *about)
    assert sandbox.read("a.txt") == "good" and sandbox.read("n/two") == "x"
