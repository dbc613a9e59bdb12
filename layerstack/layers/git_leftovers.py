"""Files that a killed git leaves in its own directory: locks that block every later git, and objects without
a name.

They are recognised by name (`layerstack.model.git_temporary`), and only inside a git directory: `.git`, or a
directory that git itself takes for one (a bare repository, the directory of a submodule). A work tree inside
of one is outside again, so that its `Cargo.lock` is an ordinary file. A capture leaves out those that the
session made: the process that held them has ended. Those of the base stay.
Source: git's `is_git_directory` (setup.c).
"""

from __future__ import annotations

import re
from collections.abc import Callable

from layerstack.layers.chain import Chain
from layerstack.model.git_temporary import is_temporary
from layerstack.model.git_temporary import may_be as may_be
from layerstack.model.paths import join
from layerstack.model.paths import parent as parent_of
from layerstack.tree.disk import Tree
from layerstack.tree.state import DIRECTORY, FILE, LINK, WHITEOUT, State

GIT = ".git"
_HEAD = re.compile(rb"ref:\s*refs/|[0-9a-f]{40}")
_HEAD_BYTES = 256
KNOWN_MAX = 10_000
"""Directories for which is remembered whether they are in a git directory."""


def is_named_so(path: str, kind: str) -> bool:
    """Check whether git makes such an entry temporarily; `path` begins at the git directory."""
    return kind in (FILE, DIRECTORY) and is_temporary(path, directory=kind == DIRECTORY)


class GitDirectories:
    """Git directories in the view of a session: `tree` on `chain`. `is_cut` says whether nothing of the chain
    is visible in a directory.
    """

    def __init__(self, tree: Tree, chain: Chain, is_cut: Callable[[str], bool]) -> None:
        self._tree, self._chain, self._is_cut = tree, chain, is_cut
        self._known: dict[str, str | None] = {}

    def around(self, path: str) -> str | None:
        """Find the git directory that the directory `path` is or is in, without a work tree between the two;
        None: it is in none.

        Cost: that of listing it and its ancestors in the tree, once for each directory.
        """
        if path in self._known:
            return self._known[path]
        if path.rpartition("/")[2] == GIT:
            found: str | None = path
        elif self._state(path, GIT) is not None:
            found = None
        elif self._is_git_directory(path):
            found = path
        else:
            found = self.around(parent_of(path)) if path else None
        if len(self._known) >= KNOWN_MAX:
            self._known.clear()
        self._known[path] = found
        return found

    def _is_git_directory(self, path: str) -> bool:
        """Check as git does (`is_git_directory`)."""
        head = self._state(path, "HEAD")
        if head is None:
            return False
        for name in ("objects", "refs"):
            found = self._state(path, name)
            if found is None or found.kind != DIRECTORY:
                return False
        if head.kind == LINK:
            return head.target.startswith("refs/")
        return head.kind == FILE and _HEAD.match(head.data(_HEAD_BYTES)) is not None

    def _state(self, path: str, name: str) -> State | None:
        """Give the state that the session shows there."""
        child = join(path, name)
        for there, kind in self._tree.scan(path):
            if there == name:
                return None if kind == WHITEOUT else self._tree.state(child)
        return None if self._is_cut(path) else self._chain.find(child)
