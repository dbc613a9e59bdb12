"""Damaged files of a store: flipped bits, torn ends, and what may be deleted meanwhile."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import NamedTuple

import pytest

from layerstack.errors import Invalid, NotFound, StoreCorrupt
from layerstack.fsck.check import check
from layerstack.history import blame_file
from layerstack.kernel import records
from layerstack.kernel.fsync import no_step
from layerstack.layers import index_file
from layerstack.layers import version_files as versions
from layerstack.model.manifest import FIRST_VERSION, Manifest, reference
from layerstack.store import Store
from tests.layerstack.store_fixture import Stack, get, on_a_stack, put

BASE: dict[str, str | bytes | None] = {"f": "base\n", "d/g": "g\n"}


def every_flip(data: bytes) -> list[bytes]:
    """Each bit flipped alone, and the file cut off at each length."""
    flips = [
        data[:at] + bytes([data[at] ^ 1 << bit]) + data[at + 1 :]
        for at in range(len(data))
        for bit in range(8)
    ]
    return [*flips, *(data[:length] for length in range(len(data)))]


def unreadable(path: str) -> list[Callable[[], None]]:
    """Ways to put something in the place of the file that cannot be read: EIO, as of a bad block, and a
    folder.
    """
    return [lambda: os.symlink("/proc/self/mem", path), lambda: os.mkdir(path)]


def take_away(path: str) -> None:
    if os.path.isdir(path):
        os.rmdir(path)
    else:
        os.unlink(path)


def some_flips(data: bytes) -> list[bytes]:
    """A few dozen of them, from all over the file."""
    flips = every_flip(data)
    return [*flips[:: max(1, len(flips) // 25)], data[:-1], b""]


class Files(NamedTuple):
    """Paths of one file of each kind, relative to the store."""

    needed: list[str]
    """By the head: its reader, `open` and `check` say it."""
    apart: list[str]
    """By one session, draft, pin or version: they are set apart."""
    blame: str


def one_of_each(stack: Stack) -> Files:
    """A store that is closed, in which an open changes nothing; the sessions's file comes last, its work is
    in the way of no other.
    """
    publish = stack.store.update_file
    for n in range(3):
        publish(f"s{n}", lambda old: b"s\n", owner=f"o{n}", request_id="r")
    (block,) = stack.store.squash().blocks
    a, b = stack.session(), stack.session()
    put(a.at("new/x\ty"))
    os.unlink(a.at("f"))
    done = a.publish()
    put(b.at("y"))
    draft = b.keep(reason="é \udcff")
    stack.store.pin_version(stack.store.head.version, agent="é")
    stack.store.close()
    stems = [f".layer-metadata/{done.layer_id}", f".layer-metadata/{block.squashed_layer_id}"]
    needed = [
        "manifest.json",
        "workspace.json",
        f"{stems[0]}.json",
        f"{stems[0]}.index",
        f"{stems[0]}.digest",
        f"{stems[1]}.json",
        f"{stems[1]}.index",
    ]
    apart = [
        "manifests/1.json",
        f"drafts/{draft.draft_id}/draft.json",
        f"pins/{stack.store.head.version}.json",
    ]
    return Files(needed, apart, f"{stems[1]}.blame")


def parts(path: str) -> tuple[bytes, str]:
    """The bytes of a file, which is then one of its own."""
    with open(path, "rb") as file:
        data = file.read()
    os.unlink(path)
    with open(path, "wb") as file:
        file.write(data)
    return data, path


def write(path: str, data: bytes) -> None:
    with open(path, "wb") as file:
        file.write(data)


def reader(name: str) -> Callable[[bytes, str], object]:
    """What reads such a file, as a function of its bytes."""
    if name.endswith(".index"):
        return lambda data, source: index_file.load(data, source=source)
    if name.startswith("manifests/"):
        return lambda data, source: versions.load(data, source=source)
    if name.startswith("manifest"):
        return lambda data, source: Manifest.load(data, source=source)
    return records.parse


@on_a_stack({**BASE}, namespaces=("trusted",))
def test_every_flipped_bit_and_every_torn_end_is_seen_by_the_reader_of_the_file(stack: Stack) -> None:
    files = one_of_each(stack)
    for name in (*files.needed, *files.apart, files.blame):
        if name.endswith(".digest"):
            continue  # it is compared with the metadata
        data, path = parts(f"{stack.root}/{name}")
        read = reader(name)
        read(data, path)
        for broken in every_flip(data):
            with pytest.raises(StoreCorrupt) as caught:
                read(broken, path)
            assert caught.value.details["file"] == path
    stack.store = Store.open(stack.root)


@on_a_stack({**BASE}, namespaces=("trusted",))
def test_damage_of_a_file_that_the_head_needs_stops_the_open_and_is_named_by_a_check(stack: Stack) -> None:
    files = one_of_each(stack)
    for name in files.needed:
        data, path = parts(f"{stack.root}/{name}")
        for broken in some_flips(data):
            write(path, broken)
            with pytest.raises(StoreCorrupt) as caught:
                Store.open(stack.root)
            assert caught.value.details["file"] == path, (name, broken)
            assert name in {damage.file for damage in check(stack.root)}, (name, broken)
        write(path, data)
        assert list(check(stack.root)) == []
    data, path = parts(f"{stack.root}/{files.blame}")
    for broken in some_flips(data):  # read when somebody asks for it
        write(path, broken)
        assert files.blame in {damage.file for damage in check(stack.root)}
        with pytest.raises(StoreCorrupt) as caught:
            blame_file.load(path)
        assert caught.value.details["file"] == path
    write(path, data)
    stack.store = Store.open(stack.root)


@on_a_stack({**BASE}, namespaces=("trusted",))
def test_damage_of_a_file_that_only_one_needs_keeps_nobody_else_out_and_is_named(stack: Stack) -> None:
    files = one_of_each(stack)
    store = Store.open(stack.root)
    put(f"{store.open_upper('live', origin='é').upperdir}/work")
    store.close()
    for name in ("sessions/live/session.json", *files.apart):
        data, path = parts(f"{stack.root}/{name}")
        for broken in some_flips(data):
            if not broken and name.startswith("manifests/"):
                continue  # that is what a power cut leaves: see test_versions
            write(path, broken)
            store = Store.open(stack.root)
            assert list(store.damaged) == [path], (name, broken, store.damaged)
            assert store.snapshot().read_bytes("s1") == b"s\n"
            with store.checking() as looking:
                assert {damage.file for damage in looking} == {name}
            store.close()
            assert {damage.file for damage in check(stack.root)} == {name}
            with open(path, "rb") as file:
                assert file.read() == broken, "it was repaired"
        write(path, data)
    stack.store = Store.open(stack.root)
    assert stack.store.damaged == {} and len(stack.store.recovered) + len(stack.store.drafts()) >= 2


@on_a_stack({**BASE}, namespaces=("trusted",))
def test_a_file_that_the_disk_cannot_read_is_damaged_as_one_with_other_bytes_is(stack: Stack) -> None:
    files = one_of_each(stack)
    store = Store.open(stack.root)
    put(f"{store.open_upper('live', origin='o').upperdir}/work")
    store.close()
    for name in (*files.needed, "sessions/live/session.json", *files.apart):
        data, path = parts(f"{stack.root}/{name}")
        for replace in unreadable(path):
            os.unlink(path)
            replace()
            damages = {damage.file: damage for damage in check(stack.root)}
            assert damages[name].found_by == "reading it" and set(damages) <= {
                name,
                f"manifests/{FIRST_VERSION}.json",
            }, (name, damages)
            if name in files.needed:
                with pytest.raises(StoreCorrupt) as caught:
                    Store.open(stack.root)
                assert caught.value.details["file"] == path
            else:
                store = Store.open(stack.root)
                assert list(store.damaged) == [path] and store.snapshot().read_bytes("s1") == b"s\n"
                store.close()
            take_away(path)
            write(path, data)
    put(f"{stack.root}/sessions/live/session.json", "{}")
    put(f"{stack.root}/sessions/stray", "no folder")
    apart = ["sessions/live/session.json", "sessions/stray/session.json"]
    assert sorted(damage.file for damage in check(stack.root)) == apart
    stack.store = Store.open(stack.root)
    assert sorted(stack.store.damaged) == [f"{stack.root}/{name}" for name in apart]


@on_a_stack({**BASE}, namespaces=("trusted",))
def test_what_damaged_work_may_stand_on_stays_until_it_is_settled(stack: Stack) -> None:
    """Nobody can say on which layers it stands: nothing is folded, no layer goes, and with the document back
    all is as before.
    """
    for n in range(3):
        stack.store.update_file(f"s{n}", lambda old: b"s\n", owner="o", request_id="r")
    a, dead = stack.session(), stack.session()
    put(a.at("draft"), "kept\n")
    draft = a.keep()
    put(dead.at("work"), "of the dead\n")
    dead.umount()
    for n in range(3):
        stack.store.update_file(f"t{n}", lambda old: b"t\n", owner="o", request_id="r")
    files = [f"{stack.root}/drafts/{draft.draft_id}/draft.json", f"{dead.upper.directory}/session.json"]
    good: list[bytes] = []
    for path in files:
        with open(path, "rb") as file:
            good.append(file.read())
        write(path, good[-1][:-9])
    os.mkdir(
        f"{stack.root}/layers/L000099-00000000"
    )  # as of a publish that never finished: it may be the work of the damaged session
    layers = stack.layer_dirs()
    for _ in range(2):
        stack.reopen()
        assert (
            sorted(stack.store.damaged) == sorted(files)
            and stack.store.recovered == ()
            and stack.store.drafts() == []
        )
        assert stack.store.squash().blocks == ()
        stack.store.gc()
        stack.store.update_file("more", lambda old: (old or b"") + b"m\n", owner="o", request_id="r")
        assert set(layers) <= set(stack.layer_dirs()) and os.listdir(stack.store.staging.path) == []
        with pytest.raises(StoreCorrupt) as caught:
            stack.store.draft(draft.draft_id)
        assert caught.value.details["file"] == files[0]
        with pytest.raises(Invalid):
            stack.store.open_upper(dead.upper.session_id, origin="t")
    for path, data in zip(files, good, strict=True):
        write(path, data)
    stack.reopen()
    (recovered,) = stack.store.recovered
    assert stack.store.damaged == {} and {one.draft_id for one in stack.store.drafts()} == {
        draft.draft_id,
        recovered.draft_id,
    }
    assert get(stack.session(draft_id=recovered.draft_id).at("work")) == "of the dead\n"
    assert get(stack.session(draft_id=draft.draft_id).at("draft")) == "kept\n"
    assert stack.store.squash().blocks


@on_a_stack({**BASE}, namespaces=("trusted",))
def test_a_session_that_is_set_apart_can_be_given_up_and_no_other_can(stack: Stack) -> None:
    for n in range(3):
        stack.store.update_file(f"s{n}", lambda old: b"s\n", owner="o", request_id="r")
    dead = stack.session()
    put(dead.at("work"), "of the dead\n")
    dead.umount()
    with open(f"{dead.upper.directory}/session.json", "r+b") as file:
        file.truncate(9)
    os.mkdir(f"{stack.root}/layers/L000099-00000000")
    put(f"{stack.root}/sessions/stray", "no folder")
    stack.reopen()
    live = stack.session()
    for other in (live.upper.session_id, "nobody", f"../sessions/{dead.upper.session_id}"):
        with pytest.raises(NotFound) as caught:
            stack.store.give_up_session(other)
        assert caught.value.reason == "session_not_found"
    stack.store.give_up_session(dead.upper.session_id)
    assert list(stack.store.damaged) == [f"{stack.root}/sessions/stray/session.json"]
    assert stack.store.squash().blocks == (), "the other one is still there"
    stack.store.give_up_session("stray")
    assert stack.store.damaged == {} and os.listdir(f"{stack.root}/sessions") == [live.upper.session_id]
    assert len(stack.store.squash().blocks) == 1
    stack.store.gc()
    assert (
        "L000099-00000000" not in os.listdir(f"{stack.root}/layers")
        and os.listdir(stack.store.staging.path) == []
    )


@on_a_stack({**BASE}, namespaces=("trusted",))
def test_a_squash_that_was_cut_off_waits_for_what_is_damaged(stack: Stack) -> None:
    """Its end replaces and deletes files by what drafts and versions say: not while one of them cannot be
    read.
    """
    a = stack.session()
    put(a.at("draft"), "kept\n")
    a.umount()
    for n in range(3):
        stack.store.update_file(f"s{n}", lambda old: b"s\n", owner="o", request_id="r")
    draft = a.keep()

    def killed(step: str) -> None:
        if step == "squash.close_versions":
            raise KeyboardInterrupt

    stack.store.step = killed
    with pytest.raises(KeyboardInterrupt):
        stack.store.squash()
    stack.store.step = no_step
    path = f"{stack.root}/drafts/{draft.draft_id}/draft.json"
    good = get(path)
    put(path, good[:-5])
    versions, layers = sorted(os.listdir(f"{stack.root}/manifests")), stack.layer_dirs()
    stack.reopen()
    assert list(stack.store.damaged) == [path] and stack.layer_dirs() == layers
    assert sorted(os.listdir(f"{stack.root}/manifests")) == versions
    stack.store.gc()
    assert stack.store.squash().blocks == () and stack.layer_dirs() == layers
    with pytest.raises(NotFound):
        stack.store.snapshot(3)
    put(path, good)
    stack.reopen()
    assert (
        stack.store.damaged == {}
        and len(stack.layer_dirs()) == 1
        and not os.path.exists(f"{stack.root}/manifests/3.json")
    )
    assert get(stack.session(draft_id=draft.draft_id).at("draft")) == "kept\n"


@on_a_stack({**BASE}, namespaces=("trusted",))
def test_a_damaged_draft_or_pin_is_settled_by_whoever_says_so(stack: Stack) -> None:
    a = stack.session()
    put(a.at("draft"), "kept\n")
    draft = a.keep()
    for version in (1, 2):
        stack.store.update_file("s", lambda old: (old or b"") + b"s", owner="o", request_id="r")
        stack.store.pin_version(version)
    for name in (f"drafts/{draft.draft_id}/draft.json", "pins/1.json", "pins/2.json"):
        put(f"{stack.root}/{name}", "{}")
    stack.reopen()
    assert len(stack.store.damaged) == 3 and stack.store.pinned() == {}
    assert stack.store.discard_draft(draft.draft_id) == 5 and os.listdir(f"{stack.root}/drafts") == []
    assert stack.store.unpin_version(1) and not stack.store.unpin_version(1)
    stack.store.pin_version(2)
    assert stack.store.damaged == {}
    stack.reopen()
    assert stack.store.damaged == {} and list(stack.store.pinned()) == [2]


@on_a_stack({**BASE}, namespaces=("trusted",))
def test_a_session_that_stands_on_a_damaged_draft_waits_for_it(stack: Stack) -> None:
    a = stack.session()
    put(a.at("draft"), "kept\n")
    draft = a.keep()
    b = stack.session(draft_id=draft.draft_id)
    put(b.at("more"), "on top\n")
    b.umount()
    path = f"{stack.root}/drafts/{draft.draft_id}/draft.json"
    good = get(path)
    put(path, good[:50])
    stack.reopen()
    assert [name for name, _ in stack.store.unrecovered] == [b.upper.session_id] and list(
        stack.store.damaged
    ) == [path]
    put(path, good)
    stack.reopen()
    (recovered,) = stack.store.recovered
    assert get(stack.session(draft_id=recovered.draft_id).at("more")) == "on top\n"


@on_a_stack({**BASE}, namespaces=("trusted",))
def test_an_unnamed_layer_whose_metadata_is_damaged_is_kept(stack: Stack) -> None:
    """A publish that was cut off renamed it in: it may be the only copy of the session's work."""
    a = stack.session()
    put(a.at("x"), "the work\n")
    a.umount()

    def killed(step: str) -> None:
        if step == "commit.rename_manifest":
            raise KeyboardInterrupt

    real = os.rename

    def rename(old: str, new: str) -> None:
        if new == a.upper.upperdir:
            raise OSError(5, "Input/output error", old)
        real(old, new)

    stack.store.step = killed
    os.rename = rename  # type: ignore[assignment]
    try:
        with pytest.raises(KeyboardInterrupt):
            a.upper.publish(owner="a", request_id="r")
    finally:
        os.rename = real
    stack.store.step = no_step
    (layer,) = stack.layer_dirs()
    path = f"{stack.root}/.layer-metadata/{layer}.json"
    good = get(path)
    put(path, good[:-20])
    stack.reopen()
    assert stack.layer_dirs() == [layer] and list(stack.store.damaged) == [path]
    stack.store.gc()
    assert stack.layer_dirs() == [layer]


