"""The records in docs/adr: title, status line, and a row for each in the list."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parent.parent / "docs" / "adr"
RECORDS = {path.name[:4]: path for path in sorted(FOLDER.glob("[0-9][0-9][0-9][0-9]-*.md"))}
LIST = (FOLDER / "README.md").read_text()
ONE = r"\d{4}(?: \([^)]+\))?"
STATUS = re.compile(rf"Status: ((?:proposed|accepted|superseded by {ONE}(?: and {ONE})*)(?:;.+)?)\.")


def head(number: str) -> tuple[str, str]:
    """(title, status) of a record."""
    title, empty, status, rest, *_ = RECORDS[number].read_text().split("\n")
    assert title.startswith(f"# {number} ") and (empty, rest) == ("", ""), RECORDS[number].name
    found = STATUS.fullmatch(status)
    assert found, f"{RECORDS[number].name}: {status}"
    return title.removeprefix(f"# {number} "), found[1]


@pytest.mark.parametrize("number", RECORDS)
def test_a_record_has_a_title_and_a_status_and_stands_in_the_list_with_both(number: str) -> None:
    title, status = head(number)
    assert f"| [{number}]({RECORDS[number].name}) | {title} | {status} |" in LIST.splitlines()


def test_the_list_is_in_order_and_names_each_number_that_has_no_record() -> None:
    listed = re.findall(r"^\| \[(\d{4})\]", LIST, re.MULTILINE)
    assert listed == list(RECORDS)
    missing = {f"{n:04}" for n in range(1, int(listed[-1]) + 1)} - set(listed)
    named = set(re.findall(r"\b\d{4}\b", LIST.partition("## Numbers without a record")[2]))
    assert named == missing


def test_records_that_amend_each_other_say_so_on_both_sides() -> None:
    def named(status: str, word: str) -> set[str]:
        found = re.search(rf"\b{word}((?: and|,)? ?\d{{4}}(?: \([^)]*\))?)+", status)
        return set(re.findall(r"\d{4}", found[0])) if found else set()

    for number in RECORDS:
        for other in named(head(number)[1], "amends"):
            assert number in named(head(other)[1], "amended by"), f"{other} does not name {number}"
        for other in named(head(number)[1], "amended by"):
            assert number in named(head(other)[1], "amends"), f"{other} does not name {number}"
