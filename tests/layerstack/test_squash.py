"""Squash: blocks of layers that no lease keeps apart become one layer, and nobody can tell by any tree."""

from __future__ import annotations

import functools
import operator
import os
import threading
from collections.abc import Callable

import pytest

from layerstack.errors import SquashInFlight, StoreCorrupt
from layerstack.kernel import fsync, records
from layerstack.squash.squash import Block, Squashed
from layerstack.store import Store
from tests.layerstack.squashing import (
    BASE,
    FORTY_FILES,
    counts,
    ids,
    in_layer,
    make_a_directory_again_and_squash,
    openable,
    publish,
    squash,
)
from tests.layerstack.store_fixture import Session, Stack, get, on_a_stack, put


@on_a_stack(BASE)
def test_all_layers_without_a_lease_become_one_and_the_old_folders_go(s: Stack) -> None:
    for n in range(5):
        publish(s, **{f"n{n}": "n\n", "top": f"{n}\n"})
    old = s.store.head.layer_ids[:-1]
    done = squash(s)
    (block,) = done.blocks
    assert (done.manifest.version, ids(s)) == (7, "SB")
    assert (
        block.squashed_layer_id.startswith("S000007-") and block.replaced_layer_ids == old and block.reclaimed
    )
    assert s.layer_dirs() == [block.squashed_layer_id]
    about = [name.rpartition(".") for name in sorted(os.listdir(f"{s.root}/.layer-metadata"))]
    assert [(stem, kind) for stem, _, kind in about] == [
        (block.squashed_layer_id, kind) for kind in ("blame", "index", "json")
    ]
    assert os.listdir(f"{s.root}/staging") == []
    assert openable(s) == [1, 6, 7]


@on_a_stack(BASE, namespaces=("trusted",))
def test_a_process_that_dies_before_it_removed_what_was_replaced_leaves_nothing_to_the_next(s: Stack) -> None:
    """The removal goes behind the answer: until it is done, and if it never is, nobody minds."""
    s.store.staging.later = lambda removal: None
    for n in range(3):
        publish(s, top=f"{n}\n")
    assert squash_alone(s).reclaimed and s.store.staging.count() == 0
    session = s.session()
    publish(s, top="3\n")
    session.umount()
    assert session.upper.rebase().updated == 1
    session.upper.discard()
    assert squash_alone(s).reclaimed
    with s.store.checking() as looking:
        assert list(looking) == [] and {note.kind for note in looking.notes} == {"not_checked"}
    assert len(os.listdir(f"{s.root}/staging")) == 7, "two folders of layers and five sessions that ended"
    s.reopen()
    assert (
        os.listdir(f"{s.root}/staging") == []
        and ids(s) == "SB"
        and s.layer_dirs() == [s.store.head.layer_ids[0]]
    )
    assert {name.partition(".")[0] for name in os.listdir(f"{s.root}/.layer-metadata")} == set(s.layer_dirs())
    assert s.shows()["top"] == "3\n"


def squash_alone(s: Stack) -> Block:
    (block,) = s.store.squash().blocks
    return block


@on_a_stack(BASE)
def test_a_second_squash_finds_nothing_and_the_version_stays(s: Stack) -> None:
    assert s.store.squash().blocks == () and s.store.head.version == 1
    publish(s, a="a\n")
    assert squash(s).blocks == (), "a single layer is never rewritten"
    publish(s, b="b\n")
    assert len(squash(s).blocks) == 1
    version = s.store.head.version
    again = squash(s)
    assert (again.blocks, again.manifest.version) == ((), version)
    publish(s, c="c\n")
    assert len(squash(s).blocks) == 1, "a squashed layer is a layer like any other"
    assert ids(s) == "SB"


@on_a_stack(BASE)
def test_a_whiteout_stays_where_the_chain_below_has_the_name(s: Stack) -> None:
    one = s.session()
    os.unlink(one.at("d/f"))
    put(one.at("made"))
    one.publish()
    two = s.session()
    os.unlink(two.at("made"))
    put(two.at("e/new"))
    two.publish()
    (block,) = squash(s).blocks
    assert in_layer(s, block.squashed_layer_id) == ["d", "d/f", "e", "e/new"]
    assert "d/f" not in s.shows()


