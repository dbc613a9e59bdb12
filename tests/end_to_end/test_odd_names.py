"""Names that no person types: files, arguments, workspaces."""

from __future__ import annotations

import base64
import json
import os

import pytest

from tests.end_to_end.cli_user import Sandbox

pytestmark = [pytest.mark.needs("overlay", "userns")]


NAMES = [
    b"a\nb",
    b"-rf",
    b".wh.x",
    b".wh..wh..opq",
    b"n" * 255,
    b"bad\xff\xfename",
    "\u202eright".encode(),
    b" blank ",
    b"back\\slash",
]


LITERAL = 2
"""So many of the last are found when they are there, but are read the reference's way when they are new: a
command makes those.
"""


@pytest.mark.parametrize("in_session", [False, True], ids=["of-the-head", "in-a-session"])
def test_any_name_that_linux_takes_can_be_written_listed_read_and_exported(
    sandbox: Sandbox, in_session: bool
) -> None:
    session = sandbox.session() if in_session else None
    for number, name in enumerate(NAMES[:-LITERAL]):
        sandbox.write(os.fsdecode(b"dir/" + name), f"{number}\n", session)
    sandbox.shell("echo 7 > 'dir/ blank '; echo 8 > 'dir/back\\slash'", session)
    words = ("--workspace-session-id", session) if session else ()
    entries = sandbox.do("file_list", "--path", "dir", *words)["entries"]
    found = [
        base64.b64decode(entry["path_b64"]).removeprefix(b"dir/")
        if "path_b64" in entry
        else entry["name"].encode()
        for entry in entries
    ]
    assert sorted(found) == sorted(NAMES)
    for number, name in enumerate(NAMES):
        assert sandbox.read(os.fsdecode(b"dir/" + name), session) == str(number)
    shown = sandbox.shell(
        "cd dir && for f in * .wh*; do cat -- \"$f\"; done | sort | tr -d '\\n'; ls -A | wc -l", session
    )
    assert shown["output"].replace("\n", "") == "01234567810", "ten lines: one name holds a newline"
    if session:
        sandbox.do("publish_workspace_session", "--workspace-session-id", session)
    out = sandbox.desk.give("out/.keep", "").parent
    words = ("manager", "export_changes", "--sandbox-id", sandbox.id, "--dest", str(out / "tree"))
    assert sandbox.desk.do(*words, "--dry-run")["files_written"] == len(NAMES) and not (out / "tree").exists()
    exported = sandbox.desk.do(*words)
    assert exported["files_written"] == len(NAMES)
    assert sorted(os.listdir(os.fsencode(out / "tree" / "dir"))) == sorted(NAMES)


def test_text_that_is_no_utf8_is_refused_where_it_cannot_be_carried_and_nothing_runs(
    sandbox: Sandbox,
) -> None:
    bad = os.fsdecode(b"touch bad\xff")
    runtime = ("runtime", "--sandbox-id", sandbox.id)
    for words in (
        ("exec_command", bad),
        ("file_write", "--path", "x", "--content", bad),
        ("exec_command", "--env", json.dumps(["A=1"]), bad),
    ):
        error = sandbox.desk.refused(*runtime, *words, status=2)
        assert error["kind"] == "invalid_request" and "must be UTF-8" in error["message"]
    long = sandbox.refused("file_write", "--path", "n" * 256, "--content", "x")
    assert (long["kind"], long["details"]["reason"]) == ("invalid_request", "invalid_path") and str(
        sandbox.store
    ) not in str(long)
    assert {entry["name"] for entry in sandbox.do("file_list")["entries"]} == {".id", "a.txt", "d"}


@pytest.mark.parametrize("kind", ["empty", "a symlink", "below a closed directory"])
def test_odd_workspaces_work_at_their_own_path(sandbox: Sandbox, kind: str) -> None:
    desk = sandbox.desk
    root = desk.person.home / "odd"
    if kind == "a symlink":
        root.symlink_to(desk.workspace)
    else:
        root.mkdir(mode=0o755 if kind == "empty" else 0o711)
        root = root if kind == "empty" else root / "in" / "side"
        root.mkdir(parents=True, exist_ok=True)
    record = desk.do("manager", "create_sandbox", "--image", "host", "--workspace-bind-root", str(root))
    other = Sandbox(desk, record["id"], record["shared_base"]["root_hash"])
    assert other.shell("pwd; echo new > new.txt")["output"] == str(root)
    assert other.read("new.txt") == "new" and not (root / "new.txt").exists()
    other.destroy()
