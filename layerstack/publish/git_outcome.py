"""Values that the merge of the repositories of a workspace gives to the plan of a publication."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from types import MappingProxyType
from typing import NamedTuple

from layerstack.model.conflict import Conflict, GitCommits, Hunk, Notice, Renamed
from layerstack.tree.state import State


class GitConflict(NamedTuple):
    """A conflict of a merge of commits, or of uncommitted changes with one."""

    path: str
    """The path of a file; the name of a ref where no file is meant."""
    cls: str
    hunks: tuple[Hunk, ...] = ()
    ref: str | None = None
    commits: GitCommits | None = None
    renamed: Renamed | None = None
    hint: str | None = None

    def completed(self, conflict: Conflict) -> Conflict:
        """Add what git knows to a conflict of the report."""
        return conflict._replace(
            ref=self.ref,
            commits=self.commits,
            renamed=self.renamed or conflict.renamed,
            hint=self.hint,
        )


class IndexRefresh(NamedTuple):
    """An index whose entries get the stat data of the published files, once these have their times."""

    path: str
    """Path of the index."""
    worktree: str
    object_format: str
    clean: tuple[str, ...]
    """Paths below the work tree whose files are equal to their entries."""


class GitOutcome(NamedTuple):
    """Decisions about all repositories of the workspace."""

    states: Mapping[str, State | None] = MappingProxyType({})
    """Path -> its state in the result; None is absent."""
    settled: Collection[str] = frozenset()
    """Paths of which the decision table decides nothing; of those without a state, there is a conflict."""
    folders: frozenset[str] = frozenset()
    """Directories above settled paths that are in the result."""
    conflicts: tuple[GitConflict, ...] = ()
    notices: tuple[Notice, ...] = ()
    tracked: Callable[[str], bool] | None = None
    refresh: tuple[IndexRefresh, ...] = ()
    rewritten: Mapping[str, str] = MappingProxyType({})
    """Commit of ours in hex -> the commit that replaces it in the result."""
    kept_refs: tuple[str, ...] = ()
    """Refs that the merge made so that no commit is lost."""


NO_GIT = GitOutcome()
