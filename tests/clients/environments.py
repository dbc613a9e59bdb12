"""The environment of each client in the cache of this user, made with the package manager of the client's
language from the versions of `versions.toml`.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from tests import images, inspector, npm

HERE = os.path.dirname(os.path.abspath(__file__))
PROGRAMS = os.path.join(HERE, "programs")
INSTALL_S = 1500
_URL = re.compile(r"https?://[^\s'\"),`]+")
_STATUS = re.compile(r"\b(?:[45]\d\d(?: [A-Z][\w ]*)?|E[A-Z]{4,}|No matching distribution[^\n]*)")


class Recipe(NamedTuple):
    """One client of `versions.toml`."""

    name: str
    kind: str
    program: str
    requires: tuple[str, ...]


class NotFetched(Exception):
    """Error for a package that its registry did not give; the text names URL and status."""


def recipes() -> dict[str, Recipe]:
    """Name of each client -> its recipe."""
    with open(os.path.join(HERE, "versions.toml"), "rb") as file:
        table = tomllib.load(file)
    return {
        name: Recipe(name, row["kind"], row["program"], tuple(row["requires"])) for name, row in table.items()
    }


def command(recipe: Recipe) -> tuple[list[str], dict[str, str]]:
    """The words that start the client's program, and variables for its environment; made when missing.

    Raises:
        NotFetched: a package is not to be had.
    """
    key = hashlib.sha256(json.dumps(recipe).encode()).hexdigest()[:8]
    folder = os.path.join(images.cache_dir(), "clients", f"{recipe.name}-{key}")
    os.makedirs(folder, exist_ok=True)
    with open(f"{folder}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        return _KINDS[recipe.kind](recipe, folder)


def _pip(recipe: Recipe, folder: str) -> tuple[list[str], dict[str, str]]:
    python = os.path.join(folder, "bin", "python")
    if not os.path.exists(os.path.join(folder, "complete")):
        _run([sys.executable, "-m", "venv", "--clear", folder], folder)
        install = ["-m", "pip", "--disable-pip-version-check", "--no-input", "install", "--quiet"]
        _run([python, *install, *recipe.requires], folder)
        _mark(folder)
    return [python, os.path.join(PROGRAMS, recipe.program)], {}


def _npm(recipe: Recipe, folder: str) -> tuple[list[str], dict[str, str]]:
    node = inspector.node()
    path = npm.path_of(node)
    if not os.path.exists(os.path.join(folder, "complete")):
        with open(os.path.join(folder, "package.json"), "w") as file:
            json.dump({"name": "eos-tests", "private": True}, file)
        words = ["install", "--no-audit", "--no-fund", "--ignore-scripts", "--omit=dev"]
        program = os.path.join(os.path.dirname(node), "npm")
        _run([program, *words, *recipe.requires], folder, PATH=path)
        _mark(folder)
    # node looks for packages beside the program
    for name in (recipe.program, "tour.mjs"):
        shutil.copy(os.path.join(PROGRAMS, name), folder)
    return [node, os.path.join(folder, recipe.program)], {"PATH": path}


def _go(recipe: Recipe, folder: str) -> tuple[list[str], dict[str, str]]:
    source, binary = os.path.join(PROGRAMS, recipe.program), os.path.join(folder, "client")
    shutil.copytree(source, folder, dirs_exist_ok=True)
    if not os.path.exists(os.path.join(folder, "go.mod")):
        _run(["go", "mod", "init", "client"], folder)
    if not os.path.exists(os.path.join(folder, "complete")):
        _run(["go", "get", *recipe.requires], folder)
        _run(["go", "mod", "tidy"], folder)
        _mark(folder)
    _run(["go", "build", "-o", binary, "."], folder)
    return [binary], {}


def _cargo(recipe: Recipe, folder: str) -> tuple[list[str], dict[str, str]]:
    shutil.copytree(os.path.join(PROGRAMS, recipe.program), folder, dirs_exist_ok=True)
    with open(os.path.join(folder, "Cargo.toml")) as file:
        pinned = file.read()
    for requirement in recipe.requires:
        name, _, version = requirement.rpartition("@")
        pinned = pinned.replace(f'{name} = {{ version = "*"', f'{name} = {{ version = "={version}"')
    with open(os.path.join(folder, "Cargo.toml"), "w") as file:
        file.write(pinned)
    _run(["cargo", "build", "--quiet"], folder)
    return [os.path.join(folder, "target", "debug", "client")], {}


_KINDS = {"pip": _pip, "npm": _npm, "go": _go, "cargo": _cargo}


def _mark(folder: str) -> None:
    with open(os.path.join(folder, "complete"), "w"):
        pass


def _run(words: Sequence[str], folder: str, **more: str) -> None:
    try:
        done = subprocess.run(
            words,
            cwd=folder,
            env={**os.environ, **more},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=INSTALL_S,
        )
    except FileNotFoundError:
        raise NotFetched(f"not fetched: {words[0]} is not installed") from None
    if done.returncode != 0:
        raise NotFetched(_reason(words, done.stdout + done.stderr))


def _reason(words: Sequence[str], output: str) -> str:
    """The URL and the status in a package manager's complaint, else its last lines."""
    url, status = _URL.search(output), _STATUS.search(output)
    if status is None:
        return f"{' '.join(words)}: {output.strip()[-2000:]}"
    return f"not fetched: {url[0] if url is not None else ' '.join(words)}, {status[0]}"


def environment(more: Mapping[str, str]) -> dict[str, str]:
    """Variables for a client's program: those of this process without a Python of its own."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_"))}
    return {**kept, **more}


def number(name: str) -> int:
    """A number of the client's own."""
    return sorted(recipes()).index(name) + 10
