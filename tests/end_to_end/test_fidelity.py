"""One of everything, made by a command, comes out of a publish, a squash and both sorts of export as the
command left it.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests import interpreter, sample_tree
from tests.end_to_end.cli_user import Sandbox
from tests.sample_tree import Facts, difference, look

pytestmark = [pytest.mark.needs("overlay", "userns", "root")]

SOURCE = Path(sample_tree.__file__).read_text()


def run(sandbox: Sandbox, words: str, session: str) -> str:
    """The menagerie as a program of the session, by the interpreter of the test run."""
    ran = sandbox.shell(f"{interpreter.in_sessions()} - {words}", session, "--tty=false", "--stdin", SOURCE)
    assert ran["exit_code"] == 0, ran
    return str(ran["output"])


def seen(sandbox: Sandbox, session: str) -> Facts:
    found: Facts = json.loads(run(sandbox, "look m", session))
    return found


def plain(facts: Facts, *, folders: bool) -> Facts:
    """What an export carries by itself: no owners, no attributes, no holes. `folders`: their times too."""
    out: Facts = {}
    for path, what in facts.items():
        timed = folders or "data" in what or "target" in what
        out[path] = {
            key: what[key]
            for key in what
            if key not in ("owner", "xattrs", "small") and (timed or key != "mtime_ns")
        }
    return out


def export(sandbox: Sandbox, dest: Path, fmt: str) -> dict[str, Any]:
    return sandbox.desk.do(
        "manager",
        "export_changes",
        "--sandbox-id",
        sandbox.id,
        "--dest",
        str(dest),
        "--format",
        fmt,
        "--keep-setuid",
    )


def test_one_of_everything_survives_publish_squash_and_export(sandbox: Sandbox, tmp_path: Path) -> None:
    session = sandbox.session()
    sandbox.shell("mkdir m; mkfifo m/pipe", session)
    run(sandbox, "make m root", session)
    want = seen(sandbox, session)
    assert want.pop("pipe") and len(want) > 80
    assert (
        want["three"]["same"] == want["links/two"]["same"] == "links/one" and want["sparse"]["small"] is True
    )
    published = sandbox.do("publish_workspace_session", "--workspace-session-id", session)
    assert published["publish"]["dropped"] == [{"path": "m/pipe"}], published
    sandbox.write("other.txt", "other\n")
    assert difference(seen(sandbox, sandbox.session()), want) == []
    for session in [one["workspace_session_id"] for one in sandbox.do("list_workspace_sessions")["sessions"]]:
        sandbox.do("destroy_workspace_session", "--workspace-session-id", session)
    folded = sandbox.desk.do("manager", "squash_layerstacks", "--sandbox-id", sandbox.id)
    assert len(folded["squashed_blocks"]) == 1, folded
    assert difference(seen(sandbox, sandbox.session()), want) == []

    export(sandbox, tmp_path / "tree", "dir")
    assert difference(plain(look(str(tmp_path / "tree/m")), folders=False), plain(want, folders=False)) == []

    reserved = [
        name for name in want if name.startswith(".wh.")
    ]  # no archive can hold them; the refusal names them
    sandbox.shell("rm m/.wh.*")
    export(sandbox, tmp_path / "m.tar", "tar")
    (tmp_path / "untarred").mkdir()
    subprocess.run(["tar", "-xpf", tmp_path / "m.tar", "-C", tmp_path / "untarred"], check=True)
    want = {path: what for path, what in want.items() if path not in reserved}
    assert (
        difference(plain(look(str(tmp_path / "untarred/m")), folders=True), plain(want, folders=True)) == []
    )
