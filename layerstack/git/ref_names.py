"""Names of refs: the rules of git-check-ref-format(1), and a free name for a ref that cannot keep its own."""

from __future__ import annotations

import re
from collections.abc import Callable

from layerstack.git.object_format import GitRefused

COMPONENT_MAX = 250
"""Bytes of one component: a file name of 255 that may get `.lock` at its end."""
NAME_BYTES_MAX = 3500
"""Bytes of a name below the directory of its repository."""
TRIES = 10_000
"""Numbers that are tried behind a name that is in use."""
SUFFIX_MAX = 60

_BAD = re.compile(
    rb"[\x00-\x20\x7f~^:?*\[\\]|\.\.|@\{|//|^/|/$|\.$|(?:^|/)\.|\.lock(?:/|$)",
)
_PLAIN = re.compile(rb"[^A-Za-z0-9_.+=,-]+")


def is_ref_name(name: bytes) -> bool:
    """Check a whole name, `refs/heads/main`, as `git check-ref-format` does."""
    return b"/" in name and _BAD.search(name) is None and len(name) <= NAME_BYTES_MAX


def ref_word(text: str) -> bytes:
    """Make a word for a name of a ref from any text, such as the name of an agent."""
    raw = _PLAIN.sub(b"-", text.encode("utf-8", "replace"))
    while b".." in raw:
        raw = raw.replace(b"..", b".")
    raw = raw[:SUFFIX_MAX].strip(b".-")
    while raw.endswith(b".lock"):
        raw = raw[: -len(b".lock")].strip(b".-")
    return raw or b"session"


def above(name: bytes) -> list[bytes]:
    """List the names of which `name` would be below as a directory: `refs/heads/a` for `refs/heads/a/b`."""
    parts = name.split(b"/")
    return [b"/".join(parts[:n]) for n in range(1, len(parts))]


class RefNames:
    """Names that are in use, with the directories that they need: neither can be the other."""

    def __init__(self) -> None:
        self._names: set[bytes] = set()
        self._folders: dict[bytes, int] = {}

    def add(self, name: bytes) -> None:
        if name not in self._names:
            self._names.add(name)
            for folder in above(name):
                self._folders[folder] = self._folders.get(folder, 0) + 1

    def discard(self, name: bytes) -> None:
        if name in self._names:
            self._names.discard(name)
            for folder in above(name):
                self._folders[folder] -= 1

    def __contains__(self, name: bytes) -> bool:
        return name in self._names

    def blocking(self, name: bytes) -> bytes | None:
        """Find the name in use that is a directory above `name`."""
        return next((folder for folder in above(name) if folder in self._names), None)

    def collides(self, name: bytes) -> bool:
        """Check whether a ref of that name cannot exist beside the names in use, itself left out."""
        return self._folders.get(name, 0) > 0 or self.blocking(name) is not None


def free_ref_name(name: bytes, word: bytes, in_use: Callable[[bytes], bool], blocked: bytes | None) -> bytes:
    """Make a name from `name` that is valid and not in use: `NAME-<word>`, then `NAME-<word>-2` and so on.

    Args:
        word: from `ref_word`.
        in_use: whether a ref of that name exists, or cannot exist beside those that do.
        blocked: the ref that is where `name` needs a directory: that step of the name is changed, since no
            other change would make room.
    Raises:
        GitRefused: none of TRIES names is free.
    """
    stem, rest = (name, b"") if blocked is None else (blocked, name[len(blocked) :])
    folder, _, last = stem.rpartition(b"/")
    for number in range(1, TRIES):
        tail = b"-" + word + (b"" if number == 1 else b"-%d" % number)
        new = folder + b"/" + _cut(last, COMPONENT_MAX - len(tail)) + tail + rest
        if is_ref_name(new) and not in_use(new):
            return new
    raise GitRefused(
        f"give the ref {name.decode('utf-8', 'replace')} a free name: {TRIES - 1} names that end with"
        f" -{word.decode()} are in use or not valid; delete refs that are not needed, then publish again"
    )


def _cut(text: bytes, size: int) -> bytes:
    """Shorten a name to at most `size` bytes between characters of UTF-8."""
    if len(text) <= size:
        return text
    while size > 0 and text[size] & 0xC0 == 0x80:
        size -= 1
    return text[:size].rstrip(b".")
