"""The index of a layer: its file, and the path index, which says what may have changed."""

from __future__ import annotations

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from layerstack.errors import StoreCorrupt
from layerstack.kernel.xattrs import TRUSTED
from layerstack.layers.index import IndexRecord, Layer, PathIndex, record
from layerstack.layers.index_file import Indexed, IndexRow, dump, load
from layerstack.model.manifest import LayerId
from layerstack.model.paths import byte_order
from layerstack.tree.disk import DiskTree

NAMES = (
    st.binary(min_size=1, max_size=12)
    .filter(lambda b: b"\0" not in b and b"/" not in b and b not in (b".", b".."))
    .map(os.fsdecode)
)
RECORDS = st.sampled_from(
    [record("f"), record("l"), record("w"), record("d"), record("d", quiet=True), record("d", opaque=True)]
)


def indexed(found: dict[str, IndexRecord]) -> Indexed:
    rows = [
        IndexRow(path, rec, 0o644, len(path), b"\xab" * 32 if rec.kind == "f" else None)
        for path, rec in found.items()
    ]
    return Indexed(found, tuple(sorted(rows, key=lambda row: byte_order(row.path))), "0" * 64, 0, 0)


@given(st.dictionaries(st.lists(NAMES, min_size=1, max_size=3).map("/".join), RECORDS, max_size=40))
def test_an_index_file_of_any_names_comes_back(found: dict[str, IndexRecord]) -> None:
    made = indexed({"": record("d"), **found})
    assert load(dump(made), source="i") == made.records


def test_a_damaged_index_file_is_named() -> None:
    data = dump(indexed({"": record("d"), "a": record("f"), "b": record("w")}))
    for broken in (
        data[:-1],
        data[:30],
        b"",
        data.replace(b"a\tf", b"b\tf"),
        data.replace(b"eos-index 2", b"eos-index 3"),
        data + b"x\tf\t0\t0\t-\n",
    ):
        with pytest.raises(StoreCorrupt) as caught:
            load(broken, source="/store/x.index")
        assert caught.value.details["file"] == "/store/x.index"


def layer(version: int, **found: IndexRecord) -> Layer:
    index = {path.replace("__", "/"): rec for path, rec in found.items()}
    return Layer(
        LayerId(f"L{version:06d}-00000000"),
        DiskTree("/nowhere", TRUSTED),
        version,
        {"": record("d", quiet=True), **index},
    )


def test_a_container_is_no_touch_but_what_is_in_it_is() -> None:
    path_index = PathIndex()
    inside = layer(2, src=record("d", quiet=True), src__a=record("f"))
    path_index.add(inside)
    assert (
        path_index.untouched("src/b", 1)
        and not path_index.untouched("src/a", 1)
        and path_index.untouched("src/a", 2)
    )
    assert not inside.meets(
        {"": record("d", quiet=True), "src": record("d", quiet=True), "src/b": record("f")}
    )
    assert inside.meets({"src": record("w")}), "a deletion of the directory meets the change inside"


def test_whatever_hides_a_directory_touches_all_below_it() -> None:
    for cover in (record("w"), record("f"), record("d", opaque=True)):
        path_index = PathIndex()
        path_index.add(layer(2, d=cover))
        assert not path_index.untouched("d/e/f", 1) and path_index.untouched("e", 1)
        assert layer(2, d=cover).meets({"d": record("d", quiet=True), "d/x": record("f")})


def test_versions_only_rise_and_a_dropped_layer_is_listed_no_more() -> None:
    path_index = PathIndex()
    new, old = layer(5, a=record("f")), layer(3, a=record("f"))
    path_index.add(new)
    path_index.add(old)
    assert path_index.touch["a"] == path_index.sub["a"] == path_index.sub[""] == 5
    path_index.drop(new)
    assert path_index.by_path["a"] == (old,) and path_index.by_mask["a"] == (old,)
    path_index.drop(old)
    assert path_index.by_path == {} and path_index.by_mask == {}


@given(st.permutations(range(2, 9)), st.sets(st.integers(2, 8)))
def test_layers_of_a_path_are_listed_newest_first_whatever_the_order_in_which_they_came(
    order: list[int], dropped: set[int]
) -> None:
    path_index = PathIndex()
    layers = {version: layer(version, x=record("f")) for version in order}
    for version in order:
        path_index.add(layers[version])
    path_index.drop(*(layers[version] for version in dropped))
    left = [version for version in range(8, 1, -1) if version not in dropped]
    assert (
        [one.version for one in path_index.by_path.get("x", ())]
        == left
        == [one.version for one in path_index.by_mask.get("x", ())]
    )
    assert path_index.sub["x"] == path_index.sub[""] == path_index.touch["x"] == 8
