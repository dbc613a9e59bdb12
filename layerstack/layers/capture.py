"""Sealing: an offline upperdir becomes a plain layer tree that says exactly what the session changed.

The result holds files, symlinks, directories, whiteouts and opaque marks; no redirects, no special files, nothing that equals the base.
Between any two steps the tree on its chain shows what the session showed, and sealing a sealed tree does nothing: after a crash it is run
again. Sealed work may share inodes with published layers, so it is never mounted as an upperdir again.
Source: overlayfs.rst, "redirect_dir", "whiteouts and opaque directories"; the kernel marks every directory made inside a merged one opaque.
"""

from __future__ import annotations

import enum
from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import NamedTuple

from layerstack.kernel import tempnames
from layerstack.layers import git_leftovers
from layerstack.layers.chain import Chain
from layerstack.model import cancel
from layerstack.model.paths import join
from layerstack.model.paths import parent as parent_of
from layerstack.tree.disk import DirectoryEntry, Tree
from layerstack.tree.state import DIRECTORY, FILE, LINK, SPECIAL, WHITEOUT, State, equal

SLACK = 8
"""An opaque directory becomes a plain one if the base's names that it lacks are at most its own names plus so many."""


class Sealed(NamedTuple):
    """What sealing left out: the paths of FIFOs, sockets and devices, and of what a killed process had half made (`passing`, `half_done`)."""

    dropped: tuple[str, ...]
    linked: tuple[str, ...] = ()
    """Files that differ from what the chain has there, which is one of several names of a file."""
    touched: frozenset[str] = frozenset()
    """Files that are as in the base and stay for their time alone: something was made while they were otherwise."""


def seal(
    tree: Tree,
    chain: Chain,
    *,
    keep: Callable[[str], bool] | None = None,
    slack: int = SLACK,
    is_input: Callable[[str], bool] | None = None,
) -> Sealed:
    """Bring `tree`, which stands on `chain`, into final form, in place.

    Args:
        keep: subtrees that are known to be in final form are not entered.
        is_input: is a file an input of builds? One that is as in the base but for a later time then stays if a changed file is of a time in
            between: it may have been made from what the input was meanwhile. Without it none stays.
    Raises:
        OSError: the disk refused; the view is as before, and sealing again goes on from there.
    Cost: O(entries of the tree) look-ups; content is read where a file of equal size lies below.
    """
    worker = _Seal(tree, chain, keep or (lambda path: False), slack, is_input)
    if keep is None:
        worker.expand("", "")
    worker.prune("", inside=False)
    return Sealed(tuple(worker.dropped), tuple(worker.linked), worker.decide_touched())


class Fate(enum.Enum):
    """What became of an entry. Its directory stays for what did not go, and gets its time back after what did not stay as it was."""

    STAYS = enum.auto()
    REPLACED = enum.auto()
    """By a whiteout."""
    GONE = enum.auto()