@on_a_stack(BASE)
def test_a_file_made_and_deleted_inside_the_block_leaves_no_trace(s: Stack) -> None:
    publish(s, n__deep__file="x\n", big=b"\0" * 100_000)
    two = s.session()
    os.unlink(two.at("n/deep/file"))
    os.rmdir(two.at("n/deep"))
    os.rmdir(two.at("n"))
    os.unlink(two.at("big"))
    two.publish()
    (block,) = squash(s).blocks
    assert in_layer(s, block.squashed_layer_id) == []
    assert s.tree().keys() == s.tree(1).keys()


@on_a_stack(FORTY_FILES)
def test_a_directory_made_again_stays_opaque_and_no_whiteout_lies_below_it(s: Stack) -> None:
    make_a_directory_again_and_squash(s)


@on_a_stack(BASE)
def test_a_directory_replaced_by_a_file_and_made_again_hides_what_is_below(s: Stack) -> None:
    one = s.session()
    for name in ("d/f", "d/g"):
        os.unlink(one.at(name))
    os.rmdir(one.at("d"))
    put(one.at("d"), "a file\n")
    one.publish()
    two = s.session()
    os.unlink(two.at("d"))
    put(two.at("d/again"))
    two.publish()
    squash(s)
    assert {path for path in s.shows() if path.startswith("d")} == {"d", "d/again"}
    s.reopen()
    assert {path for path in s.shows() if path.startswith("d")} == {"d", "d/again"}


@on_a_stack(BASE)
def test_a_file_replaced_by_a_directory_is_merged_with_nothing(s: Stack) -> None:
    one = s.session()
    os.unlink(one.at("top"))
    put(one.at("top/inside"))
    one.publish()
    publish(s, top__more="more\n")
    squash(s)
    assert {path for path in s.shows() if path.startswith("top")} == {"top", "top/inside", "top/more"}


@on_a_stack(BASE)
def test_files_keep_inode_times_and_links_and_directories_their_attributes(s: Stack) -> None:
    one = s.session()
    put(one.at("n/a"), "shared\n")
    os.link(one.at("n/a"), one.at("n/b"))
    os.symlink("a", one.at("n/link"))
    os.setxattr(one.at("n/a"), "user.note", b"kept")
    os.utime(one.at("n/a"), ns=(1_000_000_007, 2_000_000_009))
    os.utime(one.at("n/link"), ns=(5, 3_000_000_001), follow_symlinks=False)
    os.chmod(one.at("n"), 0o2751)
    os.utime(one.at("n"), ns=(5, 4_000_000_003))
    os.chmod(one.at(""), 0o711)
    one.publish()
    publish(s, other="o\n")

    def look() -> list[tuple[int, ...]]:
        found: list[tuple[int, ...]] = []
        for path in ("n/a", "n/b", "n/link"):
            entry = s.store.snapshot().stat(path)
            assert entry is not None
            status = os.lstat(entry.real_path)
            found.append((status.st_ino, status.st_mtime_ns, status.st_mode, status.st_nlink))
        return found

    before = look()
    squash(s)
    assert look() == before
    assert before[0][0] == before[1][0], "names that shared an inode share it"
    with s.mounted() as view:
        status = os.stat(f"{view}/n")
        assert (status.st_mtime_ns, status.st_mode & 0o7777) == (4_000_000_003, 0o2751)
        assert os.getxattr(f"{view}/n/b", "user.note") == b"kept"
        assert os.stat(view).st_mode & 0o7777 == 0o711


@on_a_stack(BASE)
def test_a_chmod_and_back_inside_the_block_is_no_change_of_the_directory(s: Stack) -> None:
    for mode in (0o700, os.stat(f"{s.base}/d").st_mode & 0o7777):
        session = s.session()
        os.chmod(session.at("d"), mode)
        session.publish()
    below = s.session(version=1)
    squash(s)
    os.chmod(below.at("d"), 0o750)
    below.publish()
    assert s.mode("d") == 0o750


