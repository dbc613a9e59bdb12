"""`trace` and `events` of a real agent: at once, after a failure, many at a time, after a kill, without a
secret, and switched off.
"""

from __future__ import annotations

import concurrent.futures
import json
import os
import re
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import eos_agent
from eos_agent.base.telemetry import Telemetry, event, trace_id
from eos_agent.wire.operations_observe import OBSERVABILITY
from tests.conftest import drop_dir, make_short_dir

from .agent_process import TOKEN, Agent, Failed, running

pytestmark = pytest.mark.needs("overlay")

Node = dict[str, Any]
Start = Callable[..., Agent]


def nodes(spans: list[Node]) -> Iterator[Node]:
    for node in spans:
        yield node
        yield from nodes(node["children"])


def names(agent: Agent, request_id: str) -> list[str]:
    return [node["span"]["name"] for node in nodes(agent.call("trace", trace_id=request_id)["spans"])]


def raw(agent: Agent, line: bytes) -> dict[str, Any]:
    """The answer, an error too."""
    connection = agent.connect()
    try:
        return connection.line(line)
    finally:
        connection.close()


def shape(spans: list[Node]) -> list[Any]:
    return [[node["span"]["name"], shape(node["children"])] for node in spans]


def test_a_one_shot_command_shows_where_its_time_went(shared_agent: Agent) -> None:
    agent = shared_agent
    agent.call("exec_command", request_id="one-shot", cmd="echo hi > made", yield_time_ms=20_000)
    found = agent.call("trace", trace_id="one-shot")
    assert found["view"] == "trace" and found["trace"] == "one-shot"
    publish: list[Any] = [
        "workspace_session.publish",
        [["workspace_session.capture_changes", []], ["layerstack.publish", []]],
    ]
    assert shape(found["spans"]) == [
        [
            "daemon.dispatch",
            [
                [
                    "workspace_session.create",
                    [["namespace.exec.mount_overlay", []], ["namespace.runner.spawn_child", []]],
                ],
                [
                    "command.exec",
                    [["namespace.exec.run_shell", []], ["workspace_session.finalize", [publish]]],
                ],
            ],
        ]
    ]
    (root,) = found["spans"]
    assert (
        root["span"]["attrs"] == {"op": "exec_command"}
        and root["offset_ms"] == 0
        and "parent" not in root["span"]
    )
    assert set(root["span"]) == {"ts", "trace", "span", "name", "dur_ms", "status", "attrs"}
    for node in nodes(found["spans"]):
        one = node["span"]
        assert (
            one["status"] == "completed"
            and one["trace"] == "one-shot"
            and isinstance(one["ts"], int)
            and one["dur_ms"] >= 0
        )
        assert one["span"].startswith("np-" if one["name"].startswith("namespace.") else "d-")
        assert 0 <= node["offset_ms"] <= root["span"]["dur_ms"]
        assert all(child["span"]["parent"] == one["span"] for child in node["children"])
    events = [moment["event"]["name"] for node in nodes(found["spans"]) for moment in node["events"]]
    assert events == ["lease.acquired", "lease.released"]


def test_the_page_of_events_names_each_that_the_agent_may_write() -> None:
    (expected,) = [
        a.help for o in OBSERVABILITY if o.name == "events" for a in o.arguments if a.name == "name"
    ]
    sources = [path.read_text() for path in Path(eos_agent.__file__).parent.rglob("*.py")]
    written = {name for text in sources for name in re.findall(r"telemetry\.event\(\s*\"([\w.]+)\"", text)}
    assert "workspace_session.finalize.publish_failed" in written
    names = set(expected.partition(": ")[2].removesuffix(".").split(", "))
    assert written <= names and {"lease.acquired", "layerstack.autosquash.failed"} <= names


