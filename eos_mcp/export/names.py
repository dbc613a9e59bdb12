"""Which paths an export takes: relative, normalised, and none of the names that exports use for their own staging. Pure."""

from __future__ import annotations

import re

PREFIX = b".eos-export-"
"""Every staging directory and every unfinished archive of an export is called so, and nothing else that an export writes."""

_ODD = re.compile(rb"(?:\A|/)\.{0,2}(?:/|\Z)|\0")

NAMED_MAX = 20
"""Paths that an error or a result names."""


_DERIVED = re.compile(rb"(?:.*/)?__pycache__/[^/]*\.(?:py[co](?:\.[0-9]+)?|nb[ic])", re.DOTALL)


def derived(path: bytes) -> bool:
    """Whether it is what Python (and numba) keep in a `__pycache__` and make again by themselves; another file there is somebody's."""
    return b"__pycache__" in path and _DERIVED.fullmatch(path) is not None


def flaw(path: bytes) -> str | None:
    """The end of the sentence "PATH ...", or None when `path` is relative and normalised and the kernel can take it."""
    if _ODD.search(path) is None and len(path) <= 0xFFFF:
        return None
    if path.startswith(b"/"):
        return "is an absolute path"
    if b"\0" in path:
        return "holds a NUL byte"
    if len(path) > 0xFFFF:
        return "is longer than any path"
    for name in path.split(b"/"):
        if name == b"..":
            return "holds '..'"
        if name in (b"", b"."):
            return "is not a normalised path"
    return None


def reserved(path: bytes) -> bytes | None:
    """The path down to its first name that exports use themselves; None when it has no such name."""
    if PREFIX not in path:
        return None
    at = 0
    for name in path.split(b"/"):
        at += len(name)
        if name.startswith(PREFIX):
            return path[:at]
        at += 1
    return None
