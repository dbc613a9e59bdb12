"""Damage and bad luck: flipped bits of metadata, the leavings of a publish that could not be undone, links that run out, a closed store."""

from __future__ import annotations

import os

import pytest

from layerstack import documents
from layerstack.durable import no_step
from layerstack.errors import Invalid, StoreCorrupt
from layerstack.manifest import FIRST_VERSION, Manifest, reference
from layerstack.store import Store
from tests.layerstack.stack import Stack, get, on_a_stack, put

BASE: dict[str, str | bytes | None] = {"f": "base\n", "d/g": "g\n"}


def every_flip(path: str) -> list[bytes]:
    with open(path, "rb") as file:
        data = file.read()
    flips = [data[:at] + bytes([data[at] ^ 1 << bit]) + data[at + 1 :] for at in range(len(data)) for bit in range(8)]
    return [*flips, *(data[:length] for length in range(len(data)))]


@on_a_stack({**BASE}, forms=("trusted",))
def test_every_flipped_bit_and_every_torn_end_of_a_file_of_the_store_is_named(stack: Stack) -> None:
    a, b = stack.session(), stack.session()
    put(a.at("new/x"))
    os.unlink(a.at("f"))
    done = a.publish()
    put(b.at("y"))
    b.umount()
    draft = b.upper.to_draft(reason="é \udcff")
    assert draft is not None
    stack.store.open_upper("live", origin="é")
    stack.store.close()
    stem = f"{stack.root}/.layer-metadata/{done.layer_id}"
    names = ("manifest.json", "workspace.json", "manifests/1.json", "sessions/live/session.json", f"drafts/{draft.draft_id}/draft.json")
    for path in (f"{stem}.json", f"{stem}.index", f"{stem}.digest", *(f"{stack.root}/{name}" for name in names)):
        with open(path, "rb") as file:
            good = file.read()
        for broken in every_flip(path)[:: 1 if len(good) < 100 else 7]:
            with open(path, "wb") as file:
                file.write(broken)
            try:
                Store.open(stack.root)
            except StoreCorrupt as error:
                assert error.details["file"] == path, (path, broken, error.details)
            else:
                raise AssertionError(f"{path}: opened with {broken!r}")
        with open(path, "wb") as file:
            file.write(good)
    stack.store = Store.open(stack.root)


def test_a_document_or_manifest_in_another_spelling_of_the_same_values_is_damaged() -> None:
    data = documents.dump({"name": "é"})
    assert b"\\u00e9" in data and documents.parse(data, "d") == {"name": "é"}
    for other in (data.replace(b"\\u00e9", b"\\u00E9"), data[:-1], data + b"\n", b" " + data):
        with pytest.raises(StoreCorrupt):
            documents.parse(other, "d")
    manifest = Manifest(FIRST_VERSION, (reference("B000001-base"),)).dump()
    for other in (manifest + b" ", manifest[:-1], manifest.replace(b",", b", ")):
        with pytest.raises(StoreCorrupt):
            Manifest.load(other, source="m")


@on_a_stack({**BASE}, forms=("trusted",))
def test_a_layer_that_hides_what_is_below_has_another_digest_than_one_that_does_not(stack: Stack) -> None:
    """Else a lost mark would pass every check, and two publishers could get one layer id for two different layers."""
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


@on_a_stack({**BASE}, forms=("trusted",))
def test_the_only_copy_of_work_that_a_failed_publish_left_in_layers_survives_the_same_publish_by_another(stack: Stack) -> None:
    """The first publish fails at its manifest, and the rename back fails too; the second has the same content, so the same layer id."""
    a, b = stack.session(), stack.session()
    for session in (a, b):
        put(session.at("x"), "the work\n")
        os.utime(session.at("x"), (1, 1))
        session.umount()
    real = os.rename

    def rename(old: str, new: str) -> None:
        if new == a.upper.upperdir:
            raise OSError(5, "Input/output error", old)
        real(old, new)

    def fail(step: str) -> None:
        if step == "commit.rename_manifest":
            raise OSError(5, "Input/output error")

    stack.store.step = fail
    os.rename = rename  # type: ignore[assignment]
    try:
        with pytest.raises(OSError, match="Input/output"):
            a.upper.publish(owner="a", request_id="r")
    finally:
        os.rename = real
    stack.store.step = no_step
    assert not os.path.exists(a.upper.upperdir)
    b.upper.publish(owner="b", request_id="r")
    stack.reopen()
    (draft,) = stack.store.recovered
    assert draft.origin == "workspace_session:s0" and stack.shows()["x"] == "the work\n"
    assert get(stack.session(draft_id=draft.draft_id).at("x")) == "the work\n"


