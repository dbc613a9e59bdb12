"""The prose of the pages: lines that a review pane shows, and none of the words that docs/style.md rules
out.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
WIDTH = 110
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
ODD = re.compile(
    r"(?<![\w-])(somebody|nobody|anew|whoever|is told|are told|(?<!there )is no|(?<!there )are no|lies "
    r"in|lie in)\b(?!-)(?! (?:more|longer)\b)",
    re.IGNORECASE,
)


def prose(page: Path) -> Iterator[tuple[int, str]]:
    """(number, line) without code, comments, tables, headings, and lines that are one picture."""
    fenced = commented = False
    for number, line in enumerate(page.read_text().split("\n"), 1):
        if line.lstrip().startswith("```"):
            fenced = not fenced
            continue
        commented = commented or line.lstrip().startswith("<!--")
        if not fenced and not commented and not re.match(r"\s*(\||#|!\[[^\]]*\]\([^)]*\)$)", line):
            yield number, line
        commented = commented and "-->" not in line


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_lines_of_prose_are_short(page: Path) -> None:
    long = [f"{number}: {line}" for number, line in prose(page) if len(line) > WIDTH and " " in line.strip()]
    assert not long, "\n".join(long)


@pytest.mark.parametrize(
    "page", [p for p in PAGES if p.parent.name != "adr"], ids=lambda page: str(page.relative_to(ROOT))
)
def test_pages_use_plain_words(page: Path) -> None:
    """Records of decisions keep the words in which they were written; the glossary quotes some of these."""
    odd = [f"{number}: {line}" for number, line in prose(page) if ODD.search(line)]
    assert not odd, "\n".join(odd)
