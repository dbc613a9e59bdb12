"""The call that resolves a rejection, as hints name it."""

from __future__ import annotations

import json


def rebase_hint(session_id: str) -> str:
    """Return the hint for a session that is in conflict with the head."""
    call = json.dumps({"workspace_session_id": session_id, "on_conflict": "markers"})
    return (
        f"call rebase_workspace_session {call}: the session comes to the newest version with all its work, "
        f"texts in conflict get conflict markers; edit these (and commit, if you committed), then "
        f"publish_workspace_session"
    )


def draft_hint(draft_id: str) -> str:
    """Return the hint for a draft that is in conflict with the head."""
    call = json.dumps({"draft_id": draft_id, "on_conflict": "markers"})
    return (
        f"call create_workspace_session {call}: it opens the work on the newest version, texts in conflict "
        f"get conflict markers; edit these (and commit, if you committed), then publish_workspace_session"
    )
