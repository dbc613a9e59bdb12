"""Results of every tool of a server against the schemas that it published, and what models read of files and
exports.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Generator
from typing import Any, NamedTuple

import pytest

from tests import processes
from tests.conftest import drop_dir, make_short_dir
from tests.eos_mcp import closed_schemas
from tests.eos_mcp.mcp_wire import Wire, call

pytestmark = pytest.mark.needs("overlay")


class Answer(NamedTuple):
    text: str
    structure: dict[str, Any]
    is_error: bool


class Client:
    """A client of the set `all`, which checks each result against the published schema of its tool."""

    def __init__(self, wire: Wire, root: str) -> None:
        self.wire, self.root = wire, root
        listed = wire.ask({"jsonrpc": "2.0", "id": "list", "method": "tools/list", "params": {}})
        self.tools = {tool["name"]: tool for tool in listed["result"]["tools"]}
        self.called: set[str] = set()

    def use(self, tool: str, **arguments: Any) -> Answer:
        result = self.wire.ask(call(f"{tool}-{os.urandom(4).hex()}", tool, arguments))["result"]
        found = Answer(result["content"][0]["text"], result["structuredContent"], result["isError"])
        if "outputSchema" in self.tools[tool]:
            closed_schemas.check(self.tools[tool]["outputSchema"], found.structure)
        if not found.is_error:
            self.called.add(tool)
        return found

    def well(self, tool: str, **arguments: Any) -> dict[str, Any]:
        found = self.use(tool, **arguments)
        assert not found.is_error, found.text
        return found.structure


@pytest.fixture(scope="module")
def client() -> Generator[Client]:
    root = make_short_dir("eos-mcp-")
    workspace = os.path.join(root, "w")
    os.makedirs(os.path.join(workspace, "src"))
    for path, text in {"lines": "one\ntwo\nthree\n", "src/a.py": "x = 1\n", ".gitignore": "*.log\n"}.items():
        with open(os.path.join(workspace, path), "w") as file:
            file.write(text)
    env = {**os.environ, "EOS_STATE_DIR": os.path.join(root, "s")}
    argv = [sys.executable, "-m", "eos_mcp", "--set", "all", "--root", root]
    with Wire(argv, env=env) as wire:
        wire.open()
        found = Client(wire, root)
        found.well("create_sandbox", image="host", workspace_root=workspace)
        try:
            yield found
        finally:
            for row in found.use("list_sandboxes").structure["sandboxes"]:
                found.use("destroy_sandbox", sandbox_id=row["id"])
    processes.stop_gateway(env)
    drop_dir(root)


def test_files_by_glob_are_listed_without_ignored_ones_which_the_text_counts(client: Client) -> None:
    client.well("exec_command", cmd="mkdir -p pkg/deep; touch pkg/deep/m.py pkg/x.log", yield_time_ms=30_000)
    found = client.use("file_list", glob="**/*.{py,log}", path="pkg")
    assert found.structure["entries"] == [{"path": "pkg/deep/m.py", "kind": "file", "size": 0}]
    assert "pkg/deep/m.py" in found.text and "left out, ignored: 1 (include_ignored=true" in found.text
    page = client.use("file_list", glob="*", path="pkg", include_ignored=True, limit=1)
    assert f"more (entries): call again with cursor={page.structure['next']}" in page.text
    rest = client.well("file_list", glob="*", path="pkg", include_ignored=True, cursor=page.structure["next"])
    assert [row["path"] for row in rest["entries"]] == ["pkg/x.log"]
    assert "no file matches *.rs" in client.use("file_list", glob="*.rs").text


def test_an_export_says_what_git_ignores_and_that_its_destination_is_new(client: Client) -> None:
    client.well("exec_command", cmd="echo 12345 > e.log; echo e > e.txt", yield_time_ms=30_000)
    dest, workspace = os.path.join(client.root, "out"), os.path.join(client.root, "w")
    foreseen = client.use("export_changes", dest=dest, dry_run=True)
    done = client.use("export_changes", dest=dest)
    for found in (foreseen, done):
        assert found.structure["created"] is True
        assert "changed files only, not the whole project" in found.text and workspace in found.text
        assert "not left out for that; ignored=exclude leaves them out" in found.text
    assert done.structure["ignored"] == foreseen.structure["ignored"]
    counted = done.structure["ignored"]
    assert counted["files"] >= 1 and counted["bytes"] >= 6 and counted["included"] is True
    assert os.path.exists(os.path.join(dest, "e.log"))
    # what an earlier export wrote stays, although this one leaves it out
    client.well("exec_command", cmd="rm e.log; echo more > f.log; echo f > f.txt", yield_time_ms=30_000)
    again = client.well("export_changes", dest=dest, ignored="exclude")
    assert again["created"] is False and again["ignored"]["included"] is False
    names = os.listdir(dest)
    assert "f.txt" in names and "e.log" in names and "f.log" not in names
    client.well("export_changes", dest=dest)
    names = os.listdir(dest)
    assert "e.log" not in names and "f.log" in names
    archive = os.path.join(client.root, "out.tar")
    client.well("export_changes", dest=archive, format="tar", ignored="exclude")
    listed = subprocess.run(["tar", "tf", archive], check=True, capture_output=True, text=True).stdout
    assert "f.txt\n" in listed and "f.log\n" not in listed


def test_every_result_has_the_form_that_its_tool_published(client: Client) -> None:
    commands(client)
    files(client)
    sessions(client)
    conflicts(client)
    history(client)
    management(client)
    left = set(client.tools) - client.called - {"destroy_sandbox", "forward_url", "recover_workspace_session"}
    assert {name for name in left if "outputSchema" in client.tools[name]} == set()


def commands(client: Client) -> None:
    client.well("exec_command", cmd="echo out; echo err >&2", tty=False, split_output=True)
    client.well("exec_command", cmd="mkfifo p; exit 3", yield_time_ms=30_000)
    client.well("exec_command", cmd="kill -9 $$", yield_time_ms=30_000)
    client.well("exec_command", cmd="echo half > half; sleep 60", timeout_ms=200, yield_time_ms=30_000)
    client.well("exec_command", cmd="seq 1 9000", yield_time_ms=30_000)
    client.well("exec_command", cmd="sleep 3600 & echo begun", yield_time_ms=2000)
    command = client.well("exec_command", cmd="cat", yield_time_ms=0)["command_session_id"]
    named = {"command_session_id": command}
    client.well("write_command_stdin", stdin="text\n", yield_time_ms=100, **named)
    client.well("list_commands")
    client.well("read_command_lines", **named)
    client.well("close_stdin", **named)
    client.well("wait_command", **named)
    client.well("read_command_lines", pattern="te", **named)
    for row in client.well("list_commands")["commands"]:
        if row["status"] == "running":
            client.well("signal_command", command_session_id=row["command_session_id"], signal="KILL")
            client.well("wait_command", command_session_id=row["command_session_id"])


def files(client: Client) -> None:
    client.well("file_write", path="new.txt", content="a\nb\n")
    client.well("file_edit", path="new.txt", old_string="a", new_string="A")
    client.well("file_read", path="new.txt")
    client.well("file_read", path="new.txt", encoding="base64")
    assert client.well("file_read", paths=["new.txt", "none"])["files"][1]["error"]
    client.use("file_read", path="none")
    client.well("file_list", path="src")
    client.well("file_search", pattern="x")
    client.well("file_stat", path="src")
    client.well("file_blame", path="new.txt")
    client.well("apply_patch", patch="*** Begin Patch\n*** Update File: new.txt\n@@\n-b\n+c\n*** End Patch\n")
    client.well("file_move", **{"from": "new.txt", "to": "moved.txt"})
    client.well("file_delete", path="moved.txt")


def sessions(client: Client) -> None:
    made = client.well("create_workspace_session", network_profile="isolated", agent="me", ttl_s=600)
    session = {"workspace_session_id": made["workspace_session_id"]}
    client.well("exec_command", cmd="echo s > s; mkdir d; mkfifo d/p", yield_time_ms=30_000, **session)
    client.well("exec_command", cmd="sleep 3600", yield_time_ms=0, **session)
    client.well("exec_command", cmd="sleep 3600", service="nap", yield_time_ms=0, **session)
    listed = client.well("list_workspace_sessions")
    (running, *_) = [
        row["command_session_id"] for row in listed["sessions"][0]["commands"] if "service" not in row
    ]
    client.use("publish_workspace_session", **session)
    client.well("signal_command", command_session_id=running, signal="KILL")
    client.well("wait_command", command_session_id=running)
    client.well("diff_session", **session)
    client.well("preview_publish", **session)
    client.well("rebase_workspace_session", **session)
    client.well("publish_workspace_session", keep_open=True, **session)
    client.well("exec_command", cmd="echo t > t", yield_time_ms=30_000, **session)
    client.well("destroy_workspace_session", **session)
    undone = {"workspace_session_id": client.well("create_workspace_session")["workspace_session_id"]}
    client.well("file_write", path="undo", content="1", **undone)
    client.well("checkpoint_session", label="one", **undone)
    client.well("file_write", path="undo", content="2", **undone)
    client.well("list_workspace_sessions")
    assert client.well("restore_session", **undone)["restored"] is True
    client.well("rebase_workspace_session", **undone)
    client.well("destroy_workspace_session", **undone)


def conflicts(client: Client) -> None:
    session = {"workspace_session_id": client.well("create_workspace_session")["workspace_session_id"]}
    client.well("file_write", path="lines", content="one\nTWO\nthree\n", **session)
    client.well("file_delete", path="src", recursive=True, **session)
    client.well("file_write", path="lines", content="one\nzwei\nthree\n")
    client.well("file_write", path="src/a.py", content="x = 2\n")
    assert client.use("publish_workspace_session", **session).is_error
    assert client.well("preview_publish", **session)["conflicts"]
    assert client.well("rebase_workspace_session", on_conflict="markers", **session)["conflicts"]
    client.well("diff_session", against="head", **session)
    client.well("destroy_workspace_session", **session)
    begun = client.well("exec_command", cmd="read go; echo mine > lines", yield_time_ms=0)
    command = {"command_session_id": begun["command_session_id"]}
    client.well("file_write", path="lines", content="theirs\n")
    client.well("write_command_stdin", stdin="\n", yield_time_ms=0, **command)
    ended = client.well("wait_command", timeout_ms=20_000, **command)
    assert ended["publish_rejected"] is True
    drafts = client.well("list_drafts")["drafts"]
    client.well("list_workspace_sessions")
    for draft in drafts:
        named = {"draft_id": draft["draft_id"]}
        client.well("diff_draft", **named)
        client.well("diff_draft", against="head", **named)
        client.well("diff_session", **named)
        client.well("preview_publish", **named)
    opened = client.well(
        "create_workspace_session", draft_id=ended["draft_id"], draft_base="head", on_conflict="ours"
    )
    assert opened["conflicts"]
    client.well("destroy_workspace_session", workspace_session_id=opened["workspace_session_id"])
    for draft in drafts:
        client.well("discard_draft", draft_id=draft["draft_id"])


def history(client: Client) -> None:
    versions = client.well("list_versions")["versions"]
    newest, oldest = versions[0]["version"], versions[-1]["version"]
    client.well("diff_versions", **{"from": oldest, "to": newest})
    client.well("pin_version", version=newest)
    client.well("unpin_version", version=newest)
    client.well("rollback_to", version=oldest)
    client.well("rollback_to", version=newest)
    client.well("check_store")


def management(client: Client) -> None:
    (row,) = client.well("list_sandboxes")["sandboxes"]
    sandbox = {"sandbox_id": row["id"]}
    client.well("inspect_sandbox", **sandbox)
    client.well("start_sandbox", **sandbox)
    client.well("list_docker_images")
    client.well("list_workspace_directories")
    client.well("list_workspace_directories", path=client.root)
    client.well("squash_layerstacks", **sandbox)
    client.well("prune_unused")
    dest = os.path.join(client.root, "filled")
    os.mkdir(dest)
    with open(os.path.join(dest, "lines"), "w") as file:
        file.write("a person's own\n")
    assert client.use("export_changes", dest=dest).is_error
    client.well("export_changes", dest=dest, dry_run=True)
    assert client.well("export_changes", dest=dest, on_conflict="keep")["kept_back"] == ["lines"]
    with open(os.path.join(client.root, "w", "by-hand"), "w") as file:
        file.write("a person's own\n")
    client.well("import_changes", dry_run=True, **sandbox)
    client.well("import_changes", **sandbox)
    other = client.well("create_sandbox", image="host", workspace_root=os.path.join(client.root, "w"))["id"]
    client.well("file_write", sandbox_id=other, path="w", content="w")
    client.well("create_workspace_session", sandbox_id=other)
    assert client.well("destroy_sandbox", sandbox_id=other)["discarded"]["layers"] == 1
