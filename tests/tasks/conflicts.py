"""Tasks in which two agents change the same lines. Each text is followed as it stands, and afterwards the
lines of both are in the published file.
"""

from __future__ import annotations

import re

from tests.tasks.project import Desk
from tests.tasks.reader import Reader

_MARKED = re.compile(r"^- (\S+) \[\w+\]: conflict markers", re.MULTILINE)
_HUNK = re.compile(
    r"^<{7,} [^\n]*\n(.*?)^\|{7,} [^\n]*\n.*?^={7,}\n(.*?)^>{7,} [^\n]*\n", re.MULTILINE | re.DOTALL
)


def conflict(desk: Desk) -> str:
    """Change a line that another agent changes too and publishes; publish; return the refusal."""
    reader = desk.reader
    with reader.uncounted():
        reader.use("file_write", path="shared.txt", content="first\nsecond\nthird\n")
    reader.use("create_workspace_session")
    session = reader.id_of("workspace_session_id")
    with reader.uncounted():
        reader.use("file_write", path="NEW.md", content="only here\n", workspace_session_id=session)
    edits = [{"old_string": "second", "new_string": "second by me"}]
    reader.use("file_edit", path="shared.txt", edits=edits, workspace_session_id=session)
    desk.other.use(
        "file_edit", path="shared.txt", edits=[{"old_string": "second", "new_string": "second by bob"}]
    )
    text = reader.use("publish_workspace_session", workspace_session_id=session)
    assert reader.failed and "second by me" in text and "second by bob" in text, text
    return text


def conflict_alone(desk: Desk) -> None:
    """Have a publication refused; afterwards the session is resolved, uncounted."""
    refusal = conflict(desk)
    with desk.reader.uncounted():
        _resolve(desk.reader, refusal)


def resolve_session(desk: Desk) -> None:
    """Resolve the conflict of a session, from the refusal on."""
    with desk.reader.uncounted():
        refusal = conflict(desk)
    _resolve(desk.reader, refusal)
    _both_are_published(desk, "shared.txt")
    assert "only here" in desk.published("NEW.md")


def resolve_draft(desk: Desk) -> None:
    """Resolve the conflict of a one-off command, whose work is a draft."""
    reader = desk.reader
    with reader.uncounted():
        reader.use("file_write", path="both.txt", content="first\nsecond\nthird\n")
        reader.use(
            "exec_command",
            cmd="sed -i 's/second/second by me/' both.txt; echo kept > beside.txt; read line",
            yield_time_ms=0,
        )
        command = reader.id_of("command_session_id")
        edits = [{"old_string": "second", "new_string": "second by bob"}]
        desk.other.use("file_edit", path="both.txt", edits=edits)
        text = reader.use("write_command_stdin", command_session_id=command, stdin="\n", yield_time_ms=20_000)
    assert "NOT PUBLISHED" in text, text
    _resolve(reader, text)
    _both_are_published(desk, "both.txt")
    assert "kept" in desk.published("beside.txt")


def git_commits(desk: Desk) -> None:
    """Commit different files of one repository in two sessions; the second publication takes the whole
    repository of one side, and the text says where the other is.
    """
    reader, other = desk.reader, desk.other
    reader.use("create_workspace_session")
    mine = reader.id_of("workspace_session_id")
    other.use("create_workspace_session")
    theirs = other.id_of("workspace_session_id")
    for name, one, session in (("bob", other, theirs), ("me", reader, mine)):
        done = one.use(
            "exec_command",
            cmd=f"echo {name} > by-{name}; git add -A; git commit -qm 'by {name}'; git log --oneline -1",
            workspace_session_id=session,
        )
        assert f"by {name}" in done, done
    assert "published" in other.use("publish_workspace_session", workspace_session_id=theirs)
    text = reader.use("publish_workspace_session", workspace_session_id=mine)
    if reader.failed:
        text = reader.follow(text)
        assert not reader.failed, text
        text = reader.use("publish_workspace_session", workspace_session_id=mine)
    assert not reader.failed, text
    for name in ("bob", "me"):
        assert name in desk.published(f"by-{name}")


def _resolve(reader: Reader, refusal: str) -> None:
    """Make the call that the refusal names, edit the markers of the paths that its answer names so that both
    sides stay, and make the call that this answer names.
    """
    text = reader.follow(refusal)
    assert not reader.failed, text
    named = reader.advised(text)
    session = reader.id_of("workspace_session_id")
    for path in _MARKED.findall(text):
        shown = reader.use("file_read", path=path, workspace_session_id=session)
        content = shown.split("\n\n", 1)[1] + "\n"
        assert _HUNK.search(content), content
        reader.use("file_write", path=path, content=_HUNK.sub(r"\1\2", content), workspace_session_id=session)
    done = reader.use(named[0].tool, **named[0].arguments)
    assert "published as version" in done, done


def _both_are_published(desk: Desk, path: str) -> None:
    text = desk.published(path)
    for line in ("first", "second by me", "second by bob", "third"):
        assert line in text, text
