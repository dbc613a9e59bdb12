"""Histories of the state machine written by hand: each publish is compared with the model."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable

from layerstack.kernel.xattrs import XATTR_NAMESPACES
from layerstack.tree import scanned
from tests import in_namespace
from tests.layerstack.state_machine import StackMatchesModel
from tests.tree_edits import Op
from tests.trees import DIRECTORY, FILE, Entry, Tree


def history(
    namespace: str, folder: str, tree: Tree, act: Callable[[StackMatchesModel], None]
) -> Counter[str]:
    """Run `act` on a new stack, in a child with mount rights; compare every publish with the model. Return
    counts of what happened.
    """

    def run() -> Counter[str]:
        class Machine(StackMatchesModel):
            pass

        Machine.xattr_namespace, Machine.parent, Machine.tally = (
            XATTR_NAMESPACES[namespace],
            folder,
            Counter(),
        )
        machine = Machine()
        machine.begin(tree, 8, scanned.SEEN_MAX)
        try:
            act(machine)
            machine.check_head()
        finally:
            machine.teardown()
        return Machine.tally

    return in_namespace.call(namespace, run)


def small_tree() -> Tree:
    owner = (os.geteuid(), os.getegid())
    return {
        "": Entry(DIRECTORY, (0o755, *owner)),
        "d": Entry(DIRECTORY, (0o755, *owner)),
        "d/f": Entry(FILE, (0o644, *owner), b"f\n"),
    }


def base_text(machine: StackMatchesModel) -> None:
    """Three versions of d/f, one by one."""
    for n in range(1, 4):
        machine.update_file(which=0, line=n)


def put_aside_squash_and_collect(machine: StackMatchesModel) -> None:
    """A draft on version 4, and a squash of the layers below that cannot make it name the new one, followed
    by a gc.
    """
    base_text(machine)
    machine.open(edits=[Op("write", bytes(8))], back=0)
    machine.put_aside(0)
    machine.squash_on_a_bad_disk(refused="squash.drafts", full=False, by=5)
