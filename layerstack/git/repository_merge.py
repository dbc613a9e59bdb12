"""Merge one repository that a session and the head both changed: its refs, commits, index, logs and files,
and the tracked files of its work tree.

Nothing is written here: the result is a state for each path that the merge decides. Paths of other kinds,
such as hooks, stay with the rules for any file.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from layerstack.git.ancestry import is_ancestor, merge_bases
from layerstack.git.branch_merge import BranchMerge, BranchRules, BranchSides, merge_branch, shown_ref
from layerstack.git.commits import Commit, format_commit
from layerstack.git.config_merge import merge_configs
from layerstack.git.entry_class import (
    DERIVED,
    INDEX,
    JUNK,
    LAST_WRITER,
    LOG,
    OBJECT,
    class_of,
    split_worktree,
)
from layerstack.git.git_index import INDEX_MAX, GitIndex, same_entries
from layerstack.git.index_merge import IndexMerge, IndexSide, merge_indexes
from layerstack.git.kept_refs import KEPT, add_kept_refs
from layerstack.git.notes_merge import merge_notes
from layerstack.git.object_format import GitError, GitRefused, MissingObject, Oid, loose_bytes, loose_path
from layerstack.git.objects import GitTree, Objects
from layerstack.git.operation_state import operations
from layerstack.git.ref_merge import HEADS, REMOTES, RefMerge, RefRules, merge_refs
from layerstack.git.ref_names import free_ref_name, ref_word
from layerstack.git.ref_results import RefMeeting
from layerstack.git.ref_store import HEAD, RefMap, RefValue, read_refs, ref_files, resolve
from layerstack.git.reflog import STASH, LogMove, LogSides, merge_log, merge_logs, ref_of_log
from layerstack.git.repository_config import RepositoryConfig
from layerstack.git.stopped_merge import StoppedMerge, changed_tree, merge_with_sides, put_into_index
from layerstack.git.tree_diff import tree_changes
from layerstack.git.worktree_merge import WorktreeMerge, WorktreeSide
from layerstack.model.conflict import Hunk, Notice
from layerstack.model.paths import join
from layerstack.tree.state import DIRECTORY, FILE, State, made_state, same

BRANCH = "branch"
TAGS = b"refs/tags/"
FILE_BITS, OBJECT_BITS = 0o644, 0o444


class OperationUnderWay(GitError):
    """A merge, rebase or the like is under way on one side, and the other changed the repository."""

    reason = "git_operation_in_progress"


class RepositorySides(NamedTuple):
    """The three trees of a workspace, and the repository's directory in them, such as `src/.git`."""

    root: str
    base: GitTree
    ours: GitTree
    head: GitTree


class RepositoryRules(NamedTuple):
    """Mode and author of a merge."""

    mode: str
    """`rebase`, `merge` or `branch`."""
    author: str
    """The agent, or the session's short id."""
    side: Callable[[str], str] | None = None
    """Path of the workspace -> the side to take in a conflict, `markers` for both; None: a conflict is
    reported.
    """
    restores: bool = False
    """True when ours is an earlier version: kept refs that it lacks stay."""


class RepositoryConflict(NamedTuple):
    """A conflict of class `cls` at a path of the workspace, or at a ref where no file is meant."""

    path: str
    cls: str
    hunks: tuple[Hunk, ...] = ()
    ref: str | None = None
    ours: tuple[str, ...] = ()
    theirs: tuple[str, ...] = ()
    renamed: tuple[str, str] | None = None
    """New path of the file, and the side, `ours` or `theirs`, that renamed it."""


class RepositoryMerge(NamedTuple):
    """The result; paths are those of the workspace."""

    states: dict[str, State | None]
    """Path -> its state; None is absent."""
    settled: frozenset[str]
    """Paths that no other rule decides."""
    conflicts: tuple[RepositoryConflict, ...] = ()
    notices: tuple[Notice, ...] = ()
    rewritten: Mapping[str, str] = {}
    kept_refs: tuple[str, ...] = ()
    clean: tuple[str, ...] = ()
    """Paths below the work tree whose file is equal to the index's entry."""


