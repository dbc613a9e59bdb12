"""Who imports whom: layerstack <- eos_agent <- eos_mcp, read from the sources; an import that points up is
named.
"""

from __future__ import annotations

import ast
import functools
import importlib.metadata
import os
import re
import sys
from collections.abc import Iterator
from typing import NamedTuple

import pytest

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
PACKAGES = {"layerstack": "layerstack", "eos_agent": "agent_image/eos_agent", "eos_mcp": "eos_mcp"}
PURE = {
    "errors",
    "export.pax",
    *(
        f"model.{name}"
        for name in (
            "cancel",
            "conflict",
            "git_temporary",
            "lease",
            "manifest",
            "paths",
            "run_table",
            "spread_times",
        )
    ),
    *(f"text.{name}" for name in ("build_roles", "gitignore", "lines", "merge", "myers", "wildmatch")),
    "kernel.tempnames",
}
"""Modules of layerstack without I/O: what the host may take."""
QUICK = ("eos_mcp.gateway_client.sync", "eos_mcp.catalog", "eos_mcp.config.paths", "eos_mcp.cli")
"""What runs in each CLI process before its request is sent: the standard library only, and nothing slow of
it.
"""
COMPANIONS = {"mcp_types", "opentelemetry", "starlette", "uvicorn", "pydantic_core", "requests"}
"""What the declared distributions are made of and show to their callers: `requests` is what docker-py's
exceptions are.
"""
SLOW = {"argparse", "asyncio", "dataclasses", "uuid", "inspect", "multiprocessing", "concurrent.futures"}


class Import(NamedTuple):
    """One imported module, and where."""

    module: str
    target: str
    line: int
    late: bool
    """Inside a function, or for type checkers only: not paid for at start-up."""


def _sources(package: str) -> Iterator[tuple[str, str]]:
    """(module name, file) of every module of a package, the demo's own project left out."""
    folder = os.path.join(ROOT, PACKAGES[package])
    for directory, names, files in os.walk(folder):
        names[:] = sorted(
            n for n in names if n != "__pycache__" and (os.path.basename(directory), n) != ("demo", "project")
        )
        for file in sorted(files):
            if file.endswith(".py"):
                below = os.path.relpath(os.path.join(directory, file), folder)[: -len(".py")]
                parts = [package, *below.split(os.sep)]
                yield (
                    ".".join(parts[:-1] if parts[-1] == "__init__" else parts),
                    os.path.join(directory, file),
                )


def _is_type_checking(test: ast.expr) -> bool:
    return (isinstance(test, ast.Name) and test.id == "TYPE_CHECKING") or (
        isinstance(test, ast.Attribute) and test.attr == "TYPE_CHECKING"
    )


def imports_of(module: str, path: str, modules: set[str]) -> list[Import]:
    """`from a import b` counts as a.b when that is a module of ours, else as a."""
    with open(path, "rb") as file:
        tree = ast.parse(file.read(), path)
    package = module if path.endswith("__init__.py") else module.rpartition(".")[0]
    found: list[Import] = []

    def visit(node: ast.AST, late: bool) -> None:
        children: list[ast.AST] = list(ast.iter_child_nodes(node))
        if isinstance(node, ast.Import):
            found.extend(Import(module, alias.name, node.lineno, late) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                above = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*above, *([base] if base else [])])
            for alias in node.names:
                longer = f"{base}.{alias.name}"
                found.append(Import(module, longer if longer in modules else base, node.lineno, late))
        if isinstance(node, ast.If) and _is_type_checking(node.test):
            guarded = list[ast.AST](node.body)
            for child in children:
                visit(child, late or child in guarded)
            return
        inner = late or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        for child in children:
            visit(child, inner)

    visit(tree, False)
    return found


FILES = {module: path for package in PACKAGES for module, path in _sources(package)}


@functools.cache
def all_imports() -> dict[str, list[Import]]:
    """Of every module, read once, and only where these tests run: each process of a run collects them."""
    return {module: imports_of(module, path, set(FILES)) for module, path in FILES.items()}


def top(module: str) -> str:
    return module.partition(".")[0]


def distributions() -> dict[str, set[str]]:
    """Import names of what pyproject.toml lists as needed at run time: import name -> the names under which
    it is listed.
    """
    listed: set[str] = set()
    for requirement in importlib.metadata.requires("eos-mcp") or []:
        if "extra ==" not in requirement or "fast" in requirement:
            listed.add(re.split(r"[<>=!~;\[ ]", requirement)[0].lower())
    names: dict[str, set[str]] = {}
    for name, providers in importlib.metadata.packages_distributions().items():
        needed = {p.lower() for p in providers} & listed
        if needed:
            names[name] = needed
    return names


def wrong(imports: list[Import]) -> str:
    return "\n".join(f"{i.module} imports {i.target} (line {i.line})" for i in imports)


def test_layerstack_imports_the_standard_library_only() -> None:
    bad = [
        i
        for module, found in all_imports().items()
        if top(module) == "layerstack"
        for i in found
        if top(i.target) not in {*sys.stdlib_module_names, "layerstack"}
    ]
    assert not bad, wrong(bad)


