"""The `path` of a file operation: relative to the workspace or absolute below it, without `..`."""

from __future__ import annotations

import base64
import binascii
import os
from collections.abc import Callable, Mapping
from typing import Any

from eos_agent.wire.protocol import INVALID_REQUEST, OperationError

NAME_MAX_BYTES = 255
"""NAME_MAX of Linux: no file system has a longer segment."""


def invalid_path(path: str, why: str) -> OperationError:
    return OperationError(
        INVALID_REQUEST,
        f"invalid path: {shown(path)!r} {why}",
        {"argument": "path", "path": shown(path)},
        reason="invalid_path",
    )


def normalise(path: str, root: str, *, lenient: bool, allow_root: bool) -> str:
    """Make `path` relative to `root`, without empty and `.` segments.

    Args:
        lenient: trim outer white space and take `\\` as a separator, like the reference.
        allow_root: accept the root itself, as ''.
    Raises:
        OperationError: invalid_request; `path` is empty, absolute and outside the root, or has a NUL, a `..`
            segment or a segment of more than NAME_MAX_BYTES bytes.
    """
    text = path.strip().replace("\\", "/") if lenient else path
    if "\0" in text:
        raise invalid_path(path, "holds a NUL byte")
    if text == root or text.startswith(root.rstrip("/") + "/"):
        text = text[len(root.rstrip("/")) :].lstrip("/")
    if text.startswith("/"):
        raise invalid_path(path, f"is absolute and not below {root}")
    parts = [part for part in text.split("/") if part not in ("", ".")]
    if ".." in parts:
        raise invalid_path(path, "has a `..` segment")
    if not parts and not allow_root:
        raise invalid_path(path, "names no file")
    if any(len(os.fsencode(part)) > NAME_MAX_BYTES for part in parts):
        raise invalid_path(path, f"has a segment of more than {NAME_MAX_BYTES} bytes")
    return "/".join(parts)


def resolve(
    args: Mapping[str, Any],
    root: str,
    exists: Callable[[str], bool],
    *,
    allow_root: bool = False,
    argument: str = "path",
) -> str:
    """Resolve `path` or `path_b64` of a request (or another `argument`) to a path relative to the workspace
    (os.fsdecode).

    The literal path is used if it exists (`exists` does not follow links); otherwise outer white space is
    trimmed and backslashes become slashes, as in the reference.
    """
    encoded = args.get(f"{argument}_b64")
    if encoded:
        try:
            raw = base64.b64decode(encoded, validate=True)
        except (binascii.Error, ValueError):
            name = f"{argument}_b64"
            raise OperationError(
                INVALID_REQUEST, f"{name} is not base64", {"argument": name}, reason="invalid_path"
            ) from None
        return normalise(os.fsdecode(raw), root, lenient=False, allow_root=allow_root)
    path: str = args.get(argument) or ""
    try:  # a name that came as text is looked up by its UTF-8 bytes
        path = os.fsdecode(path.encode("utf-8", "surrogateescape"))
    except UnicodeEncodeError:
        raise invalid_path(path.encode("utf-8", "replace").decode(), "is not valid Unicode") from None
    if path == path.strip() and "\\" not in path:
        return normalise(path, root, lenient=False, allow_root=allow_root)
    try:
        literal = normalise(path, root, lenient=False, allow_root=allow_root)
    except OperationError:
        literal = ""
    if literal and exists(literal):
        return literal
    return normalise(path, root, lenient=True, allow_root=allow_root)


def shown(path: str) -> str:
    """Decode a path for JSON: bytes that are not UTF-8 become U+FFFD."""
    return os.fsencode(path).decode("utf-8", "replace")
