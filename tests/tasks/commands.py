"""Tasks with commands that run long, print much, or talk to a terminal."""

from __future__ import annotations

import re

from tests.tasks.project import Desk
from tests.tasks.reader import Reader

LINES, WHERE = 50_000, 31_337
TURNS = 30
"""Calls of one wait, at most."""
_WAIT_MS = 4_000


def long_log(desk: Desk) -> None:
    """Find the one error in a log of 50,000 lines, and the two lines before it."""
    reader = desk.reader
    text = reader.use(
        "exec_command",
        cmd=f"seq {LINES} | sed 's/^/step /; {WHERE}s/.*/ERROR: disk 7 is full/'",
        yield_time_ms=20_000,
    )
    command = reader.id_of("command_session_id")
    pages = [call for call in reader.advised(text) if reader.takes(call.tool, "pattern")]
    assert pages, text
    found = reader.use(pages[0].tool, command_session_id=command, pattern="ERROR")
    number = re.search(r"^(\d+): ?ERROR", found, re.MULTILINE)
    assert number is not None, found
    shown = reader.use(pages[0].tool, command_session_id=command, start_offset=int(number[1]) - 2, limit=3)
    assert f"step {WHERE - 2}\nstep {WHERE - 1}\nERROR" in shown, shown


def hung_command(desk: Desk) -> None:
    """End a one-off command that does not end by itself, and publish what it had written."""
    reader = desk.reader
    text = reader.use(
        "exec_command", cmd="echo half > report.txt; echo begun; sleep 86399", yield_time_ms=500
    )
    assert _running(text) and "begun" in text, text
    text = reader.follow(text, wait_ms=500)
    assert _running(text), text
    signal = reader.tool_for("signal to a running command")
    text = reader.use(signal, command_session_id=reader.id_of("command_session_id"), signal="TERM")
    text = _ended(reader, text)
    assert "NOT PUBLISHED" in text, text
    text = reader.follow(text)
    text = reader.follow(text)
    assert "published as version" in text, text
    assert "half" in desk.published("report.txt")


def interpreter(desk: Desk) -> None:
    """Use an interpreter on a terminal: compute, interrupt a loop, compute again, end it."""
    reader = desk.reader
    text = reader.use("exec_command", cmd="python3 -q", yield_time_ms=1_500)
    assert ">>>" in text, text
    command = reader.id_of("command_session_id")

    def type_in(words: str, yield_time_ms: int = 700) -> str:
        return reader.use(
            "write_command_stdin", command_session_id=command, stdin=words, yield_time_ms=yield_time_ms
        )

    assert "42" in type_in("6 * 7\n")
    assert _running(type_in("while True: pass\n\n"))
    signal = reader.tool_for("signal to a running command")
    reader.use(signal, command_session_id=command, signal="INT")
    assert "49" in type_in("7 * 7\n")
    assert "exit code 0" in _ended(reader, type_in("\x04", _WAIT_MS))


def rebase_interactively(desk: Desk) -> None:
    """Squash the last two commits with `git rebase -i`, in a session."""
    reader = desk.reader
    with reader.uncounted():
        reader.use("exec_command", cmd="git add -A && git commit -q -m 'work of today'")
    reader.use("create_workspace_session")
    session = reader.id_of("workspace_session_id")
    text = reader.use("exec_command", cmd="git rebase -i HEAD~2", workspace_session_id=session)
    assert "exit code 1" in text, text
    advice = re.search(r"set (\w+) in (\w+)\b", text.replace("\n", " "))
    assert advice is not None and reader.takes("exec_command", advice[2]), text
    text = reader.use(
        "exec_command",
        cmd="git rebase -i HEAD~2; git log --oneline",
        workspace_session_id=session,
        **{advice[2]: [f"{advice[1]}=sed -i -e '2s/^pick/fixup/'"]},
    )
    assert "step 3" in text and "work of today" not in text, text
    done = reader.use("publish_workspace_session", workspace_session_id=session)
    assert "published as version" in done, done


def prompts(desk: Desk) -> None:
    """Answer a question for a password and one for yes or no."""
    reader = desk.reader
    text = reader.use("exec_command", cmd="sh ask.sh", yield_time_ms=700)
    assert "Password:" in text, text
    command = reader.id_of("command_session_id")
    text = reader.use("write_command_stdin", command_session_id=command, stdin="secret\n", yield_time_ms=700)
    assert "Continue?" in text and "secret" not in text, text
    text = reader.use("write_command_stdin", command_session_id=command, stdin="y\n", yield_time_ms=_WAIT_MS)
    assert "exit code 0" in _ended(reader, text)
    assert "password of 6 characters, y" in desk.published("answers.txt")


def end_of_input(desk: Desk) -> None:
    """Send lines to `cat | sort` and end its input."""
    reader = desk.reader
    text = reader.use("exec_command", cmd="cat | sort", yield_time_ms=500)
    assert _running(text), text
    command = reader.id_of("command_session_id")
    write = reader.tool_for("to a running command", "U+0004 alone ends its input")
    reader.use(write, command_session_id=command, stdin="b\na\n", yield_time_ms=200)
    text = reader.use(write, command_session_id=command, stdin="\x04", yield_time_ms=_WAIT_MS)
    text = _ended(reader, text)
    assert "exit code 0" in text and "a\nb" in text, text


def server(desk: Desk) -> None:
    """Start a server in a session, ask it, change a file, publish, and have the server end."""
    reader = desk.reader
    reader.use("create_workspace_session")
    session = reader.id_of("workspace_session_id")
    inside = {"workspace_session_id": session}
    start = "exec python3 -m http.server 8123"
    if reader.takes("exec_command", "service"):
        text = reader.use("exec_command", cmd=start, service="web", ready={"port": 8123}, **inside)
    else:
        text = reader.use("exec_command", cmd=start, yield_time_ms=1_500, **inside)
        assert _running(text), text
    fetch = "from urllib.request import urlopen; print(urlopen('http://127.0.0.1:8123/log.txt').status)"
    command = reader.id_of("command_session_id") if "command_session_id" in text else ""
    assert "200" in reader.use("exec_command", cmd=f'python3 -c "{fetch}"', **inside)
    reader.use("file_write", path="served.txt", content="x\n", **inside)
    text = reader.use("publish_workspace_session", **inside)
    if reader.failed:  # a command runs in the session
        signal = reader.tool_for("signal to a running command")
        _ended(reader, reader.use(signal, command_session_id=command, signal="TERM"))
        text = reader.use("publish_workspace_session", **inside)
    assert "published as version" in text, text
    assert "x" in desk.published("served.txt")


def _running(text: str) -> bool:
    return text.startswith("running")


def _ended(reader: Reader, text: str) -> str:
    """Follow the text of a running command until it has ended; return its last text."""
    for _ in range(TURNS):
        if not _running(text):
            return text
        text = reader.follow(text, wait_ms=_WAIT_MS)
    raise AssertionError(f"the command still runs: {text}")
