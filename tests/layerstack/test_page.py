"""The page of the public API: its examples run in both xattr namespaces and are typed, it names every noun
with every field, and no word is unexplained.
"""

from __future__ import annotations

import contextlib
import inspect
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import layerstack
from layerstack import store
from layerstack.fsck import check
from layerstack.history import versions
from layerstack.kernel import fsync
from layerstack.session import upper
from tests import in_namespace
from tests.layerstack.store_fixture import NAMESPACE_PARAMS

ROOT = Path(__file__).resolve().parent.parent.parent
PAGE = (ROOT / "docs/layerstack.md").read_text()
_BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_PARTS = _BLOCK.split(PAGE)
CODE = "".join("\n" + part if n % 2 else "\n" * part.count("\n") for n, part in enumerate(_PARTS))
"""The blocks, each on the lines that it has in the page."""
MODULES = (
    check,
    versions,
    store,
    upper,
)  # loaded before the child becomes somebody who may not read the checkout


def sections() -> dict[str, str]:
    """Noun -> what the page says about it."""
    nouns = PAGE.partition("\n## The nouns\n")[2].partition("\n## ")[0]
    return dict(re.findall(r"^### `(\w+)`\n(.*?)(?=^### |\Z)", nouns, re.MULTILINE | re.DOTALL))


def named(text: str) -> set[str]:
    return set(re.findall(r"`([a-z_]+)`", text))


def glossary() -> set[str]:
    rows = re.findall(r"^\| ([^|]+) \|", PAGE.partition("\n## Words\n")[2], re.MULTILINE)
    return {word.strip() for row in rows for word in row.split(",")}


def words(name: str) -> set[str]:
    return {word.lower() for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", name)}


def fields(noun: str) -> set[str]:
    thing = getattr(layerstack, noun)
    return set(getattr(thing, "_fields", ())) if inspect.isclass(thing) else set()


def run() -> None:
    for noun in layerstack.__all__:
        getattr(layerstack, noun)
    scope: dict[str, Any] = {"__name__": "page"}
    try:
        exec(compile(CODE, "docs/layerstack.md", "exec"), scope)
    finally:
        with contextlib.suppress(Exception):
            scope["store"].close()
        fsync.remove_tree(scope["folder"])


@pytest.mark.parametrize("namespace", NAMESPACE_PARAMS)
def test_the_examples_run_from_top_to_bottom(namespace: str) -> None:
    assert CODE.count("assert") >= 20
    in_namespace.call(namespace, run)


def test_the_examples_are_typed(tmp_path: Path) -> None:
    assert (ROOT / "layerstack/py.typed").is_file()
    program = tmp_path / "page.py"
    program.write_text(CODE)
    argv = [
        sys.executable,
        "-m",
        "mypy",
        "--strict",
        "--no-error-summary",
        "--cache-dir",
        str(ROOT / ".mypy_cache"),
        str(program),
    ]
    done = subprocess.run(
        argv,
        cwd=ROOT,
        capture_output=True,
        text=True,
        env={**os.environ, "MYPYPATH": f"{ROOT}:{ROOT}/agent_image"},
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_noun_has_a_section_with_every_field_and_no_other() -> None:
    found = sections()
    assert set(found) == set(layerstack.__all__)
    for noun, text in found.items():
        missing = fields(noun) - named(text)
        assert not missing, f"{noun}: {missing}"


CALLS = {
    "Store": r"^\| ((?:`\w+`(?:, )?)+) \|",
    "Upper": r"^\| ((?:`\w+`(?:, )?)+) \|",
}


def calls(noun: str) -> list[str]:
    """The first column of a noun's table."""
    return [
        name
        for row in re.findall(CALLS[noun], sections()[noun], re.MULTILINE)
        for name in re.findall(r"\w+", row)
    ]


@pytest.mark.parametrize("noun", sorted(CALLS))
def test_every_call_that_the_page_names_is_there(noun: str) -> None:
    assert len(calls(noun)) > 8
    for name in calls(noun):
        assert hasattr(getattr(layerstack, noun), name), f"{noun}.{name}"


def test_every_public_noun_and_every_member_of_one_says_what_it_is() -> None:
    """`to_json` apart, which says it by its name."""
    silent: list[str] = []
    for noun in layerstack.__all__:
        thing = getattr(layerstack, noun)
        if inspect.isclass(thing) or inspect.isfunction(thing):
            text = inspect.getdoc(thing) or ""
            if len(text) < 15 or text.startswith(f"{noun}("):
                silent.append(noun)
        kinds = (
            [kind for kind in thing.__mro__ if kind.__module__.startswith("layerstack")]
            if inspect.isclass(thing)
            else []
        )
        for name, member in ((name, member) for kind in kinds for name, member in vars(kind).items()):
            function = member.fget if isinstance(member, property) else getattr(member, "__func__", member)
            if name.startswith("_") or name == "to_json" or not inspect.isfunction(function):
                continue
            promise = (inspect.getdoc(function) or "").partition("\n")[0]
            if not promise or promise.startswith(("Raises", "Args", "Returns:")):
                silent.append(f"{noun}.{name}")
    assert not silent, silent


def test_no_word_of_the_api_is_missing_from_the_glossary() -> None:
    known = glossary()
    assert len(known) > 100
    used: dict[str, str] = {}
    for noun in layerstack.__all__:
        for name in (noun, *fields(noun), *(calls(noun) if noun in CALLS else ())):
            used.update(dict.fromkeys(words(name), f"{noun}.{name}"))
    unknown = {word: where for word, where in used.items() if word not in known}
    assert not unknown, unknown
