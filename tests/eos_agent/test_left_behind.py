"""What a command leaves behind gets SIGTERM and a grace at the end of its session."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable

import pytest

from tests.native import both as both

from .agent_process import Agent
from .box import Box, in_box

pytestmark = [pytest.mark.needs("overlay", "userns")]

FORMS = pytest.mark.parametrize("form", [pytest.param("trusted", marks=pytest.mark.needs("root")), "user"])
SCRIPTS = {
    "polite": "trap 'sleep 0.1; echo cleaned > cleaned; exit' TERM; echo > armed; while :; do sleep 0.01; done\n",
    "stubborn": "trap '' TERM; echo > armed; while :; do sleep 0.01; done\n",
    "bomb": "trap '' TERM; f() { (sleep 0.02; f) & }; f; f; f; echo > armed; sleep 1000\n",
}
BASE = {name: text.encode() for name, text in SCRIPTS.items()}
LONG_S = 600.0
"""A grace that no test waits for to its end."""


def leaving(script: str) -> str:
    """A command that leaves a script behind, in a session of its own, once that has begun."""
    return f"setsid sh ./{script} </dev/null >/dev/null 2>&1 & while ! test -e armed; do sleep 0.01; done"


@FORMS
@pytest.mark.parametrize("stop", ["", "; kill -STOP $!"], ids=["running", "stopped"])
def test_it_has_the_time_to_tidy_up_and_no_longer_is_waited(form: str, stop: str) -> None:
    async def scenario(box: Box) -> tuple[bool, bool]:
        live = await box.session("s")
        await live.run(leaving("polite") + stop)
        await live.runner.end(LONG_S)
        return os.path.exists(f"{box.folders('s')[0]}/cleaned"), live.runner.gone.done()

    assert in_box(scenario, form=form, files=SCRIPTS) == (True, True)


@FORMS
@pytest.mark.parametrize("script", ["stubborn", "bomb"])
def test_what_ignores_the_signal_or_forks_on_and_on_is_killed_when_the_grace_is_over(form: str, script: str) -> None:
    async def scenario(box: Box) -> tuple[bool, bool]:
        live = await box.session("s")
        left = (await live.run(leaving(script))).left_behind
        await live.runner.end(0.2)
        return bool(left), live.runner.gone.done() and not box.in_use("s")

    assert in_box(scenario, form=form, files=SCRIPTS) == (True, True)


@FORMS
def test_where_nothing_is_left_nobody_is_asked(form: str) -> None:
    async def scenario(box: Box) -> list[bool]:
        live = await box.session()
        found = [live.runner.alone]
        await live.run("true")
        found.append(live.runner.alone)
        running = await live.start(leaving("polite"))
        await running.ended()
        found.append(live.runner.alone)
        await live.run("true")
        found.append(live.runner.alone)
        await live.runner.kill_tree(running.key)
        await live.run("(sleep 0.05 &); sleep 0.01 & wait")
        found.append(live.runner.alone)
        return found

    assert in_box(scenario, form=form, files=SCRIPTS) == [True, True, False, False, True]


def test_a_one_shot_publishes_what_was_tidied_up(start_agent: Callable[..., Agent]) -> None:
    agent = start_agent(BASE, runtime={"workspace": {"left_behind_grace_s": 60}})
    ran = agent.run(leaving("polite"), yield_time_ms=60_000)
    assert [process["name"] for process in ran["left_behind"]][:1] == ["sh"] and ran["publish"]["published"], ran
    assert agent.read("cleaned") == "cleaned\n"


def test_a_one_shot_is_over_though_something_ignores_the_signal(start_agent: Callable[..., Agent]) -> None:
    agent = start_agent(BASE, runtime={"workspace": {"left_behind_grace_s": 0.1}})
    assert agent.run(leaving("stubborn"), yield_time_ms=60_000)["publish"]["published"]
    assert agent.run("echo goes on")["output"] == "goes on"


def test_a_publish_lets_it_tidy_up(start_agent: Callable[..., Agent]) -> None:
    agent = start_agent(BASE, runtime={"workspace": {"left_behind_grace_s": 60}})
    session = agent.session()
    agent.run(leaving("polite"), session)
    agent.call("publish_workspace_session", workspace_session_id=session)
    assert agent.read("cleaned") == "cleaned\n"


@pytest.mark.parametrize("how", ["destroy_workspace_session", "the agent ends"])
def test_a_server_says_goodbye_when_its_session_is_destroyed_or_the_agent_ends(start_agent: Callable[..., Agent], how: str) -> None:
    agent = start_agent({}, runtime={"workspace": {"left_behind_grace_s": 60}})
    session = agent.session()
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.settimeout(60)
        port = listening.getsockname()[1]
        server = (
            "import signal, socket, sys\n"
            f"to = socket.create_connection(('127.0.0.1', {port}))\n"
            "signal.signal(signal.SIGTERM, lambda *_: (to.sendall(b'goodbye'), sys.exit()))\n"
            "to.sendall(b'hello')\nwhile True: signal.pause()\n"
        )
        agent.call("file_write", path="server.py", content=server, workspace_session_id=session)
        agent.run("setsid python3 server.py </dev/null >/dev/null 2>&1 &", session)
        connection, _ = listening.accept()
        with connection:
            connection.settimeout(60)
            assert connection.recv(5) == b"hello"
            if how == "the agent ends":
                assert agent.stop() == 0
            else:
                agent.call(how, workspace_session_id=session)
            assert connection.recv(100) == b"goodbye"


def test_a_gc_that_git_left_behind_leaves_no_lock(start_agent: Callable[..., Agent]) -> None:
    """Seen at commit 83e28fb: `.git/gc.log.lock` and `gc.pid` were published, and no later gc did anything."""
    agent = start_agent({"f": b"0\n"}, runtime={"workspace": {"left_behind_grace_s": 60}})
    git = "git -c user.name=x -c user.email=x@y"
    many = "for n in $(seq 2000); do printf 'blob\\nmark :%s\\ndata 5\\n%05d\\n' $n $n; done"
    unpack = "git -c fastimport.unpackLimit=5000 fast-import --quiet"
    made = agent.run(f"git init -q -b main; git config gc.auto 10; git add .; {git} commit -qm first; {many} | {unpack}", yield_time_ms=60_000)
    assert made["status"] == "ok", made
    detached = "-c gc.autoDetach=true -c maintenance.autoDetach=true"
    ran = agent.run(f"echo 1 > f; {git} {detached} commit -qam second", yield_time_ms=60_000)
    assert ran["status"] == "ok" and "dropped" not in ran["publish"], ran
    look = "find .git -name '*.lock' -o -name gc.pid -o -name 'tmp_*'; git gc --auto 2>/dev/null; ls .git/objects/pack | grep -c 'pack$'"
    assert agent.run(look, yield_time_ms=60_000)["output"] == "1"


def test_git_keeps_to_the_foreground_and_what_a_caller_configures_counts(start_agent: Callable[..., Agent]) -> None:
    agent = start_agent({})
    keys = ("gc.autoDetach", "maintenance.autoDetach", "safe.directory", "core.checkStat")
    ask = "; ".join(f"git config {key}" for key in keys)
    assert agent.run(ask)["output"].split() == ["false", "false", "*", "minimal"]
    own = ["GIT_CONFIG_COUNT=2", "GIT_CONFIG_KEY_0=user.name", "GIT_CONFIG_VALUE_0=me", "GIT_CONFIG_KEY_1=gc.autodetach", "GIT_CONFIG_VALUE_1=true"]
    assert agent.run(f"git config user.name; {ask}", env=own)["output"].split() == ["me", "true", "false", "*", "minimal"]
    assert agent.run("git config user.name || echo $?", env=["GIT_CONFIG_COUNT=none"])["output"].endswith("128")
    agent.settings["container_env"] = {"GIT_CONFIG_COUNT": "1", "GIT_CONFIG_KEY_0": "user.name", "GIT_CONFIG_VALUE_0": "image"}
    agent.stop()
    agent.start()
    assert agent.run(f"git config user.name; {ask}")["output"].split() == ["image", "false", "false", "*", "minimal"]
