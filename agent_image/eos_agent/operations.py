"""The runtime and observability operations, declared once: names, arguments, bounds, hints, texts. Pure data, any OS, standard library only.

The command lines, the MCP tools, the gateway's budgets and the agent's argument checks all read these tables. The order of a table is the order of
the help page and of `tools/list`. What the reference has comes first; `ours` marks operations, arguments and result fields beyond it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple, TypeGuard

from eos_agent.protocol import INVALID_REQUEST, OperationError

U64_MAX = 2**64 - 1
ARRAY_DEPTH = 16
KINDS = ("string", "integer", "float", "path", "json_array", "boolean")
ANSWER_S = 30.0
DEFAULT_YIELD_MS = 1000
NO_BUDGET = math.inf  # an operation whose length nobody can bound: the gateway waits for it


class Argument(NamedTuple):
    """One argument. Bounds are inclusive; `items` is the JSON schema of an array's members; `default` has its native JSON type."""

    name: str
    kind: str
    required: bool = False
    help: str = ""
    default: Any = None
    minimum: float | None = None
    maximum: float | None = None
    choices: tuple[str, ...] = ()
    items: dict[str, Any] | None = None
    flag: str = ""  # "" = the kebab-case name
    positional: str = ""  # the label, for the one argument of an operation that has no flag
    aliases: tuple[str, ...] = ()
    value: str = ""  # what stands for the value in a usage line; "" = by kind
    file_flag: str = ""  # a command line also takes the value from a file, `-` is standard input
    server_default: Any = None  # what a raw request without the (required) argument means
    ours: bool = False
    hidden: bool = False  # no part of a tool's schema, which a model reads in every session; accepted all the same

    @property
    def label(self) -> str:
        """`--path`, or the positional's label."""
        return self.positional or self.flag or "--" + self.name.replace("_", "-")

    @property
    def value_label(self) -> str:
        """`dir|tar`, `N`, `PATH`: the value in a usage line."""
        by_kind = {"integer": "N", "float": "N", "path": "PATH", "json_array": "JSON", "boolean": "true|false"}
        return self.value or "|".join(self.choices) or by_kind.get(self.kind, "VALUE")


class ResultField(NamedTuple):
    """A key of the result, or `key.inner` of an object, or of each object of an array, where one of ours stands beside the contract's.

    `type` is JSON's word for it, alternatives joined by `|`. Any key may be absent.
    """

    name: str
    type: str
    help: str = ""
    ours: bool = False


class Family(NamedTuple):
    id: str
    title: str
    summary: str
    description: str


class Operation(NamedTuple):
    """One operation.

    `waits` is how long it may rightly take beyond the common 30 s: seconds, NO_BUDGET, or the name of the argument (`…_ms` or `…_s`) that says so.
    """

    name: str
    domain: str
    family: str
    summary: str
    description: str
    arguments: tuple[Argument, ...] = ()
    scope: str = "sandbox_required"
    owner: str = "runtime"
    visibility: str = "public"
    read_only: bool = False
    destructive: bool = False
    idempotent: bool = False
    open_world: bool = False
    related: tuple[str, ...] = ()
    examples: tuple[str, ...] = ()
    when_to_use: tuple[str, ...] = ()
    result: tuple[ResultField, ...] = ()
    sets: tuple[str, ...] = ()
    ours: bool = False
    waits: float | str = 0
    promise: str = ""
    result_example: str = ""

    def argument(self, name: str) -> Argument | None:
        return next((a for a in self.arguments if a.name == name), None)


AGENT_SETS = ("runtime", "agent", "all")
RUNTIME_SETS = ("runtime", "all")
OBSERVABILITY_SETS = ("observability", "all")

RUNTIME_FAMILIES = (
    Family("command", "Commands", "Run commands and talk to them.", "Start a command in a workspace session, feed it, read it, stop it."),
    Family("file", "Files", "Read and change files.", "Files of the published head, or of a session's private view."),
    Family("daemon_http", "Daemon HTTP", "The sandbox's small HTTP surface.", "No operations of its own."),
    Family("network_isolation", "Network isolation", "Sessions with their own network.", "No operations of its own."),
    Family("reserved_paths", "Reserved paths", "Names that cannot be published.", "No operations of its own."),
    Family("shell_security", "Shell security", "What a command may not do.", "No operations of its own."),
    Family(
        "workspace_session",
        "Workspace sessions",
        "Open, publish and discard private views.",
        "A session is a private writable view of one version. Publishing appends what it changed as one layer, all of it or nothing.",
    ),
    Family(
        "draft",
        "Drafts",
        "Look at and settle work that was not published.",
        "A refused or interrupted session leaves its work as a draft; nothing is lost until it is discarded.",
    ),
    Family(
        "history",
        "History",
        "Earlier versions: list, compare, keep, go back.",
        "Every publish makes a version. It can be opened until a squash folds it into a later one; a pinned version stays.",
    ),
)

OBSERVABILITY_FAMILIES = (
    Family("snapshot", "Snapshot", "What exists now.", "State of one sandbox, or of all of them."),
    Family("trace", "Trace", "Spans of one request.", "No operations yet."),
    Family("events", "Events", "What happened, newest last.", "No operations yet."),
    Family("resources", "Resources", "CPU and memory over time.", "No operations yet."),
    Family("daemon", "Daemon", "The agent process itself.", "No operations yet."),
    Family("topology", "Topology", "Processes and namespaces.", "No operations yet."),
    Family("cgroup", "Cgroup", "Limits and pressure.", "No operations yet."),
    Family("layerstack", "Layer stack", "Layers, sizes and leases.", "The stack as it lies on disk."),
    Family("resource_isolation", "Resource isolation", "What one sandbox can take from another.", "No operations of its own."),
    Family("resource_efficiency", "Resource efficiency", "What a sandbox costs.", "No operations of its own."),
)

