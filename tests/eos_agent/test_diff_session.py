"""diff_session: the changes of a live session, frozen for it, and of a draft."""

from __future__ import annotations

import os
import subprocess
from typing import Any

import pytest

from eos_mcp.mcp import truncate

from .agent_process import Agent, refused

pytestmark = pytest.mark.needs("overlay")


def test_a_session_shows_its_own_changes_while_a_command_runs_in_it(agent: Agent) -> None:
    session = agent.session()
    assert agent.call("diff_session", workspace_session_id=session)["entries"] == []
    agent.run(
        "mkdir d; sed -i s/two/TWO/ src/app.py; mv run.sh d/moved; printf 'a\\0b' > binary; "
        "printf 'x\\r\\ny' > crlf; ln -s crlf link; mkdir empty",
        session,
    )
    agent.call("file_write", path="elsewhere", content="of another\n")
    found = agent.call("diff_session", workspace_session_id=session)
    rows = {row["path"]: row for row in found["entries"]}
    assert {path: row["status"] for path, row in rows.items()} == {
        "binary": "A",
        "crlf": "A",
        "d": "A",
        "d/moved": "A",
        "empty": "A",
        "link": "A",
        "run.sh": "D",
        "src/app.py": "M",
    }
    assert rows["d/moved"]["from"] == "run.sh" and rows["binary"]["binary"] is True
    assert "-two\n+TWO\n" in rows["src/app.py"]["patch"]
    assert found["next"] is None and found["against"] == "base"
    only = agent.call("diff_session", workspace_session_id=session, path="src")
    assert [row["path"] for row in only["entries"]] == ["src/app.py"]
    after = agent.call("diff_session", workspace_session_id=session, cursor="6")
    assert [row["path"] for row in after["entries"]] == ["run.sh", "src/app.py"]
    again = agent.call("diff_session", workspace_session_id=session)
    assert again == found, "the session is as it was"


def test_against_the_head_leaves_out_what_both_did_and_a_draft_shows_the_same(agent: Agent) -> None:
    session = agent.session()
    agent.run("echo same > same; echo mine > other", session)
    agent.call("file_write", path="same", content="same\n")
    agent.call("file_write", path="other", content="theirs\n")
    head = agent.call("diff_session", workspace_session_id=session, against="head")["entries"]
    assert [(row["path"], row["status"]) for row in head] == [("other", "M")]
    assert "-theirs\n+mine\n" in head[0]["patch"]
    base = agent.call("diff_session", workspace_session_id=session)["entries"]
    assert [(row["path"], row["status"]) for row in base] == [("other", "A"), ("same", "A")]
    draft = agent.run("echo mine > other; sleep 0; kill -9 $$")["draft_id"]
    found = agent.call("diff_session", draft_id=draft)
    assert (found["draft_id"], [row["path"] for row in found["entries"]]) == (draft, ["other"])
    both = {"workspace_session_id": session, "draft_id": draft}
    assert refused(lambda: agent.call("diff_session", **both)).reason == "one_of_two"
    assert refused(lambda: agent.call("diff_session")).reason == "one_of_two"


def test_the_patches_of_a_session_applied_to_its_base_give_its_files(agent: Agent, short_dir: str) -> None:
    session = agent.session()
    base = agent.call("file_read", path="src/app.py")["content"]
    agent.run("printf 'new\\r\\nlines' > a; sed -i '1i top' src/app.py; chmod +x src/app.py", session)
    patches = [row["patch"] for row in agent.call("diff_session", workspace_session_id=session)["entries"]]
    os.makedirs(f"{short_dir}/src")
    with open(f"{short_dir}/src/app.py", "w", encoding="utf-8") as file:
        file.write(base + "\n")
    whole = "".join(patches)
    subprocess.run(["git", "apply", "-"], cwd=short_dir, input=whole.encode(), check=True, timeout=60)
    done = agent.call("apply_patch", patch=whole)
    assert [row["path"] for row in done["files"]] == ["a", "src/app.py"]
    for path in ("a", "src/app.py"):
        mine = agent.call("file_read", path=path, encoding="base64", limit=262144, offset=1)["content"]
        wanted: dict[str, Any] = {"path": path, "encoding": "base64", "limit": 262144, "offset": 1}
        assert agent.call("file_read", workspace_session_id=session, **wanted)["content"] == mine
    assert agent.call("file_stat", path="src/app.py")["mode"] == "0755"
    assert agent.call("diff_session", workspace_session_id=session, against="head")["entries"] == []


def test_a_page_that_is_cut_for_a_model_says_where_it_continues(agent: Agent) -> None:
    session = agent.session()
    agent.run("for i in 0 1 2 3 4; do seq 1 2000 > f$i; done", session)
    seen: list[str] = []
    cursor: str | None = None
    for _ in range(9):
        args = {} if cursor is None else {"cursor": cursor}
        page = truncate.fit("diff_session", agent.call("diff_session", workspace_session_id=session, **args))
        seen += [row["path"] for row in page["entries"]]
        if (cursor := page["next"]) is None:
            break
    assert seen == [f"f{i}" for i in range(5)]
    agent.run("seq 1 9000 > large", session)
    page = truncate.fit(
        "diff_session", agent.call("diff_session", workspace_session_id=session, path="large")
    )
    (row,) = page["entries"]
    assert row["patch_truncated"] and len(row["patch"]) <= truncate.BUDGET and page["next"] is None
