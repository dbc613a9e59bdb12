"""What tools make again by themselves from other files: byte code, and caches that are known as such. It never conflicts (ADR 0047).

Derived are: below a directory of a known name; what is ignored below one with a CACHEDIR.TAG (in each of the trees that have the directory); the
files of known names; and `__pycache__/*.pyc` whose header says that the interpreter compares it with its source. Where both sides changed a derived
path the head's stays. Byte code without that comparison is an ordinary file, and so is what lies beside a tag and is not ignored: a tag says what
backups may leave out, not who wrote it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from layerstack.model.paths import ancestors, join
from layerstack.tree.state import DIRECTORY, FILE, State

DIRECTORIES = frozenset((".pytest_cache", ".mypy_cache", ".ruff_cache", ".hypothesis", ".sass-cache", ".parcel-cache"))
FILES = re.compile(r"\.eslintcache|\.stylelintcache|.*\.tsbuildinfo")
TAG, SIGNATURE = "CACHEDIR.TAG", b"Signature: 8a477f597d28d172789f06886806bc55"
BYTE_CODE = re.compile(r".*\.pyc(\.\d+)?")
_TAGS_KEPT = 20_000


class Derived:
    """The rule over the trees of one publication."""

    def __init__(self, trees: Sequence[Callable[[str], State | None]], ignored: Callable[[str, bool], bool]) -> None:
        """`ignored`: (path, is it a directory?) -> do the `.gitignore` files of all the trees ignore it?"""
        self._trees, self._ignored = trees, ignored
        self._tagged: dict[str, bool] = {}

    def __call__(self, path: str, *states: State | None) -> bool:
        """Is what the trees have at the path derived? `states` are those that exist, or None."""
        folder, _, name = path.rpartition("/")
        there = [state for state in states if state is not None]
        directory = all(state.kind == DIRECTORY for state in there)
        if directory and name == "__pycache__":
            return True
        if not directory and FILES.fullmatch(name):
            return True
        if not directory and folder.rpartition("/")[2] == "__pycache__" and BYTE_CODE.fullmatch(name) and all(map(_is_compared, there)):
            return True
        at = path if directory else folder
        return self.is_named(at) or (self.is_tagged(at) and all(self._ignored(path, state.kind == DIRECTORY) for state in there))

    def is_named(self, path: str) -> bool:
        """Is it a directory that its name alone tells, or below one?"""
        for at in (*ancestors(path), path):
            above, _, name = at.rpartition("/")
            if name in DIRECTORIES or (name == ".cache" and above.rpartition("/")[2] == "node_modules"):
                return True
        return False

    def is_tagged(self, path: str) -> bool:
        """Is it a directory with a tag, or below one? What is ignored there is derived. The root is none."""
        return any(self._has_tag(at) for at in (*ancestors(path), path) if at)

    def within(self, path: str, ignored: bool) -> bool:
        """Is what is at and below a path derived, if all of it is ignored, or not?"""
        return self.is_named(path) or (ignored and self.is_tagged(path))

    def _has_tag(self, path: str) -> bool:
        known = self._tagged.get(path)
        if known is None:
            if len(self._tagged) >= _TAGS_KEPT:
                self._tagged.clear()
            found = [tree(join(path, TAG)) for tree in self._trees if (state := tree(path)) is not None and state.kind == DIRECTORY]
            known = self._tagged[path] = bool(found) and all(map(_is_tag, found))
        return known


def _is_tag(state: State | None) -> bool:
    return state is not None and state.kind == FILE and state.data(len(SIGNATURE)) == SIGNATURE


def _is_compared(state: State) -> bool:
    """Byte code by its header: a magic number, and flags that say by what it is compared with its source (PEP 552)."""
    if state.kind != FILE:
        return False
    head = state.data(8)
    return len(head) == 8 and head[2:4] == b"\r\n" and int.from_bytes(head[4:], "little") in (0, 3)