class _Seal:
    def __init__(self, tree: Tree, chain: Chain, keep: Callable[[str], bool], slack: int, is_input: Callable[[str], bool] | None) -> None:
        self.tree, self.chain, self.keep, self.slack, self.is_input = tree, chain, keep, slack, is_input
        self.dropped: list[str] = []
        self.linked: list[str] = []
        self.filled: set[str] = set()  # of names that are looked at: they came with a directory of the base that was renamed
        self.cut: dict[str, bool] = {}  # of the directories that are being pruned: shows nothing of the base there?
        self.git = git_leftovers.GitDirectories(tree, chain, lambda path: self.cut[path])
        self.touched: dict[str, tuple[int, int]] = {}
        """Inputs that are as in the base but for a later time: that of the base, and theirs."""

    # pass 1: directories that were renamed become opaque directories holding what the old place held

    def expand(self, path: str, merges: str | None) -> None:
        """`merges`: the path of the chain that this directory merges with, None when with nothing."""
        cancel.check()
        tree = self.tree
        if (foreign := tree.foreign(path)) is not None:
            times = tree.state(path).times
            for name in foreign:
                tree.whiteout(join(path, name))
            tree.unmark_opaque(path)
            tree.set_times(path, times)
        redirect, opaque = tree.redirect(path), tree.opaque(path)
        if opaque:
            merges = None
        elif redirect is not None:
            if redirect.startswith("/"):
                merges = redirect.strip("/")
            elif merges is not None:
                merges = join(parent_of(merges), redirect)
        children = tree.scan(path)
        for name, kind in children:
            if kind == DIRECTORY:
                self.expand(join(path, name), None if merges is None else join(merges, name))
        if merges is None:
            if redirect is not None:  # cut off as well as moved: nothing to fill
                tree.unmark_redirect(path)
            return
        if merges == path:
            if redirect is not None:  # moved away and back
                tree.unmark_redirect(path)
            return
        times = tree.state(path).times
        below = self.chain.find(merges)
        if below is not None and below.kind == DIRECTORY:
            here = {child.name for child in children}
            for name in sorted(self.chain.names(merges) - here):
                self.fill(join(path, name), join(merges, name))
        tree.mark_opaque(path)
        if redirect is not None:
            tree.unmark_redirect(path)
        for name, kind in children:
            if kind == WHITEOUT:
                tree.unlink(join(path, name))
        tree.set_times(path, times)

    def fill(self, target: str, source: str) -> None:
        """What the chain shows at `source`, at `target`. A half-filled directory merges with the rest until its parent is marked opaque."""
        state = self.chain.find(source)
        if state is None:
            return
        self.tree.put(target, state)
        if git_leftovers.may_be(target.rpartition("/")[2]):
            self.filled.add(target)
        if state.kind == DIRECTORY:
            for name in sorted(self.chain.names(source)):
                self.fill(join(target, name), join(source, name))
            self.tree.set_times(target, state.times)

    # pass 2: what is as in the base is no change

    def prune(self, path: str, *, inside: bool) -> bool:
        """Take what is as in the base out of a directory. `inside`: nothing of the base shows here. -> must the directory stay?

        It stays for itself: where nothing of the base shows in it (*cut*), where names of the base are gone from it, and where its attributes are
        others; and for any entry that stays. Else it was only passed through.
        """
        if path and self.keep(path):
            return True
        tree = self.tree
        state = tree.state(path)
        below = None if inside else self.chain.find(path)
        merges = below is not None and below.kind == DIRECTORY
        opaque, children, gone = self._settle_mark(path, tree.scan(path), merges=merges)
        cut = self.cut[path] = inside or opaque or not merges
        stays = cut or bool(gone) or not equal(below, state) or (below is not None and self._retimed(path, state, below))
        retime = gone is not None
        for name, kind in children:
            cancel.check()
            child = join(path, name)
            if (tempnames.may_be(name) and self._half_made(child, name, kind, cut=cut)) or (
                git_leftovers.may_be(name) and self._left_by_git(path, child, kind, cut=cut)
            ):
                self.dropped.append(child)
                tree.remove(child)
                fate = Fate.GONE
            elif kind != DIRECTORY:
                fate = self._settle(child, kind, cut=cut)
            elif self.prune(child, inside=cut):
                fate = Fate.STAYS
            else:
                tree.rmdir(child)
                fate = Fate.GONE
            stays = stays or fate is not Fate.GONE
            retime = retime or fate is not Fate.STAYS
        if retime:
            tree.set_times(path, state.times)
        del self.cut[path]
        return stays

    def _settle_mark(
        self, path: str, children: Sequence[DirectoryEntry], *, merges: bool
    ) -> tuple[bool, Sequence[DirectoryEntry], set[str] | None]:
        """Keep the opaque mark of a directory, or take it away: over nothing it would hide what others add there, and one that lacks few of the base's
        names says the same with whiteouts. -> is it opaque, the children that are left to look at, the names that got whiteouts for the mark."""
        tree = self.tree
        if not tree.opaque(path):
            return False, children, None
        if not merges:
            tree.unmark_opaque(path)
            return False, children, None
        here = [child.name for child in children if child.kind in (FILE, LINK, DIRECTORY)]
        names = self.chain.names(path, stop_above=max(2 * len(here) + self.slack, len(here)))
        gone = names - set(here)
        if gone and len(gone) > len(here) + self.slack:
            return True, children, None
        return False, self._unopaque(path, children, names, gone), gone

    def _settle(self, path: str, kind: str, *, cut: bool) -> Fate:
        """What becomes of an entry that is no directory. `cut`: nothing of the base shows where it is, so that it neither equals nor hides anything."""
        if kind in (WHITEOUT, SPECIAL):
            over = not cut and self.chain.holder(path) is not None
            if kind == SPECIAL:
                self._special(path, over=over)
                return Fate.REPLACED if over else Fate.GONE
            if over:
                return Fate.STAYS
            self.tree.unlink(path)
            return Fate.GONE
        under = None if cut else self.chain.find(path)
        if under is None:
            return Fate.STAYS
        own = self.tree.state(path)
        if own.hides:
            self.tree.whiteout(path)
            return Fate.REPLACED
        if not equal(under, own) or self._retimed(path, own, under):
            if under.links > 1 and under.kind == FILE == own.kind:
                self.linked.append(path)
            return Fate.STAYS
        if self.is_input is not None and under.times[1] < own.times[1] and own.kind == FILE and self.is_input(path):
            self.touched[path] = under.times[1], own.times[1]
            return Fate.STAYS
        self.tree.unlink(path)
        return Fate.GONE

    # pass 3: touched inputs

    def decide_touched(self) -> frozenset[str]:
        """Those that stay; the others go as if they had never been opened, and so do directories that were there for them alone."""
        if not self.touched:
            return frozenset()
        times: list[int] = []
        self._times_below("", times)
        times.sort()
        stay: set[str] = set()
        for path, (before, after) in self.touched.items():
            at = bisect_left(times, before)
            if at < len(times) and times[at] < after:
                stay.add(path)
            else:
                self._forget(path)
        return frozenset(stay)

    def _times_below(self, path: str, found: list[int]) -> None:
        for name, kind in self.tree.scan(path):
            cancel.check()
            child = join(path, name)
            if kind == DIRECTORY:
                self._times_below(child, found)
            elif kind == FILE and child not in self.touched:
                found.append(self.tree.state(child).times[1])

    def _forget(self, path: str) -> None:
        tree, remove = self.tree, self.tree.unlink
        while path:
            above = parent_of(path)
            state = tree.state(above)
            remove(path)
            tree.set_times(above, state.times)
            below = self.chain.find(above)
            if not above or tree.opaque(above) or below is None or not equal(below, state) or tree.scan(above):
                return
            path, remove = above, tree.rmdir

    def _unopaque(self, path: str, children: Sequence[DirectoryEntry], names: set[str], gone: set[str]) -> list[DirectoryEntry]:
        """Whiteouts for the names that are gone, marks one level down, then the mark goes. -> the children that are left to look at."""
        tree = self.tree
        kinds = dict(children)
        for name in sorted(gone):
            kind = kinds.get(name)
            if kind == SPECIAL:
                self._special(join(path, name), over=True)
            elif kind != WHITEOUT:
                tree.whiteout(join(path, name))
        left = [child for child in children if child.name not in gone]
        for name, kind in left:
            if name in names and kind == DIRECTORY:
                below = self.chain.find(join(path, name))
                if below is not None and below.kind == DIRECTORY:
                    tree.mark_opaque(join(path, name))
        tree.unmark_opaque(path)
        return left

    def _retimed(self, path: str, own: State, below: State) -> bool:
        """Has an entry of unpublished work another time now? It is the work's own, and goes where that goes."""
        private = self.chain.private
        return bool(private) and own.times[1] != below.times[1] and self.chain.holder(path) in private

    def _half_made(self, path: str, name: str, kind: str, *, cut: bool) -> bool:
        """What the base has of such a name is no work of this session's: somebody meant it."""
        if kind not in (DIRECTORY, FILE) or not (cut or self.chain.holder(path) is None):
            return False
        state = self.tree.state(path)
        return tempnames.is_place(name, state.meta[0]) if kind == DIRECTORY else tempnames.is_file(name, state.times[1])

    def _left_by_git(self, directory: str, path: str, kind: str, *, cut: bool) -> bool:
        """As `_half_made`, of git's own names in a git directory."""
        if kind not in (FILE, DIRECTORY) or path in self.filled or not (cut or self.chain.holder(path) is None):
            return False
        git = self.git.around(directory)
        return git is not None and git_leftovers.is_named_so(path[len(git) :].lstrip("/"), kind)

    def _special(self, path: str, *, over: bool) -> None:
        """A FIFO, socket or device is left out; where it took the place of something of the base, that stays gone."""
        self.dropped.append(path)
        if over:
            self.tree.whiteout(path)
        else:
            self.tree.unlink(path)
