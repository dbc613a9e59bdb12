"""What a publication keeps beside the states of paths: times, names of one file, holes. None of it is compared, and none of it is invented.

publish-rules 12: a time is that of the side that a path was taken from, and what sealing and merging do to directories leaves none; names of one
file stay names of one file among what a session changed; holes stay holes.
"""

from __future__ import annotations

from typing import NamedTuple

from tests.trees import DIRECTORY, FILE, Besides, Tree, ancestors


class Side(NamedTuple):
    """A tree, with what stands beside it."""

    tree: Tree
    besides: Besides


def changed(old: Tree, new: Tree) -> set[str]:
    """The paths whose states differ."""
    return {path for path in old.keys() | new.keys() if old.get(path) != new.get(path)}


def broken(base: Side, ours: Side, head: Side, result: Side) -> str:
    """What a publication from `base` onto `head` should have kept and did not, or ''."""
    return wrong_times(base, ours, head, result) or split_names(base, ours, head, result) or filled_holes(base, ours, head, result)


def wrong_times(base: Side, ours: Side, head: Side, result: Side) -> str:
    """On an unmoved head each time is known; on a moved one each is a time that one of the three has there, but for merged bytes."""
    own = changed(base.tree, ours.tree)
    above = {a for path in own for a in ancestors(path)}
    unmoved = base.tree is head.tree
    for path, entry in sorted(result.tree.items()):
        got = result.besides[path].mtime_ns
        sides = [side.besides[path].mtime_ns for side in (base, ours, head) if path in side.besides]
        if unmoved and (path in own or (entry.kind == DIRECTORY and path in above)):
            if path in ours.besides and got != ours.besides[path].mtime_ns:
                return f"{path!r} was changed, and has not the session's time: {got}, not {ours.besides[path].mtime_ns}"
        elif got not in sides and (entry.kind == DIRECTORY or any(side.tree.get(path) == entry for side in (base, ours, head))):
            return f"{path!r} has a time that neither base, session nor head had: {got}, not in {sides}"
    return ""


def split_names(base: Side, ours: Side, head: Side, result: Side) -> str:
    """Files that ours changed, and that the head did not, share an inode afterwards if and only if they did in the session."""
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
            if other.besides[path].inode != other.besides[before].inode:
                return f"{before!r} and {path!r} are {'no more' if which is ours else 'now'} names of one file"
    return ""


def filled_holes(base: Side, ours: Side, head: Side, result: Side) -> str:
    """No file that is as a side had it holds more than there."""
    for path, entry in result.tree.items():
        held = [side.besides[path].data for side in (base, ours, head) if side.tree.get(path) == entry]
        if entry.kind == FILE and held and result.besides[path].data > max(held):
            return f"{path!r} holds {result.besides[path].data} bytes, where it came from {held}"
    return ""


TICK_NS = 50_000_000
"""By so much the time of a new entry may be before that of the clock: the kernel's own advances in ticks."""


def reshaped(old: Side, new: Side, began_ns: int, written: str | None = None, moved: tuple[str, str] | None = None) -> str:
    """What an act without a session should have kept of times and did not, or ''. A directory that gets or loses a name has its time from now,
    so has a file that was written; all else keeps the time that it had, also at another path. What took the place of another file there may be newer.

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
        over = source != path and entry.kind == FILE and path in old.tree and got > old.besides[source].mtime_ns
        if not touched and got != old.besides[source].mtime_ns and not over:
            return f"{path!r} was not touched, and has the time {got}, not {old.besides[source].mtime_ns}"
    return ""


def names_in(tree: Tree, path: str) -> set[str]:
    """The names in a directory."""
    prefix = path + "/" if path else ""
    return {p[len(prefix) :].partition("/")[0] for p in tree if p and p.startswith(prefix)}
