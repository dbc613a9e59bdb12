"""Rooms and names: every import points to its own level or down, nothing is imported in a circle, and one
name is one thing.
"""

from __future__ import annotations

import ast
import os
import re

import pytest

from tests import levels

PACKAGES = tuple(levels.LEVELS)
ENTRY_POINTS = {"__init__", "__main__"}


@pytest.mark.parametrize("package", PACKAGES)
def test_every_import_points_to_its_own_level_or_down(package: str) -> None:
    bad = levels.upward(package)
    assert not bad, "\n".join(
        f"{a.module}:{a.line} imports {a.target}, which is on a level above it" for a in bad
    )


@pytest.mark.parametrize("package", PACKAGES)
def test_no_module_is_in_a_circle_of_imports_of_any_kind(package: str) -> None:
    """At load time, inside a function, for types: each counts."""
    targets: dict[str, set[str]] = {}
    for arrow in levels.arrows(package):
        if arrow.target != package:
            targets.setdefault(arrow.module, set()).add(arrow.target)
    done: set[str] = set()

    def visit(module: str, path: list[str]) -> None:
        assert module not in path, (
            f"a circle of imports: {' -> '.join([*path[path.index(module) :], module])}"
        )
        if module not in done:
            for target in sorted(targets.get(module, ())):
                visit(target, [*path, module])
            done.add(module)

    for module in sorted(targets):
        visit(module, [])


@pytest.mark.parametrize("package", PACKAGES)
def test_each_room_says_what_it_is_for_and_what_it_imports(package: str) -> None:
    for module, path in levels.modules(package).items():
        if os.path.basename(path) == "__init__.py" and module.count(".") == 1:
            with open(path, encoding="utf-8") as file:
                text = ast.get_docstring(ast.parse(file.read())) or ""
            assert "Imports " in text and len(text) > 60, (
                f"{path}: says not what the room is for and what it imports"
            )


@pytest.mark.parametrize("package", PACKAGES)
def test_the_imports_that_a_room_names_are_rooms_below_it_and_none_is_above_them(package: str) -> None:
    level = {room: n for n, rooms in enumerate(levels.LEVELS[package]) for room in rooms}
    highest: dict[str, int] = {}
    for arrow in levels.arrows(package):
        room, target = levels.room_of(arrow.module), levels.room_of(arrow.target)
        if level[target] < level[room]:
            highest[room] = max(highest.get(room, 0), level[target])
    for module, path in levels.modules(package).items():
        if os.path.basename(path) != "__init__.py" or module.count(".") != 1:
            continue
        with open(path, encoding="utf-8") as file:
            text = (ast.get_docstring(ast.parse(file.read())) or "").split("Imports ")[1].split(";")[0]
        own = levels.room_of(module)
        named = [level.get(word) for word in re.findall(r"`(\w+)`", text) if word in level or "." not in word]
        if "every" not in text and "rooms that a command" not in text and named:
            assert all(n is not None and n < level[own] for n in named), f"{path}: {text}"
            assert highest.get(own, 0) <= max(n for n in named if n is not None), f"{path}: {text}"


@pytest.mark.parametrize("package", PACKAGES)
def test_no_file_name_occurs_twice_in_a_package(package: str) -> None:
    seen: dict[str, str] = {}
    for path in levels.modules(package).values():
        name = os.path.basename(path).removesuffix(".py")
        if name not in ENTRY_POINTS:
            assert name not in seen, f"{path} and {seen[name]}"
            seen[name] = path


def test_no_class_name_occurs_twice() -> None:
    seen: dict[str, str] = {}
    for package in PACKAGES:
        for path in levels.modules(package).values():
            with open(path, encoding="utf-8") as file:
                tree = ast.parse(file.read())
            for node in ast.walk(tree):
                if isinstance(node, ast.ClassDef):
                    here = f"{path}:{node.lineno}"
                    assert node.name not in seen, f"class {node.name}: {here} and {seen[node.name]}"
                    seen[node.name] = here


IMPORT = re.compile(r"^[ \t]*(?:from\s+\S+\s+)?import\s+(?:\([^)]*\)|[^\n]*)", re.MULTILINE)


def test_no_test_module_imports_another() -> None:
    """A helper that two modules need is in a module without `test_`, named for what it is."""
    bad: list[str] = []
    for folder, _, files in os.walk(os.path.join(levels.ROOT, "tests")):
        for file in sorted(files):
            if file.endswith(".py"):
                with open(os.path.join(folder, file), encoding="utf-8") as source:
                    found = IMPORT.findall(source.read())
                bad += [f"{folder}/{file}: {text}" for text in found if re.search(r"\btest_\w", text)]
    assert not bad, "\n".join(bad)
