"""Calls and ids that a text of the server names, as a model reads them out of it. No I/O."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

IDS = ("sandbox_id", "workspace_session_id", "command_session_id", "draft_id", "checkpoint_id")
"""Arguments whose values a model can only know from a text."""

_VALUE = r"((?=[\w.-]*\d)[\w.-]*\w)"
_NAMED = re.compile(rf"\b({'|'.join(IDS)})\"?(?:: ?| |=)\"?{_VALUE}")
_PASSED_AS = re.compile(rf"\bsession {_VALUE}\b[^\n]*?pass it as (workspace_session_id)")
_CREATED = re.compile(rf"pass the id as (sandbox_id)\n{_VALUE}")
_DRAFT = re.compile(r"\b(draft-[0-9a-f]{8,})\b")
_GIVEN = re.compile(r"(?: with)? (\w+)=([^\s;,]+)")
_WITH = re.compile(r" with (\w+)")
_AGAIN = re.compile(r"\bcall again with (\w+)=([^\s;,]+)")


class Call(NamedTuple):
    """A call that a text names; `arguments` are those that the text gives."""

    tool: str
    arguments: dict[str, Any]


def ids_in(text: str) -> dict[str, str]:
    """Name of each argument that takes an id -> the last such id in the text."""
    found: dict[str, str] = dict(_NAMED.findall(text))
    found |= {name: value for value, name in _PASSED_AS.findall(text)}
    found |= dict(_CREATED.findall(text))
    for draft in _DRAFT.findall(text):
        found["draft_id"] = draft
    return found


def calls_in(text: str, tools: Mapping[str, Sequence[str]], last: str) -> list[Call]:
    """Calls that the text names, those of its `next:` lines first, each in the text's order.

    Args:
        tools: name of each tool -> the names of its arguments.
        last: the tool whose answer the text is, for "call again with".
    """
    names = re.compile(rf"\b({'|'.join(sorted(tools, key=len, reverse=True))})\b")
    first: list[Call] = []
    rest: list[Call] = []
    for line in text.split("\n"):
        found = [
            Call(match[1], _arguments(line[match.end() :], tools[match[1]])) for match in names.finditer(line)
        ]
        found += [Call(last, {name: _plain(value)}) for name, value in _AGAIN.findall(line)]
        (first if line.startswith("next: ") else rest).extend(found)
    return first + rest


def _arguments(text: str, known: Sequence[str]) -> dict[str, Any]:
    """Arguments at the start of the rest of a line: JSON, `name=value` words, or `with NAME`."""
    if text.lstrip().startswith("{"):
        given: dict[str, Any] = json.JSONDecoder().raw_decode(text.lstrip())[0]
        return given
    found: dict[str, Any] = {}
    at = 0
    while (match := _GIVEN.match(text, at)) is not None and match[1] in known:
        found[match[1]], at = _plain(match[2]), match.end()
    if not found and (match := _WITH.match(text)) is not None and match[1] in known:
        found[match[1]] = None  # the reader has its value from another text
    return found


def _plain(value: str) -> int | str:
    return int(value) if re.fullmatch(r"-?\d+", value) else value
