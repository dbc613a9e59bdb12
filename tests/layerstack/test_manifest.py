"""Manifests and documents as values: what was written comes back, what was not is named."""

from __future__ import annotations

import hashlib
import json

import pytest

from layerstack.errors import InvalidPath, StoreCorrupt
from layerstack.kernel import records
from layerstack.layers import version_files
from layerstack.model.manifest import BASE_ID, Manifest, listed, lists_the_end_of, published_id, reference
from layerstack.model.paths import ancestors, check

BASE = Manifest(1, (reference(BASE_ID),))
THIRD = BASE.with_layer(published_id(2, "00aa11bb" + "0" * 56)).with_layer(published_id(3, "f" * 64))


def test_a_layer_goes_on_top_and_the_version_rises_by_one() -> None:
    assert THIRD.version == 3
    assert THIRD.layer_ids == ("L000003-ffffffff", "L000002-00aa11bb", "B000001-base")
    assert [layer.path for layer in THIRD.layers] == [
        "layers/L000003-ffffffff",
        "layers/L000002-00aa11bb",
        "base/B000001-base",
    ]


def test_the_file_of_a_manifest_is_the_contracts_and_comes_back() -> None:
    value = json.loads(THIRD.dump())
    assert (
        value["schema_version"] == 1
        and value["version"] == 3
        and value["layers"][0] == THIRD.layers[0]._asdict()
    )
    assert Manifest.load(THIRD.dump(), source="m") == THIRD


def test_a_manifest_is_written_as_json_writes_it_and_one_of_many_layers_comes_back() -> None:
    many = BASE
    for version in range(2, 450):
        many = many.with_layer(published_id(version, f"{version:064x}"[::-1]))
        body = many.to_json()
        digest = hashlib.sha256(json.dumps(body, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
        assert many.dump() == json.dumps({**body, "sha256": digest}, separators=(",", ":")).encode() + b"\n"
        assert Manifest.load(many.dump(), source="m") == many


def test_an_older_version_of_one_stack_lists_the_end_of_a_newer_ones_layers() -> None:
    whole = listed(THIRD.layers)
    other = BASE.with_layer(published_id(2, "f" * 64))
    assert all(
        lists_the_end_of(version.dump(), whole) for version in (BASE, Manifest(2, THIRD.layers[1:]), THIRD)
    )
    assert not lists_the_end_of(other.dump(), whole)
    data = BASE.dump()
    for at in range(data.find(b"[") + 1, data.find(b"]")):
        assert not lists_the_end_of(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :], whole)
    assert not any(lists_the_end_of(part, whole) for part in (b"", data[:40], whole))


def test_the_root_hash_is_of_the_layers_alone() -> None:
    assert len(THIRD.root_hash) == 64
    assert THIRD.root_hash == Manifest(9, THIRD.layers).root_hash != BASE.root_hash


def test_every_flipped_byte_of_a_manifest_is_found_and_the_file_is_named() -> None:
    data = THIRD.dump()
    for at in range(len(data) - 1):
        broken = bytearray(data)
        broken[at] ^= 1
        with pytest.raises(StoreCorrupt) as caught:
            Manifest.load(bytes(broken), source="/store/manifest.json")
        assert caught.value.details["file"] == "/store/manifest.json"


@pytest.mark.parametrize("length", [0, 1, 20, len(THIRD.dump()) - 3])
def test_a_torn_manifest_is_corrupt(length: int) -> None:
    with pytest.raises(StoreCorrupt):
        Manifest.load(THIRD.dump()[:length], source="m")


@pytest.mark.parametrize(
    "change",
    [
        {"schema_version": 2},
        {"version": 0},
        {"version": True},
        {"layers": []},
        {"layers": [{"layer_id": "../../etc", "path": "layers/../../etc"}]},
        {"layers": [{"layer_id": "L000002-00000000", "path": "layers/L000002-00000000"}]},
        {"layers": [{"layer_id": "B000001-base", "path": "elsewhere"}]},
    ],
)
def test_a_manifest_that_makes_no_sense_is_corrupt(change: dict[str, object]) -> None:
    with pytest.raises(StoreCorrupt):
        Manifest.from_json({**BASE.to_json(), **change})


def test_a_document_comes_back_and_damage_or_another_format_is_named() -> None:
    data = records.dump({"name": "x\udcff", "n": 1})
    assert records.parse(data, "d") == {"name": "x\udcff", "n": 1}
    with pytest.raises(StoreCorrupt, match="checksum"):
        records.parse(data.replace(b'"n":1', b'"n":2'), "d")
    with pytest.raises(StoreCorrupt, match="format is 2"):
        records.parse(data.replace(b'"format":1', b'"format":2'), "d")
    for broken in (b"", data[:10], b"[]", b"\xff"):
        with pytest.raises(StoreCorrupt):
            records.parse(broken, "d")


@pytest.mark.parametrize("path", ["/a", "a//b", "a/", "../a", "a/..", ".", "a/./b", "a\0b", "a/\ud800"])
def test_a_path_that_is_none_of_a_tree_is_refused(path: str) -> None:
    with pytest.raises(InvalidPath):
        check(path)


def test_ancestors_go_from_the_root_down() -> None:
    assert ancestors("a/b/c") == ["", "a", "a/b"] and ancestors("a") == [""] and ancestors("") == []


def test_the_file_of_a_version_names_its_newest_layer_and_comes_back_and_one_of_before_does_too() -> None:
    data = version_files.dump(3, THIRD.layer_ids[0])
    assert len(data) < 200 and json.loads(data)["schema_version"] == 2
    assert version_files.load(data, source="v") == version_files.VersionRecord(3, THIRD.layer_ids[0], None)
    assert version_files.load(THIRD.dump(), source="v") == version_files.VersionRecord(
        3, THIRD.layer_ids[0], THIRD.layers
    )
    for at in range(len(data) - 1):
        broken = bytearray(data)
        broken[at] ^= 1
        with pytest.raises(StoreCorrupt) as caught:
            version_files.load(bytes(broken), source="/store/manifests/3.json")
        assert caught.value.details["file"] == "/store/manifests/3.json"
    for wrong in (
        b"",
        data[:40],
        b"[]",
        b'"x"',
        data[:-1],
        data + b" ",
        version_files.dump(0, BASE_ID),
        version_files.dump(3, "../x"),
    ):
        with pytest.raises(StoreCorrupt):
            version_files.load(wrong, source="v")
