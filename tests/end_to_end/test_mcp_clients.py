"""Resources, subscriptions and questions over stdio with a real sandbox, both eras on one pipe."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Generator
from typing import Any, NamedTuple

import pytest

from tests import processes
from tests.conftest import drop_dir, make_short_dir
from tests.eos_mcp.mcp_wire import META, Wire, call, initialize

pytestmark = pytest.mark.needs("overlay")

FORMS: dict[str, Any] = {"elicitation": {"form": {}}}
MODERN: dict[str, Any] = {**META, "io.modelcontextprotocol/clientCapabilities": FORMS}
ERAS = pytest.mark.parametrize("modern", [False, True], ids=["legacy", "modern"])


class Place(NamedTuple):
    root: str
    env: dict[str, str]
    wire: Wire
    """A server whose client can show forms."""


@pytest.fixture(scope="module")
def place() -> Generator[Place]:
    root = make_short_dir("eos-mcpc-")
    env = {**os.environ, "EOS_STATE_DIR": os.path.join(root, "s")}
    with server(root, env) as wire:
        yield Place(root, env, wire)
        for row in use(wire, "list_sandboxes")["sandboxes"]:  # of a test that failed; no form is shown
            about = {"name": "destroy_sandbox", "arguments": {"sandbox_id": row["id"]}, "_meta": META}
            wire.ask({"jsonrpc": "2.0", "id": row["id"], "method": "tools/call", "params": about})
    processes.stop_gateway(env)
    drop_dir(root)


def server(root: str, env: dict[str, str], *words: str) -> Wire:
    wire = Wire([sys.executable, "-m", "eos_mcp", "--root", root, *words], env=env)
    opening = initialize()
    opening["params"]["capabilities"] = FORMS
    wire.ask(opening)
    wire.send({"jsonrpc": "2.0", "method": "notifications/initialized"})
    return wire


def ask(wire: Wire, method: str, *, modern: bool = False, **params: Any) -> dict[str, Any]:
    """The answer of one request."""
    about: dict[str, Any] = {**params, "_meta": MODERN} if modern else params
    message = {"jsonrpc": "2.0", "id": os.urandom(4).hex(), "method": method, "params": about}
    return wire.ask(message)


def use(wire: Wire, tool: str, **arguments: Any) -> dict[str, Any]:
    result = wire.ask(call(os.urandom(4).hex(), tool, arguments))["result"]
    assert not result["isError"], result
    found: dict[str, Any] = result["structuredContent"]
    return found


def make(place: Place, name: str) -> tuple[str, str]:
    """A sandbox and its workspace."""
    workspace = os.path.join(place.root, name)
    os.mkdir(workspace)
    with open(os.path.join(workspace, "text"), "w") as file:
        file.write("one\ntwo\nthree\n")
    return use(place.wire, "create_sandbox", image="host", workspace_root=workspace)["id"], workspace


def destroyed(
    wire: Wire, sandbox: str, answer: dict[str, Any], *, modern: bool
) -> tuple[dict[str, Any], str | None]:
    """The result of destroy_sandbox, and the question that was asked."""
    return questioned(wire, "destroy_sandbox", {"sandbox_id": sandbox}, answer, modern=modern)


def questioned(
    wire: Wire, tool: str, args: dict[str, Any], answer: dict[str, Any], *, modern: bool
) -> tuple[dict[str, Any], str | None]:
    if modern:
        first = ask(wire, "tools/call", modern=True, name=tool, arguments=args)["result"]
        if first["resultType"] == "complete":
            return first, None
        message = first["inputRequests"]["confirm"]["params"]["message"]
        again = ask(
            wire,
            "tools/call",
            modern=True,
            name=tool,
            arguments=args,
            inputResponses={"confirm": answer},
            requestState=first["requestState"],
        )
        return again["result"], message
    message = None
    request = call(os.urandom(4).hex(), tool, args)
    wire.send(request)
    while (found := wire.receive()).get("id") != request["id"] or "method" in found:
        if found.get("method") == "elicitation/create":
            message = found["params"]["message"]
            wire.send({"jsonrpc": "2.0", "id": found["id"], "result": answer})
    return found["result"], message


def yes(choice: str) -> dict[str, Any]:
    return {"action": "accept", "content": {"confirm": choice}}


def read(wire: Wire, uri: str, *, modern: bool = False) -> str:
    (content,) = ask(wire, "resources/read", modern=modern, uri=uri)["result"]["contents"]
    return str(content["text"])


@ERAS
def test_versions_files_drafts_conflicts_and_outputs_are_read(place: Place, modern: bool) -> None:
    wire = place.wire
    sandbox, _ = make(place, f"read-{modern}")
    assert use(wire, "file_write", sandbox_id=sandbox, path="text", content="one\nTWO\nthree\n")
    session = use(wire, "create_workspace_session", sandbox_id=sandbox)["workspace_session_id"]
    use(
        wire,
        "file_write",
        sandbox_id=sandbox,
        path="text",
        content="one\nzwei\nthree\n",
        workspace_session_id=session,
    )
    cmd = "printf '\\033[1mbold\\033[0m\\n'; echo x > a\\ b; sed -i s/TWO/2/ text; kill -TERM $$"
    ran = use(wire, "exec_command", sandbox_id=sandbox, cmd=cmd, yield_time_ms=20_000)
    use(wire, "file_write", sandbox_id=sandbox, path="text", content="one\ndos\nthree\n")
    draft = ran["draft_id"]
    listed = ask(wire, "resources/list", modern=modern)["result"]["resources"]
    uris = [row["uri"] for row in listed if row["uri"].startswith(f"eos://{sandbox}/")]
    assert uris[:2] == [f"eos://{sandbox}/versions", f"eos://{sandbox}/drafts"]
    assert f"eos://{sandbox}/drafts/{draft}" in uris
    (command,) = (uri for uri in uris if "/commands/" in uri)

    versions = json.loads(read(wire, uris[0], modern=modern))["versions"]
    newest = json.loads(read(wire, versions[0]["uri"], modern=modern))
    (change,) = newest["changes"]
    assert (change["path"], newest["since"]) == ("text", versions[1]["version"])
    assert read(wire, change["uri"], modern=modern) == "one\ndos\nthree\n"
    assert read(wire, f"{versions[-1]['uri']}/files/text", modern=modern) == "one\ntwo\nthree\n"
    entries = json.loads(read(wire, f"{versions[0]['uri']}/files/", modern=modern))["entries"]
    assert [row["name"] for row in entries] == ["text"]

    assert json.loads(read(wire, uris[1], modern=modern))["count"] == 1
    diff = read(wire, f"eos://{sandbox}/drafts/{draft}", modern=modern)
    assert "+2\n" in diff and "a b" in diff
    conflicts = json.loads(read(wire, f"eos://{sandbox}/drafts/{draft}/conflicts", modern=modern))
    assert [row["path"] for row in conflicts["conflicts"]] == ["text"]
    assert read(wire, command, modern=modern).startswith("bold")

    prompt = ask(
        wire,
        "prompts/get",
        modern=modern,
        name="resolve-conflict",
        arguments={"sandbox_id": sandbox, "draft_id": draft},
    )["result"]
    assert "text" in prompt["messages"][0]["content"]["text"]

    for wrong in (
        "eos-none/versions",
        f"{sandbox}/versions/999",
        f"{sandbox}/versions/1/files/none",
        f"{sandbox}/drafts/none",
        f"{sandbox}/drafts/none/conflicts",
        f"{sandbox}/commands/none",
    ):
        error = ask(wire, "resources/read", modern=modern, uri=f"eos://{wrong}")["error"]
        assert error["code"] == (-32602 if modern else -32002), (wrong, error)

    result, question = destroyed(wire, sandbox, {"action": "decline"}, modern=modern)
    assert result["structuredContent"]["error"]["details"]["reason"] == "not_confirmed"
    assert question is not None and draft in question and "nothing was exported" in question
    assert use(wire, "file_read", sandbox_id=sandbox, path="text")["content"] == "one\ndos\nthree"
    result, _ = destroyed(wire, sandbox, yes("yes"), modern=modern)
    assert result["structuredContent"]["state"] == "stopped"


def test_publications_are_notified_in_both_eras_and_open_streams_do_not_hold_the_end(place: Place) -> None:
    sandbox, _ = make(place, "news")
    uri = f"eos://{sandbox}/versions"
    with server(place.root, place.env) as wire:
        assert ask(wire, "resources/subscribe", uri=uri)["result"] == {}
        params: dict[str, Any] = {
            "notifications": {"resourceSubscriptions": [uri], "toolsListChanged": True},
            "_meta": MODERN,
        }
        wire.send({"jsonrpc": "2.0", "id": "news", "method": "subscriptions/listen", "params": params})
        opened = wire.receive()
        assert opened["method"] == "notifications/subscriptions/acknowledged"
        assert opened["params"]["notifications"] == {"resourceSubscriptions": [uri]}
        heard: dict[bool, dict[str, Any]] = {}
        number = 0
        while len(heard) < 2:  # the first question after the subscription may already see this version
            number += 1
            request = call(
                f"w{number}", "file_write", {"sandbox_id": sandbox, "path": "n", "content": f"{number}"}
            )
            wire.send(request)
            while (found := wire.receive()).get("id") != request["id"]:
                heard["_meta" in found["params"]] = found["params"]
        assert heard[False] == {"uri": uri}
        assert heard[True]["uri"] == uri
        assert heard[True]["_meta"]["io.modelcontextprotocol/subscriptionId"] == "news"
        wire.close_input()
        assert wire.ends() == 0
        assert [row["id"] for row in wire.rest() if "result" in row] == ["news"]
    result, question = destroyed(place.wire, sandbox, yes("yes"), modern=True)
    assert question is not None and not result["isError"]


@ERAS
def test_an_export_over_an_edited_file_asks_and_what_was_exported_needs_no_question(
    place: Place, modern: bool
) -> None:
    wire = place.wire
    sandbox, workspace = make(place, f"export-{modern}")
    use(wire, "file_write", sandbox_id=sandbox, path="text", content="the agent's\n")
    use(wire, "file_write", sandbox_id=sandbox, path="new", content="new\n")
    path = os.path.join(workspace, "text")
    with open(path, "w") as file:
        file.write("the person's\n")
    args = {"sandbox_id": sandbox, "dest": workspace}

    def export(answer: dict[str, Any]) -> tuple[dict[str, Any], str | None]:
        return questioned(wire, "export_changes", args, answer, modern=modern)

    result, question = export({"action": "cancel"})
    assert result["structuredContent"]["error"]["details"]["reason"] == "not_confirmed"
    assert question is not None and "- text (edited)" in question
    assert sorted(os.listdir(workspace)) == ["text"]
    result, _ = export(yes("keep"))
    assert result["structuredContent"]["kept_back"] == ["text"]
    with open(path) as file:
        assert file.read() == "the person's\n"
    _, question = destroyed(wire, sandbox, {"action": "decline"}, modern=modern)
    assert question is not None, "text was kept back: it is not exported"
    result, question = export(yes("overwrite"))
    assert question is not None and result["structuredContent"]["overwritten_count"] == 1
    with open(path) as file:
        assert file.read() == "the agent's\n"
    result, question = destroyed(wire, sandbox, {"action": "decline"}, modern=modern)
    assert (question, result["structuredContent"]["state"]) == (None, "stopped")


def test_listing_starts_no_gateway(place: Place) -> None:
    state = os.path.join(place.root, "none")
    with server(place.root, {**place.env, "EOS_STATE_DIR": state}, "--sandbox-id", "eos-1") as wire:
        assert ask(wire, "resources/list")["result"]["resources"] == []
        ref = {"type": "ref/resource", "uri": "eos://{sandbox}/drafts"}
        completed = ask(wire, "completion/complete", ref=ref, argument={"name": "sandbox", "value": ""})
        assert completed["result"]["completion"]["values"] == []
        prompt = ask(wire, "prompts/get", name="start", arguments={"task": "x"})["result"]
        assert "No sandbox exists yet" in prompt["messages"][0]["content"]["text"]
    assert not os.path.exists(os.path.join(state, "gateway.sock"))
