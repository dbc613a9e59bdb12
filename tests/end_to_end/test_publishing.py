"""Edits, publications and exports through the programs: deletions, modes, names, rejections, many at once."""

from __future__ import annotations

import concurrent.futures
import functools
import json
import os
import subprocess
import tarfile
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import pytest

from tests import users
from tests.conftest import drop_dir, make_short_dir
from tests.end_to_end.cli_user import Desk, Desks, Sandbox, assert_error
from tests.end_to_end.small_disk import fill, names_in_store, on_a_small_disk
from tests.users import Person

pytestmark = [pytest.mark.needs("overlay", "userns", "root")]

SIXTY = "".join(f"line {n}\n" for n in range(1, 61))


@pytest.fixture(scope="module")
def sandbox(cache_of: Callable[[Person], Path]) -> Generator[Sandbox]:
    """One for the tests of this file that leave nothing behind in it which matters to another."""
    home = make_short_dir("eos-h-")
    who = users.root(Path(home))
    desk = Desk(who, cache_of(who))
    try:
        for n in range(20):
            desk.give(f"w/f4/{n}", "old\n")
        desk.give("w/f7/e/f", "f\n")
        made = desk.create("host")
        yield made
        made.destroy()
        assert desk.left_in_state() == []
    finally:
        desk.stop()
        drop_dir(home)


def export(sandbox: Sandbox, dest: Path, fmt: str = "dir") -> dict[str, Any]:
    return sandbox.desk.do(
        "manager", "export_changes", "--sandbox-id", sandbox.id, "--dest", str(dest), "--format", fmt
    )


def squash(sandbox: Sandbox) -> None:
    sandbox.desk.do("manager", "squash_layerstacks", "--sandbox-id", sandbox.id)


def publish(sandbox: Sandbox, session: str) -> dict[str, Any]:
    return dict(sandbox.do("publish_workspace_session", "--workspace-session-id", session)["publish"])


def files_below(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if not path.is_dir()}


def test_children_of_a_directory_made_again_never_return_and_no_mark_becomes_a_file(
    sandbox: Sandbox, tmp_path: Path
) -> None:
    assert sandbox.shell("rm -rf f4 && mkdir f4 && echo n > f4/n")["publish"]["published"] is True
    squash(sandbox)
    assert sandbox.shell("ls -A f4")["output"] == "n"
    for n in range(20):
        sandbox.desk.give(f"out4/f4/{n}", "old\n")
    export(sandbox, sandbox.desk.person.home / "out4")
    assert files_below(sandbox.desk.person.home / "out4") >= {"f4/n"}
    assert {
        path
        for path in files_below(sandbox.desk.person.home / "out4")
        if path.startswith("f4/") or ".wh." in path
    } == {"f4/n"}
    export(sandbox, tmp_path / "out.tar", "tar")
    with tarfile.open(tmp_path / "out.tar") as archive:
        found = {member.name for member in archive if member.name.startswith("f4")}
    assert found == {"f4", "f4/n", "f4/.wh..wh..opq"}, "what says to an image builder that the rest is gone"


def test_a_directory_deleted_in_a_session_is_absent_from_every_list(sandbox: Sandbox, tmp_path: Path) -> None:
    session = sandbox.session()
    sandbox.shell("rm -r f7", session)
    for where in (session, None):
        if where is None:
            publish(sandbox, session)
        words = ("--workspace-session-id", where) if where else ()
        assert "f7" not in {entry["name"] for entry in sandbox.do("file_list", *words)["entries"]}
        assert sandbox.refused("file_list", "--path", "f7", *words)["kind"] == "not_found"
        assert sandbox.shell("test -e f7 || echo absent", where)["output"] == "absent"
    (tmp_path / "out/f7/e").mkdir(parents=True)
    (tmp_path / "out/f7/e/f").write_text("f\n")
    export(sandbox, tmp_path / "out")
    assert not (tmp_path / "out/f7").exists()


def test_a_workspace_around_the_state_or_inside_it_is_refused_at_once(sandbox: Sandbox) -> None:
    at = sandbox.desk
    for workspace in (
        at.person.home,
        at.state,
        at.state / "sandboxes" / sandbox.id,
        Path(at.env["XDG_CACHE_HOME"]),
    ):
        assert_error(
            at.refused_create("host", workspace), "workspace_holds_own_directory", kind="invalid_request"
        )
    assert [record["id"] for record in at.do("manager", "list_sandboxes")["sandboxes"]] == [sandbox.id]


