"""A coding agent's client against a real sandbox over stdio: what is long, what is lost with a client, what
two agents do to each other.
"""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import sys
import urllib.request
from collections.abc import Generator
from typing import Any, NamedTuple

import anyio
import pytest

from eos_mcp import catalog
from eos_mcp.gateway_client.aio import GatewayClient
from eos_mcp.mcp import example_calls
from eos_mcp.mcp.server_options import EOS, SANDBOX, SETS, ServerOptions
from tests import processes
from tests.absent_table import table
from tests.conftest import drop_dir, make_short_dir
from tests.end_to_end.tool_sets import SetServer, answers, introduction, situation
from tests.eos_mcp.mcp_wire import Wire, call

pytestmark = pytest.mark.needs("overlay")


class Place(NamedTuple):
    env: dict[str, str]
    sandbox: str

    def server(self) -> Wire:
        """A new server process of the agent's set, past the handshake; its sandbox is the one of the test."""
        argv = (
            [sys.executable, "-m", "eos_mcp", "--set", "all", "--sandbox-id", self.sandbox]
            if self.sandbox
            else [sys.executable, "-m", "eos_mcp", "--root", os.path.dirname(self.env["EOS_STATE_DIR"])]
        )
        wire = Wire(argv, env=self.env)
        wire.open()
        return wire


class Answer(NamedTuple):
    text: str
    structure: dict[str, Any]
    is_error: bool


def use(wire: Wire, tool: str, **arguments: Any) -> Answer:
    result = wire.ask(call(f"{tool}-{os.urandom(4).hex()}", tool, arguments))["result"]
    return Answer(result["content"][0]["text"], result["structuredContent"], result["isError"])


@pytest.fixture(scope="module")
def place() -> Generator[Place]:
    root = make_short_dir("eos-mcp-")
    state, workspace = os.path.join(root, "s"), os.path.join(root, "w")
    os.mkdir(workspace)
    with open(os.path.join(workspace, "lines"), "w") as file:
        file.write("one\ntwo\nthree\n")
    env = {**os.environ, "EOS_STATE_DIR": state}
    with Place(env, "").server() as wire:
        made = use(wire, "create_sandbox", image="host", workspace_root=workspace)
        assert not made.is_error, made.text
        found = Place(env, made.structure["id"])
        yield found
        assert not use(wire, "destroy_sandbox", sandbox_id=found.sandbox).is_error
    processes.stop_gateway(env)
    drop_dir(root)


def test_a_long_command_comes_back_as_a_handle_that_another_client_can_read(place: Place) -> None:
    with place.server() as wire:
        begun = use(
            wire,
            "exec_command",
            cmd="echo begun; read line; echo got $line > answer; echo $line",
            yield_time_ms=200,
            on_disconnect="detach",
        )
        assert begun.structure["status"] == "running"
        handle = begun.structure["command_session_id"]
        assert handle in begun.text
        wire.close_input()
        assert wire.ends() == 0
    with place.server() as wire:
        use(wire, "write_command_stdin", command_session_id=handle, stdin="further\n", yield_time_ms=0)
        ended = use(wire, "wait_command", command_session_id=handle)
        assert ended.structure["status"] == "ok"
        assert "further" in use(wire, "read_command_lines", command_session_id=handle).text
        assert "got further" in use(wire, "file_read", path="answer").text


ENDS = ("end of input", "SIGTERM", "SIGHUP", "SIGKILL", "SIGKILL in a call")


def test_commands_without_a_session_are_cancelled_after_their_client_however_it_went(place: Place) -> None:
    def started(wire: Wire, name: str, **more: Any) -> str:
        cmd = f"echo half > '{name}'; echo up; sleep 3600"
        row = use(wire, "exec_command", cmd=cmd, yield_time_ms=0, **more).structure
        assert row["status"] == "running", row
        return str(row["command_session_id"])

    with place.server() as other:
        ids: dict[str, str] = {}
        for how in ENDS:
            with place.server() as wire:
                if how == "SIGKILL in a call":
                    cmd = f"echo half > '{how}'; sleep 3600"
                    wire.send(call("cut", "exec_command", {"cmd": cmd, "yield_time_ms": 20_000}))
                    while not (rows := running(other, how)):
                        pass
                    ids[how] = str(rows[0]["command_session_id"])
                else:
                    ids[how] = started(wire, how)
                if how == "SIGTERM":
                    left = started(wire, "left", on_disconnect="detach")
                if how == "end of input":
                    wire.close_input()
                else:
                    wire.process.send_signal(getattr(signal, how.split()[0]))
                wire.process.wait(30)
        for how, command in ids.items():
            while (ended := use(other, "wait_command", command_session_id=command).structure)["status"] in (
                "running",
            ):
                pass
            assert (ended["status"], ended["publish_reject_class"]) == ("cancelled", "interrupted"), how
            assert use(other, "file_read", path=how).is_error
            opened = use(other, "create_workspace_session", draft_id=ended["draft_id"]).structure
            session = opened["workspace_session_id"]
            assert (
                use(other, "file_read", path=how, workspace_session_id=session).structure["content"] == "half"
            )
            use(other, "destroy_workspace_session", workspace_session_id=session)
            use(other, "discard_draft", draft_id=ended["draft_id"])
        assert running(other, "left")
        use(other, "signal_command", command_session_id=left, signal="KILL")


