"""Windows and edits of text, byte for byte."""

from __future__ import annotations

import io
from typing import Any

import pytest

from eos_agent.files import text
from eos_agent.files.text import apply_edits, parse_edits, read_window
from eos_agent.wire.protocol import OperationError


def window(raw: bytes, offset: int = 1, limit: int = 2000, **more: Any) -> dict[str, Any]:
    return read_window(io.BytesIO(raw), "f", offset, limit, **more).to_json()


def edit(raw: bytes, *edits: tuple[str, str] | tuple[str, str, bool]) -> bytes:
    parsed = parse_edits(
        [{"old_string": e[0], "new_string": e[1], "replace_all": len(e) == 3} for e in edits]
    )
    return apply_edits(raw, parsed, "f", 4 << 20).content


def refused(raw: bytes, edits: Any) -> OperationError:
    with pytest.raises(OperationError) as caught:
        apply_edits(raw, parse_edits(edits), "f", 4 << 20)
    assert caught.value.kind == "invalid_request"
    return caught.value


def test_a_window_has_plain_line_ends_and_no_bom() -> None:
    assert window(b"\xef\xbb\xbfone\r\ntwo\nthree\r\n") == {
        "content": "one\ntwo\nthree",
        "start_line": 1,
        "num_lines": 3,
        "total_lines": 3,
        "bytes_read": 13,
        "total_bytes": 19,
        "next_offset": None,
        "truncated": False,
    }


def test_a_window_in_the_middle_says_where_to_go_on() -> None:
    raw = b"".join(b"line %d\n" % n for n in range(1, 101))
    found = window(raw, 11, 10)
    assert found["content"].split("\n")[0] == "line 11" and found["content"].split("\n")[-1] == "line 20"
    assert (found["num_lines"], found["total_lines"], found["next_offset"], found["truncated"]) == (
        10,
        100,
        21,
        True,
    )
    last = window(raw, 91, 10)
    assert (last["num_lines"], last["next_offset"], last["truncated"]) == (10, None, False)


def test_an_offset_past_the_end_is_an_empty_success() -> None:
    found = window(b"a\nb\n", 9)
    assert (
        found["content"],
        found["num_lines"],
        found["total_lines"],
        found["next_offset"],
        found["truncated"],
    ) == ("", 0, 2, None, False)
    assert window(b"")["total_lines"] == 0


def test_a_window_deep_in_a_large_file_crosses_read_boundaries() -> None:
    lines = [f"{n:06} " + "\u00e9" * (n % 100) for n in range(40_000)]
    raw = "\r\n".join(lines).encode()
    for offset in (1, 9_999, 20_001, 38_500):
        found = window(raw, offset, 1500)
        assert found["content"].split("\n") == lines[offset - 1 : offset + 1499]
        assert found["total_lines"] == 40_000


def test_a_window_over_256_kib_is_refused_by_name_and_one_of_exactly_that_size_passes() -> None:
    assert window(b"x" * 262144 + b"\n")["bytes_read"] == 262144
    with pytest.raises(OperationError, match="selected read output exceeds the maximum of 262144 bytes"):
        window(b"x" * 262145)


@pytest.mark.parametrize("raw", [b"ok\n\xff\n", b"cut \xe2\x82", b"a\n" * ((1 << 19) - 1) + b"a\xc3("])
def test_bytes_that_are_no_utf8_are_refused(raw: bytes) -> None:
    with pytest.raises(OperationError, match="not valid UTF-8"):
        window(raw)


def test_an_edit_changes_only_what_it_names() -> None:
    raw = b"\xef\xbb\xbfone\r\ntwo\nthree\r\nfour\r\n"
    assert edit(raw, ("three", "3")) == b"\xef\xbb\xbfone\r\ntwo\n3\r\nfour\r\n"
    assert edit(raw, ("one\ntwo\nthree", "1\ntwo\n3")) == b"\xef\xbb\xbf1\r\ntwo\n3\r\nfour\r\n"
    assert edit(raw, ("two\n", "")) == b"\xef\xbb\xbfone\r\nthree\r\nfour\r\n"