@on_a_stack(BASE)
def test_the_base_of_a_session_is_a_boundary_and_the_session_goes_on(s: Stack) -> None:
    for n in range(3):
        publish(s, **{f"n{n}": "n\n"})
    session = s.session()  # on version 4
    for n in range(3, 6):
        publish(s, **{f"n{n}": "n\n"})
    done = squash(s)
    assert (ids(s), len(done.blocks)) == ("SLSB", 2)
    newer, older = done.blocks
    assert newer.reclaimed and not older.reclaimed, "the session is mounted on the older ones"
    assert set(older.replaced_layer_ids) <= set(s.layer_dirs()), "what a session is mounted on stays"
    assert not set(newer.replaced_layer_ids) & set(s.layer_dirs())
    assert get(session.at("n1")) == "n\n"
    put(session.at("mine"))
    session.publish()
    assert s.layer_dirs() == sorted(set(s.store.head.layer_ids) - {"B000001-base"}), (
        "they went with their last lease"
    )
    assert os.listdir(f"{s.root}/staging") == []
    assert {f"n{n}" for n in range(6)} | {"mine"} <= s.shows().keys()


@on_a_stack(BASE)
def test_with_a_session_on_every_layer_nothing_is_folded(s: Stack) -> None:
    for n in range(4):
        publish(s, **{f"n{n}": "n\n"})
        s.session()
    assert squash(s).blocks == ()


@on_a_stack(BASE)
def test_an_export_is_a_boundary_and_a_reader_is_none(s: Stack) -> None:
    publish(s, a="a\n")
    publish(s, b="b\n")
    with s.store.lease(2):
        assert s.store.squash().blocks == ()
    with s.store.reading() as snapshot:
        done: list[Squashed] = []
        squasher = threading.Thread(target=lambda: done.append(s.store.squash()))
        squasher.start()
        while s.store.head.version == 3:
            threading.Event().wait(0.001)
        assert snapshot.read_bytes("a") == b"a\n", "what somebody reads stays until he is done"
    squasher.join()
    assert done[0].blocks[0].reclaimed


@on_a_stack(BASE)
def test_conflicts_are_found_for_bases_below_at_and_above_a_block(s: Stack) -> None:
    below = s.session()  # version 1
    publish(s, top="a\n2\n3\n4\n5\n6\n7\n8\n", made="1\n")
    publish(s, made="2\n", d__f="changed\n")
    at = s.session()  # version 3
    publish(s, made="3\n")
    publish(s, e__x="changed\n")
    above = s.session()  # version 5
    publish(s, d__g="changed\n")
    publish(s, d__g="again\n")
    done = squash(s)
    assert len(done.blocks) == 1 and ids(s) == "SLLLLB"
    for session, path, free in ((below, "d/f", "d/g2"), (at, "e/x", "e/y"), (above, "d/g", "d/h")):
        put(session.at(path), "mine\n")
        put(session.at(free), "free\n")
        assert session.rejected() == {path: "content"}
        session.mount()
        os.unlink(session.at(path))
        put(session.at(path), get(f"{s.base}/{path}") if session is not above else "again\n")
    above.publish()
    assert s.store.squash().blocks, "the ended session keeps nothing apart"
    below.publish()
    at.publish()
    assert {"d/g2", "e/y", "d/h"} <= s.shows().keys()


@on_a_stack(BASE)
def test_a_merge_by_lines_across_a_squash_is_the_same(s: Stack) -> None:
    session = s.session()
    put(session.at("top"), "1\n2\n3\n4\n5\n6\n7\nours\n")
    publish(s, top="theirs\n2\n3\n4\n5\n6\n7\n8\n")
    publish(s, other="x\n")
    assert len(squash(s).blocks) == 1
    session.publish()
    assert s.shows()["top"] == "theirs\n2\n3\n4\n5\n6\n7\nours\n"


