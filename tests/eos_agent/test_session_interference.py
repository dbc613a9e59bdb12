"""Commands inside a session that work against the agent: links that move under a file operation, names and
files made to confuse, floods.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from .agent_process import Agent, Failed

pytestmark = pytest.mark.needs("overlay")

# Each name is a folder, a link out of the workspace, a file and a FIFO in turn, as fast as a process can do
# it.
SWAPPER = r"""
import os
os.makedirs('/tmp/out/sub', exist_ok=True)
for name in ('secret', 'sub/secret'):
    with open('/tmp/out/' + name, 'w') as f: f.write('SECRET\n')
os.makedirs('real/sub', exist_ok=True)
os.makedirs('made', exist_ok=True)
def turn(name, make):
    new = 'made/' + os.urandom(6).hex()
    make(new)
    try:
        os.rename(new, name)
    except OSError:
        os.rename(name, 'made/' + os.urandom(6).hex())
        os.rename(new, name)
print('swapping', flush=True)
while True:
    try:
        for make in (os.mkdir, lambda n: os.symlink('/tmp/out', n), lambda n: os.symlink('real', n)):
            turn('d', make)
        for make in (lambda n: os.close(os.open(n, os.O_CREAT)), lambda n: os.symlink('/tmp/out/secret', n), os.mkfifo):
            turn('f', make)
    except OSError:
        pass
"""  # noqa: E501


def test_links_that_move_under_a_file_operation_lead_nowhere(shared_agent: Agent) -> None:
    session = shared_agent.session()
    shared_agent.call("file_write", path="swap.py", content=SWAPPER, workspace_session_id=session)
    command = shared_agent.run("exec python3 swap.py", session, yield_time_ms=1000)
    assert "swapping" in command["output"], command
    kinds: set[str] = set()
    args: dict[str, Any]
    for number in range(60):
        for op, args in (
            ("file_read", {"path": "d/secret"}),
            ("file_read", {"path": "f"}),
            ("file_write", {"path": "d/written", "content": f"{number}"}),
            ("file_write", {"path": "d/sub/deep", "content": f"{number}"}),
            ("file_write", {"path": "f", "content": f"{number}"}),
            ("file_edit", {"path": "d/secret", "edits": [{"old_string": "SECRET", "new_string": "mine"}]}),
            ("file_list", {"path": "d"}),
        ):
            try:
                answer = shared_agent.call(op, workspace_session_id=session, **args)
                kinds.add("ok")
            except Failed as error:
                kinds.add(error.kind)
                continue
            assert "SECRET" not in json.dumps(answer) and "secret" not in json.dumps(answer.get("entries")), (
                op,
                args,
                answer,
            )
    assert kinds <= {"ok", "invalid_request", "not_found", "operation_failed"}
    shared_agent.call("signal_command", command_session_id=command["command_session_id"], signal="KILL")
    found = shared_agent.run("cd /tmp/out && find . -type f | sort | xargs cat; find . | sort", session)[
        "output"
    ]
    assert found.split("\n") == ["SECRET", "SECRET", ".", "./secret", "./sub", "./sub/secret"]
    shared_agent.call("destroy_workspace_session", workspace_session_id=session, grace_s=10)


@pytest.mark.parametrize("name", ["a) R 1 1 1", "new\nline\\377\\033[2J", "-"])
def test_a_process_may_have_any_name(shared_agent: Agent, name: str) -> None:
    session = shared_agent.session()
    quoted = f"$(printf -- '{name}')"
    command = shared_agent.run(
        f'cp "$(command -v sleep)" "./{quoted}" && (exec "./{quoted}" 30) &', session, yield_time_ms=700
    )
    assert command["status"] == "running" and command["leader_exit_code"] == 0
    listed: list[dict[str, Any]] = command["waiting_on"]
    assert listed and all(set(each) == {"pid", "name"} and isinstance(each["name"], str) for each in listed)
    cancelled = shared_agent.call(
        "write_command_stdin", command_session_id=command["command_session_id"], stdin="\x03"
    )
    assert (cancelled["status"], cancelled["exit_code"]) == ("cancelled", 130)
    shared_agent.call("destroy_workspace_session", workspace_session_id=session, grace_s=10)


def test_escapes_of_a_terminal_stay_text(shared_agent: Agent) -> None:
    session = shared_agent.session()
    raw_text = shared_agent.run("printf '\\033]0;title\\007\\233\\302\\2332J\\0\\r\\n{\"error\":1}'", session)
    assert (
        raw_text["status"] == "ok" and raw_text["output"].endswith('{"error":1}') and "error" not in raw_text
    )
    assert "\x1b]0;title\x07" in raw_text["output"]
    shared_agent.call("destroy_workspace_session", workspace_session_id=session)


def test_thousands_of_descriptors_and_processes_of_one_session_cost_another_nothing(
    shared_agent: Agent,
) -> None:
    one, other = shared_agent.session(), shared_agent.session()
    script = (
        "import os,subprocess,sys\np=[os.pipe() for _ in "
        "range(400)]\nc=[subprocess.Popen(['sleep','60']) for _ in "
        "range(200)]\nprint('there',flush=True)\nc[0].wait()"
    )
    shared_agent.call("file_write", path="many.py", content=script, workspace_session_id=one)
    command = shared_agent.run("exec python3 many.py", one, yield_time_ms=3000)
    assert "there" in command["output"]
    assert shared_agent.run("echo fine", other)["output"] == "fine"
    preview = shared_agent.call("preview_publish", workspace_session_id=one)
    assert preview["would_publish"] is True
    shared_agent.call("write_command_stdin", command_session_id=command["command_session_id"], stdin="\x03")
    assert shared_agent.run("ls /proc | grep -c '^[0-9]'", one)["status"] == "ok"
    for session in (one, other):
        shared_agent.call("destroy_workspace_session", workspace_session_id=session, grace_s=10)


def test_the_agents_ports_want_the_token_from_a_command(shared_agent: Agent) -> None:
    with open(shared_agent.settings["endpoint_path"]) as file:
        endpoint = json.load(file)
    script = f"""
import json, os, socket
for port in ({endpoint["tcp"][1]}, {endpoint["http"][1]}):
    for token in (None, '', 'x', ['x'], 'x' * 1000):
        with socket.create_connection(('127.0.0.1', port), 10) as s:
            scope = {{'kind': 'sandbox', 'sandbox_id': 'eos-test'}}
            line = {{'op': 'list_drafts', 'request_id': 'r', 'scope': scope, 'args': {{}}, '_sandbox_daemon_auth_token': token}}
            s.sendall(json.dumps(line).encode() + b'\\r\\n\\r\\n')
            print(s.makefile('rb').read(200))
"""  # noqa: E501
    session = shared_agent.session()
    shared_agent.call("file_write", path="knock.py", content=script, workspace_session_id=session)
    heard = shared_agent.run("python3 knock.py", session, tty=False)["output"].split("\n")
    assert (
        len(heard) == 10
        and all(b"unauthorized" in line.encode() for line in heard[:5])
        and all("400" in line for line in heard[5:])
    )
    environment = shared_agent.run(
        "env; cat /proc/*/environ /proc/*/cmdline 2>/dev/null | tr '\\0' '\\n'", session, tty=False
    )["output"]
    with open(shared_agent.settings["token_file"]) as file:
        assert file.read().strip() not in environment
    shared_agent.call("destroy_workspace_session", workspace_session_id=session)
