"""ModelStack: the meaning of the layer stack on plain dicts. It has no layers, whiteouts, opaque xattrs or
indexes: the simplest form, on purpose.

The outcome of a publish is a function of three trees: B, the session's base; O, what the session shows; H,
the head.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeVar

from layerstack.text import merge
from layerstack.text.gitignore import IgnoreRules
from layerstack.text.lines import TEXT_MAX
from tests import units
from tests.trees import DIRECTORY, FILE, LINK, Entry, Tree, ancestors

T = TypeVar("T")
Ignored = Callable[[str, bool], bool]


class Verdict(NamedTuple):
    """The outcome of a publish: the conflicts by path (empty: it succeeds), the tree of the head afterwards,
    the head paths that it removed.
    """

    conflicts: dict[str, str]
    tree: Tree
    dropped: frozenset[str]


def pick(base: T, ours: T, head: T) -> tuple[bool, T]:
    """One value, three ways: changed by one side, or by both alike; (False, _) when both changed it
    differently.
    """
    if ours == head or base == head:
        return True, ours
    return base == ours, head


def content(base: Entry | None, ours: Entry, head: Entry) -> tuple[str, bytes]:
    """(class of the conflict or '', content) for two entries of one kind; the base counts only if it is of
    that kind too.
    """
    if ours.body == head.body:
        return "", ours.body
    if ours.kind == LINK:
        good, target = pick(base.body if base else None, ours.body, head.body)
        return ("" if good else "symlink"), target or b""
    good, body = pick(base.body if base else b"", ours.body, head.body)
    if good:
        return "", body
    three = (base.body if base else b"", ours.body, head.body)
    if any(len(text) > TEXT_MAX or b"\0" in text for text in three):
        return "binary", head.body
    merged = merge.merge(*three)
    if merged.content is None:
        return ("content" if base else "add_add"), head.body
    return "", merged.content


def decide(base: Entry | None, ours: Entry | None, head: Entry | None) -> tuple[str, Entry | None]:
    """Both sides changed the path, differently: (classes of the conflict joined by +, or '', and the
    entry).
    """
    if ours is None:
        return "delete_modify", head
    if head is None:
        return "modify_delete", head
    if ours.kind != head.kind:
        return "type", head
    like = base if base is not None and base.kind == ours.kind else None
    wrong, body = content(like, ours, head)
    classes = [wrong] if wrong else []
    good, meta = pick(like.meta if like else None, ours.meta, head.meta)
    if not good or meta is None:
        classes.append("mode")
    three = [dict(entry.xattrs) if entry else {} for entry in (like, ours, head)]
    xattrs: dict[str, bytes] = {}
    for name in three[1].keys() | three[2].keys():
        good, value = pick(*(x.get(name) for x in three))
        if not good:
            classes.append("xattr")
            break
        if value is not None:
            xattrs[name] = value
    if classes:
        return "+".join(classes), head
    return "", Entry(ours.kind, meta or ours.meta, body, tuple(sorted(xattrs.items())))


def ignore_of(tree: Tree) -> Ignored:
    """Return the function that tells which paths the `.gitignore` files of a tree ignore."""

    def read(path: str) -> bytes | None:
        entry = tree.get(path)
        return entry.body if entry is not None and entry.kind == FILE else None

    return IgnoreRules(read).ignored


def publish(base: Tree, ours: Tree, head: Tree, *, boxes: bool = False) -> Verdict:
    """Every path by the table, units as one value each; then: is what comes out still a tree?

    Args:
        boxes: the directories that `tests.units.BOX` names are units.
    """
    trees = (base, ours, head)
    rules = [ignore_of(tree) for tree in trees]

    def ignored(path: str, is_directory: bool) -> bool:
        """Return True for a path that all sides ignore; one that a side no longer ignores is checked for
        conflicts.
        """
        return all(rule(path, is_directory) for rule in rules)

    derived = units.Derived(trees, ignored)

    def last_wins(path: str) -> bool:
        shown, h = ours.get(path) or base.get(path), head.get(path)
        return (
            path != ""
            and ignored(path, shown is not None and shown.is_dir)
            and (h is None or ignored(path, h.is_dir))
        )

    out: Tree = {}
    conflicts: dict[str, str] = {}
    from_ours: set[str] = set()
    for path in base.keys() | ours.keys() | head.keys():
        b, o, h = base.get(path), ours.get(path), head.get(path)
        if o == b:
            entry = h
        elif h == b or o == h:
            entry = o
            from_ours.add(path)
        elif derived(path):
            entry = (
                None if o is None and h is not None and h.is_dir else h
            )  # a directory that one side removed does not come back
        else:
            wrong, entry = decide(b, o, h)
            if last_wins(path):  # what does not merge is the last writer's
                entry = o if wrong else entry
                from_ours.add(path)
            elif wrong:
                conflicts[path] = wrong
        if entry is not None:
            out[path] = entry
    torn: list[units.Unit] = []
    known = units.units_in(trees, boxes=boxes)
    for unit in known:
        decided = units.decide(unit, *trees, loose=last_wins, derived=derived.within)
        if decided.whose == units.CONFLICT:
            torn.append(unit)
        for path in decided.forced:
            mine = decided.whose == units.OURS
            (from_ours.add if mine else from_ours.discard)(path)
            conflicts.pop(path, None)
            put(out, path, (ours if mine else head).get(path))
    flat = dict(out)
    dropped: set[str] = set()
    for path in sorted(flat):
        gone = [a for a in ancestors(path) if a not in flat or flat[a].kind != DIRECTORY]
        if not gone:
            continue
        loose = ignored(path, out[path].is_dir)
        if derived(path):
            del out[path]
            dropped.add(path)
        elif path in from_ours and loose and all(a not in flat for a in gone):
            out.update({a: ours[a] for a in ancestors(path) if a not in out})  # derived ones too
        elif path not in from_ours and loose:
            del out[path]
            dropped.add(path)
        else:
            conflicts.setdefault(path, "parent")
    for path in conflicts:
        b, o, h = base.get(path), ours.get(path), head.get(path)
        if units.differs(b, h) and units.differs(b, o) and units.differs(o, h):
            whose = [unit for unit in known if path in unit.members]
            alone = [units.Unit(path, frozenset((path,)))] if units.is_database_alone(path, trees) else []
            torn += (whose or alone)[:1]
    conflicts = {
        path: wrong for path, wrong in conflicts.items() if not any(path in unit.members for unit in torn)
    }
    conflicts.update({unit.root: "unit" for unit in torn})
    if not conflicts:
        lost = [path for path in out if any(a not in out or not out[a].is_dir for a in ancestors(path))]
        assert not lost, f"the model's own tree has no directory for {lost}"
    return Verdict(topmost(conflicts), head if conflicts else out, frozenset(dropped))


def put(tree: Tree, path: str, entry: Entry | None) -> None:
    """Set the entry of a path; None removes it."""
    tree.pop(path, None)
    if entry is not None:
        tree[path] = entry


def topmost(conflicts: dict[str, str]) -> dict[str, str]:
    """Keep one conflict per lost subtree: a `parent` below another conflict adds no information."""
    return {
        p: c for p, c in conflicts.items() if c != "parent" or not any(a in conflicts for a in ancestors(p))
    }


class ModelStack:
    """Versions by number, and the head."""

    def __init__(self, base: Tree, *, boxes: bool = False) -> None:
        self.versions: dict[int, Tree] = {1: base}
        self.boxes = boxes

    @property
    def head(self) -> int:
        return max(self.versions)

    def tree(self) -> Tree:
        return self.versions[self.head]

    def preview(self, base: int, ours: Tree, *, on: int | None = None) -> Verdict:
        """Return the outcome of `publish`, on the head or on an earlier version."""
        return publish(
            self.versions[base], ours, self.tree() if on is None else self.versions[on], boxes=self.boxes
        )

    def publish(self, base: int, ours: Tree, *, on: int | None = None) -> Verdict:
        """Publish: a conflict changes nothing, and a publish without a change makes no version."""
        verdict = self.preview(base, ours, on=on)
        if on in (None, self.head) and not verdict.conflicts and verdict.tree != self.tree():
            self.versions[self.head + 1] = verdict.tree
        return verdict
