"""The settings file and the environment that it gives to commands; the keys that bring back the reference's
behaviour.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from typing import Any

import pytest

from eos_agent.base import settings
from eos_agent.base.settings import SettingsError
from eos_agent.handles.environment import base_environment, command_environment

from .agent_process import Agent, refused

GOOD: dict[str, Any] = {
    "format": 1,
    "sandbox_id": "eos-1",
    "provider": "docker",
    "workspace_root": "/workspace",
    "layer_stack_root": "/eos/layer-stack",
    "scratch_root": "/eos/workspace",
    "runtime_dir": "/eos/runtime/daemon",
    "base_root_hash": "0" * 64,
    "base_dir": None,
    "token_file": "/eos/config/token",
    "tcp_host": "0.0.0.0",
    "tcp_port": 7000,
    "http_host": "0.0.0.0",
    "http_port": 7001,
    "socket_path": "/eos/runtime/daemon/runtime.sock",
    "pid_path": "/eos/runtime/daemon/runtime.pid",
    "endpoint_path": "/eos/runtime/daemon/endpoint.json",
    "rootfs": None,
    "hidden_paths": ["/eos"],
    "image_env": ["PATH=/image/bin", "LANG=C.UTF-8", "MINE=1"],
    "container_env": {"ADDED": "2", "LANG": "de_DE.UTF-8"},
    "path": None,
    "private_dirs": [],
    "config": {"runtime": {"command": {"max_active": 7}}},
    "some_future_key": 1,
}


def test_a_good_file_is_read_and_unknown_keys_are_let_be(short_dir: str) -> None:
    path = os.path.join(short_dir, "agent.json")
    with open(path, "w") as file:
        json.dump(GOOD, file)
    found = settings.load(path)
    assert found.tcp_port == 7000 and found.hidden_paths == ("/eos",) and not found.local
    assert found.get("runtime.command.max_active", 32) == 7
    assert found.get("runtime.command.no_such", 32) == found.get("nothing.at.all", 32) == 32
    assert found.transcripts == "/eos/workspace/commands"


@pytest.mark.parametrize(
    ("change", "names"),
    [
        ({"format": 2}, "format"),
        ({"provider": "cloud"}, "provider"),
        ({"tcp_port": "7000"}, "tcp_port"),
        ({"tcp_port": True}, "tcp_port"),
        ({"sandbox_id": ""}, "sandbox_id"),
        ({"hidden_paths": "/eos"}, "hidden_paths"),
        ({"container_env": []}, None),
        ({"config": [1]}, "config"),
        ({"config": {"runtime": {"layerstack": {"reserved_names": "reference"}}}}, "reserved_names"),
        ({"config": {"runtime": {"layerstack": {"recreated_directory": "conflict"}}}}, "recreated_directory"),
    ],
)
def test_a_bad_value_is_refused_by_its_key(change: dict[str, Any], names: str | None) -> None:
    if names is None:  # empty is the same as absent
        assert settings.parse({**GOOD, **change}).container_env == {}
        return
    with pytest.raises(SettingsError, match=names):
        settings.parse({**GOOD, **change})


def test_a_missing_or_damaged_file_is_named(short_dir: str) -> None:
    with pytest.raises(SettingsError, match=r"none\.json"):
        settings.load(os.path.join(short_dir, "none.json"))
    with open(os.path.join(short_dir, "bad.json"), "w") as file:
        file.write("{")
    with pytest.raises(SettingsError, match="not JSON"):
        settings.load(os.path.join(short_dir, "bad.json"))


def test_the_environment_is_the_images_then_the_containers_then_ours() -> None:
    found = base_environment(settings.parse(GOOD))
    assert (found["PATH"], found["LANG"], found["MINE"], found["ADDED"]) == (
        "/image/bin",
        "de_DE.UTF-8",
        "1",
        "2",
    )
    assert (found["HOME"], found["PAGER"], found["GIT_OPTIONAL_LOCKS"], found["EOS_WORKSPACE"]) == (
        "/root",
        "cat",
        "0",
        "/workspace",
    )
    assert command_environment(found, {"PAGER": "less"}, tty=True)["PAGER"] == "less"
    assert "TERM" in command_environment(found, {}, tty=True) and "TERM" not in command_environment(
        found, {}, tty=False
    )


def test_the_allow_list_drops_what_else_the_image_sets() -> None:
    config = {"runtime": {"command": {"environment": "allow_list"}}}
    found = base_environment(settings.parse({**GOOD, "config": config}))
    assert "MINE" not in found and found["ADDED"] == "2" and found["PATH"] == "/image/bin"
    local = {
        **GOOD,
        "provider": "local",
        "path": "/usr/bin:/hidden/bin:relative:/bin",
        "private_dirs": ["/hidden"],
    }
    found = base_environment(settings.parse(local))
    assert "MINE" not in found and found["PATH"] == "/usr/bin:/bin"


@pytest.mark.needs("overlay")
def test_the_references_ways_come_back_by_configuration(start_agent: Callable[..., Agent]) -> None:
    agent = start_agent(
        runtime={
            "command": {"unknown_id": "empty_ok", "stdin_control": "anywhere", "read_lines_max": 3},
            "file": {
                "max_edit_bytes": 10,
                "max_output_bytes": 4,
                "max_list_entries": 2,
                "read_lines_default": 1,
            },
        },
        observability={"enabled": False},
    )
    nothing = agent.call("read_command_lines", command_session_id="namespace_execution_77")
    assert (nothing["status"], nothing["exit_code"], nothing["output"], nothing["total_lines"]) == (
        "ok",
        None,
        "",
        0,
    )
    session = agent.session()
    command = agent.run("sleep 1000", session, yield_time_ms=0)["command_session_id"]
    assert (
        agent.call("write_command_stdin", command_session_id=command, stdin="text\x03more")["status"]
        == "cancelled"
    )
    done = agent.run("seq 10", session, yield_time_ms=0)["command_session_id"]
    agent.call("wait_command", command_session_id=done, timeout_ms=60_000)
    assert agent.call("read_command_lines", command_session_id=done, limit=9)["end_offset"] == 3
    for where in ({}, {"workspace_session_id": session}):
        assert len(agent.call("file_list", **where)["entries"]) == 2
        assert agent.call("file_read", path="src/app.py", offset=6, **where)["content"] == "six"
        for op, args, words in (
            ("file_read", {"path": "src/app.py", "limit": 3}, "exceeds the maximum of 4 bytes"),
            (
                "file_edit",
                {"path": "src/app.py", "edits": [{"old_string": "one", "new_string": "1"}]},
                "too large",
            ),
        ):
            connection = agent.connect()
            error = connection.line(agent.line(op, **args, **where))["error"]
            connection.close()
            assert error["kind"] == "invalid_request" and words in error["message"]


@pytest.mark.needs("overlay")
def test_units_of_the_configuration_are_the_agents_units(start_agent: Callable[..., Agent]) -> None:
    agent = start_agent(
        runtime={"layerstack": {"units": [{"name": "search index", "root": "src", "members": ["*.idx"]}]}}
    )
    session = agent.session()
    agent.call("file_write", path="src/a.idx", content="a\n", workspace_session_id=session)
    agent.call("file_write", path="src/b.idx", content="b\n")
    error = refused(lambda: agent.call("publish_workspace_session", workspace_session_id=session))
    (conflict,) = error.details["publish_rejection"]["conflicts"]
    assert (conflict["path"], conflict["class"], conflict["unit"]["name"]) == ("src", "unit", "search index")
