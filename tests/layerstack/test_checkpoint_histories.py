"""Random histories of few sessions with many checkpoints, compared with the model: any order of edits,
checkpoints, restores, publications, rebases and restarts shows what the model shows.
"""

from __future__ import annotations

import os
from collections import Counter
from random import Random

import pytest

from layerstack.session import checkpoints
from tests.layerstack.plain_histories import history
from tests.layerstack.state_machine import MOST_DRAFTS, StackMatchesModel
from tests.layerstack.store_fixture import NAMESPACE_PARAMS
from tests.tree_edits import WEIGHTS, Op
from tests.trees import DIRECTORY, FILE, LINK, Entry, Tree

SOAK = os.environ.get("EOS_SOAK", "") not in ("", "0")
STEPS = 4000 if SOAK else 110
ACTS = {
    "edit": 5,
    "checkpoint": 6,
    "restore": 6,
    "preview": 1,
    "publish": 1,
    "rebase_session": 1,
    "update_file": 1,
    "put_aside": 1,
    "reopen_draft": 1,
    "reopen": 1,
    "squash": 1,
}


def a_tree() -> Tree:
    owner = (os.geteuid(), os.getegid())
    folder, file = (0o755, *owner), (0o644, *owner)
    tree: Tree = {name: Entry(DIRECTORY, folder) for name in ("", "a", "a/b", "c", "c/d")}
    for name in ("a/f", "a/b/g", "c/d/h", "i", "k"):
        tree[name] = Entry(FILE, file, f"{name}\none\ntwo\nthree\n".encode())
    return {**tree, "l": Entry(LINK, (0o777, *owner), b"a/f"), ".gitignore": Entry(FILE, file, b"*.log\n")}


def play(machine: StackMatchesModel, seed: int) -> None:
    """Let a generator choose what it does; the machine compares after each step."""
    chance = Random(seed)
    checkpoints.DEPTH_MAX, checkpoints.CHECKPOINTS_MAX = 5, 8

    def edits() -> list[Op]:
        names = chance.choices(list(WEIGHTS), list(WEIGHTS.values()), k=chance.randint(1, 3))
        return [Op(name, chance.randbytes(8)) for name in names]

    for _ in range(STEPS):
        act = chance.choices(list(ACTS), list(ACTS.values()))[0]
        which = chance.randrange(8)
        if len(machine.sessions) < 2:
            machine.open(edits=edits(), back=0)
        if act == "edit":
            machine.edit(which=which, edits=edits())
        elif act == "checkpoint":
            machine.checkpoint(which=which, edits=edits() if chance.random() < 0.8 else [])
        elif act == "restore" and any(session.checkpoints for session in machine.sessions):
            machine.restore(
                which=which, back=chance.randrange(6), edits=edits() if chance.random() < 0.6 else []
            )
        elif act == "preview":
            machine.preview(which=which)
        elif act == "publish":
            machine.publish(which=which, previewed=chance.random() < 0.5, to_draft=chance.random() < 0.3)
        elif act == "rebase_session":
            machine.rebase_session(which=which, edits=edits())
        elif act == "update_file":
            machine.update_file(which=which, line=chance.randrange(4))
        elif act == "put_aside" and len(machine.drafts) < MOST_DRAFTS:
            machine.put_aside(which=which)
        elif act == "reopen_draft" and machine.drafts:
            machine.reopen_draft(which=which, edits=edits())
        elif act == "reopen":
            machine.reopen()
        elif act == "squash":
            machine.squash(cut="")
        machine.same_version()


@pytest.mark.needs("overlay")
@pytest.mark.parametrize("namespace", NAMESPACE_PARAMS)
def test_any_order_of_checkpoints_and_restores_shows_what_the_model_shows(
    short_dir: str, namespace: str
) -> None:
    os.chmod(short_dir, 0o777)
    seen: Counter[str] = history(namespace, short_dir, a_tree(), lambda machine: play(machine, 7))
    assert min(seen[what] for what in ("checkpoints", "restores", "published", "recovered")) > 0, seen
    assert seen["restores"] > 10, seen
