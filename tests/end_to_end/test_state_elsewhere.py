"""A state directory that was copied or moved: its sandboxes work at their own place alone, and nothing that
is done to a copy reaches the original.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Generator
from typing import Any

import pytest

from tests.end_to_end.local_place import Place, User
from tests.end_to_end.local_place import bundle as bundle
from tests.end_to_end.local_place import ordinary as ordinary
from tests.end_to_end.manager_fixture import hosting

pytestmark = [pytest.mark.needs("overlay", "userns")]


@pytest.fixture
def user(ordinary: User) -> Generator[User]:
    yield ordinary


def test_what_is_done_to_a_copy_of_the_state_leaves_the_original_alone(user: User) -> None:
    async def scenario(place: Place) -> dict[str, Any]:
        copy, moved = f"{place.root}/copy", f"{place.root}/moved"
        async with place.host() as host:
            sandbox = (await host.do("create_sandbox", image="host", workspace_root=place.workspace))["id"]
            session = (await host.ask(sandbox, "create_workspace_session"))["workspace_session_id"]
            await host.run(sandbox, "echo work > work.txt", workspace_session_id=session)
        shutil.copytree(place.state, copy, symlinks=True, ignore=shutil.ignore_patterns("*.sock", "sessions"))
        async with hosting(copy, backend="local", bundle=place.bundle) as host:
            refused = [(await host.refused("start_sandbox", sandbox_id=sandbox)).envelope()["error"]]
            await host.do("destroy_sandbox", sandbox_id=sandbox)
            assert (await host.do("list_sandboxes"))["sandboxes"] == []
        async with place.host() as host:
            assert await host.run(sandbox, "cat work.txt", workspace_session_id=session) == "work"
            assert os.path.exists(f"{place.state}/sandboxes/{sandbox}/run/runtime.sock")
            await host.ask(sandbox, "publish_workspace_session", workspace_session_id=session)
            local = host.manager.providers["local"]
            local.replace(host.manager.registry.get(sandbox))  # its agent has ended
        os.rename(place.state, moved)
        async with hosting(moved, backend="local", bundle=place.bundle) as host:
            refused.append((await host.refused("start_sandbox", sandbox_id=sandbox)).envelope()["error"])
        os.rename(moved, place.state)
        async with place.host() as host:
            assert await host.run(sandbox, "cat work.txt") == "work"
            await host.do("destroy_sandbox", sandbox_id=sandbox)
        return {"refused": refused, "places": [(copy, place.state), (moved, place.state)]}

    found = user.play(scenario)
    for error, (here, there) in zip(found["refused"], found["places"], strict=True):
        assert error["details"]["reason"] == "state_dir_moved" and there in error["details"]["hint"], error
        assert (error["details"]["state_dir"], error["details"]["made_in"]) == (here, there)
    assert user.leftovers() == {}
