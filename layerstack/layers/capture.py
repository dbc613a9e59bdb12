"""Capture: turn an offline upperdir into a plain layer tree with exactly the changes of the session.

The result contains files, symlinks, directories, whiteouts and opaque directories; no redirects, no special
files, and no entry that equals the base. Between any two steps the tree on its chain shows what the session
showed, and capturing a captured tree changes nothing: after a crash it is run again. Captured work may share
inodes with published layers, so it is never mounted as an upperdir again.
Source: overlayfs.rst, "redirect_dir", "whiteouts and opaque directories"; the kernel makes every directory
opaque that is made inside a merged one.
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
"""An opaque directory becomes a plain one with whiteouts if the number of base names that it lacks is at most
the number of its own names plus this constant.
"""


class Captured(NamedTuple):
    """Result of a capture: the paths of FIFOs, sockets and devices that it left out, and of files that a
    killed process had half made (`tempnames`, `git_leftovers`).
    """

    dropped: tuple[str, ...]
    linked: tuple[str, ...] = ()
    """Files that differ from the chain's file, which is one of several names of one inode."""
    touched: frozenset[str] = frozenset()
    """Files that equal the base and are kept for their time alone: a file was made between the two times."""


def capture_tree(
    tree: Tree,
    chain: Chain,
    *,
    keep: Callable[[str], bool] | None = None,
    slack: int = SLACK,
    is_input: Callable[[str], bool] | None = None,
    exact: bool = False,
) -> Captured:
    """Bring `tree`, an upperdir on `chain`, into final form, in place.

    Args:
        keep: subtrees that are known to be in final form are not entered.
        is_input: True for an input of builds. An input that differs from the base only by a later time is
            kept if a changed file has a time between the two, since that file may have been made from what
            the input contained at that time. None: no such input is kept.
        exact: replace redirects alone. Entries that equal the base stay, and special files.
    Raises:
        OSError: the disk refused; the view is unchanged, and another capture continues from there.
    Cost: O(entries of the tree) look-ups; content is read where a file of equal size is below.
    """
    worker = _TreeCapture(tree, chain, keep or (lambda path: False), slack, is_input)
    if keep is None:
        worker.expand("", "")
    if exact:
        return Captured(())
    worker.prune("", inside=False)
    return Captured(tuple(worker.dropped), tuple(worker.linked), worker.decide_touched())


class EntryResult(enum.Enum):
    """Result for an entry. An entry that is not GONE keeps its directory; an entry that is not STAYS makes
    the directory get its earlier time back.
    """

    STAYS = enum.auto()
    REPLACED = enum.auto()
    """Replaced by a whiteout."""
    GONE = enum.auto()


