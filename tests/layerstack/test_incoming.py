"""Changes of a directory that come in from outside: a base of their own, the rules of every publication."""

from __future__ import annotations

import hashlib
import os

import pytest

from layerstack.errors import Invalid, InvalidPath, PublishRejected
from layerstack.publish.publish import Author
from layerstack.session.incoming import Incoming, IncomingEntry, stored_file
from layerstack.tree.state import DIRECTORY, FILE, LINK, WHITEOUT
from tests.layerstack.store_fixture import Stack, on_a_stack, put

TEXT = "".join(f"line {n}\n" for n in range(1, 41))
HOST = Author("host", "import", None)


def changed(**lines: str) -> str:
    """TEXT with other lines: changed(line5="...")."""
    text = TEXT
    for line, new in lines.items():
        text = text.replace(f"{line.replace('line', 'line ')}\n", f"{new}\n")
    return text


def entry(path: str, text: str, mode: int = 0o644) -> IncomingEntry:
    return IncomingEntry(path, FILE, mode, 1_700_000_000_000_000_000, data=text.encode(), size=len(text))


def known(path: str, text: str) -> IncomingEntry:
    """An entry whose content the store is to find."""
    return IncomingEntry(path, FILE, size=len(text), digest=hashlib.sha256(text.encode()).digest())


def bring(stack: Stack, ours: list[IncomingEntry], base: list[IncomingEntry] | None = None) -> list[str]:
    """Import; return the conflicts as `path class`. A preview has foretold them, and nothing is left."""
    incoming = Incoming(stack.store)
    try:
        for side, entries in (("base", base or []), ("ours", ours)):
            for one in entries:
                incoming.put(side, one)
        foretold = [f"{c.path} {c.cls}" for c in incoming.preview().conflicts]
        try:
            incoming.publish(HOST)
        except PublishRejected as error:
            assert [f"{c.path} {c.cls}" for c in error.conflicts] == foretold
            return foretold
        assert foretold == []
        return []
    finally:
        incoming.discard()
        assert os.listdir(f"{stack.root}/staging") == []


@on_a_stack({"f": TEXT, "d/a": "a\n", "d/b": "b\n", "link": "-> f", "gone": "x\n"})
def test_entries_of_every_kind_are_published_over_what_sessions_did(stack: Stack) -> None:
    session = stack.session()
    put(session.at("f"), changed(line5="of a session"))
    put(session.at("new/of-session"), "s\n")
    session.publish()
    os.chmod(f"{stack.base}/d", 0o755)
    assert not bring(
        stack,
        [
            IncomingEntry("d", DIRECTORY, 0o750),
            IncomingEntry("d/b", WHITEOUT),
            entry("f", changed(line30="of the person"), 0o755),
            IncomingEntry("gone", DIRECTORY, 0o755),
            entry("gone/in", "in\n"),
            IncomingEntry("link", LINK, target="d/a"),
            IncomingEntry("new", DIRECTORY, 0o755),
            entry("new/one", "one\n"),
            IncomingEntry("new/two", FILE, 0o644, same_as="new/one"),
        ],
    )
    shows = stack.shows()
    assert shows["f"] == changed(line5="of a session", line30="of the person")
    assert {path: shows.get(path) for path in ("d/b", "gone/in", "link", "new/two", "new/of-session")} == {
        "d/b": None,
        "gone/in": "in\n",
        "link": "-> d/a",
        "new/two": "one\n",
        "new/of-session": "s\n",
    }
    assert (stack.mode("d"), stack.mode("f")) == (0o750, 0o755)
    assert stack.store.head.version == 3


@on_a_stack({"f": TEXT})
def test_the_base_is_what_came_in_before_and_not_the_version_after_it(stack: Stack) -> None:
    session = stack.session()
    put(session.at("f"), changed(line5="of a session"))
    session.publish()
    first = changed(line30="of the person")
    assert not bring(stack, [entry("f", first)])
    second = changed(line30="of the person", line38="again")
    assert not bring(stack, [entry("f", second)], [entry("f", first)])
    assert stack.shows()["f"] == changed(line5="of a session", line30="of the person", line38="again")
    assert not bring(stack, [entry("f", TEXT)], [entry("f", second)])
    assert stack.shows()["f"] == changed(line5="of a session")
    assert not bring(stack, [IncomingEntry("f", WHITEOUT)], [known("f", changed(line5="of a session"))])
    assert "f" not in stack.shows()


@on_a_stack({"f": TEXT})
def test_content_that_is_lost_is_a_conflict_and_only_where_both_changed_the_file(stack: Stack) -> None:
    lost = known("f", "exported, then squashed away\n")
    ours = changed(line30="of the person")
    session = stack.session()
    put(session.at("f"), changed(line5="of a session"))
    session.publish()
    assert bring(stack, [entry("f", ours)], [lost]) == ["f binary"]
    there = changed(line5="of a session")
    assert stored_file(stack.store, "f", hashlib.sha256(there.encode()).digest()) is not None
    assert stored_file(stack.store, "f", hashlib.sha256(TEXT.encode()).digest()) is not None  # in the base
    assert not bring(stack, [entry("f", ours)], [known("f", there)])
    assert stack.shows()["f"] == ours


@on_a_stack({"f": TEXT}, namespaces=("trusted",))
def test_a_deletion_that_no_layer_lists_any_more_is_a_change_since_the_import(stack: Stack) -> None:
    """A squash drops a path that was added and deleted: the import's base is not the head's state there."""
    first, second = changed(line30="of the person"), changed(line30="once more")
    assert not bring(stack, [entry("added", first)])
    stack.store.delete_path("added", Author("o", "r", None), recursive=False)
    stack.store.squash()
    stack.reopen()
    assert bring(stack, [entry("added", second)], [entry("added", first)]) == ["added modify_delete"]


@on_a_stack({"f": TEXT}, namespaces=("trusted",))
def test_a_log_that_came_in_before_stays_with_its_database(stack: Stack) -> None:
    header = "SQLite format 3\0"
    before = [entry("x.db", header), entry("x.db-wal", "log")]
    assert not bring(stack, before)
    assert not bring(stack, [entry("x.db", header + "2")], before)
    assert (stack.shows()["x.db"], stack.shows()["x.db-wal"]) == (header + "2", "log")
    stack.store.update_file("x.db-wal", lambda _: b"of an agent", owner="o", request_id="r")
    now = [entry("x.db", header + "2"), entry("x.db-wal", "log")]
    assert bring(stack, [entry("x.db", header + "3")], now)


@on_a_stack({"f": TEXT, "d/a": "a\n"}, namespaces=("trusted",))
def test_malformed_entries_are_refused_and_leave_nothing(stack: Stack) -> None:
    incoming = Incoming(stack.store)
    for path in ("", "/f", "../f", "a//b", "a/./b", "a\0"):
        with pytest.raises((InvalidPath, Invalid)):
            incoming.put("ours", entry(path, "x"))
        with pytest.raises((InvalidPath, OSError)):
            incoming.write("ours", path, 0, b"x")
    with pytest.raises(Invalid):
        incoming.put("ours", IncomingEntry("f", "s"))
    with pytest.raises(Invalid):
        incoming.put("ours", IncomingEntry("f", FILE, xattrs={"trusted.overlay.opaque": b"y"}))
    incoming.put("ours", IncomingEntry("d", LINK, target="/"))
    incoming.put("ours", entry("d/a", "in the tree\n"))  # the link gives way: it is never followed
    incoming.put("ours", IncomingEntry("d/a", "n"))
    incoming.discard()
    assert os.listdir(f"{stack.root}/staging") == [] and stack.store.head.version == 1
