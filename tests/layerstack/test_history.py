"""Looking back: versions, differences and patches, pins, and the way back to an earlier tree."""

from __future__ import annotations

import os
import shutil
import subprocess
import threading

import pytest

from layerstack.errors import InvalidPath, NotFound
from layerstack.history import versions as history
from layerstack.kernel.fsync import no_step, remove_tree
from layerstack.layers.delta import delta
from layerstack.publish.outcome import Published
from tests.layerstack.store_fixture import Stack, get, on_a_stack, put, refusing
from tests.trees import read_tree

TEXT = "".join(f"line {n}\n" for n in range(1, 31))
BASE: dict[str, str | bytes | None] = {
    "f": TEXT,
    "d/a": "a\n",
    "d/b": "b\n",
    "d/deep/c": "c\n",
    "run": "#!/bin/sh\n",
    "link": "-> f",
    "hollow": None,
    "moved/x": "x\n",
    ".gitignore": "*.o\n",
}


def back(stack: Stack, version: int) -> Published:
    return stack.store.rollback(version, owner="operation:back", request_id="back")


def story(stack: Stack) -> None:
    """Versions 2 to 5: every kind of change."""
    a = stack.session()
    put(a.at("f"), TEXT.replace("line 7\n", "seven\n"))
    os.chmod(a.at("run"), 0o755)
    os.unlink(a.at("d/a"))
    put(a.at("new/file"), "n\n")
    put(a.at("out.o"), "ignored\n")
    os.unlink(a.at("link"))
    os.symlink("run", a.at("link"))
    a.publish()
    b = stack.session()
    shutil.rmtree(b.at("d"))
    put(b.at("d"), "a file now\n")
    shutil.rmtree(b.at("moved"))
    put(b.at("moved/y"), "y\n")
    os.rmdir(b.at("hollow"))
    b.publish()
    c = stack.session()
    os.unlink(c.at("d"))
    put(c.at("d/again"), "again\n")
    os.chmod(c.at("new"), 0o700)
    put(c.at("f"), TEXT.replace("line 20\n", "") + "the end")
    c.publish()
    stack.store.update_file(
        "new/file", lambda old: (old or b"") + b"more\n", owner="operation:1", request_id="1"
    )


@on_a_stack(BASE)
def test_a_rollback_shows_the_old_tree_in_one_new_layer_and_takes_nothing_away(stack: Stack) -> None:
    story(stack)
    trees = {version: stack.tree(version) for version in range(1, 6)}
    for version in (1, 3, 5, 2, 4, 1):
        before = stack.store.head
        done = back(stack, version)
        assert done.manifest.version == before.version + 1 and done.manifest.layers[1:] == before.layers
        assert stack.tree() == trees[version], version
        assert all(stack.tree(number) == tree for number, tree in trees.items())
        again = back(stack, version)
        assert again.no_op and again.manifest == stack.store.head == done.manifest
    stack.reopen()
    assert stack.tree() == trees[1]
    assert os.listdir(f"{stack.root}/staging") == []


@on_a_stack(BASE)
def test_a_rollback_links_files_of_layers_and_copies_those_of_the_base(stack: Stack) -> None:
    story(stack)
    back(stack, 2)
    snapshot = stack.store.snapshot()
    new, base = snapshot.stat("new/file"), snapshot.stat("d/b")
    old = stack.store.snapshot(2).stat("new/file")
    assert new is not None and old is not None and base is not None
    assert new.layer_id == base.layer_id == snapshot.manifest.layers[0].layer_id
    assert os.stat(new.real_path).st_ino == os.stat(old.real_path).st_ino
    assert os.stat(f"{stack.base}/d/b").st_nlink == 1 and os.stat(base.real_path).st_nlink == 1
    about = stack.store.layers.get(new.layer_id).about
    assert (about["owner"], about["rollback_to"]) == ("operation:back", 2)


