"""Patches that are made to do harm or to be slow, and processes that are killed while one is applied: all of
a patch or nothing of it, and no file is lost on the way.
"""

from __future__ import annotations

import contextlib
import glob
import os
import signal
import stat
import subprocess
import threading
from typing import Any

import pytest

from eos_agent.files import patch_hunks, patch_mount
from eos_agent.files.mounted import perform_in_mount
from eos_agent.files.patch_mount import clear_after_patch
from eos_agent.wire.protocol import OperationError
from tests.processes import descendants

from .agent_process import Agent, Failed
from .plain_directory import Folder

PLACE = ".eos-0123456789abcdef"
MOVE = "*** Begin Patch\n*** Update File: a\n*** Move to: b\n*** End Patch\n"


class PatchedTree(Folder):
    def patch(self, patch: str, **args: Any) -> dict[str, Any]:
        return perform_in_mount("patch", self.root, {"patch": patch, **args})[0]

    def refused(self, patch: str) -> str:
        with pytest.raises(OperationError) as caught:
            self.patch(patch)
        return str(caught.value.details["reason"])

    def git(self, *args: str) -> str:
        done = subprocess.run(
            ["git", "-c", "user.name=a", "-c", "user.email=a@b", "-c", "core.autocrlf=false", *args],
            cwd=self.root,
            check=True,
            capture_output=True,
            timeout=60,
        )
        return done.stdout.decode()

    def begin(self) -> None:
        self.git("init", "-q", ".")
        self.git("add", "-A")
        self.git("commit", "-qm", "one")


@pytest.fixture
def tree(short_dir: str) -> PatchedTree:
    return PatchedTree(short_dir)


def lines(word: str) -> bytes:
    return "".join(f"{word} {number}\n" for number in range(300)).encode()


def test_a_copy_in_a_diff_of_git_is_of_the_file_before_the_patch(tree: PatchedTree) -> None:
    tree.put("a", lines("a"))
    tree.begin()
    tree.put("b", lines("a"))
    tree.put("a", lines("a") + b"more\n")
    tree.git("add", "-A")
    diff = tree.git("diff", "--cached", "-C", "-C")
    assert "copy from a" in diff
    tree.git("reset", "-q", "--hard")
    tree.patch(diff)
    assert tree.get("b") == lines("a") and tree.get("a") == lines("a") + b"more\n"


def test_two_files_change_places_as_git_has_it(tree: PatchedTree) -> None:
    tree.put("a", lines("a"))
    tree.put("b", lines("b"), 0o755)
    tree.begin()
    os.rename(tree.at("a"), tree.at("t"))
    os.rename(tree.at("b"), tree.at("a"))
    os.rename(tree.at("t"), tree.at("b"))
    tree.git("add", "-A")
    diff = tree.git("diff", "--cached", "-B", "-M")
    assert diff.count("rename from") == 2
    tree.git("reset", "-q", "--hard")
    tree.patch(diff)
    assert tree.get("a") == lines("b") and tree.get("b") == lines("a")
    assert stat.S_IMODE(os.stat(tree.at("a")).st_mode) == 0o755
    assert (
        tree.refused(
            "*** Begin Patch\n*** Update File: a\n*** Move to: b\n*** Update File: b\n*** Move to: a\n"
            "*** End Patch\n"
        )
        == "already_exists"
    )


def test_a_listing_keeps_empty_lines_of_a_new_file_and_a_second_listing_counts(tree: PatchedTree) -> None:
    tree.put("a", b"a\n")
    tree.patch(
        "*** Begin Patch\n*** Add File: new\n+import os\n\n+x\n\n*** End Patch\n\n"
        "*** Begin Patch\n*** Update File: a\n@@\n-a\n+A\n*** End Patch\nthat was all\n"
    )
    assert tree.get("new") == b"import os\n\nx\n" and tree.get("a") == b"A\n"
    diff = "--- a/new\n+++ b/new\n@@ -3 +3 @@\n-x\n+y\n"
    listing = "*** Begin Patch\n*** Delete File: a\n*** End Patch\n"
    assert tree.refused(diff + listing) == "invalid_patch", "a part that would be passed over"
    assert tree.get("a") == b"A\n"


def test_thousands_of_hunks_at_wrong_lines_are_found_and_endless_searches_end(
    tree: PatchedTree, monkeypatch: pytest.MonkeyPatch
) -> None:
    count = 20_000
    tree.put("f", b"".join(b"%d\n" % number for number in range(count)))
    hunks = [f"@@ -{number * 7 % count + 1} +1 @@\n-{number}\n+x\n" for number in range(0, count, 4)]
    assert tree.patch("--- a/f\n+++ b/f\n" + "".join(hunks))["lines_added"] == count // 4
    monkeypatch.setattr(patch_hunks, "SEARCH_MAX", 1_000_000)
    tree.put("f", b"x\n" * 100_000 + b"y\n")
    twice = "@@\n x\n-x\n+z\n*** End of File\n"
    anchors = "".join(f"@@ x\n-{number}\n+z\n" for number in range(50))
    for body in (twice * 50, anchors):
        patch = f"*** Begin Patch\n*** Update File: f\n{body}*** End Patch\n"
        assert tree.refused(patch) in ("edit_too_large", "hunk_not_found")


