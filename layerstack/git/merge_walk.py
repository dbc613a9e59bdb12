"""The walk of three trees side by side where they differ, with the paths that a search for renames needs.

A directory that one side left as it was is not read unless the other side's renames are needed. Source: the
order and the rules are those that `git merge-tree` shows, since ties among renames depend on them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from layerstack.git.commits import DIRECTORY, TreeEntry
from layerstack.git.object_format import ObjectTooLarge, Oid
from layerstack.git.objects import Objects
from layerstack.git.rename_detection import (
    BY_CONTENT,
    BY_PLACE,
    FOR_ANCESTOR,
    FOR_ITSELF,
    IRRELEVANT,
    PathEntry,
    table_order,
)

BASE, OURS, THEIRS = 0, 1, 2
PATHS_MAX = 1_000_000
"""Paths of one merge, and entries of the directories that are read for it."""
_ALL = 7


class PathVersion(NamedTuple):
    """Content of a path in one of the three trees."""

    mode: int
    oid: Oid


Versions = tuple[PathVersion | None, PathVersion | None, PathVersion | None]


class MergePath:
    """A path that is not decided by its entries alone, or a directory that was read."""

    __slots__ = (
        "clashes",
        "clean",
        "dirs",
        "equal",
        "files",
        "moved",
        "open",
        "result",
        "versions",
        "was",
    )

    def __init__(self, versions: Versions, files: int, dirs: int, equal: int) -> None:
        self.versions: list[PathVersion | None] = list(versions)
        self.files, self.dirs = files, dirs
        """Trees that have a file, or a directory here: a sum of 1 (base), 2 (ours), 4 (theirs)."""
        self.equal = equal
        """Trees whose entries are equal, as such a sum; 0 when no two are."""
        self.clashes = bool(files and dirs)
        """A file on one side, a directory on another."""
        self.moved = False
        """A conflict about the path itself, such as two new names."""
        self.was: bytes | None = None
        """The path in base, when a rename led here."""
        self.open = False
        """A directory whose entries are in the walk."""
        self.clean = False
        self.result: PathVersion | None = None


class _WalkFrame(NamedTuple):
    rows: Iterator[tuple[bytes, Versions]]
    folder: bytes
    mask: int
    """Sides that keep the directory which the other removed (2 or 4), 7 when a path was added to it, or 0."""


class MergeWalk:
    """The walk, and its findings."""

    def __init__(self, objects: Objects, base: Oid, ours: Oid, theirs: Oid) -> None:
        self._objects = objects
        self.paths: dict[bytes, MergePath] = {}
        self.decided: dict[bytes, list[TreeEntry]] = {}
        """Directory -> entries that are the same in the result whatever the renames are."""
        self.removed: tuple[list[PathEntry], ...] = ([], [], [])
        self.added: tuple[list[PathEntry], ...] = ([], [], [])
        """Side -> paths that only base, or only the side has."""
        self.relevant: tuple[dict[bytes, int], ...] = ({}, {}, {})
        self.dirs: tuple[dict[bytes, int], ...] = ({}, {}, {})
        self._later: tuple[dict[bytes, int], ...] = ({}, {}, {})
        self._put_off = [False, True, True]
        self._count = 0
        top = (PathVersion(DIRECTORY, base), PathVersion(DIRECTORY, ours), PathVersion(DIRECTORY, theirs))
        self._walk(self._frame(b"", top, _ALL, 0))
        self._read_later()

    def _read_later(self) -> None:
        """Read the directories that were put off, for a side whose renames are needed; else decide them."""
        for side in (OURS, THEIRS):
            later = self._later[side]
            self._put_off[side] = not self.relevant[side]
            for path in table_order(later):
                found = self.paths[path]
                if self._put_off[side]:
                    found.clean, found.result = True, found.versions[side]
                else:
                    found.equal &= found.files
                    found.open = True
                    versions = (found.versions[0], found.versions[1], found.versions[2])
                    self._walk(self._frame(path, versions, found.dirs, later[path]))

    def _walk(self, top: _WalkFrame) -> None:
        stack = [top]
        while stack:
            row = next(stack[-1].rows, None)
            if row is None:
                stack.pop()
            elif (below := self._visit(stack[-1], *row)) is not None:
                stack.append(below)

    def _frame(self, folder: bytes, versions: Versions, dirs: int, mask: int) -> _WalkFrame:
        """Read a directory of the trees in `dirs`."""
        by_name: dict[bytes, list[PathVersion | None]] = {}
        order: dict[bytes, bool] = {}  # name -> all of its entries are directories
        read: dict[Oid, list[TreeEntry]] = {}
        for side in range(3):
            version = versions[side]
            if version is None or not dirs & 1 << side:
                continue
            if version.oid not in read:
                read[version.oid] = self._objects.tree(version.oid)
                self._count += len(read[version.oid])
            for name, mode, oid in read[version.oid]:
                if name not in by_name:
                    by_name[name] = [None, None, None]
                    order[name] = True
                by_name[name][side] = PathVersion(mode, oid)
                if mode != DIRECTORY:
                    order[name] = False
        if self._count > PATHS_MAX:
            raise ObjectTooLarge(
                f"{self._objects.root}: a merge that reads more than {PATHS_MAX} entries of trees"
            )
        names = sorted(by_name, key=lambda name: name + b"/" if order[name] else name)
        rows: list[tuple[bytes, Versions]] = []
        for name in names:
            one = by_name[name]
            rows.append((name, (one[0], one[1], one[2])))
            if mask in (2, 4) and _masks(one)[0] == mask:
                mask = _ALL
        return _WalkFrame(iter(rows), folder, mask)

    def _visit(self, frame: _WalkFrame, name: bytes, versions: Versions) -> _WalkFrame | None:
        """Decide an entry, or note it; return the directory to read next."""
        base, ours, theirs = versions
        files, dirs = _masks(versions)
        ours_is_base, theirs_is_base = base is not None and ours == base, base is not None and theirs == base
        alike = ours is not None and ours == theirs
        if base is not None and (
            (ours_is_base and theirs_is_base) or (files == _ALL and (alike or ours_is_base or theirs_is_base))
        ):
            kept = theirs if ours_is_base else ours
            if kept is not None:
                self.decided.setdefault(frame.folder, []).append(TreeEntry(name, *kept))
            return None
        equal = 3 if ours_is_base else 5 if theirs_is_base else 6 if alike else 0
        path = frame.folder + b"/" + name if frame.folder else name
        mask = self._note(frame, path, versions, (files, dirs, equal & files))
        found = self.paths[path] = MergePath(versions, files, dirs, equal)
        if not dirs:
            return None
        side = THEIRS if ours_is_base else OURS if theirs_is_base else BASE
        if not files and dirs in (2, 4):
            side = dirs >> 1
        if mask != _ALL and side != BASE and self._put_off[side]:
            self._later[side][path] = mask
            return None
        found.equal &= files
        found.open = True
        return self._frame(path, versions, dirs, mask)

    def _note(self, frame: _WalkFrame, path: bytes, versions: Versions, masks: tuple[int, int, int]) -> int:
        """Note the path for the search for renames; return the mask for the directory below."""
        files, dirs, equal = masks
        mask = frame.mask
        if mask != _ALL and dirs in (3, 5):
            mask = dirs & ~1
        if dirs in (1, 3, 5):
            for side in (OURS, THEIRS):
                if not dirs & 1 << side:
                    self.dirs[side][path] = FOR_ANCESTOR if mask == _ALL else IRRELEVANT
        if mask == _ALL and files in (2, 4):
            self.dirs[THEIRS if files == 2 else OURS][frame.folder] = FOR_ITSELF
        if files in (0, _ALL):
            return mask
        for side in (OURS, THEIRS):
            bit = 1 << side
            here, there = versions[side], versions[BASE]
            if files & 1 and not files & bit and there is not None:
                self.removed[side].append(PathEntry(path, *there))
                if not equal:
                    self.relevant[side][path] = BY_CONTENT
                elif mask == _ALL:
                    self.relevant[side][path] = BY_PLACE
            elif not files & 1 and files & bit and here is not None:
                self.added[side].append(PathEntry(path, *here))
        return mask


def _masks(versions: Versions | list[PathVersion | None]) -> tuple[int, int]:
    files = dirs = 0
    for side, version in enumerate(versions):
        if version is not None:
            if version.mode == DIRECTORY:
                dirs |= 1 << side
            else:
                files |= 1 << side
    return files, dirs
