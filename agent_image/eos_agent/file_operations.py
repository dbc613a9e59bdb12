"""The operations on files, as part of the runtime table (eos_agent.operations). Pure data, any OS, standard library only."""

from __future__ import annotations

from eos_agent.operation import AGENT, AGENT_SETS, PATH, PATH_B64, SESSION, Argument, Operation, ResultField

_FILE_CHANGE = (
    ResultField("type", "string", "create, update or edit"),
    ResultField("path", "string"),
    ResultField("bytes_written", "integer"),
    ResultField("path_b64", "string", "when path is no UTF-8", ours=True),
)

CONTRACT_FILES: tuple[Operation, ...] = (
    Operation(
        "file_read",
        "runtime",
        "file",
        "Read a text file",
        "Read lines of a UTF-8 file: of the published head, or of a session's private view. Returns at most 2000 lines and 256 KiB; go on at next_offset. "
        "Symlinks and binary files are refused; use exec_command for those.",
        (
            PATH,
            Argument("offset", "integer", help="First line, from 1.", default=1, minimum=1),
            Argument("limit", "integer", help="Most lines to return.", default=2000, minimum=1, maximum=2000),
            SESSION,
            PATH_B64,
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
            PATH,
            Argument(
                "content",
                "string",
                required=True,
                help="The whole new content.",
                value="TEXT",
                file_flag="--content-file",
                server_default="",
            ),
            SESSION._replace(help="Session to write in. Omit to publish at once."),
            AGENT,
            PATH_B64,
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
            PATH,
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
            SESSION._replace(help="Session to edit in. Omit to publish at once."),
            AGENT,
            PATH_B64,
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
        (PATH, PATH_B64),
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
)

MORE_FILES: tuple[Operation, ...] = (
    Operation(
        "file_list",
        "runtime",
        "file",
        "List a directory",
        "List one level of a directory with kind and size, of the published head or of a session's private view. truncated: narrow the path.",
        (
            PATH._replace(required=False, default="", help="Directory; empty for the workspace root."),
            Argument("limit", "integer", help="Most entries; kept within 2000.", minimum=1),
            SESSION,
            PATH_B64,
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
)
