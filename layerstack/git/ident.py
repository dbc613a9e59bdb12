"""`$Id$`, which git expands in the work tree to the id of the blob. Source: convert.c of git.

A checkout expands it in one of two ways, which differ on odd texts: in a stream, or with the whole file in
memory where the conversion of line ends needs it.
"""

from __future__ import annotations

import re

_CLEAN = re.compile(rb"\$Id:[^$\n]*\$")
_STREAM = re.compile(rb"\$(?:Id(?:\$|:[^$\n]*[$\n]?|[^:$])|I[^d]|[^I])", re.DOTALL)
"""The steps of the stream: a `$` that begins another text takes the next byte with it."""
_WHOLE = re.compile(rb"\$Id(?:\$|:[^$\n]*\$)")
_FOREIGN = re.compile(rb"\$Id: [^\0]*?[ \t\r\n](?!\$)[^\0]")


def collapse(data: bytes) -> bytes:
    """Give the text of the repository."""
    return _CLEAN.sub(b"$Id$", data)


def expand(blob: bytes, oid_hex: str, *, stream: bool) -> bytes:
    """Give the text of the work tree. The text of another program, which has a space inside, stays."""
    text = b"$Id: " + oid_hex.encode() + b" $"
    return _STREAM.sub(lambda found: _step(found[0], text), blob) if stream else _expand_whole(blob, text)


def _step(part: bytes, text: bytes) -> bytes:
    if part == b"$Id$":
        return text
    return text if part.startswith(b"$Id:") and part[-1:] == b"$" and not _FOREIGN.match(part) else part


def _expand_whole(blob: bytes, text: bytes) -> bytes:
    parts, at = list[bytes](), 0
    found = _WHOLE.search(blob)
    while found is not None:
        inside = found[0][4:-1]
        space = inside.find(b" ", 1)
        end = found.start() + 1 if 0 <= space < len(inside) - 1 else found.end()
        parts += [blob[at : found.start()], text if end == found.end() else b"$"]
        at = end
        found = _WHOLE.search(blob, at)
    return b"".join((*parts, blob[at:]))
