"""What sandboxes without Docker show of the machine, from create_sandbox on: other roots, neighbours, what
the configuration hides.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from agent_image import build
from tests import probes
from tests.end_to_end.local_place import Place, User, users
from tests.end_to_end.local_place import bundle as bundle
from tests.end_to_end.manager_fixture import Host, hosting

pytestmark = [pytest.mark.needs("overlay", "userns")]


@pytest.fixture(params=[pytest.param("root", marks=pytest.mark.needs("root")), "ordinary"])
def user(
    request: pytest.FixtureRequest, bundle: build.Bundle, monkeypatch: pytest.MonkeyPatch
) -> Generator[User]:
    """Below /var/tmp: /tmp is each session's own, and nothing of the machine's shows there anyway."""
    monkeypatch.setattr(probes, "scratch_root", lambda: "/var/tmp")
    ordinary = request.param == "ordinary" and os.geteuid() == 0
    yield from users("uid" if ordinary else None, bundle, monkeypatch)


def secrets_of(place: Place) -> list[str]:
    """Files that no session may read; made when missing."""
    paths = [
        f"{place.root}/home/.ssh/id",
        f"{place.root}/home/.git-credentials",
        f"{place.state}/registry.json",
    ]
    for path in paths[:2]:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        Path(path).write_text("secret")
    return [*paths, f"{place.state}/sandboxes"]


async def seen(host: Host, sandbox_id: str, paths: list[str]) -> str:
    return await host.run(
        sandbox_id,
        f"for path in {' '.join(paths)}; do ls -A $path 2>/dev/null; cat $path 2>/dev/null; done; echo end",
    )


def test_the_whole_machine_as_a_rootfs_shows_no_more_than_the_host_image(user: User) -> None:
    async def scenario(place: Place) -> tuple[str, str]:
        async with place.host() as host:
            record = await host.do("create_sandbox", image="rootfs:/", workspace_root=place.workspace)
            paths = secrets_of(place)
            found = (
                await seen(host, record["id"], paths),
                await host.run(record["id"], "cat a.txt; ls -1d /etc /usr"),
            )
            await host.do("destroy_sandbox", sandbox_id=record["id"])
            return found

    found, works = user.play(scenario, before=secrets_of)
    assert found == "end" and works == "one\n/etc\n/usr"
    assert user.leftovers() == {}


@pytest.mark.needs("busybox")
def test_a_rootfs_that_is_part_of_what_is_hidden_is_refused_by_name(user: User) -> None:
    async def scenario(place: Place) -> list[Any]:
        for folder in (f"{place.state}/tree", f"{place.root}/home/.ssh/tree"):
            os.makedirs(f"{folder}/bin")
            shutil.copy("/bin/busybox", f"{folder}/bin/sh")
        os.chmod(place.state, 0o700)  # an open one that holds what is not ours is refused
        async with place.host() as host:
            ask = {"workspace_root": place.workspace}
            trees = (f"{place.state}/tree", f"{place.root}/home/.ssh/tree")
            return [
                (await host.refused("create_sandbox", image=f"rootfs:{path}", **ask)).envelope()["error"]
                for path in trees
            ]

    for error in user.play(scenario):
        assert (error["kind"], error["details"]["reason"]) == ("invalid_request", "rootfs_hidden")
        assert "hidden" in error["message"] and error["details"]["hint"]
    assert user.leftovers() == {}


def test_what_the_configuration_hides_is_hidden_and_the_answer_says_what_can_be_read(user: User) -> None:
    def before(place: Place) -> None:
        os.mkdir(f"{place.root}/home/work")
        Path(f"{place.root}/home/work/keys").write_text("secret")
        Path(f"{place.root}/home/shown").write_text("shown")
        Path(f"{place.root}/eos.yml").write_text(
            "manager:\n  local_daemon:\n    hidden_paths: [~/work/keys]\n"
        )

    async def scenario(place: Place) -> tuple[Any, ...]:
        async with hosting(
            place.state, backend="local", bundle=place.bundle, yaml=f"{place.root}/eos.yml"
        ) as host:
            record = await host.do("create_sandbox", image="host", workspace_root=place.workspace)
            found = await host.run(
                record["id"], f"cat {place.root}/home/work/keys {place.root}/home/shown 2>&1; echo; echo end"
            )
            inspected = await host.do("inspect_sandbox", sandbox_id=record["id"])
            await host.do("destroy_sandbox", sandbox_id=record["id"])
            return found, record, inspected

    found, record, inspected = user.play(scenario, before=before)
    assert found.endswith("shown\nend")
    assert "secret" not in found
    assert record["readable"] == inspected["readable"] and set(record["readable"]) == {
        "files",
        "hidden",
        "network",
    }
    assert "read-only" in record["readable"]["files"]


@pytest.mark.needs("root")
def test_a_second_gateway_of_the_same_person_is_hidden_from_the_sessions_of_the_first(user: User) -> None:
    """With a state directory of its own: its token, its records, its sandboxes."""

    async def scenario(place: Place) -> tuple[str, str, str]:
        other = f"{place.root}/other"
        os.mkdir(other)
        Path(f"{other}/gateway.token").write_text("secret")
        async with place.host() as host:
            record = await host.do("create_sandbox", image="host", workspace_root=place.workspace)
            made = await host.ask(record["id"], "create_workspace_session")
            before = await host.run(
                record["id"], f"cat {other}/gateway.token", workspace_session_id=made["workspace_session_id"]
            )
            os.environ["EOS_STATE_DIR"] = other
            async with hosting(other, backend="local", bundle=place.bundle):
                pass
            look = f"cat {other}/gateway.token; echo end"
            opened = await host.run(record["id"], look, workspace_session_id=made["workspace_session_id"])
            found = before, opened, await seen(host, record["id"], [other, f"{other}/gateway.token"])
            await host.do("destroy_sandbox", sandbox_id=record["id"])
            return found

    before, opened, after = user.play(scenario)
    assert before == "secret" and after == "end"
    assert opened.endswith("end") and "secret" not in opened
