"""The operations checkpoint_session and restore_session. Any OS, standard library only."""

from __future__ import annotations

from eos_agent.wire.operation import AGENT_SETS, SESSION, Argument, Operation, ResultField
from eos_agent.wire.operations_service import STOPPED

_ENDED = ResultField(
    "checkpoints_ended",
    "array",
    "ids of the oldest checkpoints, dropped since a session has at most 32; absent when there are none",
)
_ADDRESS = ResultField("address", "string", "isolated: its address, which may be another one")

CHECKPOINT = Operation(
    "checkpoint_session",
    "runtime",
    "workspace_session",
    "Remember the state of a session",
    "Make a checkpoint of a session's files, for restore_session: undo before a risky change. Refused while "
    "a command runs in it; services are ended.",
    (
        SESSION._replace(required=True, help="Session to remember."),
        Argument("label", "string", help="What the state is.", value="TEXT"),
    ),
    related=("restore_session", "list_workspace_sessions"),
    examples=(
        "sandbox-runtime-cli --sandbox-id eos-1 checkpoint_session --workspace-session-id ID --label green",
    ),
    result=(
        ResultField("workspace_session_id", "string"),
        ResultField("checkpoint_id", "string"),
        ResultField("label", "string"),
        ResultField("created_unix_ms", "integer"),
        ResultField("changed_files", "integer", "files written or deleted since the checkpoint before"),
        _ENDED,
        STOPPED,
        _ADDRESS,
    ),
    sets=AGENT_SETS,
    ours=True,
    waits=570,
    promise="Nothing is copied: the cost is one look at the names that were written. Checkpoints end with "
    "the session: by publish, rebase, destroy, or when it becomes a draft, which is its present state.",
    result_example='{"workspace_session_id": "ws-1", "checkpoint_id": "checkpoint-1", "label": "green", '
    '"created_unix_ms": 1760000000000, "changed_files": 3}',
)

RESTORE = Operation(
    "restore_session",
    "runtime",
    "workspace_session",
    "Return a session to a checkpoint",
    "Bring a session's files back to a checkpoint. The state before becomes a checkpoint too "
    "(undo_checkpoint_id). Refused while a command runs in it; services are ended.",
    (
        SESSION._replace(required=True, help="Session to restore."),
        Argument(
            "checkpoint_id",
            "string",
            help="Default: the last one of checkpoint_session.",
            value="ID",
        ),
    ),
    related=("checkpoint_session", "list_workspace_sessions"),
    examples=(
        "sandbox-runtime-cli --sandbox-id eos-1 restore_session --workspace-session-id ID",
        "sandbox-runtime-cli --sandbox-id eos-1 restore_session --workspace-session-id ID "
        "--checkpoint-id checkpoint-1",
    ),
    result=(
        ResultField("workspace_session_id", "string"),
        ResultField("checkpoint_id", "string", "the checkpoint whose state the session has now"),
        ResultField("label", "string", "its label"),
        ResultField("restored", "boolean", "false: the session had this state already"),
        ResultField("undo_checkpoint_id", "string", "the checkpoint of the state before"),
        _ENDED,
        STOPPED,
        _ADDRESS,
    ),
    sets=AGENT_SETS,
    ours=True,
    waits=570,
    promise="Names, content, modes, owners, times, xattrs and hard links are those of the checkpoint.",
    result_example='{"workspace_session_id": "ws-1", "checkpoint_id": "checkpoint-1", "label": "green", '
    '"restored": true, "undo_checkpoint_id": "checkpoint-2"}',
)
