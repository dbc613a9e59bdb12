"""Help pages: the contract's layout, every operation, near misses."""

from __future__ import annotations

import pytest

from eos_mcp import catalog
from eos_mcp.cli import help as pages

PROGRAMS = {name: f"sandbox-{name}-cli" for name in catalog.DOMAINS}
SECTIONS = [
    "Family",
    "Description",
    "Effect",
    "Usage",
    "Arguments",
    "Result",
    "Examples",
    "Related Operations",
]


@pytest.mark.parametrize("domain", catalog.DOMAINS)
def test_the_catalog_page_names_every_operation_and_no_empty_family(domain: str) -> None:
    page = pages.catalog_page(domain, PROGRAMS[domain])
    lines = page.split("\n")
    assert (
        lines[:2] == [pages.TITLES[domain], ""] and page.endswith("OPERATION\n") and not page.endswith("\n\n")
    )
    for operation in catalog.DOMAINS[domain]:
        at = lines.index(f"  {operation.name}")
        assert lines[at + 1] == f"    {operation.summary}"
    used = {operation.family for operation in catalog.DOMAINS[domain]}
    for family in catalog.FAMILIES[domain]:
        assert family.id in used or family.title not in lines


def test_the_manager_page_is_grouped_as_its_manual_is() -> None:
    page = pages.catalog_page("manager", "sandbox-manager-cli")
    heads = [
        page.index(f"\n{title}\n") for title in ("Host discovery", "Sandbox lifecycle", "Layer delivery")
    ]
    assert heads == sorted(heads) and "squash_layerstacks" in page
    assert page.endswith("Use:\n  sandbox-manager-cli OPERATION\n")


def test_the_runtime_page_ends_with_its_scope() -> None:
    page = pages.catalog_page("runtime", "sandbox-runtime-cli")
    assert page.endswith("Use:\n  sandbox-runtime-cli --sandbox-id ID [--request-id VALUE] OPERATION\n")


@pytest.mark.parametrize("operation", catalog.ALL, ids=lambda o: o.name)
def test_an_operations_page_has_every_section_in_order(operation: catalog.Operation) -> None:
    page = pages.operation_page(operation, PROGRAMS[operation.domain])
    lines = page.split("\n")
    assert lines[:2] == [operation.name, ""]
    found = [lines.index(section) for section in SECTIONS]
    assert found == sorted(found)
    assert lines[lines.index("Effect") + 1] == ("  read-only" if operation.read_only else "  changes state")
    for argument in operation.arguments:
        assert (
            f"  {argument.label} {argument.kind} {'required' if argument.required else 'optional'}" in lines
        )
    if not operation.arguments:
        assert lines[lines.index("Arguments") + 1] == "  None"
    assert page.endswith("\n") and not page.endswith("\n\n")


def test_pages_that_scripts_look_at_name_their_flags() -> None:
    squash, export = catalog.find("squash_layerstacks"), catalog.find("export_changes")
    assert squash is not None and export is not None
    text = pages.operation_page(squash, "sandbox-manager-cli")
    assert "--sandbox-id" in text and "--progress" not in text
    text = pages.operation_page(export, "sandbox-manager-cli")
    assert all(flag in text for flag in ("--sandbox-id", "--dest", "--format")) and "    Default: dir" in text


def test_help_for_an_unknown_name_suggests_near_ones() -> None:
    error = pages.unknown_operation("stdin", "runtime", "sandbox-runtime-cli")
    assert error.message.startswith("unknown operation: stdin\n\nDid you mean:\n")
    assert "  write_command_stdin" in error.message and error.message.endswith("OPERATION")
    assert "Did you mean" not in pages.unknown_operation("qqq", "runtime", "sandbox-runtime-cli").message