_SESSION = Argument("workspace_session_id", "string", help="Session to act in. Omit for the published head.", value="ID")
_COMMAND_ID = Argument("command_session_id", "string", required=True, help="Id that exec_command returned.", value="ID")
_YIELD = Argument(
    "yield_time_ms",
    "integer",
    help="Longest wait for the end, in ms (1000 when absent; 0: none).",
    minimum=0,
    value="N",
)
_AGENT = Argument("agent", "string", help="Your name, for others to see.", value="NAME", ours=True)
_PATH = Argument("path", "string", required=True, help="Path in the workspace.", value="PATH")
_PATH_B64 = Argument(
    "path_b64", "string", help="The path's bytes in base64, for a name that is no UTF-8.", value="B64", ours=True, hidden=True
)
_GRACE = Argument("grace_s", "float", help="Seconds to wait for running commands to end first.", minimum=0, value="N")
_CURSOR = Argument("cursor", "string", help="The answer's next, to go on.", value="CURSOR")
_VERSION = Argument("version", "integer", required=True, help="Number of the version.", minimum=1, value="N")
_DRAFT = Argument("draft_id", "string", help="Draft id, from a refused publish or list_drafts.", value="ID", ours=True)

_COMMAND_RESULT = (
    ResultField("status", "string", "running, ok, error, timed_out or cancelled; ok means exit code 0"),
    ResultField("exit_code", "integer|null", "null while running; 124 timeout, 130 cancelled, -N killed by signal N"),
    ResultField("wall_time_seconds", "number"),
    ResultField("command_total_time_seconds", "number"),
    ResultField("start_offset", "integer", "first line in output"),
    ResultField("end_offset", "integer", "one past the last line in output; go on here"),
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
    ResultField("publish", "object", "published, no_op, revision, route_summary; synced false: a power cut may undo it", ours=True),
    ResultField("publish_rejection", "object", "every conflict with base, ours, theirs and hunks", ours=True),
    ResultField("draft_id", "string", "where refused work is kept", ours=True),
    ResultField("hint", "string", ours=True),
    ResultField("finalizing", "boolean", "the command ended, its session is being published", ours=True),
    ResultField("leader_exit_code", "integer", "the command itself ended, others of its group live", ours=True),
    ResultField("waiting_on", "array", "processes of the group that still run", ours=True),
    ResultField("left_behind", "array", "processes that left the group", ours=True),
    ResultField("stderr", "string", "with split_output", ours=True),
    ResultField("stderr_end_offset", "integer", "as end_offset, of stderr", ours=True),
    ResultField("stderr_total_lines", "integer", ours=True),
    ResultField("truncated", "boolean", ours=True),
    ResultField("dropped", "object", "start_offset, end_offset and bytes of lines that were not kept", ours=True),
    ResultField("session_lost", "boolean", "the session died with the command; draft_id has its work", ours=True),
    ResultField("finalization_error", "object", "kind, message and details of finalization_failed", ours=True),
    ResultField("output_error", "string", "errno's name: reading the output failed", ours=True),
)
_FILE_CHANGE = (
    ResultField("type", "string", "create, update or edit"),
    ResultField("path", "string"),
    ResultField("bytes_written", "integer"),
    ResultField("path_b64", "string", "when path is no UTF-8", ours=True),
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
        "Run a shell command in the workspace. Without workspace_session_id its changes are published as one layer when it ends; with one they stay private. "
        "Answers within yield_time_ms; status running: go on with its command_session_id. "
        "publish_rejected: your work is in draft_id; redo it on the head, then discard the draft.",
        (
            Argument("cmd", "string", required=True, help="The command, run by sh or bash.", positional="COMMAND"),
            _SESSION._replace(help="Session to run in. Omit for a fresh one that publishes at its end."),
            Argument("timeout_ms", "integer", help="Kill it after this long, in ms.", minimum=0),
            _YIELD,
            Argument("cwd", "path", help="Directory to run in.", ours=True),
            Argument(
                "env",
                "json_array",
                help='Array of "NAME=value".',
                items={"type": "string", "pattern": "^[^=]+="},
                ours=True,
            ),
            Argument("tty", "boolean", help="false: pipes and no stdin, instead of a terminal.", default=True, ours=True),
            Argument(
                "stdin",
                "string",
                help="Text for its stdin; with tty=false it ends there.",
                value="TEXT",
                file_flag="--stdin-file",
                ours=True,
            ),
            Argument("split_output", "boolean", help="Keep stderr apart; needs tty=false.", default=False, ours=True),
            Argument("user", "string", help="Name or uid to run as.", value="USER", ours=True),
            _AGENT,
        ),
        open_world=True,
        related=("read_command_lines", "write_command_stdin", "wait_command", "create_workspace_session"),
        examples=(
            'sandbox-runtime-cli --sandbox-id eos-1 exec_command "make test"',
            'sandbox-runtime-cli --sandbox-id eos-1 exec_command --workspace-session-id ID --timeout-ms 60000 "pytest -q"',
        ),
        result=_COMMAND_RESULT,
        sets=AGENT_SETS,
        waits="yield_time_ms",
        promise="The answer that reports the end comes after the session's work was published or kept as a draft.",
        result_example='{"status": "ok", "exit_code": 0, "output": "ready", "start_offset": 0, "end_offset": 1, "total_lines": 1}',
    ),
    Operation(
        "write_command_stdin",
        "runtime",
        "command",
        "Write to a running command",
        "Send text to a running command, as typed: add the newline yourself. Only U+0003 or U+0004 cancels it (exit code 130). "
        "Returns the lines since the last answer. operation_failed: it has ended; use read_command_lines.",
        (
            _COMMAND_ID,
            Argument("stdin", "string", required=True, help="Text to write, verbatim.", positional="TEXT", file_flag="--stdin-file"),
            _YIELD,
        ),
        open_world=True,
        related=("exec_command", "close_stdin", "signal_command"),
        examples=("sandbox-runtime-cli --sandbox-id eos-1 write_command_stdin --command-session-id namespace_execution_1 $'yes\\n'",),
        result=_COMMAND_RESULT,
        sets=AGENT_SETS,
        waits="yield_time_ms",
        promise="Bytes are written as given, within two seconds or not at all.",
        result_example='{"status": "running", "exit_code": null, "output": "continue? yes", "command_session_id": "namespace_execution_1"}',
    ),
    Operation(
        "read_command_lines",
        "runtime",
        "command",
        "Read a command's output by line",
        "Read output of a running or ended command from any line, without waiting. "
        "Go on at end_offset until it equals total_lines. not_found: no such id, or evicted (the newest 512 ended commands are kept).",
        (
            _COMMAND_ID,
            Argument("start_offset", "integer", help="First line, from 0.", default=0, minimum=0),
            Argument("limit", "integer", help="Most lines to return; kept within 1 to 1000.", default=200, minimum=0),
        ),
        read_only=True,
        idempotent=True,
        related=("exec_command", "wait_command"),
        examples=(
            "sandbox-runtime-cli --sandbox-id eos-1 read_command_lines --command-session-id namespace_execution_1 --start-offset 200",
        ),
        result=_COMMAND_RESULT,
        sets=AGENT_SETS,
        promise="Offsets are stable: the same offset gives the same line for as long as the command is kept.",
        result_example='{"status": "ok", "exit_code": 0, "start_offset": 0, "end_offset": 2, "total_lines": 2, "output": "a\\nb"}',
    ),
    Operation(
        "file_read",
        "runtime",
        "file",
        "Read a text file",
        "Read lines of a UTF-8 file: of the published head, or of a session's private view. Returns at most 2000 lines and 256 KiB; go on at next_offset. "
        "Symlinks and binary files are refused; use exec_command for those.",
        (
            _PATH,
            Argument("offset", "integer", help="First line, from 1.", default=1, minimum=1),
            Argument("limit", "integer", help="Most lines to return.", default=2000, minimum=1, maximum=2000),
            _SESSION,
            _PATH_B64,
        ),
        read_only=True,
        idempotent=True,
        related=("file_write", "file_edit", "file_list"),
        examples=(
            "sandbox-runtime-cli --sandbox-id eos-1 file_read --path README.md",
            "sandbox-runtime-cli --sandbox-id eos-1 file_read --path big.log --offset 2001",
        ),
        result=(
            ResultField("path", "string"),
            ResultField("content", "string"),
            ResultField("start_line", "integer"),
            ResultField("num_lines", "integer"),
            ResultField("total_lines", "integer"),
            ResultField("bytes_read", "integer"),
            ResultField("total_bytes", "integer"),
            ResultField("next_offset", "integer|null"),
            ResultField("truncated", "boolean"),
            ResultField("path_b64", "string", "when path is no UTF-8", ours=True),
        ),
        sets=AGENT_SETS,
        promise="One whole published version is read, never half of a change.",
        result_example='{"path": "status.txt", "content": "ready", "start_line": 1, "num_lines": 1, "total_lines": 1, "bytes_read": 5, "total_bytes": 6, "next_offset": null, "truncated": false}',
    ),
    Operation(
        "file_write",
        "runtime",
        "file",
        "Write a whole file",
        "Create a file, or replace the whole of one, so read it first; parents are made, the mode is kept. Directories and symlinks are refused.",
        (
            _PATH,
            Argument(
                "content",
                "string",
                required=True,
                help="The whole new content.",
                value="TEXT",
                file_flag="--content-file",
                server_default="",
            ),
            _SESSION._replace(help="Session to write in. Omit to publish at once."),
            _AGENT,
            _PATH_B64,
        ),
        idempotent=True,
        related=("file_edit", "file_read"),
        examples=("sandbox-runtime-cli --sandbox-id eos-1 file_write --path notes.txt --content-file -",),
        result=_FILE_CHANGE,
        sets=AGENT_SETS,
        promise="All of the content is there afterwards, or the file is as it was.",
        result_example='{"type": "create", "path": "notes.txt", "bytes_written": 6}',
    ),
    Operation(
        "file_edit",
        "runtime",
        "file",
        "Replace exact text in a file",
        "Apply exact replacements in order; each old_string must occur exactly once unless replace_all. All of them or none. "
        "Concurrent edits of other lines survive. "
        "invalid_request names the edit that did not match: read the file again.",
        (
            _PATH,
            Argument(
                "edits",
                "json_array",
                required=True,
                help="Array of {old_string, new_string, replace_all?}.",
                items={
                    "type": "object",
                    "properties": {"old_string": {"type": "string"}, "new_string": {"type": "string"}, "replace_all": {"type": "boolean"}},
                    "required": ["old_string", "new_string"],
                    "additionalProperties": False,
                },
                file_flag="--edits-file",
            ),
            _SESSION._replace(help="Session to edit in. Omit to publish at once."),
            _AGENT,
            _PATH_B64,
        ),
        related=("file_read", "file_write"),
        examples=(
            """sandbox-runtime-cli --sandbox-id eos-1 file_edit --path a.py --edits '[{"old_string":"x = 1","new_string":"x = 2"}]'""",
        ),
        result=(*_FILE_CHANGE, ResultField("edits_applied", "integer"), ResultField("replacements", "integer")),
        sets=AGENT_SETS,
        promise="A bad edit leaves the file untouched.",
        result_example='{"type": "edit", "path": "a.py", "edits_applied": 1, "replacements": 1, "bytes_written": 6}',
    ),
    Operation(
        "file_blame",
        "runtime",
        "file",
        "Who wrote each line",
        "List who wrote each line of a published file, as ranges: workspace_session:ID, operation:REQUEST_ID, or original for lines of the base. "
        "A deleted file answers its last ranges.",
        (_PATH, _PATH_B64),
        read_only=True,
        idempotent=True,
        related=("file_read", "list_workspace_sessions"),
        examples=("sandbox-runtime-cli --sandbox-id eos-1 file_blame --path src/app.py",),
        result=(
            ResultField("path", "string"),
            ResultField("ranges", "array", "start_line, line_count, owner; the whole file without gaps"),
            ResultField("path_b64", "string", "when path is no UTF-8", ours=True),
        ),
        sets=AGENT_SETS,
        waits=60,
        promise="The lines of unpublished sessions are nobody's yet.",
        result_example='{"path": "a.txt", "ranges": [{"start_line": 1, "line_count": 3, "owner": "original"}, {"start_line": 4, "line_count": 1, "owner": "operation:6f0c…"}]}',
    ),
    Operation(
        "create_workspace_session",
        "runtime",
        "workspace_session",
        "Open a private session",
        "Open a private writable view of the newest version that lasts until it is published or destroyed, for work of several calls. "
        "Pass its workspace_session_id to commands and file operations. Later publishes are not seen in it.",
        (
            Argument("network_profile", "string", help="isolated: a network of its own.", default="shared", choices=("shared", "isolated")),
            _DRAFT._replace(help="Start from this draft's work."),
            Argument(
                "draft_base",
                "string",
                help="Where draft_id opens: its own base, or merged onto the head.",
                default="own",
                choices=("own", "head"),
                ours=True,
            ),
            Argument("base_version", "integer", help="Start from this older version.", minimum=1, value="N", ours=True),
            _AGENT,
            Argument(
                "rootfs",
                "string",
                help="read_only: only workspace and a private /tmp are writable.",
                default="shared",
                choices=("shared", "read_only"),
                ours=True,
            ),
        ),
        related=("publish_workspace_session", "destroy_workspace_session", "exec_command"),
        examples=(
            "sandbox-runtime-cli --sandbox-id eos-1 create_workspace_session",
            "sandbox-runtime-cli --sandbox-id eos-1 create_workspace_session --draft-id draft-0123456789abcdef",
        ),
        result=(
            ResultField("workspace_session_id", "string"),
            ResultField("network_profile", "string"),
            ResultField("finalize_policy", "string"),
            ResultField("base_version", "integer", ours=True),
            ResultField("draft_id", "string", ours=True),
            ResultField("network", "string", "isolated: loopback_only, no address of its own", ours=True),
        ),
        sets=AGENT_SETS,
        waits=30,
        promise="The session sees one version for its whole life.",
        result_example='{"workspace_session_id": "…", "network_profile": "shared", "finalize_policy": "no_op"}',
    ),
    Operation(
        "publish_workspace_session",
        "runtime",
        "workspace_session",
        "Publish a session's work",
        "Append what the session changed as one layer, all of it or nothing, and close it. Lines that others changed elsewhere are merged. "
        "On rejection nothing is published and the session stays open: details.publish_rejection.conflicts lists each path with base, ours, theirs. "
        "Redo those in a new session, publish that, destroy this one.",
        (_SESSION._replace(required=True, help="Session to publish."), _GRACE),
        related=("preview_publish", "destroy_workspace_session"),
        examples=("sandbox-runtime-cli --sandbox-id eos-1 publish_workspace_session --workspace-session-id ID",),
        result=(
            ResultField("workspace_session_id", "string"),
            ResultField("publish", "object", "no_op, revision, route_summary"),
            ResultField("destroyed", "boolean"),
            ResultField("evicted_upperdir_bytes", "integer"),
            ResultField("publish.notices", "array", "what of ours or theirs was kept or dropped where both changed it", ours=True),
            ResultField("publish.dropped", "array", "sockets, pipes and devices, which no layer holds", ours=True),
        ),
        sets=AGENT_SETS,
        waits=570,
        promise="After a success the new version survives a power cut; after a rejection nothing has happened.",
        result_example='{"workspace_session_id": "…", "publish": {"no_op": false, "revision": {"manifest_version": 4, "root_hash": "…", "layer_count": 4}, '
        '"route_summary": {"source_count": 2, "ignored_count": 0}}, "destroyed": true, "evicted_upperdir_bytes": 1834}',
    ),
    Operation(
        "destroy_workspace_session",
        "runtime",
        "workspace_session",
        "Discard a session",
        "Close a session and throw its unpublished changes away for good. Refused while its commands run: signal or wait for them first.",
        (_SESSION._replace(required=True, help="Session to discard."), _GRACE),
        destructive=True,
        related=("publish_workspace_session", "preview_publish"),
        examples=("sandbox-runtime-cli --sandbox-id eos-1 destroy_workspace_session --workspace-session-id ID",),
        result=(
            ResultField("workspace_session_id", "string"),
            ResultField("destroyed", "boolean"),
            ResultField("evicted_upperdir_bytes", "integer"),
            ResultField("discarded", "object", "what was thrown away", ours=True),
        ),
        sets=AGENT_SETS,
        waits="grace_s",
        promise="The published versions are as before.",
        result_example='{"workspace_session_id": "…", "destroyed": true, "evicted_upperdir_bytes": 1834}',
    ),
    Operation(
        "list_workspace_sessions",
        "runtime",
        "workspace_session",
        "List live sessions",
        "List the live sessions with base version, size and running commands: to find a lost id, or to see who else works here.",
        (),
        read_only=True,
        idempotent=True,
        related=("create_workspace_session", "list_commands"),
        examples=("sandbox-runtime-cli --sandbox-id eos-1 list_workspace_sessions",),
        result=(ResultField("sessions", "array"),),
        sets=AGENT_SETS,
        ours=True,
        promise="Every session that can be used by id is listed.",
        result_example='{"sessions": [{"workspace_session_id": "…", "state": "active", "base_version": 3, "active_command_session_ids": []}]}',
    ),
    Operation(
        "list_commands",
        "runtime",
        "command",
        "List commands",
        "List running and kept commands, newest last, with status and session. Use it to find a command whose id was lost.",
        (
            _SESSION._replace(help="Only commands of this session."),
            Argument("after", "string", help="Go on after this command_session_id (the answer's next).", value="ID"),
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
        result_example='{"commands": [{"command_session_id": "namespace_execution_1", "status": "running", "command": "sleep 5"}], "next": null}',
    ),
    Operation(
        "signal_command",
        "runtime",
        "command",
        "Send a signal to a command",
        "Send a signal to a running command's process group: INT to interrupt, TERM to end it, KILL to force. Returns the command's state.",
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
        examples=("sandbox-runtime-cli --sandbox-id eos-1 signal_command --command-session-id namespace_execution_1 --signal INT",),
        result=_COMMAND_RESULT,
        sets=AGENT_SETS,
        ours=True,
        promise="The signal reached the whole process group.",
        result_example='{"status": "running", "exit_code": null, "command_session_id": "namespace_execution_1"}',
    ),
    Operation(
        "close_stdin",
        "runtime",
        "command",
        "End a command's input",
        "Tell a running command that its input is over (end of file), for programs that read until then, such as cat or sort.",
        (_COMMAND_ID,),
        related=("write_command_stdin",),
        examples=("sandbox-runtime-cli --sandbox-id eos-1 close_stdin --command-session-id namespace_execution_1",),
        result=_COMMAND_RESULT,
        sets=RUNTIME_SETS,
        ours=True,
        promise="The command reads end of file next.",
        result_example='{"status": "running", "exit_code": null, "command_session_id": "namespace_execution_1"}',
    ),
    Operation(
        "wait_command",
        "runtime",
        "command",
        "Wait for a command to end",
        "Wait until a command has ended and its session was published, or timeout_ms passed; then return its state and new output.",
        (_COMMAND_ID, Argument("timeout_ms", "integer", help="Longest wait in ms.", default=10000, minimum=0)),
        read_only=True,
        idempotent=True,
        related=("exec_command", "read_command_lines"),
        examples=("sandbox-runtime-cli --sandbox-id eos-1 wait_command --command-session-id namespace_execution_1 --timeout-ms 60000",),
        result=_COMMAND_RESULT,
        sets=AGENT_SETS,
        ours=True,
        waits="timeout_ms",
        promise="A wait never changes or ends the command.",
        result_example='{"status": "ok", "exit_code": 0, "output": "done", "command_session_id": "namespace_execution_1"}',
    ),
    Operation(
        "preview_publish",
        "runtime",
        "draft",
        "See what a publish would do",
        "Plan the publication of a session or a draft against the newest version without changing anything: would it pass, and every conflict if not. "
        "Give workspace_session_id or draft_id. Call it before publish_workspace_session when others work on the same files.",
        (
            _SESSION._replace(help="Live session to plan."),
            _DRAFT._replace(help="Draft to plan."),
            _CURSOR,
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
            ResultField("next", "string|null"),
        ),
        sets=RUNTIME_SETS,
        ours=True,
        waits=570,
        promise="The same object as a rejection; nothing is written.",
        result_example='{"would_publish": true, "no_op": false, "head_version": 4, "conflicts": [], "conflict_count": 0}',
    ),
    Operation(
        "list_drafts",
        "runtime",
        "draft",
        "List kept work",
        "List drafts: work that was refused by a publish or left by a session that died. create_workspace_session opens one by draft_id.",
        (),
        read_only=True,
        idempotent=True,
        related=("create_workspace_session", "preview_publish", "discard_draft"),
        examples=("sandbox-runtime-cli --sandbox-id eos-1 list_drafts",),
        result=(ResultField("drafts", "array"),),
        sets=AGENT_SETS,
        ours=True,
        promise="A draft stays until it is published or discarded.",
        result_example='{"drafts": [{"draft_id": "draft-0123456789abcdef", "base_version": 3, "reason": "source_conflict", "paths": 2, "bytes": 90}]}',
    ),
    Operation(
        "diff_draft",
        "runtime",
        "draft",
        "See what a draft changed",
        "List the paths that a draft changed, with patches: against its own base, or against the head, with theirs.",
        (
            _DRAFT._replace(required=True, ours=False),
            Argument("against", "string", help="base: what it did; head: what differs now.", default="base", choices=("base", "head")),
            Argument("path", "path", help="Only this path and below.", value="PATH"),
            _CURSOR,
            _PATH_B64,
        ),
        read_only=True,
        idempotent=True,
        related=("list_drafts", "preview_publish", "diff_versions"),
        examples=("sandbox-runtime-cli --sandbox-id eos-1 diff_draft --draft-id draft-0123456789abcdef --against head",),
        result=(
            ResultField("entries", "array", "path, change, base, ours, theirs (against head), patch or binary, patch_truncated"),
            ResultField("next", "string|null"),
            ResultField("draft_id", "string"),
            ResultField("against", "string"),
        ),
        sets=AGENT_SETS,
        ours=True,
        waits=120,
        promise="A patch is one that git apply takes.",
        result_example='{"draft_id": "draft-0123456789abcdef", "against": "base", "entries": [{"path": "a.txt", "change": "modified", "patch": "diff --git …"}], "next": null}',
    ),
    Operation(
        "discard_draft",
        "runtime",
        "draft",
        "Delete a draft for good",
        "Delete a draft and the work in it. Only after its content was published another way or is not wanted: it cannot be brought back.",
        (_DRAFT._replace(required=True),),
        destructive=True,
        related=("list_drafts",),
        examples=("sandbox-runtime-cli --sandbox-id eos-1 discard_draft --draft-id draft-0123456789abcdef",),
        result=(ResultField("draft_id", "string"), ResultField("discarded", "boolean"), ResultField("bytes", "integer")),
        sets=RUNTIME_SETS,
        ours=True,
        promise="Published versions and sessions opened from the draft are as before.",
        result_example='{"draft_id": "draft-0123456789abcdef", "discarded": true, "bytes": 90}',
    ),
    Operation(
        "file_list",
        "runtime",
        "file",
        "List a directory",
        "List one level of a directory with kind and size, of the published head or of a session's private view. truncated: narrow the path.",
        (
            _PATH._replace(required=False, default="", help="Directory; empty for the workspace root."),
            Argument("limit", "integer", help="Most entries; kept within 2000.", minimum=1),
            _SESSION,
            _PATH_B64,
        ),
        read_only=True,
        idempotent=True,
        related=("file_read",),
        examples=("sandbox-runtime-cli --sandbox-id eos-1 file_list --path src",),
        result=(ResultField("path", "string"), ResultField("entries", "array"), ResultField("truncated", "boolean")),
        sets=AGENT_SETS,
        ours=True,
        promise="Sorted by name bytes; symlinks are listed, not followed.",
        result_example='{"path": "src", "entries": [{"name": "main.py", "kind": "file", "size": 120}], "truncated": false}',
    ),
    Operation(
        "list_versions",
        "runtime",
        "history",
        "List openable versions",
        "List the versions that can be opened, newest first, with who made each. A version that a squash folded into a later one is not listed.",
        (
            Argument("after", "integer", help="Go on below this version (the answer's next).", minimum=1, value="N"),
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
                "version, owner, agent, request_id, created_unix_ms, layer_id, paths, bytes, root_hash, layer_count, pinned, head",
            ),
            ResultField("next", "integer|null"),
        ),
        sets=RUNTIME_SETS,
        ours=True,
        promise="Each listed version can be opened, compared and rolled back to.",
        result_example='{"versions": [{"version": 4, "owner": "operation:6f0c…", "paths": 1, "pinned": false, "head": true}], "next": null}',
    ),
    Operation(
        "diff_versions",
        "runtime",
        "history",
        "What changed between two versions",
        "List the paths that differ between two versions, with a patch for text. from may be the newer one: the patches then lead back.",
        (
            Argument("from", "integer", required=True, help="Version to start from.", minimum=1, value="N"),
            Argument("to", "integer", required=True, help="Version to arrive at.", minimum=1, value="N"),
            Argument("path", "path", help="Only this path and below.", value="PATH"),
            _CURSOR,
            _PATH_B64,
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
        promise="All patches of a difference, one after the other, are one that git apply takes.",
        result_example='{"from": 3, "to": 4, "entries": [{"path": "a.txt", "change": "added", "patch": "diff --git …"}], "next": null}',
    ),
    Operation(
        "pin_version",
        "runtime",
        "history",
        "Keep a version openable",
        "Pin a version: no squash folds it away until it is unpinned. Pinning twice is pinning once.",
        (_VERSION, _AGENT._replace(ours=False)),
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
        result_example='{"version": 3, "pinned": true, "created_unix_ms": 1760000000000, "agent": null, "request_id": "6f0c…"}',
    ),
    Operation(
        "unpin_version",
        "runtime",
        "history",
        "Let a pinned version go",
        "Take the pin off a version. It can still be opened until a squash folds it into a later one.",
        (_VERSION,),
        idempotent=True,
        related=("pin_version", "list_versions"),
        examples=("sandbox-runtime-cli --sandbox-id eos-1 unpin_version --version 3",),
        result=(ResultField("version", "integer"), ResultField("pinned", "boolean"), ResultField("was_pinned", "boolean")),
        sets=RUNTIME_SETS,
        ours=True,
        promise="Nothing is deleted by it.",
        result_example='{"version": 3, "pinned": false, "was_pinned": true}',
    ),
    Operation(
        "rollback_to",
        "runtime",
        "history",
        "Publish an earlier version again",
        "Make the head show exactly the tree of an earlier version, by one new layer on top: every version in between stays, so it can be undone the same way.",
        (_VERSION, _AGENT._replace(ours=False)),
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
        promise="Open sessions keep their base; what they publish is merged with the rollback like with any publish.",
        result_example='{"version": 3, "publish": {"no_op": false, "revision": {"manifest_version": 6, "root_hash": "…", "layer_count": 6}, '
        '"route_summary": {"source_count": 2, "ignored_count": 0}}, "layer_id": "L000006-…"}',
    ),
)

