"""What a command leaves behind gets SIGTERM and a grace at the end of its session."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable

import pytest

from tests.native import both as both

from .agent_process import Agent
from .bare_zygote import Box, in_box

pytestmark = [pytest.mark.needs("overlay", "userns")]

NAMESPACES = pytest.mark.parametrize(
    "namespace", [pytest.param("trusted", marks=pytest.mark.needs("root")), "user"]
)
SCRIPTS = {
    "polite": (
        "trap 'sleep 0.1; echo cleaned > cleaned; exit' TERM; echo > armed; while :; do sleep 0.01; done\n"
    ),
    "stubborn": "trap '' TERM; echo > armed; while :; do sleep 0.01; done\n",
    "bomb": "trap '' TERM; f() { (sleep 0.02; f) & }; f; f; f; echo > armed; sleep 1000\n",
}
SERVER = """
import signal, socket, sys
to = socket.create_connection(("127.0.0.1", %d))
signal.signal(signal.SIGTERM, lambda *_: (to.sendall(b"goodbye"), sys.exit()))
to.sendall(b"hello")
while True:
    signal.pause()
"""
BASE = {name: text.encode() for name, text in SCRIPTS.items()}
LONG_S = 600.0
"""A grace that no test waits for to its end."""


def leaving(script: str) -> str:
    """A command that leaves a script behind, in a session of its own, once that has begun."""
    return f"setsid sh ./{script} </dev/null >/dev/null 2>&1 & while ! test -e armed; do sleep 0.01; done"


@NAMESPACES
def test_it_has_the_time_to_tidy_up_and_no_longer_is_waited(namespace: str) -> None:
    async def scenario(box: Box) -> list[bool]:
        found: list[bool] = []
        for name, then in (("runs", ""), ("stopped", "; kill -STOP $!")):
            live = await box.session(name)
            await live.run(leaving("polite") + then)
            await live.init.end(LONG_S)
            found += [os.path.exists(f"{box.folders(name)[0]}/cleaned"), live.init.gone.done()]
        return found

    assert in_box(scenario, namespace=namespace, files=SCRIPTS) == [True] * 4


@NAMESPACES
def test_what_ignores_the_signal_or_forks_on_and_on_is_killed_when_the_grace_is_over(namespace: str) -> None:
    async def scenario(box: Box) -> list[bool]:
        found: list[bool] = []
        for script in ("stubborn", "bomb"):
            live = await box.session(script)
            left = (await live.run(leaving(script))).left_behind
            await live.init.end(0.2)
            found += [bool(left), live.init.gone.done() and not box.in_use(script)]
        return found

    assert in_box(scenario, namespace=namespace, files=SCRIPTS) == [True] * 4


@NAMESPACES
def test_where_nothing_is_left_nobody_is_asked(namespace: str) -> None:
    async def scenario(box: Box) -> list[bool]:
        live = await box.session()
        found = [live.init.alone]
        await live.run("true")
        found.append(live.init.alone)
        running = await live.start(leaving("polite"))
        await running.ended()
        found.append(live.init.alone)
        await live.run("true")
        found.append(live.init.alone)
        await live.init.kill_tree(running.key)
        await live.run("(sleep 0.05 &); sleep 0.01 & wait")
        found.append(live.init.alone)
        return found

    assert in_box(scenario, namespace=namespace, files=SCRIPTS) == [True, True, False, False, True]


def test_a_one_shot_and_a_publish_have_what_was_tidied_up_and_a_server_says_goodbye(
    start_agent: Callable[..., Agent],
) -> None:
    agent = start_agent(BASE, runtime={"workspace": {"left_behind_grace_s": 60}})
    ran = agent.run(f"{leaving('polite')}; rm armed", yield_time_ms=60_000)
    assert [process["name"] for process in ran["left_behind"]][:1] == ["sh"] and ran["publish"][
        "published"
    ], ran
    assert agent.read("cleaned") == "cleaned"
    session = agent.session()
    agent.run(f"rm cleaned; {leaving('polite')}", session)
    agent.call("publish_workspace_session", workspace_session_id=session)
    assert agent.read("cleaned") == "cleaned"
    for how in ("destroy_workspace_session", "the agent's end"):
        session = agent.session()
        with socket.create_server(("127.0.0.1", 0)) as listening:
            listening.settimeout(60)
            agent.call(
                "file_write",
                path="server.py",
                content=SERVER % listening.getsockname()[1],
                workspace_session_id=session,
            )
            agent.run("setsid python3 server.py </dev/null >/dev/null 2>&1 &", session)
            connection, _ = listening.accept()
        with connection:
            connection.settimeout(60)
            assert connection.recv(5) == b"hello"
            if how == "destroy_workspace_session":
                agent.call(how, workspace_session_id=session)
            else:
                assert agent.stop() == 0
            assert connection.recv(100) == b"goodbye"


def test_a_one_shot_is_over_though_something_ignores_the_signal_and_git_leaves_no_lock(
    start_agent: Callable[..., Agent],
) -> None:
    """Seen at commit 83e28fb: `.git/gc.log.lock` and `gc.pid` were published, and no later gc did
    anything.
    """
    agent = start_agent({**BASE, "f": b"0\n"}, runtime={"workspace": {"left_behind_grace_s": 1}})
    assert agent.run(leaving("stubborn"), yield_time_ms=60_000)["publish"]["published"]
    git = "git -c user.name=x -c user.email=x@y"
    many = "for n in $(seq 2000); do printf 'blob\\nmark :%s\\ndata 5\\n%05d\\n' $n $n; done"
    unpack = "git -c fastimport.unpackLimit=5000 fast-import --quiet"
    made = agent.run(
        f"git init -q -b main; git add .; {git} commit -qm first; {many} | {unpack}",
        yield_time_ms=60_000,
    )
    assert made["status"] == "ok", made
    detached = "-c gc.auto=10 -c maintenance.auto=true -c gc.autoDetach=true -c maintenance.autoDetach=true"
    ran = agent.run(f"echo 1 > f; {git} {detached} commit -qam second", yield_time_ms=60_000)
    assert ran["status"] == "ok", ran
    look = (
        "find .git -name '*.lock' -o -name gc.pid -o -name 'tmp_*'; "
        "git -c gc.auto=10 gc --auto >/dev/null 2>&1; ls .git/objects/pack | grep -c 'pack$'"
    )
    assert agent.run(look, yield_time_ms=60_000)["output"] == "1"
