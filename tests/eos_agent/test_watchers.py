"""File watchers over layers: inotify on a file of a lower layer, and over a squash."""

from __future__ import annotations

import shlex
from collections.abc import Callable

import pytest

from tests import interpreter
from tests.eos_agent.internal_calls import squash

from .agent_process import Agent

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


def test_a_session_whose_layers_are_squashed_under_it_counts_as_pinned_and_its_watchers_see_what_comes_after(
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
