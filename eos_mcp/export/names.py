"""Check the paths of an export: relative, normalised, without the names under which exports stage. Pure."""

from __future__ import annotations

import re

from eos_mcp.workspace.staging_prefix import PREFIX

_ODD = re.compile(rb"(?:\A|/)\.{0,2}(?:/|\Z)|\0")

NAMED_MAX = 20
"""Maximum of paths that an error or a result names."""

_DERIVED = re.compile(rb"(?:.*/)?__pycache__/[^/]*\.(?:py[co](?:\.[0-9]+)?|nb[ic])", re.DOTALL)


def derived(path: bytes) -> bool:
    """Tell whether a path is a cache file of Python or numba in a `__pycache__`, which they remake."""
    return b"__pycache__" in path and _DERIVED.fullmatch(path) is not None


def flaw(path: bytes) -> str | None:
    """Return the end of the sentence "PATH ...", or None for a path that is relative, normalised and short
    enough for the kernel.
    """
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
    """Return `path` down to its first name with `PREFIX`; None without one."""
    if PREFIX not in path:
        return None
    at = 0
    for name in path.split(b"/"):
        at += len(name)
        if name.startswith(PREFIX):
            return path[:at]
        at += 1
    return None
