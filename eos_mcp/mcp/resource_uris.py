"""URIs of resources, `eos://SANDBOX/...`, and the values that they stand for. Pure; a URI is hostile input.

eos://SANDBOX/versions                  versions that can be opened, newest first (?after=VERSION)
eos://SANDBOX/versions/N                one version and the paths that it changed (?cursor=CURSOR)
eos://SANDBOX/versions/N/files/PATH     a file or directory of a version (?cursor=CURSOR)
eos://SANDBOX/drafts                    work that is kept and not published
eos://SANDBOX/drafts/ID                 changes of a draft, as a diff (?cursor=CURSOR)
eos://SANDBOX/drafts/ID/conflicts       conflicts of a draft with the newest version (?cursor=CURSOR)
eos://SANDBOX/commands/ID               output of a command (?start=LINE)
"""

from __future__ import annotations

import base64
import re
import urllib.parse
from typing import NamedTuple

SCHEME = "eos://"
URI_MAX = 16 * 1024
"""Characters of a URI: a path of PATH_MAX bytes, each escaped, and the rest."""
NAME_MAX_BYTES, PATH_MAX_BYTES = 255, 4096
VERSIONS, VERSION, FILE = "versions", "version", "file"
DRAFTS, DRAFT, CONFLICTS, COMMAND = "drafts", "draft", "conflicts", "command"
PAGE_KEYS = {
    VERSIONS: "after",
    VERSION: "cursor",
    FILE: "cursor",
    DRAFT: "cursor",
    CONFLICTS: "cursor",
    COMMAND: "start",
}
"""Kind -> the key of the query that names a later page."""

_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}")
_NUMBER = re.compile(r"[1-9][0-9]{0,14}")
_PAGE = re.compile(r"[A-Za-z0-9_.=-]{1,512}")
_FORMS = (
    (re.compile(r"versions"), VERSIONS),
    (re.compile(r"versions/(?P<id>[^/]+)"), VERSION),
    (re.compile(r"versions/(?P<id>[^/]+)/files(?:/(?P<path>.*))?", re.DOTALL), FILE),
    (re.compile(r"drafts"), DRAFTS),
    (re.compile(r"drafts/(?P<id>[^/]+)"), DRAFT),
    (re.compile(r"drafts/(?P<id>[^/]+)/conflicts"), CONFLICTS),
    (re.compile(r"commands/(?P<id>[^/]+)"), COMMAND),
)


class ResourceName(NamedTuple):
    """One resource. `id`: number of the version, id of the draft or command; `path`: bytes below the
    workspace, empty for its root; `page`: text of a later page, empty for the first.
    """

    sandbox: str
    kind: str
    id: str = ""
    path: bytes = b""
    page: str = ""

    @property
    def version(self) -> int:
        return int(self.id)

    def uri(self) -> str:
        """The URI that `parse` reads as this value."""
        tail = {
            VERSIONS: "versions",
            VERSION: f"versions/{self.id}",
            FILE: f"versions/{self.id}/files/{urllib.parse.quote(self.path)}",
            DRAFTS: "drafts",
            DRAFT: f"drafts/{self.id}",
            CONFLICTS: f"drafts/{self.id}/conflicts",
            COMMAND: f"commands/{self.id}",
        }[self.kind]
        query = f"?{PAGE_KEYS[self.kind]}={urllib.parse.quote(self.page)}" if self.page else ""
        return f"{SCHEME}{self.sandbox}/{tail}{query}"


def parse(uri: str) -> ResourceName | None:
    """Return the resource that a URI names; None for any other text. Existence is not examined."""
    if len(uri) > URI_MAX or not uri.startswith(SCHEME) or "#" in uri:
        return None
    where, _, query = uri[len(SCHEME) :].partition("?")
    sandbox, slash, tail = where.partition("/")
    if not slash or _ID.fullmatch(sandbox) is None:
        return None
    for form, kind in _FORMS:
        found = form.fullmatch(tail)
        if found is not None:
            return _checked(sandbox, kind, found.groupdict(), query, asked="?" in uri)
    return None


def is_id(text: str) -> bool:
    """Return True for text that may be the id of a sandbox, a draft or a command."""
    return _ID.fullmatch(text) is not None


def _checked(
    sandbox: str, kind: str, groups: dict[str, str | None], query: str, *, asked: bool
) -> ResourceName | None:
    ident = groups.get("id") or ""
    if kind in (VERSION, FILE):
        if _NUMBER.fullmatch(ident) is None:
            return None
    elif "id" in groups and not is_id(ident):
        return None
    path = path_of(groups.get("path") or "") if kind == FILE else b""
    page = _page(kind, query) if asked else ""
    if path is None or page is None:
        return None
    return ResourceName(sandbox, kind, ident, path, page)


def path_of(text: str) -> bytes | None:
    """Return the path that percent-encoded text stands for; None if it is not one below the workspace.

    An escaped slash separates too: a template of the form {path} is filled in so.
    """
    raw = urllib.parse.unquote_to_bytes(text).removesuffix(b"/")
    return None if text and not raw else checked_path(raw)


def checked_path(raw: bytes) -> bytes | None:
    """Return the path below the workspace, `b""` for its root; None for any that is not one."""
    if not raw:
        return b""
    if b"\0" in raw or len(raw) > PATH_MAX_BYTES:
        return None
    parts = raw.split(b"/")
    wrong = any(part in (b"", b".", b"..") or len(part) > NAME_MAX_BYTES for part in parts)
    return None if wrong else raw


def shown(path: bytes) -> str:
    """The path for JSON: bytes that are not UTF-8 become U+FFFD."""
    return path.decode("utf-8", "replace")


def path_arguments(path: bytes) -> dict[str, str]:
    """Arguments of a file operation for exactly this path: outer white space is part of it."""
    if not path:
        return {"path": ""}
    return {"path": shown(path), "path_b64": base64.b64encode(path).decode("ascii")}


def _page(kind: str, query: str) -> str | None:
    key, _, value = query.partition("=")
    text = urllib.parse.unquote(value)
    return text if key == PAGE_KEYS.get(kind) and _PAGE.fullmatch(text) is not None else None
