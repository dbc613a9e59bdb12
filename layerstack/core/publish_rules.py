"""The choices that a publish leaves to the embedding program."""

from __future__ import annotations

from typing import NamedTuple

from layerstack.units.units import Kind

REBASE, MERGE, BRANCH, OFF = GIT_MODES = ("rebase", "merge", "branch", "off")
"""Ways to publish commits of a branch that both sides moved; `off`: repositories are files like any other."""


class PublishRules(NamedTuple):
    """Options of a merge. A new value of `Stack.rules` applies to every plan made afterwards."""

    merge_adjacent: bool = False
    """Merge edits of neighbouring lines; without it they are a conflict."""
    units: tuple[Kind, ...] = ()
    """Kinds of units in addition to the built-in ones."""
    git: str = REBASE
    """One of GIT_MODES."""


DEFAULT = PublishRules()
