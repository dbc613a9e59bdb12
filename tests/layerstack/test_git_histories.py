"""Random histories of sessions that use git, drawn by hypothesis (git_histories)."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import seed as seeded
from hypothesis import strategies as st

from layerstack.store import PATH_DEPTH_MAX
from tests import in_namespace
from tests.conftest import soaking
from tests.layerstack.git_histories import OPERATIONS, SESSIONS, Action, GitHistories
from tests.layerstack.store_fixture import NAMESPACE_PARAMS, Stack

ACTIONS = st.lists(
    st.builds(
        Action,
        st.integers(0, SESSIONS - 1),
        st.sampled_from(OPERATIONS),
        st.integers(0, 7),
    ),
    min_size=4,
    max_size=24,
)


def run(namespace: str, folder: str, examples: int, seed: int) -> None:
    @settings(
        max_examples=examples,
        deadline=None,
        database=None,
        derandomize=False,
        suppress_health_check=list(HealthCheck),
        phases=(Phase.generate, Phase.shrink),
    )
    @given(ACTIONS)
    def one(actions: list[Action]) -> None:
        at = tempfile.mkdtemp(dir=folder)
        stack = Stack(namespace, {}, folder=at)
        try:
            GitHistories(stack).run(actions)
        finally:
            stack.close()
            shutil.rmtree(at, ignore_errors=True)

    sys.setrecursionlimit(4 * PATH_DEPTH_MAX)  # as a store sets it, before hypothesis remembers it
    seeded(seed)(one)()


@pytest.mark.parametrize("namespace", NAMESPACE_PARAMS)
def test_random_histories_lose_no_commit_and_show_what_was_uncommitted(
    namespace: str, short_dir: str, request: pytest.FixtureRequest
) -> None:
    examples = 300 if soaking(request.config) else 4
    os.chmod(short_dir, 0o777)  # the child may be another user
    in_namespace.call(namespace, run, namespace, short_dir, examples, 7)