def test_an_edit_keeps_mode_byte_order_mark_and_line_ends_and_a_link_is_refused_with_its_target(
    sandbox: Sandbox,
) -> None:
    session = sandbox.session()
    for where in (session, None):
        words = ("--workspace-session-id", where) if where else ()
        sandbox.shell(
            "mkdir -p f20; cd f20; printf '\\357\\273\\277a\\r\\nb\\nc\\r\\nd' > f; chmod 755 f; ln "
            "-sf f link",
            where,
        )
        sandbox.do(
            "file_edit",
            "--path",
            "f20/f",
            "--edits",
            json.dumps([{"old_string": "c", "new_string": "C"}]),
            *words,
        )
        shown = sandbox.shell("od -An -v -tx1 f20/f | tr -d ' \\n'; stat -c ' %a' f20/f", where)["output"]
        assert shown == b"\xef\xbb\xbfa\r\nb\nC\r\nd".hex() + " 755"
        error = sandbox.refused(
            "file_edit",
            "--path",
            "f20/link",
            "--edits",
            json.dumps([{"old_string": "c", "new_string": "C"}]),
            *words,
        )
        assert error["kind"] == "invalid_request" and error["details"]["target"] == "f"


def test_a_small_file_in_the_place_of_a_big_one_has_its_own_size(sandbox: Sandbox) -> None:
    session = sandbox.session()
    for where in (session, None):
        sandbox.shell("mkdir -p f21; head -c 10000000 /dev/zero > f21/f", where)
        sandbox.write("f21/f", "z" * 1000, where)
        assert sandbox.shell("wc -c < f21/f; tr -d z < f21/f | wc -c", where)["output"].split() == [
            "1000",
            "0",
        ]


NAMES = ("caf\u00e9", "cafe\u0301", "A.txt", "a.txt", "n\nl", "-rf", "x" * 255, os.fsdecode(b"\xff\xfe"))


def test_names_that_differ_in_case_or_composition_stay_apart_in_stack_directory_and_archive(
    sandbox: Sandbox, tmp_path: Path
) -> None:
    for number, name in enumerate(NAMES):
        sandbox.write(f"f22/{name}", f"{number}\n")
    squash(sandbox)
    for number, name in enumerate(NAMES):
        assert sandbox.read(f"f22/{name}") == str(number)
    export(sandbox, tmp_path / "out")
    assert {name: (tmp_path / "out/f22" / name).read_text() for name in os.listdir(tmp_path / "out/f22")} == {
        name: f"{number}\n" for number, name in enumerate(NAMES)
    }
    export(sandbox, tmp_path / "out.tar", "tar")
    with tarfile.open(tmp_path / "out.tar") as archive:
        assert {member.name for member in archive if member.name.startswith("f22/")} == {
            f"f22/{name}" for name in NAMES
        }


def test_a_file_that_one_session_writes_and_another_removes_is_seen_by_neither_and_reported_to_the_second(
    sandbox: Sandbox,
) -> None:
    sandbox.write("p2", "base\n")
    a, b = sandbox.session(), sandbox.session()
    sandbox.shell("echo a > p2", a)
    sandbox.shell("rm p2", b)
    assert sandbox.read("p2") == "base" and sandbox.read("p2", a) == "a"
    assert sandbox.refused("file_read", "--path", "p2", "--workspace-session-id", b)["kind"] == "not_found"
    publish(sandbox, a)
    rejection = sandbox.refused("publish_workspace_session", "--workspace-session-id", b)["details"][
        "publish_rejection"
    ]
    assert [(conflict["path"], conflict["class"]) for conflict in rejection["conflicts"]] == [
        ("p2", "delete_modify")
    ]
    assert sandbox.read("p2") == "a"


def test_a_rejection_says_who_won_where_and_what_all_three_sides_have(sandbox: Sandbox) -> None:
    sandbox.write("p3", SIXTY)
    a, b = sandbox.session("--agent", "alice"), sandbox.session("--agent", "bob")
    for session, name in ((a, "alice"), (b, "bob")):
        sandbox.shell(f"sed -i 's/^line 10$/ten of {name}/; s/^line 50$/fifty/' p3", session)
    publish(sandbox, a)
    rejection = sandbox.refused("publish_workspace_session", "--workspace-session-id", b)["details"][
        "publish_rejection"
    ]
    (conflict,) = rejection["conflicts"]
    assert (conflict["path"], conflict["class"]) == ("p3", "content")
    (hunk,) = conflict["hunks"]
    assert [hunk[side] for side in ("base", "ours", "theirs")] == [[10, 1]] * 3
    assert {"base_text", "ours_text", "theirs_text"} <= hunk.keys()
    assert len({conflict[side]["digest"] for side in ("base", "ours", "theirs")}) == 3
    assert (conflict["theirs_layer"]["owner"], conflict["theirs_layer"]["agent"]) == (
        f"workspace_session:{a}",
        "alice",
    )
    sandbox.shell("sed -i 's/^ten of bob$/ten of alice/; s/^line 30$/thirty/' p3", b)
    publish(sandbox, b)
    assert sandbox.read("p3").split("\n")[9::20] == ["ten of alice", "thirty", "fifty"]