def test_every_request_leaves_a_trace_at_once_also_a_failed_one(shared_agent: Agent) -> None:
    agent = shared_agent
    session = agent.session()
    refusals: list[tuple[str, dict[str, Any]]] = [
        ("file_read", {"path": "no/such/file"}),
        ("file_read", {}),
        ("exec_command", {"cmd": ""}),
        ("exec_command", {"cmd": "true", "cwd": "/no/such/folder"}),
        ("destroy_workspace_session", {"workspace_session_id": "none"}),
        ("no_such_operation", {}),
        ("squash_layerstack", {"more": 1}),
        ("list_drafts", {}),
        ("file_write", {"path": "in-session", "content": "x", "workspace_session_id": session}),
        ("preview_publish", {"workspace_session_id": session}),
        ("publish_workspace_session", {"workspace_session_id": session}),
    ]
    for number, (op, args) in enumerate(refusals):
        answer = raw(agent, agent.line(op, f"refused-{number}", **args))
        (root,) = agent.call("trace", trace_id=f"refused-{number}")["spans"]
        assert root["span"]["name"] == "daemon.dispatch"
        assert root["span"]["attrs"]["op"] == (op if op != "no_such_operation" else "unknown")
        assert root["span"]["status"] == ("error" if "error" in answer else "completed"), (op, answer)
        if "error" in answer:
            assert root["span"]["attrs"]["error"] == answer["error"]["kind"]
            assert root["span"]["attrs"]["reason"] == answer["error"]["details"].get("reason", "")


def test_last_is_the_newest_request_that_did_something(agent: Agent) -> None:
    assert agent.call("trace") == {"view": "trace", "trace": "last", "spans": []}
    agent.call("list_drafts", request_id="mine")
    for op in ("snapshot", "events", "topology", "daemon", "resources", "layerstack", "trace"):
        agent.call(op)
    assert agent.call("trace", trace_id="last")["trace"] == "mine"
    assert agent.call("trace", trace_id="nobody") == {"view": "trace", "trace": "nobody", "spans": []}


def test_a_running_command_shows_what_is_over_and_all_of_it_when_it_ended(shared_agent: Agent) -> None:
    agent, session = shared_agent, shared_agent.session()
    started = agent.call(
        "exec_command", request_id="long", cmd="read line", yield_time_ms=0, workspace_session_id=session
    )
    assert names(agent, "long") == ["daemon.dispatch", "namespace.exec.run_shell"]
    agent.call(
        "write_command_stdin",
        command_session_id=started["command_session_id"],
        stdin="x\n",
        yield_time_ms=20_000,
    )
    assert names(agent, "long") == ["daemon.dispatch", "command.exec", "namespace.exec.run_shell"]
    for request_id, args, status in (
        ("late", {"cmd": "sleep 100", "timeout_ms": 1, "yield_time_ms": 20_000}, "timed_out"),
        ("bad", {"cmd": "exit 3", "yield_time_ms": 20_000}, "error"),
    ):
        agent.call("exec_command", request_id=request_id, workspace_session_id=session, **args)
        (root,) = agent.call("trace", trace_id=request_id)["spans"]
        assert [
            (child["span"]["status"], child["span"]["attrs"]["exit_code"]) for child in root["children"]
        ] == [(status, {"late": 124, "bad": 3}[request_id])]
    killed = agent.call(
        "exec_command", request_id="killed", cmd="sleep 100", yield_time_ms=0, workspace_session_id=session
    )
    agent.call(
        "write_command_stdin",
        command_session_id=killed["command_session_id"],
        stdin="\x03",
        yield_time_ms=20_000,
    )
    assert [node["span"]["status"] for node in nodes(agent.call("trace", trace_id="killed")["spans"])][
        1
    ] == "cancelled"


