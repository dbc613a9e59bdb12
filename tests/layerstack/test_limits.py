"""Stacks of hundreds of layers: they mount, the first and the last file are there, and at the kernel's limit
there is an error or a fold.
"""

from __future__ import annotations

import contextlib
import errno
import os
import threading
from collections.abc import Callable

import pytest

from layerstack.errors import LayerLimit, NotFound, StoreCorrupt
from layerstack.export import stream
from layerstack.history import versions
from layerstack.kernel import fsync
from layerstack.model.manifest import LOWER_LIMIT
from layerstack.squash.auto_squash import SQUASH_AT
from layerstack.squash.depth import Depths
from layerstack.squash.squash import Squashed
from tests.layerstack.exported_names import names_in_export
from tests.layerstack.store_fixture import Base, Session, Stack, get, on_a_stack, put

BASE: Base = {"d/f": "f\n", "e/x": "x\n"}
WAIT_S = 60


def write(s: Stack, path: str, text: str = "") -> int:
    """One layer of one file; the version that it makes."""
    data = (text or path).encode()
    return s.store.update_file(path, lambda _: data, owner="o", request_id="r").manifest.version


def grow(s: Stack, layers: int) -> None:
    """Publish one-file layers until the head has so many, the base included."""
    while len(s.store.head.layers) < layers:
        write(s, f"n/{len(s.store.head.layers)}")


def exports(s: Stack) -> list[bytes]:
    """The head's export, as far as it comes as bytes: small files do."""
    return [piece for piece in stream.stream(s.store.snapshot()) if isinstance(piece, bytes)]


def looks_right(s: Stack, first: str = "n/1") -> None:
    """A session sees the first file, the last one and the base's, and can write."""
    last = f"n/{len(s.store.head.layers) - 1}"
    session = s.session()
    assert [get(session.at(path)) for path in (first, last, "d/f")] == [first, last, "f\n"]
    put(session.at("n/own"), "own\n")
    session.umount()
    session.upper.discard()


@on_a_stack(BASE)
def test_stacks_of_130_and_300_layers_and_of_the_longest_paths_mount_and_the_500th_is_the_last(
    s: Stack,
) -> None:
    deep = f"{s.folder}/{'p' * 200}/{'q' * 200}/{'r' * 200}"
    os.makedirs(deep)
    with contextlib.closing(Stack(s.xattr_namespace.name, BASE, folder=deep)) as stack:
        for one, sizes in ((s, (131, 301)), (stack, (131, 301, LOWER_LIMIT))):
            for layers in sizes:
                grow(one, layers)
                looks_right(one)
        _at_the_limit(stack)


def _at_the_limit(stack: Stack) -> None:
    session = stack.session()
    put(session.at("more"), "more\n")
    before = stack.layer_dirs()
    for attempt in (
        session.publish,
        lambda: write(stack, "more"),
        lambda: stack.store.rollback(2, owner="o", request_id="r"),
    ):
        with pytest.raises(LayerLimit) as caught:
            attempt()
        assert (caught.value.reason, caught.value.details) == (
            "layer_limit",
            {"layers": LOWER_LIMIT + 1, "limit": LOWER_LIMIT},
        )
    assert stack.layer_dirs() == before and os.listdir(f"{stack.root}/staging") == []
    previewed = session.upper.preview()
    assert isinstance(previewed.refused, LayerLimit) and not previewed.would_publish
    assert stack.session().publish().no_op
    assert not os.path.exists(f"{session.upper.directory}/private")  # the session goes on on its own upperdir
    stack.store.auto_squash.squash_at = SQUASH_AT
    assert session.publish().manifest.layers[0].layer_id.startswith("L") and len(stack.store.head.layers) == 4
    stack.reopen()
    assert {"n/1", f"n/{LOWER_LIMIT - 1}", "more"} <= stack.shows().keys()


