"""Files in sessions and of the head: line ends, sizes, bounded pages."""

from __future__ import annotations

import json
from typing import Any

import pytest

from .agent_process import Agent, Failed

pytestmark = pytest.mark.needs("overlay")


def test_an_edit_keeps_mode_mark_and_every_other_line_end_and_refuses_a_symlink(
    shared_agent: Agent, session: str
) -> None:
    make = r"printf '\357\273\277one\r\ntwo\nthree\r\n' > f; chmod 755 f; ln -s f link; ln -s /etc/passwd out"
    look = "od -An -c f | tr -d ' \\n'; stat -c ' %a' f"
    for at in ({"workspace_session_id": session}, {}):
        shared_agent.run(make, at.get("workspace_session_id"))
        shared_agent.call("file_edit", path="f", edits=[{"old_string": "two", "new_string": "2\nand"}], **at)
        assert (
            shared_agent.run(look, at.get("workspace_session_id"))["output"]
            == "357273277one\\r\\n2\\nand\\nthree\\r\\n 755"
        )
        for link, target in (("link", "f"), ("out", "/etc/passwd")):
            with pytest.raises(Failed) as caught:
                shared_agent.call(
                    "file_edit", path=link, edits=[{"old_string": "one", "new_string": "1"}], **at
                )
            error = caught.value
            assert (error.kind, error.details["kind"], error.details["target"]) == (
                "invalid_request",
                "Symlink",
                target,
            )
            assert target in error.message


def test_a_small_file_takes_the_place_of_a_big_one_whole_and_memory_stays_bounded(
    shared_agent: Agent, session: str
) -> None:
    def resident() -> int:
        with open(f"/proc/{shared_agent.pid}/statm") as file:
            return int(file.read().split()[1]) * 4096

    shared_agent.call("file_write", path="swap", content="small\n")
    before = resident()
    for at in ({"workspace_session_id": session}, {}):
        for _ in range(3):
            assert (
                shared_agent.call("file_write", path="swap", content="x" * 10_000_000, **at)["bytes_written"]
                == 10_000_000
            )
            assert (
                shared_agent.call("file_write", path="swap", content="y" * 1000, **at)["bytes_written"]
                == 1000
            )
            assert (
                shared_agent.run("wc -c < swap", at.get("workspace_session_id"), tty=False)["output"]
                == "1000"
            )
            assert shared_agent.read("swap", **at) == "y" * 1000
    assert resident() - before < 120 << 20


def test_a_directory_of_a_lower_layer_that_was_deleted_leaves_nothing_behind(
    shared_agent: Agent, session: str
) -> None:
    shared_agent.run("mkdir -p gone/deep; echo 1 > gone/a; echo 2 > gone/deep/b")
    own = shared_agent.session()
    try:
        at = {"workspace_session_id": own}
        shared_agent.call("file_delete", path="gone", recursive=True, **at)
        for where in (at, {}):
            if where is not at:
                shared_agent.call("publish_workspace_session", **at)
            names = [entry["name"] for entry in shared_agent.call("file_list", path="", **where)["entries"]]
            assert "gone" not in names
            with pytest.raises(Failed) as caught:
                shared_agent.call("file_list", path="gone", **where)
            assert caught.value.kind == "not_found"
    finally:
        if own in [
            row["workspace_session_id"] for row in shared_agent.call("list_workspace_sessions")["sessions"]
        ]:
            shared_agent.call("destroy_workspace_session", workspace_session_id=own)
    shared_agent.run("mkdir -p gone/deep; echo 1 > gone/a")
    shared_agent.call("file_delete", path="gone", recursive=True)
    assert shared_agent.run("test -e gone && echo there; mkdir gone && ls -A gone", tty=False)["output"] == ""
    shared_agent.call("file_delete", path="gone")


def test_a_big_file_a_long_listing_and_a_wide_search_come_in_bounded_pages(
    shared_agent: Agent, session: str
) -> None:
    line = "some text of a line that is not short at all"
    shared_agent.run(
        f"yes '{line}' | head -n 45000 > big; mkdir many; cd many; seq 1 3000 | xargs touch",
        session,
        timeout_ms=60_000,
    )
    at = {"workspace_session_id": session}
    page = shared_agent.call("file_read", path="big", **at)
    assert (page["num_lines"], page["total_lines"], page["next_offset"], page["truncated"]) == (
        2000,
        45_000,
        2001,
        True,
    )
    assert shared_agent.call("file_read", path="big", offset=44_999, **at)["next_offset"] is None
    listing = shared_agent.call("file_list", path="many", **at)
    assert len(listing["entries"]) == 2000 and listing["truncated"] is True
    found = shared_agent.call("file_search", pattern="not short", **at)
    assert len(json.dumps(found)) < 40_000 and found["stopped"] in ("matches", "bytes") and found["next"]


def test_a_window_of_15000_lines_and_an_edit_of_4_mib_work_in_a_session_and_on_the_head(
    shared_agent: Agent, session: str
) -> None:
    text = "".join(f"line {n}\n" for n in range(15_000))
    big = "".join(f"{n:07} " + "x" * 91 + "\n" for n in range(41_000))  # 4,100,000 bytes
    for at in ({"workspace_session_id": session}, {}):
        shared_agent.call("file_write", path="long", content=text, **at)
        lines: list[str] = []
        offset: int | None = 1
        while offset is not None:
            page = shared_agent.call("file_read", path="long", offset=offset, **at)
            lines += page["content"].split("\n")
            offset = page["next_offset"]
        assert lines == text.split("\n")[:-1]
        shared_agent.call("file_write", path="big", content=big, **at)
        done: dict[str, Any] = shared_agent.call(
            "file_edit", path="big", edits=[{"old_string": "0040999 ", "new_string": "the last "}], **at
        )
        assert done["bytes_written"] == len(big) + 1
