"""Plan a merge of captured work with a head that moved: every conflict, or the edits of the layer.

The outcome is a function of three trees, base, ours and head, alone. The versions of the layers (`PathIndex`)
select the paths to examine; the decision table on real states then decides. Subtrees that no newer layer
meets are not entered.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import NamedTuple

from layerstack.core.publish_rules import OFF
from layerstack.layers.index import IndexRecord
from layerstack.model.conflict import Conflict, Hunk, Notice
from layerstack.model.paths import ancestors, byte_order
from layerstack.model.paths import parent as parent_of
from layerstack.publish.decide import Verdict, decide, merged_content
from layerstack.publish.edits import (
    Attributes,
    Bring,
    Drop,
    Edit,
    MergedTrees,
    Recapture,
    Show,
    Whiteout,
    Write,
)
from layerstack.publish.git_outcome import NO_GIT, GitOutcome
from layerstack.publish.git_repositories import merge_repositories
from layerstack.publish.meeting_report import Findings, Report
from layerstack.publish.three_trees import Meeting, Three, Trees
from layerstack.tree.state import DIRECTORY, WHITEOUT, RemadeState, State, is_one
from layerstack.units.plan_units import NONE, decided_units
from layerstack.units.units import GIT, HEAD, OURS

KEPT_MAX = 64 << 20
"""Bytes of merged files that a plan keeps; further files are merged once more when they are written."""


class MergePlan(NamedTuple):
    """Outcome of a merge: conflicts, or edits.

    Without conflicts, a clone of the layer with the edits applied shows the merge on top of the head; without
    conflicts and edits, the layer itself shows it. With conflicts, the clone shows ours at and below their
    paths.
    """

    conflicts: tuple[Conflict, ...]
    edits: tuple[Edit, ...]
    notices: tuple[Notice, ...]
    below: tuple[str, ...] = ()
    """Paths in conflict of class `parent` that are not listed, since one above them is."""
    git: GitOutcome = NO_GIT
    """Decisions about repositories."""


def plan(meeting: Meeting, units: Mapping[tuple[str, str], str] = NONE) -> MergePlan:
    """Decide every path of the work that a layer newer than its version may concern.

    Args:
        units: as `taken` of `decided_units`.
    Returns:
        All conflicts in byte order of paths, none left out; or the edits in the order to apply.
    Cost: O(newer records that meet ours) look-ups; content is read for paths in doubt only.
    """
    merge = _Merge(meeting, units)
    merge.visit_root()
    merge.place_forced()
    merge.place_git()
    report = Report(merge.trees, merge.found, meeting.rules.units)
    return MergePlan(report.conflicts(), tuple(merge.edits), report.notices(), tuple(report.below), merge.git)


class Above(enum.Flag):
    """Properties of the directories that a path is in."""

    NOTHING = 0
    HIDES = enum.auto()
    """A directory above is opaque in ours: an entry of the head is visible only if an edit brings it."""
    GONE = enum.auto()
    """The head has no directory at the path's parent."""
    COVERED = enum.auto()
    """A newer layer hides a directory above, with all below it."""


