"""Inputs of builds that a session has not seen: those that differ between the head and the session's base
version.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from layerstack.layers.chain import Chain
from layerstack.layers.index import Layer, LayerTimes
from layerstack.model.conflict import Notice
from layerstack.text.build_roles import Roles
from layerstack.tree.state import DIRECTORY, FILE, LINK, same

LISTED_MAX = 20
"""Paths that a notice names."""
LOOKED_AT_MAX = 2_000
"""Records that are read for a notice."""


def in_git_directory(path: str) -> bool:
    """Check whether a path is in a `.git` directory: its files change with each commit, and nothing is built
    from them.
    """
    return "/.git/" in f"/{path}/"


def lacks_input(base: Chain, head: Chain, newer: Sequence[Layer], roles: Roles) -> bool:
    """True if the head lacks an input of the base, or has one whose own time does not show the change."""
    for layer in newer:
        for path in layer.paths():
            record = layer.get(path)
            if record is None or record.quiet:
                continue
            b = base.find(path)
            if b is None or roles.is_output(path, b.kind == DIRECTORY):
                continue
            h = head.find(path)
            if h is None or h.kind != b.kind or record.opaque or (h.kind == LINK and not same(b, h)):
                return True
    return False


def built_on(
    version: int,
    newest_made: int,
    base: Chain,
    head: Chain,
    newer: Sequence[Layer],
    times: Sequence[LayerTimes],
    roles: Roles,
) -> tuple[Notice, ...]:
    """Make the notice `built_on` if work on `version` has files on the source route that may have been made
    from inputs that differ in the head.

    Args:
        newest_made: the time of the newest such file that no `file_write` or `file_edit` wrote; 0: there is
            none.
        times: of the newer layers.
    """
    if not newest_made or not any(
        one.removes or (one.oldest_input or newest_made) < newest_made for one in times
    ):
        return ()
    found = list(dict.fromkeys(_unseen(newest_made, base, head, newer, roles)))
    if not found:
        return ()
    more = len(found) - LISTED_MAX if len(found) > LISTED_MAX else None
    return (Notice("built_on", "", version=version, unseen=tuple(sorted(found)[:LISTED_MAX]), more=more),)


def _unseen(
    newest_made: int, base: Chain, head: Chain, newer: Sequence[Layer], roles: Roles
) -> Iterator[str]:
    looked_at = 0
    for layer in newer:
        for path in layer.paths():
            looked_at += 1
            if looked_at > LOOKED_AT_MAX:
                return
            record = layer.get(path)
            if record is None or record.quiet or (record.kind == DIRECTORY and not record.opaque):
                continue
            b, h = base.find(path), head.find(path)
            shown = b if h is None else h
            if shown is None or in_git_directory(path) or roles.is_output(path, shown.kind == DIRECTORY):
                continue
            if h is None or h.kind != FILE:
                if b is not None and (h is None or h.kind != b.kind):
                    yield path
            elif h.times[1] < newest_made and (b is None or not same(b, h)):
                yield path