OBSERVABILITY: tuple[Operation, ...] = (
    Operation(
        "snapshot",
        "observability",
        "snapshot",
        "State of one sandbox or of all",
        "Live state: sessions, running commands, the layer stack and the agent. With sandbox_id of that sandbox, without of every ready one. "
        "A sandbox that does not answer is listed as unavailable; it never makes the call fail.",
        (Argument("sandbox_id", "string", help="Sandbox id. Omit for all sandboxes.", value="ID"),),
        scope="system_or_sandbox",
        owner="observability",
        read_only=True,
        idempotent=True,
        related=("inspect_sandbox", "layerstack"),
        examples=("sandbox-observability-cli snapshot", "sandbox-observability-cli snapshot --sandbox-id eos-1"),
        result=(
            ResultField("sandboxes", "array", "without sandbox_id"),
            ResultField("sandbox_id", "string"),
            ResultField("lifecycle_state", "string"),
            ResultField("availability", "string"),
            ResultField("sampled_at_unix_ms", "integer|null"),
            ResultField("errors", "array"),
            ResultField("daemon", "object"),
            ResultField("resources", "object"),
            ResultField("workspaces", "array"),
            ResultField("stack", "object"),
            ResultField("stack.draft_count", "integer", ours=True),
            ResultField("stack.pin_count", "integer", ours=True),
            ResultField("warnings", "array", "above 100 drafts or 1 GiB of them", ours=True),
        ),
        sets=OBSERVABILITY_SETS,
        promise="availability says whether the figures are complete.",
        result_example='{"sandbox_id": "eos-1", "lifecycle_state": "ready", "availability": "available", "workspaces": []}',
    ),
    Operation(
        "layerstack",
        "observability",
        "layerstack",
        "Layers, sizes and leases",
        "The layer stack, newest layer first: size on disk of each layer and which sessions hold it; with workspace_id the layers that one session sees and the size of its private changes.",
        (
            Argument("sandbox_id", "string", required=True, help="Sandbox id.", value="ID"),
            Argument("workspace_id", "string", help="Session id: show what this session has mounted.", value="ID"),
            Argument("window_ms", "integer", help="How far back the trend goes, in ms.", default=60000, minimum=0, maximum=600000),
        ),
        owner="observability",
        read_only=True,
        idempotent=True,
        related=("snapshot", "squash_layerstacks"),
        examples=("sandbox-observability-cli layerstack --sandbox-id eos-1",),
        result=(
            ResultField("view", "string"),
            ResultField("manifest_version", "integer"),
            ResultField("root_hash", "string"),
            ResultField("active_lease_count", "integer"),
            ResultField("total_bytes", "integer"),
            ResultField("total_allocated_bytes", "integer"),
            ResultField("storage_logical_bytes", "integer"),
            ResultField("storage_allocated_bytes", "integer"),
            ResultField("staging_entry_count", "integer"),
            ResultField("layers", "array"),
            ResultField("trend", "array"),
            ResultField("workspace", "string"),
            ResultField("mounts", "array"),
            ResultField("upper_bytes", "integer|null"),
            ResultField("draft_count", "integer", ours=True),
            ResultField("pin_count", "integer", ours=True),
        ),
        sets=OBSERVABILITY_SETS,
        promise="One manifest version is described.",
        result_example='{"view": "layerstack", "manifest_version": 4, "active_lease_count": 1, "layers": [{"layer_id": "L000004-…", "bytes": 12}]}',
    ),
)

