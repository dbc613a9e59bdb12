"""Conflicts that a rebase resolves: the sides that the caller chooses, and the result for each path."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from layerstack.model.conflict import path_json
from layerstack.model.paths import ancestors

REFUSE, MARKERS, OURS, THEIRS = "refuse", "markers", "ours", "theirs"
SIDES = (REFUSE, MARKERS, OURS, THEIRS)


class Choice(NamedTuple):
    """Sides to take where the session (ours) and the head (theirs) are in conflict."""

    on_conflict: str = REFUSE
    paths: Mapping[str, str] = MappingProxyType({})
    """Sides of single paths; the side of a directory applies to everything in it."""
    label: str = "ours"
    """Name of the session's side in conflict markers."""

    def side(self, path: str) -> str:
        """Give the side of a path."""
        if self.paths:
            for at in (path, *reversed(ancestors(path))):
                if at in self.paths:
                    return self.paths[at]
        return self.on_conflict


class ResolvedConflict(NamedTuple):
    """A conflict that was resolved. Neither side is lost: `resolution` names the side that is now at the
    path, or is `markers`; the other side is at `kept_as`.
    """

    path: str
    cls: str
    resolution: str
    kept_as: str | None = None
    """None: the other side has nothing at the path, or the text with markers contains it."""
    why: str | None = None
    """Reason why a side was taken although markers were requested: not_text, too_large, marker_length,
    no_text.
    """
    theirs_version: int | None = None

    def to_json(self) -> dict[str, Any]:
        found: dict[str, Any] = {
            **path_json(self.path),
            "class": self.cls,
            "resolution": self.resolution,
        }
        if self.kept_as is not None:
            kept = path_json(self.kept_as)
            found["kept_as"] = kept["path"]
            if "path_b64" in kept:
                found["kept_as_b64"] = kept["path_b64"]
        if self.why is not None:
            found["why"] = self.why
        if self.theirs_version is not None:
            found["theirs_version"] = self.theirs_version
        return found


Unresolved = Mapping[str, tuple[str, ...]]
"""Path -> the marker lines that a rebase wrote into its file."""
NOTHING_UNRESOLVED: Unresolved = MappingProxyType({})
