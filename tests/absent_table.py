"""The table of docs/protocol.md: kinds of errors about what is absent."""

from __future__ import annotations

import os
import re
from typing import NamedTuple

PAGE = os.path.join(os.path.dirname(os.path.dirname(__file__)), "docs", "protocol.md")


class Row(NamedTuple):
    absent: str
    kind: str
    reason: str
    operation: str


def table() -> list[Row]:
    """The rows of the table, one for each operation."""
    with open(PAGE, encoding="utf-8") as file:
        section = file.read().partition("### Kinds of what is absent")[2].partition("\n### ")[0]
    rows = re.findall(r"^\| (\w+) \| `(\w+)` \| `(\w+)` \| (.*) \|$", section, re.MULTILINE)
    return [
        Row(absent, kind, reason, name) for absent, kind, reason, names in rows for name in names.split(", ")
    ]
