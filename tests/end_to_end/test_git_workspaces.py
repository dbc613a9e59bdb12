"""git in sandboxes over a linked worktree and over a checkout, as the user or as the agent."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.end_to_end.cli_user import Desk, Desks, Sandbox
from tests.git_trees import git
from tests.in_namespace import ORDINARY_UID

pytestmark = [pytest.mark.needs("overlay", "userns", "root")]

OURS = ("-c", "safe.directory=*")


@pytest.mark.parametrize(
    ("who", "place"),
    [
        ("root", "host"),
        pytest.param("ordinary", "host", marks=[pytest.mark.needs("uid"), pytest.mark.soak]),
        pytest.param("root", "debian", marks=pytest.mark.needs("dockerd")),
    ],
)
def test_a_linked_worktree_commits_as_its_user_and_a_checkout_as_the_agent(
    desk: Desks, image: Callable[[str], str], who: str, place: str
) -> None:
    at = desk(who)
    at.give(".gitconfig", "[user]\n\tname = Grace\n\temail = grace@x.invalid\n[safe]\n\tdirectory = *\n")
    home, tree = at.person.home, at.person.home / "wt"
    repository(at, home / "main", tree)
    made = create(at, image(place) if place != "host" else "host", tree)
    where = "git status --porcelain --branch; git log -1 --format='%an <%ae>'"
    assert made.shell(f"{where}; git branch --no-color --list")["output"].split("\n") == [
        *("## work", " M a", "?? new", "Ada <ada@example.org>", "  main", "* work"),
    ]
    done = made.shell(f"git commit -qam second && {where}; git fsck --no-progress --full --strict")
    assert done["output"].split("\n") == ["## work", "?? new", "Grace <grace@x.invalid>"], done
    exported = at.do("manager", "export_changes", "--sandbox-id", made.id, "--dest", str(tree), "--with-git")
    assert exported["left_out"]["count"] > 4 and "format git" in exported["left_out"]["why"][0]["why"], (
        exported
    )
    assert (tree / ".git").read_text().startswith("gitdir: ")
    assert git(tree, *OURS, "log", "--format=%s").split() == [b"first"], "the branch of the host is as it was"
    made.destroy()
    made = create(
        at,
        image(place) if place != "host" else "host",
        home / "main",
        "--git-ref",
        "v1",
        "--git-identity",
        "none",
    )
    assert made.shell("cat a; git status --porcelain")["output"] == "a"
    commit = "git commit -q --allow-empty -m x && git log -1 --format='%an <%ae>'"
    assert made.shell(commit, None, "--agent", "Bob")["output"] == "Bob <agent@eos.invalid>"
    session = made.session("--agent", "Eve")
    assert made.shell(commit, session)["output"] == "Eve <agent@eos.invalid>"
    made.destroy()


def repository(at: Desk, main: Path, tree: Path) -> None:
    """A repository with a worktree that has an edited and a new file, all of the person."""
    main.mkdir()
    git(main, "init", "-q", "-b", "main")
    (main / "a").write_text("a\n")
    git(main, "add", "a")
    git(main, "commit", "-qm", "first")
    git(main, "tag", "v1")
    git(main, "worktree", "add", "-q", "-b", "work", str(tree))
    for folder in (main, tree):
        (folder / "a").write_text("edited\n")
        (folder / "new").write_text(at.person.home.name)
    if at.person.uid is not None:
        for folder, names, files in (*os.walk(main), *os.walk(tree)):
            for name in (".", *names, *files):
                os.lchown(os.path.join(folder, name), ORDINARY_UID, ORDINARY_UID)


def create(at: Desk, image: str, workspace: Path, *words: str) -> Sandbox:
    at.workspace = workspace
    return at.create(image, *words)