def test_a_write_without_a_session_and_a_squash_have_their_phases(agent: Agent) -> None:
    for number in range(3):
        agent.call("file_write", request_id=f"w{number}", path=f"f{number}", content="x")
    assert names(agent, "w2") == ["daemon.dispatch", "layerstack.publish"]
    assert len(raw(agent, agent.line("squash_layerstack", "sq"))["squashed_blocks"]) == 1
    assert names(agent, "sq") == ["daemon.dispatch", "layerstack.squash"] + [
        f"layerstack.squash.{phase}" for phase in ("plan", "flatten", "commit")
    ]


def test_eight_requests_at_once_nest_right(shared_agent: Agent) -> None:
    agent = shared_agent

    def one(number: int) -> list[Any]:
        request_id = f"at-once-{number}"
        agent.call(
            "exec_command",
            request_id=request_id,
            cmd=f"echo {number} > at-once-{number}",
            yield_time_ms=20_000,
        )
        return [shape(agent.call("trace", trace_id=request_id)["spans"]), request_id]

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        found = list(pool.map(one, range(8)))
    assert len({json.dumps(spans) for spans, _ in found}) == 1
    for _, request_id in found:
        (root,) = agent.call("trace", trace_id=request_id)["spans"]
        sessions = {node["span"]["attrs"].get("workspace_session_id") for node in nodes([root])} - {None}
        assert len(sessions) == 1


def test_rejected_work_is_an_event_of_the_request_that_lost_it(agent: Agent) -> None:
    session = agent.session()
    agent.run("echo a > README.md", session)
    agent.call("file_write", path="README.md", content="b\n")
    with pytest.raises(Failed):
        agent.call("publish_workspace_session", request_id="lost", workspace_session_id=session)
    assert "workspace_session.publish" not in names(agent, "lost")  # the preview refused it
    agent.call("exec_command", request_id="shot", cmd="read x; echo c > README.md", yield_time_ms=0)
    command = agent.call("list_commands")["commands"][-1]["command_session_id"]
    agent.call("file_write", path="README.md", content="d\n")
    agent.call("write_command_stdin", command_session_id=command, stdin="\n", yield_time_ms=20_000)
    (failed,) = agent.call("events", name="workspace_session.finalize.publish_failed")["events"]
    assert failed["trace"] == "shot" and failed["attrs"] == {"reason": "source_conflict", "conflict_count": 1}
    finalize = next(
        node
        for node in nodes(agent.call("trace", trace_id="shot")["spans"])
        if node["span"]["name"].endswith("finalize")
    )
    assert finalize["span"]["status"] == "error"


def test_events_come_in_the_order_of_their_time_and_are_cut_to_the_newest(shared_agent: Agent) -> None:
    agent = shared_agent
    ids = [agent.session() for _ in range(3)]
    for session in ids:
        agent.call("destroy_workspace_session", workspace_session_id=session)
    everything = agent.call("events")["events"]
    assert [one["ts"] for one in everything] == sorted(one["ts"] for one in everything)
    assert (
        set(everything[0]) == {"kind", "ts", "trace", "parent", "name", "attrs"}
        and everything[0]["kind"] == "event"
    )
    assert agent.call("events", last_n=2)["events"] == everything[-2:]
    assert agent.call("events", last_n=0)["events"] == []
    since = everything[-3]["ts"]
    assert agent.call("events", since_ms=since)["events"] == [one for one in everything if one["ts"] >= since]
    assert agent.call("events", since_ms=2**60)["events"] == []
    released = agent.call("events", name="lease.released")["events"]
    assert released == [one for one in everything if one["name"] == "lease.released"]
    assert len([one for one in released if one["attrs"]["holder"] == "session"]) >= 3


