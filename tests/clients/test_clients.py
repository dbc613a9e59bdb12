"""Each client of `versions.toml` makes the same tour over stdio and HTTP against a real server and sandbox.

A client whose packages cannot be fetched fails alone, as `not fetched: URL, status`.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Generator
from typing import Any, NamedTuple

import pytest

from tests import processes
from tests.clients import environments
from tests.conftest import drop_dir, make_short_dir
from tests.eos_mcp.mcp_wire import Wire, call

pytestmark = [pytest.mark.clients, pytest.mark.needs("overlay"), pytest.mark.timeout(2400)]

TOUR_S = 300
STEPS = ("initialize", "list", "call", "error", "progress", "cancel", "resources", "prompts")
AT_LEAST = {"create_sandbox", "exec_command", "file_read", "publish_workspace_session"}


class Place(NamedTuple):
    """A state directory with a running sandbox, and the HTTP server of the run."""

    env: dict[str, str]
    root: str
    sandbox: str
    url: str
    token: str


def words(place_root: str) -> list[str]:
    return ["-m", "eos_mcp", "--set", "agent", "--root", place_root]


@pytest.fixture(scope="module")
def place() -> Generator[Place]:
    root = make_short_dir("eos-c-")
    workspace = os.path.join(root, "w")
    os.mkdir(workspace)
    with open(os.path.join(workspace, "README"), "w") as file:
        file.write("the project\n")
    env = {**os.environ, "EOS_STATE_DIR": os.path.join(root, "s")}
    token = os.path.join(root, "token")
    http = ["--transport", "http", "--port", "0", "--token-file", token]
    with Wire([sys.executable, *words(root), *http], env=env) as server:
        server.says("listening on ")
        url = re.findall(r"http://\S+?/mcp", " ".join(server.stderr))[0]
        with watcher(env) as wire:
            made = use(wire, "create_sandbox", image="host", workspace_root=workspace)
            with open(token) as file:
                yield Place(env, root, made["id"], url, file.read().strip())
            use(wire, "destroy_sandbox", sandbox_id=made["id"])
        server.process.terminate()
        assert server.ends() == 0
    processes.stop_gateway(env)
    drop_dir(root)


def watcher(env: dict[str, str]) -> Wire:
    """A server with all tools, past its handshake, to see what the clients have done."""
    wire = Wire(
        [sys.executable, "-m", "eos_mcp", "--set", "all", "--root", os.path.dirname(env["EOS_STATE_DIR"])],
        env=env,
    )
    wire.open()
    return wire


def use(wire: Wire, tool: str, **arguments: Any) -> dict[str, Any]:
    result = wire.ask(call(f"{tool}-{os.urandom(4).hex()}", tool, arguments))["result"]
    assert not result["isError"], result
    found: dict[str, Any] = result["structuredContent"]
    return found


def spec(place: Place, name: str, transport: str) -> dict[str, Any]:
    mark = f"86397.{environments.number(name)}{len(transport)}"  # names the processes of this client alone
    target: dict[str, Any] = (
        {"command": sys.executable, "args": words(place.root), "env": environments.environment(place.env)}
        if transport == "stdio"
        else {"url": place.url, "headers": {"Authorization": f"Bearer {place.token}"}}
    )
    return {
        "name": name,
        "transport": transport,
        **target,
        "hello": f"echo hello {name} from $(cat README)",
        "slow": "sleep 4; echo rested",
        "endless": f"echo half > 'cancelled by {name} over {transport}'; sleep {mark}",
        "mark": mark,
    }


def observed(recipe: environments.Recipe, given: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Step -> what the client's program reported of it."""
    try:
        argv, more = environments.command(recipe)
    except environments.NotFetched as problem:
        pytest.fail(str(problem), pytrace=False)
    done = subprocess.run(
        [*argv, json.dumps(given)],
        env=environments.environment(more),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=TOUR_S,
    )
    rows = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    steps = {row.pop("step"): row for row in rows}
    assert done.returncode == 0, f"after {list(steps)}: {done.stdout[-2000:]}{done.stderr[-4000:]}"
    return steps


@pytest.mark.parametrize("transport", ["stdio", "http"])
@pytest.mark.parametrize("name", sorted(environments.recipes()))
def test_a_client_makes_the_whole_tour(place: Place, name: str, transport: str) -> None:
    recipe = environments.recipes()[name]
    given = spec(place, name, transport)
    with watcher(place.env) as wire:
        before = {row["draft_id"] for row in use(wire, "list_drafts")["drafts"]}
        seen = observed(recipe, given)
        print(f"{name} over {transport}: {json.dumps(seen)[:6000]}")
        assert set(STEPS) <= seen.keys()
        assert seen["initialize"]["server"] in ("eos-mcp", None)
        assert set(seen["list"]["tools"]) >= AT_LEAST
        assert f"hello {name} from the project" in seen["call"]["text"] and not seen["call"]["is_error"]
        assert seen["error"]["is_error"] and "absent" in seen["error"]["text"]
        assert seen["error"]["structured"]["error"]["kind"] == "not_found"
        values = seen["progress"]["values"]
        assert "rested" in seen["progress"]["text"] and values and values == sorted(set(values))
        assert seen["cancel"]["cancelled"], seen["cancel"]
        while [row for row in use(wire, "list_commands")["commands"] if row["status"] == "running"]:
            pass  # bounded by the test's own time
        new = [row for row in use(wire, "list_drafts")["drafts"] if row["draft_id"] not in before]
        assert [row["reason"] for row in new] == ["interrupted"]
        assert all(uri.startswith("eos://") for uri in seen["resources"]["uris"])
        assert isinstance(seen["prompts"]["names"], list)
        if "agent" in seen:  # a framework's own loop, with a scripted model
            assert "hello" in seen["agent"]["text"], seen["agent"]
