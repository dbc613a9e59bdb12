"""Checkpoints of a session: a restore brings back exactly what was there, and is undone by another one; a
crash at any step leaves the state before or after.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Callable

import pytest

from layerstack.errors import LayerStackError, NotFound, PublishRejected, StoreCorrupt
from layerstack.fsck.check import check
from layerstack.kernel import records
from layerstack.kernel.fsync import no_step
from layerstack.model.resolution import MARKERS, Choice
from layerstack.session import checkpoints
from layerstack.session.upper import Upper
from layerstack.store import Store
from tests.layerstack.store_fixture import Session, Stack, get, on_a_stack, put, refusing
from tests.layerstack.whole_view import Seen, whole_view

BASE: dict[str, str | bytes | None] = {
    "text": "one\ntwo\n",
    "touched": "same\n",
    "gone": "x\n",
    "folder/a": "a\n",
    "folder/deep/b": "b\n",
    "made again/old": "old\n",
    "made again/kept": "kept\n",
    "renamed/f": "f\n",
    "renamed/sub/g": "g\n",
    "link": "-> text",
}


def checkpoint(session: Session, label: str | None = None) -> str:
    session.umount()
    made = session.upper.checkpoint(label)
    session.mount()
    return made.checkpoint.checkpoint_id


def restore(session: Session, checkpoint_id: str | None = None) -> str | None:
    """Returns the id of the checkpoint of the state before."""
    session.umount()
    done = session.upper.restore(checkpoint_id)
    session.mount()
    return None if done.undo is None else done.undo.checkpoint_id


def remount(session: Session) -> None:
    """Mount again: until then an ordinary user's overlay shows a new name of a file as another inode."""
    session.umount()
    session.mount()


def work(session: Session) -> None:
    """Every kind of change."""
    at = session.at
    with open(at("text"), "r+b") as file:  # in place, with the same length
        file.write(b"ONE")
    os.utime(at("touched"), ns=(10**18, 10**18 + 7))
    os.unlink(at("gone"))
    put(at("new/file"), "new\n")
    os.link(at("new/file"), at("new/other name"))
    os.chmod(at("folder/a"), 0o600)
    os.link(at("folder/a"), at("linked"))
    os.chmod(at("new/file"), 0o4751)
    os.setxattr(at("new"), "user.note", b"\0x")
    shutil.rmtree(at("made again"))
    put(at("made again/fresh"), "fresh\n")
    os.mkfifo(at("pipe"), 0o640)
    os.symlink("nowhere", at("new/dangling"))
    with open(at("holes"), "wb") as file:
        file.truncate(1 << 20)
    try:
        os.rename(at("renamed"), at("moved"))
        put(at("moved/sub/g"), "changed\n")
    except OSError:  # the user's overlay renames no directory
        shutil.rmtree(at("renamed"))
    os.utime(at("folder"), ns=(10**18, 10**18 + 9))
    os.chmod(session.view, 0o750)
    os.utime(session.view, ns=(10**18, 10**18 + 3))


def other_work(session: Session) -> None:
    """Changes and removes all that `work` did, and more."""
    at = session.at
    put(at("text"), "other\n")
    put(at("gone"), "back\n")
    put(at("new/file"), "both names\n")
    os.unlink(at("pipe"))
    shutil.rmtree(at("made again"))
    shutil.rmtree(at("folder"))
    put(at("folder"), "no folder\n")
    os.unlink(at("touched"))
    os.chmod(session.view, 0o755)
    put(at("late"), "late\n")


@on_a_stack(BASE)
def test_a_restore_brings_back_exactly_what_was_there_and_is_undone_by_another(stack: Stack) -> None:
    session = stack.session()
    start = whole_view(session.view)
    first = checkpoint(session)
    work(session)
    remount(session)
    worked = whole_view(session.view)
    assert os.path.exists(session.at("pipe")) and worked["new/other name"].first == "new/file"
    second = checkpoint(session, "all kinds")
    assert whole_view(session.view) == worked, "a checkpoint changes nothing"
    other_work(session)
    other = whole_view(session.view)
    undo = restore(session)
    assert whole_view(session.view) == worked, "by default the newest"
    assert restore(session, undo) == second, "the state that it leaves is a checkpoint already"
    assert whole_view(session.view) == other
    restore(session, first)
    assert whole_view(session.view) == start
    put(session.at("folder/a"), "on another branch\n")
    branch = whole_view(session.view)
    undo = restore(session, second)
    assert whole_view(session.view) == worked and restore(session, second) is None
    restore(session, undo)
    assert whole_view(session.view) == branch
    rows = session.upper.saved.checkpoints
    assert [(one.label, one.undoes) for one in rows] == [
        (None, None),
        ("all kinds", None),
        (None, 2),
        (None, 2),
    ]
    assert rows[0].changed_files == 0 and rows[1].changed_files > 10 and rows[3].changed_files == 1


