"""The configuration of a repository as far as a merge needs it, and the attributes and filters of its work
tree. Configuration outside of the repository is not read.
"""

from __future__ import annotations

import os

from layerstack.git.attributes import FILE_MAX as ATTRIBUTES_MAX
from layerstack.git.attributes import GitAttributes, merge_driver
from layerstack.git.git_config import CONFIG_MAX, GitConfig
from layerstack.git.object_format import FORMATS, SHA1, GitRefused, ObjectFormat, Oid
from layerstack.git.objects import GitTree, Objects
from layerstack.git.worktree_filter import WorktreeFilter
from layerstack.model.paths import join
from layerstack.tree.state import FILE


class RepositoryConfig:
    """The configuration in one tree. Raises GitRefused for a format that is not known."""

    def __init__(self, root: str, tree: GitTree) -> None:
        self.root, self._tree = root, tree
        data = _read(tree, f"{root}/config", CONFIG_MAX)
        self.exists = data is not None
        self._config = GitConfig.parse(data or b"")
        self._drivers: tuple[GitTree, GitAttributes] | None = None

    def value(self, section: bytes, name: bytes) -> str | None:
        found = self._config.get(section, None, name)
        return None if found is None else found.decode("utf-8", "surrogateescape")

    def is_true(self, section: bytes, name: bytes, default: bool) -> bool:
        found = self.value(section, name)
        if found is None:
            return default
        return found.lower() not in ("false", "no", "off", "0", "")

    @property
    def object_format(self) -> ObjectFormat:
        name = self.value(b"extensions", b"objectformat") or SHA1.name
        found = FORMATS.get(name)
        if found is None:
            raise GitRefused(f"{self.root}: the object format {name!r} is not one of {', '.join(FORMATS)}")
        return found

    @property
    def is_bare(self) -> bool:
        return self.is_true(b"core", b"bare", False)

    @property
    def file_mode(self) -> bool:
        return self.is_true(b"core", b"filemode", True)

    def attributes(self, files: GitTree, worktree: str) -> GitAttributes:
        """Give the attributes of the files of a tree."""
        return GitAttributes(
            lambda path: _read(files, join(worktree, path), ATTRIBUTES_MAX + 1),
            _read(self._tree, f"{self.root}/info/attributes", ATTRIBUTES_MAX + 1),
        )

    def driver_of(self, files: GitTree, worktree: str | None, path: bytes) -> str:
        """Name the merge driver of a path."""
        if worktree is None:
            return "text"
        if self._drivers is None or self._drivers[0] is not files:
            self._drivers = files, self.attributes(files, worktree)
        return merge_driver(self._drivers[1].of(path))

    def filters(self, files: GitTree, worktree: str) -> WorktreeFilter:
        """Give the filters of the files of a tree."""
        return self._filters(self.attributes(files, worktree))

    def filters_of_tree(self, objects: Objects, tree: Oid | None) -> WorktreeFilter:
        """Give the filters with which a tree is checked out."""

        def read(path: str) -> bytes | None:
            entry = objects.entry_at(tree, os.fsencode(path))
            return objects.read(entry.oid, "blob")[1] if entry is not None and entry.is_blob else None

        info = _read(self._tree, f"{self.root}/info/attributes", ATTRIBUTES_MAX + 1)
        return self._filters(GitAttributes(read, info))

    def _filters(self, attributes: GitAttributes) -> WorktreeFilter:
        autocrlf = (self.value(b"core", b"autocrlf") or "false").lower()
        if autocrlf != "input":
            autocrlf = "true" if self.is_true(b"core", b"autocrlf", False) else "false"
        return WorktreeFilter(
            attributes,
            self.object_format,
            autocrlf=autocrlf,
            eol=(self.value(b"core", b"eol") or "native").lower(),
        )


def _read(tree: GitTree, path: str, most: int) -> bytes | None:
    state = tree.find(path)
    return state.data(most) if state is not None and state.kind == FILE else None
