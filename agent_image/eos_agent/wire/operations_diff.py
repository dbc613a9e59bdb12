"""The operation diff_session. Any OS, standard library only."""

from __future__ import annotations

from eos_agent.wire.operation import CURSOR, PATH_B64, RUNTIME_SETS, SESSION, Argument, Operation, ResultField

DIFF_SESSION = Operation(
    "diff_session",
    "runtime",
    "workspace_session",
    "See what a session or draft changed",
    "Show the changes of a session or draft as a unified diff: against the version it began with, or against "
    "the head.",
    (
        SESSION._replace(help="The session; or give draft_id."),
        Argument("draft_id", "string", help="A draft.", value="ID"),
        Argument(
            "against",
            "string",
            help="base: its own changes; head: what differs from the newest version.",
            default="base",
            choices=("base", "head"),
        ),
        Argument("path", "path", help="Only this path and below.", value="PATH"),
        CURSOR,
        PATH_B64,
    ),
    read_only=True,
    idempotent=True,
    related=("publish_workspace_session", "preview_publish", "diff_draft"),
    examples=("sandbox-runtime-cli --sandbox-id eos-1 diff_session --workspace-session-id ID",),
    result=(
        ResultField(
            "entries",
            "array",
            "path, status (A added, D deleted, M modified, T another kind), change, from (of an added file: "
            "a deleted one of the page with the same content), patch or binary, patch_truncated",
        ),
        ResultField("start", "integer", "number of paths on the pages before"),
        ResultField("next", "string|null"),
        ResultField("against", "string"),
        ResultField("base_version", "integer", "of a session"),
        ResultField("workspace_session_id", "string"),
        ResultField("draft_id", "string"),
    ),
    sets=RUNTIME_SETS,
    ours=True,
    waits=570,
    promise="git apply and apply_patch accept each patch. The session is paused for the answer.",
    result_example='{"workspace_session_id": "ws-1", "base_version": 3, "against": "base", "entries": '
    '[{"path": "a.txt", "status": "M", "change": "modified", "patch": "diff --git …"}], "next": null}',
)
