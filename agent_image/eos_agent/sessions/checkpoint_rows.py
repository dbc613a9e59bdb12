"""Checkpoints in answers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from eos_agent.sessions.session import Session
    from layerstack.session.checkpoints import Checkpoint


def row(checkpoint: Checkpoint) -> dict[str, Any]:
    """The keys of one checkpoint."""
    label = {} if checkpoint.label is None else {"label": checkpoint.label}
    return {
        "checkpoint_id": checkpoint.checkpoint_id,
        **label,
        "created_unix_ms": checkpoint.created_unix_ms,
        "changed_files": checkpoint.changed_files,
    }


def rows(session: Session) -> dict[str, Any]:
    """The key `checkpoints` of list_workspace_sessions, oldest first; {} without any."""
    found: list[dict[str, Any]] = []
    for checkpoint in session.upper.saved.checkpoints:
        undoes = {} if checkpoint.undoes_id is None else {"undoes": checkpoint.undoes_id}
        found.append({**row(checkpoint), **undoes})
    return {"checkpoints": found} if found else {}


def ended(checkpoints: Iterable[Checkpoint]) -> dict[str, Any]:
    """The key `checkpoints_ended` of an answer; {} if none did."""
    ids = [checkpoint.checkpoint_id for checkpoint in checkpoints]
    return {"checkpoints_ended": ids} if ids else {}