@pytest.mark.parametrize("renames", range(3))
def test_a_file_that_moves_is_at_one_of_its_paths_whenever_the_worker_is_killed(
    tree: PatchedTree, renames: int
) -> None:
    """Also when nothing undoes the patch, since the whole session was killed."""
    tree.put("a", b"precious\n")
    pid = os.fork()
    if pid == 0:
        real, turn = patch_mount.syscalls.renameat2, iter(range(9))

        def renameat2(*args: Any, **how: Any) -> None:
            if next(turn) == renames:
                os.kill(os.getpid(), signal.SIGKILL)
            real(*args, **how)

        patch_mount.syscalls.renameat2 = renameat2
        try:
            tree.patch(MOVE, passing=PLACE)
        finally:
            os._exit(0)
    os.waitpid(pid, 0)
    found = [name for name in ("a", "b") if os.path.exists(tree.at(name)) and tree.get(name) == b"precious\n"]
    assert found == (["a"], ["a", "b"], ["b"])[renames]
    clear_after_patch(tree.root, {"passing": PLACE})
    assert sorted(os.listdir(tree.root)) == (["b"] if renames == 2 else ["a"])


def test_an_old_file_that_cannot_be_put_back_is_kept_beside(
    tree: PatchedTree, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree.put("d/a", b"one\n")
    tree.put("z", b"two\n")
    tree.put("a.before-patch", b"there already\n")
    real = patch_mount._exchange  # pyright: ignore[reportPrivateUsage]

    def take(root_fd: int, place_fd: int, name: str, step: Any, before: Any) -> None:
        if name == "1":
            os.rename(tree.at("d"), tree.at("moved"))
            raise OSError(28, "No space left on device")
        real(root_fd, place_fd, name, step, before)

    monkeypatch.setattr(patch_mount, "_exchange", take)
    with pytest.raises(OSError):
        tree.patch(
            "*** Begin Patch\n*** Update File: d/a\n@@\n-one\n+ONE\n"
            "*** Update File: z\n@@\n-two\n+TWO\n*** End Patch\n"
        )
    assert tree.get("a.before-patch") == b"there already\n" and tree.get("a.before-patch.1") == b"one\n"
    assert tree.get("z") == b"two\n"


def test_a_write_into_the_old_file_at_the_moment_of_its_exchange_is_kept(
    tree: PatchedTree, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree.put("a", b"one\n")
    real = patch_mount.syscalls.renameat2

    def renameat2(*args: Any, **how: Any) -> None:
        if tree.get("a") == b"one\n":
            with open(tree.at("a"), "ab") as file:
                file.write(b"of another process\n")
        real(*args, **how)

    monkeypatch.setattr(patch_mount.syscalls, "renameat2", renameat2)
    with pytest.raises(OperationError) as caught:
        tree.patch("--- a/a\n+++ b/a\n@@ -1 +1 @@\n-one\n+ONE\n")
    assert caught.value.details["reason"] == "file_changed"
    assert tree.get("a") == b"one\nof another process\n"


@pytest.mark.needs("overlay")
def test_a_patch_whose_worker_and_helper_are_killed_is_undone_by_the_agent(agent: Agent) -> None:
    """As the kernel does for lack of memory; the session's own processes may not signal them."""
    session = agent.session()
    count = 800
    agent.run(f"mkdir m; for n in $(seq {count}); do echo old > m/$n; done", session)
    parts = "".join(f"*** Update File: m/{number}\n@@\n-old\n+new\n" for number in range(1, count + 1))
    failed: list[str] = []

    def patch() -> None:
        try:
            agent.call(
                "apply_patch", patch=f"*** Begin Patch\n{parts}*** End Patch\n", workspace_session_id=session
            )
        except Failed as error:
            failed.append(error.reason)

    thread = threading.Thread(target=patch)
    thread.start()
    upper = f"{agent.store}/sessions/{session}/upper"
    while thread.is_alive() and not glob.glob(f"{upper}/.eos-*/journal"):
        pass
    stopped: list[int] = []
    new = 0
    while thread.is_alive():
        stopped = helpers(agent)
        signal_all(stopped, signal.SIGSTOP)
        new = sum(get(f"{upper}/m/{number}") == "new\n" for number in range(1, count + 1))
        if new:
            break
        signal_all(stopped, signal.SIGCONT)
    assert len(stopped) == 2 and new < count, "stopped between two files"
    signal_all(stopped, signal.SIGKILL)
    thread.join(60)
    assert failed == ["operation_killed"]
    assert agent.run("cat m/* | sort -u; ls -A | grep -c '^.eos-'", session)["output"] == "old\n0"
    agent.call(
        "apply_patch", patch="--- a/m/1\n+++ b/m/1\n@@ -1 +1 @@\n-old\n+new\n", workspace_session_id=session
    )


def get(path: str) -> str:
    with open(path) as file:
        return file.read()


def signal_all(pids: list[int], number: int) -> None:
    for pid in reversed(pids):  # the worker before the helper
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def helpers(agent: Agent) -> list[int]:
    """The processes of this agent in a session's pid namespace that run Python: the helper and its worker."""
    found: list[int] = []
    for pid in descendants(agent.pid):
        with contextlib.suppress(OSError), open(f"/proc/{pid}/status") as file:
            status = dict(line.rstrip("\n").split(":\t", 1) for line in file if ":\t" in line)
            if len(status["NSpid"].split()) > 1 and "init" not in status["Name"] and status["Name"] != "bash":
                found.append(pid)
    return found
