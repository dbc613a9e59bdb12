"""`eos demo` as its user would run it, in each place that it can run in."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests import processes
from tests.users import Person

STEPS = (
    "alice    opens a workspace session",
    "alice    runs the tests: exit code 1",
    "alice    runs the tests again: exit code 0",
    "bob      adds lib/top.sh",
    "the publication is rejected as a whole, her work is kept",
    "conflict: lib/money.sh (content), published first by alice",
    "opens it on the head, with conflict markers",
    "<<<<<<< carol",
    ">>>>>>> alice, version",
    "the draft is gone with it",
    "11 passed, 0 failed",
    "destroyed: no container, no mount, no process is left",
)
SANDBOX = re.compile(r"(eos-[0-9a-f-]{36}) is ready")


def play(
    someone: Person,
    *arguments: str,
    while_it_runs: Callable[[str], None] = lambda sandbox: None,
    **env: str,
) -> str:
    """Run the demo to its end and return what it printed; `while_it_runs` is called once, with the sandbox's
    id, when that is ready.
    """
    dest = someone.home / "result"
    argv = [someone.python, "-m", "eos_mcp.cli.eos", "demo", "--dest", str(dest), *arguments]
    environment = someone.environment(TMPDIR=str(someone.home), **env)
    printed: list[str] = []
    with someone.popen(argv, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
        assert process.stdout is not None
        for line in process.stdout:
            printed.append(line)
            if found := SANDBOX.search(line):
                while_it_runs(found[1])
        process.wait(timeout=60)
    text = "".join(printed)
    assert process.returncode == 0, text
    for step in STEPS:
        assert step in text, f"{step!r} is missing in\n{text}"
    assert (dest / "lib" / "top.sh").is_file()
    done = subprocess.run(["/bin/sh", "tests/run.sh"], cwd=dest, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout.split("\n")[-2]) == (0, "11 passed, 0 failed")
    log = ["git", "-C", str(dest), "-c", "safe.directory=*", "log", "--format=%an: %s", "eos/demo"]
    history = subprocess.run(log, capture_output=True, text=True, timeout=60, check=True).stdout
    newest = history.splitlines()[:3]
    assert sorted(newest) == [
        "alice: Print the sign of a negative amount once",
        "bob: Report the three largest expenses",
        "carol: Take the decimal point from TALLY_POINT",
    ], history
    assert all(f" {line}\n" in text for line in newest), text
    return text


def containers() -> list[str]:
    argv = ["docker", "ps", "--all", "--format", "{{json .}}"]
    lines = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=True).stdout.splitlines()
    return [json.loads(line)["Names"] for line in lines]


@pytest.mark.needs("dockerd")
@pytest.mark.parametrize("name", [pytest.param("debian", marks=pytest.mark.soak), "busybox"])
def test_docker_ps_shows_the_demo_s_container_while_it_runs_and_nothing_of_it_afterwards(
    person: Callable[[str], Person], image: Callable[[str], str], name: str
) -> None:
    seen: list[str] = []

    def look(sandbox: str) -> None:
        seen.append(sandbox)
        assert sandbox in containers()

    play(person("root"), "--backend", "docker", "--image", image(name), while_it_runs=look)
    assert len(seen) == 1
    assert seen[0] not in containers()
    volumes = subprocess.run(
        ["docker", "volume", "ls", "-q"], capture_output=True, text=True, timeout=60, check=True
    ).stdout
    assert seen[0] not in volumes


@pytest.mark.needs("uid", "userns")
def test_without_an_engine_and_a_place_for_its_cache_the_demo_says_so_and_an_ordinary_user_sees_its_end(
    person: Callable[[str], Person],
) -> None:
    someone = person("ordinary")
    out = play(someone, DOCKER_HOST=f"unix://{someone.home}/none.sock", XDG_CACHE_HOME="/proc/nowhere")
    assert "no Docker engine answers" in out
    assert "alice    commits\n" in out and "carol    commits\n" in out, "they have git"
    assert os.stat(someone.home / "result" / "lib" / "top.sh").st_uid == someone.uid
    assert processes.processes_that_name(str(someone.home)) == []


@pytest.mark.soak
@pytest.mark.needs("overlay", "root")
def test_the_demo_runs_to_its_end_on_the_machine_as_root(person: Callable[[str], Person]) -> None:
    play(person("root"), "--backend", "local")


def test_a_wrong_argument_of_the_demo_is_named(person: Callable[[str], Person]) -> None:
    someone = person("root")
    code, out, err = someone.run([someone.python, "-m", "eos_mcp.cli.eos", "demo", "--backend", "vm"])
    assert (code, out) == (2, "")
    assert "--backend is auto, docker or local, not vm" in err


def test_the_project_of_the_demo_has_a_history_that_git_accepts(tmp_path: Path) -> None:
    from eos_mcp.demo import project

    assert project.unpack(tmp_path) == len(project.HISTORY)
    git = ["git", "-C", str(tmp_path), "-c", "safe.directory=*"]

    def ask(*argv: str) -> str:
        return subprocess.run([*git, *argv], capture_output=True, text=True, timeout=60, check=True).stdout

    ask("fsck", "--strict")
    assert ask("status", "--porcelain") == ""
    assert len(ask("log", "--oneline").splitlines()) == len(project.HISTORY)
