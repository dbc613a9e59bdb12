"""Owners of lines as values, and the file in which a squashed layer keeps them: for each path its owner, or its ranges."""

from __future__ import annotations

import os
from typing import NamedTuple

from layerstack import documents

SUFFIX = ".blame"


class Range(NamedTuple):
    """Neighbouring lines of one owner."""

    start_line: int
    """From 1."""
    line_count: int
    owner: str
    """As the layer's metadata has it: `workspace_session:<id>`, `operation:<request_id>`; or `original`, `unknown`."""


Answer = tuple[Range, ...]
Folded = Answer | str
"""What a squashed layer remembers of a path: who wrote its text, or every line's owner."""


def dump(ranges: dict[str, Folded]) -> bytes:
    """The bytes of `<id>.blame`: owners by number; per path its owner, or [count, owner] for each range."""
    owners = sorted({owner for told in ranges.values() for owner in ([told] if isinstance(told, str) else [r.owner for r in told])})
    number = {owner: n for n, owner in enumerate(owners)}
    rows: dict[str, int | list[list[int]]] = {}
    for path, told in sorted(ranges.items()):
        name = os.fsencode(path).decode("latin-1")
        rows[name] = number[told] if isinstance(told, str) else [[r.line_count, number[r.owner]] for r in told]
    return documents.dump({"owners": owners, "paths": rows})


def load(path: str) -> dict[str, Folded]:
    """The inverse of `dump`. Raises StoreCorrupt, naming the file."""
    body = documents.read(path)
    owners: list[str] = body["owners"]
    found: dict[str, Folded] = {}
    for name, rows in body["paths"].items():
        path = os.fsdecode(name.encode("latin-1"))
        if isinstance(rows, int):
            found[path] = owners[rows]
            continue
        at, ranges = 1, list[Range]()
        for count, owner in rows:
            ranges.append(Range(at, count, owners[owner]))
            at += count
        found[path] = tuple(ranges)
    return found
