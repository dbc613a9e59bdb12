"""Rough use through the programs: names that no person types, trees that no tool likes, the same thing asked
for twice at once.
"""

from __future__ import annotations

import base64
import errno
import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from layerstack.kernel import fsync
from tests.end_to_end.cli_user import MODULES, Sandbox, living, watch
from tests.eos_mcp import programs
from tests.processes import WAIT_S, kill

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


GO_DOWN = (
    f"mkdir x; echo bottom > x/f; for i in $(seq 60); do mkdir y && mv x y/{'n' * 100} && mv y x || "
    f"exit 1; done; echo down"
)
"""Makes x/nnn.../.../f, whose path no system call takes."""


def started(sandbox: Sandbox, *words: str) -> subprocess.Popen[str]:
    desk = sandbox.desk
    argv = [desk.person.python, "-m", MODULES["runtime"], "--sandbox-id", sandbox.id, *words]
    return desk.person.popen(
        argv, env=desk.person.environment(**desk.env), stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )


def ended(process: subprocess.Popen[str]) -> dict[str, Any]:
    with process:
        out, err = process.communicate(timeout=WAIT_S)
    found: dict[str, Any] = json.loads(out or err)
    return found


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


def test_a_session_with_a_tree_deeper_than_any_path_is_refused_whole_and_can_be_mended_or_destroyed(
    sandbox: Sandbox,
) -> None:
    sessions = [sandbox.session(), sandbox.session()]
    for session in sessions:
        sandbox.write("mine.txt", "mine\n", session)
        assert sandbox.shell(GO_DOWN, session)["output"] == "down"
    refused = sandbox.refused("publish_workspace_session", "--workspace-session-id", sessions[0])
    assert refused["kind"] == "operation_failed" and refused["details"]["errno"] == "ENAMETOOLONG"
    assert sandbox.read("mine.txt", sessions[0]) == "mine"
    assert sandbox.refused("file_read", "--path", "mine.txt")["kind"] == "not_found"
    assert sandbox.shell("rm -r x", sessions[0])["exit_code"] == 0
    sandbox.do("publish_workspace_session", "--workspace-session-id", sessions[0])
    assert sandbox.read("mine.txt") == "mine"
    gone = sandbox.do("destroy_workspace_session", "--workspace-session-id", sessions[1])
    assert gone["destroyed"] and "mine.txt" in gone["discarded"]["paths"]
    assert os.listdir(sandbox.store / "sessions") == []


def test_a_one_shot_with_such_a_tree_says_where_its_files_are_and_is_a_draft_once_that_is_mended(
    sandbox: Sandbox,
) -> None:
    ran = sandbox.shell(f"echo mine > mine.txt; {GO_DOWN}")
    assert (
        ran["finalization_failed"] is True and ran["finalization_error"]["details"]["errno"] == "ENAMETOOLONG"
    )
    session = ran["workspace_session_id"]
    folder = sandbox.store / "sessions" / session / "upper"
    assert str(folder) in ran["hint"]
    for _ in range(2):  # told by the agent that saw it, and by the next one
        error = sandbox.refused("exec_command", "--workspace-session-id", session, "true")
        assert (error["details"]["reason"], error["details"]["draft_pending"]) == ("session_lost", True)
        assert os.strerror(errno.ENAMETOOLONG) in error["message"]
        assert str(folder) in error["details"]["hint"] and (folder / "mine.txt").read_text() == "mine\n"
        kill(sandbox.agent())
    sandbox.refused("exec_command", "--workspace-session-id", session, "true")
    fsync.remove_tree(str(folder / "x"))
    recovered = sandbox.do("recover_workspace_session", "--workspace-session-id", session)
    (draft,) = sandbox.do("list_drafts")["drafts"]
    assert recovered["draft_id"] == draft["draft_id"]
    assert sandbox.read("mine.txt", sandbox.session("--draft-id", draft["draft_id"])) == "mine"


def test_a_thousand_directories_in_one_another_are_published_and_removed(sandbox: Sandbox) -> None:
    made = sandbox.shell('mkdir -p "$(printf "a/%.0s" $(seq 1200))" && echo made')
    assert made["output"] == "made" and made["publish"]["published"] is True
    assert sandbox.shell("find a | wc -l")["output"] == "1200"
    assert sandbox.shell("rm -r a && echo a file > a")["publish"]["published"] is True
    assert sandbox.read("a") == "a file"


