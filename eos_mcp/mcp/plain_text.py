"""Terminal output as plain text: without escape codes, as a model reads it. Pure.

Rows keep their numbers: no line end is added or removed. Output on the alternate screen, which a terminal
shows between the switch to it and the switch back, is removed.
"""

from __future__ import annotations

import re

_SEQUENCE = re.compile(
    r"\x1b(?:"
    r"\[[0-?]*[ -/]*(?:[@-~]|\Z)"  # CSI
    r"|\][^\x07\x1b\n]*(?:\x07|\x1b\\)?"  # OSC
    r"|[PX^_][^\x1b\n]*(?:\x1b\\)?"  # DCS, SOS, PM, APC
    r"|[ -/]+[0-~]"  # character sets and the like
    r"|[0-~]"
    r")?"
)
_ALTERNATE = re.compile(r"\x1b\[\?(?:1049|1047|47)([hl])")
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1a\x1c-\x1f\x7f\x80-\x9f]")
_OVERSTRIKE = re.compile(r"[^\n\b]\x08")
OVERSTRIKES_MAX = 8


def plain(text: str, *, inside: bool = False) -> str:
    """Return the text without escape codes, other control characters, and output on the alternate screen.

    Args:
        inside: the alternate screen was on before the text.
    """
    if not inside and not _needs(text):
        return text
    if inside or "\x1b[?" in text:
        text = _without_alternate(text, inside)
    text = _SEQUENCE.sub("", text)
    for _ in range(OVERSTRIKES_MAX):
        if "\x08" not in text:
            break
        text = _OVERSTRIKE.sub("", text)
    return _CONTROLS.sub("", text)


def _needs(text: str) -> bool:
    return "\x1b" in text or _CONTROLS.search(text) is not None


def _without_alternate(text: str, inside: bool) -> str:
    """Remove the parts on the alternate screen, except for their line ends."""
    kept: list[str] = []
    at, on = 0, inside
    for found in _ALTERNATE.finditer(text):
        leaves = found.group(1) == "l"
        if leaves and not on and not kept and at == 0:
            on = True  # the alternate screen was on before this text
        part = text[at : found.start()]
        kept.append("\n" * part.count("\n") if on else part)
        on, at = not leaves, found.end()
    rest = text[at:]
    kept.append("\n" * rest.count("\n") if on else rest)
    return "".join(kept)