@on_a_stack(BASE)
def test_a_publish_after_a_restore_publishes_what_is_seen(stack: Stack) -> None:
    plain, session = stack.session(), stack.session()
    for one in (plain, session):
        work(one)
    checkpoint(session)
    other_work(session)
    checkpoint(session)
    restore(session, "checkpoint-1")
    for one in (plain, session):
        put(one.at("late"), "late\n")
    expected, preview = plain.upper.preview(), session.upper.preview()
    assert (preview.source_count, preview.dropped) == (expected.source_count, expected.dropped)
    published = session.publish()
    assert published.dropped == ("pipe",) and not os.listdir(f"{stack.root}/staging")
    of_session = stack.tree()
    assert of_session["late"].body == b"late\n" and "pipe" not in of_session
    shown = {path: one.body for path, one in whole_view(plain.view).items() if path != "pipe"}
    assert {path: entry.body for path, entry in of_session.items()} == shown
    assert not os.path.exists(session.upper.directory)


@on_a_stack(BASE)
def test_a_rejected_publish_leaves_session_and_checkpoints(stack: Stack) -> None:
    session = stack.session()
    start = checkpoint(session)
    work(session)
    first = checkpoint(session)
    worked = whole_view(session.view)
    restore(session, start)
    put(session.at("text"), "one two\n")
    os.utime(session.at("touched"), ns=(5, 10**18 + 5))
    view = whole_view(session.view)
    stack.store.update_file("text", lambda _: b"first\n", owner="o", request_id="r")
    assert session.rejected() == {"text": "content"}
    session.mount()
    assert whole_view(session.view) == view, "the upperdir is not captured in place"
    restore(session, first)
    assert whole_view(session.view) == worked
    put(session.at("late"), "late\n")
    view = whole_view(session.view)
    stack.store.update_file("text", lambda _: b"theirs\n", owner="o", request_id="r")
    assert session.rejected() == {"text": "content"}
    session.mount()
    assert whole_view(session.view) == view, "also what a publish would leave out"
    session.umount()
    with pytest.raises(PublishRejected):
        session.upper.rebase()
    session.mount()
    restore(session, first)
    assert not os.path.exists(session.at("late")) and os.path.exists(session.at("pipe"))
    session.umount()
    done = session.upper.rebase(Choice(MARKERS))
    assert [one.checkpoint_id for one in done.checkpoints] == [
        "checkpoint-1",
        "checkpoint-2",
        "checkpoint-3",
        "checkpoint-4",
    ]
    assert done.dropped == ("pipe",)
    session.mount()
    assert b"<<<<<<<" in whole_view(session.view)["text"].body
    with pytest.raises(NotFound):
        session.upper.restore()
    checkpoint(session)
    put(session.at("text"), "resolved\n")
    assert not session.publish().no_op and stack.shows()["text"] == "resolved\n"


@on_a_stack(BASE)
def test_a_dead_session_becomes_a_draft_of_its_present_state(stack: Stack) -> None:
    session = stack.session()
    work(session)
    checkpoint(session)
    put(session.at("second"), "x\n")
    checkpoint(session)
    other_work(session)
    restore(session, "checkpoint-1")
    put(session.at("third"), "x\n")
    expected = whole_view(session.view)
    stack.reopen()
    (draft,) = stack.store.recovered
    assert not os.listdir(f"{stack.root}/sessions")
    again = stack.session(draft_id=draft.draft_id)
    shown = whole_view(again.view)
    assert {path: one.body for path, one in shown.items()} == {
        path: one.body for path, one in expected.items() if path != "pipe"
    }
    assert not again.upper.saved.checkpoints
    checkpoint(again)
    put(again.at("fourth"), "x\n")
    restore(again)
    assert not os.path.exists(again.at("fourth"))
    again.publish()
    assert "third" in stack.shows() and not stack.store.drafts()