def running(wire: Wire, name: str) -> list[dict[str, Any]]:
    rows = use(wire, "list_commands").structure["commands"]
    return [row for row in rows if row["status"] == "running" and f"'{name}'" in row["command"]]


def test_a_client_that_dies_during_a_call_leaves_the_command_to_be_found(place: Place) -> None:
    with place.server() as wire:
        session = use(wire, "create_workspace_session").structure["workspace_session_id"]
        wire.send(
            call(
                "lost",
                "exec_command",
                {"workspace_session_id": session, "cmd": "echo alive > here; read line; echo $line"},
            )
        )
        with place.server() as other:
            while use(other, "file_read", path="here", workspace_session_id=session).is_error:
                pass
            wire.process.kill()
            (row,) = [
                r
                for r in use(other, "list_commands", workspace_session_id=session).structure["commands"]
                if r["status"] == "running"
            ]
            use(
                other,
                "write_command_stdin",
                command_session_id=row["command_session_id"],
                stdin="still here\n",
                yield_time_ms=0,
            )
            assert (
                "still here" in use(other, "wait_command", command_session_id=row["command_session_id"]).text
            )
            assert not use(other, "destroy_workspace_session", workspace_session_id=session).is_error


def test_a_conflict_is_reported_in_the_text_with_lines_and_author_and_the_way_out_works(place: Place) -> None:
    with place.server() as wire:
        sessions = {
            name: use(wire, "create_workspace_session", agent=name).structure["workspace_session_id"]
            for name in ("alice", "bob")
        }
        for name, session in sessions.items():
            edits = [{"old_string": "two", "new_string": f"two by {name}"}]
            assert not use(
                wire, "file_edit", path="lines", edits=edits, workspace_session_id=session
            ).is_error
        assert not use(wire, "publish_workspace_session", workspace_session_id=sessions["alice"]).is_error
        refused = use(wire, "publish_workspace_session", workspace_session_id=sessions["bob"])
        assert refused.is_error
        for part in (
            "lines [content]",
            "base 2, ours 2, theirs 2",
            "by alice",
            sessions["bob"],
            "rebase_workspace_session",
        ):
            assert part in refused.text
        assert "two by alice" in use(wire, "file_read", path="lines").text
        assert "two by bob" in use(wire, "file_read", path="lines", workspace_session_id=sessions["bob"]).text
        both = [{"old_string": "two by alice", "new_string": "two by alice and bob"}]
        assert "published" in use(wire, "file_edit", path="lines", edits=both).text
        assert not use(wire, "destroy_workspace_session", workspace_session_id=sessions["bob"]).is_error


def test_a_rejected_one_off_command_names_the_draft_and_the_draft_has_its_work(place: Place) -> None:
    with place.server() as wire:
        begun = use(
            wire,
            "exec_command",
            cmd="read go; sed -i 's/three/three by carol/' lines",
            agent="carol",
            yield_time_ms=0,
        )
        edits = [{"old_string": "three", "new_string": "three by dave"}]
        assert not use(wire, "file_edit", path="lines", edits=edits, agent="dave").is_error
        handle = begun.structure["command_session_id"]
        use(wire, "write_command_stdin", command_session_id=handle, stdin="go\n", yield_time_ms=0)
        ended = use(wire, "wait_command", command_session_id=handle)
        assert ended.structure["publish_rejected"] is True
        draft = ended.structure["draft_id"]
        for part in ("NOT PUBLISHED", draft, "lines [content]", "by dave"):
            assert part in ended.text
        assert draft in use(wire, "list_drafts").text
        session = use(wire, "create_workspace_session", draft_id=draft).structure["workspace_session_id"]
        assert "three by carol" in use(wire, "file_read", path="lines", workspace_session_id=session).text
        assert not use(wire, "destroy_workspace_session", workspace_session_id=session).is_error
        assert not use(wire, "discard_draft", draft_id=draft).is_error


