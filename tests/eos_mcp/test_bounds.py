"""Where requests may read and write on this machine: roots of a server, sensitive places, how many
sandboxes.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp import Client
from mcp.client.client import ConnectMode
from mcp.types import ListRootsResult, Root

from eos_agent.wire.protocol import OperationError
from eos_mcp.mcp import app
from eos_mcp.mcp.server_options import EOS, SANDBOX, ServerOptions, ServerUsageError, parse
from eos_mcp.requests import bounds
from eos_mcp.requests.bounds import Bounds
from layerstack.kernel import syscalls
from tests.eos_mcp.scripted_gateway import ScriptedGateway, call, shown

CREATE = {"image": "host", "workspace_root": "/w"}
REPLY: dict[str, Any] = {"id": "eos-1", "state": "ready"}


def reason(bound: Bounds, path: str | Path) -> str | None:
    try:
        bound.check(str(path), "workspace_root")
    except OperationError as error:
        return str(error.details["reason"])
    return None


def test_what_a_path_resolves_to_decides_about_the_roots(tmp_path: Path) -> None:
    (tmp_path / "in/deep").mkdir(parents=True)
    (tmp_path / "inside-by-name").mkdir()
    (tmp_path / "in/out").symlink_to(tmp_path / "inside-by-name")
    (tmp_path / "link").symlink_to(tmp_path / "in")
    assert (
        reason(Bounds((str(tmp_path / "link"),)), tmp_path / "in") == "outside_roots"
    )  # whoever sets roots has resolved them
    bound = Bounds((str(tmp_path / "in"),))
    assert reason(bound, tmp_path / "link") is None
    assert reason(bound, tmp_path / "in") is None
    assert reason(bound, tmp_path / "in/deep") is None
    assert reason(bound, tmp_path / "in/not/yet/there") is None
    for path in ("in/out", "in/out/below", "in/../inside-by-name", "inside-by-name", "in/deep/../../x", ""):
        assert reason(bound, f"{tmp_path}/{path}") == "outside_roots", path
    assert reason(Bounds(()), tmp_path / "in") == "outside_roots"
    assert reason(Bounds(None), tmp_path / "in") is None


def _under_another_name(tmp: str, home: str) -> None:
    os.environ["HOME"] = home
    place = Path(tmp, "project/place")
    place.mkdir(parents=True)
    assert reason(Bounds(), place) is None
    for source, below in (
        (f"{home}/.ssh", ""),
        (f"{home}/.ssh", "deeper"),
        (home, ""),
        ("/etc", "cron.d"),
        (home, ".ssh/new"),
    ):
        syscalls.mount(source, str(place), None, syscalls.MS_BIND)
        assert reason(Bounds(), place / below) == "sensitive_place", (source, below)
        syscalls.umount(str(place), syscalls.MNT_DETACH)
    syscalls.mount(f"{home}/project", str(place), None, syscalls.MS_BIND)
    assert reason(Bounds(), place) is None


def test_a_bind_mount_is_as_sensitive_as_what_it_shows(
    tmp_path: Path, in_mount_namespace: Callable[..., Any]
) -> None:
    for path in (".ssh/deeper", "project"):
        (tmp_path / "home" / path).mkdir(parents=True)
    in_mount_namespace(_under_another_name, str(tmp_path), str(tmp_path / "home"))


def test_the_refusal_says_which_flag_a_person_gives(tmp_path: Path) -> None:
    with pytest.raises(OperationError) as caught:
        Bounds(()).check(f"{tmp_path}/a b", "dest")
    assert f"--root '{tmp_path}/a b'" in caught.value.details["hint"]


@pytest.mark.parametrize(
    "below",
    [
        ".ssh",
        ".ssh/keys",
        ".aws",
        ".config/autostart",
        ".git-credentials",
        ".bashrc",
        ".codex",
        ".local/bin",
        "bin",
    ],
)
def test_secrets_and_what_runs_by_itself_in_a_home_are_sensitive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, below: str
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert reason(Bounds(), tmp_path / below) == "sensitive_place"
    assert reason(Bounds(allow_sensitive=True), tmp_path / below) is None


def test_a_home_and_what_holds_it_are_sensitive_and_projects_in_it_are_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "people/ada"
    (home / "project/.ssh").mkdir(parents=True)
    (home / ".ssh").mkdir()
    (home / "project/keys").symlink_to(home / ".ssh")
    monkeypatch.setenv("HOME", str(home))
    for path in (home, home.parent, home / "project/keys", home / "project/keys/new"):
        assert reason(Bounds(), path) == "sensitive_place", path
    for path in (
        home / "project",
        home / "project/.ssh",
        home / ".codex/worktrees/1/p",
        home / ".cursor/worktrees/p",
        home / "sshd",
    ):
        assert reason(Bounds(), path) is None, path


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/etc",
        "/etc/cron.d",
        "/usr",
        "/usr/bin",
        "/bin/x",
        "/var",
        "/var/spool/cron",
        "/proc/1",
        "/var/lib/docker/volumes",
    ],
)
def test_places_of_the_machine_are_sensitive(path: str) -> None:
    assert reason(Bounds(), path) == "sensitive_place"


@pytest.mark.parametrize("value", ["/x", ["relative"], [1], ["/a\0b"], {"a": 1}, ["/x"] * 257])
def test_bounds_that_are_malformed_pass_nothing(value: object) -> None:
    with pytest.raises(OperationError):
        bounds.of_request({"allowed_roots": value})


def sent(options: ServerOptions, name: str = "create_sandbox", **more: Any) -> dict[str, Any]:
    gateway = ScriptedGateway(
        create_sandbox=REPLY,
        export_changes={"files_written": 0},
        list_workspace_directories={"directories": []},
    )
    found = call(name, {**(CREATE if name == "create_sandbox" else {}), **more}, gateway, options)
    assert not found.is_error, found.text
    return gateway.asked[0].args


def test_a_server_sends_its_roots_with_what_touches_the_machine(tmp_path: Path) -> None:
    options = ServerOptions(tool_set="all", roots=(str(tmp_path),))
    assert sent(options)["allowed_roots"] == [str(tmp_path)]
    assert sent(options, "export_changes", sandbox_id="s", dest="/d")["allowed_roots"] == [str(tmp_path)]
    assert sent(options, "list_workspace_directories")["allowed_roots"] == [str(tmp_path)]
    assert "allowed_roots" not in sent(ServerOptions(program=SANDBOX, tool_set="management"))
    assert sent(ServerOptions(program=SANDBOX, tool_set="management", roots=("/r",)))["allowed_roots"] == [
        "/r"
    ]


def test_without_roots_it_is_the_working_directory_unless_that_is_a_home_or_wider(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for directory in ("home/project", "elsewhere"):
        (tmp_path / directory).mkdir(parents=True)
        monkeypatch.chdir(tmp_path / directory)
        assert sent(ServerOptions())["allowed_roots"] == [str(tmp_path / directory)]
    for directory in (tmp_path / "home", tmp_path, Path("/")):
        monkeypatch.chdir(directory)
        assert sent(ServerOptions())["allowed_roots"] == []


def with_roots(uris: list[str], options: ServerOptions, mode: ConnectMode = "legacy") -> list[str]:
    gateway = ScriptedGateway(create_sandbox=REPLY)

    async def roots(_context: Any) -> ListRootsResult:
        return ListRootsResult.model_validate({"roots": [{"uri": uri} for uri in uris]})

    async def go() -> None:
        async with Client(
            app.build(options, gateway=gateway).server, mode=mode, list_roots_callback=roots
        ) as client:
            assert not shown(await client.call_tool("create_sandbox", CREATE)).is_error

    anyio.run(go)
    found: list[str] = gateway.asked[0].args["allowed_roots"]
    return found


def test_the_clients_roots_come_before_the_working_directory(tmp_path: Path) -> None:
    uris = [f"file://{tmp_path}/a%20b", "file:///", "file:///srv/x/../y", Path.home().as_uri()]
    assert with_roots(uris, ServerOptions()) == [f"{tmp_path}/a b", "/srv/y"]
    assert with_roots(uris, ServerOptions(roots=("/r",))) == ["/r"]
    assert with_roots([], ServerOptions()) == []
    assert with_roots(uris, ServerOptions(transport="http")) == [
        os.getcwd()
    ]  # a client over the network does not say what is allowed
    assert with_roots(uris, ServerOptions(), mode="2026-07-28") == [
        os.getcwd()
    ]  # that era has no question to the client


def test_a_root_that_an_export_into_another_made_a_symlink_bounds_as_before(tmp_path: Path) -> None:
    inner, outside = tmp_path / "root/inner", tmp_path / "outside"
    for path in (inner, outside):
        path.mkdir(parents=True)
    both = (str(tmp_path / "root"), str(inner))
    gateway = ScriptedGateway(create_sandbox=REPLY)
    uris = [f"file://{path}" for path in both]

    async def roots(_context: Any) -> ListRootsResult:
        return ListRootsResult.model_validate({"roots": [{"uri": uri} for uri in uris]})

    async def go(options: ServerOptions) -> None:
        async with Client(
            app.build(options, gateway=gateway).server, mode="legacy", list_roots_callback=roots
        ) as client:
            await client.call_tool("create_sandbox", CREATE)
            inner.rmdir()
            inner.symlink_to(outside)
            await client.call_tool("create_sandbox", CREATE)
            for asked in gateway.asked:
                assert reason(Bounds(tuple(asked.args["allowed_roots"])), outside) == "outside_roots"
            gateway.asked.clear()
        async with Client(
            app.build(options, gateway=gateway).server, mode="legacy", list_roots_callback=roots
        ) as client:
            await client.call_tool("create_sandbox", CREATE)  # the next start of the server
            assert gateway.asked.pop().args["allowed_roots"] == [both[0]]

    for options in (ServerOptions(), ServerOptions(roots=both)):
        anyio.run(go, options)
        inner.unlink()
        inner.mkdir()


@pytest.mark.parametrize(
    "guard", ["allow_sensitive", "allow_unsafe", "keep_setuid", "with_git", "on_conflict"]
)
def test_a_model_cannot_lower_a_guard_and_the_command_line_can(guard: str) -> None:
    value, lowers = ("overwrite", "allow_overwrite") if guard == "on_conflict" else (True, guard)
    options = ServerOptions(tool_set="all", roots=("/r",))
    name, args = (
        ("export_changes", {"sandbox_id": "s", "dest": "/r/d"})
        if guard != "allow_sensitive"
        else ("create_sandbox", {})
    )
    gateway = ScriptedGateway(create_sandbox=REPLY, export_changes={"files_written": 0})
    found = call(
        name, {**(CREATE if name == "create_sandbox" else {}), **args, guard: value}, gateway, options
    )
    assert found.is_error and found.structure["error"]["details"]["reason"] == "for_a_person"
    assert gateway.asked == []
    flag = f"--{lowers.replace('_', '-')}"
    assert flag in found.structure["error"]["details"]["hint"]
    allowed = parse(EOS, [flag, "--root", "/"], version="1")
    assert allowed.allowed == {lowers}
    assert sent(allowed._replace(tool_set="all"), name, **args, **{guard: value})[guard] == value
    assert (
        sent(options, "export_changes", sandbox_id="s", dest="/r/d", on_conflict="keep", skip_unsafe=True)[
            "on_conflict"
        ]
        == "keep"
    )


def test_a_root_that_is_no_directory_is_a_usage_error(tmp_path: Path) -> None:
    assert parse(EOS, ["--root", str(tmp_path), "--root=/"], version="1").roots == (str(tmp_path), "/")
    with pytest.raises(ServerUsageError):
        parse(EOS, ["--root", f"{tmp_path}/missing"], version="1")


def test_roots_of_the_sdk_are_understood() -> None:
    assert str(Root.model_validate({"uri": "file:///a%20b"}).uri) == "file:///a%20b"
