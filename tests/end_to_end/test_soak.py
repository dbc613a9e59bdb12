"""Eight threads that create, run, write, publish and destroy for a while: then nothing is left of it but what
was published.

Five seconds in the gate, sixty with `make soak`; EOS_SOAK_S sets another length for the long one.
"""

from __future__ import annotations

import concurrent.futures
import os
import random
import time
from collections import Counter
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests import cgroup_tree
from tests.end_to_end.cli_user import Container, Desks, Sandbox
from tests.end_to_end.direct import Direct
from tests.processes import children_of, descendants, mounts_that_name

pytestmark = [pytest.mark.needs("overlay", "userns", "root")]

THREADS = 8
SETTLE_S = 30
LENGTHS = [
    pytest.param(5.0, id="five-seconds"),
    pytest.param(float(os.environ.get("EOS_SOAK_S", "60")), id="long", marks=pytest.mark.soak),
]
PLACES = [
    "host",
    pytest.param("ordinary", marks=[pytest.mark.needs("uid"), pytest.mark.soak]),
    pytest.param("busybox", marks=[pytest.mark.needs("dockerd"), pytest.mark.soak]),
]


class Left(NamedTuple):
    """What a sandbox holds of the machine; only what may not grow."""

    processes: int
    zombies: list[str]
    mounts: int
    cgroups: int
    descriptors: int
    sessions: list[str]
    leases: int
    staging: int
    listed: int


def look(sandbox: Sandbox, direct: Direct) -> Left:
    agent = sandbox.agent()
    below = descendants(agent)
    stack = direct.do("layerstack")
    return Left(
        processes=len(below),
        zombies=[str(pid) for pid in [agent, *below] if _state(pid) == "Z"],
        mounts=len(mounts_that_name(sandbox.id)),
        cgroups=len(cgroup_tree.folders_of(sandbox.id)),
        descriptors=len(os.listdir(f"/proc/{agent}/fd"))
        + len(os.listdir(f"/proc/{min(children_of(agent))}/fd")),
        sessions=sorted(os.listdir(sandbox.store / "sessions")),
        leases=stack["active_lease_count"],
        staging=stack["staging_entry_count"],
        listed=len(direct.do("list_workspace_sessions")["sessions"]),
    )


def at_rest(sandbox: Sandbox, direct: Direct, wanted: Left | None = None) -> Left:
    """What is left once it stays the same (with `wanted`: no more than that), since the kernel frees some of
    it behind everybody's back.
    """
    end, last = time.monotonic() + SETTLE_S, list[Left]()
    while time.monotonic() < end:
        last = [*last[-4:], look(sandbox, direct)]
        if wanted is not None and not grown(wanted, last[-1]):
            break
        if wanted is None and len(last) == 5 and len(set(map(repr, last))) == 1:
            break
    return last[-1]


def grown(before: Left, after: Left) -> dict[str, tuple[Any, Any]]:
    """What is more than it was."""
    pairs: list[tuple[str, Any, Any]] = list(zip(Left._fields, before, after, strict=True))
    return {name: (old, new) for name, old, new in pairs if new > old}


def _state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0]
    except OSError:
        return ""


@pytest.fixture
def sandbox(request: pytest.FixtureRequest, desk: Desks, image: Callable[[str], str]) -> Generator[Sandbox]:
    at = desk("ordinary" if request.param == "ordinary" else "root")
    made = at.create(image(request.param) if request.param == "busybox" else "host")
    yield made
    if isinstance(made, Container) and made.id in str(at.do("manager", "list_sandboxes")):
        made.destroy()


def meet(direct: Direct, pool: concurrent.futures.ThreadPoolExecutor) -> None:
    """One request of every thread at the same moment: as many connections to the agent as there will ever be
    are made, and kept.
    """
    session = direct.do("create_workspace_session")["workspace_session_id"]
    wait = f"mkdir met/$0; while [ $(ls met | wc -l) -lt {THREADS} ]; do sleep 0.02; done"

    def come(number: int) -> None:
        cmd = f"sh -c '{wait}' {number}"
        assert (
            direct.do("exec_command", cmd=cmd, workspace_session_id=session, yield_time_ms=60_000)["status"]
            == "ok"
        )

    direct.do("exec_command", cmd="mkdir met", workspace_session_id=session, yield_time_ms=60_000)
    assert len(list(pool.map(come, range(THREADS)))) == THREADS
    direct.do("destroy_workspace_session", workspace_session_id=session)


