"""What the state machine found, each as a plain history."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable

import pytest

from layerstack.form import FORMS
from tests import children
from tests.hands import Op
from tests.layerstack.machine import REFUSED, Session, StackMatchesModel
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


def base_text(machine: StackMatchesModel) -> None:
    """Three versions of d/f, one by one."""
    for n in range(1, 4):
        machine.update_file(which=0, line=n)


@pytest.mark.needs("overlay", "root")
@pytest.mark.parametrize("refused", REFUSED)
def test_layers_that_a_bad_disk_kept_at_a_squash_go_with_the_session_that_stood_on_them(short_dir: str, refused: str) -> None:
    def act(machine: StackMatchesModel) -> None:
        base_text(machine)
        session = machine.add_session()
        machine.squash_on_a_bad_disk(refused=refused, full=False, by=28)
        machine.drop(session)
        machine.squash(cut="")

    assert history("trusted", short_dir, small_tree(), act)["squashes on a bad disk"] == 1


@pytest.mark.needs("overlay", "root")
def test_versions_that_a_full_disk_cannot_rewrite_after_a_squash_keep_their_layers(short_dir: str) -> None:
    def act(machine: StackMatchesModel) -> None:
        base_text(machine)
        machine.pin(which=3, off=False)
        for n in range(1, 4):
            machine.update_file(which=0, line=n)
        machine.squash_on_a_bad_disk(refused="squash.close_versions", full=True, by=28)

    assert history("trusted", short_dir, small_tree(), act)["squashes on a bad disk"] == 1


@pytest.mark.needs("overlay", "root")
def test_a_gc_on_a_disk_that_refuses_to_rewrite_a_draft_keeps_the_layers_that_it_stands_on(short_dir: str) -> None:
    assert history("trusted", short_dir, small_tree(), put_aside_squash_and_collect)["squashes on a bad disk"] == 1


def put_aside_squash_and_collect(machine: StackMatchesModel) -> None:
    """A draft on version 4, and a squash of the layers below that cannot make it name the new one, followed by a gc."""
    base_text(machine)
    machine.open(edits=[Op("write", bytes(8))], back=0)
    machine.put_aside(0)
    machine.squash_on_a_bad_disk(refused="squash.drafts", full=False, by=5)
