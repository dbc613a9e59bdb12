"""Sessions beside each other: no session changes the base, a layer or another one, or reads its secrets."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import drop_dir, make_short_dir
from tests.processes import pids

from .agent_process import Agent, Failed

pytestmark = pytest.mark.needs("overlay")


def refused(agent: Agent, op: str, /, **args: Any) -> Failed:
    with pytest.raises(Failed) as caught:
        agent.call(op, **args)
    return caught.value


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