def test_a_session_published_or_destroyed_twice_at_once_ends_once(sandbox: Sandbox) -> None:
    for op, other in (("publish", "publish"), ("publish", "destroy"), ("destroy", "destroy")):
        session = sandbox.session()
        sandbox.write(f"{op}-{other}.txt", "x\n", session)
        both = [
            started(sandbox, f"{verb}_workspace_session", "--workspace-session-id", session)
            for verb in (op, other)
        ]
        said = [ended(process) for process in both]
        good = [reply for reply in said if "error" not in reply]
        assert good and all(reply["destroyed"] for reply in good), said
        assert {reply["error"]["details"]["reason"] for reply in said if "error" in reply} <= {
            "session_not_found"
        }
        listed = {entry["name"] for entry in sandbox.do("file_list")["entries"]}
        assert (f"{op}-{other}.txt" in listed) is any("publish" in reply for reply in good)
        assert (
            sandbox.do("list_workspace_sessions")["sessions"] == []
            and sandbox.do("list_drafts")["drafts"] == []
        )


def test_a_process_that_left_its_group_and_ignores_signals_ends_with_the_session(sandbox: Sandbox) -> None:
    daemon = (
        "setsid sh -c \"trap '' TERM HUP INT; echo ready; while :; do sleep 1; done\" <fifo >fifo 2>&1 "
        "& head -n 1 <fifo; wait"
    )
    running = started(sandbox, "exec_command", "--yield-time-ms", "1", f"mkfifo fifo; exec 3<>fifo; {daemon}")
    first = ended(running)
    assert first["status"] == "running"
    members = watch(sandbox.members(first["workspace_session_id"]))
    sandbox.do("signal_command", "--command-session-id", first["command_session_id"], "--signal", "KILL")
    sandbox.do("wait_command", "--command-session-id", first["command_session_id"], "--timeout-ms", "30000")
    assert living(members) == []


def test_a_sandbox_is_destroyed_under_a_running_command_whose_caller_is_told(sandbox: Sandbox) -> None:
    other = sandbox.desk.create("host")
    session = other.session()
    waiting = started(
        other,
        "exec_command",
        "--workspace-session-id",
        session,
        "--yield-time-ms",
        "50000",
        "trap '' TERM; sleep 1000",
    )
    while not other.do("list_commands")["commands"]:
        pass
    members = watch([other.agent(), other.zygote(), *other.members(session)])
    other.destroy()
    assert ended(waiting)["error"]["details"]["reason"] == "sandbox_destroyed"
    assert living(members) == []


def test_a_hundred_megabytes_of_output_are_read_by_their_last_rows(sandbox: Sandbox) -> None:
    row = "0123456789abcdef" * 4
    ran = sandbox.shell(f"yes {row} | head -n 1500000; echo the end")
    assert (ran["status"], ran["total_lines"]) == ("ok", 1500001)
    tail = sandbox.do(
        "read_command_lines", "--command-session-id", ran["command_session_id"], "--start-offset", "1499999"
    )
    assert tail["output"] == f"{row}\nthe end"


def test_a_second_gateway_for_the_same_state_is_refused_and_the_first_serves_on(sandbox: Sandbox) -> None:
    done = sandbox.desk.run("gateway", "serve", "--gateway-endpoint", "127.0.0.1:0", "--auth-token", "t")
    pid = programs.pid_of(str(sandbox.desk.state))
    assert (done.returncode, done.stdout) == (1, "")
    assert str(pid) in done.stderr and "eos gateway stop" in done.stderr
    assert sandbox.read("a.txt") == "base" and programs.pid_of(str(sandbox.desk.state)) == pid


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


def test_a_gateway_killed_while_it_exports_leaves_the_destination_as_it_was(sandbox: Sandbox) -> None:
    sandbox.shell("mkdir m; i=0; while [ $i -lt 3000 ]; do echo $i > m/$i; i=$((i+1)); done")
    out = sandbox.desk.person.home / "out"
    out.mkdir()
    (out / "old").write_text("old")
    desk = sandbox.desk
    argv = [
        desk.person.python,
        "-m",
        MODULES["manager"],
        "export_changes",
        "--sandbox-id",
        sandbox.id,
        "--dest",
        str(out),
    ]
    exporting = desk.person.popen(
        argv, env=desk.person.environment(**desk.env), stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    stages: list[Path] = []
    while not stages and exporting.poll() is None:
        stages = [*desk.person.home.glob(".eos-export-*"), *out.glob(".eos-export-*")]
    assert stages, "the export was over before it was seen"
    kill(programs.pid_of(str(desk.state)))
    assert ended(exporting)["error"]["kind"] == "protocol_error"
    assert not (out / "m").exists() and (out / "old").read_text() == "old"
    again = desk.do("manager", "export_changes", "--sandbox-id", sandbox.id, "--dest", str(out))
    assert again["files_written"] == 3000 and len(os.listdir(out / "m")) == 3000
    assert [*desk.person.home.glob(".eos-export-*"), *out.glob(".eos-export-*")] == []
    fsync.remove_tree(str(out))
