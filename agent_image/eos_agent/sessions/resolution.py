"""The sides that a request names for conflicts, and the part of the answer about resolved conflicts."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from typing import Any

from eos_agent.wire.operations_rebase import SIDES
from eos_agent.wire.protocol import INVALID_REQUEST, OperationError
from eos_agent.wire.workspace_path import normalise
from layerstack.model.resolution import REFUSE, Choice, ResolvedConflict

PATHS_MAX = 10_000
"""Most paths for which one request may name a side."""
SHOWN, SHOWN_BYTES = 100, 64 * 1024


def choice_of(args: dict[str, Any], label: str, root: str) -> Choice | None:
    """Read `on_conflict` and `paths`; None if every conflict is refused.

    Args:
        label: name of the session's side in conflict markers.
        root: path of the workspace.
    Raises:
        OperationError: invalid_request; a path or a side is not valid.
    """
    given: dict[str, Any] = args.get("paths") or {}
    if len(given) > PATHS_MAX:
        raise _refused(f"paths names {len(given)} paths, at most {PATHS_MAX} are accepted", "too_long")
    paths: dict[str, str] = {}
    for path, side in given.items():
        if side not in SIDES[1:]:
            raise _refused(
                f"the side of {path!r} in paths must be one of {', '.join(SIDES[1:])}", "bad_choice"
            )
        paths[_path(path, root)] = side
    on_conflict = args.get("on_conflict") or REFUSE
    return None if on_conflict == REFUSE and not paths else Choice(on_conflict, paths, label)


def _path(path: str, root: str) -> str:
    try:
        return normalise(os.fsdecode(path.encode()), root, lenient=False, allow_root=True)
    except UnicodeEncodeError:
        raise _refused("a path in paths is not valid Unicode", "invalid_path") from None
    except OperationError as error:
        raise _refused(f"paths: {error.message}", "invalid_path") from None


def _refused(message: str, reason: str) -> OperationError:
    return OperationError(INVALID_REQUEST, message, {"argument": "paths"}, reason=reason)


def resolved_json(resolved: Sequence[ResolvedConflict]) -> dict[str, Any]:
    """The keys of an answer about resolved conflicts; {} if no conflict was resolved."""
    if not resolved:
        return {}
    shown: list[dict[str, Any]] = []
    size = 0
    for one in resolved[:SHOWN]:
        row = one.to_json()
        size += len(json.dumps(row))
        if shown and size > SHOWN_BYTES:
            break
        shown.append(row)
    found: dict[str, Any] = {"conflicts": shown, "conflict_count": len(resolved)}
    if len(shown) < len(resolved):
        found["conflicts_truncated"] = True
    return found
