"""Author, message and trailers of the commits that an export makes of publications."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from layerstack.model.messages import first_line

EMAIL = "agent@eos.invalid"
NAME = "eos"
NAME_MAX = 100
NAMED_LAYERS = 100
"""Layers whose ids the trailers of one commit name: the newest ones."""
SUMMARY_MAX = 72
CREATION = "workspace as it was at creation"
_TRAILER = re.compile(r"[A-Za-z0-9-]+: ")


class CommitText(NamedTuple):
    """Author, date (seconds since the epoch) and message of a commit."""

    author: str
    date: int
    message: str

    @property
    def identity(self) -> bytes:
        return f"{self.author} <{EMAIL}> {self.date} +0000".encode("utf-8", "replace")

    @property
    def subject(self) -> str:
        return first_line(self.message)


def author_of(member: Mapping[str, Any]) -> str:
    """Give the name of a publication's author: the agent, else its session, else its owner."""
    session = session_of(member)
    for given in (member.get("agent"), session, member.get("owner")):
        name = one_line(str(given or ""))
        if name:
            return name
    return NAME


def session_of(member: Mapping[str, Any]) -> str:
    owner = str(member.get("owner") or "")
    return str(member.get("session_id") or "") or owner.removeprefix("workspace_session:") * (
        owner.startswith("workspace_session:")
    )


def one_line(text: str) -> str:
    """Remove what a name or trailer cannot have: control characters and angle brackets."""
    kept = "".join(c if c.isprintable() and c not in "<>" else " " for c in text[:NAME_MAX])
    return " ".join(kept.split()).strip(" .,:;\"\\'")


def of_creation(sandbox_id: str, layer_id: str, date: int) -> CommitText:
    return CommitText(
        NAME, date, with_trailers(CREATION, _trailers(sandbox_id, [{"layer_id": layer_id}], []))
    )


def of_publications(
    sandbox_id: str, members: Sequence[Mapping[str, Any]], paths: Sequence[str]
) -> CommitText:
    """Give the text of a commit for publications, oldest first.

    Args:
        paths: what the commit changes, for publications without a message.
    """
    authors = list(dict.fromkeys(map(author_of, members)))
    author = authors[-1] if len(authors) == 1 else author_of(members[-1])
    messages = [str(m["message"]).strip() for m in members if str(m.get("message") or "").strip()]
    if len(messages) == 1:
        text = messages[0]
    elif messages:
        text = f"{summary(paths)}\n\n" + "\n".join(f"* {first_line(m)}" for m in messages)
    else:
        text = summary(paths)
    date = int(members[-1].get("created_unix_ms") or 0) // 1000
    others = [name for name in authors if name != author]
    return CommitText(author, date, with_trailers(text, _trailers(sandbox_id, members, others)))


def of_merge(sandbox_id: str, member: Mapping[str, Any]) -> CommitText:
    """Give the text of the commit that joins agents' new commits with the work exported before."""
    text = "merge the agents' commits with the work exported before"
    date = int(member.get("created_unix_ms") or 0) // 1000
    return CommitText(NAME, date, with_trailers(text, _trailers(sandbox_id, [member], [])))


def summary(paths: Sequence[str]) -> str:
    """Describe changed paths in at most SUMMARY_MAX characters."""
    shown = [path.encode("utf-8", "surrogateescape").decode("utf-8", "replace") for path in paths[:3]]
    text = f"change {', '.join(shown)}" if len(paths) <= 3 else ""
    if text and len(text) <= SUMMARY_MAX and text.isprintable():
        return text
    tops = list(dict.fromkeys(path.partition("/")[0] for path in paths if "/" in path))
    where = f" in {tops[0]}" if len(tops) == 1 and all("/" in path for path in paths) else ""
    text = f"change {len(paths)} files{where}" if len(paths) != 1 else "change 1 file"
    return text if len(text) <= SUMMARY_MAX and text.isprintable() else f"change {len(paths)} files"


def _trailers(sandbox_id: str, members: Sequence[Mapping[str, Any]], others: Sequence[str]) -> list[str]:
    rows = [f"Co-authored-by: {name} <{EMAIL}>" for name in others[:NAMED_LAYERS]]
    rows.append(f"Eos-Sandbox: {one_line(sandbox_id)}")
    some = members[-NAMED_LAYERS:]
    rows += list(dict.fromkeys(f"Eos-Session: {one_line(s)}" for m in some if (s := session_of(m))))
    rows += [f"Eos-Layer: {m.get('layer_id')}" for m in some]
    rows += list(
        dict.fromkeys(f"Eos-Request: {r}" for m in some if (r := one_line(str(m.get("request_id") or ""))))
    )
    return rows


def with_trailers(text: str, trailers: Sequence[str]) -> str:
    """Append trailers to a message, to its own ones if it ends with such; lines that look like ours are
    indented, so that only ours count.
    """
    lines = [line.rstrip() for line in text.replace("\0", "").strip().splitlines()]
    lines = [f"  {line}" if line.startswith("Eos-") else line for line in lines]
    blank = next((at for at in range(len(lines) - 1, -1, -1) if not lines[at]), None)
    last = [] if blank is None else lines[blank + 1 :]
    joined = "\n".join(lines)
    gap = "\n" if last and all(_TRAILER.match(line) for line in last) else "\n\n"
    return joined + gap + "\n".join(trailers) + "\n"