@on_a_stack(BASE)
def test_a_conflict_with_a_squashed_layer_names_its_owner_if_there_is_one(s: Stack) -> None:
    session, other = s.session(), s.session()
    publish(s, d__f="theirs\n")
    publish(s, d__g="theirs\n")
    s.store.squash()
    put(session.at("d/f"), "ours\n")
    (conflict,) = session.conflicts()
    assert conflict.theirs_layer is not None and conflict.theirs_layer.layer_id.startswith("S")
    assert conflict.theirs_layer.owner is None, "two wrote in that layer"
    members = s.store.layers.get(conflict.theirs_layer.layer_id).members
    assert [(m["version"], m["owner"]) for m in members] == [(3, "s3"), (2, "s2")]
    other.umount()


@on_a_stack(BASE)
def test_after_a_restart_conflicts_and_routes_are_as_before(s: Stack) -> None:
    publish(s, d__f="1\n")
    publish(s, d__f="2\n")
    squash(s)
    publish(s, other="x\n")
    s.reopen()
    layer = s.store.layers.get(s.store.head.layer_ids[1])
    assert layer.id.startswith("S") and (layer.version, layer.first_version) == (3, 2)
    session = s.session(version=3)
    put(session.at("d/f"), "mine\n")
    session.publish()
    assert s.shows()["d/f"] == "mine\n"
    old = s.session(version=1)
    put(old.at("d/f"), "old\n")
    assert old.rejected() == {"d/f": "content"}


@on_a_stack(BASE)
def test_publishes_during_a_squash_stay_layers_of_their_own(s: Stack) -> None:
    for n in range(4):
        publish(s, **{f"n{n}": "n\n"})
    late = s.session()
    put(late.at("late"), "late\n")
    late.umount()
    begun, go = threading.Event(), threading.Event()

    def step(name: str) -> None:
        if name == "squash.sync":
            begun.set()
            assert go.wait(60)

    late.upper.publish(owner="early", request_id="r")
    s.store.step = step
    done: list[Squashed] = []
    squasher = threading.Thread(target=lambda: done.append(s.store.squash()))
    squasher.start()
    assert begun.wait(60)
    with pytest.raises(SquashInFlight):
        s.store.squash()
    version = s.store.update_file("during", lambda _: b"x\n", owner="o", request_id="r").manifest.version
    go.set()
    squasher.join()
    s.store.step = fsync.no_step
    assert done[0].manifest.version == version + 1 and ids(s) == "LSB"
    assert {"late", "during"} <= s.shows().keys()


@on_a_stack(BASE)
def test_a_lease_taken_inside_a_block_meanwhile_leaves_that_block_out(s: Stack) -> None:
    publish(s, a="a\n")
    publish(s, b="b\n")
    publish(s, c="c\n")
    taken: list[Session] = []

    def step(name: str) -> None:
        if name == "squash.sync" and not taken:
            taken.append(s.session(version=3))

    s.store.step = step
    assert s.store.squash().blocks == () and s.store.head.version == 4
    s.store.step = fsync.no_step
    assert get(taken[0].at("b")) == "b\n" and os.listdir(f"{s.root}/staging") == []
    taken[0].umount()
    taken[0].upper.discard()
    assert len(squash(s).blocks) == 1


@on_a_stack(BASE)
def test_a_lease_on_the_newest_of_a_block_meanwhile_is_a_base_of_the_new_layer(s: Stack) -> None:
    publish(s, a="a\n")
    publish(s, b="b\n")
    taken: list[Session] = []

    def step(name: str) -> None:
        if name == "squash.sync" and not taken:
            taken.append(s.session())

    s.store.step = step
    (block,) = s.store.squash().blocks
    s.store.step = fsync.no_step
    assert not block.reclaimed
    publish(s, b="changed\n")
    publish(s, b="changed again\n")
    assert len(s.store.squash().blocks) == 1, "the squashed layer is the boundary of the session now"
    assert ids(s) == "SSB"
    put(taken[0].at("b"), "mine\n")
    assert taken[0].rejected() == {"b": "content"}


@on_a_stack(BASE)
def test_two_blocks_of_equal_content_are_two_layers(s: Stack) -> None:
    publish(s, a="0\n")
    publish(s, a="1\n")
    publish(s, a="2\n")
    keeper = s.session()
    publish(s, a="0\n")
    publish(s, a="1\n")
    done = squash(s)
    assert len({block.squashed_layer_id for block in done.blocks}) == 2
    assert s.shows()["a"] == "1\n"
    keeper.umount()