class _TreeCapture:
    def __init__(
        self,
        tree: Tree,
        chain: Chain,
        keep: Callable[[str], bool],
        slack: int,
        is_input: Callable[[str], bool] | None,
    ) -> None:
        self.tree, self.chain, self.keep, self.slack, self.is_input = tree, chain, keep, slack, is_input
        self.dropped: list[str] = []
        self.linked: list[str] = []
        self.filled: set[str] = set()
        """Entries copied with a renamed directory of the base, under a name that git_leftovers checks."""
        self.cut: dict[str, bool] = {}
        """Directory being pruned -> True when nothing of the base is visible in it."""
        self.git = git_leftovers.GitDirectories(tree, chain, lambda path: self.cut[path])
        self.touched: dict[str, tuple[int, int]] = {}
        """Inputs that equal the base but for a later time: the base's time, and their own."""

    # pass 1: a renamed directory becomes an opaque directory with the content of its old path

    def expand(self, path: str, merges: str | None) -> None:
        """Expand below `path`. `merges`: the path of the chain with which this directory merges; None: it
        merges with nothing.
        """
        cancel.check()
        tree = self.tree
        if (whiteouts := tree.xattr_whiteouts(path)) is not None:
            times = tree.state(path).times
            for name in whiteouts:
                tree.whiteout(join(path, name))
            tree.clear_opaque(path)
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
            if redirect is not None:  # opaque as well as renamed: nothing to fill
                tree.clear_redirect(path)
            return
        if merges == path:
            if redirect is not None:  # renamed away and back
                tree.clear_redirect(path)
            return
        times = tree.state(path).times
        below = self.chain.find(merges)
        if below is not None and below.kind == DIRECTORY:
            here = {child.name for child in children}
            for name in sorted(self.chain.names(merges) - here):
                self.fill(join(path, name), join(merges, name))
        tree.set_opaque(path)
        if redirect is not None:
            tree.clear_redirect(path)
        for name, kind in children:
            if kind == WHITEOUT:
                tree.unlink(join(path, name))
        tree.set_times(path, times)

    def fill(self, target: str, source: str) -> None:
        """Copy what the chain shows at `source` to `target`. A half-filled directory merges with the rest
        until its parent is opaque.
        """
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

    # pass 2: an entry that equals the base is not a change

    def prune(self, path: str, *, inside: bool) -> bool:
        """Remove entries that equal the base from a directory. `inside`: nothing of the base is visible here.
        Returns whether the directory must stay.

        It must stay when nothing of the base is visible in it (*cut*), when names of the base are deleted
        from it, when its attributes differ, or when any entry stays. Else it is an unchanged container.
        """
        if path and self.keep(path):
            return True
        tree = self.tree
        state = tree.state(path)
        below = None if inside else self.chain.find(path)
        merges = below is not None and below.kind == DIRECTORY
        opaque, children, gone = self._decide_opaque(path, tree.scan(path), merges=merges)
        cut = self.cut[path] = inside or opaque or not merges
        stays = (
            cut
            or bool(gone)
            or not equal(below, state)
            or (below is not None and self._retimed(path, state, below))
        )
        retime = gone is not None
        for name, kind in children:
            cancel.check()
            child = join(path, name)
            if (tempnames.may_be(name) and self._half_made(child, name, kind, cut=cut)) or (
                git_leftovers.may_be(name) and self._left_by_git(path, child, kind, cut=cut)
            ):
                self.dropped.append(child)
                tree.remove(child)
                result = EntryResult.GONE
            elif kind != DIRECTORY:
                result = self._non_directory(child, kind, cut=cut)
            elif self.prune(child, inside=cut):
                result = EntryResult.STAYS
            else:
                tree.rmdir(child)
                result = EntryResult.GONE
            stays = stays or result is not EntryResult.GONE
            retime = retime or result is not EntryResult.STAYS
        if retime:
            tree.set_times(path, state.times)
        del self.cut[path]
        return stays

    def _decide_opaque(
        self, path: str, children: Sequence[DirectoryEntry], *, merges: bool
    ) -> tuple[bool, Sequence[DirectoryEntry], set[str] | None]:
        """Keep the opaque xattr of a directory, or remove it.

        Where the base has nothing, the xattr would hide what others add there; where the directory lacks few
        of the base's names, whiteouts express the same. Returns: True when it is opaque; the children still
        to be processed; the names that got whiteouts in place of the xattr.
        """
        tree = self.tree
        if not tree.opaque(path):
            return False, children, None
        if not merges:
            tree.clear_opaque(path)
            return False, children, None
        here = [child.name for child in children if child.kind in (FILE, LINK, DIRECTORY)]
        names = self.chain.names(path, stop_above=max(2 * len(here) + self.slack, len(here)))
        gone = names - set(here)
        if gone and len(gone) > len(here) + self.slack:
            return True, children, None
        return False, self._unopaque(path, children, names, gone), gone

    def _non_directory(self, path: str, kind: str, *, cut: bool) -> EntryResult:
        """Process an entry other than a directory. `cut`: nothing of the base is visible at its path, so that
        it neither equals nor hides an entry.
        """
        if kind in (WHITEOUT, SPECIAL):
            over = not cut and self.chain.layer_of(path) is not None
            if kind == SPECIAL:
                self._special(path, over=over)
                return EntryResult.REPLACED if over else EntryResult.GONE
            if over:
                return EntryResult.STAYS
            self.tree.unlink(path)
            return EntryResult.GONE
        under = None if cut else self.chain.find(path)
        if under is None:
            return EntryResult.STAYS
        own = self.tree.state(path)
        if own.is_xattr_whiteout:
            self.tree.whiteout(path)
            return EntryResult.REPLACED
        if not equal(under, own) or self._retimed(path, own, under):
            if under.links > 1 and under.kind == FILE == own.kind:
                self.linked.append(path)
            return EntryResult.STAYS
        if (
            self.is_input is not None
            and under.times[1] < own.times[1]
            and own.kind == FILE
            and self.is_input(path)
        ):
            self.touched[path] = under.times[1], own.times[1]
            return EntryResult.STAYS
        self.tree.unlink(path)
        return EntryResult.GONE

    # pass 3: touched inputs

    def decide_touched(self) -> frozenset[str]:
        """Keep the inputs that a changed file may depend on. Remove the others as if they had never been
        opened, with the directories that existed for them alone.
        """
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
            if (
                not above
                or tree.opaque(above)
                or below is None
                or not equal(below, state)
                or tree.scan(above)
            ):
                return
            path, remove = above, tree.rmdir

    def _unopaque(
        self, path: str, children: Sequence[DirectoryEntry], names: set[str], gone: set[str]
    ) -> list[DirectoryEntry]:
        """Write whiteouts for the names that are gone, make their subdirectories opaque, then remove the
        opaque xattr. Returns the children still to be processed.
        """
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
                    tree.set_opaque(join(path, name))
        tree.clear_opaque(path)
        return left

    def _retimed(self, path: str, own: State, below: State) -> bool:
        """Check whether an entry of a pending layer has another time now. The entry belongs to the work, and
        keeps its own time.
        """
        pending = self.chain.pending
        return bool(pending) and own.times[1] != below.times[1] and self.chain.layer_of(path) in pending

    def _half_made(self, path: str, name: str, kind: str, *, cut: bool) -> bool:
        """Check whether an entry is a temporary one of ours. An entry of that name in the base is user
        data.
        """
        if kind not in (DIRECTORY, FILE) or not (cut or self.chain.layer_of(path) is None):
            return False
        state = self.tree.state(path)
        return (
            tempnames.is_place(name, state.meta[0])
            if kind == DIRECTORY
            else tempnames.is_file(name, state.times[1])
        )

    def _left_by_git(self, directory: str, path: str, kind: str, *, cut: bool) -> bool:
        """Check whether an entry is one that a killed git left in a git directory. An entry of that name in
        the base is user data.
        """
        if (
            kind not in (FILE, DIRECTORY)
            or path in self.filled
            or not (cut or self.chain.layer_of(path) is None)
        ):
            return False
        git = self.git.around(directory)
        return git is not None and git_leftovers.is_named_so(path[len(git) :].lstrip("/"), kind)

    def _special(self, path: str, *, over: bool) -> None:
        """Leave out a FIFO, socket or device; an entry of the base that it replaced stays deleted."""
        self.dropped.append(path)
        if over:
            self.tree.whiteout(path)
        else:
            self.tree.unlink(path)
