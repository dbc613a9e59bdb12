"""Merge HEAD, of the repository and of each linked worktree. It is the store's: where both sides changed what
is checked out, the head's stays.
"""

from __future__ import annotations

from collections.abc import Callable

from layerstack.git.ref_results import RefMeeting, RefNotice
from layerstack.git.ref_store import RefMap, RefValue


def merge_head(
    name: bytes,
    sides: tuple[RefMap, RefMap, RefMap],
    refs: dict[bytes, RefValue],
    renamed: dict[bytes, bytes],
    report: Callable[[RefNotice | RefMeeting], None],
) -> None:
    """Decide one HEAD and put it into `refs`, which has every other ref of the result.

    Args:
        name: `HEAD` or `worktrees/NAME/HEAD`.
        sides: base, ours, head.
        renamed: branches of ours that have another name in the result.
        report: gets a meeting when both sides moved a detached HEAD, and a notice when ours had another
            branch checked out than the result.
    """
    base, ours, head = sides
    b, o, h = base.get(name), ours.get(name), head.get(name)
    if o is not None and o.symbolic in renamed:
        o = RefValue(None, renamed[o.symbolic])
    if h == o or o is None or h is None:
        # a worktree that one side removed stays removed unless the other moved its HEAD
        value = o if h == b else h if o in (h, b) else o or h
        if value is not None:
            refs[name] = value
        return
    if o.oid is not None and h.oid is not None:
        before = base.resolve(name)
        if b is None or b.oid is None or before not in (o.oid, h.oid):
            report(RefMeeting(name, before, o.oid, h.oid))
            refs[name] = h
        else:
            refs[name] = h if o.oid == before else o
        return
    if h == b and not _moved(h.symbolic, base, head):
        refs[name] = o
        return
    refs[name] = h
    if o != b or _moved(o.symbolic, base, ours):
        shown = h.symbolic or h.oid or b""
        report(RefNotice("branch_not_switched", name, shown.decode("utf-8", "replace")))


def _moved(branch: bytes | None, base: RefMap, side: RefMap) -> bool:
    return branch is not None and base.resolve(branch) != side.resolve(branch)
