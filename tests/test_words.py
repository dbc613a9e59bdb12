"""Words: the text of the product keeps the rule of prose in docs/style.md, room by room.

A finding is a phrase of `PHRASES` in a docstring, a comment, a message or a page, or a docstring whose first
word is in `OPENINGS` or that opens with a question. No room has one. Print the findings of a room:

    python -m tests.test_words eos_mcp/cli
"""

from __future__ import annotations

import ast
import functools
import io
import os
import re
import sys
import tokenize
from collections.abc import Iterator
from typing import NamedTuple

import pytest

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
SOURCES = {
    "layerstack": "layerstack",
    "eos_agent": "agent_image/eos_agent",
    "agent_image": "agent_image",
    "eos_mcp": "eos_mcp",
}
"""Name of a package in a room's name, and its directory."""
PHRASES = {
    "somebody": r"somebody",
    "nobody": r"nobody",
    "told": r"told",
    "is no": r"(?<!there )is no (?!longer\b|more\b|less\b)",
    "anew": r"anew",
    "meanwhile": r"meanwhile",
    "seal": r"seal(s|ed|ing)?\b(?!, sealed work| work \|)",
    "shelf": r"shel(f|ves)(?! \|)",
    "set apart": r"set apart(?!, give up)",
    "folded away": r"folded away",
    "squashed away": r"squashed away",
    "private layer": r"private layers?\b(?!, carried work)",
    "stands on": r"(stands|stood) on\b(?!, leave)",
    "whoever": r"whoever",
    "everybody": r"everybody",
    "of before": r"of before\b",
    "none any more": r"none any more",
    "taken back": r"(takes?|took|taken) back",
    "of now": r"of (now|then)\b",
    "says so": r"says so\b",
    "in vain": r"in vain\b",
    "went on": r"(?<!stand still, )(go|goes|going|went) on\b",
    "on its way": r"on its way\b",
    "bears": r"bears?\b",
    "lies below": r"lies? below\b",
    "lies in": r"l(ies|ie|ay) (in|beside|around|there)\b",
    "in the meantime": r"in the meantime\b",
    "thrown away": r"thr[eo]wn? away\b",
    "came out": r"c[oa]mes? out\b",
    "what came of": r"what (came|comes|became) of\b",
    "hung up": r"hung up\b",
    "stands by": r"stands by\b",
    "are no": r"(?<!there )are no (?!longer\b|more\b|less\b)",
}
"""Name of each phrase and its expression. `there is no` and `is no longer` are ordinary English; the glossary
quotes words that it replaces.
"""
OPENINGS = re.compile(
    r"(what|whether|whos?e?|whom|which|how|when|where|why|is|are|was|does|did|says|tells|gives"
    r"|that|those|these|its?|they|them|there|so|of"
    r"|also|any|because|else|if|never|no|not|others|otherwise|same|still|too|unless|we"
    r"|about|above|across|after|against|among|at|before|behind|below|beneath|beside|between|beyond|by"
    r"|during|for|from|in|inside|into|on|onto|outside|over|since|through|to|towards?"
    r"|under|until|upon|with|within|without)(?![\w'-])",
    re.IGNORECASE,
)
"""First words that hide the subject of a docstring: interrogatives, other verb forms, pronouns, adverbs,
conjunctions, prepositions.
"""
_PHRASE = re.compile(
    "|".join(f"(?P<p{number}>\\b{body})" for number, body in enumerate(PHRASES.values())), re.IGNORECASE
)
_BLANKS = str.maketrans("\n\r\t", "   ")
_QUESTION = re.compile(r"[^.:;]*\?")
_CODE = re.compile(r"```.*?```|~~~.*?~~~|``[^`]+``|`[^`\n]*`|\]\([^)\s]*\)", re.DOTALL)
_C_TEXT = re.compile(r"/\*.*?\*/|//[^\n]*|\"(?:\\.|[^\"\\\n])*\"", re.DOTALL)


class Finding(NamedTuple):
    """One place that breaks the rule."""

    file: str
    line: int
    rule: str
    text: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.rule}: {self.text}"


def phrases_in(file: str, line: int, text: str) -> Iterator[Finding]:
    """Findings of `PHRASES` in a text that starts at `line`; quoted code is left out."""
    plain = _CODE.sub(lambda found: re.sub(r"[^\n]", "`", found.group()), text)
    for found in _PHRASE.finditer(plain.translate(_BLANKS)):
        before, after = max(0, found.start() - 40), found.end() + 30
        rule = list(PHRASES)[int((found.lastgroup or "p0")[1:])]
        yield Finding(
            file, line + text.count("\n", 0, found.start()), rule, " ".join(text[before:after].split())
        )


def strings_of(tree: ast.AST) -> tuple[list[tuple[int, str]], list[tuple[int, str]]]:
    """Docstrings (of modules, classes, functions, attributes) and messages, each with its line.

    A message is any other literal of at least three words; the constant parts of an f-string are joined.
    """
    docs: list[tuple[int, str]] = []
    messages: list[tuple[int, str]] = []
    seen: set[int] = set()
    for node in ast.walk(tree):  # a parent comes before its children
        if (
            isinstance(node, ast.Expr)
            and isinstance(node.value, ast.Constant)
            and isinstance(node.value.value, str)
        ):
            seen.add(id(node.value))
            docs.append((node.lineno, node.value.value))
        elif isinstance(node, ast.JoinedStr):
            seen.update(map(id, node.values))
            messages.append(
                (
                    node.lineno,
                    "".join(
                        str(part.value) if isinstance(part, ast.Constant) else "{}" for part in node.values
                    ),
                )
            )
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in seen:
            messages.append((node.lineno, node.value))
    return docs, [(line, text) for line, text in messages if len(text.split()) >= 3]


