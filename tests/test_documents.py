"""Pages that say what the code says: the operations are those of the catalog, and every reason that the code
gives is explained.
"""

from __future__ import annotations

import ast
import importlib.util
import os
import re
from collections.abc import Iterator
from types import ModuleType

import pytest

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def read(name: str) -> str:
    with open(os.path.join(ROOT, name), encoding="utf-8") as file:
        return file.read()


def maker() -> ModuleType:
    spec = importlib.util.spec_from_file_location(
        "make_operations", os.path.join(ROOT, "docs/make_operations.py")
    )
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def sources() -> Iterator[tuple[str, ast.Module]]:
    for top in ("layerstack", "agent_image/eos_agent", "eos_mcp"):
        for folder, _, files in os.walk(os.path.join(ROOT, top)):
            for file in files:
                if file.endswith(".py"):
                    name = os.path.relpath(os.path.join(folder, file), ROOT)
                    yield name, ast.parse(read(name))


def reasons() -> dict[str, str]:
    """Every literal that becomes a reason -> where it stands: `reason=` of a call, the second argument of
    `refused`, the first of `Problem`, a class's own.
    """
    found: dict[str, str] = {}
    for name, tree in sources():
        for node in ast.walk(tree):
            values: list[ast.expr] = []
            if isinstance(node, ast.Call):
                values += [keyword.value for keyword in node.keywords if keyword.arg == "reason"]
                called = ast.unparse(node.func).rpartition(".")[2]
                place = {"refused": 1, "Problem": 0, "keep": 1}.get(called)
                values += node.args[place : place + 1] if place is not None else []
            elif isinstance(node, ast.Dict):
                values += [
                    v
                    for k, v in zip(node.keys, node.values, strict=True)
                    if isinstance(k, ast.Constant) and k.value == "reason"
                ]
            elif isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) in (
                "reason",
                "details['reason']",
                "refused.details['reason']",
            ):
                values.append(node.value)
            for value in values:
                for part in (value.body, value.orelse) if isinstance(value, ast.IfExp) else (value,):
                    if (
                        isinstance(part, ast.Constant)
                        and isinstance(part.value, str)
                        and re.fullmatch(r"[a-z][a-z0-9_]+", part.value)
                    ):
                        found[part.value] = f"{name}:{part.lineno}"
    return found


def test_the_page_of_operations_is_what_the_catalog_gives() -> None:
    assert read("docs/operations.md") == maker().page(), "run: python docs/make_operations.py"


def test_every_reason_is_explained_in_the_page_of_the_protocol() -> None:
    found = reasons()
    assert len(found) > 100
    page = read("docs/protocol.md")
    missing = [f"{reason} ({where})" for reason, where in sorted(found.items()) if f"`{reason}`" not in page]
    assert not missing, "add a row to docs/protocol.md for: " + ", ".join(missing)


@pytest.mark.parametrize(
    "name", ["README.md", "docs/architecture.md", "docs/protocol.md", "docs/on-disk-format.md"]
)
def test_the_sections_that_a_link_names_exist(name: str) -> None:
    for link, section in re.findall(r"\]\(([^)#\s:]*)#([^)]+)\)", read(name)):
        page = read(os.path.normpath(os.path.join(os.path.dirname(name), link))) if link else read(name)
        titles = [
            re.sub(r"[^a-z0-9_ -]", "", title.lower()).replace(" ", "-")
            for title in re.findall(r"^#+ (.+)$", page, re.MULTILINE)
        ]
        assert section in titles, f"{name}: {link}#{section}"
