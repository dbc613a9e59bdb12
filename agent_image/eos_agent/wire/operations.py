"""The runtime operations, declared once: names, arguments, bounds, texts. Pure data, any OS, standard library
only.

The operations on files are in `operations_files`, those of observability in `operations_observe`. The command
lines, the MCP tools, the gateway's budgets and the agent's argument checks read these tables. The order of a
table is the order of the help page and of `tools/list`. Operations of the reference come first; `ours` marks
operations, arguments and result fields beyond it.
"""

from __future__ import annotations

from eos_agent.wire.operation import (
    AGENT,
    AGENT_SETS,
    CURSOR,
    MESSAGE,
    NO_BUDGET,
    PATH_B64,
    RUNTIME_SETS,
    SESSION,
    TTL_MAX_S,
    TTL_MIN_S,
    Argument,
    Family,
    Operation,
    ResultField,
)
from eos_agent.wire.operations_checkpoint import CHECKPOINT, RESTORE
from eos_agent.wire.operations_diff import DIFF_SESSION
from eos_agent.wire.operations_files import CONTRACT_FILES, MORE_FILES
from eos_agent.wire.operations_observe import OBSERVABILITY
from eos_agent.wire.operations_patch import APPLY_PATCH
from eos_agent.wire.operations_rebase import ALLOW_UNRESOLVED, CONFLICTS, ON_CONFLICT, PATHS, REBASE
from eos_agent.wire.operations_service import READY, SERVICE, SERVICE_RESULT, STOPPED

RUNTIME_FAMILIES = (
    Family(
        "command",
        "Commands",
        "Run commands and talk to them.",
        "Start a command in a workspace session, feed it, read it, stop it.",
    ),
    Family(
        "file",
        "Files",
        "Read and change files.",
        "Files of the published head, or of a session's private view.",
    ),
    Family("daemon_http", "Daemon HTTP", "The sandbox's small HTTP surface.", "No operations of its own."),
    Family(
        "network_isolation",
        "Network isolation",
        "Sessions with their own network.",
        "No operations of its own.",
    ),
    Family(
        "reserved_paths", "Reserved paths", "Names that cannot be published.", "No operations of its own."
    ),
    Family("shell_security", "Shell security", "What a command may not do.", "No operations of its own."),
    Family(
        "workspace_session",
        "Workspace sessions",
        "Open, publish and discard private views.",
        "A session is a private writable view of one version. Publishing appends what it changed as one "
        "layer, all of it or nothing.",
    ),
    Family(
        "draft",
        "Drafts",
        "Inspect, publish or discard work that was not published.",
        "A rejected or interrupted session leaves its work as a draft; it stays until it is published or "
        "discarded.",
    ),
    Family(
        "history",
        "History",
        "Earlier versions: list, compare, keep, go back.",
        "Every publish makes a version. It can be opened until a squash merges it into a later one; a "
        "pinned version stays.",
    ),
)

_COMMAND_ID = Argument(
    "command_session_id", "string", required=True, help="Id that exec_command returned.", value="ID"
)
_YIELD = Argument(
    "yield_time_ms",
    "integer",
    help="Longest wait for the end, in ms (1000 when absent; 0: none).",
    minimum=0,
    value="N",
)
_RAW = Argument(
    "raw",
    "boolean",
    help="true: as written, with escape codes.",
    default=False,
    ours=True,
)
_ENCODING = Argument(
    "encoding",
    "string",
    help="base64: the rows of the output as raw bytes, for output that is not UTF-8.",
    choices=("utf-8", "base64"),
    value="NAME",
    ours=True,
    hidden=True,
)
_IF_CLEAN = Argument(
    "if_clean", "boolean", help="true: refuse if work would be lost.", default=False, ours=True, hidden=True
)
_GRACE = Argument(
    "grace_s", "float", help="Seconds to wait for running commands to end first.", minimum=0, value="N"
)
_VERSION = Argument("version", "integer", required=True, help="Number of the version.", minimum=1, value="N")
_DRAFT = Argument(
    "draft_id", "string", help="Draft id, from a refused publish or list_drafts.", value="ID", ours=True
)

