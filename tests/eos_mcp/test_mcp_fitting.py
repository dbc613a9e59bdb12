"""Long replies as a model gets them: a first page of each, true in itself, with where it goes on."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from eos_mcp.mcp import render
from eos_mcp.mcp.truncate import BUDGET, fit

TOKENS = 10_000
CHARACTERS_PER_TOKEN = 3.5


def command(output: str, **more: Any) -> dict[str, Any]:
    total = output.count("\n") + 1
    plain = {
        "status": "ok",
        "exit_code": 0,
        "start_offset": 0,
        "end_offset": total,
        "total_lines": total,
        "output": output,
    }
    return {
        **plain,
        "original_token_count": len(output) // 4,
        "command_session_id": "namespace_execution_1",
        **more,
    }


def tokens(reply: dict[str, Any]) -> float:
    return len(json.dumps(reply, ensure_ascii=False)) / CHARACTERS_PER_TOKEN


def test_what_is_short_is_as_it_came() -> None:
    replies: list[tuple[str, dict[str, Any]]] = [
        ("exec_command", command("short")),
        (
            "file_read",
            {"path": "a", "content": "x" * BUDGET, "start_line": 1, "num_lines": 1, "total_lines": 1},
        ),
        (
            "file_list",
            {"path": "", "entries": [{"name": "a", "kind": "file", "size": 1}], "truncated": False},
        ),
        ("exec_command", {"error": {"kind": "not_found", "message": "m", "details": {}}}),
        ("exec_command", {"output": 7}),
        ("list_drafts", {"drafts": []}),
    ]
    for name, reply in replies:
        assert fit(name, reply) == reply


def test_of_a_long_output_head_and_tail_are_left_with_the_rows_between_by_number() -> None:
    rows = [f"row {n} " + "x" * 30 for n in range(5000)]
    found = fit("exec_command", command("\n".join(rows)))
    head, tail = found["output"].split("\n"), found["tail"]["output"].split("\n")
    assert head == rows[: found["end_offset"]] and tail == rows[found["tail"]["start_offset"] :]
    assert found["truncated"] is True and found["total_lines"] == 5000 and tokens(found) < TOKENS
    text = render.result("exec_command", {}, found)
    shown = len(text.partition("[... lines ")[0].splitlines()) - 2  # without the first line and the empty one
    assert rows[-1] in text and text.count("start_offset=") == 1 and f"start_offset={shown} " in text


def test_an_answer_that_is_already_cut_keeps_the_tail_that_it_has() -> None:
    rows = ["y"] * 100_000
    tail = {"start_offset": 2_499_999, "output": "the end"}
    found = fit(
        "exec_command",
        command("\n".join(rows), total_lines=2_500_000, total_bytes=5_000_000, tail=tail, truncated=True),
    )
    assert (
        found["tail"] == tail
        and found["output"] == "\n".join(rows[: found["end_offset"]])
        and tokens(found) < TOKENS
    )


def test_pages_of_lines_go_on_where_the_last_one_ended() -> None:
    rows = [f"row {n} " + "x" * (n % 50) for n in range(3000)]
    seen: list[str] = []
    while len(seen) < len(rows):
        page = rows[len(seen) : len(seen) + 1000]
        reply = command(
            "\n".join(page), start_offset=len(seen), end_offset=len(seen) + len(page), total_lines=3000
        )
        found = fit("read_command_lines", reply)
        assert found["start_offset"] == len(seen) and "tail" not in found
        seen += found["output"].split("\n")
        assert found["end_offset"] == len(seen)
    assert seen == rows


def test_the_row_that_stands_for_dropped_ones_counts_for_all_of_them() -> None:
    before, after = ["b" * 99] * 50, ["a" * 99] * 2000
    dropped = {"start_offset": 50, "end_offset": 90_050, "bytes": 9_000_000}
    reply = command(
        "\n".join([*before, "[dropped]", *after]), dropped=dropped, end_offset=92_050, total_lines=92_050
    )
    found = fit("read_command_lines", reply)
    kept = found["output"].split("\n")
    assert found["end_offset"] == 90_050 + len(kept) - 51 and found["dropped"] == dropped
    late = {**dropped, "start_offset": 1500, "end_offset": 2500}
    found = fit(
        "read_command_lines",
        {**reply, "output": "\n".join(["b" * 99] * 1500 + ["[dropped]", *after]), "dropped": late},
    )
    assert "dropped" not in found and found["end_offset"] == found["output"].count("\n") + 1


def test_one_overlong_row_is_cut_and_says_so() -> None:
    found = fit("exec_command", command("z" * 60_000 + "\nnext"))
    assert (
        found["end_offset"] == 1
        and found["output"].endswith("characters in this line]")
        and len(found["output"]) < BUDGET
    )
    assert found["tail"] == {"start_offset": 1, "output": "next"}
    found = fit("exec_command", command("ok", stderr="e" * 30_000 + "\n" + "f\n" * 9, stderr_end_offset=11))
    assert found["stderr_end_offset"] == 1 and found["truncated"] is True and tokens(found) < TOKENS


def test_pages_of_a_file_are_the_file() -> None:
    lines = [f"line {n} " + "\u00e9" * 60 for n in range(2000)]
    seen: list[str] = []
    offset: int | None = 1
    while offset is not None:
        page = lines[offset - 1 :]
        content = "\n".join(page)
        reply = {
            "path": "f",
            "content": content,
            "start_line": offset,
            "num_lines": len(page),
            "total_lines": 2000,
            "next_offset": None,
        }
        found = fit(
            "file_read", {**reply, "bytes_read": len(content.encode()), "total_bytes": 1, "truncated": False}
        )
        part = found["content"].split("\n")
        assert (
            found["num_lines"] == len(part)
            and found["bytes_read"] == len(found["content"].encode())
            and tokens(found) < TOKENS
        )
        seen += part
        offset = found["next_offset"]
    assert seen == lines


def test_an_overlong_line_of_a_file_is_cut_outside_of_its_content() -> None:
    reply = {
        "path": "f",
        "content": "x" * 50_000 + "\ny",
        "start_line": 1,
        "num_lines": 2,
        "total_lines": 2,
        "total_bytes": 50_002,
    }
    found = fit("file_read", {**reply, "bytes_read": 50_002, "next_offset": None, "truncated": False})
    assert (found["content"], found["line_cut_characters"], found["next_offset"]) == (
        "x" * BUDGET,
        50_000 - BUDGET,
        2,
    )
    assert "30000 more characters of this line" in render.result("file_read", {}, found)


def test_a_window_of_bytes_ends_at_a_byte() -> None:
    raw = bytes(range(256)) * 300
    reply = {
        "path": "f",
        "content": base64.b64encode(raw).decode(),
        "encoding": "base64",
        "offset": 101,
        "bytes_read": len(raw),
    }
    found = fit(
        "file_read", {**reply, "total_bytes": 100 + len(raw), "next_offset": None, "truncated": False}
    )
    part = base64.b64decode(found["content"])
    assert (
        raw.startswith(part) and found["bytes_read"] == len(part) and found["next_offset"] == 101 + len(part)
    )


@pytest.mark.parametrize("name", ["plain {}", "d\u00e9j\u00e0 {}"])
def test_a_long_listing_ends_with_a_cursor_of_its_last_name(name: str) -> None:
    entries = [{"name": name.format(n), "kind": "file", "size": 1} for n in range(2000)]
    found = fit("file_list", {"path": "d", "entries": entries, "truncated": False})
    assert found["truncated"] is True and tokens(found) < TOKENS
    assert base64.urlsafe_b64decode(found["next"]).decode() == found["entries"][-1]["name"]
    assert f"cursor={found['next']}" in render.result("file_list", {}, found)
    raw = base64.b64encode(b"d/caf\xe9").decode()
    odd = [{"name": "caf\ufffd", "kind": "file", "size": 1, "path_b64": raw}] * 1000
    assert (
        base64.urlsafe_b64decode(fit("file_list", {"path": "d", "entries": odd, "truncated": False})["next"])
        == b"caf\xe9"
    )


def test_a_long_blame_says_from_which_line_on_there_is_more() -> None:
    ranges = [{"start_line": 3 * n + 1, "line_count": 3, "owner": f"operation:{n:036}"} for n in range(7000)]
    found = fit("file_blame", {"path": "f", "ranges": ranges})
    assert (
        found["truncated"] is True
        and found["next_offset"] == 3 * len(found["ranges"]) + 1
        and tokens(found) < TOKENS
    )
    assert f"offset={found['next_offset']}" in render.result("file_blame", {}, found)


def test_of_a_dry_run_so_many_paths_are_shown_and_all_are_counted() -> None:
    paths = [f"{n}/" + "p" * 200 for n in range(200)]
    reply: dict[str, Any] = {
        "dry_run": True,
        "changes": [{"action": "write", "path": path} for path in paths],
        "change_count": 900,
    }
    reply |= {"edited": paths, "edited_count": 800, "files_written": 900}
    found = fit("export_changes", reply)
    assert tokens(reply) > TOKENS > tokens(found) and (found["change_count"], found["edited_count"]) == (
        900,
        800,
    )
    assert 20 < len(found["edited"]) < 200 and found["changes"] == reply["changes"][: len(found["changes"])]
    text = render.result("export_changes", {"dest": "/out"}, found)
    assert f"and {900 - len(found['changes'])} more" in text
    for short in (
        {"files_written": 3, "layers_exported": []},
        {"dry_run": True, "changes": [], "change_count": 0, "edited": None},
    ):
        assert fit("export_changes", short) == short
