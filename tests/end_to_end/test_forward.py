"""Servers of sessions, reached from the host as a person reaches them, in both providers; and what of their
networks is anywhere else: nothing.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import urllib.error
import urllib.request
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import pytest

from eos_agent.kernel.netlink import Netlink
from tests.end_to_end.cli_user import Container, Desk, Sandbox, docker
from tests.end_to_end.places import DEBIAN, DOCKER, ORDINARY, ROOT, in_places
from tests.users import Person

pytestmark = [pytest.mark.needs("overlay", "userns", "root")]


GUIDE = Path(__file__).resolve().parent.parent.parent / "docs" / "guide.md"
CURL = """curl() { python3 - "$@" <<'end'
import sys, time, urllib.request
ask = urllib.request.build_opener(urllib.request.HTTPCookieProcessor()).open
for attempt in range(100):
    try:
        print(ask(sys.argv[-1]).read().decode())
        break
    except urllib.error.HTTPError as error:
        assert error.code == 502
        time.sleep(0.1)
end
}
"""  # for machines without it
SERVE = (
    "printf '%s' \"$NAME\" > index.html; if command -v python3 >/dev/null; then exec python3 -m "
    "http.server 8000; fi; exec busybox httpd -f -p 8000"
)

GET = """get() {
    if command -v python3 >/dev/null; then
        python3 -c 'import sys, http.client as h; c = h.HTTPConnection(sys.argv[1], int(sys.argv[2]), timeout=0.7); c.request("GET", sys.argv[3])
print(c.getresponse().read().decode())' "$@" 2>/dev/null
    else
        printf 'GET %s HTTP/1.0\\r\\n\\r\\n' "$3" | busybox nc -w 1 "$1" "$2" 2>/dev/null | tail -n 1 | grep .
    fi
}
"""  # noqa: E501


class Web:
    """The HTTP port of a sandbox, asked with its token unless that is not to be."""

    def __init__(self, sandbox: Sandbox) -> None:
        self.sandbox = sandbox
        record = sandbox.desk.do("manager", "inspect_sandbox", "--sandbox-id", sandbox.id)
        self.at = f"http://127.0.0.1:{record['daemon_http']['port']}"

    def token(self) -> str:
        registry = json.loads((self.sandbox.desk.state / "registry.json").read_text())
        return str(next(one["token"] for one in registry["sandboxes"] if one["id"] == self.sandbox.id))

    def get(self, path: str, *, token: bool = True) -> tuple[int, str]:
        headers = {"X-Eos-Token": self.token()} if token else {}
        try:
            with urllib.request.urlopen(
                urllib.request.Request(self.at + path, headers=headers), timeout=30
            ) as found:
                return found.status, found.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()

    def wait(self, path: str, **options: Any) -> str:
        """The body, once the server is up."""
        while True:
            status, body = self.get(path, **options)
            if status == 200:
                return body
            assert status == 502 and json.loads(body)["error"]["details"]["reason"] == "connect_failed", (
                status,
                body,
            )


@pytest.fixture(autouse=True)
def own_network_as_before(request: pytest.FixtureRequest) -> Generator[None]:
    """The machine's own network is what it was. An engine makes and removes interfaces of its own."""
    before = interfaces()
    yield
    if not any("dockerd" in mark.args for mark in request.node.iter_markers("needs")):
        assert interfaces() == before


def interfaces() -> list[str]:
    connection = Netlink()
    try:
        return sorted(
            link.name for link in connection.links() if not link.name.startswith(("veth", "docker", "br-"))
        )
    finally:
        connection.close()


def serve(sandbox: Sandbox, session: str, name: str) -> None:
    sandbox.do(
        "exec_command",
        "--workspace-session-id",
        session,
        "--yield-time-ms",
        "0",
        "--tty=false",
        "--env",
        f'["NAME={name}"]',
        SERVE,
    )


