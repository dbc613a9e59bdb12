"""Sandboxes as containers of a real engine: any image, restarts, lost registries, refusals, and nothing left
behind.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agent_image import build
from eos_agent.wire.protocol import OperationError
from eos_mcp.providers import engine, volumes
from eos_mcp.providers.docker import MADE_BY, DockerProvider
from eos_mcp.workspace import base
from tests.end_to_end.docker_place import Place
from tests.end_to_end.docker_place import place as place
from tests.end_to_end.manager_fixture import Host, records

pytestmark = [pytest.mark.needs("dockerd")]

Image = Callable[[str], str]


def as_listed(record: dict[str, Any]) -> dict[str, Any]:
    """A record as `list_sandboxes` has it, which leaves out what a session can read."""
    assert record["readable"]
    return {key: value for key, value in record.items() if key != "readable"}


@pytest.mark.parametrize("name", ["empty", "busybox", "debian"])
def test_a_sandbox_of_any_image_lives_from_create_to_destroy_and_leaves_nothing(
    place: Place, image: Image, name: str
) -> None:
    async def scenario(host: Host) -> tuple[Any, ...]:
        record = await place.create(host, image(f"{name}"))
        sandbox_id = record["id"]
        written = await host.ask(sandbox_id, "file_write", path="d/b.txt", content="two\n")
        command = await host.ask(
            sandbox_id, "exec_command", cmd="cat a.txt d/b.txt; pwd; rm a.txt; mkdir e", yield_time_ms=30_000
        )
        content = await host.read(sandbox_id, "d/b.txt")
        export = await host.do("export_changes", sandbox_id=sandbox_id, dest=place.out)
        listed = await host.do("list_sandboxes")
        names = place.volumes(sandbox_id)
        final = await host.do("destroy_sandbox", sandbox_id=sandbox_id)
        return record, written, command, content, export, listed, names, final, place.volumes(sandbox_id)

    record, written, command, content, export, listed, names, final, after = place.play(scenario)
    assert record["state"] == "ready" and listed == {"sandboxes": [as_listed(record)]}
    assert (
        record["shared_base"]["target"] == "/eos/layer-stack/base"
        and record["resource_profile"]["name"] == "standard"
    )
    assert record["daemon"]["host"] == record["daemon_http"]["host"] == "127.0.0.1"
    assert written == {"type": "create", "path": "d/b.txt", "bytes_written": 4} and content == "two"
    if name == "empty":
        assert command["error"]["details"]["reason"] == "no_shell"
    else:
        assert (
            command["output"] == f"one of {place.instance_id}\ntwo\n/workspace" and command["exit_code"] == 0
        )
        assert export["manifest_version"] == 3 and export["layers_exported"][0].startswith("L000003-")
    with open(f"{place.out}/d/b.txt") as file:
        assert file.read() == "two\n"
    assert sorted(names) == [f"{record['id']}-layer-stack", f"{record['id']}-workspace"]
    assert final["state"] == "stopped" and final["discarded"]["layers"] == (1 if name == "empty" else 2)
    assert after == [] and place.containers() == []


def test_the_container_is_what_the_contract_says_and_carries_its_token_in_a_file_only(
    place: Place, image: Image
) -> None:
    async def scenario(host: Host) -> tuple[dict[str, Any], str, str, bytes]:
        record = await place.create(host, image("busybox"))
        (container,) = place.containers()
        token = (records(place.state)[0])["token"]
        inspected = json.dumps(container.attrs)
        log = container.logs()
        processes = str(container.top())
        await host.do("destroy_sandbox", sandbox_id=record["id"])
        return container.attrs, token, inspected + processes, log

    attrs, token, shown, log = place.play(scenario)
    assert len(token) >= 32 and token not in shown and token.encode() not in log
    config, host_config = attrs["Config"], attrs["HostConfig"]
    assert attrs["Name"].removeprefix("/") == config["Labels"]["eos.sandbox_id"]
    assert (
        config["Labels"]["eos.gateway_instance_id"] == place.instance_id
        and "eos.auth_token" not in config["Labels"]
    )
    assert sorted(host_config["CapAdd"]) == ["NET_ADMIN", "SYS_ADMIN"]
    assert (
        host_config["Privileged"] is False
        and host_config["Init"] is True
        and host_config["CgroupnsMode"] == "private"
    )
    assert (
        "no-new-privileges" in host_config["SecurityOpt"]
        and host_config["RestartPolicy"]["Name"] == "unless-stopped"
    )
    assert host_config["Memory"] == 512 << 20 and host_config["NanoCpus"] == 10**9
    assert {binding[0]["HostIp"] for binding in host_config["PortBindings"].values()} == {"127.0.0.1"}
    assert {
        "LD_PRELOAD=",
        "LD_LIBRARY_PATH=",
        "LD_AUDIT=",
        "GLIBC_TUNABLES=",
        "LOCPATH=",
        "LC_ALL=C",
        "TZ=/eos/bundle/no-zone",
    } <= set(config["Env"])
    mounts = {mount["Destination"]: (mount["Name"], mount["RW"]) for mount in attrs["Mounts"]}
    assert mounts["/eos/bundle"][0].startswith("eos-rt-") and mounts["/eos/bundle"][1] is False
    assert (
        mounts["/eos/layer-stack/base"][0].startswith("eos-shared-base-")
        and mounts["/eos/layer-stack/base"][1] is False
    )
    assert any("sandbox-daemon" in word for word in config["Entrypoint"])


def test_after_a_restart_of_the_container_the_next_call_works_and_published_content_is_there(
    place: Place, image: Image
) -> None:
    async def scenario(host: Host) -> tuple[str, str, dict[str, Any], dict[str, Any]]:
        before = await place.create(host, image("busybox"))
        await host.run(before["id"], "echo kept > kept.txt")
        (container,) = place.containers()
        await asyncio.to_thread(container.restart, timeout=5)
        content = await host.read(before["id"], "kept.txt")
        output = await host.run(before["id"], "ls")
        after = await host.do("inspect_sandbox", sandbox_id=before["id"])
        await host.do("destroy_sandbox", sandbox_id=before["id"])
        return content, output, before, after

    content, output, before, after = place.play(scenario)
    assert (content, output) == ("kept", "a.txt     kept.txt")
    assert after["daemon"] != before["daemon"], "the engine kept the port; this test proves nothing"


def test_another_gateway_with_a_lost_registry_adopts_containers_of_its_own_instance_id_only(
    place: Place, image: Image
) -> None:
    async def first(host: Host) -> dict[str, Any]:
        record = await place.create(host, image("busybox"))
        await host.run(record["id"], "echo kept > kept.txt")
        return record

    async def second(host: Host) -> tuple[list[Any], str]:
        listed = (await host.do("list_sandboxes"))["sandboxes"]
        content = await host.read(listed[0]["id"], "kept.txt")
        await host.do("destroy_sandbox", sandbox_id=listed[0]["id"])
        return listed, content

    async def stranger(host: Host) -> list[Any]:
        return list((await host.do("list_sandboxes"))["sandboxes"])

    yaml = f"{place.root}/quota.yml"
    with open(yaml, "w") as file:
        file.write("runtime: {layerstack: {quota_bytes: 1000000}}\n")
    record = place.play(first, yaml=yaml)
    assert record["quota"]["bytes"] == 1_000_000
    os.unlink(f"{place.state}/registry.json")
    mine, place.instance_id = place.instance_id, "somebody-else"
    assert place.play(stranger) == []
    place.instance_id = mine
    listed, content = place.play(second)
    assert content == "kept"
    assert listed == [as_listed(record)], "adopted with other values than it was made with"


def test_a_container_that_vanished_fails_its_record_and_destroy_cleans_up(place: Place, image: Image) -> None:
    async def first(host: Host) -> str:
        return str((await place.create(host, image("busybox")))["id"])

    async def second(host: Host) -> tuple[str, OperationError, dict[str, Any]]:
        (record,) = (await host.do("list_sandboxes"))["sandboxes"]
        try:
            await host.ask(record["id"], "file_list")
        except OperationError as error:
            refused = error
        return record["state"], refused, await host.do("destroy_sandbox", sandbox_id=record["id"])

    sandbox_id = place.play(first)
    place.containers()[0].remove(force=True)
    assert place.volumes(sandbox_id) != []
    state, refused, final = place.play(second)
    assert (state, refused.kind, refused.details["reason"]) == ("failed", "invalid_request", "wrong_state")
    assert final["state"] == "stopped" and place.volumes(sandbox_id) == []


def test_a_second_sandbox_of_one_image_and_base_costs_the_engine_few_calls(
    place: Place, image: Image
) -> None:
    """Each call is a millisecond or several of create_sandbox, more on a busy engine."""
    calls: list[str] = []

    async def scenario(host: Host) -> None:
        provider = host.manager.providers["docker"]
        assert isinstance(provider, DockerProvider)
        for _ in range(2):
            record = await place.create(host, image("busybox"))
            await host.do("destroy_sandbox", sandbox_id=record["id"])
            calls.append("-")
            if len(calls) == 1:
                provider.client().api.hooks["response"].append(
                    lambda reply, **_: calls.append(f"{reply.request.method} {reply.request.path_url}")
                )

    place.play(scenario)
    asked = [call for call in calls if "/stats" not in call]  # those are the sampler's, on the same client
    until_ready = asked[
        1 : next(n for n, call in enumerate(asked) if call.startswith("POST") and "/start" in call) + 1
    ]
    assert len(until_ready) <= 7, until_ready  # image, create, its inspection, two volumes, archive, start
    assert sum("/images/" in call for call in until_ready) == 1


def test_a_new_runtime_takes_the_place_of_those_that_this_instance_made_before_and_nobody_uses(
    place: Place, image: Image, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("x")
    other = f"test-{os.urandom(6).hex()}"
    shas = [os.urandom(32).hex() for _ in range(4)]
    old, used, foreign, new = (f"{volumes.RUNTIME_PREFIX}{sha}" for sha in shas)
    keeper = None
    try:
        for name, made_by in ((old, place.instance_id), (used, place.instance_id), (foreign, other)):
            place.client.volumes.create(name, labels={"eos.shared": "true", MADE_BY: made_by})
        keeper = place.client.containers.create(
            image("busybox"), ["true"], volumes={used: {"bind": "/v", "mode": "ro"}}
        )
        labels = {"eos.shared": "true", MADE_BY: place.instance_id}
        shared = volumes.Volumes(place.client, f"{tmp_path}/locks", labels, place.instance_id)
        bundle = build.Bundle(str(tmp_path), shas[3])
        assert shared.bundle(bundle, image("busybox")) == new == shared.bundle(bundle, image("busybox"))
        there = {volume.name for volume in place.client.volumes.list()}
        assert {used, foreign, new} <= there and old not in there
    finally:
        if keeper is not None:
            keeper.remove(force=True)
        for name in (old, used, foreign, new):
            for volume in place.client.volumes.list(filters={"name": name}):
                volume.remove(force=True)


def test_an_image_that_is_not_there_is_found_before_anything_is_copied(place: Place) -> None:
    async def scenario(host: Host) -> list[tuple[str, str]]:
        found: list[tuple[str, str]] = []
        for image in ("eos-test/nobody-made-this", "UPPER", "a\nb"):
            error = await host.refused("create_sandbox", image=image, workspace_root=place.workspace)
            found.append((error.kind, error.details["reason"]))
        return found

    # the contract keeps the reference's kind for an image that is not there; a name that can be none is the
    # caller's mistake
    assert place.play(scenario) == [
        ("internal_error", "image_not_found"),
        *[("invalid_request", "bad_image")] * 2,
    ]
    assert not os.path.exists(f"{place.root}/bases")


def test_an_agent_that_cannot_start_is_reported_with_its_log_and_nothing_is_left(
    place: Place, image: Image
) -> None:
    yaml = f"{place.root}/eos.yml"
    with open(yaml, "w") as file:
        file.write("runtime: {layerstack: {reserved_names: reference}}")

    async def scenario(host: Host) -> OperationError:
        return await host.refused("create_sandbox", image=image("busybox"), workspace_root=place.workspace)

    error = place.play(scenario, yaml=yaml)
    assert error.kind == "internal_error" and error.details["reason"] == "agent_exited"
    assert any("reserved_names" in line for line in error.details["daemon_log"])
    assert place.containers() == [] and place.volumes(error.details["sandbox_id"]) == []


def test_moved_roots_work_and_stay_hidden(place: Place, image: Image) -> None:
    yaml = f"{place.root}/eos.yml"
    with open(yaml, "w") as file:
        file.write(
            "runtime: {workspace: {layer_stack_root: /data/stack, scratch_root: /scratch}, "
            "namespace_execution: {scratch_root: /transcripts}}"
        )

    async def scenario(host: Host) -> tuple[str, str, dict[str, Any]]:
        record = await place.create(host, image("busybox"))
        await host.run(record["id"], "echo two > b.txt")
        output = await host.run(record["id"], "cat b.txt; ls -A /data/stack /scratch /transcripts /eos")
        content = await host.read(record["id"], "b.txt")
        await host.do("destroy_sandbox", sandbox_id=record["id"])
        return output, content, record

    output, content, record = place.play(scenario, yaml=yaml)
    assert content == "two" and record["shared_base"]["target"] == "/data/stack/base"
    assert output.split() == ["two", "/data/stack:", "/eos:", "/scratch:", "/transcripts:"]


def test_images_are_listed_and_the_local_one_where_it_works(place: Place, image: Image) -> None:
    reference = image("busybox")

    async def scenario(host: Host) -> list[str]:
        return list((await host.do("list_docker_images"))["images"])

    assert reference in place.play(scenario)
    listed = place.play(scenario, backend="auto")
    assert listed == sorted(listed) and "host" in listed


def test_a_volume_that_was_filled_half_is_filled_again(place: Place, image: Image) -> None:
    """A gateway that was killed while it uploaded leaves a volume without its last file."""
    tree = base.prepare(place.workspace, f"{place.root}/bases")
    name = f"eos-shared-base-{tree.root_hash}"
    place.client.volumes.create(name)

    async def scenario(host: Host) -> str:
        record = await place.create(host, image("busybox"))
        output = await host.run(record["id"], "cat a.txt")
        await host.do("destroy_sandbox", sandbox_id=record["id"])
        return output

    assert place.play(scenario) == f"one of {place.instance_id}"


def test_a_base_arrives_in_its_volume_with_modes_times_links_and_any_name(place: Place, image: Image) -> None:
    root = Path(place.workspace)
    (root / "bin").mkdir(mode=0o711)
    (root / "bin/run").write_text("#!/bin/sh\necho ran\n")
    (root / "bin/run").chmod(0o755)
    os.link(root / "bin/run", root / "again")
    (root / "link").symlink_to("bin/run")
    (root / ("deep" * 40)).mkdir()
    (root / ("deep" * 40) / ("name" * 30)).write_text("long")
    with open(os.fsencode(root) + b"/bad-\xff", "wb") as file:
        file.write(b"bytes")
    os.utime(root / "bin/run", ns=(10**18 + 123456789, 10**18 + 123456789))

    async def scenario(host: Host) -> str:
        record = await place.create(host, image("busybox"))
        command = (
            "./link; stat -c '%a %h' bin bin/run; [ bin/run -ef again ] && echo same; cat deep*/name* "
            "bad-*; ls -e bin/run 2>/dev/null; stat -c %Y bin/run"
        )
        output = await host.run(record["id"], command)
        await host.do("destroy_sandbox", sandbox_id=record["id"])
        return output

    lines = place.play(scenario).splitlines()
    assert lines[0] == "ran" and lines[1].startswith("711 ") and lines[2] == "755 2" and lines[3] == "same"
    assert lines[4].startswith("longbytes") and lines[-1].endswith("1000000000")


def test_an_engine_that_does_not_answer_is_named_with_its_source_and_the_next_step(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    missing = f"unix://{place.root}/no.sock"
    monkeypatch.setenv("DOCKER_HOST", missing)

    async def scenario(host: Host) -> OperationError:
        return await host.refused("create_sandbox", image="busybox", workspace_root=place.workspace)

    error = place.play(scenario)
    assert error.kind == "internal_error" and error.details["reason"] == "docker_unreachable"
    assert (error.details["endpoint"], error.details["source"]) == (missing, "DOCKER_HOST")
    assert (
        missing in error.message
        and "DOCKER_HOST" in error.message
        and error.details["hint"]
        and error.details["retryable"] is True
    )
    assert not os.path.exists(f"{place.root}/bases")


def test_a_context_that_does_not_exist_is_refused_and_not_replaced_by_the_default(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("DOCKER_HOST", raising=False)
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    monkeypatch.setenv("DOCKER_CONTEXT", "gone")
    with pytest.raises(OperationError) as caught:
        engine.choose(None)
    assert (
        caught.value.details["reason"] == "docker_context_missing"
        and caught.value.details["context"] == "gone"
    )
    monkeypatch.delenv("DOCKER_CONTEXT")
    assert engine.choose("tcp://10.0.0.1:2375") == engine.EngineChoice(
        "tcp://10.0.0.1:2375", "manager.docker.docker_endpoint"
    )
    monkeypatch.setenv("DOCKER_HOST", "unix:///x.sock")
    assert engine.choose(None) == engine.EngineChoice("unix:///x.sock", "DOCKER_HOST")


def test_the_archive_of_a_base_is_the_same_bytes_each_time(place: Place) -> None:
    tree = base.prepare(place.workspace, f"{place.root}/bases")
    assert b"".join(volumes.base_archive(tree.path)) == b"".join(volumes.base_archive(tree.path))
