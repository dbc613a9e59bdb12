"""Merge the refs of three states, one by one. A branch that both sides moved is a `RefMeeting`, for the merge
of commits; here it keeps the head's value.

| refs                    | both sides changed it                                                        |
|-------------------------|------------------------------------------------------------------------------|
| branches                | a meeting; created by both with two values: ours gets another name           |
| tags, refs of other use | ours gets another name                                                       |
| remotes                 | the descendant, else ours as the last writer                                 |
| notes                   | merged by the caller                                                         |
| stash                   | the last line of its merged log                                              |
| HEAD                    | `head_merge`                                                                 |

Deleted by one side and moved by the other: the move stays.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import NamedTuple

from layerstack.git.head_merge import merge_head
from layerstack.git.ref_names import RefNames, free_ref_name, ref_word
from layerstack.git.ref_results import RefMeeting, RefNotice
from layerstack.git.ref_store import HEAD, RefMap, RefValue
from layerstack.git.reflog import STASH, lines_of, new_id

HEADS, REMOTES, NOTES = b"refs/heads/", b"refs/remotes/", b"refs/notes/"
_LAST_WRITER = (REMOTES, b"refs/replace/", b"refs/bisect/", b"refs/rewritten/", b"refs/worktree/")
"""Refs whose names have a meaning to git or to a server, so that another name is of no use."""

_HEADS = re.compile(rb"HEAD|worktrees/[^/]+/HEAD")


class RefMerge(NamedTuple):
    """Refs of the result, and what the caller has to do or to say."""

    refs: dict[bytes, RefValue]
    """Name -> value; the head's for each meeting."""
    meetings: tuple[RefMeeting, ...]
    renamed: dict[bytes, bytes]
    """Name of a ref of ours -> the name that it has in the result; the old one, if there, is the head's."""
    notices: tuple[RefNotice, ...]
    lost: dict[bytes, bytes]
    """Id in hex -> name of a ref that had it in a state, for ids that no ref of the result has. Those that no
    ref reaches either are to be kept under another name. Without both ids of each meeting, and without
    entries of the stash that a side dropped.
    """


class RefRules(NamedTuple):
    """Answers that need objects or other files."""

    author: str
    """The agent, or the short id of the session: part of the new name of a ref of ours."""
    is_ancestor: Callable[[bytes, bytes], bool]
    """True when the first commit is an ancestor of the second, or the same; ids in hex."""
    merge_notes: Callable[[RefMeeting], bytes]
    """Merge two commits of notes and return the id, in hex, of the result."""
    stash_log: bytes | None = None
    """The merged log of the stash (`merge_log` with chain); None when none of the three states has one."""


def merge_refs(base: RefMap, ours: RefMap, head: RefMap, rules: RefRules) -> RefMerge:
    """Merge all refs of a repository.

    Raises:
        GitRefused: a ref of ours needs another name and none is free.
    """
    return _RefMerger(base, ours, head, rules).merge()