@on_a_stack(BASE)
def test_a_session_from_before_a_rollback_meets_it_as_any_publish(stack: Stack) -> None:
    stack.store.update_file(
        "f", lambda _: TEXT.replace("line 7\n", "seven\n").encode(), owner="o", request_id="1"
    )
    near, far = stack.session(), stack.session()
    put(near.at("f"), get(near.at("f")).replace("seven\n", "SEVEN\n"))
    put(far.at("f"), get(far.at("f")).replace("line 20\n", "twenty\n"))
    back(stack, 1)
    assert near.rejected() == {"f": "content"}
    far.publish()
    assert stack.shows()["f"] == TEXT.replace("line 20\n", "twenty\n")


@on_a_stack(BASE, namespaces=("trusted",))
def test_a_rollback_beside_publishes_shows_exactly_that_tree_at_its_version(stack: Stack) -> None:
    wanted = stack.tree(1)
    stop = threading.Event()

    def others() -> None:
        n = 0
        while not stop.is_set():
            n += 1
            stack.store.update_file(f"other/{n % 7}", lambda _, n=n: b"%d\n" % n, owner="o", request_id="r")  # type: ignore[misc]

    thread = threading.Thread(target=others)
    thread.start()
    try:
        versions = [back(stack, 1).manifest.version for _ in range(10)]
    finally:
        stop.set()
        thread.join()
    assert all(stack.tree(version) == wanted for version in versions)


@on_a_stack(BASE, namespaces=("trusted",))
def test_a_rollback_that_the_disk_refuses_changes_nothing_and_passes_later(stack: Stack) -> None:
    story(stack)
    names: list[str] = []
    stack.store.step = names.append
    back(stack, 2)
    assert {"rollback.compare", "rollback.build"} <= set(names)
    for name in dict.fromkeys(name for name in names if name != "commit.fsync_manifest"):
        head = stack.store.head

        stack.store.step = refusing(name)
        with pytest.raises(OSError, match="No space"):
            back(stack, 1)
        assert stack.store.head is head and os.listdir(f"{stack.root}/staging") == []
        stack.store.step = names.append
    assert not back(stack, 1).no_op


def changes(page: history.Page) -> dict[str, str]:
    assert page.next is None
    return {change.path: change.change for change in page.changes}


@on_a_stack(BASE)
def test_the_difference_of_two_versions_names_each_path_once_in_byte_order(stack: Stack) -> None:
    story(stack)
    found = changes(history.diff_versions(stack.store, 1, 3))
    assert list(found) == sorted(found) and found == {
        "d": "type", "d/a": "deleted", "d/b": "deleted", "d/deep": "deleted", "d/deep/c": "deleted", "f": "modified", "hollow": "deleted",  # noqa: E501
        "link": "modified", "moved/x": "deleted", "moved/y": "added", "new": "added", "new/file": "added", "out.o": "added",  # noqa: E501
        "run": "attributes",
    }  # fmt: skip
    assert changes(history.diff_versions(stack.store, 3, 1))["d/deep/c"] == "added"
    assert changes(history.diff_versions(stack.store, 1, 3, under="d/deep")) == {
        "d/deep": "deleted",
        "d/deep/c": "deleted",
    }
    assert changes(history.diff_versions(stack.store, 1, 3, under="moved/x")) == {"moved/x": "deleted"}
    assert (
        changes(history.diff_versions(stack.store, 3, 3))
        == changes(history.diff_versions(stack.store, 1, 3, under="none"))
        == {}
    )
    for old in range(1, 6):
        for new in range(1, 6):
            one, other = stack.tree(old), stack.tree(new)
            want = sorted(path for path in one.keys() | other.keys() if one.get(path) != other.get(path))
            assert delta(stack.store.snapshot(old).chain, stack.store.snapshot(new).chain) == want, (old, new)
    with pytest.raises(NotFound):
        history.diff_versions(stack.store, 1, 99)


