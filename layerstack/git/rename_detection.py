"""Renames between two trees as git's merge finds them: first equal contents, then similar files of one name,
then the most similar of all pairs.

Ties are decided as git decides them, down to the order of its hash tables, since the choice among equal
candidates decides what a file is merged with. Source: gitdiffcore(7); `git merge-tree` on such trees.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from layerstack.git.commits import EXECUTABLE, FILE_MODE
from layerstack.git.object_format import Oid
from layerstack.git.similarity import SCORE_MAX, Similarity

LEAST = SCORE_MAX // 2
"""Score from which a pair is a rename."""
LEAST_OF_ONE_NAME = LEAST + (SCORE_MAX - LEAST) // 2
"""Score from which two files are a pair because only they have the name."""
LIMIT = 7000
"""Side of the largest square of pairs that are compared, git's own default."""
EQUAL_MAX = 100
"""Sources of one content that are looked at for one new path."""
KEPT = 4
"""Best sources that are kept for each new path."""
IRRELEVANT, FOR_ITSELF, FOR_ANCESTOR = 0, 1, 2
"""Relevance of a removed directory: for finding its new place, for that of a directory above."""
BY_CONTENT, BY_PLACE = 1, 2
"""Relevance of a removed path: the other side changed it, or added a path to its removed directory."""
_UNKNOWN = b"/"


class PathEntry(NamedTuple):
    """A file, symlink or submodule at its path."""

    path: bytes
    mode: int
    oid: Oid

    @property
    def is_regular(self) -> bool:
        return self.mode in (FILE_MODE, EXECUTABLE)


class SideRename(NamedTuple):
    """A path of base, and its path on one side."""

    old: bytes
    new: bytes


def base_name(path: bytes) -> bytes:
    return path.rpartition(b"/")[2]


def dir_name(path: bytes) -> bytes:
    """Give the directory of a path, empty for a path at the top."""
    return path.rpartition(b"/")[0]


def table_order(keys: Iterable[bytes]) -> list[bytes]:
    """Order keys as git's hash table, which got them in this order, iterates over them."""
    size = 64
    table: list[list[tuple[int, bytes]]] = [[] for _ in range(size)]
    for count, key in enumerate(keys, 1):
        code = 0x811C9DC5
        for byte in key:
            code = (code * 0x01000193 & 0xFFFFFFFF) ^ byte
        table[code % size].insert(0, (code, key))
        if count > size * 80 // 100:
            size *= 4
            larger: list[list[tuple[int, bytes]]] = [[] for _ in range(size)]
            for row in table:
                for item in row:
                    larger[item[0] % size].insert(0, item)
            table = larger
    return [key for row in table for _, key in row]