def test_a_line_that_is_added_takes_the_ending_of_its_neighbour() -> None:
    assert edit(b"a\r\nb\r\n", ("a", "a\nnew")) == b"a\r\nnew\r\nb\r\n"
    assert edit(b"a\r\nb\n\nc", ("b", "b\nnew")) == b"a\r\nb\nnew\n\nc"
    assert edit(b"a\nb\r\nc", ("b", "b\nnew")) == b"a\nb\r\nnew\r\nc"
    assert edit(b"a\nb\r\nc", ("c", "c\nnew")) == b"a\nb\r\nc\r\nnew"
    assert edit(b"a\nb\n", ("b", "b\nc")) == b"a\nb\nc\n"


def test_replace_all_keeps_every_other_ending() -> None:
    raw = b"x 1\r\nx 2\nx 3\r\n"
    assert edit(raw, ("x", "yy", True)) == b"yy 1\r\nyy 2\nyy 3\r\n"
    assert edit(raw, ("\nx", "\n\nx", True)) == b"x 1\r\n\r\nx 2\n\nx 3\r\n"


def test_random_edits_agree_with_a_plain_replace_on_plain_text() -> None:
    import random

    chance = random.Random(7)
    for _ in range(300):
        text = "".join(chance.choice("ab\n") for _ in range(chance.randrange(1, 40)))
        endings = [chance.random() < 0.5 for _ in range(text.count("\n"))]
        lines = text.split("\n")
        raw = (
            "".join(line + ("\r\n" if crlf else "\n") for line, crlf in zip(lines, endings, strict=False))
            + lines[-1]
        )
        start = chance.randrange(len(text))
        old = text[start : start + chance.randrange(1, 5)]
        new = "".join(chance.choice("abc\n") for _ in range(chance.randrange(0, 4)))
        if old == new:
            continue
        assert edit(raw.encode(), (old, new, True)).replace(b"\r\n", b"\n").decode() == text.replace(old, new)


def test_edits_apply_in_order_to_the_running_text() -> None:
    assert edit(b"a", ("a", "b"), ("b", "cc"), ("c", "d", True)) == b"dd"


def test_bad_edits_are_named() -> None:
    assert refused(b"x", []).message == "edits must not be empty"
    assert (
        "edits[1].new_string"
        in refused(b"x", [{"old_string": "x", "new_string": "y"}, {"old_string": "y"}]).message
    )
    assert (
        "edits[0].replace_all"
        in refused(b"x", [{"old_string": "x", "new_string": "y", "replace_all": 1}]).message
    )
    assert (
        "string to replace not found in f: " + "z" * 60
        in refused(b"x", [{"old_string": "z" * 99, "new_string": ""}]).message
    )
    found = refused(b"x x", [{"old_string": "x", "new_string": "y"}])
    assert "found 2 matches" in found.message and "replace_all" in found.message
    assert "no changes" in refused(b"x", [{"old_string": "x", "new_string": "x"}]).message
    both = [{"old_string": "x", "new_string": "y"}, {"old_string": "y", "new_string": "x"}]
    assert "no changes" in refused(b"x", both).message
    assert "not valid UTF-8" in refused(b"\xff x", [{"old_string": "x", "new_string": "y"}]).message
    assert parse_edits('[{"old_string":"a","new_string":"b"}]')[0].old == "a"


def test_a_file_over_the_limit_is_not_edited() -> None:
    with pytest.raises(OperationError, match="too large"):
        apply_edits(
            b"x" * 11, parse_edits([{"old_string": "x", "new_string": "y", "replace_all": True}]), "f", 10
        )


def test_a_file_that_takes_too_long_to_read_through_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text, "SCAN_S", -1.0)
    with pytest.raises(OperationError) as caught:
        window(b"a\nb\n", 3)
    assert (caught.value.kind, caught.value.details["reason"]) == ("invalid_request", "file_too_large")


def test_an_edit_that_changes_nothing_is_refused_before_the_file_is_looked_at() -> None:
    with pytest.raises(OperationError) as caught:
        parse_edits([{"old_string": "a", "new_string": "b"}, {"old_string": "c", "new_string": "c"}])
    assert (caught.value.kind, caught.value.details["reason"], caught.value.details["index"]) == (
        "invalid_request",
        "edit_no_change",
        1,
    )