def opening_of(docstring: str) -> str | None:
    """Rule that the first words of a docstring break."""
    word = OPENINGS.match(docstring.lstrip())
    if word is not None:
        return f"opens with {word.group()}"
    return "opens with a question" if _QUESTION.match(docstring) is not None else None


def python_findings(file: str, source: str) -> Iterator[Finding]:
    docs, messages = strings_of(ast.parse(source, file))
    for line, text in docs:
        if (opening := opening_of(text)) is not None:
            yield Finding(file, line, opening, " ".join(text.split())[:70])
    for line, text in docs + messages:
        yield from phrases_in(file, line, text)
    if any("#" in line and _PHRASE.search(line, line.index("#")) for line in source.split("\n")):
        for token in tokenize.generate_tokens(io.StringIO(source).readline):
            if token.type == tokenize.COMMENT:
                yield from phrases_in(file, token.start[0], token.string)


def c_findings(file: str, source: str) -> Iterator[Finding]:
    for found in _C_TEXT.finditer(source):
        yield from phrases_in(file, 1 + source.count("\n", 0, found.start()), found.group())


def page_findings(file: str, source: str) -> Iterator[Finding]:
    """Phrases of a page, without its code and its quotations (lines that begin with `>`)."""
    text = "\n".join("" if line.lstrip().startswith(">") else line for line in source.split("\n"))
    yield from phrases_in(file, 1, text)


def room_of(path: str) -> str:
    """Package and first directory below it; a page is a room of its own."""
    for name in ("eos_agent", "layerstack", "eos_mcp", "agent_image"):
        folder = SOURCES[name] + "/"
        if path.startswith(folder):
            below = path[len(folder) :].split("/")
            return f"{name}/{below[0]}" if len(below) > 1 else name
    return path


def files() -> Iterator[str]:
    """Sources and pages, relative to the repository.

    Decision records, the text of the contract and the demo's sample project are exempt.
    """
    for folder in ("layerstack", "agent_image", "eos_mcp"):
        for directory, names, found in os.walk(os.path.join(ROOT, folder)):
            names[:] = sorted(
                n
                for n in names
                if n != "__pycache__" and (os.path.basename(directory), n) != ("demo", "project")
            )
            for file in sorted(found):
                if file.endswith((".py", ".c", ".h")):
                    yield os.path.relpath(os.path.join(directory, file), ROOT).replace(os.sep, "/")
    yield from ("README.md", "CONTRIBUTING.md")
    pages = sorted(os.listdir(os.path.join(ROOT, "docs")))
    yield from (f"docs/{name}" for name in pages if name.endswith(".md") and name != "contract.md")


@functools.cache
def findings() -> dict[str, list[Finding]]:
    """Findings of each room; a room without one has an empty list."""
    out: dict[str, list[Finding]] = {}
    for path in files():
        with open(os.path.join(ROOT, path), encoding="utf-8") as file:
            source = file.read()
        read = (
            python_findings if path.endswith(".py") else page_findings if path.endswith(".md") else c_findings
        )
        out.setdefault(room_of(path), []).extend(read(path, source))
    return out


def test_no_room_has_a_forbidden_phrase_or_a_docstring_that_hides_its_subject() -> None:
    found = [str(one) for those in findings().values() for one in those]
    assert not found, f"{len(found)} findings; docs/style.md, Prose, has the rule:\n" + "\n".join(found[:60])


@pytest.mark.parametrize(
    ("source", "rules"),
    [
        ('"""What a lease is."""', ["opens with What"]),
        ('"""Do the words say so?"""', ["opens with a question"]),
        ('x = 1\n"""Of a published layer its rank."""', ["opens with Of"]),
        ('"""Its entry in the list."""', ["opens with Its"]),
        ('"""How far the walk is."""', ["opens with How"]),
        ('"""Not called in a task."""', ["opens with Not"]),
        ('"""No-op."""', []),
        ("x = 1  # the layers of now", ["of now"]),
        ('def f():\n    """In-memory tree."""', []),
        ("raise ValueError(f'{x} is no session of ours')", ["is no"]),
        ("raise ValueError('there is no session of this id')", []),
        ("x = 1  # somebody holds it", ["somebody"]),
        ('"""Return `told`."""', []),
        ('"""Report the state; nobody\nreads it."""', ["nobody"]),
        ("x = 'told'", []),
    ],
)
def test_the_rule_finds_openings_phrases_messages_and_comments(source: str, rules: list[str]) -> None:
    assert [one.rule for one in python_findings("x.py", source)] == rules


def test_the_rule_reads_pages_and_c_without_code_and_quotations() -> None:
    page = "# Title\n\n> nobody\n\n`told` and\n\n```\nanew\n```\n\nThis is\nno lease.\n"
    assert [(one.line, one.rule) for one in page_findings("x.md", page)] == [(11, "is no")]
    assert [(one.line, one.rule) for one in c_findings("x.c", "int told;\n/* told\n twice */\n")] == [
        (2, "told")
    ]


if __name__ == "__main__":
    for wanted in sys.argv[1:] or sorted(findings()):
        for one in findings().get(wanted, ()):
            print(one)
