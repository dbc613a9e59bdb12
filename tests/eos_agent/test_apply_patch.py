"""apply_patch: the two forms, on a plain directory; what git makes of the same patch; of the head and in a
session.
"""

from __future__ import annotations

import difflib
import os
import random
import stat
import subprocess
from collections.abc import Callable
from typing import Any

import pytest

from eos_agent.files import patch_mount
from eos_agent.files.mounted import perform_in_mount
from eos_agent.files.patch_mount import clear_after_patch
from eos_agent.wire.protocol import OperationError

from ..in_namespace import ORDINARY_UID
from .agent_process import Agent, refused
from .plain_directory import Folder


class Tree(Folder):
    def patch(self, patch: str, **args: Any) -> dict[str, Any]:
        return perform_in_mount("patch", self.root, {"patch": patch, **args})[0]

    def refused(self, patch: str) -> dict[str, Any]:
        before = self.content()
        with pytest.raises(OperationError) as caught:
            self.patch(patch)
        assert self.content() == before, "a refused patch changes nothing"
        return caught.value.details

    def content(self) -> dict[str, tuple[int, bytes]]:
        found: dict[str, tuple[int, bytes]] = {}
        for folder, folders, names in os.walk(self.root):
            folders[:] = [name for name in folders if name != ".git"]
            for name in (*folders, *names):
                path = os.path.join(folder, name)
                status = os.lstat(path)
                data = b""
                if stat.S_ISREG(status.st_mode):
                    with open(path, "rb") as file:
                        data = file.read()
                found[os.path.relpath(path, self.root)] = stat.S_IMODE(status.st_mode), data
        return found


@pytest.fixture
def tree(short_dir: str) -> Tree:
    return Tree(short_dir)


LISTING = """*** Begin Patch
*** Update File: src/app.py
@@ def two():
-    return 2
+    return 22
*** Add File: new/deep/file.txt
+one
+two
*** Delete File: old.txt
*** Update File: run.sh
*** Move to: bin/run.sh
@@
 #!/bin/sh
-echo a
+echo b
*** End Patch
"""
APP = b"def one():\n    return 2\n\n\ndef two():\n    return 2\n"


def fill(tree: Tree) -> None:
    tree.put("src/app.py", APP)
    tree.put("old.txt", b"old\n")
    tree.put("run.sh", b"#!/bin/sh\necho a\n", 0o755)


def test_a_listing_updates_adds_deletes_and_moves(tree: Tree) -> None:
    fill(tree)
    done = tree.patch(LISTING)
    assert tree.get("src/app.py") == APP[:-2] + b"22\n"
    assert tree.get("new/deep/file.txt") == b"one\ntwo\n"
    assert tree.get("bin/run.sh") == b"#!/bin/sh\necho b\n"
    assert stat.S_IMODE(os.stat(tree.at("bin/run.sh")).st_mode) == 0o755
    assert sorted(os.listdir(tree.root)) == ["bin", "new", "src"], "nothing temporary is left"
    rows = [(row["type"], row["path"], row["lines_added"], row["lines_removed"]) for row in done["files"]]
    assert rows == [
        ("edit", "src/app.py", 1, 1),
        ("create", "new/deep/file.txt", 2, 0),
        ("delete", "old.txt", 0, 1),
        ("move", "bin/run.sh", 1, 1),
    ]
    assert done["files"][3]["from"] == "run.sh" and done["lines_added"] == 4