def test_answers_stay_below_their_bounds_however_much_is_kept(start_agent: Start) -> None:
    agent = start_agent()
    agent.stop()
    recorder = Telemetry(os.path.join(agent.settings["runtime_dir"], "observability", "observability.ndjson"))
    for name, filling in (("large", "x" * 5000), ("many", "")):
        for _ in range(700):
            with recorder.request(name, filling=filling):
                event(name, filling=filling)
    recorder.close()
    agent.start()
    requests: list[tuple[str, dict[str, Any]]] = [
        ("trace", {"trace_id": "many"}),
        ("trace", {"trace_id": "large"}),
        ("events", {"name": "many"}),
        ("events", {"last_n": 10_000}),
    ]
    for op, args in requests:
        found = agent.call(op, **args)
        records = (
            found["events"]
            if op == "events"
            else [*nodes(found["spans"]), *(e for n in nodes(found["spans"]) for e in n["events"])]
        )
        assert 40 < len(records) <= 500 and len(json.dumps(found)) <= 256 * 1024, (op, args, len(records))
        assert op == "events" or found["truncated"]


def test_no_secret_gets_into_a_trace(agent: Agent) -> None:
    secret = "Zx9secretZx9"
    session = agent.session(agent="somebody")
    agent.call(
        "exec_command",
        request_id="e",
        cmd=f"echo {secret}",
        env=[f"A={secret}"],
        stdin=f"{secret}\n",
        workspace_session_id=session,
    )
    agent.call("file_write", request_id="f", path=f"dir/{secret}", content=secret)
    agent.call(
        "file_write", request_id="g", path=f"{secret}.txt", content=secret, workspace_session_id=session
    )
    for op, args in (
        (secret, {"token": secret}),
        ("file_read", {"path": secret}),
        ("file_edit", {"path": "README.md", "edits": [{"x": secret}]}),
    ):
        assert "error" in raw(agent, agent.line(op, "h", **args))
    agent.call("publish_workspace_session", request_id="p", workspace_session_id=session)
    agent.call("trace")
    folder = os.path.join(agent.settings["runtime_dir"], "observability")
    for name in os.listdir(folder):
        assert os.stat(os.path.join(folder, name)).st_mode & 0o077 == 0
        with open(os.path.join(folder, name)) as file:
            content = file.read()
        assert secret not in content and TOKEN not in content, name


@pytest.mark.parametrize("request_id", ["", "a\nb", '","trace":"e","x":"', "\u202e\ud800", "r" * 500])
def test_a_hostile_request_id_has_a_trace_of_its_own(shared_agent: Agent, request_id: str) -> None:
    scope = {"kind": "sandbox", "sandbox_id": shared_agent.sandbox_id}
    done = {"op": "list_drafts", "request_id": request_id, "scope": scope, "args": {}}
    ask = {"op": "trace", "request_id": "x", "scope": scope, "args": {"trace_id": request_id}}
    answer, found = (raw(shared_agent, json.dumps(one).encode() + b"\n") for one in (done, ask))
    assert "drafts" in answer
    assert [node["span"]["attrs"] for node in found["spans"]] == [{"op": "list_drafts"}]
    assert len(trace_id(request_id)) <= 200


def test_what_was_lost_is_reported_by_health_and_snapshot(start_agent: Start) -> None:
    agent = start_agent(observability={"max_line_bytes": 256})
    for request_id, kept in (("a", ["daemon.dispatch"]), ("b" * 199, [])):
        agent.call("list_drafts", request_id=request_id)
        assert names(agent, request_id) == kept
    lost = agent.call("snapshot")["daemon"]["event_store"]
    assert lost == {"dropped_storage": 0, "dropped_oversized": 1, "truncated_records": 1}
    with open(agent.settings["endpoint_path"]) as file:
        host, port = json.load(file)["http"]
    alive = {"status": "ok", "service": "daemon_http"}
    for headers, expected in (({}, alive), ({"X-Eos-Token": TOKEN}, {**alive, "observability": lost})):
        with urllib.request.urlopen(
            urllib.request.Request(f"http://{host}:{port}/health", headers=headers), timeout=30
        ) as answer:
            assert json.load(answer) == expected


