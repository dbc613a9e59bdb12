"""What a killed git leaves half done is no work of a session: recognised by name, in git directories, where
no base has it.
"""

from __future__ import annotations

import os
import signal
import subprocess

import pytest

from tests.layerstack.store_fixture import Session, Stack, on_a_stack, put

HASH = "0123456789abcdef0123456789abcdef01234567"
REPOSITORY: dict[str, str | bytes | None] = {
    ".git/HEAD": "ref: refs/heads/main\n",
    ".git/objects": None,
    ".git/refs/heads/main": f"{HASH}\n",
    ".git/left.lock": "by somebody\n",
    ".git/modules/m/HEAD": f"{HASH}\n",
    ".git/modules/m/objects": None,
    ".git/modules/m/refs": None,
    "bare/HEAD": "-> refs/heads/main",
    "bare/objects": None,
    "bare/refs": None,
    "none/HEAD": "of another program\n",
    "none/objects": None,
    "none/refs": None,
}
LEFT_OUT = {
    ".git/index.lock",
    ".git/next-index-7.lock",
    ".git/gc.pid",
    ".git/gc.log.lock",
    ".git/refs/heads/deep/er.lock",
    ".git/worktrees/w/index.lock",
    ".git/objects/pack/tmp_pack_a1b2c3",
    ".git/objects/pack/.tmp-12-pack-1.idx",
    ".git/objects/ab/tmp_obj_a1b2c3",
    ".git/objects/tmp_objdir-incoming-1",
    ".git/modules/m/index.lock",
    ".git/modules/m/objects/tmp_obj_1",
    "bare/packed-refs.lock",
    "made.git/config.lock",
}
KEPT = {
    "Cargo.lock",
    "gc.pid",
    "tmp_pack_1",
    "d/objects/tmp_obj_1",
    "git/index.lock",
    "none/refs/x.lock",
    ".git/gc.pid.d/x",
    ".git/tmp_obj_1",
    ".git/hooks/gc.pid",
    ".git/checked-out/yarn.lock",
    "bare/tree/Cargo.lock",
    ".git/refs/heads/tmp_pack_",
    ".git/annex/objects/W2/0v/SHA256E-s9--e3b0.lock/SHA256E-s9--e3b0.lock",
    ".git/hooks/package.lock",
    ".git/lfs/objects/tmp_1",
}


def half_done(session: Session) -> None:
    for path in LEFT_OUT | KEPT:
        put(session.at(f"{path}/00" if "objdir" in path else path))
    put(session.at("made.git/HEAD"), "ref: refs/heads/main\n")
    os.makedirs(session.at("made.git/objects"))
    os.makedirs(session.at("made.git/refs"))
    for tree in (".git/checked-out", "bare/tree"):
        put(session.at(f"{tree}/.git"), "gitdir: ../worktrees/w\n")
    put(session.at(".git/left.lock"), "by this session\n")


@on_a_stack(REPOSITORY)
def test_only_gits_own_names_in_git_directories_are_left_out_and_what_the_base_has_stays(
    stack: Stack,
) -> None:
    a = stack.session()
    half_done(a)
    a.umount()
    assert set(a.upper.preview().dropped) == LEFT_OUT
    published = a.publish()
    assert len(published.dropped) == len(LEFT_OUT) and set(published.dropped) == LEFT_OUT
    shown = stack.shows()
    assert (
        shown.keys() >= KEPT
        and not LEFT_OUT & shown.keys()
        and shown[".git/left.lock"] == "by this session\n"
    )


@on_a_stack(REPOSITORY)
def test_a_draft_and_a_rebase_leave_the_same_out(stack: Stack) -> None:
    a, b, c = stack.session(), stack.session(), stack.session()
    for session in (a, b):
        half_done(session)
    draft = a.keep()
    opened = stack.session(draft_id=draft.draft_id)
    assert all(os.path.exists(opened.at(path)) for path in KEPT) and not any(
        os.path.exists(opened.at(path)) for path in LEFT_OUT
    )
    put(c.at("other"))
    c.publish()
    b.umount()
    assert set(b.upper.rebase().dropped) == LEFT_OUT
    b.mount()
    assert all(os.path.exists(b.at(path)) for path in KEPT) and not any(
        os.path.exists(b.at(path)) for path in LEFT_OUT
    )
    assert set(b.publish().dropped) == LEFT_OUT, "its publication tells them too"


@on_a_stack(
    {"r/.git/HEAD": "ref: refs/heads/main\n", "r/.git/index.lock": "the base's\n", "r/f": "f\n"},
    namespaces=("trusted",),
)
def test_a_lock_of_the_base_goes_along_when_its_repository_is_renamed(stack: Stack) -> None:
    a = stack.session()
    os.rename(a.at("r"), a.at("s"))
    put(a.at("s/.git/HEAD.lock"))
    assert a.publish().dropped == ("s/.git/HEAD.lock",)
    assert stack.shows()["s/.git/index.lock"] == "the base's\n"


def git(at: str, *words: str, code: int | None = 0, **env: str) -> str:
    identity = ("-c", "user.name=x", "-c", "user.email=x@y", "-c", "safe.directory=*")
    done = subprocess.run(
        ["git", *identity, *words],
        cwd=at,
        env={**os.environ, "HOME": at, **env},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    assert code is None or done.returncode == code, done.stderr
    return done.stdout


@pytest.mark.timeout(120)
@on_a_stack({"f": "one\n"})
def test_a_commit_that_was_killed_in_its_editor_keeps_nobody_from_committing(stack: Stack) -> None:
    """Seen at commit 83e28fb: `Unable to create '.git/index.lock': File exists` in every later session."""
    a = stack.session()
    git(a.view, "init", "-q", "-b", "main")
    git(a.view, "add", ".")
    git(a.view, "commit", "-qm", "first")
    a.publish()
    b = stack.session()
    put(b.at("f"), "two\n")
    reading, writing = os.pipe()
    env = {**os.environ, "HOME": b.view, "GIT_EDITOR": f"echo > /proc/self/fd/{writing}; sleep 60 #"}
    words = ["git", "-c", "user.name=x", "-c", "user.email=x@y", "-c", "safe.directory=*", "commit", "-a"]
    editing = subprocess.Popen(
        words,
        cwd=b.view,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        pass_fds=[writing],
        process_group=0,
    )
    os.read(reading, 1)
    os.killpg(editing.pid, signal.SIGKILL)
    editing.wait()
    os.close(writing)
    while os.read(reading, 1):  # its editor ends as well
        pass
    os.close(reading)
    assert os.path.exists(b.at(".git/index.lock"))
    assert b.publish().dropped == (".git/index.lock",)
    c = stack.session()
    git(c.view, "commit", "-qam", "second")
    assert (
        git(c.view, "log", "--format=%s").split() == ["second", "first"]
        and git(c.view, "status", "--porcelain") == ""
    )
