"""Cases from the field: files. The numbers are those under which the reports were collected."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from typing import Any

import pytest

from tests import interpreter
from tests.eos_agent.internal_calls import squash

from .agent_process import Agent, Failed

pytestmark = pytest.mark.needs("overlay")

WATCHER = """
import ctypes, os, struct, sys
libc = ctypes.CDLL(None, use_errno=True)
fd = libc.inotify_init1(0)
path = sys.argv[1]
wanted = {2: "modify", 4: "attrib", 8: "close_write", 0x80: "moved_to", 0x400: "delete_self", 0x800: "move_self"}
mask = sum(wanted)
watches = {libc.inotify_add_watch(fd, path.encode(), mask): "file", libc.inotify_add_watch(fd, b".", mask): "folder"}
print("watching", flush=True)
while True:
    data = os.read(fd, 65536)
    at = 0
    while at < len(data):
        wd, bits, _, length = struct.unpack_from("iIII", data, at)
        name = data[at + 16 : at + 16 + length].rstrip(b"\\0").decode()
        at += 16 + length
        for bit, word in wanted.items():
            if bits & bit and (watches.get(wd) == "file" or name == path):
                print(watches.get(wd), word, flush=True)
        if bits & 0x400:
            watches[libc.inotify_add_watch(fd, path.encode(), mask)] = "file"
"""  # noqa: E501


class Watch:
    """A program in a session that watches one file and its directory, as file watchers do."""

    def __init__(self, agent: Agent, session: str, path: str) -> None:
        self.agent = agent
        cmd = f"exec {shlex.quote(interpreter.in_sessions())} -c {shlex.quote(WATCHER)} {shlex.quote(path)}"
        started = agent.run(cmd, session, yield_time_ms=0, tty=False)
        self.command = started["command_session_id"]
        self.at = 0
        self.until(lambda seen: "watching" in seen)

    def until(self, enough: Callable[[list[str]], bool]) -> list[str]:
        """What it saw since the last call, once that is enough."""
        seen: list[str] = []
        while not enough(seen):
            page = self.agent.call(
                "read_command_lines", command_session_id=self.command, start_offset=self.at, limit=1000
            )
            assert page["status"] == "running", page
            if page["end_offset"] > self.at:
                seen += page["output"].split("\n")
                self.at = page["end_offset"]
        return seen


@pytest.mark.parametrize("first", ["command", "edit", "write", "rename", "move"])
def test_a_watcher_of_a_file_of_a_lower_layer_sees_its_first_change_and_those_after_it(
    shared_agent: Agent, session: str, first: str
) -> None:
    """Each way of changing it comes first once: the copy-up of a lower file must not take the watch with
    it.
    """
    agent, at = shared_agent, {"workspace_session_id": session}
    watch = Watch(agent, session, "README.md")
    changes: dict[str, tuple[Callable[[], object], str]] = {
        "command": (lambda: agent.run("echo more >> README.md", session), "modify"),
        "edit": (
            lambda: agent.call(
                "file_edit",
                path="README.md",
                edits=[{"old_string": agent.read("README.md", **at), "new_string": "edited"}],
                **at,
            ),
            "moved_to",
        ),
        "write": (lambda: agent.call("file_write", path="README.md", content="written\n", **at), "moved_to"),
        "rename": (lambda: agent.run("echo renamed > .tmp && mv .tmp README.md", session), "moved_to"),
        "move": (
            lambda: (
                agent.call("file_write", path="other", content="moved\n", **at),
                agent.call("file_move", overwrite=True, **{"from": "other", "to": "README.md", **at}),
            ),
            "moved_to",
        ),
    }
    order = [first, *(name for name in changes if name != first)]
    for name in order:
        change, event = changes[name]
        change()
        if event == "modify":
            watch.until(lambda seen: "file modify" in seen and "folder modify" in seen)
        else:  # the watched inode went, and the folder got another of that name
            watch.until(
                lambda seen: "folder moved_to" in seen and bool({"file delete_self", "file attrib"} & {*seen})
            )


def test_a_session_whose_layers_are_folded_under_it_is_told_of_as_pinned_and_its_watchers_see_what_comes_after(  # noqa: E501
    shared_agent: Agent,
) -> None:
    agent = shared_agent
    for n in range(3):  # the newest layer of a session is never folded
        agent.call("file_write", path="folded", content=f"{n}\n")
    session = agent.session()
    at = {"workspace_session_id": session}
    watch = Watch(agent, session, "folded")
    squashed = squash(agent)
    assert [(row["session_id"], row["disposition"]) for row in squashed["swept_sessions"]] == [
        (session, "leased")
    ]
    (block,) = squashed["squashed_blocks"]
    assert block["replaced_layers"] == "leased" and any(
        "pinned" in reason for reason in block["blocked_reasons"]
    )
    agent.run("echo command >> folded", session)
    watch.until(lambda seen: "file modify" in seen)
    agent.call("file_edit", path="folded", edits=[{"old_string": "command", "new_string": "edit"}], **at)
    watch.until(lambda seen: "folder moved_to" in seen)
    assert agent.read("folded", **at) == "2\nedit"
    agent.call("signal_command", command_session_id=watch.command, signal="KILL")
    agent.call("destroy_workspace_session", grace_s=60, **at)


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
