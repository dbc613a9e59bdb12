"""`layerstack.check` names everything that is not as it was written, and nothing else, and changes
nothing.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import stat
from collections.abc import Callable

import pytest

from layerstack.errors import StoreBusy, StoreCorrupt
from layerstack.fsck import base_hash, trees
from layerstack.fsck import check as fsck
from layerstack.fsck.check import Damage, check
from layerstack.kernel import fsync, records
from layerstack.layers import version_files
from layerstack.layers.version_files import VersionRecord
from layerstack.model.manifest import BASE_ID, Manifest, reference
from layerstack.store import Store
from tests.layerstack.store_fixture import Stack, get, on_a_stack, put

BASE: dict[str, str | bytes | None] = {
    "f": "base\n",
    "d/g": "g\n",
    "d/h": "h\n",
    "e/one": "1\n",
    "e/two": "2\n",
}


def rich(stack: Stack) -> str:
    """A store with something of everything: layers with all kinds of entries, a squashed one, a pin, a draft,
    a dead session. -> the draft.
    """
    a = stack.session()
    put(a.at("new/x"), "x\n")
    put(a.at("new-1"), "sorts between new and new/x\n")
    put(a.at("a b\tc\n\\"), "odd name\n")
    put(a.at(os.fsdecode(b"\xff")), "no text\n")
    os.symlink("nowhere", a.at("link"))
    os.unlink(a.at("f"))
    os.setxattr(a.at("new/x"), "user.mine", b"1")
    os.chmod(a.at("new/x"), 0o4711)
    a.publish()
    b = stack.session()
    for n in range(30):
        put(b.at(f"many/{n}"))
    b.publish()
    c = stack.session()
    shutil.rmtree(c.at("many"))
    os.mkdir(c.at("many"))
    put(c.at("many/only"))
    os.setxattr(c.at("many"), stack.xattr_namespace.opaque, b"y")  # the session's own mark of that name
    c.publish()
    stack.store.squash()
    stack.store.pin_version(stack.store.head.version)
    d, e = stack.session(), stack.session()
    put(d.at("d/g"), "later\n")
    d.publish()
    put(e.at("draft/y"), "kept\n")
    e.umount()
    draft = e.upper.to_draft(reason="r")
    assert draft is not None
    put(stack.session().at("live"), "work\n")
    return draft.draft_id


def found(root: str, **how: bool) -> dict[str, str]:
    return {damage.file: damage.what for damage in check(root, **how)}


def closed(stack: Stack) -> None:
    for session in stack.sessions:
        session.umount()
    stack.store.close()


def snapshot_of(root: str) -> list[tuple[str, int, int, int]]:
    seen: list[tuple[str, int, int, int]] = []
    for directory, folders, files in os.walk(root):
        for name in (*folders, *files):
            status = os.lstat(f"{directory}/{name}")
            seen.append((f"{directory}/{name}", status.st_ino, status.st_mtime_ns, status.st_ctime_ns))
    return sorted(seen)


@on_a_stack({**BASE})
def test_a_whole_store_is_clean_open_and_closed_and_is_left_as_it_is(stack: Stack) -> None:
    rich(stack)
    with stack.store.checking() as looking:
        assert list(looking) == []
        assert (
            looking.counts.layers == len(os.listdir(f"{stack.root}/layers")) and looking.counts.entries > 10
        )
        assert [note.kind for note in looking.notes] == ["not_checked"], looking.notes
    closed(stack)
    before = snapshot_of(stack.root)
    with fsck.offline(stack.root) as looking:
        assert list(looking) == []
        assert {(note.kind, note.file) for note in looking.notes} == {
            ("not_checked", "base/B000001-base"),
            ("left_over", f"sessions/{stack.sessions[-1].upper.session_id}"),
        }
    assert snapshot_of(stack.root) == before
    stack.store = Store.open(stack.root)


def _numbered(n: int) -> Callable[[bytes | None], bytes]:
    return lambda old: b"%d\n" % n


def layer_with(root: str, path: str) -> str:
    """The newest layer that has an entry at `path`."""
    return max(
        name for name in os.listdir(f"{root}/layers") if os.path.lexists(f"{root}/layers/{name}/{path}")
    )


@on_a_stack({**BASE})
def test_whatever_is_changed_in_a_layer_is_named(stack: Stack) -> None:
    """Each change alone: content of equal length, a torn end, mode, owner's xattr, the opaque mark, an entry
    more, one less, another kind.
    """
    rich(stack)
    closed(stack)
    mine, mark = f"layers/{layer_with(stack.root, 'new/x')}", stack.xattr_namespace.opaque
    aside = f"{stack.folder}/aside"
    x = f"{stack.root}/{mine}/new/x"

    def content() -> None:
        put(x, "y\n")

    def torn() -> None:
        os.truncate(x, 0)

    def mode() -> None:
        os.chmod(x, 0o4710)

    def xattr() -> None:
        os.setxattr(x, "user.mine", b"2")

    def opaque() -> None:
        os.setxattr(f"{stack.root}/{mine}/new", mark, b"y")

    def odd_mark() -> None:
        os.setxattr(f"{stack.root}/{mine}/new", mark, b"x")

    def more() -> None:
        put(f"{stack.root}/{mine}/new/z")

    def less() -> None:
        os.unlink(f"{stack.root}/{mine}/new-1")

    def kind() -> None:
        os.unlink(f"{stack.root}/{mine}/link")
        put(f"{stack.root}/{mine}/link")

    def target() -> None:
        os.unlink(f"{stack.root}/{mine}/link")
        os.symlink("nowherE", f"{stack.root}/{mine}/link")

    def whiteout() -> None:
        os.unlink(f"{stack.root}/{mine}/f")

    def fifo() -> None:
        os.mkfifo(f"{stack.root}/{mine}/pipe")

    def redirect() -> None:
        os.setxattr(f"{stack.root}/{mine}/new", stack.xattr_namespace.redirect, b"d")

    def xattr_whiteout() -> None:
        put(f"{stack.root}/{mine}/new/w", b"")
        os.setxattr(f"{stack.root}/{mine}/new/w", stack.xattr_namespace.whiteout, b"y")

    def folder_mode() -> None:
        os.chmod(f"{stack.root}/{mine}/new", 0o700)

    named = {
        content: "new/x",
        torn: "new/x",
        mode: "new/x",
        xattr: "",
        opaque: "new",
        odd_mark: "new",
        more: "new/z",
        less: "new-1",
        kind: "link",
        target: "link",
        whiteout: "f",
        fifo: "pipe",
        redirect: "new",
        xattr_whiteout: "new/w",
        folder_mode: "new",
    }
    for change, path in named.items():
        shutil.copytree(f"{stack.root}/{mine}", aside, symlinks=True, ignore=shutil.ignore_patterns("f"))
        os.mknod(f"{aside}/f", stat.S_IFCHR, 0)
        assert found(stack.root) == {}
        change()
        reported = found(stack.root)
        file = f"{mine}/{path}" if path else mine
        assert file in reported and all(name == mine or name.startswith(f"{mine}/") for name in reported), (
            change.__name__,
            reported,
        )
        if change not in (redirect, odd_mark):
            assert "digest is" in reported[mine], (change.__name__, reported)
        fsync.remove_tree(f"{stack.root}/{mine}")
        os.rename(aside, f"{stack.root}/{mine}")
    stack.store = Store.open(stack.root)


@on_a_stack({**BASE}, namespaces=("trusted",))
def test_files_that_are_whole_but_another_layers_are_named_by_open_and_by_check(stack: Stack) -> None:
    a, b = stack.session(), stack.session()
    os.chmod(a.at("d"), 0o711)
    a.publish()
    os.chmod(b.at("d"), 0o711)
    put(b.at("d/new"))
    b.publish()
    closed(stack)
    metadata = f"{stack.root}/.layer-metadata"
    layers = sorted(os.listdir(f"{stack.root}/layers"))
    published = [name for name in layers if name.startswith("L")]
    for suffix in (".index", ".digest", ".json"):
        whole = {name: get(f"{metadata}/{name}{suffix}") for name in published[:2]}
        x, y = whole
        put(f"{metadata}/{x}{suffix}", whole[y])
        assert any(name.startswith(f".layer-metadata/{x}.") for name in found(stack.root)), suffix
        with pytest.raises(StoreCorrupt) as caught:
            Store.open(stack.root)
        assert f"/.layer-metadata/{x}." in caught.value.details["file"], suffix
        put(f"{metadata}/{x}{suffix}", whole[x])
    index = f"{metadata}/{published[0]}.index"
    good = get(index)
    lines = good.partition("\n")[2].replace(
        "\tdq\t", "\td\t"
    )  # no look at the tree would show it: what is a mere container lies in the base
    assert lines not in good
    put(index, f"eos-index 1 {lines.count(chr(10))} {hashlib.sha256(lines.encode()).hexdigest()}\n{lines}")
    assert list(found(stack.root)) == [index.removeprefix(f"{stack.root}/")]
    with pytest.raises(StoreCorrupt):
        Store.open(stack.root)
    put(index, good)
    assert found(stack.root) == {}
    stack.store = Store.open(stack.root)


@on_a_stack({**BASE}, namespaces=("trusted",))
def test_each_missing_file_is_named(stack: Stack) -> None:
    draft_id = rich(stack)
    closed(stack)
    session = stack.sessions[-1].upper.session_id
    head = stack.store.head
    folded = next(layer_id for layer_id in head.layer_ids if layer_id.startswith("S"))
    published = head.layer_ids[0]
    for name in (
        "manifest.json",
        "workspace.json",
        f"manifests/{head.version}.json",
        f"layers/{published}",
        f"layers/{folded}",
        f".layer-metadata/{published}.json",
        f".layer-metadata/{published}.index",
        f".layer-metadata/{published}.digest",
        f".layer-metadata/{folded}.json",
        f".layer-metadata/{folded}.blame",
        f"drafts/{draft_id}/draft.json",
        f"sessions/{session}/session.json",
        "base/B000001-base",
    ):
        os.rename(f"{stack.root}/{name}", f"{stack.folder}/away")
        if name == "base/B000001-base":
            put(f"{stack.root}/base/other")
        assert name in found(stack.root), name
        os.rename(f"{stack.folder}/away", f"{stack.root}/{name}")
    os.unlink(f"{stack.root}/base/other")
    assert found(stack.root) == {}
    stack.store = Store.open(stack.root)


@on_a_stack({**BASE}, namespaces=("trusted",))
def test_the_work_of_a_draft_is_compared_with_the_digest_of_the_time_when_it_was_kept(stack: Stack) -> None:
    draft_id = rich(stack)
    closed(stack)
    path = f"{stack.root}/drafts/{draft_id}/layer/draft/y"
    put(path, "KEPT\n")
    assert list(found(stack.root)) == [f"drafts/{draft_id}/layer"]
    put(path, "kept\n")
    file = f"{stack.root}/drafts/{draft_id}/draft.json"
    body = records.read(file)
    del body["digest"]  # as drafts of before it was written down
    records.write(file, body)
    assert found(stack.root) == {}
    put(path, "torn")
    assert list(found(stack.root)) == [f"drafts/{draft_id}/layer"]
    put(path, "kept\n")
    stack.store = Store.open(stack.root)
    assert stack.store.drafts()[0].draft_id == draft_id


@on_a_stack({**BASE}, namespaces=("trusted",))
def test_documents_that_are_whole_but_in_anothers_place_are_named(stack: Stack) -> None:
    rich(stack)
    stack.store.pin_version(1)
    stack.store.open_upper("other", origin="t")
    closed(stack)
    live = stack.sessions[-1].upper.session_id
    head = stack.store.head.version
    for name, other in (
        (f"sessions/{live}/session.json", "sessions/other/session.json"),
        ("pins/1.json", f"pins/{max(stack.store.pinned())}.json"),
        ("manifests/1.json", f"manifests/{head}.json"),
        ("manifest.json", "manifests/1.json"),
    ):
        good = get(f"{stack.root}/{name}")
        put(f"{stack.root}/{name}", get(f"{stack.root}/{other}"))
        reported = found(stack.root)
        assert reported and (name in reported or name == "manifest.json"), (name, reported)
        put(f"{stack.root}/{name}", good)
    assert found(stack.root) == {}
    stack.store = Store.open(stack.root)


@on_a_stack({**BASE}, namespaces=("trusted",))
def test_a_version_or_a_draft_that_names_layers_of_another_tree_is_named_and_one_whose_layers_were_folded_since_is_not(  # noqa: E501
    stack: Stack,
) -> None:
    draft_id = rich(stack)
    for n in range(3):
        stack.store.update_file(f"s{n}", lambda old: b"s\n", owner="o", request_id="r")
    last = stack.store.head.version

    def killed(step: str) -> None:
        if step == "squash.close_versions":
            raise KeyboardInterrupt

    stack.store.step = killed
    with contextlib.suppress(KeyboardInterrupt):
        stack.store.squash()
    stack.store.step = fsync.no_step
    assert stack.store.head.version == last + 1
    closed(stack)
    assert found(stack.root) == {}  # versions still name the layers that were folded
    (newest,) = [name for name in stack.store.head.layer_ids if name.startswith(f"S{last + 1:06}")]
    for name in (f"manifests/{last}.json", f"drafts/{draft_id}/draft.json"):
        good = get(f"{stack.root}/{name}")
        if name.startswith("manifests"):
            wrong = version_files.dump(last, BASE_ID)
            put(f"{stack.root}/{name}", Manifest(last, (reference(newest), reference(BASE_ID))).dump())
            assert found(stack.root)[name].startswith("names other layers than version"), (
                "a whole manifest, as of before"
            )
        else:
            wrong = records.dump({**records.read(f"{stack.root}/{name}"), "layer_ids": [newest, BASE_ID]})
            put(
                f"{stack.root}/{name}",
                records.dump({**records.read(f"{stack.root}/{name}"), "base_version": 99}),
            )
            assert found(stack.root) == {name: f"is based on version 99, the head is {last + 1}"}
        put(f"{stack.root}/{name}", wrong)
        reported = found(stack.root)
        assert list(reported) == [name] and reported[name].startswith("names other layers than version"), (
            reported
        )
        put(f"{stack.root}/{name}", good)
    stack.store = Store.open(stack.root)
    with stack.store.checking() as looking:
        assert list(looking) == []


@on_a_stack({**BASE}, namespaces=("trusted",))
def test_documents_whose_checksum_is_right_and_whose_values_are_nobodys_are_named(stack: Stack) -> None:
    draft_id = rich(stack)
    closed(stack)
    live, layer = stack.sessions[-1].upper.session_id, stack.store.head.layer_ids[0]
    folded = next(layer_id for layer_id in stack.store.head.layer_ids if layer_id.startswith("S"))
    for name, key in (
        (f"drafts/{draft_id}/draft.json", "layer_ids"),
        (f"sessions/{live}/session.json", "base_version"),
        (f".layer-metadata/{layer}.json", "digest"),
        (f".layer-metadata/{folded}.json", "first_version"),
        (f".layer-metadata/{folded}.json", "replaced"),
        ("workspace.json", "form"),
        ("workspace.json", "base_root_hash"),
        (f"pins/{stack.store.pinned().popitem()[0]}.json", "version"),
    ):
        good = get(f"{stack.root}/{name}")
        for value in (None, {"a": [1]}, "text", 7.5):
            records.write(f"{stack.root}/{name}", {**records.read(f"{stack.root}/{name}"), key: value})
            assert found(stack.root, base=True), (name, key, value)
        put(f"{stack.root}/{name}", good)
    stack.store = Store.open(stack.root)


@on_a_stack({**BASE}, namespaces=("trusted",))
def test_what_a_crash_left_is_no_damage_and_is_listed(stack: Stack) -> None:
    rich(stack)
    closed(stack)
    put(f"{stack.root}/staging/scrap-1/x")
    put(f"{stack.root}/.manifest.json.1.2.tmp")
    put(f"{stack.root}/manifests/99.json")
    put(f"{stack.root}/.layer-metadata/L000099-00000000.json")
    os.mkdir(f"{stack.root}/drafts/draft-0123456789abcdef")
    shutil.copytree(
        stack.base, f"{stack.root}/layers/L000098-00000000"
    )  # of a publish that was cut off, and half removed by now
    put(f"{stack.root}/notes.txt")
    with fsck.offline(stack.root) as looking:
        assert list(looking) == []
        kinds = {note.file: note.kind for note in looking.notes}
    assert kinds.pop("notes.txt") == "unknown" and kinds.pop("base/B000001-base") == "not_checked"
    assert set(kinds.values()) == {"left_over"} and len(kinds) == 7, kinds
    stack.store = Store.open(stack.root)
    assert not os.path.exists(f"{stack.root}/layers/L000098-00000000")
    with stack.store.checking() as looking:
        assert list(looking) == []
        assert {note.file for note in looking.notes if note.kind == "left_over"} == set()


@on_a_stack({**BASE}, namespaces=("trusted",))
def test_a_store_that_somebody_has_open_and_a_folder_without_one_are_refused(stack: Stack) -> None:
    with pytest.raises(StoreBusy):
        list(check(stack.root))
    with pytest.raises(StoreCorrupt):
        list(check(stack.folder))
    with pytest.raises(FileNotFoundError):
        list(check(f"{stack.folder}/nowhere"))
    stack.store.close()
    with fsck.offline(stack.root), pytest.raises(StoreBusy):
        Store.open(stack.root)
    stack.store = Store.open(stack.root)


@on_a_stack({**BASE}, namespaces=("trusted",))
def test_the_base_is_compared_with_the_hash_that_the_store_was_made_with_when_that_is_asked_for(
    stack: Stack,
) -> None:
    stack.store.close()
    (reported,) = check(stack.root, base=True)
    assert (
        reported.file == "base/B000001-base" and reported.found_by == "hash"
    )  # the stack of these tests says that its hash is zeros
    file = f"{stack.root}/workspace.json"
    looking = base_hash.tree_hash(stack.base, lambda error: None)
    while True:
        try:
            next(looking)
        except StopIteration as end:
            records.write(file, {**records.read(file), "base_root_hash": end.value})
            break
    assert list(check(stack.root, base=True)) == []
    os.rename(stack.base, f"{stack.folder}/elsewhere")
    os.symlink(f"{stack.folder}/elsewhere", stack.base)
    assert list(check(stack.root, base=True)) == []
    os.chmod(f"{stack.base}/d/g", 0o600)
    assert list(found(stack.root, base=True)) == ["base/B000001-base"] and found(stack.root) == {}
    os.chmod(f"{stack.base}/d/g", 0o644)
    stack.store = Store.open(stack.root)


@on_a_stack({**BASE}, namespaces=("trusted",))
def test_a_check_of_an_open_store_goes_on_beside_publishes_squashes_and_discards_and_finds_nothing(
    stack: Stack,
) -> None:
    rich(stack)
    with stack.store.checking() as looking:
        reported: list[Damage] = []
        for n, part in enumerate(looking.parts()):
            stack.store.update_file("count", _numbered(n), owner="o", request_id="r")
            if n == 2:
                stack.store.squash()
            if part.startswith("draft "):
                stack.store.discard_draft(part.partition(" ")[2])
            reported += [damage for damage in looking.of(part) if damage is not None]
        assert reported == []
    assert not stack.store.replaced, "the lease was not given back"


@on_a_stack({**BASE}, namespaces=("trusted",))
def test_a_layer_that_is_on_its_way_out_when_the_check_begins_is_not_missed(stack: Stack) -> None:
    """A squash has given its layers free, and has not removed them yet."""
    for n in range(3):
        stack.store.update_file(f"s{n}", lambda old: b"s\n", owner="o", request_id="r")
    with contextlib.ExitStack() as held:
        looking: list[fsck.Check] = []

        def begin(step: str) -> None:
            if step == "squash.remove_layers":
                looking.append(held.enter_context(stack.store.checking()))

        stack.store.step = begin
        stack.store.squash()
        assert list(looking[0]) == [] and looking[0].counts.layers == 1
        stack.store.step = fsync.no_step


@on_a_stack({**BASE}, namespaces=("trusted",))
def test_what_changes_between_two_looks_is_no_damage(stack: Stack) -> None:
    """Versions are closed by a squash after the check has listed them and before it reads them."""
    for n in range(3):
        stack.store.update_file(f"s{n}", lambda old: b"s\n", owner="o", request_id="r")
    with stack.store.checking() as looking:
        stack.store.update_file("t", lambda old: b"t\n", owner="o", request_id="r")
        read = looking.version

        def late(name: str) -> VersionRecord:
            stack.store.squash()
            return read(name)

        looking.version = late  # type: ignore[method-assign]
        assert list(looking) == []
        assert not os.path.exists(f"{stack.root}/manifests/2.json"), "nothing was closed"


@on_a_stack({**BASE}, namespaces=("trusted",))
def test_a_check_is_taken_up_again_after_any_of_its_parts(stack: Stack) -> None:
    rich(stack)
    with stack.store.checking() as looking:
        parts = looking.parts()
        for n, part in enumerate(parts):
            assert looking.parts(part) == parts[n + 1 :]


@on_a_stack({**BASE}, namespaces=("trusted",))
def test_a_layer_that_lost_everything_is_reported_in_bounded_many_lines(stack: Stack) -> None:
    a = stack.session()
    for n in range(1000):
        put(a.at(f"many/{n}"))
    done = a.publish()
    stack.store.close()
    fsync.remove_tree(f"{stack.root}/layers/{done.layer_id}/many")
    reported = list(check(stack.root))
    assert len(reported) == trees.PER_TREE + 2 and "901 more" in reported[-2].what
    fsync.remove_tree(f"{stack.root}/layers/{done.layer_id}")
    (gone,) = {damage.file for damage in check(stack.root)}
    assert gone == f"layers/{done.layer_id}"
