"""Complaints about systems like ours, from public trackers: commands and sessions. The ids at the front are
stable.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import drop_dir, make_short_dir
from tests.eos_agent.internal_calls import squash
from tests.processes import pids

from .agent_process import Agent, Failed

pytestmark = pytest.mark.needs("overlay")

AUTHOR = ("-c", "user.name=x", "-c", "user.email=x@y")


def refused(agent: Agent, op: str, /, **args: Any) -> Failed:
    with pytest.raises(Failed) as caught:
        agent.call(op, **args)
    return caught.value


def git(folder: str, *words: str) -> None:
    env = {"PATH": os.environ["PATH"], "GIT_CONFIG_NOSYSTEM": "1", "HOME": "/nonexistent"}
    subprocess.run(["git", *AUTHOR, *words], cwd=folder, env=env, check=True, capture_output=True)


def tree_of(folder: str) -> dict[str, tuple[int, int, int, bytes | str]]:
    """Each path below it: mode, owner, mtime, content or target."""
    found: dict[str, tuple[int, int, int, bytes | str]] = {}
    for directory, names, files in os.walk(folder):
        for name in [*names, *files, "."]:
            path = os.path.join(directory, name)
            status = os.lstat(path)
            content: bytes | str = b""
            if os.path.islink(path):
                content = os.readlink(path)
            elif os.path.isfile(path):
                content = Path(path).read_bytes()
            found[path] = (status.st_mode, status.st_uid, status.st_mtime_ns, content)
    return found


@pytest.fixture
def prepared() -> Generator[Callable[[Callable[[str], None]], Agent]]:
    """prepared(fill): an agent on a base that `fill` was given as a directory before it started."""
    made: list[Agent] = []

    def prepare(fill: Callable[[str], None]) -> Agent:
        agent = Agent(make_short_dir("eos-a-"), {"README.md": b"hello\n"})
        made.append(agent)
        fill(os.path.join(agent.folder, "base", "B000001-base"))
        return agent.start()

    yield prepare
    for agent in made:
        agent.close()
        drop_dir(agent.folder)


def test_a_background_command_is_found_by_its_id_and_no_line_is_lost_or_repeated_across_cursors(
    shared_agent: Agent,
) -> None:
    started = shared_agent.run(
        "seq 75; stty -echo; echo half; read go; seq 76 150; echo end", yield_time_ms=0
    )
    command = started["command_session_id"]
    first: list[str] = started["output"].split() if started["output"] else []
    while "half" not in first:  # the shared cursor
        first += shared_agent.call("wait_command", command_session_id=command, timeout_ms=100)[
            "output"
        ].split()
    assert command in [row["command_session_id"] for row in shared_agent.call("list_commands")["commands"]]
    last = shared_agent.call(
        "write_command_stdin", command_session_id=command, stdin="\n", yield_time_ms=30_000
    )
    second = last["output"].split()
    wanted = [*map(str, range(1, 76)), "half", *map(str, range(76, 151)), "end"]
    assert [line for line in first + second if line] == wanted
    pages: list[str] = []
    at = 0
    while at < last["total_lines"]:
        page = shared_agent.call("read_command_lines", command_session_id=command, start_offset=at, limit=7)
        pages += page["output"].split("\n")
        at = page["end_offset"]
    assert [line for line in pages if line] == wanted


def test_a_working_directory_that_is_not_there_is_named_and_the_session_stays_usable(
    shared_agent: Agent,
) -> None:
    session = shared_agent.session()
    error = refused(shared_agent, "exec_command", cmd="true", cwd="missing/dir", workspace_session_id=session)
    assert (
        error.kind == "operation_failed"
        and error.reason == "cwd_not_found"
        and "missing/dir" in error.message
    )
    assert shared_agent.run("echo fine", session)["output"] == "fine"
    assert (
        refused(shared_agent, "exec_command", cmd="echo x > x11", cwd="missing/dir").reason == "cwd_not_found"
    )
    assert refused(shared_agent, "file_read", path="x11").kind == "not_found"
    shared_agent.call("destroy_workspace_session", workspace_session_id=session)


def test_git_status_in_a_new_session_reads_no_file_of_an_unchanged_base_and_an_inode_survives_its_first_write(
    prepared: Callable[[Callable[[str], None]], Agent],
) -> None:
    def fill(base: str) -> None:
        for n in range(200):
            Path(base, f"f{n}").write_text(f"{n}\n" * 4096)
            os.utime(Path(base, f"f{n}"), ns=(10**18 + n, 10**18 + n))
        git(base, "init", "-q")
        git(base, "add", ".")
        git(base, "commit", "-qm", "first")
        for n in range(200):  # another inode and another ctime, as in a copy
            os.rename(Path(base, f"f{n}"), Path(base, "was"))
            Path(base, f"f{n}").write_bytes(Path(base, "was").read_bytes())
            os.utime(Path(base, f"f{n}"), ns=(10**18 + n, 10**18 + n))
            os.unlink(Path(base, "was"))

    agent = prepared(fill)
    session = agent.session()
    look = "git status --porcelain | wc -l; grep rchar /proc/$$/io"
    for _ in range(2):
        changed, _, read = agent.run(look, session)["output"].split()
        assert changed == "0" and int(read) < 1_000_000, "of three megabytes"
    shown = agent.run(
        "stat -c %i f7; stat -c %.9Y f7; echo more >> f7; stat -c %i f7; git status --porcelain", session
    )["output"].split()
    assert shown[0] == shown[2] and shown[1] == "1000000000.000000007"
    assert shown[3:] == ["M", "f7"]
    for n in range(2):
        agent.call("file_write", path=f"f{n}", content="published\n")
    agent.call("destroy_workspace_session", workspace_session_id=session)
    assert [block["replaced_layers"] for block in squash(agent)["squashed_blocks"]] == ["reclaimed"]
    changed, _, read = agent.run(look, agent.session())["output"].split()
    assert (changed, int(read) < 1_000_000) == ("2", True), (
        "folded layers are links: times and sizes are those of the files"
    )


@pytest.mark.needs("root")
def test_git_takes_a_base_that_belongs_to_somebody_else(
    prepared: Callable[[Callable[[str], None]], Agent],
) -> None:
    def fill(base: str) -> None:
        git(base, "init", "-q")
        git(base, "add", ".")
        git(base, "commit", "-qm", "first")
        for directory, names, files in os.walk(base):
            for name in [*names, *files, "."]:
                os.lchown(os.path.join(directory, name), 1001, 1001)

    agent = prepared(fill)
    ran = agent.run("git status --porcelain && git log --oneline | wc -l")
    assert (ran["exit_code"], ran["output"]) == (0, "1")
    assert agent.run("echo more >> README.md; stat -c %u README.md")["output"] == "1001", (
        "an edited file keeps its owner"
    )


def test_a_base_whose_hidden_names_are_links_has_sessions_and_the_links_are_data(
    prepared: Callable[[Callable[[str], None]], Agent],
) -> None:
    def fill(base: str) -> None:
        os.makedirs(os.path.join(base, ".git"))
        os.makedirs(os.path.join(base, "hooks"))
        os.symlink("elsewhere", os.path.join(base, ".bashrc"))
        os.symlink("../hooks", os.path.join(base, ".git/hooks"))
        os.symlink("/nonexistent", os.path.join(base, ".ssh"))

    agent = prepared(fill)
    for rootfs in ("shared", "read_only"):
        session = agent.session(rootfs=rootfs)
        assert agent.run("readlink .bashrc .git/hooks .ssh", session)["output"].split() == [
            "elsewhere",
            "../hooks",
            "/nonexistent",
        ]
    agent.run("ln -sfn other .bashrc; echo hook > .git/hooks/pre-commit", session)
    agent.call("publish_workspace_session", workspace_session_id=session)
    assert agent.run("readlink .bashrc .git/hooks; cat hooks/pre-commit")["output"].split() == [
        "other",
        "../hooks",
        "hook",
    ]


def test_where_the_overlay_cannot_be_mounted_nothing_runs_and_the_base_is_as_it_was(agent: Agent) -> None:
    base = os.path.join(agent.folder, "base", "B000001-base")
    before = tree_of(base)
    live = agent.session()
    os.rename(base, base + ".away")
    try:
        for op, args in (
            ("create_workspace_session", {}),
            ("exec_command", {"cmd": "echo ran > ran; touch README.md"}),
        ):
            error = refused(agent, op, **args)
            assert error.kind == "operation_failed" and error.reason, error
        assert [row["workspace_session_id"] for row in agent.call("list_workspace_sessions")["sessions"]] == [
            live
        ]
    finally:
        os.rename(base + ".away", base)
    assert tree_of(base) == before and agent.call("list_commands")["commands"] == []
    assert agent.run("cat README.md; ls ran 2>&1 | wc -l")["output"].split() == ["hello", "1"]
    assert agent.call("layerstack")["active_lease_count"] == 1


def test_sessions_in_one_repository_see_only_their_own_refs_and_the_second_publisher_keeps_a_draft(
    prepared: Callable[[Callable[[str], None]], Agent],
) -> None:
    def fill(base: str) -> None:
        git(base, "init", "-q", "-b", "main")
        git(base, "add", ".")
        git(base, "commit", "-qm", "first")

    agent = prepared(fill)
    first = agent.session()
    as_x = "git " + " ".join(AUTHOR)
    waiting = agent.run(
        f"git checkout -q -b theirs; echo t > t; git add t; {as_x} stash -q; echo b > b; git add b; {as_x} "
        f"commit -qm B; read go; git branch",
        yield_time_ms=0,
        tty=True,
    )
    agent.run(
        f"git checkout -q -b ours; echo s > s; git add s; {as_x} stash -q; echo a > a; git add a; {as_x} "
        f"commit -qm A",
        first,
    )
    assert agent.run("git branch --format '%(refname:short)'; git stash list | wc -l", first)[
        "output"
    ].split() == ["main", "ours", "1"]
    agent.call("publish_workspace_session", workspace_session_id=first)
    ended = agent.call(
        "write_command_stdin",
        command_session_id=waiting["command_session_id"],
        stdin="\n",
        yield_time_ms=60_000,
    )
    assert "theirs" in ended["output"] and "ours" not in ended["output"] and ended["publish_rejected"] is True
    (conflict,) = ended["publish_rejection"]["conflicts"]
    assert conflict["path"] == ".git" and {"path": ".git/HEAD"} in conflict["unit"]["members"]
    opened = agent.session(draft_id=ended["draft_id"])
    assert agent.run("git log --format=%s | head -n 1; git stash list | wc -l", opened)["output"].split() == [
        "B",
        "1",
    ]
    assert agent.run("git log --format=%s | head -n 1; git fsck 2>&1 | grep -c corrupt")[
        "output"
    ].split() == ["A", "0"]


def test_sessions_are_destroyed_while_others_run_and_nothing_outside_of_them_changes(agent: Agent) -> None:
    base = os.path.join(agent.folder, "base", "B000001-base")
    outside = os.path.join(agent.folder, "outside")
    os.makedirs(f"{outside}/d")
    Path(outside, "d/precious").write_text("precious\n")
    before = tree_of(base), tree_of(outside)
    runs = agent.session()
    command = agent.run("echo mine > mine; read go; cat mine", runs, yield_time_ms=0)["command_session_id"]
    for n in range(20):
        session = agent.session()
        agent.run(
            f"ln -s {base} to-base; ln -s {outside} to-outside; ln -s .. up; ln -s / root; mkdir d{n}; rm "
            f"-rf src run.sh",
            session,
        )
        discarded = agent.call("destroy_workspace_session", workspace_session_id=session)["discarded"]
        assert {"to-base", "to-outside", "up", "root", "src", "run.sh"} <= set(discarded["paths"])
    assert (tree_of(base), tree_of(outside)) == before
    ended = agent.call("write_command_stdin", command_session_id=command, stdin="\n", yield_time_ms=60_000)
    assert ended["output"].endswith("mine") and agent.read("README.md") == "hello"
    assert agent.call("layerstack")["staging_entry_count"] == 0


def test_twenty_sessions_on_a_large_base_take_what_each_of_them_wrote(
    prepared: Callable[[Callable[[str], None]], Agent],
) -> None:
    def fill(base: str) -> None:
        for n in range(64):
            Path(base, f"node_modules/p{n}").mkdir(parents=True)
            Path(base, f"node_modules/p{n}/index.js").write_bytes(os.urandom(65536))

    def blocks(folder: str) -> int:
        return 512 * sum(
            os.lstat(os.path.join(directory, name)).st_blocks
            for directory, names, files in os.walk(folder)
            for name in [*names, *files]
        )

    agent = prepared(fill)
    before = blocks(agent.store)
    sessions = [agent.session() for _ in range(20)]
    for n, session in enumerate(sessions):
        agent.run(
            f"head -c {(n + 1) * 4096} /dev/urandom > built; cat node_modules/*/index.js | wc -c", session
        )
    rows = {
        row["workspace_session_id"]: row["upper_bytes"]
        for row in agent.call("list_workspace_sessions")["sessions"]
    }
    assert [rows[session] for session in sessions] == [(n + 1) * 4096 for n in range(20)]
    written = sum(rows.values())
    assert written <= blocks(agent.store) - before <= written + 20 * 65536, "of a base of four megabytes"


def test_a_secret_in_the_environment_of_a_command_is_nowhere_but_in_its_processes(agent: Agent) -> None:
    secret = f"s3cret-{os.urandom(12).hex()}"
    session = agent.session()
    command = agent.run(
        'test -n "$SECRET" && echo has it; sleep 1000', session, env=[f"SECRET={secret}"], yield_time_ms=0
    )
    while (
        "has it"
        not in agent.call("read_command_lines", command_session_id=command["command_session_id"])["output"]
    ):
        pass
    holders: set[str] = set()
    for pid in pids():
        for name in ("cmdline", "environ"):
            try:
                text = Path(f"/proc/{pid}/{name}").read_bytes()
                if secret.encode() in text:
                    holders.add(f"{name} of {Path(f'/proc/{pid}/comm').read_text().strip()}")
            except OSError:
                continue
    assert holders and holders <= {"environ of sh", "environ of bash", "environ of sleep"}
    for op in ("list_commands", "trace", "events", "snapshot", "topology"):
        assert secret not in str(agent.call(op)), op
    agent.call("signal_command", command_session_id=command["command_session_id"], signal="KILL")
    agent.call("publish_workspace_session", workspace_session_id=session, grace_s=60)
    for directory, _, files in os.walk(agent.folder):
        for name in files:
            if os.path.isfile(os.path.join(directory, name)):
                assert secret.encode() not in Path(directory, name).read_bytes(), name
    assert agent.stop() == 0 and secret not in "\n".join(agent.log)


TRICKS = (
    "mount -o remount,rw / && echo y > {base}/README.md",
    "mount --bind {base} /mnt && echo y > /mnt/README.md",
    "mount -t overlay o -o lowerdir={base},upperdir=/tmp/u,workdir=/tmp/w /mnt",
    "umount {workspace} && echo y > {workspace}/README.md",
    "echo y > {base}/README.md",
    "echo y >> {base}/new",
    "chmod 777 {base}",
    "rm -rf {base}",
    "mv {base} {base}.x",
    "ln {base}/README.md stolen && echo y > stolen",
    "ln -s {base} b && echo y > b/README.md",
    "mknod d b 8 0 && dd if=/dev/zero of=d count=1",
    "mknod d b 253 0 && cat d",
    "for f in /proc/[0-9]*/root{base}/README.md; do echo y > $f; done",
    "for f in /proc/[0-9]*/cwd/README.md; do echo y > $f; done",
    "echo y > {store}/layers/x",
    "ls {store}/layers/* {store}/manifest.json",
    "rm -rf {store}",
    "nsenter -t 1 -m sh -c 'echo y > {base}/README.md'",
    "unshare -m sh -c 'mount --bind / /mnt'",
    "chroot / sh -c 'echo y > {base}/README.md'",
    "setfattr -n trusted.overlay.opaque -v y .",
    "python3 -c 'import os; os.open_by_handle_at' ; debugfs -w /dev/sda -R 'rm README.md'",
    "pivot_root . mnt",
)


def test_no_trick_of_a_session_changes_the_base_or_a_layer(agent: Agent) -> None:
    base = os.path.join(agent.folder, "base", "B000001-base")
    agent.call("file_write", path="published", content="published\n")
    layers = os.path.join(agent.store, "layers")
    before = tree_of(base), tree_of(layers)
    assert len(before[1]) > 2 and len(TRICKS) >= 20
    session = agent.session()
    for trick in TRICKS:
        cmd = trick.format(base=base, workspace=agent.workspace, store=agent.store)
        agent.run(cmd, session, tty=False, timeout_ms=20_000)
        assert (tree_of(base), tree_of(layers)) == before, cmd
    agent.call("destroy_workspace_session", workspace_session_id=session)
    assert agent.run("cat README.md published")["output"] == "hello\npublished"
