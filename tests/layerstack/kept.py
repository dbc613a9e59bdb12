"""The properties that a publication keeps beside the states of paths: times, hard links, holes. They do not
count as changes, and must not be invented.

publish-rules 12: a time is that of the side that a path was taken from, and what capturing and merging do to
directories leaves none; names of one file stay names of one file among what a session changed; holes stay
holes.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import NamedTuple

from tests.model import ignore_of
from tests.trees import DIRECTORY, FILE, Besides, Tree, ancestors

TICK_NS = 50_000_000
"""Largest difference by which the time of a new entry may be before the clock: the kernel's own time advances
in ticks.
"""

LONG_NS = 10**15
"""Eleven days: an older time was set on purpose."""


class Side(NamedTuple):
    """A tree with its times, hard links and holes."""

    tree: Tree
    besides: Besides


def changed(old: Tree, new: Tree) -> set[str]:
    """The paths whose states differ."""
    return {path for path in old.keys() | new.keys() if old.get(path) != new.get(path)}


class Act(NamedTuple):
    """A publication of `ours`, made on `base`, onto `head`."""

    base: Side
    ours: Side
    head: Side
    result: Side
    moved: bool
    """Was the head another version than the base?"""
    committed_ns: int
    """When the base was published."""
    between: tuple[Besides, ...] = ()
    """The versions between the base and the head: the publication may have been planned on any of them."""


def broken(act: Act) -> str:
    """Return the first property that was not kept; '' without one."""
    rule = ignore_of(act.base.tree)
    one_rule = (
        len(
            {
                tuple(sorted((p, e.body) for p, e in side.tree.items() if p.endswith(".gitignore")))
                for side in act[:3]
            }
        )
        == 1
    )

    def is_output(path: str) -> bool:
        return path != "" and rule(path, False)

    lost = wrong_times(act, is_output) if act.moved else times_on_the_base(act, is_output)
    if not lost and act.moved and one_rule:
        lost = stale(act, is_output)
    return lost or split_names(*act[:4]) or filled_holes(*act[:4])


def content_changed(old: Tree, new: Tree, path: str) -> bool:
    """Is it a file in the second, of other content than in the first?"""
    before, after = old.get(path), new.get(path)
    return (
        after is not None
        and after.kind == FILE
        and (before is None or (before.kind, before.body) != (FILE, after.body))
    )


def times_on_the_base(act: Act, is_output: Callable[[str], bool]) -> str:
    """publish-rules 12 and 14: the session's times where it changed something, the base's or the session's
    elsewhere. An input that came with a time from before the base was published has one from after it.
    """
    own = changed(act.base.tree, act.ours.tree)
    above = {a for path in own for a in ancestors(path)}
    for path, entry in sorted(act.result.tree.items()):
        got = act.result.besides[path].mtime_ns
        if path in own or (entry.kind == DIRECTORY and path in above):
            want = act.ours.besides[path].mtime_ns
            old = (
                content_changed(act.base.tree, act.ours.tree, path)
                and not is_output(path)
                and want <= act.committed_ns + TICK_NS
            )
            raised = old and path in act.base.tree and want < act.committed_ns - LONG_NS
            if raised and got <= want:
                return f"{path!r} came with a time from before the base was published, {want}, and kept it"
            if got != want and not (old and got > want):
                return f"{path!r} was changed, and has not the session's time: {got}, not {want}"
        elif got not in [
            side.besides[path].mtime_ns for side in (act.base, act.ours) if path in side.besides
        ]:
            return f"{path!r} was not changed, and has a time that neither base nor session had: {got}"
    return ""


def wrong_times(act: Act, is_output: Callable[[str], bool]) -> str:
    """On a head that moved: what ours did not change has a time that one of the three had there; our inputs
    are newer than all that the head has, our outputs no newer than they were; and among each of the two the
    order is kept. An output that is another name of an input is that input.
    """
    own = changed(act.base.tree, act.ours.tree)
    newest = max(
        (at for path, (at, *_) in act.head.besides.items() if act.head.tree[path].kind == FILE), default=0
    )
    raised: list[tuple[int, int, str]] = []
    inputs = input_inodes(act.result, is_output)
    for path, entry in sorted(act.result.tree.items()):
        got = act.result.besides[path].mtime_ns
        mine = act.ours.besides[path].mtime_ns if path in act.ours.besides else None
        touched = path in act.base.besides and mine != act.base.besides[path].mtime_ns
        sides = [
            at[path].mtime_ns for at in (*(side.besides for side in act[:3]), *act.between) if path in at
        ]
        if (
            entry.kind == DIRECTORY
        ):  # one that got or lost a name is an input, or an output; what only leads to a change is neither
            under = act.base.tree.get(path)
            if under is not None and under.kind == DIRECTORY and not touched and got not in sides:
                return (
                    f"{path!r}, a directory, has a time that neither base, session nor head had: {got}, "
                    f"not in {sides}"
                )
        elif path not in own:
            if got not in sides and any(side.tree.get(path) == entry for side in act[:3]) and not touched:
                return f"{path!r} has a time that neither base, session nor head had: {got}, not in {sides}"
        elif (
            entry.kind == FILE
            and entry == act.ours.tree.get(path) != act.head.tree.get(path)
            and mine is not None
        ):
            if is_output(path):
                if got > mine and act.result.besides[path].inode not in inputs:
                    return f"{path!r}, an output, was raised from {mine} to {got}"
            elif content_changed(act.base.tree, act.ours.tree, path):
                raised.append((mine, got, path))
                if got <= newest:
                    return f"{path!r}, an input of {got}, is not newer than what the head had, {newest}"
    for (mine, got, path), (other, later, name) in itertools.pairwise(sorted(raised)):
        if (mine < other and got >= later) or (mine == other and got != later):
            return f"{path!r} and {name!r} were of {mine} and {other}, and are of {got} and {later}"
    return ""


def stale(act: Act, is_output: Callable[[str], bool]) -> str:
    """No output is newer than an input that its maker had not seen: ours than what the head has changed, the
    head's than what ours has. An output that is another name of an input was made of nothing else.
    """
    inputs = input_inodes(act.result, is_output)
    for makers, others in ((act.ours, act.head), (act.head, act.ours)):
        made = [
            p
            for p in act.result.tree
            if is_output(p)
            and is_taken(act, makers, p)
            and not is_as_it_was(act, others, p)
            and act.result.besides[p].inode not in inputs
        ]
        unseen = [p for p in act.result.tree if not is_output(p) and is_taken(act, others, p)]
        for path in made:
            for source in unseen:
                at, of = act.result.besides[path].mtime_ns, act.result.besides[source].mtime_ns
                if at >= of:
                    return (
                        f"{path!r}, of {at}, is no older than {source!r}, of {of}, that its session had "
                        f"not seen"
                    )
    return ""


def input_inodes(side: Side, is_output: Callable[[str], bool]) -> set[tuple[int, int]]:
    """The files that are inputs by one of their names."""
    return {
        side.besides[path].inode
        for path, entry in side.tree.items()
        if entry.kind == FILE and not is_output(path)
    }


def is_as_it_was(act: Act, side: Side, path: str) -> bool:
    """Has the result the file of this side, with its time? Both sides may have made the same; its order among
    that side's files stays.
    """
    return (
        side.tree.get(path) == act.result.tree[path]
        and side.besides[path].mtime_ns == act.result.besides[path].mtime_ns
    )


def is_taken(act: Act, side: Side, path: str) -> bool:
    """Has the result the file that this side changed or made?"""
    return content_changed(act.base.tree, side.tree, path) and side.tree[path] == act.result.tree.get(path)


def split_names(base: Side, ours: Side, head: Side, result: Side) -> str:
    """Files that ours changed, and that the head did not, share an inode afterwards if and only if they did
    in the session.

    In a user namespace a file that was copied up and its new name show numbers of their own, and the count of
    names.
    """
    taken = [
        path
        for path in sorted(changed(base.tree, ours.tree))
        if path in ours.tree and ours.tree[path].kind == FILE and result.tree.get(path) == ours.tree[path]
        and head.tree.get(path) == base.tree.get(path)
    ]  # fmt: skip
    for which, other in ((ours, result), (result, ours)):
        first: dict[tuple[int, int], str] = {}
        for path in taken:
            before = first.setdefault(which.besides[path].inode, path)
            comparable = which is ours or min(ours.besides[path].links, ours.besides[before].links) == 1
            if comparable and other.besides[path].inode != other.besides[before].inode:
                return (
                    f"{before!r} and {path!r} are {'no more' if which is ours else 'now'} names of one file"
                )
    return ""


def filled_holes(base: Side, ours: Side, head: Side, result: Side) -> str:
    """No file that is as a side had it holds more than there."""
    for path, entry in result.tree.items():
        held = [side.besides[path].data for side in (base, ours, head) if side.tree.get(path) == entry]
        if entry.kind == FILE and held and result.besides[path].data > max(held):
            return f"{path!r} holds {result.besides[path].data} bytes, where it came from {held}"
    return ""


def reshaped(
    old: Side, new: Side, began_ns: int, written: str | None = None, moved: tuple[str, str] | None = None
) -> str:
    """What an act without a session should have kept of times and did not, or ''. A directory that gets or
    loses a name has its time from now, so has a file that was written; all else keeps the time that it had,
    also at another path. What took the place of another file there may be newer.

    Args:
        began_ns: the clock before the act.
        moved: the path that was given another name, and that name.
    """
    parents = {path.rpartition("/")[0] for path in moved or ()}
    for path, entry in sorted(new.tree.items()):
        source = path
        if moved is not None and (path == moved[1] or path.startswith(moved[1] + "/")):
            source = moved[0] + path[len(moved[1]) :]
        got = new.besides[path].mtime_ns
        touched = path == written or source not in old.tree or path in parents
        if entry.kind == DIRECTORY and source == path:
            touched = touched or names_in(old.tree, path) != names_in(new.tree, path)
        if touched and got < began_ns - TICK_NS:
            return f"{path!r} was touched at {began_ns}, and has the time {got}"
        over = (
            source != path and entry.kind == FILE and path in old.tree and got > old.besides[source].mtime_ns
        )
        if not touched and got != old.besides[source].mtime_ns and not over:
            return f"{path!r} was not touched, and has the time {got}, not {old.besides[source].mtime_ns}"
    return ""


def names_in(tree: Tree, path: str) -> set[str]:
    """The names in a directory."""
    prefix = path + "/" if path else ""
    return {p[len(prefix) :].partition("/")[0] for p in tree if p and p.startswith(prefix)}
