"""Directories of this machine in which a workspace may be chosen."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from eos_agent.wire.protocol import INVALID_REQUEST, OperationError, os_error

LIMIT = 500


def list_directories(path: str | None, roots: Sequence[str] | None, *, limit: int = LIMIT) -> dict[str, Any]:
    """List the roots, or the immediate sub-directories of `path`, sorted without regard to case and then cut
    to `limit`.

    Args:
        path: absolute, or None for the roots.
        roots: the configured roots; None: the home directory.
    Returns:
        {path, parent, truncated, directories: [{name, path}]}; `parent` is None outside all roots. Symlinks
        to directories are resolved; symlinks that lead out of the roots are left out, and each directory is
        listed once.
    Raises:
        OperationError: invalid_request: `path` is relative, missing, not a directory, outside the roots, or
            unreadable.
    """
    allowed = _real(roots if roots is not None else [os.path.expanduser("~")])
    if path is None:
        return {
            "path": None,
            "parent": None,
            "truncated": False,
            "directories": [{"name": root, "path": root} for root in sorted(allowed)],
        }
    details = {"argument": "path", "value": path}
    if not os.path.isabs(path) or "\0" in path:
        raise OperationError(
            INVALID_REQUEST, f"path must be absolute: {path!r}", details, reason="not_absolute"
        )
    real = os.path.realpath(path)
    if not inside(real, allowed):
        raise OperationError(
            INVALID_REQUEST, f"{path} is outside the workspace roots", details, reason="outside_roots"
        )
    if not os.path.isdir(real):
        what = "is not a directory" if os.path.lexists(real) else "does not exist"
        raise OperationError(INVALID_REQUEST, f"{path} {what}", details, reason="no_directory")
    found: dict[str, str] = {}
    try:
        with os.scandir(real) as entries:
            for entry in entries:
                if entry.is_dir():
                    target = os.path.realpath(entry.path) if entry.is_symlink() else entry.path
                    if inside(target, allowed):
                        found.setdefault(target, os.path.basename(target))
    except OSError as error:
        raise os_error(error, kind=INVALID_REQUEST) from error
    ordered = sorted(
        ((name, where) for where, name in found.items()),
        key=lambda item: (item[0].casefold(), item[0], item[1]),
    )
    parent = os.path.dirname(real)
    return {
        "path": real,
        "parent": parent if parent != real and inside(parent, allowed) else None,
        "truncated": len(ordered) > limit,
        "directories": [{"name": name, "path": where} for name, where in ordered[:limit]],
    }


def check_root(workspace: str, roots: Sequence[str] | None) -> None:
    """Refuse a workspace outside the configured roots; without roots every absolute directory passes.

    Raises:
        OperationError: invalid_request, reason outside_roots.
    """
    if roots is not None and not inside(os.path.realpath(workspace), _real(roots)):
        details = {"argument": "workspace_root", "value": workspace, "workspace_roots": list(roots)}
        raise OperationError(
            INVALID_REQUEST,
            f"workspace_root {workspace} is outside the workspace roots",
            details,
            reason="outside_roots",
        )


def inside(path: str, roots: Sequence[str]) -> bool:
    """Tell whether `path` is one of `roots` or below one; all are absolute and resolved."""
    return any(path == root or path.startswith(root.rstrip("/") + "/") for root in roots)


def _real(roots: Sequence[str]) -> list[str]:
    return list(dict.fromkeys(os.path.realpath(root) for root in roots))