@on_a_stack(BASE, namespaces=("user",))
def test_with_a_policy_the_publish_that_finds_450_layers_folds_first_and_one_before_does_not(
    s: Stack,
) -> None:
    store = s.store
    squashes: list[tuple[str, int | None]] = []

    def on_squash(why: str, done: Squashed | Exception | None) -> None:
        assert not isinstance(done, Exception)
        squashes.append((why, None if done is None else len(done.blocks[0].replaced_layer_ids)))

    store.auto_squash.squash_at, store.auto_squash.on_squash = SQUASH_AT, on_squash
    grow(s, SQUASH_AT)
    assert squashes == []
    session = s.session()  # it keeps the newest layer apart
    put(session.at("mine"), "mine\n")
    session.publish()
    assert squashes == [("fold_at", None), ("fold_at", SQUASH_AT - 2)]
    assert [layer.layer_id[0] for layer in store.head.layers] == ["L", "L", "S", "B"]
    assert s.shows()["n/1"] == "n/1" and s.shows()["mine"] == "mine\n"


@on_a_stack(BASE, namespaces=("user",))
def test_a_fold_before_there_is_need_waits_for_nobody_and_is_left_where_it_does_not_pay(s: Stack) -> None:
    store = s.store
    store.auto_squash.squash_at = 15
    grow(s, 15)
    write(s, "after")
    assert len(store.head.layers) == 3
    keepers: list[Session] = []
    while len(store.head.layers) < 15:
        write(s, f"k/{len(keepers)}")
        keepers.append(s.session())
    head = len(store.head.layers)
    write(s, "last")
    assert len(store.head.layers) == head + 1  # nothing that could be folded is worth it
    for keeper in keepers:
        keeper.umount()
        keeper.upper.discard()
    with store.squash_lock:  # somebody squashes
        write(s, "another")
    assert len(store.head.layers) == head + 2
    write(s, "one more")
    assert len(store.head.layers) == 3


@on_a_stack(BASE, namespaces=("user",))
def test_a_fold_that_the_disk_refuses_stops_no_publish_that_fits_without_it(s: Stack) -> None:
    store = s.store
    grow(s, 20)
    store.auto_squash.squash_at = 15
    failed: list[int | None] = []
    store.auto_squash.on_squash = lambda why, done: (
        failed.append(done.errno) if isinstance(done, OSError) else None
    )

    def step(name: str) -> None:
        if name == "squash.sync":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    store.step = step
    write(s, "fits")
    assert failed == [errno.ENOSPC] and len(store.head.layers) == 21 and os.listdir(f"{s.root}/staging") == []
    store.quota.layers = 20
    with pytest.raises(Exception, match="quota of 20 layers"):
        write(s, "does not")
    store.step = fsync.no_step
    write(s, "does not")
    assert len(store.head.layers) == 3


@on_a_stack(BASE, namespaces=("user",))
def test_a_damaged_layer_that_a_fold_meets_is_reported_and_stops_no_publish_that_fits_without_it(
    s: Stack,
) -> None:
    store = s.store
    grow(s, 20)
    store.auto_squash.squash_at = 15
    with open(f"{s.root}/.layer-metadata/{store.head.layer_ids[3]}.index", "r+b") as file:
        file.seek(-2, os.SEEK_END)
        file.write(b"?")
    failed: list[Exception] = []
    store.auto_squash.on_squash = lambda why, done: (
        failed.append(done) if isinstance(done, Exception) else None
    )
    write(s, "fits")
    assert len(store.head.layers) == 21
    (error,) = failed
    assert isinstance(error, StoreCorrupt) and error.details["file"].endswith(".index")


@on_a_stack(BASE, namespaces=("user",))
def test_a_damaged_layer_stops_one_squash_by_name_and_later_ones_fold_around_it(s: Stack) -> None:
    store = s.store
    grow(s, 4)
    (block,) = store.squash().blocks
    for name in ("one", "two", "three"):
        write(s, name)
    path = f"{s.root}/.layer-metadata/{block.squashed_layer_id}.blame"
    with open(path, "rb") as file:
        good = file.read()
    put(path, good[:-9])
    s.reopen()
    store = s.store
    before = s.tree()
    with pytest.raises(StoreCorrupt) as caught:
        store.squash()
    assert caught.value.details["file"] == path and os.listdir(store.staging.path) == []
    assert store.squash().blocks and [layer[0] for layer in store.head.layer_ids] == ["S", "S", "B"]
    assert s.tree() == before and not store.squash().blocks
    put(path, good)
    s.reopen()
    assert s.store.squash().blocks and len(s.store.head.layers) == 2 and s.tree() == before


