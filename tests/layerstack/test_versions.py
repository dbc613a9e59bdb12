"""The files of openable versions: they grow with the layers, and a store whose files name every layer is read
as it is.
"""

from __future__ import annotations

import os
import resource
from collections.abc import Callable

import pytest

from layerstack.errors import StoreCorrupt
from layerstack.fsck import check as fsck
from layerstack.fsck.check import check
from layerstack.history import versions as history
from layerstack.kernel import fsync as durable
from layerstack.kernel import syscalls
from layerstack.layers import version_files
from layerstack.model.manifest import Manifest
from layerstack.store import Store
from tests.layerstack.store_fixture import Stack, get, on_a_stack, put

BASE: dict[str, str | bytes | None] = {"f": "base\n"}


def publish(stack: Stack, count: int) -> None:
    for _ in range(count):
        number = stack.store.head.version
        stack.store.update_file(f"f{number}", lambda old: b"x\n", owner="o", request_id="r")


def size(stack: Stack) -> int:
    folder = f"{stack.root}/manifests"
    return sum(os.stat(f"{folder}/{name}").st_size for name in os.listdir(folder))


@on_a_stack(BASE, namespaces=("trusted",))
def test_the_files_of_versions_grow_with_the_layers_and_not_with_their_square(stack: Stack) -> None:
    publish(stack, 30)
    few = size(stack)
    publish(stack, 30)
    assert size(stack) < 2.2 * few
    assert [len(stack.store.manifest(version).layers) for version in (1, 2, 31, 61)] == [1, 2, 31, 61]
    stack.reopen()
    assert stack.store.damaged == {} and len(stack.store.manifest(40).layers) == 40


def as_of_before(stack: Stack) -> dict[int, Manifest]:
    """Close the store and let each version's file name all layers, as stores of before do; manifest.json is
    one of those files.
    """
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


@on_a_stack(BASE, namespaces=("trusted",))
def test_a_store_of_before_is_opened_read_squashed_and_written_to(stack: Stack) -> None:
    publish(stack, 3)
    stack.store.pin_version(2)
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
    assert (
        all(stack.shows(version) == trees[version] for version in (1, 2, 3, 4)) and stack.store.damaged == {}
    )
    stack.store.close()
    assert list(check(stack.root)) == []
    with fsck.offline(stack.root) as looking:
        assert list(looking) == [] and {note.kind for note in looking.notes} <= {"not_checked"}
    stack.store = Store.open(stack.root)


@on_a_stack(BASE, namespaces=("trusted",))
def test_a_version_whose_file_names_another_layer_is_set_apart_and_named(stack: Stack) -> None:
    publish(stack, 3)
    stack.store.close()
    path = f"{stack.root}/manifests/3.json"
    with open(path, "rb") as file:
        good = file.read()
    with open(f"{stack.root}/manifests/2.json", "rb") as file:
        other = file.read()
    wrong = version_files.dump(3, version_files.load(other, source="2").top)
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
        version_files.load(wrong[:-4], source="x")


def lose(path: str, size: int) -> None:
    """As a power cut leaves a file whose name was durable and whose bytes were not."""
    with open(path, "wb") as file:
        file.truncate(size)


@on_a_stack(BASE, namespaces=("trusted",))
def test_versions_whose_bytes_a_power_cut_took_are_read_from_the_head_and_written_again(stack: Stack) -> None:
    publish(stack, 2)
    stack.store.squash()  # 2 is closed; 3 and 4 have the layer that was folded
    publish(stack, 2)
    stack.store.pin_version(5)
    draft = stack.session()
    put(draft.at("kept"), "kept\n")
    kept = draft.keep(reason="test")
    numbers = (1, 3, 4, 5, 6)
    trees = {version: stack.shows(version) for version in numbers}
    right = {version: get(f"{stack.root}/manifests/{version}.json") for version in numbers}
    stack.store.close()
    for size in (0, 140):
        for version in numbers:
            lose(f"{stack.root}/manifests/{version}.json", size)
        assert list(check(stack.root)) == []
        with fsck.offline(stack.root) as looking:
            assert list(looking) == []
            assert {f"manifests/{version}.json" for version in numbers} <= {
                note.file for note in looking.notes if note.kind == "left_over"
            }
        stack.store = Store.open(stack.root)
        assert (
            stack.store.damaged == {} and list(stack.store.pinned()) == [5] and stack.store.drafts() == [kept]
        )
        assert {version: stack.shows(version) for version in numbers} == trees
        assert {version: get(f"{stack.root}/manifests/{version}.json") for version in numbers} == right
        stack.store.close()
    stack.store = Store.open(stack.root)
    publish(stack, 2)
    assert len(stack.store.squash().blocks) == 1, "nothing is set apart, so that it may fold"


@on_a_stack(BASE, namespaces=("trusted",))
def test_lost_versions_can_be_opened_where_the_disk_lets_no_file_be_written(stack: Stack) -> None:
    publish(stack, 2)
    tree = stack.shows(2)
    stack.store.close()
    path = f"{stack.root}/manifests/2.json"
    lose(path, 0)

    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, limits[1]))
    try:
        stack.store = Store.open(stack.root)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert os.stat(path).st_size == 0 and stack.shows(2) == tree and stack.store.damaged == {}
    stack.store.gc()
    publish(stack, 1)
    assert [version.version for version in history.versions(stack.store)[0]] == [4, 3, 2, 1]
    stack.reopen()
    assert os.stat(path).st_size > 100 and stack.shows(2) == tree


class Syncs:
    """What a publish waits for: files that are synced or written out, and directories that are synced."""

    def __init__(self) -> None:
        self.fsyncs: list[str] = []
        self.waited: set[str] = set()

    def fsync(self, fd: int) -> None:
        self.fsyncs.append(os.readlink(f"/proc/self/fd/{fd}"))

    def sync_file_range(self, fd: int, flags: int, *_: int) -> None:
        if flags & syscalls.SYNC_FILE_RANGE_WAIT_AFTER:
            self.waited.add(os.readlink(f"/proc/self/fd/{fd}"))


def in_order(root: str) -> bool:
    return True


def in_no_order(root: str) -> bool:
    return False


def watched(patch: pytest.MonkeyPatch) -> Syncs:
    """From here on what is synced is seen."""
    seen = Syncs()
    for module, name in ((os, "fsync"), (syscalls, "sync_file_range")):
        real, tell = getattr(module, name), getattr(seen, name)

        def passing(*args: int, real: Callable[..., None] = real, tell: Callable[..., None] = tell) -> None:
            tell(*args)
            real(*args)

        patch.setattr(module, name, passing)
    return seen


@on_a_stack(BASE, namespaces=("trusted",))
def test_a_publish_of_one_file_waits_for_no_more_than_the_layer_and_the_head_need(stack: Stack) -> None:
    for orderly, most in ((True, 1), (False, 11)):
        session = stack.session()
        put(session.at(f"new{most}"), "new\n")
        session.umount()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(durable, "keeps_order", in_order if orderly else in_no_order)
            seen = watched(patch)
            session.upper.publish(owner="o", request_id="r")
        assert len(seen.fsyncs) <= most, seen.fsyncs
        assert len(seen.waited) == 5, "the file, three of its layer, manifest.json"
        assert not any(path.endswith(".version") for path in (*seen.fsyncs, *seen.waited)), seen.fsyncs