@on_a_stack(BASE, namespaces=("user",))
def test_the_thirty_third_checkpoint_drops_the_oldest_and_its_layer_if_no_other_needs_it(
    stack: Stack,
) -> None:
    session = stack.session()
    put(session.at("f"), "branch\n")
    first = checkpoint(session)
    for n in range(checkpoints.CHECKPOINTS_MAX - 1):
        checkpoint(session, str(n))
    restore(session, "checkpoint-2")
    put(session.at("f"), "again\n")
    session.umount()
    done = session.upper.restore(first)
    assert [one.checkpoint_id for one in done.dropped] == ["checkpoint-2"], "not the one that is restored"
    made = session.upper.checkpoint()
    assert [one.checkpoint_id for one in made.dropped] == [first]
    assert len(session.upper.saved.checkpoints) == checkpoints.CHECKPOINTS_MAX
    session.mount()
    assert get(session.at("f")) == "branch\n"
    with pytest.raises(NotFound) as caught:
        restore(session, first)
    assert caught.value.reason == "checkpoint_not_found" and len(caught.value.details["checkpoint_ids"]) == 32


@on_a_stack(BASE, namespaces=("user",))
def test_layers_of_dropped_checkpoints_are_removed(stack: Stack) -> None:
    session = stack.session()
    checkpoint(session)
    sizes: list[int] = []
    for n in range(40):
        put(session.at("big"), bytes([n]) * 4096)
        restore(session, "checkpoint-1")
        sizes.append(len(os.listdir(f"{session.upper.directory}/saved")))
    assert max(sizes) <= checkpoints.CHECKPOINTS_MAX + 1, sizes
    assert not os.path.exists(session.at("big"))


def _deep(stack: Stack, depth: int) -> tuple[Session, dict[str, dict[str, Seen]]]:
    session = stack.session()
    views: dict[str, dict[str, Seen]] = {}
    work(session)
    remount(session)
    for n in range(depth):
        put(session.at(f"n/{n}"), f"{n}\n")
        if n % 3 == 1:
            os.unlink(session.at(f"n/{n - 1}"))
        os.utime(session.at("touched"), ns=(n, 10**18 + n))
        view = whole_view(session.view)
        views[checkpoint(session)] = view
        assert whole_view(session.view) == view, n
    return session, views


@on_a_stack(BASE)
def test_many_checkpoints_are_combined_and_show_the_same(stack: Stack) -> None:
    checkpoints.DEPTH_MAX = 6
    session, views = _deep(stack, 20)
    assert len(session.upper.saved.present) <= 6
    assert len(session.upper.snapshot.lowerdirs) == 1
    put(session.at("last"), "last\n")
    last = whole_view(session.view)
    for checkpoint_id in ("checkpoint-1", "checkpoint-7", "checkpoint-14", "checkpoint-20"):
        restore(session, checkpoint_id)
        assert whole_view(session.view) == views[checkpoint_id], checkpoint_id
    undo = next(one for one in session.upper.saved.checkpoints if one.undoes is not None)
    restore(session, undo.checkpoint_id)
    assert whole_view(session.view) == last
    expected = {path: one.body for path, one in last.items() if path != "pipe"}
    session.publish()
    assert {path: entry.body for path, entry in stack.tree().items()} == expected


@on_a_stack(BASE, namespaces=("trusted",))
def test_a_full_disk_at_any_step_leaves_the_state_before_or_after(stack: Stack) -> None:
    checkpoints.DEPTH_MAX = 2
    session, _ = _deep(stack, 2)
    put(session.at("more"), "more\n")
    for act in (checkpoint, restore):
        names: list[str] = []
        before = whole_view(session.view)
        stack.store.step = names.append
        act(session, "checkpoint-1")
        stack.store.step = no_step
        after = whole_view(session.view)
        assert {"checkpoint.record", "checkpoint.move", "checkpoint.session.json.rename"} <= set(names), names
        for name in dict.fromkeys(names):
            put(session.at("more"), f"{name}\n")
            before = whole_view(session.view)
            session.umount()
            stack.store.step = refusing(name)
            try:
                session.upper.checkpoint() if act is checkpoint else session.upper.restore("checkpoint-1")
            except OSError:
                pass
            stack.store.step = no_step
            session.mount()
            shown = whole_view(session.view)
            assert shown == before or (act is restore and shown == after), name
            assert not os.listdir(f"{stack.root}/staging"), name
            put(session.at("and"), "and\n")
            restore(session, checkpoint(session))
            assert get(session.at("and")) == "and\n"
            restore(session, "checkpoint-2")
    names = [one.checkpoint_id for one in session.upper.saved.checkpoints]
    assert len(set(names)) == len(names)
    session.publish()


