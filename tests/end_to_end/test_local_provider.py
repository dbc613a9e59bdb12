"""Sandboxes without Docker, as root and as an ordinary user: the whole life of one, restarts, refusals, and
nothing left behind.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Generator
from typing import Any

import pytest

from agent_image import build
from eos_agent.wire.protocol import OperationError
from layerstack.kernel import syscalls
from tests import in_namespace
from tests.end_to_end.local_place import Place, User, users
from tests.end_to_end.local_place import bundle as bundle
from tests.end_to_end.local_place import ordinary as ordinary
from tests.end_to_end.manager_fixture import Host


@pytest.fixture(params=[pytest.param("root", marks=pytest.mark.needs("root")), "ordinary"])
def user(
    request: pytest.FixtureRequest, bundle: build.Bundle, monkeypatch: pytest.MonkeyPatch
) -> Generator[User]:
    yield from users(
        "uid" if request.param == "ordinary" and os.geteuid() == 0 else None, bundle, monkeypatch
    )


pytestmark = [pytest.mark.needs("overlay", "userns")]


async def created(host: Host, place: Place, **args: Any) -> str:
    return str((await host.do("create_sandbox", image="host", workspace_root=place.workspace, **args))["id"])


def test_a_sandbox_lives_from_create_to_destroy_and_leaves_nothing(user: User) -> None:
    async def scenario(place: Place) -> tuple[Any, ...]:
        async with place.host() as host:
            record = await host.do("create_sandbox", image="host", workspace_root=place.workspace)
            output = await host.run(
                record["id"], "cat a.txt; echo two > b.txt; pwd; id -u; echo $EOS_WORKSPACE"
            )
            content = await host.read(record["id"], "b.txt")
            export = await host.do("export_changes", sandbox_id=record["id"], dest=place.out)
            listed = await host.do("list_sandboxes")
            final = await host.do("destroy_sandbox", sandbox_id=record["id"])
            return record, output, content, export, listed, final, await host.do("list_sandboxes"), host.said

    record, output, content, export, listed, final, after, said = user.play(scenario)
    workspace = user.place.workspace
    assert output == f"one\n{workspace}\n0\n{workspace}"
    assert content == "two"
    assert export["files_written"] == 1
    with open(f"{user.place.out}/b.txt") as file:
        assert file.read() == "two\n"
    assert os.listdir(workspace) == ["a.txt"], "the workspace of the host was written"
    assert listed == {"sandboxes": [{key: value for key, value in record.items() if key != "readable"}]}
    assert (
        record["state"] == "ready"
        and record["daemon"]["host"] == "127.0.0.1"
        and record["resource_profile"] is None
    )
    assert final["state"] == "stopped" and final["discarded"]["layers"] == 1
    assert after == {"sandboxes": []}
    assert said[0].startswith("building base") and any(line.startswith("sandbox ready") for line in said)
    assert user.leftovers() == {}


def test_the_next_gateway_finds_sandboxes_and_starts_killed_agents_again(user: User) -> None:
    async def first(place: Place) -> tuple[str, int]:
        async with place.host() as host:
            sandbox_id = await created(host, place)
            await host.run(sandbox_id, "echo kept > kept.txt")
            with open(f"{place.state}/sandboxes/{sandbox_id}/endpoint.json") as file:
                return sandbox_id, json.load(file)["pid"]

    async def second(place: Place) -> tuple[str, str]:
        async with place.host() as host:
            (record,) = (await host.do("list_sandboxes"))["sandboxes"]
            content = await host.read(record["id"], "kept.txt")
            return content, await host.run(record["id"], "ls")

    async def last(place: Place) -> None:
        async with place.host() as host:
            for record in (await host.do("list_sandboxes"))["sandboxes"]:
                await host.do("destroy_sandbox", sandbox_id=record["id"])

    _, pid = user.play(first)
    assert user.play(second) == ("kept", "a.txt  kept.txt")
    os.kill(pid, signal.SIGKILL)
    assert user.play(second) == ("kept", "a.txt  kept.txt")
    os.unlink(f"{user.place.state}/registry.json")
    assert user.play(second) == ("kept", "a.txt  kept.txt"), "a lost registry loses the sandbox"
    user.play(last)
    assert user.leftovers() == {}


def test_trees_that_nobody_may_enter_go_with_their_sandbox(user: User) -> None:
    async def scenario(place: Place) -> None:
        async with place.host() as host:
            sandbox_id = await created(host, place)
            await host.run(sandbox_id, "mkdir -p x/y && echo 1 > x/y/z && chmod 000 x/y x && rm a.txt")
            session = await host.ask(sandbox_id, "create_workspace_session")
            await host.run(
                sandbox_id,
                "mkdir -p deep/er; touch deep/er/f; chmod 000 deep/er deep",
                workspace_session_id=session["workspace_session_id"],
            )
            await host.do("destroy_sandbox", sandbox_id=sandbox_id)

    user.play(scenario)
    assert user.leftovers() == {}


def test_a_batch_shares_one_base_and_a_failure_takes_all_of_it_back(user: User) -> None:
    async def scenario(place: Place) -> tuple[Any, ...]:
        async with place.host() as host:
            made = (await host.do("create_sandbox", image="host", workspace_root=place.workspace, count=2))[
                "sandboxes"
            ]
            hashes = {record["shared_base"]["root_hash"] for record in made}
            provider = host.manager.providers["local"]
            create, calls = provider.create, 0

            def failing(plan: Any, progress: Any) -> Any:
                nonlocal calls
                calls += 1
                if calls == 2:
                    raise OperationError("internal_error", "injected")
                return create(plan, progress)

            provider.create = failing  # type: ignore[method-assign]
            error = await host.refused(
                "create_sandbox", image="host", workspace_root=place.workspace, count=3
            )
            left = [record["id"] for record in (await host.do("list_sandboxes"))["sandboxes"]]
            for record in made:
                await host.do("destroy_sandbox", sandbox_id=record["id"])
            return hashes, [record["id"] for record in made], left, error.message

    hashes, made, left, message = user.play(scenario)
    assert len(hashes) == 1 and sorted(made) == left and message == "injected"
    assert user.leftovers() == {}


def test_a_wrong_daemon_document_names_its_key_leaves_no_record_and_can_be_mended(user: User) -> None:
    yaml = f"{user.place.root}/eos.yml"

    def write(text: str) -> None:
        with open(yaml, "w") as file:
            file.write(text)

    async def scenario(place: Place) -> tuple[OperationError, list[Any]]:
        async with place.host(yaml=yaml) as host:
            error = await host.refused("create_sandbox", image="host", workspace_root=place.workspace)
            nothing = (await host.do("list_sandboxes"))["sandboxes"]
            write("runtime: {command: {max_active: 4}}")
            await host.do("destroy_sandbox", sandbox_id=await created(host, place))
            return error.envelope()["error"], nothing

    write("runtime: {workspace: {surprise: 1}}")
    os.chmod(yaml, 0o666)
    error, nothing = user.play(scenario)
    assert (error["kind"], error["details"]["reason"], error["details"]["file"]) == (
        "operation_failed",
        "config_invalid",
        yaml,
    )
    assert (error["details"]["field"], error["details"]["line"]) == ("runtime.workspace.surprise", 1)
    assert "unknown field" in error["message"] and nothing == []
    assert user.leftovers() == {}


def test_an_agent_that_refuses_its_settings_is_reported_with_its_log_and_leaves_nothing(user: User) -> None:
    yaml = f"{user.place.root}/eos.yml"
    with open(yaml, "w") as file:
        file.write("runtime: {layerstack: {reserved_names: reference}}")

    async def scenario(place: Place) -> dict[str, Any]:
        async with place.host(yaml=yaml) as host:
            error: dict[str, Any] = (
                await host.refused("create_sandbox", image="host", workspace_root=place.workspace)
            ).envelope()["error"]
            return error

    error = user.play(scenario)
    assert error["kind"] == "internal_error" and error["details"]["reason"] == "agent_exited"
    assert "reserved_names" in error["message"]
    assert any("reserved_names" in line for line in error["details"]["daemon_log"])
    assert user.leftovers() == {}


@pytest.mark.needs("root")
def test_a_store_on_an_overlay_is_refused_by_name_with_the_variable_that_moves_it(user: User) -> None:
    place = user.place

    def overlay_under_state(_: Place) -> None:
        """Runs as root in a child of its own; the ordinary user is entered afterwards."""
        in_namespace.enter_mount_namespace()
        for name in ("upper", "work"):
            os.makedirs(f"{place.root}/ov/{name}")
        syscalls.mount(
            "overlay",
            place.state,
            "overlay",
            0,
            f"lowerdir={place.state},upperdir={place.root}/ov/upper,workdir={place.root}/ov/work",
        )
        if user.namespace == "uid":
            os.chown(place.state, in_namespace.ORDINARY_UID, in_namespace.ORDINARY_UID)
            in_namespace.become(in_namespace.ORDINARY_UID)

    async def scenario(place: Place) -> tuple[dict[str, Any], list[str]]:
        async with place.host() as host:
            error = await host.refused("create_sandbox", image="host", workspace_root=place.workspace)
            return error.envelope()["error"], os.listdir(place.state)

    error, left = User(place, None).play(scenario, before=overlay_under_state)
    assert error["details"]["reason"] == "store_on_overlay", error
    assert place.state in error["message"] and "EOS_STATE_DIR" in error["message"]
    assert set(left) <= {"registry.json", "exports"}, "nothing but the registry and the reserve of exports"
    assert user.leftovers() == {}


@pytest.mark.needs("uid")
def test_forbidden_user_namespaces_are_named_and_nothing_is_left(ordinary: User) -> None:
    async def scenario(place: Place) -> dict[str, Any]:
        async with place.host() as host:
            error: dict[str, Any] = (
                await host.refused("create_sandbox", image="host", workspace_root=place.workspace)
            ).envelope()["error"]
            return error

    error = User(ordinary.place, None).play(scenario, before=_forbid_user_namespaces)
    assert error["details"]["reason"] == "userns_forbidden", error
    assert error["details"]["errno"] == "ENOSPC"
    assert ordinary.leftovers() == {}


def _forbid_user_namespaces(_: Place) -> None:
    """As an ordinary user of the outer namespace, inside one that allows no more of them and maps that user
    to itself.
    """
    uid = in_namespace.ORDINARY_UID
    in_namespace.become(uid)
    syscalls.unshare(syscalls.CLONE_NEWUSER)
    for name, text in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{uid} {uid} 1")):
        with open(f"/proc/self/{name}", "w") as file:
            file.write(text)
    with open("/proc/sys/user/max_user_namespaces", "w") as file:
        file.write("0")


@pytest.mark.parametrize("image", ["rootfs:relative", "rootfs:/nonexistent/tree", "rootfs:"])
def test_a_root_tree_that_is_not_there_is_an_image_that_is_not_there(user: User, image: str) -> None:
    async def scenario(place: Place) -> dict[str, Any]:
        async with place.host() as host:
            error: dict[str, Any] = (
                await host.refused("create_sandbox", image=image, workspace_root=place.workspace)
            ).envelope()["error"]
            return error

    error = user.play(scenario)
    assert (error["kind"], error["details"]["reason"]) == ("invalid_request", "image_not_found")
    assert user.leftovers() == {}


def test_requests_that_make_no_sense_are_refused_before_anything_is_made(user: User) -> None:
    async def scenario(place: Place) -> dict[str, tuple[str, Any]]:
        found: dict[str, tuple[str, Any]] = {}
        good: dict[str, Any] = {"image": "host", "workspace_root": place.workspace}
        async with place.host() as host:
            for name, args in {
                "blank image": {**good, "image": "  "},
                "no image": {"workspace_root": place.workspace},
                "relative": {**good, "workspace_root": "w"},
                "missing": {**good, "workspace_root": f"{place.root}/nope"},
                "count 0": {**good, "count": 0},
                "count text": {**good, "count": "2"},
                "own state": {**good, "workspace_root": place.state},
            }.items():
                error = await host.refused("create_sandbox", **args)
                found[name] = (error.kind, error.details.get("argument"))
            for op in ("inspect_sandbox", "destroy_sandbox", "export_changes", "squash_layerstacks"):
                error = await host.refused(op, sandbox_id="eos-unknown", dest=place.out)
                found[op] = (error.kind, error.details["reason"])
            error = await host.refused("create_sandbox", image="busybox", workspace_root=place.workspace)
            found["docker image"] = (error.kind, error.details["reason"])
            return found

    found = user.play(scenario)
    assert {
        name: value
        for name, value in found.items()
        if "sandbox" not in name and name not in ("docker image", "export_changes", "squash_layerstacks")
    } == {
        "blank image": ("invalid_request", "image"),
        "no image": ("invalid_request", "image"),
        "relative": ("invalid_request", "workspace_root"),
        "missing": ("invalid_request", "workspace_root"),
        "count 0": ("invalid_request", "count"),
        "count text": ("invalid_request", "count"),
        "own state": ("invalid_request", "workspace_root"),
    }
    for op in ("inspect_sandbox", "destroy_sandbox", "export_changes", "squash_layerstacks"):
        assert found[op] == ("invalid_request", "sandbox_not_found")
    assert found["docker image"] == ("internal_error", "backend_off")
    assert user.leftovers() == {}


def test_commands_see_nothing_of_our_own_directories_and_of_the_users_keys(user: User) -> None:
    place = user.place
    os.mkdir(f"{place.root}/home/.ssh")
    with open(f"{place.root}/home/.ssh/id", "w") as file:
        file.write("PRIVATE")
    if user.namespace is not None:
        subprocess.run(["chown", "-R", str(in_namespace.ORDINARY_UID), f"{place.root}/home"], check=True)

    async def scenario(place: Place) -> str:
        async with place.host() as host:
            sandbox_id = await created(host, place)
            output = await host.run(
                sandbox_id,
                f"cat {place.root}/home/.ssh/id {place.state}/registry.json 2>&1; ls {place.state} "
                f"{place.root}/cache/eos 2>&1; true",
            )
            await host.do("destroy_sandbox", sandbox_id=sandbox_id)
            return output

    output = user.play(scenario)
    assert (
        "PRIVATE" not in output
        and "token" not in output
        and "sandboxes" not in output
        and "bundles" not in output
    )
    assert user.leftovers() == {}
