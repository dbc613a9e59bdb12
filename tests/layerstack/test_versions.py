"""The files of openable versions: they grow with the layers, and a store whose files name every layer is read as it is."""

from __future__ import annotations

import os

import pytest

from layerstack import fsck, history, versions
from layerstack.errors import StoreCorrupt
from layerstack.fsck import check
from layerstack.manifest import Manifest
from layerstack.store import Store
from tests.layerstack.stack import Stack, on_a_stack, put

BASE: dict[str, str | bytes | None] = {"f": "base\n"}


def publish(stack: Stack, count: int) -> None:
    for _ in range(count):
        number = stack.store.head.version
        stack.store.update_file(f"f{number}", lambda old: b"x\n", owner="o", request_id="r")


def size(stack: Stack) -> int:
    folder = f"{stack.root}/manifests"
    return sum(os.stat(f"{folder}/{name}").st_size for name in os.listdir(folder))


@on_a_stack(BASE, forms=("trusted",))
def test_the_files_of_versions_grow_with_the_layers_and_not_with_their_square(stack: Stack) -> None:
    publish(stack, 30)
    few = size(stack)
    publish(stack, 30)
    assert size(stack) < 2.2 * few
    assert [len(stack.store.manifest(version).layers) for version in (1, 2, 31, 61)] == [1, 2, 31, 61]
    stack.reopen()
    assert stack.store.damaged == {} and len(stack.store.manifest(40).layers) == 40


def as_of_before(stack: Stack) -> dict[int, Manifest]:
    """Close the store and let each version's file name all layers, as stores of before do; manifest.json is one of those files."""
    root, kept = stack.root, dict[int, Manifest]()
    for version, *_ in history.versions(stack.store)[0]:
        kept[version] = stack.store.manifest(version)
    stack.store.close()
    for version, manifest in kept.items():
        os.unlink(f"{root}/manifests/{version}.json")
        with open(f"{root}/manifests/{version}.json", "wb") as file:
            file.write(manifest.dump())
    os.unlink(f"{root}/manifest.json")
    os.link(f"{root}/manifests/{max(kept)}.json", f"{root}/manifest.json")
    return kept


@on_a_stack(BASE, forms=("trusted",))
def test_a_store_of_before_is_opened_read_squashed_and_written_to(stack: Stack) -> None:
    publish(stack, 3)
    stack.store.pins.pin(2)
    session = stack.session()
    put(session.at("work"), "work\n")
    session.umount()
    publish(stack, 2)
    trees = {version: stack.shows(version) for version in range(1, 7)}
    kept = as_of_before(stack)
    assert list(check(stack.root)) == []
    stack.store = Store.open(stack.root)
    assert stack.store.damaged == {} and len(stack.store.recovered) == 1
    assert {version: stack.store.manifest(version) for version in kept} == kept
    assert {version: stack.shows(version) for version in kept} == trees
    publish(stack, 1)
    assert len(stack.store.squash().blocks) == 1
    left = [version.version for version in history.versions(stack.store)[0]]
    assert left == [8, 7, 4, 3, 2, 1], "a pin and a draft keep apart what is below 5"
    assert all(stack.shows(version) == trees[version] for version in (1, 2, 3, 4))
    stack.reopen()
    assert all(stack.shows(version) == trees[version] for version in (1, 2, 3, 4)) and stack.store.damaged == {}
    stack.store.close()
    assert list(check(stack.root)) == []
    with fsck.offline(stack.root) as looking:
        assert list(looking) == [] and {note.kind for note in looking.notes} <= {"not_checked"}
    stack.store = Store.open(stack.root)


@on_a_stack(BASE, forms=("trusted",))
def test_a_version_whose_file_names_another_layer_is_set_apart_and_named(stack: Stack) -> None:
    publish(stack, 3)
    stack.store.close()
    path = f"{stack.root}/manifests/3.json"
    with open(path, "rb") as file:
        good = file.read()
    with open(f"{stack.root}/manifests/2.json", "rb") as file:
        other = file.read()
    wrong = versions.dump(3, versions.load(other, source="2").top)
    for data in (other, wrong):
        with open(path, "wb") as file:
            file.write(data)
        assert {damage.file for damage in check(stack.root)} == {"manifests/3.json"}
        store = Store.open(stack.root)
        assert list(store.damaged) == [path] and store.squash().blocks == ()
        store.close()
    with open(path, "wb") as file:
        file.write(good)
    stack.store = Store.open(stack.root)
    assert stack.store.damaged == {}
    with pytest.raises(StoreCorrupt):
        versions.load(wrong[:-4], source="x")