@in_places(ROOT, ORDINARY, DOCKER)
def test_isolated_sessions_serve_the_same_port_and_only_the_host_reaches_each(
    sandbox: Sandbox, request: pytest.FixtureRequest
) -> None:
    web = Web(sandbox)
    made = {
        name: sandbox.do("create_workspace_session", "--network-profile", "isolated")
        for name in ("red", "green", "blue")
    }
    ids = {name: str(one["workspace_session_id"]) for name, one in made.items()}
    assert [one["address"] for one in made.values()] == ["10.244.0.2", "10.244.0.3", "10.244.0.4"]
    for name, session in ids.items():
        serve(sandbox, session, name)
    assert {
        name: web.wait(f"/forward/isolated={session}/8000/index.html") for name, session in ids.items()
    } == {n: n for n in ids}
    assert sandbox.shell("echo /sys/class/net/*", ids["red"])["output"].split() == [
        "/sys/class/net/eth0",
        "/sys/class/net/lo",
    ]
    tried = (
        "127.0.0.1 8000",
        "10.244.0.2 8000",
        "10.244.0.3 8000",
        "10.244.0.4 8000",
        "10.244.0.1 7001",
        "127.0.0.1 7001",
    )
    script = GET + "".join(f"get {where} /index.html || echo none; " for where in tried)
    said = [
        line for line in sandbox.shell(script, ids["green"], "--tty=false")["output"].splitlines() if line
    ]
    assert said == ["green", "none", "green", "none", "none", "none"]
    if "docker" in request.node.callspec.id:
        script = GET + f"get 127.0.0.1 7001 /forward/isolated={ids['red']}/8000/index.html"
        assert "unauthorized" in sandbox.shell(script, None, "--tty=false")["output"]
    assert web.get(f"/forward/isolated={ids['red']}/8000/index.html", token=False)[0] == 401
    shared = sandbox.session()
    assert web.get(f"/forward/isolated={shared}/8000/")[0] == 403
    for session in ids.values():
        for one in sandbox.do("list_commands")["commands"]:
            if one["workspace_session_id"] == session and one["status"] == "running":
                sandbox.do(
                    "signal_command", "--command-session-id", one["command_session_id"], "--signal", "KILL"
                )
        sandbox.do("destroy_workspace_session", "--workspace-session-id", session, "--grace-s", "20")
        assert web.get(f"/forward/isolated={session}/8000/")[0] == 404


@in_places(DOCKER)
def test_servers_in_docker_are_reached_with_a_token_alone_and_after_a_restart_at_the_new_port(
    sandbox: Sandbox,
) -> None:
    assert isinstance(sandbox, Container)
    session = sandbox.session()
    serve(sandbox, session, "shared")
    assert Web(sandbox).wait("/forward/shared/8000/index.html?x=1") == "shared"
    assert Web(sandbox).get("/forward/shared/8000/index.html?x=1", token=False)[0] == 401
    assert sandbox.do("create_workspace_session", "--network-profile", "isolated")["address"] == "10.244.0.2"
    sandbox.restart()
    made = sandbox.do("create_workspace_session", "--network-profile", "isolated")
    assert made["address"] == "10.244.0.2"  # nothing of the network before is left
    serve(sandbox, made["workspace_session_id"], "again")
    assert Web(sandbox).wait(f"/forward/isolated={made['workspace_session_id']}/8000/index.html") == "again"


@in_places(ROOT)
def test_two_agents_of_one_machine_have_the_same_addresses_and_a_killed_one_leaves_none(
    sandbox: Sandbox,
) -> None:
    other = sandbox.desk.create("host")
    try:
        both = (sandbox, other)
        for one in both:
            made = one.do("create_workspace_session", "--network-profile", "isolated")
            assert made["address"] == "10.244.0.2"
            serve(one, made["workspace_session_id"], one.id)
            assert (
                Web(one).wait(f"/forward/isolated={made['workspace_session_id']}/8000/index.html") == one.id
            )
        os.kill(sandbox.agent(), signal.SIGKILL)
        made = sandbox.do(
            "create_workspace_session", "--network-profile", "isolated"
        )  # starts the agent again
        assert made["address"] == "10.244.0.2"
        serve(sandbox, made["workspace_session_id"], "again")
        assert (
            Web(sandbox).wait(f"/forward/isolated={made['workspace_session_id']}/8000/index.html") == "again"
        )
    finally:
        other.destroy()


