"""The person's own repository is theirs: their commits, edits and machine come to no harm by an export, from
either provider.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end.manager_fixture import Host
from tests.end_to_end.manager_place import Place
from tests.end_to_end.manager_place import place as place
from tests.end_to_end.repository_exports import Scenario, git
from tests.end_to_end.repository_exports import play as play

pytestmark = [pytest.mark.needs("overlay")]


def commit(where: str, name: str) -> None:
    Path(where, name).write_text("theirs\n")
    git(where, "add", name)
    git(where, "commit", "-qm", name)


def agent_commits(git_directory: str = ".git") -> str:
    """What an agent's `git commit` changes, for images without git."""
    new = "0123456789012345678901234567890123456789"
    return (
        f"echo agent >> a.txt; printf '%s\\n' {new} > {git_directory}/refs/heads/main; echo moved >> "
        f"{git_directory}/logs/HEAD; "
        f"echo x >> {git_directory}/index; mkdir -p {git_directory}/objects/01; echo o > "
        f"{git_directory}/objects/01/{new[2:]}"
    )


def test_the_persons_commits_outlive_an_export_and_the_agents_files_come(
    place: Place, play: Callable[[Scenario], Any]
) -> None:
    async def scenario(host: Host, sandbox: str) -> dict[str, Any]:
        await host.run(sandbox, agent_commits())
        for name in ("one", "two"):
            commit(place.workspace, name)
        before = git(place.workspace, "log", "--format=%H %s"), git(place.workspace, "reflog")
        where = {"sandbox_id": sandbox, "dest": place.workspace}
        foretold = await host.do("export_changes", **where, dry_run=True)
        done = await host.do("export_changes", **where)
        assert foretold["left_out"] == done["left_out"] and foretold["would_conflict"] == []
        assert (git(place.workspace, "log", "--format=%H %s"), git(place.workspace, "reflog")) == before
        assert git(place.workspace, "status", "--porcelain") == " M a.txt\n"
        git(place.workspace, "fsck", "--strict")
        refused = await host.refused("export_changes", **where, with_git=True)
        assert refused.details["reason"] == "export_conflict"
        assert {".git/refs/heads/main", ".git/logs/HEAD"} <= {
            row["path"] for row in refused.details["conflicts"]
        }
        assert git(place.workspace, "log", "--format=%H %s") == before[0]
        Path(place.workspace, "a.txt").write_text("theirs\n")
        await host.run(sandbox, "echo again >> a.txt; echo new > new.txt")
        again = await host.refused("export_changes", **where)
        assert again.details["conflicts"] == [{"path": "a.txt", "differs": "edited"}] and not os.path.exists(
            f"{place.workspace}/new.txt"
        )
        kept = await host.do("export_changes", **where, on_conflict="keep")
        assert kept["kept_back"] == ["a.txt"] and Path(place.workspace, "a.txt").read_text() == "theirs\n"
        assert os.path.exists(f"{place.workspace}/new.txt")
        shutil.rmtree(f"{place.root}/bases")  # the copy of the workspace is gone: the sandbox tells of it
        refused = await host.refused("export_changes", **where)
        assert refused.details["conflicts"] == [{"path": "a.txt", "differs": "edited"}]
        lost = await host.do("export_changes", **where, on_conflict="overwrite")
        assert lost["overwritten"] == [{"path": "a.txt", "differs": "edited"}] and Path(
            place.workspace, "a.txt"
        ).read_text().endswith("again\n")
        fresh = await host.do("export_changes", sandbox_id=sandbox, dest=f"{place.root}/fresh")
        assert "left_out" not in fresh and os.path.exists(f"{place.root}/fresh/.git/refs/heads/main")
        return dict(done)

    done = play(scenario)
    assert done["left_out"]["count"] >= 4 and ".git/index" in done["left_out"]["paths"]


def test_nothing_that_a_session_planted_runs_on_the_persons_machine(
    place: Place, play: Callable[[Scenario], Any]
) -> None:
    """`core.fsmonitor` and a hook, onto the repository, a new directory and a linked worktree."""
    pwned = f"{place.root}/PWNED"
    plant = (
        f"printf '[core]\\n\\tfsmonitor = touch {pwned}\\n' >> .git/config; "
        f"printf '#!/bin/sh\\ntouch {pwned}\\n' > .git/hooks/post-checkout; chmod 755 "
        f".git/hooks/post-checkout; echo agent >> a.txt"
    )

    async def scenario(host: Host, sandbox: str) -> None:
        worktree, fresh = f"{place.root}/worktree", f"{place.root}/fresh"
        git(place.workspace, "worktree", "add", "-q", worktree)
        await host.run(sandbox, plant)
        for dest in (place.workspace, worktree):
            done = await host.do("export_changes", sandbox_id=sandbox, dest=dest)
            assert {".git/config", ".git/hooks/post-checkout"} <= set(done["left_out"]["paths"])
            assert git(dest, "status", "--porcelain") == " M a.txt\n"
            git(dest, "checkout", "-q", "--detach")
        refused = await host.refused("export_changes", sandbox_id=sandbox, dest=fresh)
        assert refused.details["reason"] == "unsafe_content" and not os.path.exists(fresh)
        assert [(row["path"], row["why"]) for row in refused.details["unsafe"]] == [
            (".git/config", "git_config"),
            (".git/hooks/post-checkout", "git_hook"),
        ]
        archive = await host.do(
            "export_changes", sandbox_id=sandbox, dest=f"{place.root}/x.tar", format="tar"
        )
        assert {row["path"] for row in archive["hygiene"]} >= {".git/config", ".git/hooks/post-checkout"}
        allowed = await host.do("export_changes", sandbox_id=sandbox, dest=fresh, allow_unsafe=True)
        assert allowed["unsafe_count"] == 2 and os.path.exists(f"{fresh}/.git/hooks/post-checkout")
        assert not os.path.exists(pwned)

    play(scenario)