# Spoken between gateway, manager and agent. A client that sends one of these to the gateway is refused.
INTERNAL_NAMES = frozenset({"squash_layerstack", "export_layerstack", "read_export_chunk", "export_stream"})
# Routed like a runtime operation, but no tool and not in help.
HIDDEN_NAMES = frozenset({"cancel_request", "sandbox_daemon_ready"})

_BY_NAME = {operation.name: operation for operation in (*RUNTIME, *OBSERVABILITY)}


def find(name: str) -> Operation | None:
    """The runtime or observability operation of that name."""
    return _BY_NAME.get(name)


def check_arguments(operation: Operation, args: Mapping[str, Any], *, server: bool = False, bounds: bool = True) -> dict[str, Any]:
    """The arguments with defaults filled in, in the order: unknown names, types, missing ones, bounds and choices.

    Args:
        server: a raw request: unknown names are dropped, an array may come as the JSON text of one, `server_default` stands for a missing argument.
        bounds: False leaves bounds and choices to the server (the command lines, so that their exit code stays the server's).
    Raises:
        OperationError: invalid_request; details name `argument` and, where there is one, `value`.
    """
    known = {a.name: a for a in operation.arguments if a.name != "sandbox_id" or operation.scope == "system"}
    unknown = sorted(name for name in args if name not in known)
    if unknown and not server:
        details: dict[str, Any] = {"argument": unknown[0], "known": sorted(known)}
        raise OperationError(INVALID_REQUEST, f"unknown argument for {operation.name}: {unknown[0]}", details, reason="unknown_argument")
    checked = {name: _typed(operation, known[name], value, server) for name, value in args.items() if name in known}
    for argument in known.values():
        if argument.name in checked:
            continue
        if argument.default is not None:
            checked[argument.name] = argument.default
        elif server and argument.server_default is not None:
            checked[argument.name] = argument.server_default
        elif argument.required and known.get(beside := f"{argument.name}_b64") is not None and checked.get(beside):
            checked[argument.name] = ""
        elif argument.required:
            message = f"{argument.name} is required for {operation.name}"
            raise OperationError(INVALID_REQUEST, message, {"argument": argument.name}, reason="missing_argument")
    if bounds:
        for name, value in checked.items():
            _within(operation, known[name], value)
    return checked