_COMMAND_RESULT = (
    ResultField("status", "string", "running, ok, error, timed_out or cancelled; ok means exit code 0"),
    ResultField(
        "exit_code",
        "integer|null",
        "null while running; 124 timeout, 130 cancelled, 128 + N ended by signal N",
    ),
    ResultField("signal", "string", "TERM, KILL …: the signal that ended the command", ours=True),
    ResultField("wall_time_seconds", "number"),
    ResultField("command_total_time_seconds", "number"),
    ResultField("start_offset", "integer", "first line in output"),
    ResultField("end_offset", "integer", "one past the last line in output; continue here"),
    ResultField("total_lines", "integer"),
    ResultField("original_token_count", "integer"),
    ResultField("output", "string", "stdout and stderr as the terminal had them"),
    ResultField("command_session_id", "string"),
    ResultField("workspace_session_id", "string"),
    ResultField("publish_rejected", "boolean", "true: nothing was published, the work is in draft_id"),
    ResultField("publish_reject_class", "string"),
    ResultField("finalization_failed", "boolean"),
    ResultField("finalization_failure_class", "string"),
    ResultField("finalization_attempts", "integer"),
    ResultField(
        "publish",
        "object",
        "published, no_op, revision, route_summary; synced false: a power cut may undo it",
        ours=True,
    ),
    ResultField("publish_rejection", "object", "every conflict with base, ours, theirs and hunks", ours=True),
    ResultField("draft_id", "string", "draft that holds the rejected work", ours=True),
    ResultField("hint", "string", ours=True),
    ResultField(
        "discarded",
        "object",
        "paths, count, bytes of unpublished work that was deleted with its session; by, request_id: the "
        "request that deleted it",
        ours=True,
    ),
    ResultField("finalizing", "boolean", "the command ended, its session is being published", ours=True),
    ResultField(
        "leader_exit_code",
        "integer",
        "exit code of the command itself, while other processes of its group run",
        ours=True,
    ),
    ResultField("waiting_on", "array", "processes of the group that still run", ours=True),
    ResultField(
        "left_behind",
        "array",
        "processes that left the group; with status running: background processes that it waits for",
        ours=True,
    ),
    ResultField(
        "oom_kills",
        "integer",
        "processes of the session that the kernel killed because its memory was used up",
        ours=True,
    ),
    ResultField(
        "waiting_for_input",
        "boolean",
        "true: the program sleeps until something is typed on its terminal",
        ours=True,
    ),
    ResultField("last_line", "string", "with waiting_for_input: the last line of the output", ours=True),
    *SERVICE_RESULT,
    ResultField("stderr", "string", "with split_output", ours=True),
    ResultField("stderr_end_offset", "integer", "as end_offset, for stderr", ours=True),
    ResultField("stderr_total_lines", "integer", ours=True),
    ResultField("truncated", "boolean", "output is incomplete", ours=True),
    ResultField("encoding", "string", "base64: encoding of output, stderr and tail", ours=True),
    ResultField("tail", "object", "start_offset and output: the last lines of a truncated output", ours=True),
    ResultField("total_bytes", "integer", "with truncated: bytes of the whole output", ours=True),
    ResultField(
        "dropped", "object", "start_offset, end_offset and bytes of lines that were not kept", ours=True
    ),
    ResultField(
        "session_lost", "boolean", "the session died with the command; draft_id has its work", ours=True
    ),
    ResultField(
        "finalization_error", "object", "kind, message and details of finalization_failed", ours=True
    ),
    ResultField(
        "screen_offset",
        "integer",
        "while a full-screen program runs: the line in which its screen began",
        ours=True,
    ),
    ResultField("screen", "string", "over MCP, beside screen_offset: the screen as it is now", ours=True),
    ResultField("output_error", "string", "errno's name: reading the output failed", ours=True),
)
_CONFLICT_RESULT = (
    ResultField("conflicts", "array", "path, class, base, ours, theirs, theirs_layer, hunks", ours=True),
    ResultField("conflict_count", "integer", ours=True),
)

