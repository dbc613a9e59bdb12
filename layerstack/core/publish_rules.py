"""The choices that a publish leaves to the embedding program."""

from __future__ import annotations

from typing import NamedTuple

from layerstack.units.units import Kind


class PublishRules(NamedTuple):
    """Where a publish may decide as the reference system does; `Stack.rules` holds for every plan made from
    then on.
    """

    merge_adjacent: bool = False
    """Merge edits of neighbouring lines; without it they are a conflict."""
    units: tuple[Kind, ...] = ()
    """Units beside the built-in ones."""


DEFAULT = PublishRules()