def budget_s(operation: Operation | None, args: Mapping[str, Any]) -> float | None:
    """Seconds that a gateway waits for the answer: 30 and the operation's own wait; None = as long as it takes."""
    if operation is None:
        return ANSWER_S
    waits = operation.waits
    if isinstance(waits, str):
        argument = operation.argument(waits)
        value = args.get(waits, argument.default if argument is not None else None)
        if value is None:
            value = DEFAULT_YIELD_MS if waits == "yield_time_ms" else 0
        given = float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) and _finite(value) else 0.0
        waits = max(0.0, given / 1000 if waits.endswith("_ms") else given)
    return None if waits == NO_BUDGET else ANSWER_S + waits


def _typed(operation: Operation, argument: Argument, value: Any, server: bool) -> Any:
    kind = argument.kind
    ok = False
    if kind in ("string", "path"):
        ok = isinstance(value, str)
    elif kind == "integer":
        ok = isinstance(value, int) and not isinstance(value, bool)
        if ok and not 0 <= value <= U64_MAX:
            raise _refused(operation, argument, value, f"must be an integer from 0 to {U64_MAX}", "out_of_bounds")
    elif kind == "float":
        ok = isinstance(value, (int, float)) and not isinstance(value, bool)
        if ok and not _finite(value):
            raise _refused(operation, argument, value, "must be finite", "out_of_bounds")
    elif kind == "boolean":
        ok = isinstance(value, bool)
    elif kind == "json_array":
        if server and isinstance(value, str):
            import json

            try:
                value = json.loads(value)
            except (ValueError, RecursionError):
                value = None
        ok = _plain(value)
    if not ok:
        words = {
            "string": "a string",
            "path": "a string",
            "integer": "an integer",
            "float": "a number",
            "boolean": "true or false",
            "json_array": "an array",
        }
        raise _refused(operation, argument, value, f"must be {words[kind]}", "wrong_type")
    return value


