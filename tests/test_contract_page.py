"""docs/contract.md: the citations of code and tests lead to its sections, its lists are those of the code."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from eos_mcp import catalog
from eos_mcp.config.model import BUILT_IN_PROFILES

ROOT = Path(__file__).resolve().parent.parent
PAGE = (ROOT / "docs/contract.md").read_text()
SECTIONS = set(re.findall(r"^#+ (\d+(?:\.\d+)*)[. ]", PAGE, re.MULTILINE)) | set(
    re.findall(r"^## Appendix (\w)\.", PAGE, re.MULTILINE)
)
CITED = re.compile(
    r"\bcontract(?: section)?,? (?P<one>\d+(?:\.\d+)*|Appendix \w)(?: (?:and|to) (?P<two>\d+(?:\.\d+)*))?",
    re.IGNORECASE,
)


def sources() -> Iterator[Path]:
    for folder in ("layerstack", "agent_image", "eos_mcp", "tests", "docs"):
        yield from (p for p in (ROOT / folder).rglob("*") if p.suffix in (".py", ".c", ".md") and p.is_file())


def test_each_section_that_is_cited_is_there() -> None:
    found: dict[str, str] = {}
    for path in sources():
        for match in CITED.finditer(path.read_text()):
            for number in filter(None, match.groups()):
                found[number.removeprefix("Appendix ")] = f"{path.relative_to(ROOT)}: {match[0]}"
    assert len(found) > 12
    missing = {where for number, where in found.items() if number not in SECTIONS}
    assert not missing, missing


def test_the_operations_of_the_reference_are_those_of_the_catalog_in_its_order() -> None:
    rows = dict(
        re.findall(
            r"^\| (manager|runtime|observability) \| (`.*) \|$", PAGE.partition("### 1.0")[2], re.MULTILINE
        )
    )
    for domain, operations in catalog.DOMAINS.items():
        assert re.findall(r"`(\w+)`", rows[domain]) == [o.name for o in operations if not o.ours]


def test_the_tokens_of_messages_are_in_the_sources() -> None:
    code = "\n".join(
        p.read_text()
        for p in sources()
        if p.suffix == ".py" and p.relative_to(ROOT).parts[0] not in ("tests", "docs")
    )
    tokens = re.findall(r"`([^`]+)`", PAGE.partition("## Appendix A")[2].partition("## Appendix C")[0])
    assert len(tokens) > 12
    for token in tokens:
        plain = re.sub(r": [A-Z]+$", "", token).replace("262144", "{max_bytes}")
        assert plain in code, token


def test_the_profiles_have_their_numbers() -> None:
    for name, profile in BUILT_IN_PROFILES.items():
        row = re.search(rf"^\| `{name}` \| (\d+) \| (\S+ \S+), (\S+ \S+) \| (\d+) \|$", PAGE, re.MULTILINE)
        assert row, name

        def size(text: str) -> int:
            number, unit = text.split()
            return int(number) << {"MiB": 20, "GiB": 30}[unit]

        assert (int(row[1]) * 10**9, size(row[2]), size(row[3]), int(row[4])) == (
            profile.nano_cpus,
            profile.memory_high_bytes,
            profile.memory_max_bytes,
            profile.pids_max,
        )
