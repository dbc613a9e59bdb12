"""Find the new path of an entry of the base that one side renamed. The result is reported in conflicts and
notices; no decision depends on it.

A file was renamed if a path that only this side has shows the same bytes; a directory, if its files moved
together. A file that was edited in a renamed directory is found by that directory. Renames that are not found
are not reported: the search is bounded, and cheap enough for a report.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterable

from layerstack.layers.chain import Chain
from layerstack.model.paths import ancestors
from layerstack.tree.state import DIRECTORY, FILE, State, same

ADDED_MAX = 20_000
"""Paths of a side that are compared; with more, no rename is found."""
COMPARED_MAX, SAMPLED_MAX = 64, 16
"""Files of one size that a deleted one is compared with; files of a deleted directory that are searched
for.
"""
SIZE_MAX = 64 << 20
"""Largest file that is compared, in bytes."""


class Renames:
    """Renames of one side; nothing is read before the first query."""

    def __init__(
        self, base: Chain, tree: Callable[[str], State | None], listed: Callable[[], Iterable[str]]
    ) -> None:
        """`listed`: the paths where this side may differ from the base."""
        self._base, self._tree, self._listed = base, tree, listed
        self._added: dict[int, list[str]] | None = None
        self._files: dict[str, str | None] = {}
        self._folders: dict[str, str | None] = {}

    def find(self, path: str) -> str | None:
        """Find the new path of the base's entry at `path`, or its path in a renamed directory; None:
        unknown.
        """
        state = self._base.find(path)
        if state is not None and state.kind != DIRECTORY:
            found = self._file(path, state)
            if found is not None:
                return found
        elif state is not None and (found := self._folder(path)) is not None:
            return found
        for above in reversed(ancestors(path)[1:]):
            if self._tree(above) is None and (found := self._folder(above)) is not None:
                return found + path[len(above) :]
        return None

    def _candidates(self) -> dict[int, list[str]]:
        if self._added is None:
            self._added = {}
            paths = list(itertools.islice(self._listed(), ADDED_MAX + 1))
            for path in sorted(paths) if len(paths) <= ADDED_MAX else ():
                state = self._tree(path)
                if state is not None and state.kind != DIRECTORY and self._base.find(path) is None:
                    self._added.setdefault(state.size, []).append(path)
        return self._added

    def _file(self, path: str, state: State) -> str | None:
        if path in self._files:
            return self._files[path]
        found: list[str] = []
        if 0 < state.size <= SIZE_MAX or state.kind != FILE:
            for other in self._candidates().get(state.size, ())[:COMPARED_MAX]:
                there = self._tree(other)
                if there is not None and same(state, there):
                    found.append(other)
        name = path.rpartition("/")[2]
        found.sort(key=lambda other: (other.rpartition("/")[2] != name, other))
        self._files[path] = found[0] if found else None
        return self._files[path]

    def _folder(self, path: str) -> str | None:
        if path not in self._folders:
            self._folders[path] = None
            places: Counter[str] = Counter()
            seen = 0
            for below in self._base.walk(path):
                state = self._base.find(below)
                if state is None or state.kind == DIRECTORY:
                    continue
                seen += 1
                rest = below[len(path) :]
                found = self._file(below, state)
                if found is not None and found.endswith(rest):
                    places[found[: -len(rest)]] += 1
                if seen >= SAMPLED_MAX:
                    break
            if places and places.most_common(1)[0][1] * 2 >= seen:
                self._folders[path] = places.most_common(1)[0][0]
        return self._folders[path]