@on_a_stack(
    {
        **BASE,
        "empty": "",
        'odd "name"\t\n': "x\n",
        "with space": "x\n",
        "no end": "one\ntwo",
        "bin": b"\0\1",
        "latin": b"\xe9\n",
    }
)
def test_the_patches_of_a_difference_make_the_new_tree_out_of_the_old_one(stack: Stack) -> None:
    story(stack)
    a = stack.session()
    os.unlink(a.at("empty"))
    put(a.at("made empty"), "")
    put(a.at('odd "name"\t\n'), "y\nz\n")
    put(a.at("with space"), "x\ny")
    put(a.at("no end"), "one\nTWO")
    put(a.at("ümlaut"), "ü\n")
    put(a.at("latin"), b"\xe8\n")
    put(a.at("bin"), b"\0\2")
    a.publish()
    for old, new in ((1, 6), (6, 1), (2, 5), (5, 3)):
        page = history.diff_versions(stack.store, old, new)
        work = f"{stack.folder}/work"
        with stack.mounted(old) as view:
            shutil.copytree(view, work, symlinks=True)
        patches = b"".join(change.patch.data for change in page.changes if change.patch is not None)
        done = subprocess.run(
            ["git", "apply", "--unsafe-paths", "--whitespace=nowarn", "-"],
            cwd=work,
            input=patches,
            capture_output=True,
        )
        assert done.returncode == 0, done.stderr
        want = {p: (e.kind, e.body) for p, e in stack.tree(new).items() if e.kind != "d"}
        got = {p: (e.kind, e.body) for p, e in read_tree(work).items() if e.kind != "d"}
        left = {path for path in want.keys() | got.keys() if want.get(path) != got.get(path)}
        assert (
            left
            == {
                change.path for change in page.changes if change.patch is None and change.change == "modified"
            }
            <= {"bin"}
        )
        remove_tree(work)


@on_a_stack(BASE, namespaces=("trusted",))
def test_long_differences_come_in_pages_and_long_patches_are_cut_between_hunks(stack: Stack) -> None:
    a = stack.session()
    for n in range(450):
        put(a.at(f"many/{n:03}"), f"{n}\n")
    a.publish()
    seen: list[str] = []
    start: int | None = 0
    pages = 0
    while start is not None:
        page = history.diff_versions(stack.store, 1, 2, start=start)
        seen += [change.path for change in page.changes]
        start, pages = page.next, pages + 1
    assert seen == ["many", *(f"many/{n:03}" for n in range(450))] and pages == 3
    for under in ("../many", "many/", "a\0b"):
        with pytest.raises(InvalidPath):
            history.diff_versions(stack.store, 1, 2, under=under)
        with pytest.raises(InvalidPath):
            history.diff_draft(stack.store, "draft-0123456789abcdef", under=under)
    long = "".join(f"{n} {'x' * 70}\n" for n in range(20_000))
    for version, text in ((3, long), (4, long.replace("x\n", "y\n", 1).replace("19999 x", "y"))):
        stack.store.update_file("long", lambda _, text=text: text.encode(), owner="o", request_id="r")  # type: ignore[misc]
        assert stack.store.head.version == version
    (made,) = history.diff_versions(stack.store, 2, 3).changes
    assert made.patch is not None and made.patch.truncated and len(made.patch.data) < 1000, (
        "one hunk of 1.4 MB"
    )
    (edited,) = history.diff_versions(stack.store, 3, 4, under="long").changes
    assert edited.patch is not None and not edited.patch.truncated and edited.patch.data.count(b"@@ -") == 2


@on_a_stack(BASE)
def test_the_difference_of_a_draft_is_reported_against_its_base_and_against_the_head(stack: Stack) -> None:
    a, b = stack.session(), stack.session()
    for session, word in ((a, "theirs"), (b, "ours")):
        put(session.at("f"), TEXT.replace("line 7\n", f"{word}\n"))
        put(session.at("d/b"), "both\n")
    put(a.at("d/theirs"), "t\n")
    put(b.at("d/ours"), "o\n")
    os.unlink(b.at("d/a"))
    a.publish()
    assert b.rejected() == {"f": "content"}
    draft = b.keep(reason="source_conflict")
    base = history.diff_draft(stack.store, draft.draft_id)
    assert changes(base) == {"d/a": "deleted", "d/b": "modified", "d/ours": "added", "f": "modified"}
    head = history.diff_draft(stack.store, draft.draft_id, against="head")
    assert changes(head) == {"d/a": "deleted", "d/ours": "added", "f": "modified"}
    (change,) = history.diff_draft(stack.store, draft.draft_id, against="head", under="f").changes
    assert change.patch is not None and b"-theirs\n+ours\n" in change.patch.data
    assert len({change.base.digest, change.old.digest, change.new.digest}) == 3
    stack.reopen()
    assert changes(history.diff_draft(stack.store, draft.draft_id)) == changes(base)
    stack.store.discard_draft(draft.draft_id)
    with pytest.raises(NotFound):
        history.diff_draft(stack.store, draft.draft_id)