class RepositoryMerger:
    """One merge; `merge` is called once. The caller closes `objects`.

    Args:
        listed: paths of the workspace that ours and the head may have changed.
    """

    def __init__(
        self, sides: RepositorySides, listed: tuple[Iterable[str], Iterable[str]], rules: RepositoryRules
    ) -> None:
        self.sides, self.rules, self.root = sides, rules, sides.root
        self.trees = (sides.base, sides.ours, sides.head)
        above, _, name = sides.root.rpartition("/")
        self.worktree: str | None = above if name == ".git" else None
        inside = sides.root + "/"
        self.entries = tuple(
            {path[len(inside) :] for path in side if path.startswith(inside)} for side in listed
        )
        """Paths below the repository that each side may have changed."""
        self.files = tuple(
            {below for path in side if (below := self._below(path)) is not None} for side in listed
        )
        """Paths below the work tree that each side may have changed."""
        self.configs = tuple(RepositoryConfig(sides.root, tree) for tree in self.trees)
        self.config = next((self.configs[n] for n in (2, 1, 0) if self.configs[n].exists), self.configs[2])
        self.fmt = self.config.object_format
        self.objects = Objects(sides.root, (sides.head, sides.ours, sides.base), self.fmt)
        self.states: dict[str, State | None] = {}
        self.settled: set[str] = set()
        self.notices: list[Notice] = []
        self.conflicts: list[RepositoryConflict] = []
        self.rewritten: dict[Oid, Oid] = {}
        self.published: list[Oid] = []
        """Commits that a branch of the result may not contain any more, and that were published."""
        self.moves: dict[bytes, LogMove] = {}
        self.stopped: StoppedMerge | None = None
        self.files_alone = False
        """True when ours' commits of the branch that is checked out were put aside: their changes of files
        are published as changes of files.
        """
        self.indexes: tuple[GitIndex | None, ...] = ()
        """Indexes of base, ours and head."""

    def _below(self, path: str) -> bytes | None:
        """Give the path below the work tree; None for a path outside, and one in the repository."""
        if self.worktree is None or path == self.root or path.startswith(self.root + "/"):
            return None
        if not self.worktree:
            return os.fsencode(path) if path else None
        inside = self.worktree + "/"
        return os.fsencode(path[len(inside) :]) if path.startswith(inside) else None

    def at(self, below: str) -> str:
        """Give the workspace's path of an entry of the repository."""
        return f"{self.root}/{below}"

    # ---- what changed

    @functools.cached_property
    def changed(self) -> tuple[set[str], set[str]]:
        """Entries of the repository that ours and the head changed; stat data in the index do not count, and
        neither do directories and locks. The index is read only where it is all that a side changed: beside
        other changes it counts as changed.
        """
        listed = self.entries
        return self._changed(listed[0], self.sides.ours), self._changed(listed[1], self.sides.head)

    def _changed(self, listed: set[str], tree: GitTree) -> set[str]:
        found: set[str] = set()
        for below in listed:
            b, s = self.sides.base.find(self.at(below)), tree.find(self.at(below))
            b, s = (None if x is not None and x.kind == DIRECTORY else x for x in (b, s))
            if b is s or (b is not None and s is not None and same(b, s)) or class_of(below) == JUNK:
                continue
            found.add(below)
        if found == {"index"} and self._has_same_index(tree):
            found.clear()
        return found

    def _has_same_index(self, tree: GitTree) -> bool:
        """Check whether a side has the base's index, but for stat data."""
        try:
            before, after = self.index_of(self.sides.base), self.index_of(tree)
        except GitError:
            return False
        return before is not None and after is not None and same_entries(before, after)

    def index_of(self, tree: GitTree, place: str = "") -> GitIndex | None:
        """Parse the index of the repository, or of the linked worktree at `worktrees/NAME/`."""

        def read(name: str) -> bytes | None:
            state = tree.find(self.at(place + name))
            return _index_bytes(state) if state is not None and state.kind == FILE else None

        data = read("index")
        return None if data is None else GitIndex.parse(data, self.fmt, read)

    # ---- the merge

    def merge(self) -> RepositoryMerge:
        self.indexes = tuple(self.index_of(tree) for tree in self.trees)
        self._refuse_operations()
        base, ours, head = self.trees
        before = read_refs(self.root, base)
        refs = self.maps = before, read_refs(self.root, ours, before), read_refs(self.root, head, before)
        merged = self._merge_refs(*refs)
        self.refs = dict(merged.refs)
        for meeting in merged.meetings:
            self._merge_branch(meeting)
        if self.conflicts:
            return self._result()
        self._follow(merged)
        for notice in merged.notices:
            self.notices.append(
                Notice(notice.kind, notice.name.decode("utf-8", "replace"), detail=notice.detail)
            )
        self.kept = add_kept_refs(
            self.objects,
            self.refs,
            [*self.tips(refs[2]), *self.published, *map(bytes.fromhex, map(bytes.decode, merged.lost))],
            self.rules.author,
        )
        self._merge_worktree()
        if self.conflicts:
            return self._result()
        self._place_refs(refs[2])
        self._place_logs(merged)
        self._place_linked_indexes()
        self._place_entries()
        for oid, (kind, data) in self.objects.new.items():
            self.put(loose_path(oid), loose_bytes(kind, data), OBJECT_BITS)
        return self._result()

    def _result(self) -> RepositoryMerge:
        if self.conflicts:
            return RepositoryMerge({}, frozenset(self._all_paths()), tuple(self.conflicts))
        return RepositoryMerge(
            self.states,
            frozenset((*self.states, *self.settled)),
            (),
            tuple(self.notices),
            {old.hex(): new.hex() for old, new in self.rewritten.items()},
            tuple(name.decode("utf-8", "replace") for name in self.kept),
            tuple(map(os.fsdecode, sorted(self.clean))),
        )

    def _all_paths(self) -> set[str]:
        """List all paths about which the table shall be silent, since commits conflict."""
        found = {self.at(below) for side in self.entries for below in side}
        for index in self.indexes:
            if index is not None and self.worktree is not None:
                tracked = index.rows.keys() & (self.files[0] | self.files[1])
                found |= {join(self.worktree, os.fsdecode(path)) for path in tracked}
        return found

    def _refuse_operations(self) -> None:
        for tree, index, whose in zip(
            self.trees[1:], self.indexes[1:], ("this session", "the head"), strict=True
        ):
            unmerged = {"": sorted(index.unmerged)} if index is not None and index.unmerged else {}
            found = operations(self.root, tree, unmerged)
            if found:
                raise OperationUnderWay(
                    f"{self.worktree or self.root}: {whose} has a git operation under way, and the other side"
                    f" changed the repository: {'; '.join(one.text for one in found)}",
                    details={"repository": self.root, "operations": [one.text for one in found]},
                )

    # ---- refs

    def _merge_refs(self, base: RefMap, ours: RefMap, head: RefMap) -> RefMerge:
        return merge_refs(
            base,
            ours,
            head,
            RefRules(self.rules.author, self._is_ancestor, self._merge_notes, self._stash_log()),
        )

    def _is_ancestor(self, first: bytes, second: bytes) -> bool:
        a, b = self._id(first), self._id(second)
        return is_ancestor(self.objects, a, b)

    def _id(self, text: bytes) -> Oid:
        found = self.fmt.from_hex(text)
        if found is None:
            raise MissingObject(f"{self.root}: a ref has the value {text[:80]!r}, not an id")
        return found

    def _merge_notes(self, meeting: RefMeeting) -> bytes:
        ours, head = self._id(meeting.ours), self._id(meeting.head)
        date = max(self.objects.links(oid).committed for oid in (ours, head))
        new = merge_notes(self.objects, head, ours, self.identity(date), meeting.name)
        return new.hex().encode()

    def _stash_log(self) -> bytes | None:
        logs = [self._text(tree, "logs/refs/stash") for tree in self.trees]
        return None if logs == [None, None, None] else merge_log(*logs, chain=True)

    def _text(self, tree: GitTree, below: str) -> bytes | None:
        state = tree.find(self.at(below))
        return state.data() if state is not None and state.kind == FILE else None

    def identity(self, seconds: int) -> bytes:
        return b"%s %d +0000" % (self.person, seconds)

    @property
    def person(self) -> bytes:
        """The author as `Name <address>`."""
        name = "".join(c for c in self.rules.author if c not in "<>\n\0").strip() or "session"
        return b"%s <agent@eos.invalid>" % name.encode("utf-8", "replace")

    def _merge_branch(self, meeting: RefMeeting) -> None:
        name, ours, head = meeting.name, self._id(meeting.ours), self._id(meeting.head)
        base = None if meeting.base is None else self._id(meeting.base)
        if self.rules.mode == BRANCH and name.startswith(HEADS):
            self._put_aside(name, meeting.ours)
            return
        sides = BranchSides(name, base, ours, head)
        remote = [
            self._id(value.oid)
            for ref, value in {**self.maps[1], **self.maps[2]}.items()
            if ref.startswith(REMOTES) and value.oid is not None
        ]
        rules = BranchRules(self.rules.mode, self.driver_of, remote, self.person, self.rules.author)
        found = merge_branch(self.objects, sides, rules)
        if found.tip is None:
            if self.rules.side is None:
                self._report(name, found)
            elif name in (HEAD, self.maps[1].branch) and name in (HEAD, self.maps[2].branch):
                self._resolve(name, ours, head, self.rules.side)
            else:
                self._put_aside(name, meeting.ours)
            return
        self.refs[name] = RefValue(found.tip.hex().encode())
        self.rewritten.update(found.rewritten)
        self.published += found.kept
        self.moves[name] = LogMove(meeting.head, found.tip.hex().encode())
        if found.unsigned:
            self.notices.append(Notice("unsigned", name.decode("utf-8", "replace"), number=found.unsigned))

    def _put_aside(self, name: bytes, ours: bytes) -> None:
        """Keep ours of a branch under a name of its own; the branch is the head's."""
        word = ref_word(self.rules.author)
        short = name.removeprefix(HEADS)
        aside = HEADS + b"eos/" + word
        there = self.refs.get(aside)
        if there is not None and not (there.oid is not None and self._is_ancestor(there.oid, ours)):
            wanted = aside + b"-" + short.replace(b"/", b"-")
            aside = free_ref_name(wanted, word, self.refs.__contains__, None)
        self.refs[aside] = RefValue(ours)
        self.files_alone = self.files_alone or self.maps[1].branch == name
        self.notices.append(
            Notice("ref_renamed", name.decode("utf-8", "replace"), detail=aside.decode("utf-8", "replace"))
        )

    def _resolve(self, name: bytes, ours: Oid, head: Oid, side: Callable[[str], str]) -> None:
        """Merge the branch that is checked out, with the named sides; or stop at the head's commit as `git
        merge` does, when a path is left that has both sides.
        """
        bases = merge_bases(self.objects, head, ours)
        trees = [self.objects.links(oid) for oid in (head, ours)]
        base = self.objects.links(bases[0]).tree if bases else None
        found = merge_with_sides(
            self.objects,
            base,
            trees[0].tree,
            trees[1].tree,
            lambda path: side(join(self.worktree or "", os.fsdecode(path))),
        )
        self.stopped, self.files_alone = found, True
        text = f"Merge {shown_ref(name)} of {self.rules.author}\n".encode("utf-8", "surrogateescape")
        if found.unmerged:
            self.put("MERGE_HEAD", ours.hex().encode() + b"\n")
            lines = b"".join(b"#\t%s\n" % path for path in sorted(found.unmerged))
            self.put("MERGE_MSG", text + b"\n# Conflicts:\n" + lines)
            self.put("MERGE_MODE", b"")
            return
        tree = changed_tree(self.objects, trees[0].tree, found.changes)
        who = self.identity(max(one.committed for one in trees))
        tip = self.objects.write("commit", format_commit(Commit(tree, (head, ours), who, who, (), text)))
        self.refs[name] = RefValue(tip.hex().encode())
        self.moves[name] = LogMove(head.hex().encode(), tip.hex().encode())

    def _report(self, name: bytes, found: BranchMerge) -> None:
        ref = name.decode("utf-8", "replace")
        ours, theirs = (tuple(oid.hex() for oid in side) for side in found.both)
        if found.rewritten_by_both:
            at = join(self.worktree or "", ref)
            self.conflicts.append(RepositoryConflict(at, "ref_rewritten", (), ref, ours, theirs))
        for one in found.conflicts:
            at = join(self.worktree or "", os.fsdecode(one.path))
            renamed = None if not one.renamed else (one.renamed[0].to, one.renamed[0].by)
            self.conflicts.append(RepositoryConflict(at, one.cls, one.hunks, ref, ours, theirs, renamed))

    def driver_of(self, path: bytes) -> str:
        """Give the merge driver by the head's attributes."""
        return self.config.driver_of(self.sides.head, self.worktree, path)

    def _follow(self, merged: RefMerge) -> None:
        """Move the branches of ours that name replayed commits; tags stay."""
        for name, value in list(self.refs.items()):
            if value.oid is None or (old := self.fmt.from_hex(value.oid)) is None:
                continue
            own = name in self.maps[1] and self.maps[1][name] == value
            if name.startswith(TAGS) and own and self.objects.peel(old)[0] in self.rewritten:
                self.notices.append(Notice("tag_not_moved", name.decode("utf-8", "replace")))
            elif old in self.rewritten and (name.startswith(HEADS) or name.endswith(HEAD)):
                new = self.rewritten[old].hex().encode()
                self.refs[name] = RefValue(new)
                self.moves[name] = LogMove(value.oid, new)
        branch = self.refs[HEAD].symbolic if HEAD in self.refs else None
        if branch in self.moves:
            self.moves[HEAD] = self.moves[branch]

    def tips(self, refs: RefMap) -> list[Oid]:
        """List the values of refs that were published, for those that the result must still reach."""
        found: list[Oid] = []
        for name, value in refs.items():
            if value.oid is None or name == STASH or name.startswith(KEPT):
                continue
            if self.refs.get(name) != value and (oid := self.fmt.from_hex(value.oid)) is not None:
                found.append(oid)
        return found

    def head_tree(self, refs: Mapping[bytes, RefValue], name: bytes = HEAD) -> Oid | None:
        """Give the tree of the commit that is checked out; None before the first."""
        found = resolve(refs, name)
        if found is None:
            return None
        return self.objects.links(self.objects.peel(self._id(found))[0]).tree

    # ---- index and work tree

    def _merge_worktree(self) -> None:
        """Decide the index, and the tracked files of the work tree."""
        trees = [self.head_tree(refs) for refs in self.maps]
        new = self.head_tree(self.refs)
        self.clean = set[bytes]()
        found = merge_indexes(
            self.objects,
            IndexSide(self.indexes[0], trees[0]),
            IndexSide(self.indexes[1], trees[1]),
            IndexSide(self.indexes[2], trees[2]),
            new if self.stopped is None else trees[2],
        )
        if self.stopped is not None:
            put_into_index(found.entries, self.stopped)
        self.notices += [
            Notice("unstaged", join(self.worktree or "", os.fsdecode(path))) for path in found.dropped
        ]
        candidates = self.files[0] | self.files[1]
        for tree in trees[1:]:
            candidates |= tree_changes(self.objects, tree, new).keys()
        candidates = {path for path in candidates if not self._is_skipped(found, path)}
        if self.worktree is not None and not self.config.is_bare and not self.files_alone:
            filters = [config.filters(tree, self.worktree) for config, tree in self._filters()]
            merge = WorktreeMerge(
                self.objects,
                self.worktree,
                (
                    self.sides.base,
                    WorktreeSide(self.sides.ours, trees[1], filters[0]),
                    WorktreeSide(self.sides.head, trees[2], filters[1]),
                ),
                (new, self.config.filters_of_tree(self.objects, new)),
                self.driver_of,
                file_mode=self.config.file_mode,
            )
            done = merge.merge(candidates)
            for path, state in done.states.items():
                self.states[join(self.worktree, os.fsdecode(path))] = state
            for one in done.conflicts:
                at = join(self.worktree, os.fsdecode(one.path))
                if self.rules.side is None:
                    self.conflicts.append(RepositoryConflict(at, one.cls, one.hunks))
                self.states.pop(at, None)
            self.clean |= {path for path in done.clean if done.states.get(path) is not None}
        self._place_index(found, candidates)

    def _filters(self) -> Iterable[tuple[RepositoryConfig, GitTree]]:
        return zip(self.configs[1:], self.trees[1:], strict=True)

    @staticmethod
    def _is_skipped(found: IndexMerge, path: bytes) -> bool:
        entry = found.entries.entry(path) if found.entries.flagged else None
        return entry is not None and entry.skip_worktree

    def _place_index(self, found: IndexMerge, candidates: Iterable[bytes]) -> None:
        entries = found.entries
        unsure = {path for path in {*found.changed, *candidates} if path in entries.rows}
        self.clean = {
            path
            for path in self.clean & unsure
            if (row := entries.entry(path)) is not None and not row.skip_worktree
        }
        entries.smudge_all(unsure)
        if entries.rows or any(index is not None for index in self.indexes):
            self.put("index", entries.to_bytes(), FILE_BITS)
        for side in self.entries:
            for below in side:
                if below.startswith("sharedindex.") and "/" not in below:
                    self.states[self.at(below)] = self.sides.head.find(self.at(below))

    # ---- files of the repository

    def put(self, below: str, data: bytes, bits: int = FILE_BITS) -> None:
        """Give an entry of the repository this content."""
        at = self.at(below)
        like = self.sides.head.find(at) or self.sides.ours.find(at)
        if like is not None and like.kind == FILE:
            if like.size == len(data) and like.data() == data:
                self.states[at] = like
                return
            state = like.changed(meta=like.meta, xattrs=dict(like.xattrs), content=data)
            state.linkable = False
        else:
            above = self.sides.head.find(self.at("HEAD")) or self.sides.ours.find(self.at("HEAD"))
            assert above is not None
            state = made_state(above, FILE, (bits, *above.meta[1:]), data)
        self.states[at] = state

    def put_files(self, files: Mapping[str, bytes | None]) -> None:
        """Give entries contents; None removes an entry, with all below it that is not given a content."""
        for below, data in files.items():
            if data is None:
                self._remove(below)
            else:
                self.put(below, data)

    def _remove(self, below: str) -> None:
        at = self.at(below)
        self.states[at] = None
        for tree in self.trees[1:]:
            found = tree.find(at)
            if found is not None and found.kind == DIRECTORY:
                for name in tree.names(at):
                    self._remove(f"{below}/{name}")

    def _place_refs(self, head: RefMap) -> None:
        self._keep_heads("refs", "packed-refs", "HEAD")
        self.put_files(ref_files(self.refs, head))

    def _place_logs(self, merged: RefMerge) -> None:
        self._keep_heads("logs")
        names = {
            name for side in self.changed for below in side if (name := ref_of_log(below)) is not None
        } | {name for refs in self.maps for name in refs if name not in self.refs}
        dates = [self.objects.commit(self._id(move.new)).committed for move in self.moves.values()]
        logs = merge_logs(
            self.root,
            LogSides(*self.trees, self.refs.keys(), merged.renamed),
            names,
            self.moves,
            self.identity(max(dates, default=0)),
        )
        self.put_files(logs)

    def _keep_heads(self, *tops: str) -> None:
        """Give the entries that ours lists the head's state, which other steps then change. Directories are
        made by what is in them.
        """
        for below in self.entries[0]:
            if split_worktree(below)[1].partition("/")[0] not in tops:
                continue
            at = self.at(below)
            own, there = self.sides.ours.find(at), self.sides.head.find(at)
            if there is not None and there.kind == DIRECTORY:
                if own is None or own.kind != DIRECTORY:
                    self._keep_below(at)
            elif there is not None or own is None or own.kind != DIRECTORY:
                self.states[at] = there

    def _keep_below(self, at: str) -> None:
        """Keep each file in a directory of the head in whose place ours has a file or nothing."""
        self.settled.add(at)
        for name in self.sides.head.names(at):
            inner = f"{at}/{name}"
            state = self.sides.head.find(inner)
            if state is not None and state.kind == DIRECTORY:
                self._keep_below(inner)
            else:
                self.states[inner] = state

    def _place_linked_indexes(self) -> None:
        """Build the index of each linked worktree that neither side's fits: both changed it, or its branch
        got another commit. Its files are decided by the table.
        """
        for name in sorted({*self.sides.ours.names(self.at("worktrees"))}):
            place = f"worktrees/{name}/"
            indexes = [self.index_of(tree, place) for tree in self.trees]
            if indexes[1] is None or indexes[2] is None:
                continue
            shown = os.fsencode(place) + HEAD
            commits = [resolve(refs, shown) for refs in (*self.maps, self.refs)]
            own, theirs = (f"{place}index" in side for side in self.changed)
            taken = commits[1] if own else commits[2]
            if commits[3] is None or (not (own and theirs) and taken == commits[3]):
                continue
            trees = [self.head_tree(refs, shown) for refs in (*self.maps, self.refs)]
            sides = [IndexSide(index, tree) for index, tree in zip(indexes, trees[:3], strict=True)]
            found = merge_indexes(self.objects, sides[0], sides[1], sides[2], trees[3])
            found.entries.smudge_all()
            self.put(f"{place}index", found.entries.to_bytes())

    def _place_entries(self) -> None:
        """Decide the other entries by their class."""
        for below in {*self.entries[0], *self.entries[1]}:
            at = self.at(below)
            b, o, h = (tree.find(at) for tree in self.trees)
            if any(state is not None and state.kind == DIRECTORY for state in (b, o, h)):
                continue
            found = class_of(below)
            own, theirs = (below in side for side in self.changed)
            if found == OBJECT:
                self.states[at] = h or o or b
            elif found == DERIVED:
                both = own and theirs and not (o is not None and h is not None and same(o, h))
                self.states[at] = None if both else o if own else h
            elif found in (LAST_WRITER, JUNK) or (found in (INDEX, LOG) and at not in self.states):
                self.states[at] = o if own else h
        self._merge_config()

    def _merge_config(self) -> None:
        at = self.at("config")
        if "config" not in self.changed[0] or "config" not in self.changed[1]:
            return
        texts = [self._text(tree, "config") for tree in self.trees]
        if None in texts[1:]:
            return
        found = merge_configs(*(text or b"" for text in texts))
        if found.content is not None:
            self.put("config", found.content)
        else:
            self.conflicts.append(RepositoryConflict(at, "content"))


def _index_bytes(state: State) -> bytes:
    if state.size > INDEX_MAX:
        raise GitRefused(f"read an index: it has {state.size:,} bytes, at most {INDEX_MAX:,} are read")
    return state.data()
