"""What the manager does whatever the provider: exports one at a time, the fleet's snapshot, states, and a
create that was killed.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import threading
from typing import Any

import pytest

from eos_agent.wire.protocol import OperationError
from eos_mcp.export import apply as export
from eos_mcp.manager import create
from eos_mcp.record.registry import Registry
from tests import in_namespace
from tests.end_to_end.manager_fixture import Host, hosting, records
from tests.end_to_end.manager_place import Place
from tests.end_to_end.manager_place import place as place
from tests.processes import processes_that_name

pytestmark = [pytest.mark.needs("overlay")]


def play(place: Place, scenario: Any, **options: Any) -> Any:
    """scenario(host, sandbox id) with one sandbox, destroyed afterwards."""

    async def hosted() -> Any:
        async with hosting(place.state, backend="local", **options) as host:
            sandbox_id = (await host.do("create_sandbox", image="host", workspace_root=place.workspace))["id"]
            try:
                return await scenario(host, sandbox_id)
            finally:
                await host.do("destroy_sandbox", sandbox_id=sandbox_id)

    return asyncio.run(hosted())


def test_a_second_export_of_a_sandbox_is_refused_while_the_first_runs(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    inside, go_on = threading.Event(), threading.Event()
    apply = export.apply

    def slow(*args: Any, **options: Any) -> dict[str, Any]:
        inside.set()
        assert go_on.wait(60)
        return apply(*args, **options)

    monkeypatch.setattr(export, "apply", slow)

    async def scenario(host: Host, sandbox_id: str) -> tuple[OperationError, dict[str, Any], dict[str, Any]]:
        await host.run(sandbox_id, "echo two > b.txt")
        first = asyncio.create_task(host.do("export_changes", sandbox_id=sandbox_id, dest=place.out))
        await asyncio.to_thread(inside.wait, 60)
        refused = await host.refused("export_changes", sandbox_id=sandbox_id, dest=f"{place.root}/other")
        go_on.set()
        return refused, await first, await host.do("export_changes", sandbox_id=sandbox_id, dest=place.out)

    refused, first, again = play(place, scenario)
    assert refused.kind == "operation_failed" and "in flight" in refused.message
    assert refused.details["reason"] == "export_in_flight"
    assert first["files_written"] == 1
    assert (again["files_written"], again["skipped_unchanged"]) == (0, 1)


@pytest.mark.parametrize("fmt", ["dir", "tar", "tar-zst"])
def test_each_format_is_written(place: Place, fmt: str) -> None:
    async def scenario(host: Host, sandbox_id: str) -> dict[str, Any]:
        await host.run(sandbox_id, "mkdir d; echo two > d/b.txt; rm a.txt; ln -s b.txt d/l")
        session = await host.ask(sandbox_id, "create_workspace_session")
        result = await host.do("export_changes", sandbox_id=sandbox_id, dest=place.out, format=fmt)
        assert result["live_workspace_sessions"] == [session["workspace_session_id"]]
        return result

    result = play(place, scenario)
    assert (result["format"], result["files_written"], result["symlinks_written"]) == (fmt, 1, 1)
    assert os.path.isdir(place.out) is (fmt == "dir")
    if fmt != "dir":
        assert result["bytes_written"] == os.path.getsize(place.out)


def test_a_dry_run_names_what_was_edited_since_the_sandbox_was_made_and_leaves_the_workspace_alone(
    place: Place,
) -> None:
    async def scenario(host: Host, sandbox_id: str) -> tuple[dict[str, Any], ...]:
        await host.run(sandbox_id, "echo two > b.txt; echo other > a.txt; rm c.txt")
        where = {"sandbox_id": sandbox_id, "dest": place.workspace}
        clean = await host.do("export_changes", **where, dry_run=True)
        with open(f"{place.workspace}/a.txt", "w") as file:
            file.write("mine\n")
        edited = await host.do("export_changes", **where, dry_run=True)
        wrong = await host.refused("export_changes", **where, dry_run="true")
        assert (wrong.kind, wrong.details["argument"]) == ("invalid_request", "dry_run"), (
            "and is not taken for false"
        )
        archive = await host.do(
            "export_changes", sandbox_id=sandbox_id, dest=place.out, format="tar-zst", dry_run=True
        )
        assert sorted(os.listdir(place.workspace)) == ["a.txt", "c.txt"] and not os.path.exists(place.out)
        refused = await host.refused("export_changes", **where)
        assert (
            refused.details["reason"] == "export_conflict"
            and edited["would_conflict"] == refused.details["conflicts"]
        )
        done = await host.do("export_changes", **where, on_conflict="overwrite")
        assert done["overwritten"] == [{"path": "a.txt", "differs": "edited"}]
        await host.run(sandbox_id, "echo three > b.txt; echo another > a.txt")
        again = await host.do("export_changes", **where, dry_run=True)
        assert (again["files_written"], again["edited"]) == (2, []), (
            "what an earlier export wrote was not edited"
        )
        with open(f"{place.workspace}/b.txt", "a") as file:
            file.write("mine\n")
        assert (await host.do("export_changes", **where, dry_run=True))["edited"] == ["b.txt"]
        return clean, edited, archive, done

    with open(f"{place.workspace}/c.txt", "w") as file:
        file.write("three\n")
    clean, edited, archive, done = play(place, scenario)
    want = [
        {"action": "write", "path": "a.txt"},
        {"action": "write", "path": "b.txt"},
        {"action": "delete", "path": "c.txt"},
    ]
    assert clean["changes"] == edited["changes"] == want and archive["change_count"] == 3
    assert (clean["edited"], edited["edited"]) == ([], ["a.txt"])
    assert (done["files_written"], done["deletes_applied"]) == (2, 1) and "dry_run" not in done


@pytest.mark.parametrize("dest", ["relative", "/", "{home}", "{state}/x", "{root}/.export/x"])
def test_a_destination_that_is_refused_is_refused_before_the_sandbox_is_asked(
    place: Place, dest: str
) -> None:
    async def hosted() -> OperationError:
        async with hosting(place.state, backend="local") as host:
            where = dest.format(home=os.path.expanduser("~"), state=place.state, root=place.root)
            return await host.refused("export_changes", sandbox_id="eos-nobody", dest=where)

    error = asyncio.run(hosted())
    assert (error.kind, error.details["argument"]) == ("invalid_request", "dest")


def test_the_fleets_snapshot_has_a_row_for_a_sandbox_that_does_not_answer(place: Place) -> None:
    yaml = f"{place.root}/eos.yml"
    with open(yaml, "w") as file:
        file.write("manager: {observability_snapshot: {timeout_ms: 300}}")

    async def scenario(host: Host, sandbox_id: str) -> tuple[str, dict[str, Any], dict[str, Any]]:
        other = (await host.do("create_sandbox", image="host", workspace_root=place.workspace))["id"]
        with open(f"{place.state}/sandboxes/{other}/endpoint.json") as file:
            pid = json.load(file)["pid"]
        both = await host.do("snapshot")
        os.kill(pid, signal.SIGSTOP)
        try:
            return other, both, await host.do("snapshot")
        finally:
            os.kill(pid, signal.SIGCONT)
            await host.do("destroy_sandbox", sandbox_id=other)

    other, both, one = play(place, scenario, yaml=yaml)
    assert [row["sandbox_id"] for row in both["sandboxes"]] == sorted(
        row["sandbox_id"] for row in both["sandboxes"]
    )
    assert {row["availability"] for row in both["sandboxes"]} == {"available"}
    rows = {row["sandbox_id"]: row for row in one["sandboxes"]}
    silent = rows.pop(other)
    assert (
        silent["availability"] == "unavailable"
        and silent["sampled_at_unix_ms"] is None
        and len(silent["errors"]) == 1
    )
    assert silent["daemon"]["daemon_pid"] is None and silent["workspaces"] == []
    assert [row["availability"] for row in rows.values()] == ["available"]


def test_a_create_that_was_killed_is_taken_back_by_the_next_gateway(place: Place) -> None:
    def killed_before_ready() -> None:
        def die(*_: Any, **__: Any) -> None:
            os.kill(os.getpid(), signal.SIGKILL)

        create.wait_ready = die  # type: ignore[attr-defined]

        async def hosted() -> None:
            async with hosting(place.state, backend="local") as host:
                await host.do("create_sandbox", image="host", workspace_root=place.workspace)

        asyncio.run(hosted())

    with pytest.raises(in_namespace.ChildDied):
        in_namespace.call(None, killed_before_ready)
    (left,) = records(place.state)
    assert left["state"] == "creating" and processes_that_name(place.state) != []

    async def hosted() -> list[Any]:
        async with hosting(place.state, backend="local") as host:
            return list((await host.do("list_sandboxes"))["sandboxes"])

    assert asyncio.run(hosted()) == []
    assert os.listdir(f"{place.state}/sandboxes") == []


def test_a_record_that_is_being_destroyed_cannot_be_destroyed_again_or_used(place: Place) -> None:
    async def scenario(host: Host, sandbox_id: str) -> list[tuple[str, str]]:
        registry: Registry = host.manager.registry
        found: list[tuple[str, str]] = []
        registry.move(sandbox_id, ("ready",), "stopping")
        for op in ("destroy_sandbox", "squash_layerstacks", "export_changes"):
            error = await host.refused(op, sandbox_id=sandbox_id, dest=place.out)
            found.append((error.kind, error.details["reason"]))
        registry.move(sandbox_id, ("stopping",), "ready")
        return found

    assert play(place, scenario) == [("invalid_request", "wrong_state")] * 3


def test_two_creates_at_once_copy_the_workspace_once(place: Place) -> None:
    async def hosted() -> tuple[list[dict[str, Any]], list[str]]:
        async with hosting(place.state, backend="local") as host:
            made = await asyncio.gather(
                *(host.do("create_sandbox", image="host", workspace_root=place.workspace) for _ in range(3))
            )
            for record in made:
                await host.do("destroy_sandbox", sandbox_id=record["id"])
            return list(made), host.said

    made, said = asyncio.run(hosted())
    assert len({record["id"] for record in made}) == 3
    assert len({record["shared_base"]["source"] for record in made}) == 1
    assert sum(line.startswith("base built") for line in said) == 1


def test_a_gateway_without_providers_says_which_one_is_off(place: Place) -> None:
    async def hosted() -> OperationError:
        async with hosting(place.state, backend="none") as host:
            assert await host.do("list_docker_images") == {"images": []}
            return await host.refused("create_sandbox", image="host", workspace_root=place.workspace)

    error = asyncio.run(hosted())
    assert (error.kind, error.details["reason"]) == ("internal_error", "backend_off")


def test_a_registry_of_a_later_version_keeps_the_gateway_from_starting_and_is_not_touched(
    place: Place,
) -> None:
    os.mkdir(place.state)
    with open(f"{place.state}/registry.json", "w") as file:
        file.write('{"format": 9, "sandboxes": []}')

    async def hosted() -> None:
        async with hosting(place.state, backend="none"):
            pass

    with pytest.raises(OperationError) as caught:
        asyncio.run(hosted())
    assert caught.value.details["reason"] == "registry_unreadable"
    with open(f"{place.state}/registry.json") as file:
        assert json.load(file)["format"] == 9