def test_thirteen_sessions_at_once_are_thirteen_layers_or_one_layer_and_twelve_drafts(
    sandbox: Sandbox,
) -> None:
    def work(n: int) -> str:
        session = sandbox.session()
        sandbox.write(f"p4/{n}", f"{n}\n", session)
        return session

    with concurrent.futures.ThreadPoolExecutor(13) as pool:
        sessions = list(pool.map(work, range(13)))
        done = list(pool.map(functools.partial(publish, sandbox), sessions))
    versions = sorted(one["revision"]["manifest_version"] for one in done)
    assert versions == list(range(versions[0], versions[0] + 13))
    assert sandbox.shell("cat p4/* | sort -n | tr '\\n' ' '")["output"].split() == [str(n) for n in range(13)]

    running = [
        sandbox.do("exec_command", "--yield-time-ms", "0", f"read go; echo work of {n} > one-file")
        for n in range(13)
    ]

    def go(command: dict[str, Any]) -> dict[str, Any]:
        words = ("--command-session-id", command["command_session_id"])
        return sandbox.do("write_command_stdin", *words, "--yield-time-ms", "60000", "go\n")

    with concurrent.futures.ThreadPoolExecutor(13) as pool:
        ended = list(pool.map(go, running))
    won = [n for n, one in enumerate(ended) if one["publish"]["published"]]
    assert len(won) == 1 and sandbox.read("one-file") == f"work of {won[0]}"
    for n, one in enumerate(ended):
        if n not in won:
            (change,) = sandbox.do("diff_draft", "--draft-id", one["draft_id"])["entries"]
            assert change["path"] == "one-file" and f"+work of {n}\n" in change["patch"]
            sandbox.do("discard_draft", "--draft-id", one["draft_id"])


def test_a_squash_and_an_export_beside_a_full_disk_say_what_happened_and_work_afterwards(desk: Desks) -> None:
    def body(at: Desk) -> None:
        sandbox = at.create("host")
        for n in range(3):
            sandbox.write(f"n{n}", f"{n}\n")
        before = names_in_store(sandbox)
        filler = fill(at)
        error = at.refused("manager", "squash_layerstacks", "--sandbox-id", sandbox.id)
        assert_error(error, "disk_full", kind="operation_failed")
        assert names_in_store(sandbox) == before
        out = at.give("out/kept", "kept\n").parent
        words = ("export_changes", "--sandbox-id", sandbox.id, "--dest", str(out))
        done = at.do(
            "manager", *words
        )  # the destination lies on another disk; a reserve holds what vouches for the export
        assert "state directory" in done["not_recorded"] and files_below(out) == {"kept", "n0", "n1", "n2"}
        filler.unlink()
        export(sandbox, out)
        assert files_below(out) == {"kept", "n0", "n1", "n2"}
        squash(sandbox)
        assert len(names_in_store(sandbox)["layers"]) == 1 and names_in_store(sandbox)["staging"] == []
        assert sandbox.read("n2") == "2"
        sandbox.destroy()
        assert at.left_in_state() == []

    on_a_small_disk(desk("root"), body)


def git(folder: Path, *words: str) -> None:
    who = [
        "-c",
        "user.name=x",
        "-c",
        "user.email=x@example.org",
        "-c",
        "protocol.file.allow=always",
        "-c",
        "init.defaultBranch=main",
    ]
    env = {"PATH": os.environ["PATH"], "HOME": str(folder), "GIT_CONFIG_NOSYSTEM": "1"}
    subprocess.run(["git", *who, *words], cwd=folder, env=env, check=True, capture_output=True)


def test_a_base_with_a_submodule_and_a_worktree_is_published_from_by_ten_at_once(shared_desk: Desks) -> None:
    at = shared_desk("root")
    library = at.give("library/file", "library\n").parent
    for folder in (library, at.workspace):
        git(folder, "init", "-q")
        git(folder, "add", ".")
        git(folder, "commit", "-qm", "first")
    git(at.workspace, "submodule", "--quiet", "add", str(library), "sub")
    git(at.workspace, "commit", "-qam", "second")
    git(at.workspace, "worktree", "add", "-q", "tree", "-b", "side")
    assert (at.workspace / "sub/.git").is_file() and (at.workspace / "tree/.git").is_file()
    sandbox = at.create("host")
    sessions = [sandbox.session() for _ in range(10)]
    for n, session in enumerate(sessions):
        sandbox.shell(
            f"echo {n} > sub/{n}; echo {n} > tree/{n}; git -C sub status --porcelain > /dev/null", session
        )
    with concurrent.futures.ThreadPoolExecutor(10) as pool:
        done = list(pool.map(functools.partial(publish, sandbox), sessions))
    assert sorted(one["revision"]["manifest_version"] for one in done) == list(range(2, 12))
    look = (
        "git -C sub status --porcelain | wc -l; git -C tree status --porcelain | wc -l; git fsck 2>&1 | "
        "grep -c corrupt; git log --oneline | wc -l"
    )
    assert sandbox.shell(look)["output"].split() == ["10", "10", "0", "2"]
    assert (
        sandbox.shell(
            "git -C sub add . && git -C sub -c user.name=x -c user.email=x@y commit -qm third && git -C sub "
            "log --oneline | wc -l"
        )["output"]
        == "2"
    )
    sandbox.destroy()