@on_a_stack(BASE, namespaces=("user",))
def test_many_publishes_at_once_at_the_limit_fold_once_and_all_go_through(s: Stack) -> None:
    store = s.store
    store.quota.layers, store.auto_squash.squash_at = 30, SQUASH_AT
    grow(s, 31)
    sessions = [s.session(version=1) for _ in range(8)]
    for number, session in enumerate(sessions):
        put(session.at(f"w{number}"), f"{number}\n")
        session.umount()
    folds: list[int] = []
    store.auto_squash.on_squash = lambda why, done: (
        folds.append(len(done.blocks)) if isinstance(done, Squashed) else None
    )
    start = threading.Barrier(len(sessions), timeout=WAIT_S)
    failures: list[Exception] = []

    def publish(number: int) -> None:
        start.wait()
        try:
            sessions[number].publish()
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=publish, args=(number,)) for number in range(len(sessions))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_S)
    assert failures == [] and sum(folds) >= 1
    assert len(store.head.layers) <= 31 and {f"w{n}" for n in range(len(sessions))} <= s.shows().keys()


@on_a_stack({f"{name}/0": "0" for name in ("a", "a/in", "b")}, namespaces=("user",))
def test_the_depth_of_a_directory_is_how_many_layers_that_can_be_folded_change_its_entries(s: Stack) -> None:
    depths = Depths(s.store)

    def measured() -> tuple[int, int, str, int]:
        depth = depths.measure()
        return depth.layers, depth.squashable, depth.directory, depth.sharing

    assert measured() == (1, 0, "", 0)
    for path in ("a/1", "b/1", "a/in/1", "a/2"):
        write(s, path)
    assert measured() == (5, 4, "a", 2)  # what holds "a" on the way to "a/in" does not touch it
    keeper = s.session()  # on the layer of a/2
    for path in ("a/3", "b/2"):
        write(s, path)
    assert measured() == (7, 5, "", 0)  # a/3 and a/1 are on different sides of it
    keeper.umount()
    keeper.upper.discard()
    assert measured() == (7, 6, "a", 3)
    removing = s.session()
    os.unlink(removing.at("b/0"))
    os.chmod(removing.at("a/in/1"), 0o600)
    os.unlink(removing.at("a/1"))
    removing.publish()
    assert measured() == (8, 7, "a", 4)
    write(s, "new/1")  # a new directory is a new entry of the root
    write(s, "top")
    s.store.squash()
    assert measured() == (2, 0, "", 0)
    write(s, "a/9")
    assert measured() == (3, 2, "a", 2)
    assert depths.measure().entries == sum(
        len(layer.index or ()) for layer in s.store.layers.of(s.store.head)
    )


@on_a_stack(BASE)
def test_a_version_inside_a_block_is_refused_at_once_when_the_disk_refused_to_close_it_and_after_every_reopen(
    s: Stack,
) -> None:
    for n in range(4):
        write(s, "f", f"{n}\n")
    keeper = s.session()
    write(s, "f", "4\n")
    write(s, "f", "5\n")  # versions 2 to 7; the block is 2 to 4, and 6 to 7

    def step(name: str) -> None:
        if name == "squash.close_versions":
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    def check(openable: list[int]) -> None:
        store = s.store
        listed = [version.version for version in versions.versions(store)[0]]
        assert sorted(listed) == openable
        for version in range(1, store.head.version + 1):
            if version in openable:
                store.manifest(version)
                assert s.shows(version).get("f") == (
                    "5\n" if version > 6 else f"{version - 2}\n" if version > 1 else None
                )
                continue
            attempts: list[Callable[[int], object]] = [
                store.manifest,
                store.snapshot,
                lambda v: store.open_upper(f"x{v}", origin="o", version=v),
                store.pin_version,
                lambda v: store.rollback(v, owner="o", request_id="r"),
                lambda v: versions.diff_versions(store, v, store.head.version),
                lambda v: store.lease(v).__enter__(),
            ]
            for attempt in attempts:
                with pytest.raises(NotFound) as caught:
                    attempt(version)
                assert (caught.value.reason, caught.value.details) == (
                    "version_not_found",
                    {"version": version},
                )

    s.store.step = s.step = step
    assert len(s.store.squash().blocks) == 2
    inside = [version for version in (2, 3, 6) if os.path.exists(f"{s.root}/manifests/{version}.json")]
    assert inside == [2, 3, 6]
    check([1, 4, 5, 7, 8])
    keeper.umount()
    for _ in range(2):
        s.reopen()
        assert s.store.cleanup_pending
        check([1, 4, 5, 7, 8])
    s.step = fsync.no_step
    s.reopen()
    check([1, 4, 5, 7, 8])
    assert not any(os.path.exists(f"{s.root}/manifests/{version}.json") for version in inside)


