"""Arguments and operations about conflicts: sides to take, and rebase_workspace_session. Any OS, standard
library only.
"""

from __future__ import annotations

from eos_agent.wire.operation import AGENT_SETS, SESSION, Argument, Operation, ResultField
from eos_agent.wire.operations_service import STOPPED

SIDES = ("refuse", "markers", "ours", "theirs")
ON_CONFLICT = Argument(
    "on_conflict",
    "string",
    help="markers: conflict markers in texts, your side of other files; ours, theirs: that side. The other "
    "side is kept as PATH.theirs or PATH.ours.",
    default="refuse",
    choices=SIDES,
    ours=True,
)
PATHS = Argument(
    "paths",
    "json_object",
    help='Sides of single paths, each as "path=side".',
    items={"type": "string", "enum": list(SIDES[1:])},
    value='\'{"PATH": "ours|theirs|markers"}\'',
    ours=True,
)
CONFLICTS = ResultField(
    "conflicts",
    "array",
    "conflicts that were resolved: path, class, resolution (markers, ours, theirs), kept_as (path of the "
    "other side's), why a side was taken where markers were asked for, theirs_version; at most 100, "
    "conflict_count has the number; absent when there are none",
    ours=True,
)
ALLOW_UNRESOLVED = Argument(
    "allow_unresolved",
    "boolean",
    help="true: publish files with conflict markers of a rebase too.",
    default=False,
    ours=True,
    hidden=True,
)

REBASE = Operation(
    "rebase_workspace_session",
    "runtime",
    "workspace_session",
    "Bring a session to the newest version",
    "Move a session, under its id, to the newest version: what others published since it began is merged "
    "with its changes. Conflicts refuse it and nothing changes, unless on_conflict resolves them; no side's "
    "work is lost. Refused while a command runs in it; services are ended.",
    (SESSION._replace(required=True, help="Session to rebase."), ON_CONFLICT, PATHS),
    related=("preview_publish", "publish_workspace_session"),
    examples=(
        "sandbox-runtime-cli --sandbox-id eos-1 rebase_workspace_session --workspace-session-id ID",
        "sandbox-runtime-cli --sandbox-id eos-1 rebase_workspace_session --workspace-session-id ID "
        '--on-conflict markers --paths \'{"package-lock.json": "theirs"}\'',
    ),
    result=(
        ResultField("from_version", "integer"),
        ResultField(
            "to_version",
            "integer",
            "the version that the session sees now; the same when it was the newest",
        ),
        ResultField("updated", "integer", "paths that are now as others published them"),
        ResultField("merged", "integer", "paths that now show the changes of both sides"),
        CONFLICTS,
        ResultField("conflict_count", "integer", "with conflicts: how many were resolved", ours=True),
        ResultField(
            "unresolved",
            "array",
            "when the session was at the newest version already: files that contain markers of an earlier "
            "rebase, with the lines of these; at most 100",
        ),
        ResultField("unresolved_count", "integer", "with unresolved: how many files there are"),
        ResultField(
            "notices",
            "array",
            "ignored files of which one side was kept, as in publish.notices; absent when there are none",
        ),
        ResultField(
            "dropped",
            "array",
            "skipped: sockets, pipes, devices and unfinished files of a killed git, which the session "
            "no longer has; "
            "absent when there are none",
        ),
        ResultField(
            "checkpoints_ended",
            "array",
            "ids of the session's checkpoints, which ended: they are states on the version before; absent "
            "when there were none",
        ),
        ResultField("address", "string", "isolated: its address, which may be another one"),
        STOPPED,
    ),
    sets=AGENT_SETS,
    ours=True,
    waits=570,
    promise="The session's own work stays unpublished and whole.",
    result_example='{"from_version": 3, "to_version": 5, "updated": 2, "merged": 1, "conflicts": '
    '[{"path": "a.py", "class": "content", "resolution": "markers", "theirs_version": 5}], '
    '"conflict_count": 1}',
)
