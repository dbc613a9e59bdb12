"""file_read of several paths: one answer, a row for each; one that cannot be read hides no other."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from eos_agent.base.errors import operation_error
from eos_agent.wire.protocol import INVALID_REQUEST, OperationError

MAX_PATHS = 50

Read = Callable[[dict[str, Any]], Awaitable[dict[str, Any]]]
"""Arguments of file_read of one path -> its result."""


async def read_several(args: dict[str, Any], max_bytes: int, read: Read) -> dict[str, Any]:
    """Read `path`, if it is given, and each of `paths`. Each file has its share of `max_bytes` as its limit.

    Raises:
        OperationError: invalid_request; `paths` has a member of another type, or more than MAX_PATHS.
    """
    paths: list[Any] = args.pop("paths")
    first = args.pop("path", "")
    one_by_bytes = bool(args.get("path_b64"))
    wanted = [*([first] if first or one_by_bytes else []), *paths]
    if not all(isinstance(path, str) and path for path in paths):
        raise OperationError(
            INVALID_REQUEST, "paths must be an array of paths", {"argument": "paths"}, reason="wrong_type"
        )
    if len(wanted) > MAX_PATHS:
        details = {"argument": "paths", "value": len(wanted), "maximum": MAX_PATHS}
        message = f"file_read reads at most {MAX_PATHS} files at once, {len(wanted)} are named"
        raise OperationError(INVALID_REQUEST, message, details, reason="out_of_bounds")
    path_b64 = args.pop("path_b64", None)
    files: list[dict[str, Any]] = []
    for at, path in enumerate(wanted):
        here = {"path_b64": path_b64} if at == 0 and path_b64 else {}
        try:
            files.append(await read({**args, "path": path, **here, "max_bytes": max_bytes // len(wanted)}))
        except Exception as error:
            shown = operation_error(error)
            envelope = {"kind": shown.kind, "message": shown.message, "details": shown.details}
            files.append({"path": path, **here, "error": envelope})
    return {"path": str(files[0]["path"]), "files": files}