def test_a_server_started_with_an_empty_environment_works(place: Place) -> None:
    kept = [f"EOS_STATE_DIR={place.env['EOS_STATE_DIR']}", f"HOME={place.env['EOS_STATE_DIR']}"]
    with Wire(["env", "-i", *kept, sys.executable, "-m", "eos_mcp"], env={}) as wire:
        wire.open()
        assert place.sandbox in use(wire, "list_sandboxes").text


def command_of(wire: Wire, text: str) -> dict[str, Any]:
    """The running command that was started with `text`."""
    while True:
        for row in use(wire, "list_commands").structure["commands"]:
            if row["command"] == text and row["status"] == "running":
                return dict(row)


def test_a_cancelled_command_is_killed_with_all_it_started_and_its_work_is_a_draft(place: Place) -> None:
    nap = "86397.25"  # names its processes for the whole machine
    cmd = f"echo half > cancelled; setsid sleep {nap} & sleep {nap} & sleep {nap}; wait"
    with place.server() as wire, place.server() as other:
        wire.send(call("long", "exec_command", {"cmd": cmd, "yield_time_ms": 20_000}))
        row = command_of(other, cmd)
        while len(processes.processes_that_name(nap)) < 4:
            pass
        wire.send(
            {
                "jsonrpc": "2.0",
                "method": "notifications/cancelled",
                "params": {"requestId": "long", "reason": "enough"},
            }
        )
        ended = use(other, "wait_command", command_session_id=row["command_session_id"])
        assert (ended.structure["status"], ended.structure["exit_code"]) == ("cancelled", 130)
        assert processes.processes_that_name(nap) == []
        draft = ended.structure["draft_id"]
        assert (
            "NOT PUBLISHED (interrupted)" in ended.text and f"its changes are kept in {draft}" in ended.text
        )
        (kept,) = [d for d in use(other, "list_drafts").structure["drafts"] if d["draft_id"] == draft]
        assert kept["reason"] == "interrupted"
        assert use(other, "file_read", path="cancelled").is_error
        opened = use(other, "create_workspace_session", draft_id=draft).structure["workspace_session_id"]
        assert (
            use(other, "file_read", path="cancelled", workspace_session_id=opened).structure["content"]
            == "half"
        )
        assert not use(other, "destroy_workspace_session", workspace_session_id=opened).is_error
        assert not use(other, "discard_draft", draft_id=draft).is_error
        wire.send(call("later", "exec_command", {"cmd": "echo the server goes on"}))
        while "id" not in (answer := wire.receive()):
            pass
        assert (
            answer["id"] == "later" and answer["result"]["structuredContent"]["status"] == "ok"
        )  # "long" gets no answer
        state = use(other, "snapshot", sandbox_id=place.sandbox).structure
        assert state["workspaces"] == []


def test_a_raw_client_that_half_closes_or_leaves_cancels_nothing(place: Place) -> None:
    with open(os.path.join(place.env["EOS_STATE_DIR"], "gateway.token")) as file:
        token = file.read().strip()
    for name in ("half", "gone"):
        cmd = f"read line; echo $line > left-{name}"
        with socket.socket(socket.AF_UNIX) as raw, place.server() as wire:
            raw.settimeout(60)
            raw.connect(os.path.join(place.env["EOS_STATE_DIR"], "gateway.sock"))
            args = {"cmd": cmd, "yield_time_ms": 30_000}
            request = {
                "op": "exec_command",
                "request_id": name,
                "scope": {"kind": "sandbox", "sandbox_id": place.sandbox},
                "args": args,
            }
            raw.sendall(json.dumps({**request, "_sandbox_gateway_auth_token": token}).encode() + b"\n")
            row = command_of(wire, cmd)
            raw.shutdown(socket.SHUT_WR) if name == "half" else raw.close()
            use(
                wire,
                "write_command_stdin",
                command_session_id=row["command_session_id"],
                stdin="went on\n",
                yield_time_ms=0,
            )
            ended = use(wire, "wait_command", command_session_id=row["command_session_id"])
            assert ended.structure["publish"]["published"] is True
            assert use(wire, "file_read", path=f"left-{name}").structure["content"] == "went on"
            if name == "half":
                assert json.loads(raw.makefile("rb").readline())["status"] == "ok"


NEXT_CALL = re.compile(r"^next: (\w+) (\{.*?\})", re.MULTILINE)


def follow(wire: Wire, text: str) -> Answer:
    """Make the call that a text names as the next step, as it stands there."""
    found = NEXT_CALL.search(text)
    assert found is not None, text
    done = use(wire, found[1], **json.loads(found[2]))
    assert not done.is_error, done.text
    return done


