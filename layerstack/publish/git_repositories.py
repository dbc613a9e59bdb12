"""Decide the git repositories of a workspace before the walk over its paths: what one side alone changed
stays as it is, what both changed is merged as git would.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable

from layerstack.core.publish_rules import OFF
from layerstack.git.object_format import GitError
from layerstack.git.one_sided import keep_lost_commits, refresh_index
from layerstack.git.repository_merge import (
    RepositoryConflict,
    RepositoryMerge,
    RepositoryMerger,
    RepositoryRules,
    RepositorySides,
)
from layerstack.model.conflict import GitCommits, Notice, Renamed
from layerstack.model.paths import ancestors
from layerstack.publish.git_outcome import NO_GIT, GitConflict, GitOutcome, IndexRefresh
from layerstack.publish.three_trees import Meeting, Trees
from layerstack.tree.state import State
from layerstack.units.git_repository import is_repository, is_usable
from layerstack.units.plan_units import changed_below, repositories

NOTHING = RepositoryMerge({}, frozenset())


def merge_repositories(trees: Trees, meeting: Meeting) -> GitOutcome:
    """Decide all repositories that the work or a newer layer of the head may have changed."""
    if meeting.rules.git == OFF:
        return NO_GIT
    roots = repositories(trees.own, trees.newer, meeting.rules.units)
    found = [
        root
        for root in roots
        if any(is_repository(root, tree.find) for tree in (trees.shown, trees.head, trees.base))
    ]
    return _joined([_Repository(root, trees, meeting) for root in found]) if found else NO_GIT


class _Repository:
    """One repository, and the decision about it."""

    def __init__(self, root: str, trees: Trees, meeting: Meeting) -> None:
        self.root, self.trees = root, trees
        above, _, name = root.rpartition("/")
        self.worktree = above if name == ".git" else None
        scope = root if self.worktree is None else above
        base = trees.base
        listed = (
            changed_below(trees.own, scope, base),
            {path for layer in trees.newer for path in changed_below(layer, scope, base)},
        )
        self.merger: RepositoryMerger | None = None
        self.error: GitError | None = None
        self.result = NOTHING
        rules = RepositoryRules(
            meeting.rules.git, meeting.author or "session", meeting.side, meeting.restores
        )
        sides = RepositorySides(root, base, trees.shown, trees.head)
        try:
            merger = self.merger = RepositoryMerger(sides, listed, rules)
            with merger.objects:
                self.result = self._decided(merger)
        except GitError as error:
            self.error = error
            self.listed = frozenset(path for side in listed for path in side)

    def _decided(self, merger: RepositoryMerger) -> RepositoryMerge:
        if not merger.entries[0] and not merger.entries[1]:
            return NOTHING
        ours, theirs = merger.changed
        index = merger.at("index")
        if not ours:
            # stat data alone: as if the session had not touched it
            same = "index" in merger.entries[0]
            states = {index: self.trees.head.find(index)} if same else dict[str, State | None]()
            return RepositoryMerge(states, frozenset(states))
        there = [is_usable(self.root, tree.find) for tree in (self.trees.shown, self.trees.head)]
        if theirs and not all(there):
            cls = "modify_delete" if there[0] else "delete_modify" if there[1] else ""
            at = self.root if self.worktree is None else self.worktree or ".git"
            inside = frozenset(merger.at(below) for side in merger.entries for below in side)
            return RepositoryMerge({}, inside, (RepositoryConflict(at, cls),)) if cls else NOTHING
        if theirs:
            return merger.merge()
        if not there[0]:
            return NOTHING
        kept = fresh = NOTHING
        with contextlib.suppress(GitError):  # what git could not read either is published as it is
            kept = keep_lost_commits(merger)
        if self.trees.newer:
            with contextlib.suppress(GitError):
                fresh = refresh_index(merger)
            kept = kept._replace(
                states={**kept.states, **fresh.states},
                settled=kept.settled | fresh.settled,
                clean=fresh.clean,
            )
        return kept


def _joined(repositories: Iterable[_Repository]) -> GitOutcome:
    states: dict[str, State | None] = {}
    settled = set[str]()
    conflicts: list[GitConflict] = []
    notices: list[Notice] = []
    refresh: list[IndexRefresh] = []
    rewritten: dict[str, str] = {}
    kept: list[str] = []
    merged: list[_Repository] = []
    for one in repositories:
        if one.error is not None:
            settled |= one.listed
            at = one.worktree if one.worktree is not None else one.root
            conflicts.append(GitConflict(at or ".", one.error.reason, hint=one.error.message))
            continue
        result = one.result
        states.update(result.states)
        settled |= result.settled
        for found in result.conflicts:
            commits = GitCommits(found.ours, found.theirs) if found.ref is not None else None
            renamed = None if found.renamed is None else Renamed(*found.renamed)
            conflicts.append(GitConflict(found.path, found.cls, found.hunks, found.ref, commits, renamed))
        notices += result.notices
        notices += [Notice("kept_commits", one.root, detail=name) for name in result.kept_refs]
        rewritten.update(result.rewritten)
        kept += result.kept_refs
        if result.clean:
            assert one.merger is not None
            refresh.append(
                IndexRefresh(f"{one.root}/index", one.worktree or "", one.merger.fmt.name, result.clean)
            )
        if result.settled:
            merged.append(one)
    folders = frozenset(
        above for path, state in states.items() if state is not None for above in ancestors(path)
    )
    mergers = [one.merger for one in merged if one.merger is not None]

    def tracked(path: str) -> bool:
        return any(_tracks(merger, path) for merger in mergers)

    return GitOutcome(
        states,
        settled,
        folders,
        tuple(conflicts),
        tuple(notices),
        tracked if mergers else None,
        tuple(refresh),
        rewritten,
        tuple(kept),
    )


def _tracks(merger: RepositoryMerger, path: str) -> bool:
    """Check whether an index of any side has a path of the workspace."""
    worktree = merger.worktree
    if worktree is None or (worktree and not path.startswith(worktree + "/")):
        return False
    below = os.fsencode(path[len(worktree) + 1 :] if worktree else path)
    return any(index is not None and below in index for index in merger.indexes)
