"""The decision table: one path, three states. Pure, apart from the states' reads of content.

`decide` is called only when session and head both differ from the base and from each other. `resolve` handles
changes of one side, ignored paths and derived paths; `layerstack.units` handles files that belong together.
Content, attributes and each xattr are merged independently of each other.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, TypeVar

from layerstack.core.publish_rules import DEFAULT, PublishRules
from layerstack.model.conflict import Hunk
from layerstack.text.lines import TEXT_MAX, is_text
from layerstack.text.merge import merge
from layerstack.tree.state import FILE, LINK, Meta, State, same

T = TypeVar("T")


class Verdict(NamedTuple):
    """Outcome of the merge of one path. With a `conflict`, only `hunks` has a meaning beside it."""

    conflict: str | None
    """The classes of the conflict, joined by `+`; None: the path merges."""
    content: str | bytes = "ours"
    """`ours`, `head`, or the merged bytes."""
    meta: Meta = (0, 0, 0)
    xattrs: Mapping[str, bytes] = {}
    hunks: tuple[Hunk, ...] = ()


def pick(base: T, ours: T, head: T) -> tuple[bool, T]:
    """Merge one value: (True, the result), or (False, any value) for a conflict."""
    if ours == head or base == head:
        return True, ours
    return base == ours, head


def _files(
    base: State | None, ours: State, head: State, adjacent: bool
) -> tuple[str | None, str | bytes, tuple[Hunk, ...]]:
    """Merge two files of different content. Returns (class of the conflict or None, content, hunks). If the
    base has no file, both sides made one, and the base counts as empty.
    """
    if same(base, head) if base is not None else head.size == 0:
        return None, "ours", ()
    if same(base, ours) if base is not None else ours.size == 0:
        return None, "head", ()
    if max(ours.size, head.size, base.size if base is not None else 0) > TEXT_MAX:
        return "binary", "ours", ()
    three = (base.data() if base is not None else b"", ours.data(), head.data())
    if not all(map(is_text, three)):
        return "binary", "ours", ()
    content, hunks = merge(*three, adjacent=adjacent)
    if content is None:
        return "content" if base is not None else "add_add", "ours", hunks
    return None, "ours" if content == three[1] else "head" if content == three[2] else content, ()


def merged_content(
    base: State | None, ours: State, head: State, rules: PublishRules = DEFAULT
) -> State | bytes | None:
    """Merge the content of two files without regard to attributes. Returns the state that has the merged
    content, or its bytes; None for a conflict.
    """
    if same(ours, head):
        return ours
    like = base if base is not None and base.kind == FILE else None
    bad, content, _ = _files(like, ours, head, rules.merge_adjacent)
    if bad is not None:
        return None
    return content if isinstance(content, bytes) else head if content == "head" else ours


def decide(
    base: State | None, ours: State | None, head: State | None, rules: PublishRules = DEFAULT
) -> Verdict:
    """Merge one path that the session and the head both changed, differently."""
    if ours is None:
        return Verdict("delete_modify")
    if head is None:
        return Verdict("modify_delete")
    if ours.kind != head.kind:
        return Verdict("type")
    like = base if base is not None and base.kind == ours.kind else None
    wrong: list[str] = []
    content: str | bytes = "ours"
    hunks: tuple[Hunk, ...] = ()
    if ours.kind == LINK:
        if same(ours, head) or (like is not None and same(like, head)):
            content = "ours"
        elif like is not None and same(like, ours):
            content = "head"
        else:
            wrong.append("symlink")
    elif ours.kind == FILE and not same(ours, head):
        bad, content, hunks = _files(like, ours, head, rules.merge_adjacent)
        if bad is not None:
            wrong.append(bad)
    ok, meta = pick(None if like is None else like.meta, ours.meta, head.meta)
    if not ok or meta is None:
        wrong.append("mode")
    xattrs: dict[str, bytes] = {}
    for name in sorted({*ours.xattrs, *head.xattrs}):
        ok, value = pick(
            None if like is None else like.xattrs.get(name), ours.xattrs.get(name), head.xattrs.get(name)
        )
        if not ok:
            wrong.append("xattr")
            break
        if value is not None:
            xattrs[name] = value
    if wrong:
        return Verdict("+".join(wrong), hunks=hunks)
    return Verdict(None, content, meta or ours.meta, xattrs)
