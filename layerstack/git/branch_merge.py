"""Merge a branch that both sides moved: replay commits as `git rebase` does, or merge them
as `git merge` does.

The result depends on the objects alone, not on the time of the merge: a publication that is planned again
makes the same commits.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from layerstack.git.ancestry import between, is_ancestor, merge_bases
from layerstack.git.commits import SIGNATURES, Commit, format_commit
from layerstack.git.object_format import Oid
from layerstack.git.objects import Objects
from layerstack.git.tree_merge import TreeConflict, merge_trees

REBASE, MERGE = "rebase", "merge"
_SECONDS = re.compile(rb"> -?\d+ ")

DriverOf = Callable[[bytes], str]
"""Path -> `text`, `union`, `binary` or `unset`: how two versions of its file are merged."""


class BranchSides(NamedTuple):
    """The three values of a branch; `base` is None when both sides gave it its first commit."""

    name: bytes
    base: Oid | None
    ours: Oid
    head: Oid


class BranchRules(NamedTuple):
    """Mode and helpers of a merge."""

    mode: str
    """REBASE or MERGE."""
    driver_of: DriverOf
    remote: Sequence[Oid]
    """Values of the refs below refs/remotes/: what a server has is not replayed."""
    identity: bytes
    """`Name <address>` of the committer of a merge commit."""
    author: str
    """The agent or session that made ours."""


class BranchMerge(NamedTuple):
    """The branch of the result."""

    tip: Oid | None
    """None: a conflict."""
    rewritten: Mapping[Oid, Oid] = {}
    """Replayed commits of ours -> their replacement."""
    kept: tuple[Oid, ...] = ()
    """Commits that the result does not contain, and that were published."""
    unsigned: int = 0
    """Replayed commits that had a signature."""
    conflicts: tuple[TreeConflict, ...] = ()
    rewritten_by_both: bool = False
    """True for a conflict: neither side contains the commit that both started from."""
    both: tuple[tuple[Oid, ...], tuple[Oid, ...]] = ((), ())
    """The commits of a conflict that ours and the head added, oldest first."""


def merge_branch(objects: Objects, sides: BranchSides, rules: BranchRules) -> BranchMerge:
    """Merge the commits of both sides; new objects are added to `objects`.

    Raises:
        GitError: an object is missing, damaged or too large, or a history too long.
    """
    b, o, h = sides[1:]
    if o == h or is_ancestor(objects, o, h):
        return BranchMerge(h)
    if is_ancestor(objects, h, o):
        return BranchMerge(o)
    in_ours, in_head = (b is None or is_ancestor(objects, b, side) for side in (o, h))
    if not in_ours and not in_head:
        return _conflict(objects, sides, (), rewritten=True)
    if not in_ours:
        replayed = _replay(objects, b, h, o, rules)
        if replayed is not None:
            return BranchMerge(replayed.tip, kept=(h,), unsigned=replayed.unsigned)
    elif rules.mode == REBASE:
        replayed = _replay(objects, b, o, h, rules)
        if replayed is not None:
            kept = () if in_head or b is None else (b,)
            return BranchMerge(replayed.tip, replayed.commits, kept, replayed.unsigned)
    return _merge(objects, sides, rules)


class _Replayed(NamedTuple):
    tip: Oid
    commits: Mapping[Oid, Oid]
    unsigned: int


def _replay(objects: Objects, base: Oid | None, tip: Oid, onto: Oid, rules: BranchRules) -> _Replayed | None:
    """Replay the commits of base..tip; None when one is a merge, is known to a server, or does not apply."""
    commits = between(objects, base, tip)
    if any(len(objects.links(oid).parents) > 1 for oid in commits):
        return None
    if commits and any(is_ancestor(objects, commits[0], oid) for oid in rules.remote if objects.has(oid)):
        return None
    made: dict[Oid, Oid] = {}
    unsigned, now = 0, onto
    for oid in commits:
        commit, above = objects.commit(oid), objects.commit(now)
        tree = merge_trees(
            objects, _tree_below(objects, commit), above.tree, commit.tree, rules.driver_of
        ).tree
        if tree is None:
            return None
        plain = commit.without(*SIGNATURES)
        unsigned += plain != commit
        committer = _not_before(commit.committer, commit.committed, above.committed)
        new = plain._replace(tree=tree, parents=(now,), committer=committer)
        now = made[oid] = objects.write("commit", format_commit(new))
    return _Replayed(now, made, unsigned)


def _tree_below(objects: Objects, commit: Commit) -> Oid:
    """Give the tree that a commit changed."""
    return objects.links(commit.parents[0]).tree if commit.parents else objects.fmt.empty_tree


def _not_before(line: bytes, seconds: int, least: int) -> bytes:
    """Make the date of a committer not earlier than its parent's."""
    return line if seconds >= least else _SECONDS.sub(b"> %d " % least, line, count=1)


def _merge(objects: Objects, sides: BranchSides, rules: BranchRules) -> BranchMerge:
    b, o, h = sides[1:]
    bases = merge_bases(objects, h, o)
    if len(bases) == 1:
        b = bases[0]
    below = objects.fmt.empty_tree if b is None else objects.links(b).tree
    ours, theirs = objects.links(o), objects.links(h)
    found = merge_trees(objects, below, theirs.tree, ours.tree, rules.driver_of)
    if found.tree is None:
        return _conflict(objects, sides, tuple(map(_swapped, found.conflicts)))
    date = max(ours.committed, theirs.committed)
    who = b"%s %d +0000" % (rules.identity, date)
    message = f"Merge {shown_ref(sides.name)} of {rules.author}\n".encode("utf-8", "surrogateescape")
    commit = Commit(found.tree, (h, o), who, who, (), message)
    return BranchMerge(objects.write("commit", format_commit(commit)))


_OTHER = {
    "modify_delete": "delete_modify",
    "delete_modify": "modify_delete",
    "ours": "theirs",
    "theirs": "ours",
}


def _swapped(conflict: TreeConflict) -> TreeConflict:
    """Say a conflict from the session's side: the merge was made on the head, as `git merge` makes it."""
    return conflict._replace(
        cls=_OTHER.get(conflict.cls, conflict.cls),
        ours=conflict.theirs,
        theirs=conflict.ours,
        hunks=tuple(hunk._replace(ours=hunk.theirs, theirs=hunk.ours) for hunk in conflict.hunks),
        renamed=tuple(one._replace(by=_OTHER.get(one.by, one.by)) for one in conflict.renamed),
    )


def shown_ref(name: bytes) -> str:
    """Name a ref as git does in the message of a merge."""
    text = name.decode("utf-8", "surrogateescape")
    return f"branch '{text.removeprefix('refs/heads/')}'" if text.startswith("refs/heads/") else text


def _conflict(
    objects: Objects, sides: BranchSides, conflicts: tuple[TreeConflict, ...], *, rewritten: bool = False
) -> BranchMerge:
    bases = merge_bases(objects, sides.ours, sides.head)
    base = bases[0] if bases else None
    both = tuple(between(objects, base, sides.ours)), tuple(between(objects, base, sides.head))
    return BranchMerge(None, conflicts=conflicts, rewritten_by_both=rewritten, both=both)