RUNTIME: tuple[Operation, ...] = (
    Operation(
        "exec_command",
        "runtime",
        "command",
        "Run a shell command",
        "Run a shell command in the workspace. Without workspace_session_id its changes are published as "
        "one layer when it ends; with one they stay private. "
        "Answers within yield_time_ms; status running: continue with its command_session_id. "
        "publish_rejected (a conflict, a signal, timeout_ms or a cancel): your work is in draft_id; "
        "create_workspace_session with on_conflict opens it.",
        (
            Argument(
                "cmd", "string", required=True, help="The command, run by sh or bash.", positional="COMMAND"
            ),
            SESSION._replace(help="Session to run in. Omit for a fresh one that publishes at its end."),
            Argument("timeout_ms", "integer", help="Kill it after this long, in ms.", minimum=0),
            _YIELD._replace(help="Longest wait for the end, in ms; 0: none."),
            Argument("cwd", "path", help="Directory to run in.", ours=True),
            Argument(
                "env",
                "json_array",
                help='Array of "NAME=value".',
                items={"type": "string", "pattern": "^[^=]+="},
                ours=True,
            ),
            Argument(
                "tty",
                "boolean",
                help="false: pipes instead of a terminal; its stdin is the argument stdin, else empty.",
                default=True,
                ours=True,
            ),
            Argument(
                "stdin",
                "string",
                help="Text for its stdin; with tty=false it ends there.",
                value="TEXT",
                file_flag="--stdin-file",
                ours=True,
            ),
            Argument(
                "split_output",
                "boolean",
                help="Keep stderr separate; needs tty=false.",
                default=False,
                ours=True,
            ),
            Argument("user", "string", help="Name or uid to run as.", value="USER", ours=True),
            SERVICE,
            READY,
            Argument(
                "publish_interrupted",
                "boolean",
                help="true: publish also what a command wrote that a signal, timeout_ms or a cancel ended.",
                ours=True,
                hidden=True,
            ),
            Argument(
                "on_disconnect",
                "string",
                help="When the MCP client is gone for 10 s: cancel a command without a session, or detach.",
                choices=("cancel", "detach"),
                ours=True,
                hidden=True,
            ),
            Argument(
                "publish_on_failure",
                "boolean",
                help="false: keep the work as a draft when the exit code is not 0.",
                default=True,
                ours=True,
                hidden=True,
            ),
            AGENT,
            MESSAGE,
            _RAW._replace(hidden=True),
            _ENCODING,
        ),
        open_world=True,
        related=("read_command_lines", "write_command_stdin", "wait_command", "create_workspace_session"),
        examples=(
            'sandbox-runtime-cli --sandbox-id eos-1 exec_command "make test"',
            "sandbox-runtime-cli --sandbox-id eos-1 exec_command --workspace-session-id ID --service web "
            '--ready \'{"port": 8000}\' "python3 -m http.server 8000"',
            "sandbox-runtime-cli --sandbox-id eos-1 exec_command --workspace-session-id ID --timeout-ms "
            '60000 "pytest -q"',
        ),
        result=_COMMAND_RESULT,
        sets=AGENT_SETS,
        waits="yield_time_ms",
        promise="The answer that reports the end comes after the session's work was published or kept as "
        "a draft.",
        result_example='{"status": "ok", "exit_code": 0, "output": "ready", "start_offset": 0, '
        '"end_offset": 1, "total_lines": 1}',
    ),
    Operation(
        "write_command_stdin",
        "runtime",
        "command",
        "Write to a running command",
        "Send text to a running command, as typed: add the newline yourself. U+0004 alone ends its input, "
        "U+0003 alone cancels it (exit code 130); signal_command INT interrupts what an interpreter does. "
        "Returns the lines since the last answer. operation_failed: it has ended; use read_command_lines.",
        (
            _COMMAND_ID,
            Argument(
                "stdin",
                "string",
                required=True,
                help="Text to write, verbatim.",
                positional="TEXT",
                file_flag="--stdin-file",
            ),
            _YIELD,
        ),
        open_world=True,
        related=("exec_command", "close_stdin", "signal_command"),
        examples=(
            "sandbox-runtime-cli --sandbox-id eos-1 write_command_stdin --command-session-id "
            "namespace_execution_1 $'yes\\n'",
        ),
        result=_COMMAND_RESULT,
        sets=AGENT_SETS,
        waits="yield_time_ms",
        promise="Bytes are written as given, within two seconds or not at all.",
        result_example='{"status": "running", "exit_code": null, "output": "continue? yes", '
        '"command_session_id": "namespace_execution_1"}',
    ),
    Operation(
        "read_command_lines",
        "runtime",
        "command",
        "Read a command's output by line",
        "Read output of a running or ended command from any line, or only the lines that match pattern. "
        "Continue at end_offset until it equals total_lines. The newest 512 ended commands are kept.",
        (
            _COMMAND_ID,
            Argument(
                "start_offset",
                "integer",
                help="First line, from 0; -50: the last 50.",
                default=0,
                minimum=-1_000_000_000,
            ),
            Argument("limit", "integer", help="Most lines; kept within 1 to 1000.", default=200, minimum=0),
            Argument(
                "pattern",
                "string",
                help="Python regex: only matching lines, each with its number.",
                value="REGEX",
                ours=True,
            ),
            Argument(
                "context",
                "integer",
                help="With pattern: lines around each match, at most 20.",
                minimum=0,
                ours=True,
                hidden=True,
            ),
            Argument("tail", "integer", help="Only the last lines.", minimum=1, ours=True, hidden=True),
            Argument(
                "wait_ms", "integer", help="First wait this long for its end, in ms.", minimum=0, ours=True
            ),
            _RAW,
            _ENCODING,
        ),
        read_only=True,
        idempotent=True,
        related=("exec_command", "wait_command"),
        examples=(
            "sandbox-runtime-cli --sandbox-id eos-1 read_command_lines --command-session-id "
            "namespace_execution_1 --start-offset 200",
        ),
        result=(
            *_COMMAND_RESULT,
            ResultField("match_count", "integer", "with pattern: matching lines in output", ours=True),
            ResultField(
                "stopped",
                "string",
                "with pattern: matches or time, where the search ended early; continue at end_offset",
                ours=True,
            ),
        ),
        sets=AGENT_SETS,
        waits="wait_ms",
        promise="Offsets are stable: the same offset gives the same line for as long as the command is kept.",
        result_example='{"status": "ok", "exit_code": 0, "start_offset": 0, "end_offset": 2, "total_lines": '
        '2, "output": "a\\nb"}',
    ),
    *CONTRACT_FILES,
    Operation(
        "create_workspace_session",
        "runtime",
        "workspace_session",
        "Open a private session",
        "Open a private writable view of the newest version that lasts until it is published or destroyed, "
        "for work of several calls. "
        "Pass its workspace_session_id to commands and file operations. It does not show later publications.",
        (
            Argument(
                "network_profile",
                "string",
                help="isolated: a private network without egress.",
                default="shared",
                choices=("shared", "isolated"),
            ),
            _DRAFT._replace(help="Start from this draft's work."),
            Argument(
                "draft_base",
                "string",
                help="Where draft_id opens: its own base, or merged onto the head.",
                default="own",
                choices=("own", "head"),
                ours=True,
            ),
            ON_CONFLICT._replace(help="Opens draft_id on the head, resolved so."),
            PATHS._replace(hidden=True),
            Argument(
                "base_version",
                "integer",
                help="Start from this older version.",
                minimum=1,
                value="N",
                ours=True,
            ),
            AGENT,
            Argument(
                "rootfs",
                "string",
                help="read_only: only workspace and a private /tmp are writable. Without a container it is "
                "always so.",
                default="shared",
                choices=("shared", "read_only"),
                ours=True,
            ),
            Argument(
                "ttl_s",
                "float",
                help="Seconds without use after which it ends; its work becomes a draft.",
                minimum=TTL_MIN_S,
                maximum=TTL_MAX_S,
                value="N",
                ours=True,
                hidden=True,
            ),
        ),
        related=("publish_workspace_session", "destroy_workspace_session", "exec_command"),
        examples=(
            "sandbox-runtime-cli --sandbox-id eos-1 create_workspace_session",
            "sandbox-runtime-cli --sandbox-id eos-1 create_workspace_session --draft-id "
            "draft-0123456789abcdef",
        ),
        result=(
            ResultField("workspace_session_id", "string"),
            ResultField("network_profile", "string"),
            ResultField("finalize_policy", "string"),
            ResultField("base_version", "integer", ours=True),
            ResultField("draft_id", "string", ours=True),
            CONFLICTS._replace(help="of draft_id on the head, as of rebase_workspace_session"),
            ResultField("conflict_count", "integer", "with conflicts: how many were resolved", ours=True),
            ResultField(
                "limits",
                "object",
                "state, nano_cpus, memory_high_bytes, memory_max_bytes, pids_max (null: not "
                "enforced), reason",
                ours=True,
            ),
            ResultField("ttl_s", "number", "with ttl_s: as given", ours=True),
            ResultField(
                "expires_unix_ms", "integer", "with ttl_s: when it ends if it is not used", ours=True
            ),
            ResultField(
                "network",
                "string",
                "isolated: no_egress (its own address, nothing else reachable) or loopback_only",
                ours=True,
            ),
            ResultField(
                "address",
                "string",
                "isolated: the address of its servers, reachable from inside the session only",
                ours=True,
            ),
        ),
        sets=AGENT_SETS,
        waits=30,
        promise="The session sees one version for its whole life.",
        result_example='{"workspace_session_id": "…", "network_profile": "shared", "finalize_policy": '
        '"no_op"}',
    ),
    Operation(
        "publish_workspace_session",
        "runtime",
        "workspace_session",
        "Publish a session's work",
        "Append what the session changed as one layer, all of it or nothing, and close it. Lines that "
        "others changed elsewhere are merged. "
        "On rejection nothing is published, the session stays open, and the conflicts are listed: "
        "rebase_workspace_session with on_conflict resolves them.",
        (
            SESSION._replace(required=True, help="Session to publish."),
            _GRACE,
            Argument(
                "keep_open",
                "boolean",
                help="true: keep the session open, on the new version.",
                default=False,
                ours=True,
                hidden=True,
            ),
            ALLOW_UNRESOLVED,
            MESSAGE,
        ),
        related=("preview_publish", "rebase_workspace_session", "destroy_workspace_session"),
        examples=(
            "sandbox-runtime-cli --sandbox-id eos-1 publish_workspace_session --workspace-session-id ID",
        ),
        result=(
            ResultField("workspace_session_id", "string"),
            ResultField("publish", "object", "no_op, revision, route_summary"),
            ResultField("destroyed", "boolean"),
            ResultField("evicted_upperdir_bytes", "integer"),
            ResultField(
                "publish.notices",
                "array",
                "for paths that both sides changed: which side was kept",
                ours=True,
            ),
            ResultField(
                "publish.dropped",
                "array",
                "skipped: sockets, pipes and devices, which a layer cannot hold; unfinished files of a "
                "killed file operation or git",
                ours=True,
            ),
            ResultField("kept_open", "boolean", "with keep_open: whether the session stayed open", ours=True),
            ResultField("base_version", "integer", "with keep_open: the version that it sees now", ours=True),
            ResultField(
                "checkpoints_ended",
                "array",
                "with keep_open: ids of the session's checkpoints, which ended; absent when there were none",
                ours=True,
            ),
            ResultField(
                "address",
                "string",
                "with keep_open, isolated: its address, which may be another one",
                ours=True,
            ),
            ResultField(
                "not_kept_open",
                "object",
                "with kept_open false: kind, message and details of the error",
                ours=True,
            ),
            STOPPED,
        ),
        sets=AGENT_SETS,
        waits=570,
        promise="After a success the new version survives a power cut; after a rejection nothing has "
        "changed.",
        result_example='{"workspace_session_id": "…", "publish": {"no_op": false, "revision": '
        '{"manifest_version": 4, "root_hash": "…", "layer_count": 4}, '
        '"route_summary": {"source_count": 2, "ignored_count": 0}}, "destroyed": true, '
        '"evicted_upperdir_bytes": 1834}',
    ),
    Operation(
        "destroy_workspace_session",
        "runtime",
        "workspace_session",
        "Discard a session",
        "Close a session and discard its unpublished changes for good. Refused while its commands run: "
        "signal or wait for them first.",
        (SESSION._replace(required=True, help="Session to discard."), _GRACE, _IF_CLEAN),
        destructive=True,
        related=("publish_workspace_session", "preview_publish"),
        examples=(
            "sandbox-runtime-cli --sandbox-id eos-1 destroy_workspace_session --workspace-session-id ID",
        ),
        result=(
            ResultField("workspace_session_id", "string"),
            ResultField("destroyed", "boolean"),
            ResultField("evicted_upperdir_bytes", "integer"),
            ResultField(
                "discarded",
                "object",
                "paths (at most 100), count and bytes of the discarded work, truncated",
                ours=True,
            ),
            STOPPED,
        ),
        sets=AGENT_SETS,
        waits="grace_s",
        promise="Published versions stay unchanged.",
        result_example='{"workspace_session_id": "…", "destroyed": true, "evicted_upperdir_bytes": 1834}',
    ),
    Operation(
        "list_workspace_sessions",
        "runtime",
        "workspace_session",
        "List sessions and drafts",
        "List the live sessions with base version, size and running commands, and the drafts: work that was "
        "not published. To find a lost id, or to see who else works here.",
        (),
        read_only=True,
        idempotent=True,
        related=("create_workspace_session", "list_commands"),
        examples=("sandbox-runtime-cli --sandbox-id eos-1 list_workspace_sessions",),
        result=(
            ResultField(
                "sessions",
                "array",
                "each with `commands`, those that run in it, 20 at most, and `checkpoints` (checkpoint_id, "
                "label, created_unix_ms, changed_files, undoes); absent without any",
            ),
            ResultField("drafts", "array", "as list_drafts has them, the newest 50; absent without any"),
            ResultField("draft_count", "integer", "number of all drafts; absent without any"),
            ResultField(
                "dead_sessions",
                "array",
                "dead sessions whose work is not a draft: `state` recovering, quarantined "
                "(recover_workspace_session tries "
                "again, destroy_workspace_session discards the work) or damaged, `reason`, `paths`, "
                "`bytes`; absent when there are none",
            ),
        ),
        sets=AGENT_SETS,
        ours=True,
        promise="Every session that can be used by id is listed.",
        result_example='{"sessions": [{"workspace_session_id": "…", "state": "active", "base_version": 3, '
        '"active_command_session_ids": []}]}',
    ),
    Operation(
        "recover_workspace_session",
        "runtime",
        "workspace_session",
        "Retry the recovery of a dead session",
        "Make a draft of the work of a dead session whose recovery failed: list_workspace_sessions shows it "
        "as quarantined. "
        "Returns the draft's id, null when the session had no unpublished work.",
        (SESSION._replace(required=True, help="Dead session to recover."),),
        related=("list_workspace_sessions", "destroy_workspace_session", "list_drafts"),
        examples=(
            "sandbox-runtime-cli --sandbox-id eos-1 recover_workspace_session --workspace-session-id ID",
        ),
        result=(ResultField("workspace_session_id", "string"), ResultField("draft_id", "string|null")),
        sets=RUNTIME_SETS,
        ours=True,
        waits=570,
        promise="An attempt that fails loses nothing: the files stay where they are.",
        result_example='{"workspace_session_id": "…", "draft_id": "draft-0123456789abcdef"}',
    ),
    REBASE,
    Operation(
        "list_commands",
        "runtime",
        "command",
        "List commands",
        "List running and kept commands, newest last, with status and session. Use it to find a command "
        "whose id was lost.",
        (
            SESSION._replace(help="Only commands of this session."),
            Argument(
                "after",
                "string",
                help="Continue after this command_session_id (an answer's next).",
                value="ID",
            ),
            Argument("limit", "integer", help="Most entries.", minimum=1, maximum=1000),
        ),
        read_only=True,
        idempotent=True,
        related=("read_command_lines", "signal_command"),
        examples=("sandbox-runtime-cli --sandbox-id eos-1 list_commands",),
        result=(ResultField("commands", "array"), ResultField("next", "string|null")),
        sets=RUNTIME_SETS,
        ours=True,
        promise="next is null on the last page.",
        result_example='{"commands": [{"command_session_id": "namespace_execution_1", "status": "running", '
        '"command": "sleep 5"}], "next": null}',
    ),
    Operation(
        "signal_command",
        "runtime",
        "command",
        "Send a signal to a command",
        "Send a signal to a running command's process group: INT to interrupt, TERM to end it, KILL to "
        "force. Returns the command's state.",
        (
            _COMMAND_ID,
            Argument(
                "signal",
                "string",
                help="Name of the signal.",
                default="TERM",
                choices=("TERM", "INT", "KILL", "HUP", "QUIT", "USR1", "USR2", "STOP", "CONT"),
                value="NAME",
            ),
        ),
        destructive=True,
        related=("wait_command", "read_command_lines"),
        examples=(
            "sandbox-runtime-cli --sandbox-id eos-1 signal_command --command-session-id "
            "namespace_execution_1 --signal INT",
        ),
        result=_COMMAND_RESULT,
        sets=AGENT_SETS,
        ours=True,
        promise="The signal reached the whole process group.",
        result_example='{"status": "running", "exit_code": null, "command_session_id": '
        '"namespace_execution_1"}',
    ),
    Operation(
        "close_stdin",
        "runtime",
        "command",
        "End a command's input",
        "Close the stdin of a running command, for programs that read to end of file, such as cat or sort.",
        (_COMMAND_ID,),
        related=("write_command_stdin",),
        examples=(
            "sandbox-runtime-cli --sandbox-id eos-1 close_stdin --command-session-id namespace_execution_1",
        ),
        result=_COMMAND_RESULT,
        sets=AGENT_SETS,
        ours=True,
        promise="The command reads end of file next.",
        result_example='{"status": "running", "exit_code": null, "command_session_id": '
        '"namespace_execution_1"}',
    ),
    Operation(
        "wait_command",
        "runtime",
        "command",
        "Wait for a command to end",
        "Wait until a command has ended and its session was published, or timeout_ms passed; then return "
        "its state and new output.",
        (
            _COMMAND_ID,
            Argument("timeout_ms", "integer", help="Longest wait in ms.", default=10000, minimum=0),
        ),
        read_only=True,
        idempotent=True,
        related=("exec_command", "read_command_lines"),
        examples=(
            "sandbox-runtime-cli --sandbox-id eos-1 wait_command --command-session-id namespace_execution_1 "
            "--timeout-ms 60000",
        ),
        result=_COMMAND_RESULT,
        sets=RUNTIME_SETS,
        ours=True,
        waits="timeout_ms",
        promise="A wait never changes or ends the command.",
        result_example='{"status": "ok", "exit_code": 0, "output": "done", "command_session_id": '
        '"namespace_execution_1"}',
    ),
    Operation(
        "preview_publish",
        "runtime",
        "draft",
        "See what a publish would do",
        "Plan the publication of a session or a draft against the newest version without changing anything: "
        "whether it would pass, and every conflict. "
        "Give workspace_session_id or draft_id. Call it before publish_workspace_session when others work "
        "on the same files.",
        (
            SESSION._replace(help="Live session to plan."),
            _DRAFT._replace(help="Draft to plan."),
            CURSOR,
        ),
        read_only=True,
        idempotent=True,
        related=("publish_workspace_session", "list_drafts"),
        examples=("sandbox-runtime-cli --sandbox-id eos-1 preview_publish --workspace-session-id ID",),
        result=(
            ResultField("would_publish", "boolean"),
            ResultField("no_op", "boolean"),
            ResultField("head_version", "integer"),
            ResultField("route_summary", "object"),
            *_CONFLICT_RESULT,
            ResultField("notices", "array"),
            ResultField("dropped", "array"),
            ResultField(
                "refused",
                "object|null",
                "without conflicts: the quota or limit that would refuse a publish now",
            ),
            ResultField("next", "string|null"),
        ),
        sets=RUNTIME_SETS,
        ours=True,
        waits=570,
        promise="Conflicts have the form that they have in a rejection; nothing is written.",
        result_example='{"would_publish": true, "no_op": false, "head_version": 4, "conflicts": [], '
        '"conflict_count": 0}',
    ),
    Operation(
        "list_drafts",
        "runtime",
        "draft",
        "List kept work",
        "List drafts: work that a publish rejected or that a dead session left. create_workspace_session "
        "opens one by draft_id.",
        (),
        read_only=True,
        idempotent=True,
        related=("create_workspace_session", "preview_publish", "discard_draft"),
        examples=("sandbox-runtime-cli --sandbox-id eos-1 list_drafts",),
        result=(ResultField("drafts", "array"),),
        sets=RUNTIME_SETS,
        ours=True,
        promise="A draft stays until it is published or discarded.",
        result_example='{"drafts": [{"draft_id": "draft-0123456789abcdef", "base_version": 3, "reason": '
        '"source_conflict", "paths": 2, "bytes": 90}]}',
    ),
    Operation(
        "diff_draft",
        "runtime",
        "draft",
        "See what a draft changed",
        "List the paths that a draft changed, with patches: against its own base, or against the head, "
        "with theirs.",
        (
            _DRAFT._replace(required=True, ours=False),
            Argument(
                "against",
                "string",
                help="base: its changes; head: what differs now.",
                default="base",
                choices=("base", "head"),
            ),
            Argument("path", "path", help="Only this path and below.", value="PATH"),
            CURSOR,
            PATH_B64,
        ),
        read_only=True,
        idempotent=True,
        related=("list_drafts", "preview_publish", "diff_versions"),
        examples=(
            "sandbox-runtime-cli --sandbox-id eos-1 diff_draft --draft-id draft-0123456789abcdef "
            "--against head",
        ),
        result=(
            ResultField(
                "entries",
                "array",
                "path, change, base, ours, theirs (against head), patch or binary, patch_truncated",
            ),
            ResultField("next", "string|null"),
            ResultField("draft_id", "string"),
            ResultField("against", "string"),
        ),
        sets=RUNTIME_SETS,
        ours=True,
        waits=120,
        promise="git apply accepts each patch.",
        result_example='{"draft_id": "draft-0123456789abcdef", "against": "base", "entries": [{"path": '
        '"a.txt", "change": "modified", "patch": "diff --git …"}], "next": null}',
    ),
    Operation(
        "discard_draft",
        "runtime",
        "draft",
        "Delete a draft for good",
        "Delete a draft and the work in it. Only after its content was published another way or is not "
        "wanted: this cannot be undone.",
        (_DRAFT._replace(required=True),),
        destructive=True,
        related=("list_drafts",),
        examples=("sandbox-runtime-cli --sandbox-id eos-1 discard_draft --draft-id draft-0123456789abcdef",),
        result=(
            ResultField("draft_id", "string"),
            ResultField("discarded", "boolean"),
            ResultField("bytes", "integer"),
        ),
        sets=RUNTIME_SETS,
        ours=True,
        promise="Published versions and sessions opened from the draft stay unchanged.",
        result_example='{"draft_id": "draft-0123456789abcdef", "discarded": true, "bytes": 90}',
    ),
    *MORE_FILES,
    APPLY_PATCH,
    DIFF_SESSION,
    CHECKPOINT,
    RESTORE,
    Operation(
        "list_versions",
        "runtime",
        "history",
        "List openable versions",
        "List the versions that can be opened, newest first, with who made each. Versions that a squash "
        "merged into a later one are not listed.",
        (
            Argument(
                "after",
                "integer",
                help="Continue below this version (an answer's next).",
                minimum=1,
                value="N",
            ),
            Argument("limit", "integer", help="Most entries.", default=100, minimum=1, maximum=1000),
        ),
        read_only=True,
        idempotent=True,
        related=("diff_versions", "rollback_to", "pin_version"),
        examples=("sandbox-runtime-cli --sandbox-id eos-1 list_versions --limit 10",),
        result=(
            ResultField(
                "versions",
                "array",
                "version, owner, agent, request_id, created_unix_ms, layer_id, paths, bytes, root_hash, "
                "layer_count, pinned, head, message (its begin, if one was given)",
            ),
            ResultField("next", "integer|null"),
        ),
        sets=RUNTIME_SETS,
        ours=True,
        promise="Each listed version can be opened, compared and rolled back to.",
        result_example='{"versions": [{"version": 4, "owner": "operation:6f0c…", "paths": 1, "pinned": '
        'false, "head": true}], "next": null}',
    ),
    Operation(
        "diff_versions",
        "runtime",
        "history",
        "Compare two versions",
        "List the paths that differ between two versions, with a patch for text. from may be the newer one: "
        "the patches then undo the changes.",
        (
            Argument("from", "integer", required=True, help="Version to start from.", minimum=1, value="N"),
            Argument("to", "integer", required=True, help="Version to arrive at.", minimum=1, value="N"),
            Argument("path", "path", help="Only this path and below.", value="PATH"),
            CURSOR,
            PATH_B64,
        ),
        read_only=True,
        idempotent=True,
        related=("list_versions", "rollback_to", "diff_draft"),
        examples=("sandbox-runtime-cli --sandbox-id eos-1 diff_versions --from 3 --to 5 --path src",),
        result=(
            ResultField("entries", "array", "path, change, from, to, patch or binary, patch_truncated"),
            ResultField("next", "string|null"),
            ResultField("from", "integer"),
            ResultField("to", "integer"),
        ),
        sets=RUNTIME_SETS,
        ours=True,
        waits=120,
        promise="git apply accepts the patches of all pages, concatenated, as one patch.",
        result_example='{"from": 3, "to": 4, "entries": [{"path": "a.txt", "change": "added", "patch": '
        '"diff --git …"}], "next": null}',
    ),
    Operation(
        "pin_version",
        "runtime",
        "history",
        "Keep a version openable",
        "Pin a version: no squash removes it until it is unpinned. Pinning a pinned version changes nothing.",
        (_VERSION, AGENT._replace(ours=False)),
        idempotent=True,
        related=("unpin_version", "list_versions"),
        examples=("sandbox-runtime-cli --sandbox-id eos-1 pin_version --version 3",),
        result=(
            ResultField("version", "integer"),
            ResultField("pinned", "boolean"),
            ResultField("created_unix_ms", "integer"),
            ResultField("agent", "string|null"),
            ResultField("request_id", "string|null"),
        ),
        sets=RUNTIME_SETS,
        ours=True,
        promise="The pin survives restarts.",
        result_example='{"version": 3, "pinned": true, "created_unix_ms": 1760000000000, "agent": null, '
        '"request_id": "6f0c…"}',
    ),
    Operation(
        "unpin_version",
        "runtime",
        "history",
        "Remove the pin of a version",
        "Remove the pin of a version. It can be opened until a squash merges it into a later one.",
        (_VERSION,),
        idempotent=True,
        related=("pin_version", "list_versions"),
        examples=("sandbox-runtime-cli --sandbox-id eos-1 unpin_version --version 3",),
        result=(
            ResultField("version", "integer"),
            ResultField("pinned", "boolean"),
            ResultField("was_pinned", "boolean"),
        ),
        sets=RUNTIME_SETS,
        ours=True,
        promise="Nothing is deleted.",
        result_example='{"version": 3, "pinned": false, "was_pinned": true}',
    ),
    Operation(
        "rollback_to",
        "runtime",
        "history",
        "Publish an earlier version again",
        "Make the head show exactly the tree of an earlier version, by one new layer on top: every version "
        "in between stays, so it can be undone the same way.",
        (_VERSION, AGENT._replace(ours=False)),
        related=("list_versions", "diff_versions"),
        examples=("sandbox-runtime-cli --sandbox-id eos-1 rollback_to --version 3",),
        result=(
            ResultField("version", "integer"),
            ResultField("publish", "object", "no_op, revision, route_summary"),
            ResultField("layer_id", "string|null"),
        ),
        sets=RUNTIME_SETS,
        ours=True,
        waits=570,
        promise="Open sessions keep their base; a later publish of one is merged with the rollback as with "
        "any other publish.",
        result_example='{"version": 3, "publish": {"no_op": false, "revision": {"manifest_version": 6, '
        '"root_hash": "…", "layer_count": 6}, '
        '"route_summary": {"source_count": 2, "ignored_count": 0}}, "layer_id": "L000006-…"}',
    ),
    Operation(
        "fsck",
        "runtime",
        "history",
        "Check the store against what was written",
        "Compare every layer, draft and record of the sandbox's store with the digests taken when it was "
        "written, and list the differences. "
        "Repairs nothing. One page per call: pass next as cursor until it is null.",
        (
            Argument(
                "base", "boolean", help="Also read the base and compare it with its hash.", default=False
            ),
            CURSOR,
        ),
        read_only=True,
        idempotent=True,
        related=("list_versions", "list_drafts", "layerstack"),
        examples=("sandbox-runtime-cli --sandbox-id eos-1 fsck", "eos fsck eos-1"),
        result=(
            ResultField("damage", "array", "file, what, found_by"),
            ResultField(
                "notes",
                "array",
                "kind (left_over, not_checked, unknown), file, what: findings that are not damage",
            ),
            ResultField("checked", "object", "layers, entries and bytes of this page"),
            ResultField("parts_left", "integer"),
            ResultField("next", "string|null"),
        ),
        sets=("all",),
        ours=True,
        waits=NO_BUDGET,
        promise="Publishes and squashes continue during the check; no layer is removed while it is read.",
        result_example='{"damage": [{"file": "layers/L000002-1f00aa12/a.txt", "what": "its content is not '
        'what was published", "found_by": "SHA-256 in the index"}], '
        '"notes": [], "checked": {"layers": 3, "entries": 40, "bytes": 900}, "parts_left": 0, "next": null}',
    ),
)

# Used between gateway, manager and agent. The gateway refuses a client that sends one of these.
INTERNAL_NAMES = frozenset(
    {
        "squash_layerstack",
        "export_layerstack",
        "read_export_chunk",
        "export_stream",
        "export_git",
        "export_git_heads",
        "import_tree",
        "unpublished_work",
    }
)
# Routed like a runtime operation, but no tool and not in help.
HIDDEN_NAMES = frozenset({"cancel_request", "sandbox_daemon_ready"})

_BY_NAME = {operation.name: operation for operation in (*RUNTIME, *OBSERVABILITY)}


def find(name: str) -> Operation | None:
    """Return the runtime or observability operation of that name, or None."""
    return _BY_NAME.get(name)
