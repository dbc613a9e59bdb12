"""Setuid and setgid bits and file capabilities, which an export leaves out unless the user asks for them.

A file that a sandbox made would run as the user who exports it, root included. A directory's setgid bit sets
the group of the entries that are made in it and grants no right: it is carried like any other bit.
Capabilities are extended attributes, and an export writes no extended attributes.
"""

from __future__ import annotations

from typing import Any

from eos_mcp.export.stream import shown
from layerstack.export import pax

BITS = 0o6000
CAPABILITY = b"security.capability"
LISTED_MAX = 100


class Stripped:
    """The bits and capabilities that the files of one export lost."""

    def __init__(self, *, keep: bool) -> None:
        self.keep = keep
        self.listed: list[dict[str, str]] = []
        self.count = 0

    def clean(self, header: pax.Header) -> pax.Header:
        """Return the entry for writing: a file's mode without the bits. `note` reports them once the file is
        written.
        """
        if self.keep or not header.mode & BITS or header.type not in (pax.FILE, pax.HARD_LINK):
            return header
        return header._replace(mode=header.mode & ~BITS)

    def note(self, header: pax.Header, mode: int) -> None:
        """Report the bits of an entry as received, whose file is written with `mode`. Hard links count under
        their first name.
        """
        lost = header.mode & ~mode & BITS
        if header.type == pax.FILE and (lost or CAPABILITY in header.xattrs):
            self.count += 1
            if len(self.listed) < LISTED_MAX:
                bits = [word for bit, word in ((0o4000, "setuid"), (0o2000, "setgid")) if lost & bit]
                bits += ["capabilities"] if CAPABILITY in header.xattrs else []
                self.listed.append({"path": shown(header.path), "what": ", ".join(bits)})

    def to_json(self) -> dict[str, Any]:
        """Return the result's fields; empty when nothing was left out."""
        return {"stripped": self.listed, "stripped_count": self.count} if self.count else {}
