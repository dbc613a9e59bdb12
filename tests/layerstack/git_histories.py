"""Random histories of sessions that use git: commit, amend, branch, switch, reset, stash, pack, tag; and what
must hold after each publication. With the machine's git, in mounted sessions.
"""

from __future__ import annotations

import os
import subprocess
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from layerstack.errors import PublishRejected
from tests.layerstack.store_fixture import Session, Stack

IDENTITY = {
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_COUNT": "5",
    "GIT_CONFIG_KEY_0": "user.name",
    "GIT_CONFIG_VALUE_0": "A",
    "GIT_CONFIG_KEY_1": "user.email",
    "GIT_CONFIG_VALUE_1": "a@example.com",
    "GIT_CONFIG_KEY_2": "gc.auto",
    "GIT_CONFIG_VALUE_2": "0",
    "GIT_CONFIG_KEY_3": "safe.directory",
    "GIT_CONFIG_VALUE_3": "*",
    "GIT_CONFIG_KEY_4": "maintenance.auto",
    "GIT_CONFIG_VALUE_4": "false",
    "GIT_EDITOR": "true",
}
OPERATIONS = (
    "commit",
    "commit",
    "commit",
    "edit",
    "stage",
    "add_file",
    "delete",
    "rename",
    "amend",
    "branch",
    "switch",
    "reset",
    "stash",
    "stash_pop",
    "gc",
    "pack_refs",
    "tag",
    "branch_delete",
    "status",
    "shared",
    "shared",
    "detach",
    "revert",
    "merge",
    "mode",
    "publish",
    "publish",
    "publish",
)
SESSIONS = 3
FILES = 4
"""Files of each session, which it alone edits: what two sessions do to one file is a conflict of its own."""


class Action(NamedTuple):
    session: int
    name: str
    which: int


