"""The repository that an export to git writes to: what it has, and how commits and the ref come in.

Objects are received in a directory of their own beside the repository's, checked there by
`git index-pack --strict` and for what they lack, and only then moved. The ref changes at last, and only if it
is still what it was. Working tree, index, HEAD, configuration and hooks are never written.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Generator
from typing import IO, NamedTuple

from eos_agent.wire.protocol import INVALID_REQUEST, OperationError
from eos_mcp.export.destination_git import WRITE_S, HostGit, git_failed

STAGING = "tmp_objdir-eos-"
"""Prefix of the directory of received objects; `git gc` removes old ones of this name too."""
MESSAGE_BYTES = 1 << 20
HISTORY_MAX = 5000
LEFT_S = 86400.0
"""Age at which a directory of received objects was left by a killed export."""
_LAYER = re.compile(r"^Eos-Layer: [BLS](\d+)-", re.MULTILINE)


class RefState(NamedTuple):
    """The ref before the export."""

    oid: str
    tree: str
    version: int | None
    """The newest publication that the trailers of its commit name, if they are of this sandbox."""
    is_ours: bool
    """True if its commit has trailers of this sandbox."""


class GitRepository:
    """A repository of the host. Every method raises OperationError, reason git_failed at least."""

    def __init__(self, directory: str) -> None:
        """
        Raises:
            OperationError: git_missing, not_a_repository.
        """
        self.git = HostGit(directory)
        found = self.git.call("rev-parse", "--absolute-git-dir", "--git-common-dir")
        if found.returncode:
            text = found.stderr.decode("utf-8", "replace").strip()[-500:]
            raise git_failed(
                f"{directory} is not a git repository: {text}",
                "not_a_repository",
                dest=directory,
                hint="make one with `git init`, or name another repository as dest",
            )
        own, common = os.fsdecode(found.stdout).splitlines()[:2]
        self.directory = own
        self.common = os.path.realpath(os.path.join(directory, common))
        self.object_format = self.git.ask("rev-parse", "--show-object-format") or "sha1"

    def check_ref(self, ref: str) -> None:
        """
        Raises:
            OperationError: invalid_request bad_ref; ref_checked_out.
        """
        if (
            not ref.startswith("refs/")
            or ref.startswith("refs/eos/")
            or self.git.call("check-ref-format", ref).returncode
        ):
            raise OperationError(
                INVALID_REQUEST,
                f"export: {ref!r} is not the full name of a ref, such as refs/heads/eos/work",
                {"argument": "ref", "ref": ref},
                reason="bad_ref",
            )
        for line in self.git.must("worktree", "list", "--porcelain").splitlines():
            if line == f"branch {ref}":
                raise self._checked_out(ref)
        if self.git.ask("symbolic-ref", "-q", "HEAD") == ref:
            raise self._checked_out(ref)
        target = self.git.ask("symbolic-ref", "-q", ref)
        if target is not None:
            raise git_failed(f"{ref} is a symbolic ref to {target}", "ref_symbolic", ref=ref, target=target)

    def _checked_out(self, ref: str) -> OperationError:
        return git_failed(
            f"{ref} is checked out in {self.git.directory} or one of its worktrees",
            "ref_checked_out",
            ref=ref,
            hint="name another ref, and merge it there",
        )

    def ref_state(self, ref: str, sandbox_id: str) -> RefState | None:
        """Read the ref; None where there is none."""
        oid = self.git.ask("rev-parse", "--verify", "-q", f"{ref}^{{commit}}")
        if oid is None:
            if self.git.ask("show-ref", "--verify", ref) is not None:
                raise git_failed(f"{ref} is not a commit", "ref_moved", ref=ref)
            return None
        exact = self.git.ask("rev-parse", "--verify", "-q", ref)
        if exact != oid:
            raise git_failed(f"{ref} is not a commit", "ref_moved", ref=ref, found=exact)
        tree = self.git.must("rev-parse", f"{oid}^{{tree}}")
        text = self.git.must("log", "-1", "--no-show-signature", "--format=%B", oid)[:MESSAGE_BYTES]
        last = text.strip().rpartition("\n\n")[2]
        is_ours = f"\nEos-Sandbox: {sandbox_id}\n" in f"\n{last}\n"
        named = _LAYER.findall(last) if is_ours else []
        return RefState(oid, tree, max(map(int, named)) if named else None, is_ours)

    def has(self, oid: str) -> bool:
        """Check for a commit, reachable or not."""
        return self.git.ask("cat-file", "-e", f"{oid}^{{commit}}") is not None

    def has_reachable(self, oid: str) -> bool:
        """Check for a commit that a ref reaches, so that all that it needs is there."""
        if not self.has(oid):
            return False
        return bool(self.git.ask("for-each-ref", "--count=1", f"--contains={oid}"))

    def history(self, tip: str, parent: str | None) -> list[str]:
        """List the newest commits that `tip` has and `parent` has not, at most HISTORY_MAX."""
        words = ("rev-list", "-n", str(HISTORY_MAX), tip, *(("--not", parent) if parent is not None else ()))
        return self.git.must(*words).split()

    def is_ancestor(self, one: str, other: str, env: dict[str, str] | None = None) -> bool:
        return self.git.ask("merge-base", "--is-ancestor", one, other, env=env) is not None

    @contextlib.contextmanager
    def receiving(self, name: str) -> Generator[IncomingObjects]:
        """Give a place for new objects, which is removed at the end of the block."""
        objects = os.path.join(self.common, "objects")
        place = os.path.join(objects, STAGING + name)
        made = self.git.run(["mkdir", "-m", "700", "--", place, f"{place}/pack"])
        if made.returncode:
            text = made.stderr.decode("utf-8", "replace").strip()
            raise git_failed(f"cannot write to {objects}: {text}", "git_failed", directory=objects)
        try:
            yield IncomingObjects(self, place, objects)
        finally:
            self.git.run(["rm", "-rf", "--", place])

    def sweep(self) -> None:
        """Remove directories that killed exports left; a younger one may be of an export that runs."""
        objects = os.path.join(self.common, "objects")
        with contextlib.suppress(OSError):
            for name in os.listdir(objects):
                place = os.path.join(objects, name)
                if name.startswith(STAGING) and os.stat(place).st_mtime < time.time() - LEFT_S:
                    self.git.run(["rm", "-rf", "--", os.path.join(objects, name)])

    def set_ref(self, ref: str, new: str, old: str | None, message: str) -> None:
        """Set the ref if it is still `old`.

        Raises:
            OperationError: ref_moved with both ids.
        """
        words = (
            "update-ref",
            "--no-deref",
            "--create-reflog",
            "-m",
            message,
            ref,
            new,
            old or "0" * len(new),
        )
        done = self.git.call(*words)
        if done.returncode:
            now = self.git.ask("rev-parse", "--verify", "-q", ref)
            if now != old:
                raise ref_moved(ref, now, old)
            raise self.git.failed(done, words)


class IncomingObjects:
    """Objects that are not yet the repository's."""

    def __init__(self, repository: GitRepository, place: str, objects: str) -> None:
        self._git, self._place, self._objects = repository.git, place, objects
        self._repository = repository
        self._env = {"GIT_OBJECT_DIRECTORY": place, "GIT_ALTERNATE_OBJECT_DIRECTORIES": objects}

    def take(self, pack: IO[bytes], head: str, previous: str | None) -> None:
        """Check a pack and the history of `head`, and move the pack into the repository.

        Raises:
            OperationError: unsafe_objects, what git says of them; bad_stream.
        """
        done = self._git.call(
            "index-pack", "--strict", "--stdin", data=pack, env=self._env, timeout_s=WRITE_S
        )
        if done.returncode:
            text = done.stderr.decode("utf-8", "replace").strip()[-2000:]
            raise git_failed(f"git refuses what the sandbox sent: {text}", "unsafe_objects")
        words = ("rev-list", "--objects", "--stdin", "--not", "--all", "--quiet")
        whole = self._git.call(*words, data=f"{head}\n".encode(), env=self._env, timeout_s=WRITE_S)
        if whole.returncode or self._git.ask("cat-file", "-e", f"{head}^{{commit}}", env=self._env) is None:
            text = whole.stderr.decode("utf-8", "replace").strip()[-2000:]
            raise git_failed(f"the sandbox sent commits without all that they need: {text}", "bad_stream")
        if previous is not None and not self._repository.is_ancestor(previous, head, self._env):
            raise git_failed(f"the sandbox sent {head}, which does not follow {previous}", "bad_stream")
        folder = f"{self._place}/pack"
        self._git.run(
            ["mkdir", "-p", "--", f"{self._objects}/pack"]
        )  # a repository without packs may lack it
        names = sorted(os.listdir(folder), key=lambda name: name.endswith(".idx"))  # the index at last
        for name in names:
            if not name.startswith("pack-"):
                continue
            moved = self._git.run(["mv", "-n", "--", f"{folder}/{name}", f"{self._objects}/pack/{name}"])
            if moved.returncode:
                text = moved.stderr.decode("utf-8", "replace").strip()
                raise git_failed(f"cannot write to {self._objects}: {text}", "git_failed")


def ref_moved(ref: str, found: str | None, expected: str | None) -> OperationError:
    return git_failed(
        f"{ref} is {found or 'absent'}; the last export of this sandbox left it at {expected or 'nothing'}",
        "ref_moved",
        ref=ref,
        found=found,
        expected=expected,
        hint="name another ref; what is at this one is kept",
    )
