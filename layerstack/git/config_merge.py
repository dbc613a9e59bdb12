"""Merge git's configuration by key. The file of ours keeps its form; what the head changed is written into it
with the head's own lines.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from layerstack.git.git_config import ConfigKey, ConfigPiece, ConfigSyntax, GitConfig, section_header

_MULTIPLE = re.compile(
    r"(?:remote\..*\.(?:fetch|push|url|pushurl)|branch\..*\.merge|credential\..*helper|credential\.helper"
    r"|include\.path|includeif\..*\.path|safe\.directory|url\..*\.(?:pushinsteadof|insteadof)"
    r"|http\..*extraheader|transfer\.hiderefs|notes\.(?:displayref|rewriteref)|log\.excludedecoration"
    r"|push\.pushoption|versionsort\.suffix)",
    re.DOTALL,
)
"""Keys that have several values by their meaning: two that both sides added stand beside each other."""
_LAST_WRITER = frozenset((b"user", b"author", b"committer", b"gui", b"gitk"))
"""Sections about the person at work: of two new values the last writer's stays."""


class ConfigMerge(NamedTuple):
    """The merged file, or why there is none."""

    content: bytes | None
    """None when there are conflicts, or when the file is absent in the result."""
    conflicts: tuple[str, ...] = ()
    """`config: section.key` for each key with two new values; `config: line N` of a side that git could not
    read.
    """
    replaced: tuple[str, ...] = ()
    """Keys of which ours replaces a new value of the head."""


def merge_configs(base: bytes | None, ours: bytes | None, head: bytes | None) -> ConfigMerge:
    """Merge the file of three states; None is absent.

    Raises:
        GitRefused: a file is beyond the limit.
    """
    if ours == head or head == base:
        return ConfigMerge(ours)
    if base == ours:
        return ConfigMerge(head)
    try:
        sides = [GitConfig.parse(data or b"") for data in (base, ours, head)]
    except ConfigSyntax as error:
        return ConfigMerge(None, (f"config: line {error.line}",))
    return _ConfigMerger(*sides).merge()


Lines = list[ConfigPiece]


class _ConfigMerger:
    def __init__(self, base: GitConfig, ours: GitConfig, head: GitConfig) -> None:
        self.ours = ours
        self.by_key = [_by_key(side) for side in (base, ours, head)]
        self.pieces: list[ConfigPiece] = list(ours.pieces)
        self.conflicts: list[str] = []
        self.replaced: list[str] = []

    def merge(self) -> ConfigMerge:
        order = dict.fromkeys(key for side in (1, 2, 0) for key in self.by_key[side])
        for key in order:
            base, ours, head = (side.get(key, []) for side in self.by_key)
            wanted = self._decided(key, base, ours, head)
            if wanted is not ours:
                self._write(key, ours, wanted)
        if self.conflicts:
            return ConfigMerge(None, tuple(self.conflicts))
        content = b"".join(piece.raw for piece in self.pieces)
        return ConfigMerge(content, (), tuple(self.replaced))

    def _decided(self, key: ConfigKey, base: Lines, ours: Lines, head: Lines) -> Lines:
        b, o, h = (_values(lines) for lines in (base, ours, head))
        if h in (o, b):
            return ours
        if o == b:
            return head
        if max(map(len, (b, o, h))) > 1 or _MULTIPLE.fullmatch(key.text) is not None:
            kept = [line for line in ours if line.value not in b or line.value in h]
            return kept + [line for line in head if line.value not in b and line.value not in o]
        if key.section == b"branch" and not (o and h):
            return ours or head  # a branch that one side deleted and the other uses stays, with its settings
        if key.section in _LAST_WRITER:
            self.replaced.append(key.text)
            return ours
        self.conflicts.append(f"config: {key.text}")
        return ours

    def _write(self, key: ConfigKey, ours: Lines, wanted: Lines) -> None:
        """Replace the lines of a key in their places; further ones follow the last line of the section."""
        places = [n for n, piece in enumerate(self.pieces) if piece.key == key]
        same = len(ours) == len(wanted)
        new: list[ConfigPiece] = []
        if same:
            for place, piece in zip(places, wanted, strict=True):
                self.pieces[place] = _ended(piece)
            return
        left = list(wanted)
        gone: list[int] = []
        for place in places:
            match = next((one for one in left if one.value == self.pieces[place].value), None)
            if match is None:
                gone.append(place)
            else:
                left.remove(match)
        new = left
        for place in reversed(gone):
            self._remove(place)
        if new:
            self._add(key, new)

    def _remove(self, place: int) -> None:
        """Remove a line with the blanks before it; a header on the same line keeps its end of line."""
        before = self.pieces[place - 1] if place else None
        if before is not None and before.key is None and not before.opens and not before.raw.strip():
            self.pieces[place - 1] = before._replace(raw=before.raw.rstrip(b" \t"))
        so_far = b"".join(piece.raw for piece in self.pieces[max(0, place - 2) : place])
        end = b"" if not so_far or so_far.endswith(b"\n") else b"\n"
        self.pieces[place] = ConfigPiece(end, self.pieces[place].section)

    def _add(self, key: ConfigKey, lines: Lines) -> None:
        section = key.section, key.subsection
        text = b"".join(b"\t" + _ended(line).raw for line in lines)
        last = max(
            (
                n
                for n, piece in enumerate(self.pieces)
                if piece.section == section and (piece.opens or piece.key)
            ),
            default=None,
        )
        if last is None:
            if self.pieces and not self.pieces[-1].raw.endswith(b"\n"):
                self.pieces[-1] = self.pieces[-1]._replace(raw=self.pieces[-1].raw + b"\n")
            self.pieces.append(ConfigPiece(section_header(*section) + b"\n", section, opens=True))
            self.pieces.append(ConfigPiece(text, section, key))
            return
        before = self.pieces[last]
        if not before.raw.endswith(b"\n"):
            text = b"\n" + text
        self.pieces.insert(last + 1, ConfigPiece(text, section, key))


def _by_key(config: GitConfig) -> dict[ConfigKey, Lines]:
    found: dict[ConfigKey, Lines] = {}
    for piece in config.pieces:
        if piece.key is not None:
            found.setdefault(piece.key, []).append(piece)
    return found


def _values(lines: Lines) -> list[bytes | None]:
    return [line.value for line in lines]


def _ended(piece: ConfigPiece) -> ConfigPiece:
    return piece if piece.raw.endswith(b"\n") else piece._replace(raw=piece.raw + b"\n")
