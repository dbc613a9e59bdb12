"""The levels of the three packages: the imports that a room may have, and those that it has, read from the
sources.

A room is a sub-package; modules beside the sub-packages are a room of their own name. A module imports from
its own level and from lower ones. tests/test_rooms.py holds it; docs/make_pictures.py draws it.
"""

from __future__ import annotations

import ast
import functools
import os
from collections.abc import Iterator
from typing import NamedTuple

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
FOLDERS = {"layerstack": "layerstack", "eos_agent": "agent_image/eos_agent", "eos_mcp": "eos_mcp"}
LEVELS: dict[str, tuple[tuple[str, ...], ...]] = {
    "layerstack": (
        ("model", "errors"),
        ("text",),
        ("kernel",),
        ("tree",),
        ("layers",),
        ("units",),
        ("git",),
        ("core",),
        ("publish",),
        ("session",),
        ("history",),
        ("fsck",),
        ("squash",),
        ("export",),
        ("recovery",),
        ("stats",),
        ("store",),
        ("recover_one",),
    ),
    "eos_agent": (
        ("wire",),
        ("machine",),
        ("base",),
        ("ipc",),
        ("kernel",),
        ("files",),
        ("init",),
        ("zygote",),
        ("handles",),
        ("sessions",),
        ("observe",),
        ("serve",),
        ("http",),
        ("__main__",),
    ),
    "eos_mcp": (
        (".",),
        ("config",),
        ("catalog",),
        ("requests",),
        ("gateway_client",),
        ("agent_client",),
        ("record",),
        ("workspace",),
        ("providers",),
        ("export",),
        ("imports",),
        ("manager",),
        ("gateway",),
        ("mcp",),
        ("demo",),
        ("cli",),
        ("__main__",),
    ),
}
"""Package -> its levels, lowest first; a level is one room, or several that may import each other. "." is the
package's own `__init__`.
"""


class Arrow(NamedTuple):
    """One import of a module of the same package."""

    module: str
    line: int
    target: str


def room_of(module: str) -> str:
    """`layerstack.tree.disk.state` -> `tree`; `layerstack` -> `.`."""
    return module.split(".")[1] if "." in module else "."


def modules(package: str) -> dict[str, str]:
    """Return module -> file; the demo's sample project does not belong to the package."""
    top = os.path.join(ROOT, FOLDERS[package])
    found: dict[str, str] = {}
    for folder, names, files in os.walk(top):
        names[:] = sorted(
            n for n in names if n != "__pycache__" and (os.path.basename(folder), n) != ("demo", "project")
        )
        for file in sorted(files):
            if file.endswith(".py"):
                parts = [
                    package,
                    *os.path.relpath(os.path.join(folder, file), top)[: -len(".py")].split(os.sep),
                ]
                found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = os.path.join(folder, file)
    return found


def _imports(module: str, path: str, known: dict[str, str]) -> Iterator[Arrow]:
    """Yield every import of our modules in a file: at load time, inside a function, for types."""
    with open(path, "rb") as file:
        tree = ast.parse(file.read(), path)
    above = module.split(".") if path.endswith("__init__.py") else module.split(".")[:-1]
    for node in ast.walk(tree):
        targets: list[str] = []
        if isinstance(node, ast.Import):
            targets = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = (
                ".".join([*above[: len(above) - node.level + 1], *([node.module] if node.module else [])])
                if node.level
                else node.module or ""
            )
            targets = [
                f"{base}.{alias.name}" if f"{base}.{alias.name}" in known else base for alias in node.names
            ]
        for target in targets:
            if target in known and target != module:
                yield Arrow(module, getattr(node, "lineno", 0), target)


@functools.cache
def arrows(package: str) -> tuple[Arrow, ...]:
    """Return every import inside a package, without those of the package's own `__init__`, which loads names
    on use.
    """
    known = modules(package)
    return tuple(
        arrow
        for module, path in known.items()
        if module != package
        for arrow in _imports(module, path, known)
    )


def room_imports(package: str) -> dict[str, set[str]]:
    """Return room -> the rooms that it imports."""
    found: dict[str, set[str]] = {}
    for arrow in arrows(package):
        if (a := room_of(arrow.module)) != (b := room_of(arrow.target)):
            found.setdefault(a, set()).add(b)
    return found


def upward(package: str) -> list[Arrow]:
    """Return the imports that point up, or whose room has no level."""
    level = {room: n for n, rooms in enumerate(LEVELS[package]) for room in rooms}
    top = len(level)
    return [
        a for a in arrows(package) if level.get(room_of(a.target), top) > level.get(room_of(a.module), -1)
    ]