Act = Callable[[Upper], object]


def _killed_at(root: str, number: int, act: Act) -> bool:
    """Open the store, do `work` with two checkpoints, then `act`, and be killed right before its step
    `number`. Returns False if it has fewer.
    """
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            seen = 0

            def step(name: str) -> None:
                nonlocal seen
                if seen == number and not name.startswith("seal."):
                    os.kill(os.getpid(), signal.SIGKILL)
                seen += not name.startswith("seal.")

            store = Store.open(root)
            session = Session(store, store.open_upper("s", origin="workspace_session:s"), f"{root}/../view")
            for n in range(3):
                put(session.at("f"), f"{n}\n")
                os.mkdir(session.at(f"d{n}"))
                session.umount()
                if n < 2:
                    session.upper.checkpoint()
                session.mount()
            session.umount()
            store.step = step
            act(session.upper)
            status = 0
        finally:
            os._exit(status)
    _, result = os.waitpid(pid, 0)
    if os.WIFSIGNALED(result):
        assert os.WTERMSIG(result) == signal.SIGKILL
        return True
    assert os.WEXITSTATUS(result) == 0
    return False


@on_a_stack(BASE, namespaces=("trusted",))
def test_a_kill_at_any_step_leaves_a_draft_of_the_state_before_or_after(stack: Stack) -> None:
    stack.store.close()
    os.mkdir(f"{stack.folder}/view")
    checkpoints.DEPTH_MAX = 2
    before, after = {"f": "2\n", "d": "012"}, {"f": "0\n", "d": "0"}
    acts: dict[str, tuple[Act, list[dict[str, str]]]] = {
        "checkpoint": (lambda one: one.checkpoint(), [before]),
        "restore": (lambda one: one.restore("checkpoint-1"), [before, after]),
    }
    for name, (act, possible) in acts.items():
        number, seen, more = 0, list[dict[str, str]](), True
        while more:
            more = _killed_at(stack.root, number, act)
            store = Store.open(stack.root)
            try:
                (draft,) = store.recovered
                found = store.open_upper("look", origin="workspace_session:look", draft_id=draft.draft_id)
                session = Session(store, found, f"{stack.folder}/view")
                state = {
                    "f": get(session.at("f")),
                    "d": "".join(n for n in "012" if os.path.isdir(session.at(f"d{n}"))),
                }
                session.umount()
                found.discard()
                store.discard_draft(draft.draft_id)
                store.gc()
                assert not os.listdir(f"{stack.root}/sessions") and not os.listdir(f"{stack.root}/staging")
            finally:
                store.close()
            assert state in possible, (name, number, state)
            seen.append(state)
            number += 1
        assert number > 6 and seen[0] == before and seen[-1] == possible[-1], (name, number)
        assert [s for i, s in enumerate(seen) if i == 0 or s != seen[i - 1]] == possible, "no way back"


@on_a_stack(BASE, namespaces=("user",))
def test_a_record_with_checkpoints_has_a_format_that_an_older_agent_leaves_alone(stack: Stack) -> None:
    session = stack.session()
    put(session.at("f"), "x\n")
    path = f"{session.upper.directory}/session.json"
    with open(path, "rb") as file:
        assert json.load(file)["format"] == 1
    checkpoint(session)
    with pytest.raises(StoreCorrupt, match="format is 2"):
        records.read(path)
    assert records.read_session(session.upper.directory)["checkpoints"]["top"] == 1
    put(session.at("g"), "x\n")
    checkpoint(session)
    session.umount()
    stack.store.close()
    assert not list(check(stack.root))
    shutil.rmtree(f"{session.upper.directory}/saved/0001")
    (damage,) = check(stack.root)
    assert damage.file.endswith("saved/0001")
    stack.store = Store.open(stack.root)
    assert not stack.store.recovered and os.path.exists(f"{session.upper.directory}/upper"), "kept as it is"
    with pytest.raises(LayerStackError):
        stack.store.dead.attempt(session.upper.session_id)


@on_a_stack(BASE, namespaces=("trusted",))
def test_names_of_one_file_stay_so_when_their_directory_is_renamed_after_a_checkpoint(stack: Stack) -> None:
    session = stack.session()
    os.link(session.at("folder/a"), session.at("folder/other"))
    checkpoint(session)
    os.rename(session.at("folder"), session.at("new name"))
    session.publish()
    with stack.mounted() as view:
        assert os.path.samefile(f"{view}/new name/a", f"{view}/new name/other")