class GitHistories:
    """Sessions of one store over one repository. `counts`: how often each thing happened."""

    def __init__(self, stack: Stack, environment: Mapping[str, str] | None = None) -> None:
        self.stack, self.counts = stack, Counter[str]()
        self.env = {**os.environ, **IDENTITY, **(environment or {})}
        self.number = 0
        self.open: dict[int, Session] = {}
        self.published = set[str]()
        """Commits that a ref of some published version reached."""
        self.subjects = set[str]()
        """Subjects of commits that sessions published."""
        first = stack.session()
        self.git(first, "init", "-q", "-b", "main")
        for session in range(SESSIONS):
            for file in range(FILES):
                self.write(first, f"of{session}/f{file}", "".join(f"line {n}\n" for n in range(20)))
        self.write(first, "shared", "".join(f"line {n}\n" for n in range(SESSIONS * 20)))
        self.git(first, "add", ".")
        self.git(first, "commit", "-q", "-m", "begin")
        first.publish()
        self.check(expected=None)

    def git(self, session: Session | str, *words: str, fails: bool = False) -> str:
        folder = session if isinstance(session, str) else session.view
        done = subprocess.run(
            ["git", "-C", folder, *words], capture_output=True, text=True, timeout=120, env=self.env
        )
        assert fails or done.returncode == 0, (words, done.stdout, done.stderr)
        return done.stdout if done.returncode == 0 else ""

    def write(self, session: Session, path: str, text: str) -> None:
        os.makedirs(os.path.dirname(session.at(path)), exist_ok=True)
        with open(session.at(path), "a") as file:
            file.write(text)

    def run(self, actions: Sequence[Action]) -> None:
        for action in actions:
            session = self.open.get(action.session)
            if session is None:
                session = self.open[action.session] = self.stack.session(agent=f"agent{action.session}")
            self.number += 1
            self.counts[action.name] += 1
            getattr(self, action.name)(session, action)
        for number, session in sorted(self.open.items()):
            self.publish(session, Action(number, "publish", 0))

    # ---- what a session does; each is refused by git where it makes no sense, which is fine

    def path(self, action: Action) -> str:
        return f"of{action.session}/f{action.which % FILES}"

    def edit(self, session: Session, action: Action) -> None:
        self.write(session, self.path(action), f"edit {self.number}\n")

    def stage(self, session: Session, action: Action) -> None:
        self.edit(session, action)
        self.git(session, "add", self.path(action))

    def add_file(self, session: Session, action: Action) -> None:
        self.write(session, f"of{action.session}/new{self.number}", f"new {self.number}\n")

    def delete(self, session: Session, action: Action) -> None:
        self.git(session, "rm", "-q", "-f", "--", self.path(action), fails=True)

    def rename(self, session: Session, action: Action) -> None:
        self.git(session, "mv", self.path(action), f"of{action.session}/moved{self.number}", fails=True)

    def commit(self, session: Session, action: Action) -> None:
        self.stage(session, action)
        # alone: what another session had staged stays staged
        self.git(session, "commit", "-q", "-m", self.subject(action), "--", self.path(action))

    def subject(self, action: Action) -> str:
        return f"by {action.session} number {self.number}"

    def amend(self, session: Session, action: Action) -> None:
        if self.git(session, "log", "-1", "--format=%s").startswith(f"by {action.session} "):
            self.stage(session, action)
            self.git(session, "commit", "-q", "--amend", "-m", self.subject(action), "--", self.path(action))

    def branch(self, session: Session, action: Action) -> None:
        self.git(session, "branch", f"b{action.session}-{self.number}")

    def switch(self, session: Session, action: Action) -> None:
        names = self.branches(session, action)
        self.git(session, "switch", "-q", names[action.which % len(names)], fails=True)

    def branches(self, session: Session, action: Action) -> list[str]:
        listed = self.git(session, "for-each-ref", "--format=%(refname:short)", "refs/heads/").split()
        return [name for name in listed if name == "main" or name.startswith(f"b{action.session}-")] or [
            "main"
        ]

    def reset(self, session: Session, action: Action) -> None:
        """Take back an own commit that is not published."""
        tip = self.git(session, "rev-parse", "HEAD").strip()
        if tip not in self.published and self.git(
            session, "rev-parse", "-q", "--verify", "HEAD~1", fails=True
        ):
            self.git(session, "reset", "-q", ("--soft", "--mixed")[action.which % 2], "HEAD~1")

    def stash(self, session: Session, action: Action) -> None:
        own = f"of{action.session}"
        self.git(session, "stash", "push", "-q", "-m", f"of {action.session}", "--", own, fails=True)

    def stash_pop(self, session: Session, action: Action) -> None:
        if f"of {action.session}" in self.git(session, "stash", "list").split("\n")[0]:
            self.git(session, "stash", "pop", "-q", fails=True)
            self.git(session, "reset", "-q", "--mixed")  # a pop that conflicts leaves unmerged entries

    def gc(self, session: Session, action: Action) -> None:
        self.git(session, "gc", "-q", *(("--prune=now",) if action.which % 2 else ()))

    def pack_refs(self, session: Session, action: Action) -> None:
        self.git(session, "pack-refs", "--all")

    def tag(self, session: Session, action: Action) -> None:
        self.git(
            session,
            "tag",
            *(("-a", "-m", "t") if action.which % 2 else ()),
            f"t{action.session}-{self.number}",
        )

    def branch_delete(self, session: Session, action: Action) -> None:
        names = [name for name in self.branches(session, action) if name != "main"]
        if names:
            self.git(session, "branch", "-q", "-D", names[action.which % len(names)], fails=True)

    def status(self, session: Session, action: Action) -> None:
        self.git(session, "status")

    def shared(self, session: Session, action: Action) -> None:
        """Change a line of the part of a common file that belongs to this session, and commit it alone."""
        with open(session.at("shared")) as file:
            lines = file.readlines()
        at = action.session * 20 + 5 + action.which
        if len(lines) > at:
            lines[at] = f"shared {self.number}\n"
            with open(session.at("shared"), "w") as file:
                file.writelines(lines)
            self.git(session, "commit", "-q", "-m", self.subject(action), "shared")

    def detach(self, session: Session, action: Action) -> None:
        self.git(session, "switch", "-q", "--detach", fails=True)

    def revert(self, session: Session, action: Action) -> None:
        own = self.git(session, "log", "-1", "--format=%s").startswith(f"by {action.session} ")
        if own and not self.git(session, "revert", "--no-edit", "HEAD", fails=True):
            self.git(session, "revert", "--quit", fails=True)
            self.git(session, "reset", "-q", "--merge", fails=True)

    def merge(self, session: Session, action: Action) -> None:
        names = self.branches(session, action)
        if not self.git(
            session, "merge", "-q", "-m", self.subject(action), names[action.which % len(names)], fails=True
        ):
            self.git(session, "merge", "--abort", fails=True)

    def mode(self, session: Session, action: Action) -> None:
        if os.path.exists(path := session.at(self.path(action))):
            os.chmod(path, 0o755 if action.which % 2 else 0o644)

    # ---- publication

    def publish(self, session: Session, action: Action) -> None:
        del self.open[action.session]
        own = f"of{action.session}/"
        mine = {path for path in self.changed(session.view) if path.startswith(own)}
        theirs = {path for path in self.head_changed() if not path.startswith(own)}
        reached = self.git(session, "log", "--format=%s", "--branches", "--tags", "HEAD").split("\n")
        try:
            session.publish()
        except PublishRejected as error:  # own files only: no content of two sessions meets
            raise AssertionError([conflict.to_json() for conflict in error.conflicts]) from error
        self.subjects.update(subject for subject in reached if subject.startswith("by "))
        self.check(expected=mine | theirs)

    def changed(self, folder: str) -> set[str]:
        """Paths that `git status` shows."""
        raw = self.git(folder, "status", "--porcelain", "--no-renames", "-uall", "-z")
        return {line[3:] for line in raw.split("\0") if line}

    def head_changed(self) -> set[str]:
        with self.stack.mounted() as view:
            return self.changed(view)

    def check(self, expected: set[str] | None) -> None:
        with self.stack.mounted() as view:
            assert self.git(view, "fsck", "--full", "--strict", "--no-dangling") == ""
            reachable = set(self.git(view, "rev-list", "--all", "HEAD").split())
            assert self.published <= reachable, "a published commit is lost"
            stashed = set(self.git(view, "rev-list", "refs/stash", fails=True).split())
            kept = set(self.git(view, "rev-list", "--exclude=refs/stash", "--all", "HEAD").split())
            self.published |= kept | (stashed & kept)
            subjects = self.git(view, "log", "--format=%s", "--all", "HEAD").split("\n")
            assert self.subjects <= set(subjects), "a commit's change is lost"
            if expected is not None:
                assert self.changed(view) == expected