@pytest.mark.parametrize("seed", range(8))
def test_a_git_diff_gives_what_git_has(tree: Tree, seed: int) -> None:
    rng = random.Random(seed)
    words = [f"line {n}" for n in range(6)]

    def text() -> str:
        body = "\n".join(rng.choice(words) for _ in range(rng.randrange(1, 40)))
        return body + rng.choice(["\n", "\n", ""])

    def git(*args: str) -> str:
        done = subprocess.run(
            ["git", "-c", "user.name=a", "-c", "user.email=a@b", "-c", "core.autocrlf=false", *args],
            cwd=tree.root,
            check=True,
            capture_output=True,
        )
        return done.stdout.decode()

    names = ["a.txt", "sub dir/b c.txt", "s/ü.txt", "empty", "gone", "moved"]
    for name in names:
        tree.put(name, b"" if name == "empty" else text().encode(), rng.choice([0o644, 0o755]))
    tree.put("crlf.txt", text().replace("\n", "\r\n").encode())
    git("init", "-q", ".")
    git("add", "-A")
    git("commit", "-qm", "one")
    for name in (*names[:4], "crlf.txt"):
        lines = tree.get(name).decode().split("\n")
        for _ in range(3):
            lines[rng.randrange(len(lines)) : rng.randrange(len(lines)) + 1] = [rng.choice(words) + "+"]
        tree.put(name, "\n".join(lines).encode(), rng.choice([0o644, 0o755]))
    os.unlink(tree.at("gone"))
    os.rename(tree.at("moved"), tree.at("moved too"))
    tree.put("added/x", text().encode(), 0o755)
    git("add", "-A")
    diff = git("diff", "--cached", "-M", "HEAD")
    wanted = tree.content()
    git("reset", "-q", "--hard", "HEAD")
    tree.patch(diff)
    assert {p: v for p, v in tree.content().items() if v[1]} == {p: v for p, v in wanted.items() if v[1]}


def test_every_diff_of_difflib_applies_and_so_does_one_that_lines_above_have_moved(tree: Tree) -> None:
    rng = random.Random(5)
    for _ in range(60):
        old = [f"{rng.randrange(1000)}\n" for _ in range(rng.randrange(1, 30))]
        new = list(old)
        for _ in range(rng.randrange(1, 4)):
            at = rng.randrange(len(new) + 1)
            new[at : at + rng.randrange(2)] = [f"new {rng.randrange(9)}\n"] * rng.randrange(1, 3)
        if new == old:
            continue
        diff = "".join(difflib.unified_diff(old, new, "f", "f"))
        above = [f"above {n}\n" for n in range(rng.randrange(4))]
        tree.put("f", "".join(above + old).encode())
        tree.patch(diff)
        assert tree.get("f") == "".join(above + new).encode()


def test_line_ends_blanks_at_line_ends_and_marks_stay(tree: Tree) -> None:
    tree.put("f", b"\xef\xbb\xbfone\r\ntwo  \r\nthree\r\nfour\n\xff\xfe")
    tree.patch("--- a/f\n+++ b/f\n@@ -1,3 +1,4 @@\n one\n two\n+more\n-three\n+THREE\n")
    assert tree.get("f") == b"\xef\xbb\xbfone\r\ntwo  \r\nmore\r\nTHREE\r\nfour\n\xff\xfe"


def test_wrong_counts_missing_blanks_and_absent_numbers_are_read(tree: Tree) -> None:
    tree.put("f", b"a\n\nb\nc\n")
    tree.patch("--- f\n+++ f\n@@ -1,9 +1,2 @@\n a\n\n-b\n+B\n")
    assert tree.get("f") == b"a\n\nB\nc\n"
    tree.patch(
        "```diff\n--- f\n+++ f\n@@ ... @@\n-c\n+C\n```\n".replace("```diff\n", "").replace("```\n", "")
    )
    assert tree.get("f") == b"a\n\nB\nC\n"


def test_a_removed_line_of_dashes_is_no_header(tree: Tree) -> None:
    tree.put("f", b"-- x\nb\n")
    tree.patch("--- a/f\n+++ b/f\n@@ -1,2 +1,2 @@\n--- x\n+++ y\n b\n")
    assert tree.get("f") == b"++ y\nb\n"


