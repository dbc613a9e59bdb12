"""Sessions that meet at nearly every path show what the model shows (tests/layerstack/meetings.py)."""

from __future__ import annotations

import os
import time

import pytest

from tests import in_namespace
from tests.layerstack import meetings
from tests.layerstack.store_fixture import NAMESPACE_PARAMS

IN_THE_GATE = 30
IN_A_SOAK, PARTS = 500, 10
"""So many in each of so many parts, in each xattr namespace."""
MET = (
    "published",
    "published on a moved head",
    "rejected",
    "overtaken",
    "squashes",
    "sessions rebased",
    "deleted",
    "moved",
)
"""What a run must have met, or it proves little."""
FIRST = int(os.environ.get("EOS_SOAK_SEED", "0")) or time.time_ns() // 1_000_000


@pytest.mark.needs("overlay")
@pytest.mark.parametrize("namespace", NAMESPACE_PARAMS)
def test_sessions_that_meet_everywhere_show_what_the_model_shows(short_dir: str, namespace: str) -> None:
    os.chmod(short_dir, 0o777)
    seen = in_namespace.call(namespace, meetings.run, namespace, short_dir, 0, IN_THE_GATE)
    assert not [what for what in MET if not seen[what]], seen


@pytest.mark.soak
@pytest.mark.needs("overlay")
@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("namespace", NAMESPACE_PARAMS)
def test_thousands_of_meetings_show_what_the_model_shows(short_dir: str, namespace: str, part: int) -> None:
    """Each run of it draws others; a failure names its meeting, and EOS_SOAK_SEED with that number draws it
    first again.
    """
    os.chmod(short_dir, 0o777)
    seen = in_namespace.call(
        namespace, meetings.run, namespace, short_dir, FIRST + part * IN_A_SOAK, IN_A_SOAK
    )
    assert not [what for what in MET if not seen[what]], seen