def test_a_document_or_manifest_in_another_spelling_of_the_same_values_is_damaged() -> None:
    data = records.dump({"name": "é"})
    assert b"\\u00e9" in data and records.parse(data, "d") == {"name": "é"}
    for other in (data.replace(b"\\u00e9", b"\\u00E9"), data[:-1], data + b"\n", b" " + data):
        with pytest.raises(StoreCorrupt):
            records.parse(other, "d")
    manifest = Manifest(FIRST_VERSION, (reference("B000001-base"),)).dump()
    for other in (manifest + b" ", manifest[:-1], manifest.replace(b",", b", ")):
        with pytest.raises(StoreCorrupt):
            Manifest.load(other, source="m")


@on_a_stack({**BASE}, namespaces=("trusted",))
def test_a_layer_that_hides_what_is_below_has_another_digest_than_one_that_does_not(stack: Stack) -> None:
    """Else a lost mark would pass every check, and two publishers could get one layer id for two different
    layers.
    """
    digests: list[str] = []
    first = stack.session()
    for n in range(40):  # more than a directory that is made again keeps, so that it stays opaque
        put(first.at(f"many/{n}"))
    first.publish()
    for remove in (False, True):
        a = stack.session()
        if remove:
            status = os.stat(a.at("many"))
            for n in range(40):
                os.unlink(a.at(f"many/{n}"))
            os.rmdir(a.at("many"))
            os.mkdir(a.at("many"), status.st_mode & 0o7777)
        put(a.at("many/new"), "new\n")
        a.umount()
        with a.upper._work() as work:  # pyright: ignore[reportPrivateUsage]
            assert any(row.record.opaque for row in work.indexed.rows) == remove
            digests.append(work.indexed.digest)
        a.upper.discard()
    assert digests[0] != digests[1]