@on_a_stack(BASE)
def test_versions_are_listed_newest_first_with_who_made_them(stack: Stack) -> None:
    story(stack)
    stack.store.pin_version(2, agent="codex", request_id="req")
    found, after = history.versions(stack.store, limit=3)
    assert [(v.version, v.owner, v.pinned) for v in found] == [
        (5, "operation:1", False),
        (4, "s2", False),
        (3, "s1", False),
    ]
    assert (
        after == 3
        and found[0].paths == 1
        and found[0].layer_count == 5
        and found[0].root_hash == stack.store.head.root_hash
    )
    found, after = history.versions(stack.store, after=3, limit=3)
    assert after is None and [(v.version, v.owner, v.pinned, v.layer_id is None) for v in found] == [
        (2, "s0", True, False),
        (1, None, False, True),
    ]


@on_a_stack(BASE)
def test_any_listed_version_can_be_worked_on_and_published_from(stack: Stack) -> None:
    story(stack)
    want = stack.tree(2)
    old = stack.session(version=2)
    assert read_tree(old.view) == want
    put(old.at("late"), "late\n")
    put(old.at("f"), get(old.at("f")).replace("line 1\n", "first\n"))
    old.publish()
    assert stack.shows()["late"] == "late\n" and stack.shows()["f"].startswith("first\n")


@on_a_stack(BASE)
def test_a_pin_is_a_boundary_over_restarts_until_it_is_taken_off(stack: Stack) -> None:
    story(stack)
    want = stack.tree(4)
    store = stack.store
    pin = store.pin_version(4, agent="codex", request_id="req")
    assert store.pin_version(4) == pin and list(store.pinned()) == [4]
    assert (store.layer_stats()["pin_count"], store.layer_stats()["active_lease_count"]) == (1, 0)
    with pytest.raises(NotFound):
        store.pin_version(99)
    stack.reopen()
    assert stack.store.pinned() == {4: pin}
    assert stack.store.squash().blocks and len(stack.store.head.layers) == 4
    assert stack.tree(4) == want
    assert not any(
        lease.kind == "pin" and not set(lease.layer_ids) <= set(stack.store.head.layer_ids)
        for lease in stack.store.leases.all()
    )
    stack.store.gc()
    stack.reopen()
    assert stack.tree(4) == want
    assert stack.store.unpin_version(4) and not stack.store.unpin_version(4)
    assert os.listdir(f"{stack.root}/pins") == []
    stack.store.update_file("one more", lambda old: old or b"", owner="o", request_id="r")
    assert stack.store.squash().blocks
    with pytest.raises(NotFound):
        stack.store.snapshot(4)


@on_a_stack(BASE, namespaces=("trusted",))
def test_a_pin_that_the_disk_refuses_is_none_and_a_damaged_one_is_named(stack: Stack) -> None:
    story(stack)
    names: list[str] = []
    stack.store.step = names.append
    stack.store.pin_version(2)
    for name in names:
        stack.store.step = refusing(name)
        with pytest.raises(OSError, match="No space"):
            stack.store.pin_version(3)
        assert list(stack.store.pinned()) == [2] and os.listdir(f"{stack.root}/pins") == ["2.json"]
    stack.store.step = no_step
    path = f"{stack.root}/pins/2.json"
    good = get(path)
    put(path, good.replace('"version":2', '"version":4'))
    stack.reopen()
    assert list(stack.store.damaged) == [path] and stack.store.pinned() == {}
    put(path, good)
    stack.reopen()
    assert stack.store.damaged == {} and list(stack.store.pinned()) == [2]
    os.unlink(f"{stack.root}/manifests/2.json")
    stack.reopen()
    assert list(stack.store.damaged) == [path] and "does not exist" in stack.store.damaged[path]
