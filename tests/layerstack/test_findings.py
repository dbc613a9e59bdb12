"""What the state machine found, each as a plain history."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable

import pytest

from layerstack.form import FORMS
from tests import children
from tests.layerstack.machine import Session, StackMatchesModel
from tests.trees import DIRECTORY, FILE, Entry, Tree


def history(form: str, folder: str, tree: Tree, act: Callable[[StackMatchesModel], None]) -> Counter[str]:
    """Runs `act` on a new stack, in a child that may mount; every publish in it is compared with the model. Returns what happened."""

    def run() -> Counter[str]:
        class Machine(StackMatchesModel):
            pass

        Machine.form, Machine.parent, Machine.tally = FORMS[form], folder, Counter()
        machine = Machine()
        machine.begin(tree, 8)
        try:
            act(machine)
            machine.check_head()
        finally:
            machine.teardown()
        return Machine.tally

    return children.call(form, run)


def small_tree() -> Tree:
    owner = (os.geteuid(), os.getegid())
    return {"": Entry(DIRECTORY, (0o755, *owner)), "d": Entry(DIRECTORY, (0o755, *owner)), "d/f": Entry(FILE, (0o644, *owner), b"f\n")}


def publish_all(machine: StackMatchesModel, *sessions: Session) -> None:
    for session in sessions:
        machine.finish(session, previewed=True, to_draft=False)


@pytest.mark.needs("overlay", "root")
def test_a_mode_of_the_root_that_the_head_has_already_is_no_publish(short_dir: str) -> None:
    def act(machine: StackMatchesModel) -> None:
        one, two = machine.add_session(), machine.add_session()
        os.chmod(one.mount, 0o700)
        os.unlink(f"{one.mount}/d/f")
        os.chmod(two.mount, 0o700)
        publish_all(machine, one, two)

    assert history("trusted", short_dir, small_tree(), act)["no-op"] == 1
