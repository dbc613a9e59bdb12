"""Work trees of versions as git sees them: the value of a path, the paths that count, and what the base had
uncommitted.
"""

from __future__ import annotations

import os
import re
from bisect import bisect_left
from collections.abc import Iterator, Mapping

from layerstack.export.tree_builder import TreeBuilder
from layerstack.git.attributes import GitAttributes
from layerstack.git.commits import EXECUTABLE, FILE_MODE, GITLINK, SYMLINK, name_fault
from layerstack.git.git_index import GitIndex
from layerstack.git.index_rows import MODE_AT, STAT, IndexStat, Row
from layerstack.git.object_format import FORMATS, SHA1, GitRefused, ObjectFormat, Oid
from layerstack.git.objects import GitTree, Objects
from layerstack.git.ref_store import HEAD, PACKED, SYMBOLIC_MAX, loose_value, read_packed
from layerstack.git.tree_diff import FileValue, Staged, staged_changes, value_in
from layerstack.git.worktree_filter import WorktreeFilter
from layerstack.layers.chain import Chain
from layerstack.model.paths import ancestors, join
from layerstack.text.gitignore import IgnoreRules
from layerstack.tree.state import DIRECTORY, FILE, LINK, State

GIT = ".git"
CONFIG_MAX, ATTRIBUTES_MAX, EXCLUDE_MAX = 1 << 20, 1 << 20, 1 << 20
GITFILE_MAX = 4096
_SETTING = re.compile(rb"^\s*([A-Za-z][A-Za-z0-9-]*)\s*=\s*\"?([^\"#;\n]*)", re.MULTILINE)
_SECTION = re.compile(rb"^\s*\[\s*([A-Za-z0-9.-]+)\s*\]", re.MULTILINE)


def setting(config: bytes, section: str, name: str) -> str | None:
    """Give the last value of `section.name` in a configuration file, in lower case; included files do not
    count.
    """
    found: str | None = None
    marks = [*_SECTION.finditer(config)]
    for mark, after in zip(marks, [*marks[1:], None], strict=True):
        if mark[1].decode("latin-1").lower() != section:
            continue
        for row in _SETTING.finditer(config, mark.end(), after.start() if after is not None else len(config)):
            if row[1].decode("latin-1").lower() == name:
                found = row[2].strip().decode("latin-1").lower()
    return found


def content(tree: GitTree, path: str, limit: int) -> bytes | None:
    """Read a small file of a version; None where there is none or it is larger."""
    state = tree.find(path)
    return state.data(limit) if state is not None and state.kind == FILE and state.size <= limit else None


class HeadReader:
    """Resolves HEAD of repositories in versions; packed refs are parsed once per file."""

    def __init__(self) -> None:
        self._packed: dict[tuple[tuple[int, int], int], dict[bytes, bytes]] = {}

    def tip(self, tree: GitTree, root: str) -> bytes | None:
        """Give the commit of HEAD in hex; None without a repository, or on an unborn branch."""
        name = HEAD
        for _ in range(SYMBOLIC_MAX + 1):
            state = tree.find(f"{root}/{os.fsdecode(name)}")
            value = loose_value(state) if state is not None else None
            if value is None:
                return None if name == HEAD else self._of_packed(tree, root).get(name)
            if value.symbolic is None:
                return value.oid
            name = value.symbolic
        return None

    def _of_packed(self, tree: GitTree, root: str) -> dict[bytes, bytes]:
        state = tree.find(f"{root}/{PACKED}")
        if state is None or state.kind != FILE:
            return {}
        key = state.inode, state.size
        if key not in self._packed:
            self._packed = {key: read_packed(root, state)}
        return self._packed[key]


def format_of(tree: GitTree) -> ObjectFormat:
    """Give the object format of the repository at the root of a version."""
    found = setting(content(tree, f"{GIT}/config", CONFIG_MAX) or b"", "extensions", "objectformat")
    return FORMATS.get(found or "", SHA1)


def check_repository(tree: GitTree) -> bool:
    """Tell whether a version has a repository at its root.

    Raises:
        GitRefused: `.git` is a file or a link that leads out of the workspace, or the refs are a reftable.
    """
    state = tree.find(GIT)
    if state is None:
        return False
    if state.kind != DIRECTORY:
        raise GitRefused("export to git: .git is not a directory but leads out of the workspace")
    if setting(content(tree, f"{GIT}/config", CONFIG_MAX) or b"", "extensions", "refstorage") not in (
        None,
        "files",
    ):
        raise GitRefused("export to git: the refs are stored as reftable, which is not read")
    return tree.find(f"{GIT}/HEAD") is not None


