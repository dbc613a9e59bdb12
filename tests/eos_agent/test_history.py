"""What was published, asked of a real agent: who wrote the lines of a file, what changed, pins, and the way
back.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from .agent_process import Agent, refused

pytestmark = pytest.mark.needs("overlay")


def blame(agent: Agent, path: str, **args: Any) -> list[tuple[int, int, str]]:
    found = agent.call("file_blame", path=path, **args)
    return [(r["start_line"], r["line_count"], r["owner"]) for r in found["ranges"]]


def test_blame_names_sessions_and_operations_and_leaves_the_base_its_own(agent: Agent) -> None:
    agent.call("file_edit", "req-edit", path="src/app.py", edits=[{"old_string": "two", "new_string": "TWO"}])
    session = agent.session()
    agent.run(
        "sed -i '$ d' src/app.py; echo last >> src/app.py; cp src/app.py copy; mv run.sh moved", session
    )
    assert blame(agent, "src/app.py") == [
        (1, 1, "original"),
        (2, 1, "operation:req-edit"),
        (3, 5, "original"),
    ], "a live session is not seen"
    agent.call("publish_workspace_session", workspace_session_id=session)
    owner = f"workspace_session:{session}"
    assert blame(agent, "src/app.py") == [
        (1, 1, "original"),
        (2, 1, "operation:req-edit"),
        (3, 4, "original"),
        (7, 1, owner),
    ]
    assert blame(agent, "copy") == [(1, 7, owner)]
    assert {line[2] for line in blame(agent, "moved")} == {owner}
    done = agent.run("rm src/app.py; echo x > own")
    assert blame(agent, "own") == [(1, 1, f"workspace_session:{done['workspace_session_id']}")]
    assert blame(agent, "src/app.py")[-1] == (7, 1, owner), "it outlives the file"


def test_one_path_has_one_answer_however_it_is_written(agent: Agent) -> None:
    agent.call("file_write", "req-1", path="p", content="x\n")
    plain = agent.call("file_blame", path="p")
    assert plain == {"path": "p", "ranges": [{"start_line": 1, "line_count": 1, "owner": "operation:req-1"}]}
    for written in ("./p", ".//p", agent.workspace + "/p"):
        assert json.dumps(agent.call("file_blame", path=written)) == json.dumps(plain)
    for path in (
        "a/../p",
        "README.md",
        "src",
        "none",
        "/etc/passwd",
        "",
        ".",
        agent.workspace,
        "a\0b",
        "x" * 256,
    ):
        error = refused(lambda path=path: agent.call("file_blame", path=path))  # type: ignore[misc]
        assert (error.kind, error.reason, error.details["path"]) == (
            "not_found",
            "no_auditability_record",
            path,
        )
        assert error.message == f"no auditability record for path: {path}"
    assert refused(lambda: agent.call("file_blame", path="p", path_b64="!")).kind == "invalid_request"


def rejected_draft(agent: Agent) -> str:
    session = agent.session(agent="bob")
    agent.run(
        "sed -i s/two/ours/ src/app.py; echo new > added; rm README.md; mkdir folder; printf 'a\\0b' > bin",
        session,
    )
    agent.call("file_edit", path="src/app.py", edits=[{"old_string": "two", "new_string": "theirs"}])
    assert (
        refused(lambda: agent.call("publish_workspace_session", workspace_session_id=session)).reason
        == "source_conflict"
    )
    agent.kill()
    agent.start()
    (draft,) = agent.call("list_drafts")["drafts"]
    return str(draft["draft_id"])


def test_the_difference_of_a_draft_comes_as_patches_against_base_and_head(agent: Agent) -> None:
    draft = rejected_draft(agent)
    found = agent.call("diff_draft", draft_id=draft)
    assert (found["draft_id"], found["against"], found["next"]) == (draft, "base", None)
    entries = {entry["path"]: entry for entry in found["entries"]}
    assert {path: entry["change"] for path, entry in entries.items()} == {
        "README.md": "deleted", "added": "added", "bin": "added", "folder": "added", "src/app.py": "modified",
    }  # fmt: skip
    assert entries["added"]["patch"] == (
        "diff --git a/added b/added\nnew file mode 100644\n--- /dev/null\n+++ b/added\n@@ -0,0 +1,1 "
        "@@\n+new\n"
    )
    assert entries["added"]["base"] == {"kind": "absent"} and entries["added"]["ours"]["kind"] == "file"
    assert entries["bin"]["binary"] is True and "patch" not in entries["bin"]
    assert "binary" not in entries["folder"] and "theirs" not in entries["folder"]
    (entry,) = agent.call("diff_draft", draft_id=draft, against="head", path="./src/app.py")["entries"]
    assert "\n-theirs\n+ours\n" in entry["patch"]
    assert len({entry[side]["digest"] for side in ("base", "ours", "theirs")}) == 3
    assert [entry["path"] for entry in agent.call("diff_draft", draft_id=draft, path="src")["entries"]] == [
        "src/app.py"
    ]
    assert agent.call("diff_draft", draft_id=draft, cursor="5")["entries"] == []
    assert refused(lambda: agent.call("diff_draft", draft_id=draft, cursor="x")).reason == "invalid_cursor"
    assert (
        refused(lambda: agent.call("diff_draft", draft_id="draft-0000000000000000")).reason
        == "draft_not_found"
    )
    preview = agent.call("preview_publish", draft_id=draft)
    assert [conflict["path"] for conflict in preview["conflicts"]] == ["src/app.py"]


def diff(agent: Agent, old: int, new: int, **more: Any) -> dict[str, Any]:
    words: dict[str, Any] = {"from": old, "to": new, **more}
    return agent.call("diff_versions", **words)


def test_versions_can_be_listed_compared_opened_and_gone_back_to(agent: Agent) -> None:
    agent.call("file_write", "req-2", path="README.md", content="second\n", agent="bob")
    agent.run("rm -r src; echo x > three")
    listed = agent.call("list_versions", limit=2)
    assert [(v["version"], v["agent"], v["head"], v["pinned"]) for v in listed["versions"]] == [
        (3, None, True, False),
        (2, "bob", False, False),
    ]
    assert listed["versions"][1]["owner"] == "operation:req-2" and listed["next"] == 2
    (first,) = agent.call("list_versions", after=listed["next"])["versions"]
    assert (first["version"], first["owner"]) == (1, None)
    found = diff(agent, 1, 2)
    assert [(e["path"], e["change"]) for e in found["entries"]] == [
        ("README.md", "modified")
    ] and "+second\n" in found["entries"][0]["patch"]
    back = diff(agent, 3, 2, path="src")
    assert {e["change"] for e in back["entries"]} == {"added"}
    old = agent.session(base_version=1)
    assert agent.run("cat README.md; ls src", old)["output"].splitlines()[0] == "hello"
    agent.run("echo late > late", old)
    assert (
        agent.call("publish_workspace_session", workspace_session_id=old)["publish"]["revision"][
            "manifest_version"
        ]
        == 4
    )
    done = agent.call("rollback_to", "req-back", version=2)
    assert (done["version"], done["publish"]["no_op"], done["publish"]["revision"]["manifest_version"]) == (
        2,
        False,
        5,
    )
    assert agent.read("README.md") == "second" and agent.read("src/app.py").startswith("one")
    assert refused(lambda: agent.read("late")).kind == "not_found"
    again = agent.call("rollback_to", version=2)
    assert again["publish"]["no_op"] is True and again["layer_id"] is None
    assert blame(agent, "src/app.py") == [(1, 7, "operation:req-back")]
    for call in (
        lambda: agent.call("rollback_to", version=99),
        lambda: agent.session(base_version=99),
        lambda: diff(agent, 1, 99),
        lambda: agent.call("pin_version", version=99),
    ):
        assert refused(call).reason == "version_not_found"
    assert (
        refused(lambda: agent.session(base_version=1, draft_id="draft-0000000000000000")).reason
        == "one_of_two"
    )


def test_a_pin_outlives_the_agent_and_counts_as_no_session(agent: Agent) -> None:
    agent.call("file_write", path="a", content="a\n")
    found = agent.call("pin_version", "req-pin", version=1, agent="bob")
    assert found == {
        "version": 1,
        "agent": "bob",
        "request_id": "req-pin",
        "created_unix_ms": found["created_unix_ms"],
        "pinned": True,
    }
    agent.kill()
    agent.start()
    assert [v["version"] for v in agent.call("list_versions")["versions"] if v["pinned"]] == [1]
    stats = agent.call("layerstack")
    assert (stats["pin_count"], stats["active_lease_count"]) == (1, 0)
    assert agent.call("unpin_version", version=1) == {"version": 1, "pinned": False, "was_pinned": True}
    assert agent.call("unpin_version", version=1)["was_pinned"] is False


def test_a_draft_is_carried_over_to_the_head_or_every_conflict_is_reported(agent: Agent) -> None:
    draft = rejected_draft(agent)
    error = refused(lambda: agent.session(draft_id=draft, draft_base="head"))
    assert (error.kind, error.reason) == ("operation_failed", "source_conflict")
    assert [c["path"] for c in error.details["publish_rejection"]["conflicts"]] == ["src/app.py"]
    agent.call(
        "file_edit",
        path="src/app.py",
        edits=[{"old_string": "theirs", "new_string": "two"}, {"old_string": "six", "new_string": "SIX"}],
    )
    found = agent.call("create_workspace_session", draft_id=draft, draft_base="head")
    assert (found["base_version"], found["draft_id"]) == (agent.version(), draft)
    session = found["workspace_session_id"]
    assert agent.read("src/app.py", workspace_session_id=session).splitlines()[1:6] == [
        "ours",
        "three",
        "four",
        "five",
        "SIX",
    ]
    agent.call("publish_workspace_session", workspace_session_id=session)
    assert agent.call("list_drafts")["drafts"] == []
    assert agent.read("added") == "new"
    assert {owner for _, _, owner in blame(agent, "added")} == {f"workspace_session:{session}"}


def test_files_of_a_version_are_read_listed_and_described_as_they_were(agent: Agent) -> None:
    first = agent.call("list_versions", limit=1)["versions"][0]["version"]
    agent.call("file_write", path="src/app.py", content="new\n")
    agent.call("file_write", path="src/more.py", content="more\n")
    second = agent.call("list_versions", limit=1)["versions"][0]["version"]
    agent.run("rm -r src")
    old = agent.call("file_read", path="src/app.py", version=first)
    assert (old["version"], old["total_bytes"]) == (first, 34)
    new = agent.call("file_read", path="src/app.py", version=second)
    assert (new["version"], new["content"]) == (second, "new")
    names = [row["name"] for row in agent.call("file_list", path="src", version=second)["entries"]]
    assert (names[0], "more.py" in names) == ("app.py", True)
    assert agent.call("file_stat", path="src/more.py", version=second)["size"] == 5
    assert refused(lambda: agent.call("file_read", path="src/more.py", version=first)).kind == "not_found"
    assert refused(lambda: agent.call("file_read", path="src/app.py")).kind == "not_found"
    closed = refused(lambda: agent.call("file_list", path="src", version=second + 9))
    assert (closed.kind, closed.reason) == ("not_found", "version_not_found")
    both = refused(
        lambda: agent.call("file_read", path="a", version=first, workspace_session_id=agent.session())
    )
    assert (both.kind, both.reason) == ("invalid_request", "one_of_two")
    assert "version" not in agent.call("file_read", path="README.md")
