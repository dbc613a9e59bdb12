"""The stack over real overlay mounts against ModelStack, in both forms of the store."""

from __future__ import annotations

import os
import time

import pytest

from tests import children
from tests.layerstack import machine
from tests.layerstack.stack import FORM_PARAMS

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
    "squashes on a bad disk",
    "held",
    "exported",
)
"""What a run must have met, or it proves little."""


@pytest.mark.needs("overlay", "root")
def test_any_order_of_sessions_shows_what_the_model_shows_as_root(short_dir: str) -> None:
    seen = children.call("trusted", machine.run, "trusted", short_dir, examples=70)
    assert not [what for what in OUTCOMES if not seen[what]], seen


@pytest.mark.needs("userns")
def test_any_order_of_sessions_shows_what_the_model_shows_in_a_user_namespace(short_dir: str) -> None:
    os.chmod(short_dir, 0o777)
    seen = children.call("user", machine.run, "user", short_dir, examples=70)
    assert not [what for what in OUTCOMES if not seen[what]], seen


SLICES, EXAMPLES, STEPS = 10, 250, 40
"""Of a soak, in each form: so many runs of so many histories each. A run takes half a minute to two."""
FIRST_SEED = int(os.environ.get("EOS_SOAK_SEED", "0")) or time.time_ns() // 1_000_000_000


@pytest.mark.soak
@pytest.mark.needs("overlay")
@pytest.mark.parametrize("part", range(SLICES))
@pytest.mark.parametrize("form", FORM_PARAMS)
def test_thousands_of_histories_show_what_the_model_shows(short_dir: str, form: str, part: int) -> None:
    """Each run of it draws others; EOS_SOAK_SEED draws those of an earlier run again."""
    os.chmod(short_dir, 0o777)
    try:
        seen = children.call(form, machine.run, form, short_dir, examples=EXAMPLES, steps=STEPS, seed=FIRST_SEED + part)
    except Exception as error:
        error.add_note(f"EOS_SOAK_SEED={FIRST_SEED}, part {part}")
        raise
    print(f"{form}, seed {FIRST_SEED + part}: {dict(seen)}")
    assert seen["examples"] >= EXAMPLES and not [what for what in OUTCOMES if not seen[what]], seen