class GitWorkTree:
    """The rules by which versions become trees of git: those of the newest version, for all of them.

    Args:
        newest: the exported version.
        committed: the tree of its HEAD; a path in it counts even if it is ignored.
    """

    def __init__(
        self, newest: Chain, rules: IgnoreRules, committed: TreeBuilder, fmt: ObjectFormat, heads: HeadReader
    ) -> None:
        self.newest, self.fmt, self._rules, self._committed, self._heads = (
            newest,
            fmt,
            rules,
            committed,
            heads,
        )
        config = content(newest, f"{GIT}/config", CONFIG_MAX) or b""
        self._modes = setting(config, "core", "filemode") != "false"
        self._nested: dict[str, bool] = {}
        self._excluded = _exclude_rules(newest)
        self.filter = WorktreeFilter(
            GitAttributes(
                lambda path: content(newest, path, ATTRIBUTES_MAX),
                content(newest, f"{GIT}/info/attributes", ATTRIBUTES_MAX),
            ),
            fmt,
            autocrlf=setting(config, "core", "autocrlf") or "false",
            eol=setting(config, "core", "eol") or "native",
        )
        data = content(newest, f"{GIT}/index", 1 << 29)
        self._index = read_index(newest, data, fmt) if data is not None else GitIndex(fmt)
        self.unsafe: dict[str, None] = {}
        """Paths whose names git refuses in a tree; they are left out."""
        self.ignored: set[str] = set()
        """Changed files that git ignores; they are left out."""

    def candidate(self, path: str) -> str | None:
        """Give the path at which a change at `path` shows in a tree of git: itself, or the nested repository
        that contains it; None for one that does not count.
        """
        if path == GIT or path.startswith(f"{GIT}/") or not path:
            return None
        if f"/{GIT}" in path:
            at = f"{path}/".find(f"/{GIT}/")
            if at >= 0:
                path = path[:at]
        for above in ancestors(path):
            if above and self._is_nested(above):
                path = above
                break
        raw = os.fsencode(path)
        if any(name_fault(step) is not None for step in raw.split(b"/")):
            self.unsafe[path] = None
            return None
        if self._committed.get(raw) is None and raw not in self._index:
            state = self.newest.find(path)
            is_directory = state is not None and state.kind == DIRECTORY
            if self._is_ignored(path, is_directory):
                if state is not None and not is_directory:
                    self.ignored.add(path)
                return None
        return path

    def _is_ignored(self, path: str, is_dir: bool) -> bool:
        if self._rules.ignored(path, is_dir):
            return True
        return self._excluded is not None and self._excluded.ignored(path, is_dir)

    def skips_directory(self, path: str) -> bool:
        """Tell whether nothing untracked in a directory counts."""
        return self._is_ignored(path, True)

    def _is_nested(self, directory: str) -> bool:
        found = self._nested.get(directory)
        if found is None:
            found = self._nested[directory] = self.newest.find(join(directory, GIT)) is not None
        return found

    def value(self, tree: Chain, path: str) -> tuple[FileValue | None, State | None]:
        """Give the value of a path in a version as `git add` would make it, and the file whose content it is.

        A submodule is the commit that its HEAD names; one that is not checked out stays as it is committed.
        """
        state = tree.find(path)
        raw = os.fsencode(path)
        if state is None:
            return None, None
        if state.kind == LINK:
            return FileValue(SYMLINK, self.fmt.oid_of("blob", os.fsencode(state.target))), state
        if state.kind == FILE:
            return FileValue(self.mode(raw, state), self.filter.oid_of(raw, state)), state
        if state.kind == DIRECTORY:
            known = self._committed.get(raw)
            nested = self._nested_head(tree, path)
            if nested is not None:
                return FileValue(GITLINK, nested), None
            if known is not None and known.mode == GITLINK:
                return known, None
        return None, None

    def mode(self, raw: bytes, state: State) -> int:
        if not self._modes:
            known = self._committed.get(raw)
            return known.mode if known is not None and known.mode in (FILE_MODE, EXECUTABLE) else FILE_MODE
        return EXECUTABLE if state.meta[0] & 0o100 else FILE_MODE

    def _nested_head(self, tree: Chain, path: str) -> Oid | None:
        """Give the commit of a repository inside the work tree, whose `.git` is a directory or a file."""
        place = join(path, GIT)
        state = tree.find(place)
        if state is None:
            return None
        if state.kind == FILE:
            text = state.data(GITFILE_MAX)
            if not text.startswith(b"gitdir:"):
                return None
            place = os.path.normpath(os.path.join(path, os.fsdecode(text[7:].strip())))
            if place.startswith(("/", "..")):
                return None
        tip = self._heads.tip(tree, place)
        return self.fmt.from_hex(tip) if tip is not None else None

    def nested_paths(self) -> Iterator[str]:
        """Yield the submodules of the newest version."""
        for path, row in self._index.rows.items():
            if int.from_bytes(row[MODE_AT : MODE_AT + 4], "big") == GITLINK:
                yield os.fsdecode(path)


