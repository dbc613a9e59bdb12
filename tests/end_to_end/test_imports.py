"""import_changes: what a person changed in the workspace directory comes in as one publication."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end.cli_user import Desk, Desks, Sandbox, assert_error
from tests.end_to_end.places import DOCKER, ORDINARY, ROOT, in_places

pytestmark = [pytest.mark.needs("overlay", "userns", "root")]

SIXTY = "".join(f"line {n}\n" for n in range(1, 61))
EDITS = r"""
set -e
printf 'edited\n' > a.txt
chmod 750 d
rm d/b.txt
mkdir -p new/deep/empty && printf 'x' > new/deep/x && chmod 700 new/deep/x
ln -s ../a.txt new/link
printf 'old' > "$(printf 'name\377')"
mv tree moved
rm -r gone && printf 'now a file' > gone
rm file && mkdir file && printf 'in it' > file/in
printf 'one' > hard1 && ln hard1 hard2
head -c 3000000 /dev/zero | tr '\0' 'z' > big
truncate -s 5000000 holes && printf 'end' >> holes
: > empty
chmod 755 script
"""
"""Edits of every kind, made by a person in the directory and by a session alike."""


def given(desk: Desk) -> None:
    """Fill a workspace that EDITS can edit."""
    for name in ("tree/one", "tree/sub/two", "gone/a", "gone/b/c", "file", "script"):
        desk.give(f"w/{name}", f"{name}\n")


@pytest.fixture
def own(shared_desk: Desks) -> Sandbox:
    desk = shared_desk("root")
    for name, text in (("sixty", SIXTY), ("kept", "kept\n")):
        desk.give(f"w/{name}", text)
    return desk.create("host")


def import_changes(sandbox: Sandbox, *words: str) -> dict[str, Any]:
    return sandbox.desk.do("manager", "import_changes", "--sandbox-id", sandbox.id, *words)


def refused(sandbox: Sandbox, *words: str) -> dict[str, Any]:
    return sandbox.desk.refused("manager", "import_changes", "--sandbox-id", sandbox.id, *words)


def export(sandbox: Sandbox, *words: str) -> dict[str, Any]:
    dest = str(sandbox.desk.workspace)
    return sandbox.desk.do("manager", "export_changes", "--sandbox-id", sandbox.id, "--dest", dest, *words)


def changes(done: dict[str, Any]) -> dict[str, str]:
    return {row["path"]: row["change"] for row in done["changed"]}


def head(sandbox: Sandbox) -> int:
    return int(sandbox.do("list_versions")["versions"][0]["version"])


def git(folder: Path, *words: str, status: int = 0) -> str:
    who = ("-c", "user.name=p", "-c", "user.email=p@example.org", "-c", "init.defaultBranch=main")
    done = subprocess.run(["git", *who, *words], cwd=folder, capture_output=True, text=True, timeout=60)
    assert done.returncode == status, done.stderr
    return done.stdout.strip()


def lines(**edited: str) -> str:
    """SIXTY with other lines: lines(line5="...")."""
    text = SIXTY
    for line, new in edited.items():
        text = text.replace(f"{line.replace('line', 'line ')}\n", f"{new}\n")
    return text


def test_an_edit_of_the_person_is_in_the_next_session(own: Sandbox) -> None:
    own.desk.give("w/a.txt", "edited by a person\n")
    done = import_changes(own)
    assert changes(done) == {"a.txt": "modified"} and done["no_op"] is False
    assert own.shell("cat a.txt")["output"] == "edited by a person"
    (version,) = [v for v in own.do("list_versions")["versions"] if v["layer_id"] == done["layer_id"]]
    assert version["owner"] == "host"
    again = import_changes(own)
    assert again["no_op"] is True and again["changed_count"] == 0


@in_places(ROOT, ORDINARY, DOCKER)
def test_an_import_equals_a_session_that_made_the_same_edits(sandbox: Sandbox) -> None:
    desk = sandbox.desk
    given(desk)
    assert changes(import_changes(sandbox))["tree/sub/two"] == "added"
    session = sandbox.session()
    done = subprocess.run(["sh", "-c", EDITS], cwd=desk.workspace, user=desk.person.uid, capture_output=True)
    assert done.returncode == 0, done.stderr
    if desk.person.uid is None:
        os.setxattr(desk.workspace / "a.txt", "user.note", b"person")
    assert sandbox.shell(EDITS, session)["exit_code"] == 0
    dry = import_changes(sandbox, "--dry-run")
    assert dry["would_publish"] is True and dry["conflict_count"] == 0 and head(sandbox) == 2
    found = import_changes(sandbox)
    assert changes(found) == changes(dry) and head(sandbox) == 3
    assert changes(found)["d"] == "modified" and changes(found)["gone"] == "type"
    same = sandbox.do("publish_workspace_session", "--workspace-session-id", session)["publish"]
    assert same["no_op"] is True
    assert import_changes(sandbox)["no_op"] is True


def test_edits_of_both_merge_with_what_was_imported_last_as_the_base(own: Sandbox) -> None:
    own.write("sixty", lines(line5="of the agent"))
    own.desk.give("w/sixty", lines(line40="of the person"))
    import_changes(own)
    assert own.read("sixty") == lines(line5="of the agent", line40="of the person").rstrip("\n")
    own.desk.give("w/sixty", lines(line40="of the person", line50="again"))
    assert changes(import_changes(own)) == {"sixty": "modified"}
    both = lines(line5="of the agent", line40="of the person", line50="again")
    assert own.shell("cat sixty")["output"] == both.rstrip("\n")
    own.desk.give("w/sixty", SIXTY)  # back to the copy: that is a change too
    import_changes(own)
    assert own.shell("cat sixty")["output"] == lines(line5="of the agent").rstrip("\n")


def test_a_conflict_refuses_all_and_paths_bring_the_rest(own: Sandbox) -> None:
    session = own.session()
    own.write("a.txt", "of the agent\n")
    own.shell("rm d/b.txt")
    before = head(own)
    own.desk.give("w/a.txt", "of the person\n")
    own.desk.give("w/d/b.txt", "edited\n")
    own.desk.give("w/kept", "edited\n")
    dry = import_changes(own, "--dry-run")
    assert [(c["path"], c["class"]) for c in dry["conflicts"]] == [
        ("a.txt", "content"),
        ("d/b.txt", "modify_delete"),
    ]
    error = refused(own)
    assert_error(error, "source_conflict", kind="operation_failed")
    rejection = error["details"]["publish_rejection"]
    assert rejection["conflicts"] == dry["conflicts"] and rejection["conflict_count"] == 2
    assert head(own) == before and own.read("kept") == "kept"
    done = import_changes(own, "--paths", '["kept"]')
    assert changes(done) == {"kept": "modified"} and own.read("kept") == "edited"
    assert own.read("kept", session) == "kept"  # until it rebases
    own.do("rebase_workspace_session", "--workspace-session-id", session)
    assert own.read("kept", session) == "edited"
    assert_error(refused(own), "source_conflict", kind="operation_failed")
    assert refused(own, "--paths", '["../x"]')["details"]["reason"] == "bad_argument"
    own.desk.give("w/a.txt", "of the agent\n")
    os.unlink(own.desk.workspace / "d/b.txt")
    assert import_changes(own)["no_op"] is True  # both say the same now


def test_what_an_export_wrote_to_the_directory_is_not_the_persons_and_is_the_base_of_the_next_import(
    own: Sandbox,
) -> None:
    own.write("sixty", lines(line5="of the agent"))
    own.shell("rm d/b.txt; echo new > made; mkdir folder; echo x > folder/x")
    export(own)
    assert import_changes(own)["changed_count"] == 0
    own.write("sixty", lines(line5="of the agent", line20="later"))
    own.desk.give("w/sixty", lines(line5="edited", line50="of the person"))
    own.desk.give("w/made", "edited\n")
    os.chmod(own.desk.workspace / "folder/x", 0o700)
    done = import_changes(own)
    assert changes(done) == {"sixty": "modified", "made": "modified", "folder/x": "modified"}
    both = lines(line5="edited", line20="later", line50="of the person")
    assert own.shell("cat sixty; stat -c %a folder/x")["output"] == both + "700"


def test_a_gateway_that_was_killed_after_the_publication_does_not_import_it_again(own: Sandbox) -> None:
    own.desk.give("w/a.txt", "of the person\n")
    done = import_changes(own)
    folder = own.desk.state / "import-records" / own.id
    (version,) = [v for v in own.do("list_versions")["versions"] if v["layer_id"] == done["layer_id"]]
    body = json.loads((folder / "copied.json").read_text())
    (folder / "copied.json").unlink()
    (folder / "next.json").write_text(json.dumps({**body, "published_as": version["request_id"]}))
    own.write("a.txt", "base\n")  # an agent takes it back
    assert import_changes(own)["changed_count"] == 0
    assert own.read("a.txt") == "base"
    (folder / "next.json").write_text(json.dumps({**body, "published_as": "never"}))
    (folder / "copied.json").unlink()
    for record in (own.desk.state / "export-records" / own.id).glob("*.sqlite"):
        record.unlink()
    assert changes(import_changes(own)) == {"a.txt": "modified"}  # it was not: the edit is not lost
    assert not (folder / "next.json").exists() and own.read("a.txt") == "of the person"


def test_the_git_file_of_a_linked_worktree_and_special_files_stay_out(own: Sandbox) -> None:
    own.desk.give("w/sub/.git", "gitdir: /elsewhere/.git/worktrees/sub\n")
    own.desk.give("w/sub/file", "x\n")
    os.mkfifo(own.desk.workspace / "fifo")
    try:
        done = import_changes(own)
        assert changes(done) == {"sub": "added", "sub/file": "added"} and done["left_out"] == ["fifo"]
    finally:
        os.unlink(own.desk.workspace / "fifo")


def test_without_the_index_of_the_copy_files_are_compared_with_the_copy(own: Sandbox) -> None:
    (own.desk.state / "import-records" / own.id / "index").unlink()
    own.desk.give("w/a.txt", "of the person\n")
    os.unlink(own.desk.workspace / "kept")
    assert changes(import_changes(own)) == {"a.txt": "modified", "kept": "deleted"}
    assert import_changes(own)["changed_count"] == 0


def test_an_export_merges_what_the_person_edited_and_the_next_import_brings_that_in(own: Sandbox) -> None:
    own.write("sixty", lines(line5="of the agent"))
    own.desk.give("w/sixty", lines(line40="of the person"))
    assert own.desk.refused(
        "manager", "export_changes", "--sandbox-id", own.id, "--dest", str(own.desk.workspace)
    )["details"]["conflict_count"]
    both = lines(line5="of the agent", line40="of the person")
    assert export(own, "--on-conflict", "merge", "--dry-run")["merged"] == ["sixty"]
    assert (own.desk.workspace / "sixty").read_text() == lines(line40="of the person")
    assert export(own, "--on-conflict", "merge")["merged"] == ["sixty"]
    assert (own.desk.workspace / "sixty").read_text() == both
    own.write("sixty", lines(line5="of the agent", line20="later"))
    assert export(own, "--on-conflict", "merge")["merged"] == ["sixty"]  # the base is what was exported
    all_three = lines(line5="of the agent", line20="later", line40="of the person")
    assert (own.desk.workspace / "sixty").read_text() == all_three
    assert changes(import_changes(own)) == {"sixty": "modified"}
    assert own.shell("cat sixty")["output"] == all_three.rstrip("\n")
    own.write("sixty", all_three + "more\n")
    assert "merged" not in export(own)  # with fail: nothing is in the way
    assert (own.desk.workspace / "sixty").read_text() == all_three + "more\n"


def test_what_was_imported_is_not_in_the_way_of_the_next_export(own: Sandbox) -> None:
    own.desk.give("w/sixty", lines(line40="of the person"))
    own.desk.give("w/added", "of the person\n")
    os.unlink(own.desk.workspace / "d/b.txt")
    import_changes(own)
    own.write("sixty", lines(line5="of the agent", line40="of the person"))
    own.shell("rm added; echo again > d/b.txt")
    export(own)
    both = lines(line5="of the agent", line40="of the person")
    assert (own.desk.workspace / "sixty").read_text() == both
    assert (own.desk.workspace / "d/b.txt").read_text() == "again\n"
    assert not (own.desk.workspace / "added").exists()
    assert import_changes(own)["changed_count"] == 0


def test_a_commit_in_a_linked_worktree_comes_in_and_a_checkout_of_a_commit_has_no_imports(
    shared_desk: Desks,
) -> None:
    desk = shared_desk("root")
    real = desk.person.home / "real"
    real.mkdir()
    git(real, "init", "-q")
    git(real, "commit", "-q", "--allow-empty", "-m", "first")
    shutil.rmtree(desk.workspace)
    git(real, "worktree", "add", "-q", "-b", "side", str(desk.workspace))
    desk.give("w/.id", desk.person.home.name)
    own = desk.create("host")
    desk.give("w/a.txt", "of the person\n")
    git(desk.workspace, "add", "a.txt")
    git(desk.workspace, "commit", "-q", "-m", "in the worktree")
    done = import_changes(own)
    assert done["no_op"] is False and (desk.workspace / ".git").is_file()
    seen = own.shell("git log --format=%H -1; git status --porcelain -- a.txt; git fsck --strict")
    assert seen["output"].split("\n")[0] == git(desk.workspace, "rev-parse", "HEAD")
    assert seen["exit_code"] == 0 and " a.txt" not in seen["output"]
    where = str(real)
    made = desk.do(
        *("manager", "create_sandbox", "--image", "host", "--workspace-bind-root", where),
        *("--git-ref", "main"),
    )
    error = desk.refused("manager", "import_changes", "--sandbox-id", made["id"])
    assert_error(error, "made_from_commit", kind="operation_failed")


def test_commits_that_conflict_come_in_when_the_hint_is_followed(shared_desk: Desks) -> None:
    desk = shared_desk("root")
    git(desk.workspace, "init", "-q")
    desk.give("w/a.txt", "one\ntwo\nthree\n")
    git(desk.workspace, "add", ".")
    git(desk.workspace, "commit", "-q", "-m", "first")
    own = desk.create("host")
    own.shell("sed -i s/two/agents/ a.txt && git -c user.name=a -c user.email=a@b commit -qam agents")
    desk.give("w/a.txt", "one\nmine\nthree\n")
    git(desk.workspace, "commit", "-qam", "mine")
    error = refused(own)
    assert_error(error, "source_conflict", kind="operation_failed")
    hint = error["details"]["hint"]
    assert "format git" in hint and "git merge" in hint and "import_changes" in hint
    ref = export(own, "--format", "git")["ref"]
    git(desk.workspace, "merge", "-q", ref, status=1)
    desk.give("w/a.txt", "one\nboth\nthree\n")
    git(desk.workspace, "commit", "-qam", "merged")
    assert import_changes(own)["no_op"] is False
    clean = 'test -z "$(git status --porcelain)" && git fsck --strict > /dev/null 2>&1'
    assert (
        own.shell(f"{clean} && git log --format=%s -1 && cat a.txt")["output"] == "merged\none\nboth\nthree"
    )
