"""Who wrote each line: merges, renames, deletions, what is no text, and how much work an answer may take."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from layerstack.errors import InvalidPath, NotFound, StoreCorrupt
from layerstack.history import blame, blame_file
from layerstack.history.blame_file import Range
from tests.layerstack.store_fixture import Session, Stack, get, on_a_stack, put

TEXT = "one\ntwo\nthree\nfour\nfive\nsix\n"
BASE: dict[str, str | bytes | None] = {
    "f": TEXT,
    "d/g": TEXT,
    ".gitignore": "*.log\n",
    "untouched": "x\n",
    "old.log": "x\ny\n",
}


def ranges(stack: Stack, path: str) -> list[tuple[int, int, str]]:
    """As `Store.blame`, and each answer tiles."""
    found = stack.store.blame(path)
    at = 1
    for n, part in enumerate(found):
        assert part.start_line == at and part.line_count > 0
        assert n == 0 or found[n - 1].owner != part.owner
        at += part.line_count
    return [(part.start_line, part.line_count, part.owner) for part in found]


def write(stack: Stack, path: str, text: str, owner: str) -> None:
    stack.store.update_file(path, lambda _: text.encode(), owner=owner, request_id="r")


def publish(session: Session, owner: str) -> None:
    session.umount()
    session.upper.publish(owner=owner, request_id="r")


@on_a_stack(BASE)
def test_lines_keep_their_owner_when_others_are_put_in_or_taken_out(stack: Stack) -> None:
    write(stack, "f", TEXT.replace("three\n", "three\nthree and a half\n"), "operation:1")
    assert ranges(stack, "f") == [(1, 3, "original"), (4, 1, "operation:1"), (5, 3, "original")]
    write(stack, "f", get_head(stack, "f").replace("one\ntwo\n", ""), "operation:2")
    assert ranges(stack, "f") == [(1, 1, "original"), (2, 1, "operation:1"), (3, 3, "original")]
    write(stack, "f", get_head(stack, "f").replace("six\n", "six\nseven"), "operation:3")
    assert ranges(stack, "f") == [
        (1, 1, "original"),
        (2, 1, "operation:1"),
        (3, 3, "original"),
        (6, 1, "operation:3"),
    ]
    write(stack, "f", get_head(stack, "f").replace("seven", "seven\n"), "operation:4")
    assert ranges(stack, "f")[-1] == (6, 1, "operation:4"), "a last line that got its newline is another line"
    write(stack, "f", "", "operation:5")
    assert ranges(stack, "f") == []


def get_head(stack: Stack, path: str) -> str:
    return stack.store.snapshot().read_bytes(path).decode()


@on_a_stack(BASE)
def test_merged_lines_belong_to_the_sessions_that_wrote_them(stack: Stack) -> None:
    a, b = stack.session(), stack.session()
    put(a.at("f"), TEXT.replace("one", "ONE"))
    put(b.at("f"), TEXT.replace("six", "SIX"))
    publish(a, "workspace_session:a")
    publish(b, "workspace_session:b")
    assert ranges(stack, "f") == [
        (1, 1, "workspace_session:a"),
        (2, 4, "original"),
        (6, 1, "workspace_session:b"),
    ]


@on_a_stack(BASE)
def test_a_renamed_file_is_the_renamers_and_the_old_name_keeps_its_last_answer(stack: Stack) -> None:
    write(stack, "f", TEXT + "seven\n", "operation:1")
    a = stack.session()
    os.rename(a.at("f"), a.at("moved"))
    os.unlink(a.at("untouched"))
    publish(a, "workspace_session:a")
    assert ranges(stack, "moved") == [(1, 7, "workspace_session:a")]
    assert ranges(stack, "f") == [(1, 6, "original"), (7, 1, "operation:1")]
    with pytest.raises(NotFound):
        stack.store.blame("untouched")  # deleting writes no line
    write(stack, "f", TEXT, "operation:2")
    assert ranges(stack, "f") == [(1, 6, "operation:2")], "made again is made from nothing"
    stack.reopen()
    assert ranges(stack, "f") == [(1, 6, "operation:2")]


@on_a_stack(BASE)
def test_a_file_that_went_with_its_directory_keeps_its_last_answer(stack: Stack) -> None:
    write(stack, "d/g", "zero\n" + TEXT, "operation:1")
    a = stack.session()
    os.unlink(a.at("d/g"))
    os.rmdir(a.at("d"))
    put(a.at("d"), "a file\n")
    publish(a, "workspace_session:a")
    assert ranges(stack, "d/g") == [(1, 1, "operation:1"), (2, 6, "original")]
    assert ranges(stack, "d") == [(1, 1, "workspace_session:a")]


@on_a_stack(BASE)
def test_a_directory_made_again_in_one_session_keeps_the_owners_of_lines_that_stay(stack: Stack) -> None:
    write(stack, "d/g", TEXT + "seven\n", "operation:1")
    a = stack.session()
    os.unlink(a.at("d/g"))
    os.rmdir(a.at("d"))
    put(a.at("d/g"), TEXT + "seven\neight\n")
    publish(a, "workspace_session:a")
    assert ranges(stack, "d/g") == [(1, 6, "original"), (7, 1, "operation:1"), (8, 1, "workspace_session:a")]


@on_a_stack(BASE)
def test_what_was_never_changed_or_is_a_folder_has_no_record(stack: Stack) -> None:
    put_folder = stack.session()
    os.chmod(put_folder.at("d"), 0o700)
    os.mkdir(put_folder.at("new"))
    publish(put_folder, "workspace_session:a")
    for path in ("untouched", "d", "new", "none", "f/x", "d/g"):
        with pytest.raises(NotFound) as caught:
            stack.store.blame(path)
        assert caught.value.message == f"no auditability record for path: {path}"
        assert (caught.value.reason, caught.value.details) == ("no_auditability_record", {"path": path})
    for path in ("", "/f", "a/../f", "./f"):
        with pytest.raises(InvalidPath):
            stack.store.blame(path)


@on_a_stack(BASE)
def test_a_change_of_the_mode_alone_makes_nobody_the_author(stack: Stack) -> None:
    a = stack.session()
    os.chmod(a.at("f"), 0o755)
    publish(a, "workspace_session:a")
    assert ranges(stack, "f") == [(1, 6, "original")]


@on_a_stack(BASE)
def test_ignored_binary_and_linked_paths_are_one_line_of_their_last_writer(stack: Stack) -> None:
    a = stack.session()
    put(a.at("old.log"), "x\ny\nz\n")
    put(a.at("bin"), b"a\0b\nc\nd\n")
    os.symlink("f", a.at("link"))
    put(a.at("empty"), "")
    publish(a, "workspace_session:a")
    for path in ("old.log", "bin", "link"):
        assert ranges(stack, path) == [(1, 1, "workspace_session:a")], path
    assert ranges(stack, "empty") == []
    write(stack, "old.log", "x\n", "operation:1")
    assert ranges(stack, "old.log") == [(1, 1, "operation:1")]
    write(stack, "bin", "text\nnow\n", "operation:2")
    assert ranges(stack, "bin") == [(1, 2, "operation:2")]


@on_a_stack(BASE)
def test_live_sessions_are_not_seen_and_drafts_belong_to_the_session_that_publishes_them(
    stack: Stack,
) -> None:
    a, b = stack.session(), stack.session()
    put(a.at("f"), TEXT.replace("one", "mine"))
    put(b.at("f"), TEXT.replace("one", "yours"))
    with pytest.raises(NotFound):
        stack.store.blame("f")
    publish(a, "workspace_session:a")
    assert b.rejected() == {"f": "content"}
    draft = b.keep(reason="source_conflict")
    again = stack.session(draft_id=draft.draft_id)
    put(again.at("f"), TEXT.replace("one", "mine") + "seven\n")
    put(again.at("g"), "of the last\n")
    publish(again, "workspace_session:c")
    assert ranges(stack, "f") == [
        (1, 1, "workspace_session:a"),
        (2, 5, "original"),
        (7, 1, "workspace_session:c"),
    ]
    assert ranges(stack, "g") == [(1, 1, "workspace_session:c")]


@on_a_stack(BASE, namespaces=("trusted",))
def test_an_answer_is_kept_until_the_path_changes_and_the_number_kept_is_bounded(stack: Stack) -> None:
    write(stack, "f", TEXT + "seven\n", "operation:1")
    first = stack.store.blame("f")
    write(stack, "other", "x\n", "operation:2")
    assert stack.store.blame("f") is first
    write(stack, "f", TEXT, "operation:3")
    assert ranges(stack, "f") == [(1, 6, "original")]
    cache = blame.Cache(stack.root)
    for n in range(1000):
        cache.put((str(n),), (Range(1, 1, "o"),) * 1000)
    held = [n for n in range(1000) if cache.get((str(n),)) is not None]
    assert held == list(range(1000 - blame.KEPT_RANGES // 1000, 1000))


@on_a_stack(BASE, namespaces=("trusted",))
def test_fifty_generations_of_fifteen_thousand_lines_are_distinguished(stack: Stack) -> None:
    chance = random.Random(7)
    lines = [(f"line {n}\n", "operation:0") for n in range(15_000)]
    write(stack, "big", "".join(text for text, _ in lines), "operation:0")
    for generation in range(1, 51):
        owner = f"operation:{generation}"
        for _ in range(5):
            at = chance.randrange(len(lines))
            match chance.randrange(3):
                case 0:
                    lines[at] = (f"changed at {at} by {generation}, {chance.random()}\n", owner)
                case 1:
                    lines.insert(at, (f"added at {at} by {generation}, {chance.random()}\n", owner))
                case _:
                    del lines[at]
        write(stack, "big", "".join(text for text, _ in lines), owner)
    want: list[Range] = []
    for n, (_, owner) in enumerate(lines, 1):
        if want and want[-1].owner == owner:
            want[-1] = want[-1]._replace(line_count=want[-1].line_count + 1)
        else:
            want.append(Range(n, 1, owner))
    assert list(stack.store.blame("big")) == want


@on_a_stack(BASE, namespaces=("trusted",))
def test_beyond_the_bound_of_work_lines_are_unknown_and_never_guessed(stack: Stack) -> None:
    for n in range(5):
        write(stack, "f", TEXT + "".join(f"added {k}\n" for k in range(n + 1)), f"operation:{n}")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blame, "LINES", 30)
        assert ranges(stack, "f") == [
            (1, 8, "unknown"),
            (9, 1, "operation:2"),
            (10, 1, "operation:3"),
            (11, 1, "operation:4"),
        ]


@on_a_stack(BASE, namespaces=("trusted",))
def test_a_block_of_layers_remembers_its_ranges_for_a_squash(stack: Stack) -> None:
    write(stack, "f", TEXT + "seven\n", "operation:1")
    write(stack, "gone\n\udcff", "a\n", "operation:2")
    write(stack, "single", "one\n", "operation:3")
    a = stack.session()
    os.unlink(a.at("gone\n\udcff"))
    put(a.at("f"), TEXT.replace("one", "ONE") + "seven\n")
    publish(a, "workspace_session:a")
    write(stack, "f", TEXT, "operation:later")
    assert [r.owner for r in stack.store.blame("single")] == ["operation:3"]
    chain = stack.store.snapshot().chain
    blames = dict(blame.of_block(stack.store, chain.published[1:5], chain.up_to(1)))
    assert blames == {
        "single": "operation:3",
        "f": (Range(1, 1, "workspace_session:a"), Range(2, 5, "original"), Range(7, 1, "operation:1")),
        "gone\n\udcff": (Range(1, 1, "operation:2"),),
    }
    file = f"{stack.folder}/x.blame"
    put(file, blame_file.dump(blames))
    assert blame_file.load(file) == blames
    assert get(file).startswith('{"format":1')


@on_a_stack(BASE)
def test_a_squash_changes_no_answer(stack: Stack) -> None:
    write(stack, "f", TEXT + "seven\n", "operation:1")
    write(stack, "single", "one\n", "operation:2")
    write(stack, "made and gone", "one\n", "operation:3")
    write(stack, "old.log", "x\n", "operation:4")
    write(stack, "d/g", TEXT + "seven\n", "operation:5")
    a = stack.session()
    os.unlink(a.at("made and gone"))
    put(a.at("f"), TEXT.replace("one", "ONE") + "seven\n")
    os.unlink(a.at("d/g"))
    os.rmdir(a.at("d"))
    put(a.at("bin"), b"\0")
    publish(a, "workspace_session:a")
    paths = ("f", "single", "made and gone", "old.log", "d/g", "bin")
    want = {path: ranges(stack, path) for path in paths}
    assert stack.store.squash().blocks and len(stack.store.head.layers) == 2
    write(stack, ".gitignore", "single\n", "operation:0")
    assert {path: ranges(stack, path) for path in paths} == want
    write(stack, ".gitignore", "*.log\n", "operation:0")
    write(stack, "f", get_head(stack, "f").replace("five", "FIVE"), "operation:6")
    assert ranges(stack, "f") == [
        (1, 1, "workspace_session:a"), (2, 3, "original"), (5, 1, "operation:6"), (6, 1, "original"), (7, 1, "operation:1"),  # noqa: E501
    ]  # fmt: skip
    write(stack, "single", "one\ntwo\n", "operation:7")
    want = {path: ranges(stack, path) for path in paths}
    stack.reopen()
    assert stack.store.squash().blocks and len(stack.store.head.layers) == 2
    stack.reopen()
    assert {path: ranges(stack, path) for path in paths} == want
    assert want["single"] == [(1, 1, "operation:2"), (2, 1, "operation:7")]


def test_what_many_paths_remember_is_read_as_it_was_written_and_every_flipped_bit_is_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blame_file, "SMALL", 2)
    blames: dict[str, blame_file.LayerBlame] = {
        "": "operation:root",
        "a\tb\\": "operation:1",
        "a\n": (Range(1, 2, "operation:1"), Range(3, 1, "original")),
        "b/c": "operation:1",
        "b\udcff": (Range(1, 1, "unknown"),),
        "\u00e9": (),
    }
    pairs = sorted(blames.items(), key=lambda pair: os.fsencode(pair[0]))
    path = str(tmp_path / "x.blame")
    digest = blame_file.write_new(path, pairs, aside=str(tmp_path))
    assert (
        list(blame_file.load(path).items()) == pairs
        and digest == blame_file.checksum(path)
        and os.listdir(tmp_path) == ["x.blame"]
    )
    data = (tmp_path / "x.blame").read_bytes()
    assert data.startswith(b"eos-blame 2 6 ")
    for at in range(len(data)):
        for bit in range(8):
            (tmp_path / "x.blame").write_bytes(data[:at] + bytes([data[at] ^ 1 << bit]) + data[at + 1 :])
            with pytest.raises(StoreCorrupt) as caught:
                blame_file.load(path)
            assert caught.value.details["file"] == path
    for end in range(len(data)):
        (tmp_path / "x.blame").write_bytes(data[:end])
        with pytest.raises(StoreCorrupt):
            blame_file.load(path)