@on_a_stack({**BASE}, forms=("trusted",))
def test_a_write_that_failed_and_could_not_be_undone_can_be_done_again(stack: Stack) -> None:
    real = os.rename

    def rename(old: str, new: str) -> None:
        if old.startswith(f"{stack.root}/layers/"):
            raise OSError(5, "Input/output error", old)
        real(old, new)

    def fail(step: str) -> None:
        if step == "commit.rename_manifest":
            raise OSError(5, "Input/output error")

    stack.store.step = fail
    os.rename = rename  # type: ignore[assignment]
    try:
        with pytest.raises(OSError, match="Input/output"):
            stack.store.update_file("f", lambda old: b"new\n", owner="o", request_id="r")
    finally:
        os.rename = real
    stack.store.step = no_step
    assert len(stack.layer_dirs()) == 1
    done = stack.store.update_file("f", lambda old: b"new\n", owner="o", request_id="r")
    assert stack.layer_dirs() == [done.layer_id] and stack.shows()["f"] == "new\n"
    stack.reopen()
    assert stack.store.head == done.manifest


@on_a_stack({"d/big": b"\1" * 4096, "d/other": "o\n"}, forms=("trusted",))
def test_a_renamed_directory_whose_files_cannot_be_linked_is_copied_whole_or_not_at_all(stack: Stack) -> None:
    """A file has 65,000 names at most. A copy that was cut off must not be taken for the session's own file when sealing is done again."""
    stack.store.update_file("d/big", lambda old: b"\2" * 100_000, owner="o", request_id="r")
    a = stack.session()
    os.rename(a.at("d"), a.at("e"))
    a.umount()
    link, sendfile = os.link, os.sendfile

    def no_links(*args: object, **how: object) -> None:
        raise OSError(31, "Too many links")

    def cut_off(*args: object) -> int:
        raise OSError(28, "No space left on device")

    os.link = no_links
    os.sendfile = cut_off  # type: ignore[assignment]
    try:
        with pytest.raises(OSError, match="No space"):
            a.upper.to_draft(reason="r")
    finally:
        os.link, os.sendfile = link, sendfile
    a.publish()
    assert stack.shows()["e/big"] == "\2" * 100_000


@on_a_stack({**BASE}, forms=("trusted",))
def test_nothing_is_written_to_a_store_that_was_closed(stack: Stack) -> None:
    a, b = stack.session(), stack.session()
    put(a.at("x"))
    put(b.at("x"))
    a.umount()
    b.umount()
    stack.store.close()
    other = Store.open(stack.root)
    try:
        assert len(other.recovered) == 2
        before = sorted(os.walk(stack.root))
        calls = (
            lambda: stack.store.update_file("f", lambda old: b"late\n", owner="o", request_id="r"),
            lambda: stack.store.open_upper("late", origin="t"),
            lambda: stack.store.discard_draft(other.recovered[0].draft_id),
            stack.store.gc,
            lambda: a.upper.publish(owner="o", request_id="r"),
            lambda: b.upper.to_draft(reason="r"),
        )
        for call in calls:
            with pytest.raises(Invalid) as caught:
                call()
            assert caught.value.reason == "store_closed"
        assert sorted(os.walk(stack.root)) == before and other.head.version == 1
    finally:
        other.close()
    stack.store = Store.open(stack.root)
