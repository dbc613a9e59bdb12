"""The table of escapes, run as commands in a real container."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.eos_agent.escapes import rows_of_a_container

from . import test_docker_provider
from .hosting import Host
from .test_docker_provider import Place

pytestmark = [pytest.mark.needs("dockerd")]
place = test_docker_provider.place
ROOT = Path(__file__).parents[2]
SCRIPT = """
import json, sys
sys.path.insert(0, "/workspace/code")
from tests.eos_agent import attacks, escapes
table = {name: row.attack for name, row in escapes.rows_of_a_container(sys.argv[1]).items()}
place = {"store": "/eos/layer-stack", "home": "/root", "token": "/eos/runtime/daemon/token", "workspace": "/workspace", "other_pid": 99999,
         "agent_socket": "/eos/runtime/daemon/runtime.sock", "engine_socket": "/run/eos-test-none.sock", "abstract": "eos-test-none"}
print(json.dumps(attacks.answer(table, place)))
"""


def carry(workspace: str) -> None:
    """The table and what it imports, as files of the workspace."""
    code = Path(workspace, "code")
    (code / "tests/eos_agent").mkdir(parents=True)
    shutil.copytree(ROOT / "layerstack", code / "layerstack", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(ROOT / "agent_image/eos_agent", code / "eos_agent", ignore=shutil.ignore_patterns("__pycache__"))
    (code / "tests/__init__.py").touch()
    (code / "tests/eos_agent/__init__.py").touch()
    for name in ("attacks.py", "escapes.py"):
        shutil.copy(ROOT / "tests/eos_agent" / name, code / "tests/eos_agent" / name)
    Path(workspace, "try_it.py").write_text(SCRIPT)


def test_no_row_of_the_table_gets_out_of_a_container_session(place: Place, image: Callable[[str], str]) -> None:
    carry(place.workspace)

    async def scenario(host: Host) -> dict[str, dict[str, str]]:
        sandbox_id = (await place.create(host, image("debian")))["id"]
        found: dict[str, dict[str, str]] = {}
        for mode in ("shared", "read_only"):
            session = await host.ask(sandbox_id, "create_workspace_session", rootfs=mode)
            output = await host.run(
                sandbox_id, f"python3 try_it.py {mode}", workspace_session_id=session["workspace_session_id"], tty=False
            )
            found[mode] = json.loads(output)
            await host.ask(sandbox_id, "destroy_workspace_session", workspace_session_id=session["workspace_session_id"])
        await host.do("destroy_sandbox", sandbox_id=sandbox_id)
        return found

    for mode, found in place.play(scenario).items():
        rows = rows_of_a_container(mode)
        assert found.keys() == rows.keys()
        wrong = {name: text for name, text in found.items() if text.split(":")[0] not in rows[name].expected}
        assert not wrong, f"in a {mode} session: {wrong}"


def test_a_command_runs_as_a_user_of_the_image(place: Place, image: Callable[[str], str]) -> None:
    async def scenario(host: Host) -> str:
        sandbox_id = (await place.create(host, image("debian")))["id"]
        try:
            return await host.run(sandbox_id, "id -un; echo $HOME; touch mine || touch /tmp/mine && stat -c %U /tmp/mine", user="daemon")
        finally:
            await host.do("destroy_sandbox", sandbox_id=sandbox_id)

    lines = place.play(scenario).split("\n")
    assert lines[:2] == ["daemon", "/usr/sbin"] and lines[-1] == "daemon"
