"""The tools of one server, and texts that name no other: an operation that its set lacks is named as the
command line runs it. Pure.

Hints are written by gateway and agent, which do not know the set of the client that reads them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from eos_mcp import catalog
from eos_mcp.mcp.json_values import Object, is_object, items

REBASE = "rebase_workspace_session"
_PROGRAMS = {
    "manager": "sandbox-manager-cli",
    "runtime": "sandbox-runtime-cli",
    "observability": "sandbox-observability-cli",
}
# A name of one word is an English word too.
_DOMAINS = {operation.name: operation.domain for operation in catalog.ALL if "_" in operation.name}
_NAME = re.compile(
    rf"(?<![\w./-])(?<!-cli )(?<!SANDBOX )({'|'.join(sorted(_DOMAINS, key=len, reverse=True))})(?![\w/])"
)
_ADVICE = frozenset({"hint", "warnings"})
"""Keys whose texts advise calls; any other text may be a user's own."""
_WITHIN = frozenset(
    {
        "error",
        "details",
        "publish_rejection",
        "conflicts",
        "unit",
        "finalization_error",
        "not_kept_open",
        "files",
        "stack",
        "sandboxes",
    }
)
"""Keys below which advice may be."""


class OfferedTools:
    """The tools of one server."""

    def __init__(self, names: Iterable[str]) -> None:
        self._names = frozenset(names)
        self._lacks = not self._names.issuperset(_DOMAINS)

    def has(self, name: str) -> bool:
        return name in self._names

    def text(self, text: str) -> str:
        """`text`, with the program of the command line before each operation that the set lacks."""
        return _NAME.sub(lambda found: self.named(found[1]), text) if self._lacks else text

    def named(self, name: str) -> str:
        """The operation's name, after that of its program if the set lacks it."""
        return name if name in self._names else f"{_PROGRAMS[_DOMAINS[name]]} {name}"

    def reply(self, reply: dict[str, Any]) -> dict[str, Any]:
        """`reply` with hints and warnings that name tools of this server; it is copied where it changes."""
        if not self._lacks or not any(key in reply for key in (*_ADVICE, *_WITHIN)):
            return reply
        found = self._within(reply)
        error = found.get("error")
        details = error.get("details") if is_object(error) else None
        if is_object(error) and is_object(details) and not self.has(REBASE) and _is_of_session(details):
            advice = by_hand(str(details.get("workspace_session_id")))
            found["error"] = {**error, "details": {**details, "hint": advice}}
        return found

    def _within(self, value: Object) -> dict[str, Any]:
        found = dict(value)
        for key in _ADVICE & found.keys():
            found[key] = self._advice(found[key])
        for key in _WITHIN & found.keys():
            inner = found[key]
            if is_object(inner):
                found[key] = self._within(inner)
            elif isinstance(inner, list):
                found[key] = [self._within(one) if is_object(one) else one for one in items(inner)]  # pyright: ignore[reportUnknownArgumentType]
        return found

    def _advice(self, value: Any) -> Any:
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, list):
            return [self.text(one) if isinstance(one, str) else one for one in items(value)]  # pyright: ignore[reportUnknownArgumentType]
        return value

    def definition(self, definition: dict[str, Any]) -> dict[str, Any]:
        """An entry of `tools/list` with descriptions that name tools of this server."""
        return self._described(definition) if self._lacks else definition

    def _described(self, value: dict[str, Any]) -> dict[str, Any]:
        return {
            key: self.text(inner)
            if key == "description" and isinstance(inner, str)
            else self._described(dict(inner))
            if is_object(inner)
            else inner
            for key, inner in value.items()
        }


EVERY_TOOL = OfferedTools(_DOMAINS)


def by_hand(session_id: str) -> str:
    """Say how a session in conflict with the head is resolved without a rebase. Both sides stay."""
    return (
        f"nothing is lost, session {session_id} stays open. For each path in it: keep yours beside it "
        f"(exec_command: cp -a PATH PATH.ours), make PATH what is published (file_read without a session, "
        f"then file_write in the session, both with encoding base64; if it is not there, delete PATH), and "
        f"publish_workspace_session; in a new session bring what PATH.ours has into PATH. Or a person runs "
        f"sandbox-runtime-cli --sandbox-id SANDBOX rebase_workspace_session --workspace-session-id "
        f"{session_id} --on-conflict markers"
    )


def _is_of_session(details: Object) -> bool:
    """Return True for a rejection with conflicts that left a session open."""
    rejected = details.get("publish_rejection")
    conflicts = rejected.get("conflicts") if is_object(rejected) else None
    return bool(conflicts) and bool(details.get("workspace_session_id")) and not details.get("draft_id")