def test_the_agent_imports_the_standard_library_layerstack_and_h11_for_http_only() -> None:
    allowed = {*sys.stdlib_module_names, "eos_agent", "layerstack"}
    found = [i for module, all_of in all_imports().items() if top(module) == "eos_agent" for i in all_of]
    bad = [i for i in found if top(i.target) not in allowed]
    bad = [i for i in bad if (i.module, i.target) != ("eos_agent.http.peer", "h11")]
    assert not bad, wrong(bad)
    early = [i for i in found if i.target == "eos_agent.http.peer" and not i.late]
    assert not early, f"h11 would be loaded with the agent:\n{wrong(early)}"


def test_the_host_takes_only_what_works_on_any_system_from_below_and_declared_distributions() -> None:
    """The pure modules, `beneath`, which opens nothing on other systems, and `fsync`: a file of the host is
    replaced by the same rename as one of the store.
    """
    allowed_below = {
        "layerstack",
        "eos_agent",
        "eos_agent.wire.namedtuple",
        "eos_agent.wire.proof",
        "eos_agent.wire.protocol",
        "eos_agent.machine.neighbours",
        "eos_agent.machine.private_dirs",
        "eos_agent.machine.secret_paths",
        *(
            f"eos_agent.wire.{name}"
            for name in ("arguments", "operation", "operations", "operations_files", "operations_observe")
        ),
        "layerstack.kernel.base_entry",
        "layerstack.kernel.beneath",
        "layerstack.kernel.base_xattrs",
        "layerstack.kernel.content",
        "layerstack.kernel.fsync",
        *(f"layerstack.{name}" for name in PURE),
    }
    third_party = distributions()
    bad: list[Import] = []
    for module, found in all_imports().items():
        if top(module) != "eos_mcp":
            continue
        for i in found:
            if top(i.target) in ("eos_agent", "layerstack", "agent_image"):
                if i.target not in {*allowed_below, "agent_image", "agent_image.build"}:
                    bad.append(i)
            elif top(i.target) not in {
                *sys.stdlib_module_names,
                "eos_mcp",
                *third_party,
                *COMPANIONS,
            }:
                bad.append(i)
    assert not bad, wrong(bad)


def test_pure_modules_of_layerstack_import_pure_modules_only() -> None:
    bad = [
        i
        for name in PURE
        for i in all_imports()[f"layerstack.{name}"]
        if top(i.target) == "layerstack" and i.target.partition(".")[2] not in PURE
    ]
    assert not bad, wrong(bad)


@pytest.mark.parametrize("foundation", ["syscalls", "fsync"])
def test_the_foundations_of_layerstack_know_nothing_above_them(foundation: str) -> None:
    below = {f"layerstack.{name}" for name in (*PURE, "kernel.syscalls")} | {"layerstack"}
    bad = [
        i
        for i in all_imports()[f"layerstack.kernel.{foundation}"]
        if top(i.target) == "layerstack" and i.target not in below
    ]
    assert not bad, wrong(bad)


def test_the_agent_is_imported_under_one_name() -> None:
    bad = [
        i for found in all_imports().values() for i in found if i.target.startswith("agent_image.eos_agent")
    ]
    for folder in ("tests", "benchmarks", "examples", "agent_image"):
        for directory, _, files in os.walk(os.path.join(ROOT, folder)):
            for file in files:
                if file.endswith(".py"):
                    path = os.path.join(directory, file)
                    with open(path, encoding="utf-8") as source:
                        if "agent_image" not in source.read():
                            continue
                    found = imports_of(os.path.relpath(path, ROOT), path, {"agent_image.eos_agent"})
                    bad += [i for i in found if i.target.startswith("agent_image.eos_agent")]
    assert not bad, wrong(bad)


def quick_modules() -> list[str]:
    return [module for module in FILES if any(module == q or module.startswith(q + ".") for q in QUICK)]


def test_a_command_line_program_starts_with_nothing_slow() -> None:
    """Everything that is imported before main() runs, followed through our own modules."""
    bad: list[Import] = []
    waiting, seen = quick_modules(), set[str]()
    while waiting:
        module = waiting.pop()
        if module in seen:
            continue
        seen.add(module)
        for i in all_imports()[module]:
            if i.late:
                continue
            if i.target in FILES:
                waiting.append(i.target)
                while "." in i.target and (parent := i.target.rpartition(".")[0]) in FILES:
                    waiting.append(parent)
                    i = i._replace(target=parent)
            elif top(i.target) not in sys.stdlib_module_names or i.target in SLOW or top(i.target) in SLOW:
                bad.append(i)
    assert not bad, wrong(bad)


def test_the_client_uses_the_standard_library_only_even_late() -> None:
    own = {"eos_mcp", "eos_agent", "layerstack"}
    modules = [module for module in quick_modules() if not module.startswith("eos_mcp.cli")]
    bad = [
        i
        for module in modules
        for i in all_imports()[module]
        if top(i.target) not in {*sys.stdlib_module_names, *own}
    ]
    assert not bad, wrong(bad)
