"""Tasks from an empty list of sandboxes to an export: create, test, fix, publish, export, clean up."""

from __future__ import annotations

import os
import re

from tests.tasks.project import CALC, Desk


def create_sandbox(desk: Desk) -> None:
    """List the sandboxes, make the one that the text asks for, look at its files."""
    reader = desk.reader
    text = reader.use("list_sandboxes")
    text = reader.follow(text, image=desk.image, workspace_root=desk.project)
    assert "ready" in text, text
    listing = reader.use("file_list")
    assert "calc.py" in listing and "test_calc.py" in listing, listing


def run_tests(desk: Desk) -> None:
    """Read how the tests are run, and run them."""
    text = desk.reader.use("file_read", path="README.md")
    ran = desk.reader.use("exec_command", cmd=_command_of(text))
    assert "test_add" in ran and "exit code 1" in ran, ran


def fix(desk: Desk) -> None:
    """Correct the function in a session of its own, and run the tests there."""
    reader = desk.reader
    with reader.uncounted():
        command = _command_of(reader.use("file_read", path="README.md"))
    reader.use("create_workspace_session")
    session = reader.id_of("workspace_session_id")
    shown = reader.use("file_read", path="calc.py", workspace_session_id=session)
    assert "return a - b" in shown
    reader.use(
        "file_edit",
        path="calc.py",
        edits=[{"old_string": "return a - b", "new_string": "return a + b"}],
        workspace_session_id=session,
    )
    ran = reader.use("exec_command", cmd=command, workspace_session_id=session)
    assert "exit code 0" in ran, ran


def publish(desk: Desk) -> None:
    """Publish the session's changes, and see that they are there."""
    reader = desk.reader
    done = reader.use("publish_workspace_session", workspace_session_id=reader.id_of("workspace_session_id"))
    assert "published as version" in done, done
    found = reader.use("file_search", pattern="return a + b")
    assert "calc.py" in found and "return a + b" in found, found


def export(desk: Desk) -> None:
    """Look at what an export to the project would change, and do it."""
    reader = desk.reader
    tool = reader.tool_for("to the host", "published")
    shown = reader.use(tool, dest=desk.project, dry_run=True)
    assert "calc.py" in shown, shown
    done = reader.use(tool, dest=desk.project)
    assert not reader.failed, done
    with open(os.path.join(desk.project, "calc.py")) as file:
        assert file.read() != CALC


def clean_up(desk: Desk) -> None:
    """Find a session that is still open, end it, and destroy the sandbox."""
    reader = desk.reader
    with reader.uncounted():
        reader.use("create_workspace_session")
        reader.use(
            "file_write",
            path="left",
            content="x\n",
            workspace_session_id=reader.id_of("workspace_session_id"),
        )
    listed = reader.use("list_workspace_sessions")
    session = reader.id_of("workspace_session_id")
    assert session in listed
    gone = reader.use("destroy_workspace_session", workspace_session_id=session)
    assert "left" in gone, gone  # says what it discards
    gone = reader.use("destroy_sandbox", sandbox_id=reader.id_of("sandbox_id"))
    assert not reader.failed, gone


def _command_of(readme: str) -> str:
    found = re.search(r"^Tests: (.+)$", readme, re.MULTILINE)
    assert found is not None, readme
    return found[1]