@pytest.mark.needs("dockerd")
def test_without_net_admin_isolated_sessions_are_refused_by_name_and_shared_ones_work(
    person: Callable[[str], Person], cache_of: Callable[[Person], Path], image: Callable[[str], str]
) -> None:
    who = person("root")
    config = who.home / "no-net-admin.yml"
    config.write_text("manager:\n  docker:\n    net_admin: false\n")
    desk = Desk(who, cache_of(who), SANDBOX_GATEWAY_CONFIG_YAML=str(config))
    sandbox = desk.create(image("busybox"))
    try:
        error = sandbox.refused("create_workspace_session", "--network-profile", "isolated")
        found = (error["kind"], error["details"]["reason"], error["details"].get("errno"))
        assert found == ("operation_failed", "setup_failed", "EPERM"), error
        assert "manager.docker.net_admin" in error["message"]
        assert sandbox.shell("echo works", None, "--tty=false")["output"] == "works"
    finally:
        sandbox.destroy()


def test_where_private_addresses_are_denied_there_are_no_isolated_sessions(
    person: Callable[[str], Person], cache_of: Callable[[Person], Path]
) -> None:
    who = person("root")
    config = who.home / "deny.yml"
    config.write_text("runtime:\n  workspace:\n    rfc1918_egress: deny\n")
    desk = Desk(who, cache_of(who), SANDBOX_GATEWAY_CONFIG_YAML=str(config))
    sandbox = desk.create("host")
    try:
        error = sandbox.refused("create_workspace_session", "--network-profile", "isolated")
        assert error["details"]["reason"] == "egress_not_enforceable"
        assert sandbox.session()
    finally:
        sandbox.destroy()


@in_places(ORDINARY, DEBIAN)
def test_the_commands_of_the_guide_show_a_file_of_the_session(sandbox: Sandbox) -> None:
    text = GUIDE.read_text()
    (block,) = re.findall(r"^```console\n(.*?)^```$", text, re.M | re.S)
    sandbox.write("greeting.txt", "hello from a session\n")
    run = f'sandbox={sandbox.id}\nrun() {{ sandbox-runtime-cli --sandbox-id "$sandbox" "$@"; }}\n'
    desk = sandbox.desk
    script = "set -eu\n" + run + ("" if shutil.which("curl") else CURL) + block
    code, out, err = desk.person.run(["/bin/sh", "-c", script], env=desk.person.environment(**desk.env))
    assert code == 0 and out.endswith("hello from a session\n"), (out, err)


REACH = """reach() { if timeout 5 bash -c "exec 3<>/dev/tcp/$1/$2" 2>/dev/null; then echo "$1 $2"; fi; }
"""


@in_places(DEBIAN)
def test_containers_of_one_engine_do_not_reach_each_other(
    sandbox: Sandbox, image: Callable[[str], str]
) -> None:
    """Neither the agent's ports nor a server, from neither side; what is behind the gateway is reached, as
    before, and so are the published ports.
    """
    other = sandbox.desk.create(image("busybox"))
    asking = docker(
        "run", "-d", "--network", "bridge", "--label", "eos-test=1", image("debian"), "sleep", "600"
    )
    try:
        serve(other, other.session(), "other")
        serve(sandbox, sandbox.session(), "own")
        assert Web(other).wait("/forward/shared/8000/index.html") == "other"
        assert Web(sandbox).wait("/forward/shared/8000/index.html") == "own"
        own, its = (
            docker("inspect", "--format", "{{.NetworkSettings.IPAddress}}", one.id)
            for one in (sandbox, other)
        )
        gateway = docker("inspect", "--format", "{{.NetworkSettings.Gateway}}", sandbox.id)
        with socket.create_server((gateway, 0)) as outside:
            beyond = f"{gateway} {outside.getsockname()[1]}"
            tried = [f"{its} 7000", f"{its} 7001", f"{its} 8000", f"{own} 8000", "127.0.0.1 8000", beyond]
            script = REACH + "".join(f"reach {where}\n" for where in tried)
            for session in ([], ["--workspace-session-id", sandbox.session()]):
                said = sandbox.do(
                    "exec_command", "--tty=false", "--yield-time-ms", "50000", *session, script
                )["output"].splitlines()
                assert said == [f"{own} 8000", "127.0.0.1 8000", beyond]
            script = (
                REACH
                + "".join(f"reach {where} {port}\n" for where in (own, its) for port in (7000, 7001, 8000))
                + f"reach {beyond}"
            )
            assert docker("exec", asking, "bash", "-c", script).splitlines() == [
                beyond
            ]  # a container that is none of ours
    finally:
        docker("rm", "-f", "-v", asking)
        Sandbox.destroy(other)  # its base is the other one's too