def _exclude_rules(tree: GitTree) -> IgnoreRules | None:
    """Make the rules of `info/exclude`, which git reads like a `.gitignore` at the root."""
    data = content(tree, f"{GIT}/info/exclude", EXCLUDE_MAX)
    if data is None or all(not line or line.startswith(b"#") for line in data.split(b"\n")):
        return None
    return IgnoreRules(lambda path: data if path == ".gitignore" else None)


def read_index(tree: GitTree, data: bytes, fmt: ObjectFormat) -> GitIndex:
    """Parse the index of a version. Raises GitError."""
    return GitIndex.parse(data, fmt, lambda name: content(tree, f"{GIT}/{name}", 1 << 29))


def uncommitted(work: GitWorkTree, base: Chain, objects: Objects, committed: Oid | None) -> Iterator[str]:
    """Yield the paths at which the base differs from a commit's tree, ignored ones left out, in no order.

    Cost: an lstat for each entry of the base; content is read where the index does not have the file's time
    and size.
    """
    state = base.find(f"{GIT}/index")
    index = GitIndex(work.fmt)
    written = 0
    if state is not None and state.kind == FILE:
        index, written = read_index(base, state.data(), work.fmt), state.times[1]
    staged = staged_changes(index, objects, committed)
    tracked = sorted(index.rows)
    seen: set[bytes] = set()
    waiting = [""]
    while waiting:
        folder = waiting.pop()
        for name, kind in base.base.tree.scan(folder):
            path = join(folder, name)
            if name == GIT or path == GIT:
                continue
            raw = os.fsencode(path)
            if kind == DIRECTORY:
                if raw in index or base.find(join(path, GIT)) is not None:
                    seen.add(raw)
                    value, _ = work.value(base, path)
                    if value != _committed_value(index, staged, raw) and work.candidate(path) == path:
                        yield path
                elif not work.skips_directory(path) or _has_below(tracked, raw):
                    waiting.append(path)
                continue
            if kind not in (FILE, LINK):
                continue
            row = index.rows.get(raw)
            if row is not None and raw not in staged and _is_clean(work, base, path, raw, row, written):
                seen.add(raw)
                continue
            known = _committed_value(index, staged, raw)
            if known is None and raw not in index and work.candidate(path) != path:
                continue
            seen.add(raw)
            if _value(work, base, path, raw, index, written) != known and work.candidate(path) == path:
                yield path
    for raw in {*index.rows, *staged} - seen:
        if _committed_value(index, staged, raw) is None:
            continue
        entry = index.entry(raw)
        if entry is None or not entry.skip_worktree:
            yield os.fsdecode(raw)


def _has_below(tracked: list[bytes], directory: bytes) -> bool:
    """Check sorted paths for one in a directory; an ignored one may have tracked files."""
    at = bisect_left(tracked, directory + b"/")
    return at < len(tracked) and tracked[at].startswith(directory + b"/")


def _committed_value(index: GitIndex, staged: Mapping[bytes, Staged], raw: bytes) -> FileValue | None:
    if raw in staged:
        return staged[raw].head
    found = value_in(index, raw)
    return None if found is None else FileValue(found.mode, found.oid)


def _value(
    work: GitWorkTree, base: Chain, path: str, raw: bytes, index: GitIndex, written: int
) -> FileValue | None:
    """Give the value of a file of the base: of the index where its time and size are the entry's."""
    stat, entry = index.stat(raw), index.entry(raw)
    if stat is not None and entry is not None and not entry.intent_to_add:
        state = base.base.tree.state(path)
        if entry.assume_valid or (_is_unchanged(stat, state) and state.times[1] < written):
            if state.kind == LINK and entry.mode == SYMLINK:
                return FileValue(entry.mode, entry.oid)
            if state.kind == FILE and work.mode(raw, state) == entry.mode:
                return FileValue(entry.mode, entry.oid)
    return work.value(base, path)[0]


def _is_clean(work: GitWorkTree, base: Chain, path: str, raw: bytes, row: Row, written: int) -> bool:
    """Check a file of the base against an entry's time, size and mode, at a fraction of the cost of
    `_value`.
    """
    state = base.base.tree.state(path)
    _, _, mtime, mtime_ns, _, _, mode, _, _, size = STAT.unpack_from(row)
    time_ns = state.times[1]
    return (
        time_ns < written
        and size == state.size & 0xFFFFFFFF
        and (mtime, mtime_ns) == (time_ns // 1_000_000_000 & 0xFFFFFFFF, time_ns % 1_000_000_000)
        and mode == (SYMLINK if state.kind == LINK else work.mode(raw, state))
    )


def _is_unchanged(stat: IndexStat, state: State) -> bool:
    mtime = state.times[1]
    return (
        stat.size == state.size & 0xFFFFFFFF
        and stat.mtime == mtime // 1_000_000_000 & 0xFFFFFFFF
        and stat.mtime_ns == mtime % 1_000_000_000
    )
