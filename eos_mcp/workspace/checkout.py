"""A base that is a clean checkout of a commit, in place of the present state of a workspace.

The copy gets the workspace's repository; then the host's git checks the commit out in the copy. Nothing runs
in the workspace itself. Hooks, and filters that the repository's own configuration names, do not run.
"""

from __future__ import annotations

import os
import re
import stat
from typing import NamedTuple

from eos_agent.wire.protocol import INVALID_REQUEST, OPERATION_FAILED, OperationError
from eos_mcp.workspace import git_program
from eos_mcp.workspace.git_directories import GIT, Borrowed
from eos_mcp.workspace.git_program import GitFailed

CHECKOUT_S = 600.0
NAMED_MAX = 20
"""Maximum of submodules that the warnings name."""
WRITER = {
    f"GIT_{who}_{what}": "eos@eos.invalid" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")
}
UNFINISHED = re.compile(
    r"\.git/(index|sharedindex\..*|.*_HEAD|MERGE_.*|SQUASH_MSG|AUTO_MERGE|BISECT_.*|(rebase-merge|rebase-apply|sequencer)"
    r"(/.*)?|refs/(bisect|rewritten)(/.*)?)"
)
"""Index, and operations under way, of the state that the checkout replaces."""


class CheckedOut(NamedTuple):
    commit: str
    warnings: tuple[str, ...]


def repository_of(borrowed: Borrowed, workspace: str, ref: str) -> Borrowed:
    """Return the entries of a copy with the repository alone, without index and operations under way.

    Raises:
        OperationError: invalid_request, reason not_a_repository.
    """
    entry = borrowed.listing.entries.get(GIT)
    if entry is None or not stat.S_ISDIR(entry[0]):
        why = "; ".join(borrowed.warnings[:1]) or f"it has no {GIT}"
        hint = "choose the top directory of a repository, or leave git_ref out"
        raise OperationError(
            INVALID_REQUEST,
            f"git_ref {ref!r}: workspace_root {workspace} is not a git repository: {why}",
            {"argument": "git_ref", "value": ref, "hint": hint},
            reason="not_a_repository",
        )
    kept = {
        path: found
        for path, found in borrowed.listing.entries.items()
        if path in ("", GIT) or (path.startswith(f"{GIT}/") and not UNFINISHED.fullmatch(path))
    }
    return borrowed._replace(listing=borrowed.listing._replace(entries=kept, special=(), staging=()))


def check_out(copy: str, workspace: str, ref: str) -> CheckedOut:
    """Make `copy`, which has a `.git` alone, a checkout of `ref`; HEAD names the branch or the commit.

    Raises:
        OperationError: invalid_request, reason git_ref_not_found; operation_failed, reason git_failed,
            git_missing.
    """
    config = [word for key in _filters(copy) for word in ("-c", f"filter.{key}")]
    commit = _verified(copy, ref, "^{commit}")
    if not commit:
        raise OperationError(
            INVALID_REQUEST,
            f"git_ref {ref!r} names no commit of the repository in {workspace}",
            {"argument": "git_ref", "value": ref, "hint": "give a branch, a tag or a commit id"},
            reason="git_ref_not_found",
        )
    branch = _verified(copy, ref, "", "--symbolic-full-name")
    try:
        if branch.startswith("refs/heads/"):
            _git(copy, "symbolic-ref", "HEAD", branch)
        else:
            _git(copy, "update-ref", "--no-deref", "HEAD", commit)
        _git(copy, *config, "read-tree", "--reset", "-u", "HEAD")
        staged = _git(copy, "ls-files", "--stage", "-z").split(b"\0")
    except GitFailed as error:
        raise OperationError(
            OPERATION_FAILED,
            f"git_ref {ref!r}: {error}",
            {"argument": "git_ref", "value": ref, "commit": commit},
            reason="git_failed",
        ) from None
    modules = [os.fsdecode(row.partition(b"\t")[2]) for row in staged if row.startswith(b"160000 ")]
    more = [f"a submodule, not checked out: {path}" for path in modules[:NAMED_MAX]]
    if len(modules) > NAMED_MAX:
        more.append(f"submodules, not checked out: {len(modules) - NAMED_MAX} more")
    return CheckedOut(
        commit, (f"a checkout of {ref}, commit {commit}, not the directory as it is now", *more)
    )


def _verified(copy: str, ref: str, peel: str, *words: str) -> str:
    """Return what rev-parse says of a ref; empty: there is none."""
    try:
        return os.fsdecode(
            _git(copy, "rev-parse", *words, "--verify", "--quiet", "--end-of-options", ref + peel)
        ).strip()
    except GitFailed:
        return ""


def _filters(copy: str) -> list[str]:
    """List settings that turn off each filter of the repository's own configuration; those of the user and of
    the machine run, as git-lfs does.
    """
    try:
        raw = _git(copy, "config", "--show-scope", "--name-only", "-z", "--get-regexp", r"^filter\..*\.")
    except GitFailed:
        return []
    fields = os.fsdecode(raw).split("\0")
    own = {
        name.split(".", 1)[1].rpartition(".")[0]
        for scope, name in zip(fields[::2], fields[1::2], strict=False)
        if scope in ("local", "worktree")
    }
    return [
        f"{name}.{key}={value}"
        for name in sorted(own)
        for key, value in (("smudge", ""), ("clean", ""), ("process", ""), ("required", "false"))
    ]


def _git(copy: str, *words: str) -> bytes:
    return git_program.run(
        copy,
        "-c",
        "core.logAllRefUpdates=false",
        *words,
        timeout_s=CHECKOUT_S,
        more=WRITER | {"GIT_NO_LAZY_FETCH": "1"},
    )