def test_the_call_that_a_rejection_names_loses_nothing(place: Place) -> None:
    with place.server() as wire:
        use(wire, "file_write", path="calc.py", content="def add(a, b):\n    return a\n")
        session = use(wire, "create_workspace_session", agent="alice").structure["workspace_session_id"]
        inside = {"workspace_session_id": session}
        use(wire, "file_write", path="calc.py", content="def add(a, b):\n    return a + b\n", **inside)
        use(wire, "file_write", path="NEW.md", content="mine\n", **inside)
        use(wire, "file_write", path="calc.py", content="def add(a, b):\n    return b + a\n", agent="bob")
        refused = use(wire, "publish_workspace_session", **inside)
        assert refused.is_error
        for said in ("return a + b", "return b + a", "base:\n          return a"):
            assert said in refused.text, refused.text
        done = follow(wire, refused.text)
        assert "calc.py [content]: conflict markers" in done.text
        shown = use(wire, "file_read", path="calc.py", **inside).text
        assert "<<<<<<< alice" in shown and ">>>>>>> bob, version" in shown
        early = use(wire, "publish_workspace_session", **inside)
        assert early.is_error and early.structure["error"]["details"]["reason"] == "unresolved_conflicts"
        use(wire, "file_write", path="calc.py", content="def add(a, b):\n    return sum((a, b))\n", **inside)
        published = use(wire, "publish_workspace_session", **inside)
        assert not published.is_error, published.text
        assert "sum" in use(wire, "file_read", path="calc.py").text
        assert "mine" in use(wire, "file_read", path="NEW.md").text


def test_the_call_that_a_rejected_command_names_loses_nothing(place: Place) -> None:
    with place.server() as wire:
        use(wire, "file_write", path="both", content="base\n")
        begun = use(
            wire,
            "exec_command",
            cmd="echo mine > both; echo more > beside; read line",
            yield_time_ms=0,
            agent="alice",
        ).structure["command_session_id"]
        use(wire, "file_write", path="both", content="theirs\n", agent="bob")
        use(wire, "write_command_stdin", command_session_id=begun, stdin="\n", yield_time_ms=0)
        ended = use(wire, "wait_command", command_session_id=begun, timeout_ms=60_000)
        assert ended.structure["publish_rejected"] and "create_workspace_session" in ended.structure["hint"]
        opened = follow(wire, ended.text)
        assert "both [content]: conflict markers" in opened.text
        inside = {"workspace_session_id": opened.structure["workspace_session_id"]}
        assert "mine\n" in use(wire, "file_read", path="both", **inside).text
        use(wire, "file_write", path="both", content="mine and theirs\n", **inside)
        assert not use(wire, "publish_workspace_session", **inside).is_error
        assert "more" in use(wire, "file_read", path="beside").text
        drafts = use(wire, "list_drafts").structure["drafts"]
        assert ended.structure["draft_id"] not in [row["draft_id"] for row in drafts]


def client_of(place: Place) -> GatewayClient:
    with open(os.path.join(place.env["EOS_STATE_DIR"], "gateway.token")) as file:
        token = file.read().strip()
    return GatewayClient(endpoint=f"unix://{place.env['EOS_STATE_DIR']}/gateway.sock", token=token)


def test_no_text_of_any_set_names_a_tool_that_the_set_lacks(place: Place) -> None:
    async def go() -> None:
        gateway = client_of(place)
        everything = SetServer(ServerOptions(tool_set="all"), gateway)
        workspace = os.path.join(os.path.dirname(place.env["EOS_STATE_DIR"]), "w")
        about = await situation(everything, place.sandbox, workspace)
        for program in (EOS, SANDBOX):
            for tool_set in SETS:
                options = ServerOptions(program, tool_set, roots=(workspace,))
                server = SetServer(options, gateway)
                for text in (introduction(options), *await server.definitions()):
                    assert not server.foreign(text), f"{program} {tool_set}: {text}"
                async for asked, answer in answers(server, about):
                    for text in (answer.text, json.dumps(answer.reply)):
                        assert not server.foreign(text), f"{program} {tool_set}: {asked}: {text}"
        for session in (about.conflicting, about.busy):
            for row in (await everything.done("list_commands", sandbox_id=place.sandbox))["commands"]:
                if row["status"] == "running" and row["workspace_session_id"] == session:
                    one = {"sandbox_id": place.sandbox, "command_session_id": row["command_session_id"]}
                    await everything.done("signal_command", signal="KILL", **one)
            one = {"sandbox_id": place.sandbox, "workspace_session_id": session, "grace_s": 60}
            await everything.done("destroy_workspace_session", **one)

    anyio.run(go)