def test_a_killed_agent_goes_on_in_the_same_files(start_agent: Start) -> None:
    agent = start_agent()
    agent.call("list_drafts", request_id="before")
    assert names(agent, "before") == ["daemon.dispatch"]  # asking for it writes it
    path = os.path.join(agent.settings["runtime_dir"], "observability", "observability.ndjson")
    agent.kill()
    with open(path, "ab") as file:
        file.write(b'{"kind":"span","ts":1,"trace":"before","sp')
    agent.start()
    agent.call("list_drafts", request_id="after")
    assert names(agent, "before") == names(agent, "after") == ["daemon.dispatch"]
    agent.stop()
    agent.start()
    assert names(agent, "after") == ["daemon.dispatch"] and agent.call("trace")["trace"] == "after"


@pytest.mark.parametrize("way", ["config", "directory"])
def test_without_telemetry_everything_works_and_the_views_are_empty(way: str) -> None:
    folder = make_short_dir("eos-a-")
    try:
        config: dict[str, Any] = {"observability": {"enabled": False}} if way == "config" else {}
        if way == "directory":
            os.makedirs(os.path.join(folder, "run"))
            with open(os.path.join(folder, "run", "observability"), "w"):
                pass
        with running(folder, {"a": b"x"}, **config) as agent:
            assert agent.call("exec_command", request_id="r", cmd="echo hi > b", yield_time_ms=20_000)[
                "publish"
            ]["published"]
            assert agent.call("trace", trace_id="r")["spans"] == [] and agent.call("events")["events"] == []
            assert (
                agent.call("topology")["topology"]["available"]
                and agent.call("daemon")["daemon"]["available"]
            )
            assert "trend" not in agent.call("layerstack")
            resources = agent.call("resources")
            assert (
                resources["series"] == []
                and resources["availability"] == "unavailable"
                and len(resources["errors"]) == 1
            )
            if way == "config":
                assert not os.path.exists(os.path.join(folder, "run", "observability"))
    finally:
        drop_dir(folder)


def test_lines_on_disk_that_are_no_records_of_ours_hide_no_others(agent: Agent) -> None:
    """JSON that lacks what we always write, or has something else there: of a repaired disk, or of a hand."""
    agent.call("exec_command", request_id="ours", cmd="true", yield_time_ms=20_000)
    agent.call("resources")
    spans = agent.call("trace", trace_id="ours")["spans"]
    events = agent.call("events")["events"]
    folder = os.path.join(agent.settings["runtime_dir"], "observability")
    wrong: list[dict[str, Any]] = [
        {},
        {"ts": "1"},
        {"ts": None, "name": None},
        {"ts": 1},
        {"ts": 1, "name": 2},
    ]
    optional: list[dict[str, Any]] = [
        {"at": "x"},
        {"at": None},
        {"parent": []},
        {"parent": {}},
        {"at": 1, "span": 1, "kind": "span"},
    ]
    wrong += [{"ts": 1, "name": "n", "span": "d-0", **more} for more in optional]
    with open(os.path.join(folder, "observability.ndjson"), "a") as file:
        for kind in ("span", "event"):
            for members in wrong:
                file.write(
                    json.dumps({"kind": kind, "trace": "ours", **members}, separators=(",", ":")) + "\n"
                )
        file.write("[]\nnull\n1\n" + "[" * 10_000 + "\n")
    with open(os.path.join(folder, "resources.ndjson"), "a") as file:
        for members in [*wrong, {"ts": 1, "metrics": 1}]:
            file.write(json.dumps({"scope": "sandbox", **members}, separators=(",", ":")) + "\n")
    assert agent.call("trace", trace_id="ours")["spans"] == spans
    shown = agent.call("events")["events"]
    assert [one for one in shown if one["ts"] != 1] == events and all(
        isinstance(one["name"], str) for one in shown
    )
    assert agent.call("trace", trace_id="last")["spans"]
    for found in (
        agent.call("resources", window_ms=600_000),
        agent.call("cgroup", scope="sandbox", window_ms=600_000),
    ):
        assert found["series"] and all(point["ts"] > 1 for point in found["series"])
