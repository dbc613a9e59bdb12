"""docs/confinement.md shows what the table tries, in its order, and nothing that the table does not allow."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

from tests.end_to_end import guards
from tests.eos_agent import attacks, escapes

ROOT = Path(__file__).resolve().parent.parent
PAGE = (ROOT / "docs/confinement.md").read_text()
SESSIONS, _, BESIDE = PAGE.partition("## Beside sessions")


def maker() -> ModuleType:
    spec = importlib.util.spec_from_file_location("make_confinement", ROOT / "docs/make_confinement.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def shown(page: str = SESSIONS) -> dict[str, list[str]]:
    """Name of a row -> mark, a cell for each kind of session, the reason. Beside sessions: a cell for each
    provider, the reason.
    """
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in page.splitlines()
        if line.startswith("| ")
    ]
    return {row[0]: row[1:] for row in rows if row[0]}


def test_the_table_tries_forty_calls_and_twenty_ways_out_in_every_kind_of_session() -> None:
    for kind in escapes.KINDS:
        rows = escapes.rows_of(kind)
        assert (
            len(rows.keys() & escapes.CALLS.keys()) >= 40 and len(rows.keys() & escapes.ESCAPES.keys()) >= 20
        )


def test_the_page_is_made_of_the_rows_that_are_tried_and_of_what_may_come_out() -> None:
    found = shown()
    assert list(found) == list(escapes.ROWS), "run: python docs/make_confinement.py"
    for name, (mark, *cells, why) in found.items():
        row = escapes.ROWS[name]
        assert (mark == "✓") == isinstance(row.attack, attacks.Plain) and why == row.why
        for kind, cell in zip(escapes.KINDS, cells, strict=True):
            expected = row.expects(kind)
            assert (cell == "–") == (expected is None), f"{name} in {kind}: {cell}"
            assert expected is None or {"works": "ok", "open": "ok"}.get(cell, cell) in expected, (
                f"{name} in {kind}: {cell}"
            )


def test_the_guards_beside_sessions_are_those_that_are_tried_and_say_what_may_come_out() -> None:
    found = shown(BESIDE)
    assert list(found) == list(guards.ROWS), "run: python docs/make_confinement.py"
    for name, (*cells, why) in found.items():
        row = guards.ROWS[name]
        assert why == row.why
        for provider, cell in zip(guards.PROVIDERS, cells, strict=True):
            assert cell in row.expected if provider in row.providers else cell == "–", (
                f"{name} in {provider}: {cell}"
            )


def test_what_is_open_by_design_says_why() -> None:
    for name, (_, *cells, why) in shown().items():
        assert "open" not in cells or why, name


def test_the_rest_of_the_page_is_what_its_maker_writes() -> None:
    results = {kind: {name: "ok" if cell in ("works", "open") else cell for name, (_, *cells, _) in shown().items() for k, cell in zip(escapes.KINDS, cells, strict=True) if k == kind} for kind in escapes.KINDS}  # fmt: skip  # noqa: E501
    for provider, column in zip(
        guards.PROVIDERS, zip(*(cells for *cells, _ in shown(BESIDE).values()), strict=True), strict=True
    ):
        results.setdefault(provider, {}).update(zip(guards.ROWS, column, strict=True))
    assert maker().page(results) == PAGE, "run: python docs/make_confinement.py"


@pytest.mark.parametrize("name", ["README.md", "docs/architecture.md"])
def test_the_boundary_is_stated_and_the_page_is_named(name: str) -> None:
    text = (ROOT / name).read_text()
    assert (
        "cooperating agents on one user's machine, not for hostile tenants" in text
        and "confinement.md" in text
    )