def test_a_hunk_that_fits_twice_or_nowhere_is_refused_with_the_place(tree: Tree) -> None:
    fill(tree)
    tree.put("src/app.py", APP)
    twice = tree.refused("*** Begin Patch\n*** Update File: src/app.py\n@@\n-    return 2\n+x\n*** End Patch")
    assert (twice["reason"], twice["hunk"], twice["lines"]) == ("hunk_ambiguous", 1, [2, 6])
    patch = LISTING.replace("-echo a", "-echo c")
    nowhere = tree.refused(patch)
    assert (nowhere["reason"], nowhere["path"], nowhere["hunk"]) == ("hunk_not_found", "run.sh", 1)
    assert (nowhere["nearest_line"], nowhere["found"]) == (1, "#!/bin/sh\necho a")
    assert (nowhere["line"], nowhere["expected"]) == (2, "echo c")


@pytest.mark.parametrize(
    ("patch", "reason"),
    [
        ("", "invalid_patch"),
        ("hello", "invalid_patch"),
        ("*** Begin Patch\n*** Update File: f\n@@\n-one\n+two\n", "invalid_patch"),
        ("--- a/f\n+++ b/f\n@@ -1 +1 @@\n-one\n+one\n", "edit_no_change"),
        ("--- /dev/null\n+++ b/f\n@@ -0,0 +1 @@\n+x\n", "already_exists"),
        ("--- a/none\n+++ b/none\n@@ -1 +1 @@\n-x\n+y\n", "file_not_found"),
        ("--- a/../x\n+++ b/../x\n@@ -1 +1 @@\n-x\n+y\n", "invalid_path"),
        ("--- /etc/x\n+++ /etc/x\n@@ -1 +1 @@\n-x\n+y\n", "invalid_path"),
        ("--- a/link\n+++ b/link\n@@ -1 +1 @@\n-x\n+y\n", "not_a_file"),
        ("--- a/dir\n+++ b/dir\n@@ -1 +1 @@\n-x\n+y\n", "not_a_file"),
        ("--- a/f\n+++ /dev/null\n@@ -1 +0,0 @@\n-one\n", "hunk_not_found"),
        ("diff --git a/l b/l\nnew file mode 120000\n--- /dev/null\n+++ b/l\n", "invalid_patch"),
        ("diff --git a/f b/f\nGIT binary patch\nliteral 0\n", "invalid_patch"),
        ("*** Begin Patch\n*** Add File: n\n+x\n*** Add File: n/m\n+x\n*** End Patch", "invalid_patch"),
        ("*** Begin Patch\n*** Add File: n/m\n+x\n*** Add File: f/m\n+x\n*** End Patch", "not_a_file"),
        ("--- a/f\n+++ b/f\n@@ -1 +1 @@\n-one\n+x\n@@ -1 +1 @@\n-one\n+y\n", "hunk_overlap"),
    ],
)  # fmt: skip
def test_what_cannot_be_applied_is_refused_by_name_and_changes_nothing(
    tree: Tree, patch: str, reason: str
) -> None:
    tree.put("f", b"one\ntwo\n")
    os.mkdir(tree.at("dir"))
    os.symlink("f", tree.at("link"))
    assert tree.refused(patch)["reason"] == reason


def test_a_file_that_is_too_large_is_refused(tree: Tree) -> None:
    tree.put("f", b"one\n" + b"x" * 100)
    with pytest.raises(OperationError) as caught:
        tree.patch("--- a/f\n+++ b/f\n@@ -1 +1 @@\n-one\n+two\n", max_bytes=100)
    assert caught.value.details["reason"] == "edit_too_large"


