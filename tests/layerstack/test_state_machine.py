"""The stack over real overlay mounts against ModelStack, in both xattr namespaces."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Sequence

import pytest

from tests import in_namespace
from tests.layerstack import state_machine
from tests.layerstack.store_fixture import NAMESPACE_PARAMS
from tests.layerstack.thresholds import as_if_large

OUTCOMES = (
    "published",
    "published on a moved head",
    "rejected",
    "no-op",
    "drafts reopened",
    "recovered",
    "squashes",
    "rollbacks",
    "pins",
    "drafts rebased",
    "sessions rebased",
    "checkpoints",
    "restores",
    "squashes on a bad disk",
    "held",
    "exported",
)
"""What a run must have met, or it proves little."""


ROUNDS, EXAMPLES_OF_A_ROUND = 15, 20
"""Short rounds: a run ends soon after it has met all."""


def meet_all(namespace: str, folder: str, *, outcomes: Sequence[str] = OUTCOMES, large: bool = False) -> None:
    """Histories until every outcome was met, in at most so many rounds: what hypothesis draws, also without a
    random seed, depends on the constants of every module that is loaded, and some outcome may be missing in a
    round.
    """
    seen: Counter[str] = Counter()
    for number in range(ROUNDS):
        place = f"{folder}/{number}"
        os.mkdir(place)
        os.chmod(place, 0o777)
        if large:
            seen.update(
                in_namespace.call(
                    namespace,
                    as_if_large,
                    state_machine.run,
                    namespace,
                    place,
                    examples=EXAMPLES_OF_A_ROUND,
                    seed=number or None,
                )
            )
        else:
            seen.update(
                in_namespace.call(
                    namespace,
                    state_machine.run,
                    namespace,
                    place,
                    examples=EXAMPLES_OF_A_ROUND,
                    seed=number or None,
                )
            )
        if all(seen[what] for what in outcomes):
            return
    assert not [what for what in outcomes if not seen[what]], seen


@pytest.mark.needs("overlay", "root")
def test_any_order_of_sessions_shows_what_the_model_shows_as_root(short_dir: str) -> None:
    meet_all("trusted", short_dir)


@pytest.mark.needs("userns")
def test_any_order_of_sessions_shows_what_the_model_shows_in_a_user_namespace(short_dir: str) -> None:
    os.chmod(short_dir, 0o777)
    meet_all("user", short_dir)


@pytest.mark.needs("overlay")
@pytest.mark.parametrize("namespace", NAMESPACE_PARAMS)
def test_any_order_of_sessions_shows_the_same_where_each_tree_takes_the_form_of_a_large_one(
    short_dir: str, namespace: str
) -> None:
    os.chmod(short_dir, 0o777)
    meet_all(
        namespace,
        short_dir,
        outcomes=("published", "squashes", "drafts reopened", "sessions rebased", "exported"),
        large=True,
    )


SLICES, EXAMPLES, STEPS = 10, 250, 40
"""Runs of a soak in each xattr namespace, histories of a run, and their steps. A run takes 30 to 120 s."""
FIRST_SEED = int(os.environ.get("EOS_SOAK_SEED", "0")) or time.time_ns() // 1_000_000_000


@pytest.mark.soak
@pytest.mark.needs("overlay")
@pytest.mark.parametrize("part", range(SLICES))
@pytest.mark.parametrize("namespace", NAMESPACE_PARAMS)
def test_thousands_of_histories_show_what_the_model_shows(short_dir: str, namespace: str, part: int) -> None:
    """Each run of it draws others; EOS_SOAK_SEED draws those of an earlier run again."""
    os.chmod(short_dir, 0o777)
    try:
        seen = in_namespace.call(
            namespace,
            state_machine.run,
            namespace,
            short_dir,
            examples=EXAMPLES,
            steps=STEPS,
            seed=FIRST_SEED + part,
        )
    except Exception as error:
        error.add_note(f"EOS_SOAK_SEED={FIRST_SEED}, part {part}")
        raise
    print(f"{namespace}, seed {FIRST_SEED + part}: {dict(seen)}")
    assert seen["examples"] >= EXAMPLES and not [what for what in OUTCOMES if not seen[what]], seen
