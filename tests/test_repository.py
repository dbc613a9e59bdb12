"""What lies in the repository: nothing of a builder's machine, nothing left over, and a README whose commands
exist.
"""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import tomllib
from collections.abc import Iterator

import pytest

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
LEFT_OUT = {
    ".git",
    ".venv",
    ".tools",
    "__pycache__",
    ".pytest_cache",
    ".mypy_cache",
    ".ruff_cache",
    ".hypothesis",
    "dist",
    "build",
}

COMMON = {"/", "/tmp", "/var/tmp", "/opt", "/srv", "/usr/src", "/home", "/root", "/mnt"}
"""Folders that say nothing about one machine."""


def repository_files() -> list[str]:
    """What git tracks, relative; without git, what stands there, caches left out."""
    done = subprocess.run(
        ["git", "-c", "safe.directory=*", "ls-files", "-z"],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
    )
    if done.returncode == 0 and done.stdout:
        return [
            name
            for name in done.stdout.decode().split("\0")
            if name and os.path.isfile(os.path.join(ROOT, name))
        ]
    found: list[str] = []
    for directory, names, files in os.walk(ROOT):
        names[:] = [n for n in names if n not in LEFT_OUT and not n.endswith(".egg-info")]
        found += [os.path.relpath(os.path.join(directory, file), ROOT) for file in files]
    return found


FILES = sorted(repository_files())


def text_of(name: str) -> str:
    with open(os.path.join(ROOT, name), "rb") as file:
        return file.read().decode("utf-8", "replace")


def lines() -> Iterator[tuple[str, int, str]]:
    for name in FILES:
        for number, line in enumerate(text_of(name).split("\n"), 1):
            yield name, number, line


def test_no_line_names_a_place_of_the_machine_it_was_written_on() -> None:
    """Home directories and this checkout's own place; a path that the product documents begins elsewhere."""
    homes = re.compile(r"(?<![\w.<$~/}-])/(?:home|Users|root)/(?!\.)[\w-]+")
    around = re.compile(
        r"(?<![\w./~$}-])"
        + re.escape(os.path.dirname(ROOT) if os.path.dirname(ROOT) not in COMMON else ROOT)
        + "/"
    )
    own = os.path.join("tests", os.path.basename(__file__))
    allowed = re.compile(r"/home/(?:you|me|user|alice|ada|dev|agent)\b|/Users/(?:you|me)\b|/root/\.")
    bad = [
        f"{name}:{number}: {line.strip()[:120]}"
        for name, number, line in lines()
        if name != own and ((homes.search(line) and not allowed.search(line)) or around.search(line))
    ]
    assert not bad, "\n".join(bad)


def test_nothing_is_left_over_from_an_edit_or_a_merge() -> None:
    suffixes = (".orig", ".rej", ".swp", ".bak", "~", ".pyc", ".log")
    bad = [name for name in FILES if name.endswith(suffixes)]
    marks = re.compile(r"^(<{7} |>{7} |\|{7} )")
    bad += [f"{name}:{number}" for name, number, line in lines() if marks.match(line)]
    assert not bad, bad


def test_no_work_is_left_for_later_in_the_sources() -> None:
    """What does not work is absent, or says so in an error with a reason."""
    word = re.compile(r"\b(TODO|FIXME|XXX|NotImplementedError)\b")
    sources = [
        n
        for n in FILES
        if n.endswith((".py", ".sh")) and n.startswith(("layerstack/", "agent_image/", "eos_mcp/", "bin/"))
    ]
    sources = [n for n in sources if not n.startswith("eos_mcp/demo/project/")]
    bad = [
        f"{n}:{i}: {line.strip()}"
        for n in sources
        for i, line in enumerate(text_of(n).split("\n"), 1)
        if word.search(line)
    ]
    assert not bad, "\n".join(bad)


def test_names_of_tests_are_words_and_have_no_keys_to_other_lists() -> None:
    """A name such as `test_w1_...` or `test_pitfall_7_...` points to a list that a reader does not have."""
    key = re.compile(r"^ *(?:async )?def (test_(?:pitfall_[0-9]+|[cflmpwx][0-9]{1,2})_\w*)", re.MULTILINE)
    found: list[str] = []
    for name in repository_files():
        if name.startswith("tests/") and name.endswith(".py"):
            with open(os.path.join(ROOT, name), encoding="utf-8") as file:
                found += [f"{name}: {test}" for test in key.findall(file.read())]
    assert not found, found


def test_no_file_is_large() -> None:
    large = {name: os.path.getsize(os.path.join(ROOT, name)) for name in FILES}
    bad = {name: size for name, size in large.items() if size > 400_000}
    assert not bad, bad