class _RefMerger:
    def __init__(self, base: RefMap, ours: RefMap, head: RefMap, rules: RefRules) -> None:
        self.base, self.ours, self.head, self.rules = base, ours, head, rules
        self.refs: dict[bytes, RefValue] = {}
        self.meetings: list[RefMeeting] = []
        self.renamed: dict[bytes, bytes] = {}
        self.notices: list[RefNotice] = []
        self.other: list[bytes] = []
        """Refs of ours that cannot have their names."""
        self.names = RefNames()

    def merge(self) -> RefMerge:
        every = {*self.base, *self.ours, *self.head}
        heads = sorted(name for name in every if _HEADS.fullmatch(name) is not None)
        own: dict[bytes, RefValue] = {}
        for name in sorted(every.difference(heads)):
            value = self._decided(name)
            if value is not None and name not in self.head:
                own[name] = value
            elif value is not None:
                self._put(name, value)
        for name, value in own.items():
            self._add_own(name, value)
        for name in self.other:
            self._rename(name, self.ours[name])
        for name in heads:
            merge_head(name, (self.base, self.ours, self.head), self.refs, self.renamed, self._report)
        self._keep_checked_out(heads)
        return RefMerge(self.refs, tuple(self.meetings), self.renamed, tuple(self.notices), self._lost())

    def _report(self, found: RefNotice | RefMeeting) -> None:
        if isinstance(found, RefMeeting):
            self.meetings.append(found)
        else:
            self.notices.append(found)

    def _put(self, name: bytes, value: RefValue) -> None:
        self.refs[name] = value
        self.names.add(name)

    def _decided(self, name: bytes) -> RefValue | None:
        """Give the value of a ref in the result; None: it is deleted."""
        b, o, h = self.base.get(name), self.ours.get(name), self.head.get(name)
        if name == STASH and (log := self.rules.stash_log) is not None:
            lines = lines_of(log)
            return RefValue(new_id(lines[-1])) if lines else None
        if o in (h, b):
            return h
        if h == b:
            return o
        if o is None or h is None:
            self.notices.append(RefNotice("ref_kept", name, "theirs" if o is None else "ours"))
            return o or h
        return self._of_both(name, b, o, h)

    def _of_both(self, name: bytes, b: RefValue | None, o: RefValue, h: RefValue) -> RefValue:
        meeting = RefMeeting(name, b.oid if b is not None else None, o.oid or b"", h.oid or b"")
        plain = o.oid is not None and h.oid is not None
        if name.startswith(HEADS) and plain and (meeting.base is not None or self._is_unborn(name)):
            self.meetings.append(meeting)
            return h
        if name.startswith(NOTES) and plain:
            return RefValue(self.rules.merge_notes(meeting))
        if name.startswith(_LAST_WRITER):
            return h if plain and self.rules.is_ancestor(meeting.ours, meeting.head) else o
        self.other.append(name)
        return h

    def _is_unborn(self, name: bytes) -> bool:
        """Check whether both gave the branch its first commit while they had it checked out."""
        before = self.base.branch if HEAD in self.base else self.head.branch
        return name not in self.base and name == before and name == self.ours.branch

    def _add_own(self, name: bytes, value: RefValue) -> None:
        """Add a ref that the head has not. It may collide with a ref of the head as directory and file."""
        if not self.names.collides(name):
            self._put(name, value)
        elif name.startswith(_LAST_WRITER):
            for one in [
                one for one in self.refs if one.startswith(name + b"/") or name.startswith(one + b"/")
            ]:
                del self.refs[one]
                self.names.discard(one)
            self._put(name, value)
        else:
            self._rename(name, value)

    def _rename(self, name: bytes, value: RefValue) -> None:
        blocked = self.names.blocking(name)
        known = (self.base, self.ours, self.head, self.refs)

        def in_use(new: bytes) -> bool:
            return any(new in refs for refs in known) or self.names.collides(new)

        new = free_ref_name(name, ref_word(self.rules.author), in_use, blocked)
        self._put(new, value)
        self.renamed[name] = new
        self.notices.append(RefNotice("ref_renamed", name, new.decode("utf-8", "replace")))

    def _keep_checked_out(self, heads: list[bytes]) -> None:
        """Keep each branch that a HEAD of the result names: git deletes no branch that is checked out."""
        for name in heads:
            value = self.refs.get(name)
            branch = None if value is None else value.symbolic
            if branch is None or branch in self.refs:
                continue
            for side, refs in (("theirs", self.head), ("ours", self.ours)):
                if (kept := refs.get(branch)) is not None and not self.names.collides(branch):
                    self._put(branch, kept)
                    self.notices.append(RefNotice("ref_kept", branch, side))
                    break

    def _lost(self) -> dict[bytes, bytes]:
        kept = _ids(self.refs)
        for meeting in self.meetings:
            kept |= {meeting.ours: b"", meeting.head: b""}
        found: dict[bytes, bytes] = {}
        for side in (self.base, self.ours, self.head):
            for oid, name in _ids(side).items():
                if oid not in kept and name != STASH:
                    found.setdefault(oid, name)
        if self.rules.stash_log is None:
            for side in (self.ours, self.head):  # a stash without a log: one of two has no place
                if (one := side.get(STASH)) is not None and one.oid is not None and one.oid not in kept:
                    found.setdefault(one.oid, STASH)
        return found


def _ids(refs: Mapping[bytes, RefValue]) -> dict[bytes, bytes]:
    return {value.oid: name for name, value in refs.items() if value.oid is not None}