@pytest.mark.parametrize("failing", range(4))
def test_a_failure_at_each_file_puts_all_of_them_back(
    tree: Tree, failing: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process changes a file just before its turn."""
    fill(tree)
    real, turn = patch_mount._exchange, iter(range(9))  # pyright: ignore[reportPrivateUsage]

    def take(root_fd: int, place_fd: int, name: str, step: Any, before: Any) -> None:
        if next(turn) == failing:
            raise OSError(28, "No space left on device")
        real(root_fd, place_fd, name, step, before)

    monkeypatch.setattr(patch_mount, "_exchange", take)
    before = tree.content()
    with pytest.raises(OSError):
        tree.patch(LISTING)
    assert tree.content() == before


@pytest.mark.parametrize("turns", range(6))
def test_a_worker_that_is_killed_between_two_files_is_undone(tree: Tree, turns: int) -> None:
    fill(tree)
    before = tree.content()
    pid = os.fork()
    if pid == 0:
        real, turn = patch_mount._exchange, iter(range(9))  # pyright: ignore[reportPrivateUsage]

        def take(root_fd: int, place_fd: int, name: str, step: Any, seen: Any) -> None:
            if next(turn) == turns:
                os.kill(os.getpid(), 9)
            real(root_fd, place_fd, name, step, seen)

        patch_mount._exchange = take  # pyright: ignore[reportPrivateUsage]
        try:
            tree.patch(LISTING, passing=".eos-0123456789abcdef")
        finally:
            os._exit(0)
    os.waitpid(pid, 0)
    clear_after_patch(tree.root, {"passing": ".eos-0123456789abcdef"})
    after = tree.content()
    assert (after == before) if turns < 5 else after["bin/run.sh"][1] == b"#!/bin/sh\necho b\n"


@pytest.mark.needs("overlay")
@pytest.mark.parametrize("in_session", [True, False])
def test_a_patch_of_the_head_is_one_layer_and_one_of_a_session_is_private(
    agent: Agent, in_session: bool
) -> None:
    args = {"workspace_session_id": agent.session()} if in_session else {}
    patch = """*** Begin Patch
*** Update File: run.sh
*** Move to: bin/run
*** Add File: made/by/patch
+x
*** Update File: src/app.py
@@
-two
+TWO
*** End Patch
"""
    mode = agent.call("file_stat", path="run.sh")["mode"]
    version = agent.call("list_versions", limit=1)["versions"][0]["version"]
    done = agent.call("apply_patch", patch=patch, **args)
    assert [row["type"] for row in done["files"]] == ["move", "create", "edit"]
    assert agent.call("file_stat", path="bin/run", **args)["mode"] == mode
    assert "TWO" in agent.call("file_read", path="src/app.py", **args)["content"]
    assert refused(lambda: agent.call("file_read", path="run.sh", **args)).reason == "file_not_found"
    after = agent.call("list_versions", limit=1)["versions"][0]["version"]
    assert after == version + (0 if in_session else 1)
    if in_session:
        published = agent.call("publish_workspace_session", **args)["publish"]
        assert not published.get("no_op")
        assert agent.call("file_stat", path="bin/run")["mode"] == mode
    wrong = patch.replace("-two", "-nothing like it")
    error = refused(lambda: agent.call("apply_patch", patch=wrong))
    assert error.reason in ("hunk_not_found", "file_not_found")


@pytest.mark.needs("overlay", "userns")
def test_a_patch_and_a_diff_in_the_overlay_of_an_ordinary_user(start_agent: Callable[..., Agent]) -> None:
    agent = start_agent(uid=ORDINARY_UID)
    args = {"workspace_session_id": agent.session()}
    patch = "--- a/src/app.py\n+++ b/src/app.py\n@@ -1,3 +1,3 @@\n one\n-two\n+TWO\n three\n"
    patch += "diff --git a/run.sh b/bin/run\nrename from run.sh\nrename to bin/run\n"
    agent.call("apply_patch", patch=patch, **args)
    rows = agent.call("diff_session", **args)["entries"]
    assert [(row["status"], row["path"]) for row in rows if row["path"] != "bin"] == [
        ("A", "bin/run"),
        ("D", "run.sh"),
        ("M", "src/app.py"),
    ]