@on_a_stack(BASE)
def test_a_full_disk_leaves_the_head_and_a_retry_works(s: Stack) -> None:
    publish(s, a="a\n")
    publish(s, b="b\n")
    for where in (
        "squash.fold",
        "squash.write",
        "squash.sync",
        "commit.rename_layer",
        "commit.place_manifest",
        "commit.rename_manifest",
    ):

        def step(name: str, where: str = where) -> None:
            if name == where:
                raise OSError(28, os.strerror(28))

        s.store.step = step
        with pytest.raises(OSError, match=os.strerror(28)):
            s.store.squash()
        s.store.step = fsync.no_step
        assert s.store.head.version == 3 and ids(s) == "LLB"
        assert os.listdir(f"{s.root}/staging") == [] and len(s.layer_dirs()) == 2
    assert len(squash(s).blocks) == 1


@on_a_stack(BASE)
def test_metadata_of_a_squashed_layer_that_was_swapped_is_corrupt(s: Stack) -> None:
    publish(s, a="a\n")
    publish(s, b="b\n")
    (block,) = s.store.squash().blocks
    path = f"{s.root}/.layer-metadata/{block.squashed_layer_id}.json"
    body = records.read(path)
    body["replaced"] = body["replaced"][:1]
    records.write(path, body)
    s.store.close()
    with pytest.raises(StoreCorrupt):
        Store.open(s.root)


@on_a_stack({f"f{n}": "0\n" for n in range(4)}, namespaces=("trusted",))
def test_writers_readers_and_previews_beside_squashes_lose_nothing(s: Stack) -> None:
    """Four writers count up in a file each, readers look at all of them, somebody squashes all the time;
    drafts and previews go on too.
    """
    stop, begun, failed = threading.Event(), threading.Event(), list[BaseException]()
    keeper = s.session()
    put(keeper.at("kept"), "kept\n")
    rounds = 40

    def guarded(work: Callable[[], None]) -> threading.Thread:
        def run() -> None:
            try:
                work()
            except BaseException as error:
                failed.append(error)
                stop.set()

        thread = threading.Thread(target=run)
        thread.start()
        return thread

    def write(n: int) -> None:
        for count in range(1, rounds + 1):
            if count == rounds // 2:
                assert begun.wait(60), "nothing was folded beside the first half"
            s.store.update_file(f"f{n}", counts(count), owner=f"w{n}", request_id="r")

    def publish_uppers() -> None:
        for count in range(rounds // 2):
            upper = s.store.open_upper(f"u{count}", origin="test")
            put(f"{upper.upperdir}/u/{count}")
            assert upper.preview().would_publish
            upper.publish(owner="u", request_id="r")

    def read() -> None:
        last = [0, 0, 0, 0]
        while not stop.is_set():
            with s.store.reading() as snapshot:
                now = [int(snapshot.read_bytes(f"f{n}")) for n in range(4)]
                snapshot.list("")
            assert all(map(operator.le, last, now)), (last, now)
            last = now
            assert keeper.upper.preview().would_publish

    folded: list[str] = []

    def squash_all() -> None:
        while not stop.is_set():
            folded.extend(block.squashed_layer_id for block in s.store.squash().blocks)
            if folded:
                begun.set()

    others = [guarded(read), guarded(squash_all)]
    writers = [guarded(functools.partial(write, n)) for n in range(4)] + [guarded(publish_uppers)]
    for thread in writers:
        thread.join()
    stop.set()
    for thread in others:
        thread.join()
    assert not failed, failed
    assert folded
    keeper.publish()
    s.store.squash()
    s.store.gc()
    shows = s.shows()
    assert [shows[f"f{n}"] for n in range(4)] == [f"{rounds}\n"] * 4
    assert {f"u/{count}" for count in range(rounds // 2)} | {"kept"} <= shows.keys()
    assert s.layer_dirs() == sorted(s.store.head.layer_ids[:-1]) and os.listdir(f"{s.root}/staging") == []
    s.reopen()
    assert s.shows() == shows and s.store.recovered == ()
