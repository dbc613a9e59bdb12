"""The table of escapes, run as commands in a real container: of Python where the image has one, and of
attacks.c where there is nothing.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import docker
import pytest

from tests import probes
from tests.end_to_end.docker_place import Place
from tests.end_to_end.docker_place import place as place
from tests.eos_agent import attacks, confined, escapes

from .manager_fixture import Host, records

pytestmark = [pytest.mark.needs("dockerd")]
ROOT = Path(__file__).parents[2]
KINDS: dict[str, dict[str, str]] = {
    "docker": {},
    "docker-read-only": {"rootfs": "read_only"},
    "docker-isolated": {"network_profile": "isolated"},
}
OTHER_TMP, OTHER_ABSTRACT, AGENT_PORT, HTTP_PORT = "/tmp/eos-test-other", "eos-test-other", 7000, 7001
TRY = """
import json, sys
sys.path.insert(0, "/workspace/code")
from tests.eos_agent import attacks, escapes
table = {name: row.attack for name, row in escapes.rows_of(sys.argv[1]).items()}
print(json.dumps(attacks.answer(table, json.load(open("place.json")))))
"""
SERVE = f"""
import sys
sys.path.insert(0, "/workspace/code")
from tests.eos_agent import attacks
attacks.serve({OTHER_ABSTRACT!r}, {OTHER_TMP!r}, lambda port: print(port, flush=True))
"""
INSIDE_OF_EACH_OTHER = (
    "import subprocess; subprocess.run(['sh', '-c', 'setsid python3 try_it.py {kind}'], check=True)"
)


def carry(workspace: str) -> None:
    """The table and what it imports, and the program, as files of the workspace."""
    code = Path(workspace, "code")
    (code / "tests/eos_agent").mkdir(parents=True)
    shutil.copytree(ROOT / "layerstack", code / "layerstack", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(
        ROOT / "agent_image/eos_agent", code / "eos_agent", ignore=shutil.ignore_patterns("__pycache__")
    )
    (code / "tests/__init__.py").touch()
    (code / "tests/eos_agent/__init__.py").touch()
    for name in ("attacks.py", "escapes.py"):
        shutil.copy(ROOT / "tests/eos_agent" / name, code / "tests/eos_agent" / name)
    Path(workspace, "try_it.py").write_text(TRY)
    Path(workspace, "serve.py").write_text(SERVE)
    Path(workspace, "attacks").write_bytes(confined.program())
    Path(workspace, "attacks").chmod(0o755)


async def findings(
    host: Host, token: Callable[[], str], image: str, workspace: str, *, python: bool
) -> dict[str, list[dict[str, str]]]:
    """Kind of session -> what came out of the forms in which the table was tried there: attacks.py where the
    image has a Python, attacks.c twice.
    """
    sandbox_id = str((await host.do("create_sandbox", image=image, workspace_root=workspace))["id"])
    abstract = f"eos-test-{os.getpid()}"
    try:
        with socket.socket(socket.AF_UNIX) as of_machine:
            of_machine.bind("\0" + abstract)
            of_machine.listen()
            said = await _other(host, sandbox_id, token(), abstract, python)
            before = _published(sandbox_id)
            found = {kind: await _tried(host, sandbox_id, kind, said, python) for kind in KINDS}
            assert _published(sandbox_id) == before, "the base or a layer was changed"
            assert (
                await host.run(
                    sandbox_id, "echo still here", workspace_session_id=said["other_id"], tty=False
                )
                == "still here"
            )
            return found
    finally:
        await host.do("destroy_sandbox", sandbox_id=sandbox_id)


async def _other(host: Host, sandbox_id: str, token: str, abstract: str, python: bool) -> dict[str, Any]:
    """Another session of the sandbox, with a secret, files and servers; the place that attackers are
    given."""
    said: dict[str, Any] = {}
    attacks.in_halves(said, "secret", f"secret-{os.urandom(8).hex()}")
    attacks.in_halves(said, "token_text", token)
    other = (await host.ask(sandbox_id, "create_workspace_session"))["workspace_session_id"]
    cmd = (
        "exec python3 serve.py"
        if python
        else (
            f"touch of-another secret; echo x > {OTHER_TMP}; exec ./attacks serve {OTHER_ABSTRACT} "
            f"{OTHER_TMP}.sock"
        )
    )
    options = {
        "workspace_session_id": other,
        "tty": False,
        "env": [f"SECRET={said['secret']}"],
        "yield_time_ms": 0,
    }
    running = await host.ask(sandbox_id, "exec_command", cmd=cmd, **options)
    key, port = running["command_session_id"], ""
    while not port:
        lines = await host.ask(
            sandbox_id, "read_command_lines", command_session_id=key, start_offset=0, limit=5
        )
        port = str(lines["output"]).strip()
    store, runtime = "/eos/layer-stack", "/eos/runtime/daemon"
    place = {
        **said,
        "store": store,
        "base_file": f"{store}/base/B000001-base/attacks",
        "upper": f"{store}/sessions/{other}/upper/secret",
        "home": "/root",
        "bundle": "/eos/bundle",
        "token": f"{runtime}/token",
        "agent_socket": f"{runtime}/runtime.sock",
        "agent_port": AGENT_PORT,
        "http_port": HTTP_PORT,
        "engine_socket": "/var/run/docker.sock",
        "late_socket": "/run/docker.sock",
        "abstract": abstract,
        "other_id": other,
        "other_port": int(port),
        "other_tmp": OTHER_TMP,
        "other_abstract": OTHER_ABSTRACT,
        "workspace": "/workspace",
        "disk": os.stat(probes.scratch_root()).st_dev,
    }
    client = docker.from_env()
    try:
        container = client.containers.get(sandbox_id)
        top = container.top(ps_args="-eo pid,args")
        (pid,) = [row[0] for row in top["Processes"] if "serve" in row[1] and "sandbox-daemon" not in row[1]]
        names = ["upper", "base_file", "bundle", "token", "agent_socket", "store"]
        there = [*(str(place[name]) for name in names), f"{store}/manifest.json", f"{store}/layers"]
        seen = container.exec_run(["ls", "-d", *there])
        assert seen.exit_code == 0, f"what nobody shall reach is not where it is looked for: {seen.output!r}"
    finally:
        client.close()
    return {**place, "other_pid": int(pid)}


def _published(sandbox_id: str) -> str:
    """Attributes and content of every file of the base and of the layers, as root of the container sees
    them.
    """
    client = docker.from_env()
    try:
        look = (
            "cd /eos/layer-stack && find base layers | sort | xargs ls -ld && find base layers -type f | "
            "sort | xargs sha256sum"
        )
        done = client.containers.get(sandbox_id).exec_run(["sh", "-c", look])
        assert done.exit_code == 0 and b"/attacks" in done.output, done.output
        return str(done.output)
    finally:
        client.close()


async def _tried(
    host: Host, sandbox_id: str, kind: str, said: dict[str, Any], python: bool
) -> list[dict[str, str]]:
    session = (await host.ask(sandbox_id, "create_workspace_session", **KINDS[kind]))["workspace_session_id"]

    async def run(cmd: str) -> str:
        return await host.run(sandbox_id, cmd, workspace_session_id=session, tty=False)

    for name, text in (("lines", escapes.lines_of(kind, said)), ("place.json", json.dumps(said))):
        await host.ask(sandbox_id, "file_write", path=name, content=text, workspace_session_id=session)
    found = (
        [json.loads(await run(f'python3 -c "{INSIDE_OF_EACH_OTHER.format(kind=kind)}"'))] if python else []
    )
    found.append(confined.parse(await run("sh -c 'sh -c \"./attacks lines; true\"; true'; true")))
    found.append(
        confined.parse(
            await run("sh -c './attacks lines daemon'; until [ -e lines.out ]; do :; done; cat lines.out")
        )
    )
    await host.ask(sandbox_id, "destroy_workspace_session", workspace_session_id=session)
    return found


@pytest.mark.needs("musl")
@pytest.mark.parametrize("name", ["debian", "busybox"])
def test_no_row_of_the_table_gets_out_of_a_session_of_a_container_or_changes_the_base(
    place: Place, image: Callable[[str], str], name: str
) -> None:
    carry(place.workspace)
    python = name == "debian"

    async def scenario(host: Host) -> dict[str, list[dict[str, str]]]:
        return await findings(
            host, lambda: str(records(place.state)[0]["token"]), image(name), place.workspace, python=python
        )

    for kind, tries in place.play(scenario).items():
        plain = {name for name, row in escapes.rows_of(kind).items() if isinstance(row.attack, attacks.Plain)}
        for number, found in enumerate(tries):
            full = python and number == 0
            assert found.keys() == (escapes.rows_of(kind).keys() if full else plain)
            wrong = {name: text for name, text in escapes.wrong(kind, found).items() if full or name in plain}
            assert not wrong, f"in {kind}, form {number}: {wrong}"


def test_a_command_runs_as_a_user_of_the_image(place: Place, image: Callable[[str], str]) -> None:
    async def scenario(host: Host) -> str:
        sandbox_id = (await place.create(host, image("debian")))["id"]
        try:
            return await host.run(
                sandbox_id,
                "id -un; echo $HOME; touch mine || touch /tmp/mine && stat -c %U /tmp/mine",
                user="daemon",
            )
        finally:
            await host.do("destroy_sandbox", sandbox_id=sandbox_id)

    lines = place.play(scenario).split("\n")
    assert lines[:2] == ["daemon", "/usr/sbin"] and lines[-1] == "daemon"


@pytest.mark.parametrize("name", [pytest.param("debian", marks=pytest.mark.soak), "busybox"])
def test_a_session_that_removes_devices_harms_neither_the_others_nor_those_to_come(
    place: Place, image: Callable[[str], str], name: str
) -> None:
    spoil = (
        "rm -rf /dev/null /dev/zero /dev/fd; mkdir /dev/null; mv /dev/urandom /dev/other; ln -sf "
        "/workspace/x /dev/random; true"
    )
    use = (
        "echo x > /dev/null && head -c 3 /dev/zero | wc -c && head -c 1 /dev/urandom > /dev/null && "
        "echo works"
    )

    async def scenario(host: Host) -> list[str]:
        sandbox_id = (await place.create(host, image(name)))["id"]
        try:
            found: list[str] = []
            for options in KINDS.values():
                session = (await host.ask(sandbox_id, "create_workspace_session", **options))[
                    "workspace_session_id"
                ]
                await host.run(sandbox_id, spoil, workspace_session_id=session, tty=False)
                found.append(await host.run(sandbox_id, use, workspace_session_id=session, tty=False))
            for options in KINDS.values():
                session = (await host.ask(sandbox_id, "create_workspace_session", **options))[
                    "workspace_session_id"
                ]
                found.append(await host.run(sandbox_id, use, workspace_session_id=session, tty=False))
            return [*found, await host.run(sandbox_id, use, tty=False)]
        finally:
            await host.do("destroy_sandbox", sandbox_id=sandbox_id)

    assert [text.split() for text in place.play(scenario)] == [["3", "works"]] * 7