@on_a_stack(BASE, namespaces=("trusted",))
def test_on_a_full_disk_publish_and_squash_fail_by_name_an_export_works_and_all_go_on_after_space_is_freed(
    s: Stack,
) -> None:
    with s.on_a_small_disk(BASE, size_mib=2) as (stack, fill):
        stack.store.quota.bytes = 10**6  # which is not what is in the way
        for name in ("a", "b", "c"):
            write(stack, name)
        session = stack.session()
        put(session.at("mine"), "mine\n")
        write(stack, "z")
        before, head, used = stack.layer_dirs(), stack.store.head, stack.store.quota.used_bytes()
        exported = exports(stack)
        fill()
        for attempt in (
            session.publish,
            stack.store.squash,
            lambda: write(stack, "y"),
            lambda: stack.store.rollback(2, owner="o", request_id="r"),
        ):
            with pytest.raises(OSError) as caught:
                attempt()
            assert caught.value.errno == errno.ENOSPC
            assert (stack.layer_dirs(), stack.store.head) == (
                before,
                head,
            ) and stack.store.quota.used_bytes() == used
        assert exports(stack) == exported
        os.unlink(f"{stack.folder}/filler")
        assert os.listdir(f"{stack.root}/staging") == []
        assert len(stack.store.squash().blocks) == 1
        session.publish()
        assert write(stack, "y") == head.version + 3
        assert stack.shows().keys() == {"a", "b", "c", "d", "d/f", "e", "e/x", "mine", "y", "z"}


@on_a_stack({"f": "base\n"}, namespaces=("trusted",))
def test_on_a_full_disk_nothing_is_half_done_and_all_of_it_works_once_there_is_space(stack: Stack) -> None:
    with stack.on_a_small_disk({"f": "base\n", "d/g": "g\n"}, size_mib=8) as (inner, fill):
        for n in range(3):
            inner.store.update_file(f"n{n}", lambda _: b"n\n", owner="o", request_id="r")
        session = inner.session()
        put(session.at("mine"), "mine\n")
        os.unlink(session.at("d/g"))
        session.umount()
        fill()

        def on_disk() -> dict[str, list[str]]:
            names = ("layers", "manifests", ".layer-metadata", "drafts", "staging")
            return {name: sorted(os.listdir(f"{inner.root}/{name}")) for name in names}

        before, head = on_disk(), inner.store.head
        with open(f"{inner.root}/manifest.json", "rb") as file:
            manifest = file.read()
        for what in (
            session.publish,
            inner.store.squash,
            lambda: inner.store.update_file("x", lambda _: b"x", owner="o", request_id="r"),
        ):
            with pytest.raises(OSError) as caught:
                what()
            assert caught.value.errno == errno.ENOSPC
            assert on_disk() == before and inner.store.head == head
            with open(f"{inner.root}/manifest.json", "rb") as file:
                assert file.read() == manifest
        assert names_in_export(inner) == {f"n{n}": b"n\n" for n in range(3)}, "reading needs no space"
        os.unlink(f"{inner.folder}/filler")
        session.publish()
        assert len(inner.store.squash().blocks) == 1
        inner.reopen()
        assert inner.shows() == {
            "d": "/",
            "f": "base\n",
            "mine": "mine\n",
            **{f"n{n}": "n\n" for n in range(3)},
        }
        assert on_disk()["staging"] == []