class RenameSearch:
    """One search for the renames of one side.

    Args:
        removed, added: paths that only base, or only the side has, in the order of git's walk.
        relevant: removed paths of which the merge needs to know the new place -> BY_CONTENT or BY_PLACE.
        dirs: directories that the side removed -> their relevance.
    """

    def __init__(
        self,
        removed: Iterable[PathEntry],
        added: Iterable[PathEntry],
        relevant: Mapping[bytes, int],
        dirs: Mapping[bytes, int],
        similarity: Similarity,
        empty: Oid,
    ) -> None:
        self._sources = [entry for entry in removed if entry.oid != empty]
        self._targets = [entry for entry in added if entry.oid != empty]
        self._relevant, self._dirs, self._similarity = relevant, dict(dirs), similarity
        self._found: dict[int, int] = {}  # number of a target -> number of its source
        self._used: set[int] = set()
        self._moves: dict[bytes, dict[bytes, int]] = {}  # directory -> new directory -> renames between them
        self.limited = False
        """True when too many pairs were left for a comparison of each with each."""

    def run(self) -> list[SideRename]:
        """Find the renames, in the order of the new paths."""
        if self._sources and self._targets and self._relevant:
            self._equal_contents()
            self._same_names()
            rest = self._still_relevant([n for n, s in enumerate(self._sources) if s.path in self._relevant])
            self._most_similar(rest)
        return [
            SideRename(self._sources[source].path, self._targets[target].path)
            for target, source in sorted(self._found.items())
        ]

    def _record(self, target: int, source: int) -> None:
        self._found[target] = source
        self._used.add(source)

    def _equal_contents(self) -> None:
        by_oid: dict[Oid, list[int]] = {}
        for n, source in enumerate(self._sources):
            by_oid.setdefault(source.oid, []).append(n)
        for n, target in enumerate(self._targets):
            best, best_score, left = -1, -1, EQUAL_MAX
            for m in by_oid.get(target.oid, ()):
                source = self._sources[m]
                if not (source.is_regular and target.is_regular) and source.mode != target.mode:
                    continue
                score = 1 + (base_name(source.path) == base_name(target.path))
                if score > best_score:
                    best, best_score = m, score
                left -= 1
                if score == 2 or not left:
                    break
            if best >= 0:
                self._record(n, best)
                by_oid[target.oid].remove(best)

    def _same_names(self) -> None:
        """Pair files whose name is unique among the rest, or that are where most files of their directory
        went.
        """
        for target, source in self._found.items():
            self._count_move(self._sources[source].path, self._targets[target].path)
        guesses = {old: _most_frequent(counts) for old, counts in self._moves.items()}
        places = {entry.path: n for n, entry in enumerate(self._targets) if n not in self._found}
        rest = [n for n in range(len(self._sources)) if n not in self._used]
        sources, targets = dict[bytes, int](), dict[bytes, int]()
        for n in rest:
            name = base_name(self._sources[n].path)
            sources[name] = -1 if name in sources else n
        for path, n in places.items():
            name = base_name(path)
            targets[name] = -1 if name in targets else n
        for n in rest:
            path = self._sources[n].path
            name = base_name(path)
            if path not in self._relevant or name not in targets:
                continue
            target = targets[name]
            if sources[name] == -1 or target == -1:
                guess = guesses.get(dir_name(path))
                target = -1 if guess is None else places.get(guess + b"/" + name, -1)
            if (
                target == -1
                or target in self._found
                or self._score(n, target, LEAST_OF_ONE_NAME) < (LEAST_OF_ONE_NAME)
            ):
                continue
            self._record(target, n)
            self._count_move(path, self._targets[target].path)

    def _score(self, source: int, target: int, least: int) -> int:
        old, new = self._sources[source], self._targets[target]
        if not old.is_regular or not new.is_regular:
            return 0
        return self._similarity.score(old.oid, new.oid, least)

    def _count_move(self, old: bytes, new: bytes) -> None:
        """Count a rename for its directory, and for those above as far as they moved alike."""
        first = True
        while True:
            old, _, old_name = old.rpartition(b"/")
            if old not in self._dirs:
                return
            new, _, new_name = new.rpartition(b"/")
            if not first and old_name != new_name:
                return
            relevance = self._dirs[old]
            if first or relevance == FOR_ITSELF:
                counts = self._moves.setdefault(old, {})
                counts[new] = counts.get(new, 0) + 1
            first = False
            if relevance == IRRELEVANT or not old or not new:
                return

    def _still_relevant(self, sources: list[int]) -> list[int]:
        """Leave out sources that are used, and those that only matter for a directory whose new place is
        decided.
        """
        rest = [n for n in sources if n not in self._used]
        for n in rest:
            folder = dir_name(self._sources[n].path)
            while folder and self._dirs.get(folder, IRRELEVANT) != IRRELEVANT:
                counts = self._moves.setdefault(folder, {})
                counts[_UNKNOWN] = counts.get(_UNKNOWN, 0) + 1
                folder = dir_name(folder)
        for folder, counts in self._moves.items():
            if self._dirs.get(folder) == FOR_ITSELF:
                unknown = counts.get(_UNKNOWN, 0)
                most = sorted((n for to, n in counts.items() if to != _UNKNOWN), reverse=True)
                if most and most[0] > sum(most[1:2]) + unknown:
                    self._dirs[folder] = FOR_ANCESTOR
        return [
            n
            for n in rest
            if self._relevant[self._sources[n].path] != BY_PLACE or self._place_is_open(self._sources[n].path)
        ]

    def _place_is_open(self, path: bytes) -> bool:
        while path:
            path = dir_name(path)
            if (relevance := self._dirs.get(path, IRRELEVANT)) != FOR_ANCESTOR:
                return relevance == FOR_ITSELF
        return False

    def _most_similar(self, sources: list[int]) -> None:
        targets = [n for n in range(len(self._targets)) if n not in self._found]
        if len(sources) * len(targets) > LIMIT * LIMIT:
            self.limited = True
            return
        rows: list[tuple[int, int, int, int]] = []  # score, of one name, target, source
        for target in targets:
            rows.extend(self._best_sources(target, sources))
            if self._similarity.spent:
                self.limited = True
                return
        rows.sort(key=lambda row: row[:2], reverse=True)
        for score, _, target, source in rows:
            if score >= LEAST and target not in self._found and source not in self._used:
                self._record(target, source)

    def _best_sources(self, target: int, sources: list[int]) -> list[tuple[int, int, int, int]]:
        """Give the best candidates for a new path. A better one takes the place of the worst, the first of
        several.
        """
        name = base_name(self._targets[target].path)
        kept: list[tuple[int, int, int, int]] = []
        for source in sources:
            score = self._score(source, target, LEAST)
            found = (score, int(base_name(self._sources[source].path) == name), target, source)
            if len(kept) < KEPT:
                kept.append(found)
                continue
            worst = min(range(KEPT), key=lambda n: kept[n][:2])
            if found[:2] > kept[worst][:2]:
                kept[worst] = found
        return kept


def _most_frequent(counts: Mapping[bytes, int]) -> bytes:
    """Give the directory with the highest count; among equal ones the first in git's table."""
    most = max(counts.values())
    return next(name for name in table_order(counts) if counts[name] == most)