class _Merge:
    """The walk over the paths that ours lists. Each `visit` returns True if the path is in the resulting
    layer.

    | ours                    | head           | result                                                      |
    |-------------------------|----------------|-------------------------------------------------------------|
    | as in the base          | changed        | the head's                                                  |
    | changed                 | as in the base | ours, if its directory is still there                       |
    | changed                 | the same       | the head's                                                  |
    | changed, derived        | changed        | the head's, counted                                         |
    | changed, ignored by all | changed        | merged where it merges, else ours; a notice names the layer |
    | changed                 | changed        | merged where it merges (`decide.decide`), else a conflict   |
    | a directory it made     | a directory    | attributes by the lines above, then what is in it           |
    | a directory it passed   | none           | removed; in it by itself: derived goes, source conflicts    |
    | a directory it removed  | changes in it  | each by itself: derived and ignored go, source conflicts    |

    Members of a unit that is taken from one side as a whole are decided first, as that side's
    (`visit_forced`, `place_forced`).
    """

    def __init__(self, meeting: Meeting, taken: Mapping[tuple[str, str], str]) -> None:
        trees = self.trees = Trees(meeting)
        self.path_index, self.rules, self.version = meeting.head.path_index, meeting.rules, meeting.version
        self.derived = trees.derived
        self.kept, self.last = KEPT_MAX, ("", b"")
        self.taken: set[str] = set()  # ignored directories of ours that replace the head's entry
        self.git = merge_repositories(trees, meeting)
        if self.git.tracked is not None:
            trees.tracked = self.git.tracked
        units = decided_units(
            trees.own,
            trees.newer,
            trees.base,
            meeting.rules.units,
            trees.sides,
            taken,
            without="" if meeting.rules.git == OFF else GIT.name,
        )
        self.forced = {
            path: unit.whose for unit in units for path in unit.forced if path not in self.git.settled
        }
        unlisted = [path for path in self.forced if path not in trees.index]
        self.filled = {above for path in unlisted for above in ancestors(path)}
        """Directories into which `place_forced` brings an entry."""
        self.found = Findings([], {}, [], [], [], [], units, self.git)
        self.found.conflicts.update({one.path: (one.cls, one.hunks) for one in self.git.conflicts})
        self.filled |= self.git.folders
        self.edits, self.notices, self.replaced, self.left = (
            self.found.edits,
            self.found.notices,
            self.found.replaced,
            self.found.left,
        )

    # verdicts

    def conflict(self, path: str, kind: str, hunks: tuple[Hunk, ...] = ()) -> None:
        self.found.conflicts.setdefault(path, (kind, hunks))

    def decided(self, path: str, b: State | None, o: State | None, h: State | None) -> Verdict:
        verdict = decide(b, o, h, self.rules)
        if verdict.conflict is not None:
            self.conflict(path, verdict.conflict, verdict.hunks)
        return verdict

    def combine(self, path: str, b: State | None, o: State, h: State) -> State:
        """Merge the two states; give the state afterwards."""
        return self.merged(path, self.decided(path, b, o, h), b, o, h)

    def combine_ignored(self, path: str, b: State | None, o: State, h: State) -> State:
        """Merge on the ignored route: where states do not merge, ours is taken."""
        verdict = decide(b, o, h, self.rules)
        if verdict.conflict is not None:
            self.replaced.append(path)
        return self.merged(path, verdict, b, o, h)

    def merged(self, path: str, verdict: Verdict, b: State | None, o: State, h: State) -> State:
        """Give the merged state; ours in a conflict."""
        if verdict.conflict is not None:
            return o
        content, meta, xattrs = verdict.content, verdict.meta, dict(verdict.xattrs)
        if content == "ours" and meta == o.meta and xattrs == o.xattrs:
            return o
        merged = o.changed(
            meta=meta,
            xattrs=xattrs,
            content=content if isinstance(content, bytes) else h if content == "head" else o,
        )
        if o.kind == DIRECTORY:
            self.edits.append(Attributes(path, merged))
        elif content == "head" and meta == h.meta and xattrs == h.xattrs:
            self.edits.append(Bring(path, h))
        else:
            merged.linkable = False
            if isinstance(content, bytes):
                self.kept -= len(content)
                if self.kept < 0:
                    merged = RemadeState(merged, lambda: self.again(path, b, o, h))
            self.edits.append(Write(path, merged))
        return merged

    def again(self, path: str, b: State | None, o: State, h: State) -> bytes:
        """Merge the content of a path once more; the last result is kept for the next call."""
        if self.last[0] != path:
            content = merged_content(b, o, h, self.rules)
            assert isinstance(content, bytes)
            self.last = path, content
        return self.last[1]

    def heads(self, path: str, h: State | None, above: Above) -> bool:
        """Take the head's entry in place of ours: let it show or, in a directory that hides it, bring it."""
        if h is None or not above & Above.HIDES:
            self.edits.append(Drop(path))
            return False
        self.edits.append(Bring(path, h))
        return True

    def give_way(self, path: str, h: State | None, above: Above) -> bool:
        """Take the head's entry for a derived path, and count the path."""
        self.left.append(path)
        return self.heads(path, h, above)

    def is_unreachable(self, path: str) -> bool:
        """Note a conflict if a path that ours keeps is below a file or link of the head."""
        blocked = self.trees.blocked(path, self.taken)
        if blocked:
            self.conflict(path, "parent")
        return blocked

    def hidden(self, path: str) -> None:
        """Decide the head's changes below `path`, where ours has nothing left. Changes of source conflict;
        ignored ones are removed with the directory.
        """
        trees = self.trees
        for q in trees.below(path):
            h = trees.head.find(q)
            if h is None or q in self.forced or q in self.git.settled:
                continue
            b = trees.base.find(q)
            if self.derived(q, b, h):
                self.left.append(q)
            elif trees.last_writer_wins(q, b, h) if b is not None else trees.ignored(q, h.kind == DIRECTORY):
                self.notices.append(Notice("dropped", q))
            elif b is None:
                self.conflict(q, "parent")
            elif not trees.unmoved(q, b, h):
                self.decided(q, b, None, h)

    # the walk

    def visit_root(self) -> None:
        if "" in self.forced or self.path_index.touched("", self.version):
            self.visit("", Above.NOTHING)

    def visit(self, path: str, above: Above) -> bool:
        if path in self.git.settled or path in self.git.folders:
            found = self.visit_settled(path, above)
            if found is not None:
                return found
        if path in self.forced:
            return self.visit_forced(path, above)
        if self.path_index.masked(path, self.version):
            above |= Above.COVERED
        rec = self.trees.index[path]
        if rec.kind == WHITEOUT:
            return self.visit_whiteout(path, self.trees.three(path, None))
        o = self.trees.tree.state(path)
        three = self.trees.three(path, o)
        if rec.kind != DIRECTORY:
            return self.visit_file(path, three, o, above)
        b, h = three.base, three.head
        if h is not None and h.kind == DIRECTORY:
            return self.visit_both(path, rec, three, o, h, above)
        if b is not None and b.kind == DIRECTORY:
            return self.visit_taken(path, rec, three, o, above)
        return self.visit_made(path, three, o, above)

    def visit_children(self, path: str, above: Above) -> bool:
        """Visit the paths that ours lists in a directory; True if one of them is in the resulting layer. A
        path that no newer layer meets stays and is not visited.
        """
        stays, met = path in self.filled, bool(above & (Above.GONE | Above.COVERED))
        for child in self.trees.children(path):
            if met or child in self.forced or self.path_index.touched(child, self.version):
                stays = self.visit(child, above) or stays
            else:
                stays = True
        return stays

    def visit_whiteout(self, path: str, three: Three) -> bool:
        b, h = three.base, three.head
        if h is None:
            if b is not None:
                self.found.both_removed.append(path)
            return self.heads(path, h, Above.NOTHING)
        if three.head_changed:
            if h.kind != DIRECTORY and self.derived(path, b, h):
                return self.give_way(path, h, Above.NOTHING)
            if self.trees.last_writer_wins(path, b, h):
                self.replaced.append(path)
            elif not self.derived(path, b, h):
                self.decided(path, b, None, h)
        if h.kind == DIRECTORY:
            self.hidden(path)
        return True

    def visit_file(self, path: str, three: Three, o: State, above: Above) -> bool:
        """Decide a file or symlink by the first lines of the table."""
        b, h, gone = three.base, three.head, bool(above & Above.GONE)
        in_doubt = gone or three.head_changed
        if in_doubt and self.derived(path, b, o, h) and three.ours_changed and not three.agree:
            return self.give_way(path, h, above)
        if not three.ours_changed:  # inside opaque directories, or a file that was only touched
            return self.heads(path, h, above) if three.head_changed else True
        if h is not None and h.kind == DIRECTORY:
            self.hidden(path)
        if not in_doubt:
            return True
        if h is not None and three.agree:
            return True if above & Above.HIDES else self.heads(path, h, above)
        if self.trees.last_writer_wins(path, o, h):
            if not (gone and self.is_unreachable(path)) and h is not None:
                self.combine_ignored(path, b, o, h)
        elif gone and b is None:
            self.conflict(path, "parent")
        elif gone or h is None:
            self.decided(path, b, o, None)
        else:
            self.combine(path, b, o, h)
        return True

    def visit_made(self, path: str, three: Three, o: State, above: Above) -> bool:
        """Decide a directory that ours made and the head does not have."""
        b, h, gone = three.base, three.head, bool(above & Above.GONE)
        if (gone or three.head_changed) and self.derived(path, b, o, h):
            return self.leave_directory(path, three, o, above)
        if not gone and not three.head_changed:
            return True
        if self.trees.last_writer_wins(path, o, h):
            if gone:
                self.is_unreachable(path)
                self.visit_children(path, above)  # derived files stay removed with the head's directory
            elif h is not None:
                self.replaced.append(path)
        elif gone and b is None:
            self.conflict(path, "parent")
        else:
            self.decided(path, b, o, h)
        return True

    def leave_directory(self, path: str, three: Three, o: State, above: Above) -> bool:
        """Replace a derived directory by the head's entry, unless an entry in it stays that is not
        derived.
        """
        stays = self.visit_children(path, above | Above.GONE)
        if stays and not above & Above.GONE:
            self.decided(path, three.base, o, three.head)
        return stays or self.give_way(path, three.head, above)

    def visit_taken(self, path: str, rec: IndexRecord, three: Three, o: State, above: Above) -> bool:
        """Decide a directory of the base that the head removed. It stays if ours changed ignored attributes,
        or if an entry in it stays.
        """
        b, h, ours_stays = three.base, three.head, False
        if three.ours_changed and not self.derived(path, b, o, h):
            if self.trees.last_writer_wins(path, o, h):
                ours_stays = True
                if h is not None:
                    self.replaced.append(path)
                self.taken.add(path)
                self.is_unreachable(path)
            else:
                self.decided(path, b, o, h)
        inner = (
            above & ~Above.GONE
            | (above & Above.GONE if ours_stays else Above.GONE)
            | (Above.HIDES if rec.opaque else Above.NOTHING)
        )
        if self.visit_children(path, inner) or ours_stays:
            return True
        self.edits.append(Drop(path))
        return False

    def visit_both(self, path: str, rec: IndexRecord, three: Three, o: State, h: State, above: Above) -> bool:
        """Decide a directory that both sides have: attributes first, then its entries."""
        now = self.attributes(path, three, o, h)
        hides = bool(above & Above.HIDES)
        inner = above & ~Above.GONE | (Above.HIDES if rec.opaque else Above.NOTHING)
        left = self.visit_children(path, inner)
        if rec.opaque and not hides:
            self.bring_below(path)
            self.edits.append(Recapture(path))
        if left or hides or rec.opaque:
            return True
        if (
            now.meta == h.meta and now.xattrs == h.xattrs
        ):  # nothing of ours is left; the root stays, without a change
            self.edits.append(Drop(path) if path else Recapture(path))
            return not path
        return True

    def attributes(self, path: str, three: Three, o: State, h: State) -> State:
        """Merge the attributes of a directory on both sides, by the table; return its state afterwards."""
        if three.agree:
            return o
        if not three.ours_changed or (three.head_changed and self.derived(path, three.base, o, h)):
            now = o.changed(meta=h.meta, xattrs=dict(h.xattrs))
            self.edits.append(Attributes(path, now))
            return now
        if not three.head_changed:
            return o
        return (self.combine_ignored if self.trees.last_writer_wins(path, o, h) else self.combine)(
            path, three.base, o, h
        )

    def bring_below(self, path: str) -> None:
        """Bring the head's changes below `path`, which is opaque in ours and would hide them."""
        trees, index = self.trees, self.trees.index
        lost = {edit.path for edit in self.edits if isinstance(edit, Drop)}
        brought = {edit.path: edit.state.kind == DIRECTORY for edit in self.edits if isinstance(edit, Bring)}

        def is_directory(q: str) -> bool:
            return brought[q] if q in brought else q in index and index[q].kind == DIRECTORY and q not in lost

        for q in trees.below(path):
            if q in index or q in brought or q in self.git.settled:
                continue
            h = trees.head.find(q)
            if h is None:
                continue
            b = trees.base.find(q)
            ignored, derived = trees.last_writer_wins(q, b if b is not None else h, h), self.derived(q, b, h)
            if self.forced.get(q) == OURS:
                continue
            if (
                q in self.forced or (b is not None and derived and not trees.unmoved(q, b, h))
            ) and h.kind != DIRECTORY:
                if is_directory(parent_of(q)):
                    self.edits.append(Bring(q, h))
                    brought[q] = False
                self.left.append(q)
            elif b is not None:  # ours removed it
                if not trees.unmoved(q, b, h):
                    if ignored:
                        self.replaced.append(q)
                    elif not derived:
                        self.decided(q, b, None, h)
            elif is_directory(parent_of(q)):
                self.edits.append(Bring(q, h))
                brought[q] = h.kind == DIRECTORY
                self.notices.append(Notice("kept", q))
            elif ignored or derived:
                self.notices.append(Notice("dropped", q))
            else:
                self.conflict(q, "parent")

    # git

    def visit_settled(self, path: str, above: Above) -> bool | None:
        """Decide a path that the merge of a repository settled, or a directory above one; `place_git` adds
        what is still to be changed. None: a directory on both sides, for the table to decide.
        """
        rec, h = self.trees.index[path], self.trees.head.find(path)
        if rec.kind == DIRECTORY:
            if h is not None and h.kind == DIRECTORY:
                return None
            inner = above & ~Above.GONE | (Above.HIDES if rec.opaque else Above.NOTHING)
            if self.visit_children(path, inner) or path in self.git.folders:
                return True
            return self.heads(path, h, above)
        if h is not None and h.kind == DIRECTORY:
            self.hidden(path)
        if path in self.git.folders or path not in self.git.states:
            return True
        wanted = self.git.states[path]
        if is_one(wanted, h) and not above & Above.HIDES:
            return self.heads(path, h, above)
        return True

    def place_git(self) -> None:
        """Add edits for the paths whose settled state the layer does not show by itself."""
        trees, index, states = self.trees, self.trees.index, self.git.states
        on = MergedTrees(trees.base, trees.shown, trees.head)
        for path in sorted(states, key=lambda path: (states[path] is not None, byte_order(path))):
            wanted, rec = states[path], index.get(path)
            if wanted is None and path in self.git.folders:
                continue  # entries in it make the directory
            if rec is None:
                hidden = any((a := index.get(x)) is not None and a.masks for x in ancestors(path))
                needed = wanted is not None if hidden else not is_one(wanted, trees.head.find(path))
            elif rec.kind == WHITEOUT:
                needed = wanted is not None or trees.head.find(path) is None
            else:
                needed = rec.kind == DIRECTORY or not is_one(wanted, trees.tree.state(path))
            if needed:
                self.edits.append(Show(path, wanted, on))

    # units

    def visit_forced(self, path: str, above: Above) -> bool:
        """Decide a member of a unit that is taken from one side as a whole."""
        h = self.trees.head.find(path)
        if self.forced[path] == HEAD:
            return self.heads(path, h, above)
        if self.trees.index[path].kind == WHITEOUT and h is None:
            return self.heads(path, h, above)
        if above & Above.GONE:
            self.is_unreachable(path)
        return True

    def place_forced(self) -> None:
        """Add edits for units that are ours as a whole.

        The edits place the members that the head changed and ours did not.
        """
        trees, index = self.trees, self.trees.index
        for path in sorted(
            path for path, whose in self.forced.items() if whose == OURS and path not in index
        ):
            o = trees.shown.find(path)
            if self.is_unreachable(path):
                continue
            if o is None and any(
                (rec := index.get(above)) is not None and rec.masks for above in ancestors(path)
            ):
                continue
            for above in ancestors(path):
                if above not in index and above not in self.taken:
                    container = trees.head.find(above) or trees.shown.find(above)
                    assert container is not None
                    self.edits.append(Bring(above, container))
                    self.taken.add(above)
            if o is None:
                self.edits.append(Whiteout(path))
                continue
            self.edits.append(Bring(path, o))
