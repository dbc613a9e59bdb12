"""The properties earn their trust: with a rule of our own library taken away, the test that guards it fails
(tests/layerstack/mutations.py).
"""

from __future__ import annotations

import os

import pytest

from layerstack.errors import LayerStackError
from tests import in_namespace
from tests.layerstack import kill_harness, mutations, plain_histories, power_cut, squashing, state_machine
from tests.layerstack.store_fixture import on_a_stack


def machine_finds(name: str, namespace: str, folder: str, examples: int, seed: int) -> str:
    """Breaks the library in this child and runs the machine; what it found, '' when it noticed nothing. Any
    other error passes.
    """
    mutations.FOR_THE_MACHINE[name]()
    try:
        state_machine.run(namespace, folder, examples=examples, seed=seed, shrink=False)
    except (AssertionError, LayerStackError, OSError) as error:
        return f"{type(error).__name__} after {state_machine.LAST['examples']} examples: {error}"
    return ""


SEEDS = {
    "conflict_check_off": 1,
    "ancestors_ignored": 1,
    "squash_ignores_leases": 2,
    "opaque_dropped": 1,
    "whiteout_dropped": 1,
    "mode_dropped": 2,
    "index_stale": 1,
    "squash_drops_whiteouts": 2,
    "squash_leaves_versions_inside_a_block_open": 2,
}
"""The faults that the gate tries, each with a seed that finds it soon; a soak tries all with another."""

SEEDS_OF_A_SOAK = {
    "containers_keep_their_attributes": 3,
    "marks_stay_on_new_directories": 1,
    "merge_takes_ours": 2,
}
"""Ten seconds to half a minute each."""


RARE = {"gc_ignores_drafts", "squash_drops_opaque_marks"}
"""What the machine meets in one history of hundreds; for these there are plain ones."""


@pytest.mark.needs("overlay", "root")
@pytest.mark.parametrize(
    "name", [*SEEDS, *(pytest.param(name, marks=pytest.mark.soak) for name in SEEDS_OF_A_SOAK)]
)
def test_the_machine_notices_a_rule_that_is_gone(short_dir: str, name: str) -> None:
    first = {**SEEDS, **SEEDS_OF_A_SOAK}[name]
    for seed in range(
        first, first + 4
    ):  # what a seed draws depends on the constants of every module that is loaded
        place = f"{short_dir}/{seed}"
        os.mkdir(place)
        if in_namespace.call("trusted", machine_finds, name, "trusted", place, 100, seed):
            return
    raise AssertionError(f"nobody noticed: {mutations.FOR_THE_MACHINE[name].__doc__}")


@pytest.mark.soak
@pytest.mark.needs("overlay", "root")
@pytest.mark.parametrize("name", sorted(mutations.FOR_THE_MACHINE.keys() - RARE))
def test_the_machine_notices_each_rule_that_is_gone(short_dir: str, name: str) -> None:
    found = in_namespace.call("trusted", machine_finds, name, "trusted", short_dir, 3000, 0)
    assert found, f"nobody noticed: {mutations.FOR_THE_MACHINE[name].__doc__}"


@pytest.mark.needs("overlay", "root")
def test_a_plain_history_notices_a_gc_that_ignores_drafts(short_dir: str) -> None:
    """The one that test_plain_histories.py runs on the library as it is."""

    def act(stack: state_machine.StackMatchesModel) -> None:
        mutations.gc_ignores_drafts()
        plain_histories.put_aside_squash_and_collect(stack)

    with pytest.raises(in_namespace.ChildFailed) as found:
        plain_histories.history("trusted", short_dir, plain_histories.small_tree(), act)
    assert found.value.kind == "StoreCorrupt" and "missing" in str(found.value), found.value


@pytest.mark.needs("overlay", "root")
def test_a_plain_history_notices_a_squash_that_drops_opaque_marks() -> None:
    def find() -> None:
        mutations.squash_drops_opaque_marks()
        on_a_stack(squashing.FORTY_FILES)(squashing.make_a_directory_again_and_squash)("trusted")

    with pytest.raises(in_namespace.ChildFailed) as found:
        in_namespace.call("trusted", find)
    assert "AssertionError" in str(found.value), found.value


@pytest.mark.needs("overlay", "loopfs")
def test_the_power_cut_notices_a_layer_that_is_renamed_before_it_is_synced(short_dir: str) -> None:
    def find() -> None:
        mutations.rename_before_sync()
        power_cut.cut_everywhere(short_dir, steps=lambda name: name == mutations.TOO_LATE, all_of_them=False)

    with pytest.raises(in_namespace.ChildFailed) as found:
        in_namespace.call("trusted", find)
    assert found.value.kind == "AssertionError" and mutations.TOO_LATE in str(found.value), found.value


@pytest.mark.needs("overlay", "root")
@pytest.mark.parametrize("name", mutations.FOR_THE_KILL_HARNESS)
def test_the_kill_harness_notices_a_rename_that_is_left_out(short_dir: str, name: str) -> None:
    def find() -> None:
        kill_harness.kill_everywhere(
            "trusted",
            short_dir,
            10_000,
            every=8,
            broken_by=mutations.FOR_THE_KILL_HARNESS[name],
            all_of_them=False,
        )

    with pytest.raises(in_namespace.ChildFailed) as found:
        in_namespace.call("trusted", find)
    assert found.value.kind == "AssertionError" and "killed before act" in str(found.value), found.value


@pytest.mark.needs("overlay", "loopfs")
@pytest.mark.parametrize("name", mutations.FOR_THE_POWER_CUT)
def test_the_power_cut_notices_a_sync_that_is_left_out(short_dir: str, name: str) -> None:
    def find() -> None:
        mutations.FOR_THE_POWER_CUT[name]()
        power_cut.cut_everywhere(short_dir, steps=power_cut.none, all_of_them=False)

    with pytest.raises(in_namespace.ChildFailed) as found:
        in_namespace.call("trusted", find)
    assert found.value.kind == "AssertionError" and "power cuts" in str(found.value), found.value
