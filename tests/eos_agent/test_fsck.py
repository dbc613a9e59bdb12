"""The operation fsck of a real agent, and what it says of work that is set apart."""

from __future__ import annotations

import os
import re
from typing import Any

import pytest

from eos_agent.sessions import check_store
from eos_agent.wire.protocol import OperationError
from tests.layerstack.store_fixture import Stack, on_a_stack

from .agent_process import Agent, Failed, refused

pytestmark = pytest.mark.needs("overlay")


def pages(agent: Agent, **args: Any) -> list[dict[str, Any]]:
    found = [agent.call("fsck", **args)]
    while found[-1]["next"] is not None:
        found.append(agent.call("fsck", cursor=found[-1]["next"], **args))
    return found


def test_a_check_in_pages_looks_at_everything_once(agent: Agent) -> None:
    for n in range(3):
        agent.call("file_write", path=f"f{n}", content=f"{n}\n")
    whole = pages(agent)
    assert [page["damage"] for page in whole] == [[]] and whole[0]["checked"]["layers"] == 3
    parts = agent.call("fsck", cursor="pins")
    assert parts["checked"]["layers"] == 3 and parts["next"] is None
    assert agent.call("fsck", cursor="layer zzz")["checked"]["layers"] == 0
    assert refused(lambda: agent.call("fsck", cursor="nonsense")).reason == "invalid_cursor"
    layers = sorted(os.listdir(f"{agent.store}/layers"))
    with open(f"{agent.store}/layers/{layers[0]}/f0", "w") as file:
        file.write("torn")
    found = agent.call("fsck")["damage"]
    assert [damage["file"] for damage in found] == [f"layers/{layers[0]}/f0", f"layers/{layers[0]}"]
    assert agent.call("fsck", cursor=f"layer {layers[0]}")["damage"] == [], "it goes on after the cursor"
    assert agent.call("fsck", base=True)["damage"][0]["file"] == "base/B000001-base", (
        "the base of these tests has no true hash"
    )


def test_a_name_that_is_no_text_is_reported_with_its_bytes() -> None:
    from layerstack.fsck.check import Damage

    said = check_store.damage_json(Damage("layers/L/" + os.fsdecode(b"\xff"), "w", "h"))
    assert said == {"file": "layers/L/\ufffd", "file_b64": "bGF5ZXJzL0wv/w==", "what": "w", "found_by": "h"}


def test_work_whose_document_is_damaged_is_shown_and_keeps_nobody_else_out(agent: Agent) -> None:
    session, other = agent.session(), agent.session()
    agent.run("echo mine > README.md", session)
    agent.call("file_write", path="README.md", content="theirs\n")
    with pytest.raises(Failed):
        agent.call("publish_workspace_session", workspace_session_id=session)
    agent.run("echo other > other", other)
    agent.kill()
    agent.start()
    drafts = {draft["origin"]: draft["draft_id"] for draft in agent.call("list_drafts")["drafts"]}
    assert len(drafts) == 2
    kept, live = drafts[f"workspace_session:{session}"], agent.session()
    agent.run("echo third > third", live)
    agent.kill()
    for name in (f"drafts/{kept}/draft.json", f"sessions/{live}/session.json"):
        with open(f"{agent.store}/{name}", "r+b") as file:
            file.truncate(40)
    agent.start()
    rows = {draft["draft_id"]: draft for draft in agent.call("list_drafts")["drafts"]}
    assert len(rows) == 2 and rows[kept]["reason"] == "damaged" and "JSON" in rows[kept]["why"], rows
    assert refused(lambda: agent.session(draft_id=kept)).reason == "store_corrupt"
    lost = refused(lambda: agent.call("file_read", path="third", workspace_session_id=live))
    assert (
        lost.reason == "session_lost"
        and lost.details["draft_pending"] is True
        and "session.json" in lost.message
    )
    (warning,) = agent.call("snapshot")["warnings"]
    assert f"drafts/{kept}/draft.json" in warning and f"sessions/{live}/session.json" in warning
    assert {damage["file"] for damage in agent.call("fsck")["damage"]} == {
        f"drafts/{kept}/draft.json",
        f"sessions/{live}/session.json",
    }
    assert len([line for line in agent.log if re.search(r'"event": "set_apart"', line)]) == 2
    assert agent.call("file_read", path="README.md")["content"] == "theirs"
    assert agent.call("discard_draft", draft_id=kept)["discarded"] is True
    assert kept not in {draft["draft_id"] for draft in agent.call("list_drafts")["drafts"]}
    with open(f"{agent.store}/sessions/{live}/upper/third") as file:
        assert file.read() == "third\n"


def test_a_session_that_is_set_apart_is_given_up_by_its_destruction_and_layers_are_folded_again(
    agent: Agent,
) -> None:
    session = agent.session()
    agent.run("echo third > third", session)
    for name in ("a", "b", "c"):
        agent.call("file_write", path=name, content="x")
    agent.kill()
    with open(f"{agent.store}/sessions/{session}/session.json", "r+b") as file:
        file.truncate(40)
    agent.start()

    def squashed() -> list[Any]:
        connection = agent.connect()
        try:
            blocks: list[Any] = connection.line(agent.line("squash_layerstack"))["squashed_blocks"]
        finally:
            connection.close()
        return blocks

    assert squashed() == []
    careful = refused(
        lambda: agent.call("destroy_workspace_session", workspace_session_id=session, if_clean=True)
    )
    assert (
        careful.reason == "session_lost"
        and "destroy_workspace_session deletes the work" in careful.details["hint"]
    )
    assert (
        refused(
            lambda: agent.call("destroy_workspace_session", workspace_session_id=f"../sessions/{session}")
        ).reason
        == "session_not_found"
    )
    gone = agent.call("destroy_workspace_session", workspace_session_id=session)
    assert (gone["destroyed"], gone["evicted_upperdir_bytes"], gone["discarded"]["paths"]) == (
        True,
        6,
        ["third"],
    )
    assert not os.path.exists(f"{agent.store}/sessions/{session}") and agent.call("fsck")["damage"] == []
    again = refused(lambda: agent.call("destroy_workspace_session", workspace_session_id=session))
    assert again.reason == "session_not_found"
    assert len(squashed()) == 1
    assert "warnings" not in agent.call("snapshot")
    agent.kill()
    agent.start()
    assert agent.call("list_drafts")["drafts"] == [] and agent.call("file_read", path="a")["content"] == "x"


@on_a_stack({"f": "base\n"}, namespaces=("trusted",))
def test_a_page_ends_at_the_next_entry_when_the_agent_leaves(stack: Stack) -> None:
    stack.store.update_file("new", lambda old: b"x\n", owner="o", request_id="r")
    asked: list[bool] = []

    def stopped() -> bool:
        asked.append(True)
        return len(asked) == 2

    with pytest.raises(OperationError) as caught:
        check_store.page(stack.store, {}, stopped=stopped)
    assert caught.value.kind == "server_shutting_down" and len(asked) == 2
    assert stack.store.leases.all() == (), "the lease is given back"
