"""What grows with what: calls are counted, not timed, on a stack and on one of twice the size."""

from __future__ import annotations

import pytest

from layerstack.session.upper import Upper
from layerstack.store import Store
from layerstack.text.gitignore import IgnoreRules
from tests.layerstack.counted_calls import calls_of
from tests.layerstack.store_fixture import Stack, on_a_stack, put

LINEAR = 2.6
"""Twice the size may cost so many times as much; a square costs four times."""


@on_a_stack({".gitignore": "*.o\n/build/\n"}, namespaces=("trusted",))
def test_publishing_nested_folders_costs_as_much_for_each_of_them_at_any_depth(stack: Stack) -> None:
    def publish(depth: int) -> int:
        upper = stack.store.open_upper(f"deep{depth}", origin="test")
        for n in range(1, depth):
            put(f"{upper.upperdir}{f'/d{depth}' * n}/f")
        return calls_of(lambda: upper.publish(owner="o", request_id="r"))

    publish(3)
    few = publish(80)
    assert publish(160) < LINEAR * few


def test_a_path_is_asked_about_as_cheaply_at_any_depth() -> None:
    def ask(depth: int) -> int:
        rules = IgnoreRules({".gitignore": b"*.o\n", "d/.gitignore": b"!x.o\n"}.get)
        return calls_of(lambda: [rules.ignored("d/" * n + "x.o", False) for n in range(1, depth)])

    assert ask(400) < LINEAR * ask(200)


@on_a_stack({"f": "base\n"}, namespaces=("trusted",))
def test_opening_a_store_costs_as_much_for_each_layer_however_many_there_are(stack: Stack) -> None:
    def layers(count: int) -> int:
        while len(stack.store.head.layers) < count:
            upper = stack.store.open_upper(f"s{stack.store.head.version}", origin="test")
            put(f"{upper.upperdir}/d/f{len(stack.store.head.layers)}")
            upper.publish(owner="o", request_id="r")

        def again() -> None:
            stack.store.close()
            stack.store = Store.open(stack.root)

        return calls_of(again)

    few = layers(60)
    assert layers(120) < LINEAR * few


@on_a_stack({"f": "base\n", "d/f": "base\n"}, namespaces=("trusted",))
def test_publishing_one_file_costs_the_same_on_many_layers_as_on_few(stack: Stack) -> None:
    def publish() -> int:
        upper = stack.store.open_upper(f"s{stack.store.head.version}", origin="test")
        put(f"{upper.upperdir}/d/f{stack.store.head.version}")
        return calls_of(lambda: upper.publish(owner="o", request_id="r"))

    few = max(publish() for _ in range(5))
    for _ in range(150):
        publish()
    assert publish() < 1.5 * few + 3 * len(stack.store.head.layers), (
        "a few look-ups of dictionaries for each layer, no more"
    )


@pytest.mark.soak
@on_a_stack({"f": "base\n"}, namespaces=("trusted",))
def test_a_change_of_50_000_files_is_previewed_published_merged_squashed_and_opened(stack: Stack) -> None:
    def session(name: str, files: int) -> Upper:
        upper = stack.store.open_upper(name, origin="test")
        for n in range(files):
            put(f"{upper.upperdir}/{name}{n // 500}/f{n}", f"{name} {n}\n")
        return upper

    first, second = session("a", 50_000), session("b", 20_000)
    put(f"{second.upperdir}/a99/f49999", "a 49999\n")
    seen = first.preview()
    done = first.publish(owner="o", request_id="r")
    assert (seen.source_count, seen.would_publish) == (done.source_count, True) == (50_100, True)
    assert second.publish(owner="o", request_id="r").source_count == 20_040, (
        "the file that is there already is no change"
    )
    assert len(stack.store.squash().blocks) == 1
    stack.store.close()
    stack.store = Store.open(stack.root)
    snapshot = stack.store.snapshot()
    assert (
        snapshot.read_bytes("a99/f49999") == b"a 49999\n"
        and snapshot.read_bytes("b39/f19999") == b"b 19999\n"
    )
    assert sum(1 for _ in snapshot.chain.walk()) == 70_141


@on_a_stack({"f": "base\n"}, namespaces=("trusted",))
def test_a_session_and_its_publish_make_as_many_calls_on_any_number_of_layers(stack: Stack) -> None:
    def once() -> None:
        upper = stack.store.open_upper(f"s{stack.store.head.version}", origin="test")
        put(f"{upper.upperdir}/d{stack.store.head.version}/f")
        upper.publish(owner="o", request_id="r")

    def at(count: int) -> int:
        while len(stack.store.head.layers) < count:
            once()
        return min(calls_of(once) for _ in range(3))

    few = at(20)
    assert at(120) < few + 50
