"""Files that tools make again from other files: byte code, and known caches. They never conflict (ADR 0047).

These paths are derived: entries below a directory of a known name; ignored entries below a directory with a
CACHEDIR.TAG (in each of the trees that have the directory); files of known names; and `__pycache__/*.pyc`
whose header says that the interpreter compares it with its source. Where both sides changed a derived path,
the head's stays. Byte code without that comparison is an ordinary file, and so is an entry beside a tag that
is not ignored: a tag says what backups may leave out, not who wrote it. Source: bford.info/cachedir, PEP 552.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from layerstack.model.paths import ancestors, join
from layerstack.tree.state import DIRECTORY, FILE, State

DIRECTORIES = frozenset(
    (".pytest_cache", ".mypy_cache", ".ruff_cache", ".hypothesis", ".sass-cache", ".parcel-cache")
)
FILES = re.compile(r"\.eslintcache|\.stylelintcache|.*\.tsbuildinfo")
TAG, SIGNATURE = "CACHEDIR.TAG", b"Signature: 8a477f597d28d172789f06886806bc55"
BYTE_CODE = re.compile(r".*\.pyc(\.\d+)?")
_TAGS_KEPT = 20_000


class Derived:
    """The rule over the trees of one publication."""

    def __init__(
        self, trees: Sequence[Callable[[str], State | None]], ignored: Callable[[str, bool], bool]
    ) -> None:
        """`ignored`: (path, is it a directory?) -> do the `.gitignore` files of all the trees ignore it?"""
        self._trees, self._ignored = trees, ignored
        self._tagged: dict[str, bool] = {}

    def __call__(self, path: str, *states: State | None) -> bool:
        """Check whether the path is derived in the trees that have it; `states` are its states, None where
        absent.
        """
        folder, _, name = path.rpartition("/")
        there = [state for state in states if state is not None]
        directory = all(state.kind == DIRECTORY for state in there)
        if directory and name == "__pycache__":
            return True
        if not directory and FILES.fullmatch(name):
            return True
        if (
            not directory
            and folder.rpartition("/")[2] == "__pycache__"
            and BYTE_CODE.fullmatch(name)
            and all(map(_is_compared, there))
        ):
            return True
        at = path if directory else folder
        return self.is_named(at) or (
            self.is_tagged(at) and all(self._ignored(path, state.kind == DIRECTORY) for state in there)
        )

    def is_named(self, path: str) -> bool:
        """Check whether `path` is a directory of a known name, or below one."""
        for at in (*ancestors(path), path):
            above, _, name = at.rpartition("/")
            if name in DIRECTORIES or (name == ".cache" and above.rpartition("/")[2] == "node_modules"):
                return True
        return False

    def is_tagged(self, path: str) -> bool:
        """Check whether `path` is a directory with a tag, or below one; its ignored entries are derived. The
        root never is.
        """
        return any(self._has_tag(at) for at in (*ancestors(path), path) if at)

    def within(self, path: str, ignored: bool) -> bool:
        """Check whether all changes at and below `path` are derived; `ignored`: all of them are ignored."""
        return self.is_named(path) or (ignored and self.is_tagged(path))

    def _has_tag(self, path: str) -> bool:
        known = self._tagged.get(path)
        if known is None:
            if len(self._tagged) >= _TAGS_KEPT:
                self._tagged.clear()
            found = [
                tree(join(path, TAG))
                for tree in self._trees
                if (state := tree(path)) is not None and state.kind == DIRECTORY
            ]
            known = self._tagged[path] = bool(found) and all(map(_is_tag, found))
        return known


def _is_tag(state: State | None) -> bool:
    return state is not None and state.kind == FILE and state.data(len(SIGNATURE)) == SIGNATURE


def _is_compared(state: State) -> bool:
    """Recognise byte code by its header: a magic number, and flags that say how it is compared with its
    source (PEP 552).
    """
    if state.kind != FILE:
        return False
    head = state.data(8)
    return len(head) == 8 and head[2:4] == b"\r\n" and int.from_bytes(head[4:], "little") in (0, 3)