def turn(direct: Direct, number: int, dice: random.Random, files: set[str]) -> str:
    """One session, or one command without; what was published is added to `files`. Returns what it was."""
    name = f"t{number}/{dice.randrange(10**9)}"
    way = dice.choice(("publish", "keep_open", "destroy", "one_shot", "cancel", "left_behind"))
    if way == "one_shot":
        ran = direct.do(
            "exec_command", cmd=f"mkdir -p t{number}; echo {name} > {name}; cat {name}", yield_time_ms=60_000
        )
        assert (ran["status"], ran["output"], ran["publish"]["published"]) == ("ok", name, True), ran
        files.add(name)
        return way
    if way == "cancel":
        ran = direct.do("exec_command", cmd="sleep 1000 & setsid sleep 1000 & read x", yield_time_ms=0)
        direct.do("write_command_stdin", command_session_id=ran["command_session_id"], stdin="\x03")
        assert (
            direct.do("wait_command", command_session_id=ran["command_session_id"], timeout_ms=60_000)[
                "status"
            ]
            == "cancelled"
        )
        return way
    session = direct.do("create_workspace_session", agent=f"thread {number}", ttl_s=600)[
        "workspace_session_id"
    ]
    mine = {"workspace_session_id": session}
    direct.do("file_write", path=name, content=f"{name}\n", **mine)
    ran = direct.do("exec_command", cmd=f"cat {name}; echo more >> {name}", yield_time_ms=60_000, **mine)
    assert (ran["status"], ran["output"]) == ("ok", name), ran
    if way == "left_behind":
        direct.do(
            "exec_command",
            cmd="setsid sleep 1000 > /dev/null 2>&1 < /dev/null &",
            yield_time_ms=60_000,
            **mine,
        )
    if way == "keep_open":
        assert direct.do("publish_workspace_session", keep_open=True, **mine)["kept_open"] is True
        files.add(name)
        assert direct.do("destroy_workspace_session", if_clean=True, **mine)["discarded"]["count"] == 0
    elif way == "publish":
        assert direct.do("publish_workspace_session", **mine)["publish"]["no_op"] is False
        files.add(name)
    else:
        assert name in direct.do("destroy_workspace_session", grace_s=60, **mine)["discarded"]["paths"]
    return way


@pytest.mark.parametrize("sandbox", PLACES, indirect=True)
@pytest.mark.parametrize("length_s", LENGTHS)
def test_after_eight_threads_of_sessions_nothing_is_left_but_what_they_published(
    sandbox: Sandbox, length_s: float
) -> None:
    direct = Direct(sandbox)
    seed = random.randrange(2**32)

    def thread(number: int, until: float) -> tuple[Counter[str], set[str]]:
        dice, done, files = random.Random(f"{seed} {number} {until}"), Counter[str](), set[str]()
        while time.monotonic() < until or not done:
            done[turn(direct, number, dice, files)] += 1
        return done, files

    with concurrent.futures.ThreadPoolExecutor(THREADS) as pool:
        meet(direct, pool)
        warm = list(pool.map(thread, range(THREADS), [0.0] * THREADS))
        before = at_rest(sandbox, direct)
        until = time.monotonic() + length_s
        results = list(pool.map(thread, range(THREADS), [until] * THREADS))
    assert before == before._replace(zombies=[], sessions=[], leases=0, staging=0, listed=0)
    assert grown(before, at_rest(sandbox, direct, before)) == {}, f"seed {seed}"
    published = set[str]().union(*(files for _, files in (*warm, *results)))
    shown = direct.do("exec_command", cmd="find t* -type f | sort", yield_time_ms=60_000)
    assert set(_all_lines(direct, shown)) == published, f"seed {seed}"
    total = sum((done for done, _ in results), Counter[str]())
    assert all(total[way] for way in ("publish", "destroy", "one_shot")), total
    print(f"\n{sum(total.values())} turns in {length_s:g} s: {dict(total)}")


def _all_lines(direct: Direct, shown: dict[str, Any]) -> list[str]:
    lines: list[str] = shown["output"].split("\n")
    at = shown["end_offset"]
    while at < shown["total_lines"]:
        page = direct.do(
            "read_command_lines", command_session_id=shown["command_session_id"], start_offset=at, limit=1000
        )
        lines += page["output"].split("\n")
        at = page["end_offset"]
    return lines
