"""The stack over real overlay mounts against ModelStack, in both forms of the store."""

from __future__ import annotations

import os
import time

import pytest

from tests import children
from tests.layerstack import machine

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


@pytest.mark.soak
@pytest.mark.needs("overlay")
@pytest.mark.parametrize("form", ["trusted", "user"])
def test_thousands_of_histories_show_what_the_model_shows(short_dir: str, form: str) -> None:
    os.chmod(short_dir, 0o777)
    children.call(form, machine.run, form, short_dir, examples=5000, steps=40, seed=time.time_ns())