def _within(operation: Operation, argument: Argument, value: Any) -> None:
    if argument.choices and value not in argument.choices:
        raise _refused(
            operation, argument, value, f"must be one of {', '.join(argument.choices)}", "bad_choice", choices=list(argument.choices)
        )
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        if argument.minimum is not None and value < argument.minimum:
            raise _refused(operation, argument, value, f"must be at least {argument.minimum:g}", "out_of_bounds", minimum=argument.minimum)
        if argument.maximum is not None and value > argument.maximum:
            raise _refused(operation, argument, value, f"must be at most {argument.maximum:g}", "out_of_bounds", maximum=argument.maximum)


def _refused(operation: Operation, argument: Argument, value: Any, must: str, reason: str, **more: Any) -> OperationError:
    details = {"argument": argument.name, "value": _shown(value), **more}
    return OperationError(INVALID_REQUEST, f"{argument.name} of {operation.name} {must}", details, reason=reason)


def _shown(value: Any) -> Any:
    """A refused value as an error can carry it: short, and nothing that JSON cannot write."""
    if isinstance(value, (list, dict)):
        return "an array" if isinstance(value, list) else "an object"
    if isinstance(value, (int, float)) and not (_finite(value) and abs(value) <= U64_MAX):
        return str(value)[:200]
    return value[:200] if isinstance(value, str) else value


def _finite(value: float) -> bool:
    """Whether a float can hold it: an integer of JSON may be larger than any."""
    try:
        return math.isfinite(value)
    except OverflowError:
        return False


def _is_array(value: object) -> TypeGuard[list[Any]]:
    return isinstance(value, list)


def _is_object(value: object) -> TypeGuard[dict[str, Any]]:
    return isinstance(value, dict)


def _plain(value: Any) -> bool:
    """Whether it is an array that JSON can carry: no NaN or infinity in it, and not nested beyond all reason, which overflows a stack somewhere."""
    if not _is_array(value):
        return False
    level = value
    for _ in range(ARRAY_DEPTH):
        if any(isinstance(each, float) and not math.isfinite(each) for each in level):
            return False
        inner: list[Any] = []
        for each in level:
            inner.extend(each if _is_array(each) else each.values() if _is_object(each) else ())
        level = inner
        if not level:
            return True
    return False
