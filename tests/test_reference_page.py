"""The page of faults and complaints names tests that exist, and a test for each of them."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CASES = ["F2", "F4", "F7", "F9", "F17", "F20", "F21", "F22", "P2", "P3", "P4", "P10", "P11"]
ROWS = [*(f"W{n}" for n in range(1, 12)), *(f"L{n}" for n in range(1, 8)), *CASES]
FILES = (
    "tests/layerstack/test_reference_faults.py",
    "tests/eos_agent/test_reference_faults.py",
)

OF_ALL_ROWS = {
    "tests/eos_agent/test_reference_faults.py::test_each_choice_that_restores_the_references_commands_and_merges_is_heard_by_the_agent"
}
"""Tests of the configuration keys that restore the reference's behaviour, which belong to no single row."""


def named() -> dict[str, list[str]]:
    """Row of the page -> the tests that it names."""
    found: dict[str, list[str]] = {}
    for line in (ROOT / "docs/reference-faults.md").read_text().splitlines():
        if match := re.match(r"\| ([WLFP]\d+) \|", line):
            assert match[1] not in found, f"{match[1]} stands there twice"
            found[match[1]] = re.findall(r"`(tests/[^`]+::[^`]+)`", line)
    return found


def functions_of(path: str) -> set[str]:
    return {
        f"{path}::{node.name}"
        for node in ast.parse((ROOT / path).read_text()).body
        if isinstance(node, ast.FunctionDef)
    }


def test_each_fault_and_each_complaint_has_a_row_with_tests_that_exist() -> None:
    found = named()
    assert list(found) == ROWS
    for row, tests in found.items():
        assert tests, f"{row} names no test"
        for name in tests:
            path = name.partition("::")[0]
            assert (ROOT / path).is_file() and name in functions_of(path), f"{row}: no test {name}"


def test_each_test_of_one_is_named_by_a_row() -> None:
    listed = {name for tests in named().values() for name in tests}
    for path in FILES:
        for name in functions_of(path):
            if "::test_" in name and name not in OF_ALL_ROWS:
                assert name in listed, f"docs/reference-faults.md does not name {name}"