@pytest.mark.needs("dockerd")
def test_an_absent_sandbox_or_image_has_the_kind_of_the_table(place: Place) -> None:
    expected = {row.absent: (row.kind, row.reason) for row in table()}
    workspace = os.path.join(os.path.dirname(place.env["EOS_STATE_DIR"]), "w")
    given = {"sandbox_id": "eos-absent", "dest": os.path.join(workspace, "out")}

    async def go() -> None:
        server = SetServer(ServerOptions(tool_set="all", roots=(workspace,)), client_of(place))
        for operation in catalog.ALL:
            names = {argument.name for argument in operation.arguments}
            if operation.scope == "system" and "sandbox_id" not in names:
                continue
            more = {name: value for name, value in given.items() if name == "sandbox_id" or name in names}
            answer = await server.use(operation.name, **{**example_calls.example(operation), **more})
            error = answer.reply["error"]
            assert (error["kind"], error["details"]["reason"]) == expected["sandbox"], (operation.name, error)
        image = await server.use("create_sandbox", image="eos-absent/image:1", workspace_root=workspace)
        error = image.reply["error"]
        assert (error["kind"], error["details"]["reason"]) == expected["image"]

    anyio.run(go)


def test_a_rejection_in_the_reference_set_is_resolved_by_its_own_tools_and_loses_nothing(
    place: Place,
) -> None:
    async def go() -> None:
        server = SetServer(ServerOptions(SANDBOX, "runtime", sandbox_id=place.sandbox), client_of(place))
        await server.done("file_write", path="by-hand", content="base\n")
        made = await server.done("create_workspace_session")
        inside = {"workspace_session_id": made["workspace_session_id"]}
        await server.done("file_write", path="by-hand", content="mine\n", **inside)
        await server.done("file_write", path="beside", content="more\n", **inside)
        await server.done("file_write", path="by-hand", content="theirs\n")
        refused = await server.use("publish_workspace_session", **inside)
        said = f"nothing is lost, session {inside['workspace_session_id']} stays open"
        assert refused.is_error and f"next: {said}" in refused.text
        assert refused.reply["error"]["details"]["hint"].startswith(said)
        await server.done("exec_command", cmd="cp -a by-hand by-hand.ours", yield_time_ms=60_000, **inside)
        exact = {"path": "by-hand", "encoding": "base64"}
        theirs = await server.done("file_read", **exact)
        await server.done("file_write", content=theirs["content"], **exact, **inside)
        await server.done("publish_workspace_session", **inside)
        for path, text in (("by-hand", "theirs"), ("by-hand.ours", "mine"), ("beside", "more")):
            assert (await server.done("file_read", path=path))["content"] == text

    anyio.run(go)


def test_a_service_is_ready_at_an_address_at_which_it_answers_and_a_prompt_is_reported(place: Place) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with place.server() as wire:
        session = use(wire, "create_workspace_session").structure["workspace_session_id"]
        inside = {"workspace_session_id": session}
        cmd = f"echo told > page; exec python3 -m http.server {port} --bind 127.0.0.1"
        ready = {"url": "/page", "port": port, "timeout_ms": 60_000}
        begun = use(wire, "exec_command", cmd=cmd, service="web", ready=ready, yield_time_ms=50_000, **inside)
        while not begun.structure["ready"]:
            command = begun.structure["command_session_id"]
            begun = use(wire, "read_command_lines", command_session_id=command, wait_ms=20_000)
            assert begun.structure["status"] == "running", begun.text
        url = begun.structure["service_url"]
        assert (
            url.endswith(f"/forward/shared/{port}/")
            and f"service web is ready, forwarded at {url}" in begun.text
        )
        with open(os.path.join(place.env["EOS_STATE_DIR"], "sandboxes", place.sandbox, "token")) as file:
            request = urllib.request.Request(f"{url}page", headers={"X-Eos-Token": file.read().strip()})
        with urllib.request.urlopen(request, timeout=60) as answer:
            assert answer.read() == b"told\n"
        asked = use(wire, "exec_command", cmd="read -p 'Go on? ' x", yield_time_ms=2000, **inside)
        assert "WAITING FOR INPUT: Go on?" in asked.text and "next: it waits for input" in asked.text
        command = asked.structure["command_session_id"]
        use(wire, "write_command_stdin", command_session_id=command, stdin="y\n", yield_time_ms=20_000)
        done = use(wire, "publish_workspace_session", **inside)
        assert not done.is_error and "services ended with it: web" in done.text