@pytest.mark.parametrize("name", ["requirements.lock", "docs/requirements.lock"])
def test_a_lock_file_holds_hashes_and_no_addresses(name: str) -> None:
    text = text_of(name)
    assert "://" not in text and "--index-url" not in text and "--find-links" not in text
    blocks = re.split(r"\n(?=[A-Za-z0-9])", text)
    bare = [block.split()[0] for block in blocks if "==" in block and "--hash=sha256:" not in block]
    assert not bare, bare


def pyproject() -> dict[str, dict[str, dict[str, str]]]:
    return tomllib.loads(text_of("pyproject.toml"))


def test_every_requirement_is_in_the_lock_file() -> None:
    project = pyproject()["project"]
    locked = {
        re.split(r"[=\[ ]", line)[0].lower()
        for line in text_of("requirements.lock").split("\n")
        if "==" in line
    }
    wanted = [
        *project["dependencies"],
        *project["optional-dependencies"]["dev"],
        *pyproject()["build-system"]["requires"],
    ]
    assert all(
        f"\n{name.partition('>')[0]}==" in text_of("docs/requirements.lock")
        for name in project["optional-dependencies"]["docs"]
    )
    missing = [w for w in wanted if re.split(r"[<>=!~\[; ]", w)[0].lower() not in locked]
    assert not missing, missing


def test_every_console_script_points_to_a_function() -> None:
    bad: list[str] = []
    for name, target in pyproject()["project"]["scripts"].items():
        module, _, function = target.partition(":")
        try:
            spec = importlib.util.find_spec(module)
        except ModuleNotFoundError:
            spec = None
        source = spec.origin if spec else None
        if source is None or not re.search(
            rf"^(async )?def {function}\b|\b{function}\b.*=|import .*\b{function}\b",
            open_text(source),
            re.MULTILINE,
        ):
            bad.append(f"{name} = {target}")
    assert not bad, bad


def open_text(path: str) -> str:
    with open(path) as file:
        return file.read()


def command_blocks(name: str) -> list[str]:
    """The lines of fenced blocks in a shell's language; continued lines joined."""
    blocks = re.findall(r"```(?:sh|bash|console|shell)\n(.*?)```", text_of(name), re.DOTALL)
    return [
        line.removeprefix("$ ")
        for block in blocks
        for line in block.replace("\\\n", " ").split("\n")
        if line.strip()
    ]


def documents() -> list[str]:
    return [name for name in FILES if name.endswith(".md") and ("/" not in name or name.startswith("docs/"))]


@pytest.mark.parametrize("name", documents())
def test_the_commands_that_a_document_names_exist(name: str) -> None:
    targets = set(re.findall(r"^([a-z]+):", text_of("Makefile"), re.MULTILINE))
    scripts = set(pyproject()["project"]["scripts"])
    bad: list[str] = []
    for line in command_blocks(name):
        words = line.split("#")[0].split()
        for at, word in enumerate(words):
            first = at == 0 or words[at - 1] in ("&&", "|", ";", "||")
            if first and word == "make" and at + 1 < len(words) and words[at + 1].rstrip(";") not in targets:
                bad.append(line)
            plain = os.path.basename(word)
            if (
                first
                and re.match(r"(sandbox-|eos)", plain)
                and plain not in scripts
                and not os.path.exists(os.path.join(ROOT, word))
            ):
                bad.append(line)
            if word.startswith(
                ("bin/", "./bin/", "tests/", "examples/", "config/", ".ci/")
            ) and not os.path.exists(os.path.join(ROOT, word)):
                bad.append(line)
            ours = (
                word == "-m"
                and at > 0
                and "python" in words[at - 1]
                and words[at + 1].split(".")[0] in ("eos_mcp", "benchmarks", "eos_agent")
            )
            if ours and importlib.util.find_spec(words[at + 1]) is None:
                bad.append(line)
    assert not bad, "\n".join(bad)


@pytest.mark.parametrize("name", documents())
def test_the_links_of_a_document_lead_somewhere(name: str) -> None:
    folder = os.path.dirname(os.path.join(ROOT, name))
    found = re.findall(r"\]\((?!https?:|mailto:|#)([^)#\s]+)[^)]*\)", text_of(name))
    bad = [link for link in found if not os.path.exists(os.path.join(folder, link))]
    assert not bad, bad


@pytest.mark.parametrize("name", [name for name in documents() if not name.startswith("docs/adr/0")])
def test_the_files_that_a_document_names_exist(name: str) -> None:
    """Names with a path from the top, or of a package; records of decisions may name what was."""
    named = re.findall(
        r"(?<![\w./-])((?:layerstack|eos_agent|eos_mcp|agent_image|tests|docs|benchmarks|examples)/[\w./-]+\.(?:py|c|md|toml))\b",
        text_of(name),
    )
    bad = [
        path
        for path in named
        if not any(os.path.exists(os.path.join(ROOT, top, path)) for top in ("", "agent_image"))
    ]
    assert not bad, bad
