"""The operations on what was published: who wrote a file's lines."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from eos_agent.protocol import NOT_FOUND, OperationError
from eos_agent.workspace_path import resolve, shown
from layerstack.changes import path_json
from layerstack.errors import LayerStackError

if TYPE_CHECKING:
    from layerstack.store import Store


def _exists(store: Store, path: str) -> bool:
    try:
        with store.reading() as snapshot:
            return snapshot.stat(path) is not None
    except LayerStackError:
        return False


def file_blame(store: Store, root: str, args: dict[str, Any]) -> dict[str, Any]:
    """The operation file_blame, contract 1.2.8. A path with `..` names nothing that could have been published."""
    try:
        path = resolve(args, root, lambda p: _exists(store, p))
    except OperationError:
        given = str(args.get("path") or "")
        if ".." not in given.split("/"):
            raise
        message = f"no auditability record for path: {shown(given)}"
        raise OperationError(NOT_FOUND, message, {"path": shown(given)}, reason="no_auditability_record") from None
    return {**path_json(path), "ranges": [part._asdict() for part in store.blame(path)]}
