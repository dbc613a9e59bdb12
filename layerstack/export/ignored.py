"""Paths of an export that git ignores, by the `.gitignore` files of the exported version: counted, and left
out on request.
"""

from __future__ import annotations

from typing import NamedTuple

from layerstack.layers.snapshot import Entry
from layerstack.model.paths import parent
from layerstack.text.gitignore import IgnoreRules

COUNT, EXCLUDE, MARK = "count", "exclude", "mark"
"""Send ignored paths and count them; count them only; count them, and send a mark for each that is not below
another, for a receiver that compares."""
TREATMENTS = (COUNT, EXCLUDE, MARK)

Changed = tuple[str, Entry | None, bool]
"""An item of `Snapshot.changed`."""


class IgnoredMark(NamedTuple):
    """An ignored path of which nothing else is sent."""

    path: str


class IgnoredPaths:
    """The ignored paths of one export. `files` and `bytes` count those met so far: files, symlinks and the
    content of files, each name of a file with several.
    """

    def __init__(self, rules: IgnoreRules, treatment: str) -> None:
        self._ignored = rules.ignored
        self.files_in = rules.files_in
        self.treatment = treatment
        self.files = self.bytes = 0

    @property
    def sends(self) -> bool:
        """True if the content of ignored paths is sent."""
        return self.treatment == COUNT

    def count(self, size: int) -> None:
        self.files += 1
        self.bytes += size

    def leaves_out(self, item: Changed, *, was_directory: bool = False) -> bool:
        """Count an entry, and return True if it is not sent.

        Args:
            was_directory: of a deleted path, what the base has at it.
        """
        path, entry, _ = item
        is_directory = was_directory if entry is None else entry.kind == "directory"
        if not path or not self._ignored(path, is_directory):
            return False
        if entry is not None and not is_directory:
            self.count(entry.size if entry.kind == "file" else 0)
        return not self.sends

    def below_ignored(self, path: str) -> bool:
        """Test that a directory above `path` is ignored."""
        above = parent(path)
        return bool(above) and self._ignored(above, True)

    def to_json(self) -> dict[str, int]:
        return {"files": self.files, "bytes": self.bytes}
