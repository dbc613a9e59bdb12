"""Names of the locks and temporary files in a git directory.

Source: git-gc(1), git-prune(1); `remove_temporary_files` (prune.c), lockfile.h.
"""

from __future__ import annotations

_LOCK, _GC_PID = ".lock", "gc.pid"
_OBJECTS = "objects/"
_TEMPORARY = ("tmp_", ".tmp-")
_GITS_OWN = frozenset(
    (
        "refs",
        "logs",
        "info",
        "objects",
        "reftable",
        "worktrees",
        "modules",
        "sequencer",
        "rebase-merge",
        "rebase-apply",
        "svn",
    )
)
"""Directories of a git directory in which git takes locks. Others, such as `hooks`, `lfs`, `annex`, contain
files of people and other programs.
"""


def may_be(name: str) -> bool:
    """Check whether an entry of that name needs a closer check; nearly none does."""
    return name.endswith(_LOCK) or name.startswith(_TEMPORARY) or name == _GC_PID


def is_temporary(path: str, *, directory: bool) -> bool:
    """Check whether git makes such a file or directory temporarily; `path` begins at the git directory."""
    name = path.rpartition("/")[2]
    if path.startswith(_OBJECTS) and name.startswith(_TEMPORARY):
        return True
    top, below, _ = path.partition("/")
    return not directory and ((name.endswith(_LOCK) and (not below or top in _GITS_OWN)) or path == _GC_PID)
