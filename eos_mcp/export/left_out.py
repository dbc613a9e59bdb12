"""Paths of the delta that an export leaves out: the `.git` of a repository, and Python byte code. Names that
the destination keeps.
"""

from __future__ import annotations

import os
import posixpath
import re
import stat
from collections.abc import Callable
from typing import Any

from eos_mcp.export.dirfd import DirTree
from eos_mcp.export.rules import ExportRules
from eos_mcp.export.stream import shown
from eos_mcp.workspace.staging_prefix import PREFIX
from layerstack.text.gitignore import FILE_MAX, IgnoreRules

FIRST = 20
_IGNORED = re.compile("[\u200b-\u200f\u202a-\u202e\u2060-\u206f\ufeff]")
"""Code points that HFS+ ignores in a name."""
_CACHE = b"__pycache__"
_GITDIR_MAX = 8192

GIT = (
    "the destination is a git repository and keeps its own .git; export_changes with format git brings the "
    "sandbox's commits into it, as a branch"
)
LINKED = (
    "the .git there is a file that names a repository elsewhere, and it stays; export_changes with format "
    "git brings commits into that repository"
)
BYTE_CODE = (
    "byte code, which runs in the place of its source unread and is made again by itself; a person "
    "may have it written with --allow-unsafe"
)
UNSAFE = "it would run by itself, and skip_unsafe leaves that out"
NEVER = "manager.export.git is exclude: no .git is written; a person may have it written with --with-git"


class LeftOut:
    """Decisions for each path, in byte order."""

    def __init__(
        self, rules: ExportRules, target: DirTree | None, folds: bool, copy: DirTree | None = None
    ) -> None:
        """`copy`: the sandbox's base, if this machine has it; its .gitignore files count beside the
        destination's.
        """
        self.rules, self.target, self.folds = rules, target, folds
        self.count = 0
        self.paths: list[str] = []
        self._why: dict[str, int] = {}
        self._repositories: dict[bytes, bool] = {}
        self._linked: dict[bytes, bool] = {}
        held = [] if target is None else [name for name in target.names(b"") if not name.startswith(PREFIX)]
        self._fresh = not held
        trees = (target, copy) if rules.ignored == "exclude" else ()
        self._ignore = [IgnoreRules(_reader(tree)) for tree in trees if tree is not None]

    def look(self, path: bytes) -> bool:
        """Tell whether the path is left out, and note it then."""
        why = self._reason(path)
        if why:
            self.note(path, why)
        return bool(why)

    def note(self, path: bytes, why: str) -> None:
        """Note a path that is left out."""
        self.count += 1
        self._why[why] = self._why.get(why, 0) + 1
        if len(self.paths) < FIRST:
            self.paths.append(shown(path))

    @staticmethod
    def may_have(paths: bytes) -> bool:
        """Return False if certainly none of the paths in `paths` (one or many) is left out."""
        return b"git" in paths.lower() or _CACHE in paths or not paths.isascii()

    def hides(self, path: bytes) -> bool:
        """Tell whether a path of the destination would be left out, or is ignored there while ignored paths
        are excluded: it is then not deleted with a directory above it.
        """
        return bool(self._reason(path)) or self._ignores(path)

    def _ignores(self, path: bytes) -> bool:
        if not self._ignore or self.target is None or (found := self.target.lstat(path)) is None:
            return False
        is_directory = stat.S_ISDIR(found.st_mode)
        return any(rules.ignored(os.fsdecode(path), is_directory) for rules in self._ignore)

    def to_json(self) -> dict[str, Any]:
        if not self.count:
            return {}
        return {
            "left_out": {
                "count": self.count,
                "paths": self.paths,
                "why": [{"count": n, "why": why} for why, n in self._why.items()],
            }
        }

    def _reason(self, path: bytes) -> str:
        if not self.may_have(path):
            return ""
        names = path.split(b"/")
        for at, name in enumerate(names):
            if name == _CACHE and not self._fresh and not self.rules.allow_unsafe:
                return BYTE_CODE
            if not is_git(name, self.folds):
                continue
            if self.rules.git != "exclude" and self._is_linked(b"/".join(names[:at])):
                return LINKED
            if self.rules.git != "include":
                if self.rules.git == "exclude":
                    return NEVER
                if any(self._repository(b"/".join(names[:above])) for above in range(at + 1)):
                    return GIT
        return ""

    def _repository(self, directory: bytes) -> bool:
        """Tell whether the destination has a `.git` of any kind there."""
        if self.target is None:
            return False
        known = self._repositories.get(directory)
        if known is None:
            if len(self._repositories) > 4096:
                self._repositories.clear()
            known = self._repositories[directory] = (
                self.target.lstat(directory + b"/.git" if directory else b".git") is not None
            )
        return known

    def _is_linked(self, directory: bytes) -> bool:
        """Tell whether the destination's `.git` there is that of a linked worktree or a submodule, whose git
        directory is outside of the destination.
        """
        if self.target is None:
            return False
        known = self._linked.get(directory)
        if known is None:
            if len(self._linked) > 4096:
                self._linked.clear()
            known = self._linked[directory] = self._names_outside(directory)
        return known

    def _names_outside(self, directory: bytes) -> bool:
        assert self.target is not None
        path = posixpath.join(directory, b".git")
        found = self.target.lstat(path)
        if found is None or not stat.S_ISREG(found.st_mode) or (fd := self.target.open_file(path)) is None:
            return False
        with os.fdopen(fd, "rb") as file:
            word, _, place = file.read(_GITDIR_MAX).partition(b":")
        place = posixpath.normpath(posixpath.join(directory, place.strip()))
        return word == b"gitdir" and (place.startswith((b"/", b"../")) or place == b"..")


def _reader(tree: DirTree) -> Callable[[str], bytes | None]:
    def read(path: str) -> bytes | None:
        fd = tree.open_file(os.fsencode(path))
        if fd is None:
            return None
        with os.fdopen(fd, "rb") as file:
            return file.read(FILE_MAX + 1)

    return read


def is_git(name: bytes, folds: bool) -> bool:
    """Tell whether a file system finds `.git` under this name; with `folds`, other spellings count too."""
    if name == b".git" or not folds:
        return name == b".git"
    text = _IGNORED.sub("", name.decode("utf-8", "replace")).casefold().rstrip(". ")
    return text in (".git", "git~1")
