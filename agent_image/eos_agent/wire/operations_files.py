"""The file operations of the runtime table in `operations`. Pure data, any OS, standard library only."""

from __future__ import annotations

from eos_agent.wire.operation import (
    AGENT,
    AGENT_SETS,
    AT_VERSION,
    CURSOR,
    MESSAGE,
    PATH,
    PATH_B64,
    RUNTIME_SETS,
    SESSION,
    Argument,
    Operation,
    ResultField,
)

_FILE_CHANGE = (
    ResultField("type", "string", "create, update or edit"),
    ResultField("path", "string"),
    ResultField("bytes_written", "integer"),
    ResultField("path_b64", "string", "when path is not UTF-8", ours=True),
)

_ENCODING = Argument(
    "encoding", "string", help="utf-8 when absent; or latin-1, base64.", value="NAME", ours=True
)
_AT_VERSION = ResultField("version", "integer", "with version: the version that was read", ours=True)
_BEYOND = ResultField("path_b64", "string", "when path is not UTF-8", ours=True)

CONTRACT_FILES: tuple[Operation, ...] = (
    Operation(
        "file_read",
        "runtime",
        "file",
        "Read a file",
        "Read lines of a text file: of the published head, or of a session's private view. At most 2000 "
        "lines and 256 KiB; continue at next_offset. "
        "With encoding base64 offset and limit count bytes of any file. Symlinks are refused.",
        (
            PATH._replace(beside="paths"),
            Argument("offset", "integer", help="First line, from 1.", default=1, minimum=1),
            Argument(
                "limit", "integer", help="Most lines, or bytes.", default=2000, minimum=1, maximum=262144
            ),
            Argument(
                "paths",
                "json_array",
                help="More files to read in this call.",
                items={"type": "string"},
                ours=True,
            ),
            SESSION,
            _ENCODING,
            PATH_B64,
            AT_VERSION,
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
            ResultField(
                "media_type",
                "string",
                "over MCP: the file is an image or PDF, which follows as content; width, height where known",
                ours=True,
            ),
            ResultField(
                "files",
                "array",
                "with paths: the result of each file, in order, or path and error; other fields are absent",
                ours=True,
            ),
            _BEYOND,
            ResultField(
                "line_cut_characters",
                "integer",
                "over MCP: number of characters left out of one overlong line",
                ours=True,
            ),
            ResultField("encoding", "string", "encoding of content, when not utf-8", ours=True),
            _AT_VERSION,
            ResultField(
                "offset",
                "integer",
                "base64: number of the first byte, from 1; the line fields are absent then",
                ours=True,
            ),
        ),
        sets=AGENT_SETS,
        promise="The answer comes from one version, never from a half-applied change.",
        result_example='{"path": "status.txt", "content": "ready", "start_line": 1, "num_lines": 1, '
        '"total_lines": 1, "bytes_read": 5, "total_bytes": 6, "next_offset": null, '
        '"truncated": false}',
    ),
    Operation(
        "file_write",
        "runtime",
        "file",
        "Write a whole file",
        "Create a file, or replace a whole one, so read it first; parents are made, the mode is kept. "
        "Directories and symlinks are refused.",
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
            MESSAGE,
            _ENCODING._replace(
                help="How content is given: utf-8 when absent; or latin-1, base64.", hidden=True
            ),
            PATH_B64,
        ),
        idempotent=True,
        related=("file_edit", "file_read"),
        examples=("sandbox-runtime-cli --sandbox-id eos-1 file_write --path notes.txt --content-file -",),
        result=_FILE_CHANGE,
        sets=AGENT_SETS,
        promise="Afterwards the file has all of the content, or is unchanged.",
        result_example='{"type": "create", "path": "notes.txt", "bytes_written": 6}',
    ),
    Operation(
        "file_edit",
        "runtime",
        "file",
        "Replace exact text in a file",
        "Apply exact replacements in order; each old_string must occur exactly once unless replace_all. All "
        "of them or none. "
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
                    "properties": {
                        "old_string": {"type": "string"},
                        "new_string": {"type": "string"},
                        "replace_all": {"type": "boolean"},
                    },
                    "required": ["old_string", "new_string"],
                    "additionalProperties": False,
                },
                file_flag="--edits-file",
            ),
            SESSION._replace(help="Session to edit in. Omit to publish at once."),
            AGENT,
            MESSAGE,
            _ENCODING._replace(
                help="utf-8 when absent; latin-1: bytewise, for text that is not UTF-8.", hidden=True
            ),
            PATH_B64,
        ),
        related=("file_read", "file_write"),
        examples=(
            """sandbox-runtime-cli --sandbox-id eos-1 file_edit --path a.py --edits '[{"old_string":"x = 1","new_string":"x = 2"}]'""",  # noqa: E501
        ),
        result=(
            *_FILE_CHANGE,
            ResultField("edits_applied", "integer"),
            ResultField("replacements", "integer"),
        ),
        sets=AGENT_SETS,
        promise="A bad edit leaves the file untouched.",
        result_example='{"type": "edit", "path": "a.py", "edits_applied": 1, "replacements": 1, '
        '"bytes_written": 6}',
    ),
    Operation(
        "file_blame",
        "runtime",
        "file",
        "Who wrote each line",
        "List who wrote each line of a published file, as ranges: workspace_session:ID, "
        "operation:REQUEST_ID, or original for lines of the base. "
        "A deleted file returns its last ranges.",
        (PATH, Argument("offset", "integer", help="First line, from 1.", minimum=1, ours=True), PATH_B64),
        read_only=True,
        idempotent=True,
        related=("file_read", "list_workspace_sessions"),
        examples=("sandbox-runtime-cli --sandbox-id eos-1 file_blame --path src/app.py",),
        result=(
            ResultField("path", "string"),
            ResultField("ranges", "array", "start_line, line_count, owner; from offset on, without gaps"),
            ResultField(
                "truncated", "boolean", "over MCP: there are more ranges, from next_offset on", ours=True
            ),
            ResultField("next_offset", "integer", ours=True),
            ResultField("path_b64", "string", "when path is not UTF-8", ours=True),
        ),
        sets=RUNTIME_SETS,
        waits=60,
        promise="Unpublished changes of sessions are not part of the answer.",
        result_example='{"path": "a.txt", "ranges": [{"start_line": 1, "line_count": 3, "owner": '
        '"original"}, {"start_line": 4, "line_count": 1, "owner": "operation:6f0c…"}]}',
    ),
)

MORE_FILES: tuple[Operation, ...] = (
    Operation(
        "file_list",
        "runtime",
        "file",
        "List a directory, or files by glob",
        "List one level of a directory with kind and size, of the published head or of a session's "
        "private view. With glob: the matching files at any depth, without .git and what .gitignore "
        "excludes, which ignored_left_out counts. Continue with next.",
        (
            PATH._replace(required=False, default="", help="Directory; empty for the workspace root."),
            Argument(
                "glob",
                "string",
                help="Files at any depth: **/*.py, src/**/*.{js,ts}, !*.min.js.",
                value="GLOB",
                ours=True,
            ),
            Argument(
                "include_ignored",
                "boolean",
                help="With glob: also what .gitignore excludes.",
                default=False,
                ours=True,
            ),
            Argument("limit", "integer", help="Most entries; kept within 2000.", minimum=1),
            CURSOR._replace(ours=True),
            SESSION,
            PATH_B64,
            AT_VERSION,
        ),
        read_only=True,
        idempotent=True,
        related=("file_read", "file_search"),
        examples=(
            "sandbox-runtime-cli --sandbox-id eos-1 file_list --path src",
            "sandbox-runtime-cli --sandbox-id eos-1 file_list --glob '**/*.py'",
        ),
        result=(
            ResultField("path", "string"),
            ResultField("entries", "array", "name (with glob: path, of the workspace), kind, size"),
            ResultField("truncated", "boolean"),
            ResultField("next", "string", "cursor of the next page, when there is one"),
            _AT_VERSION,
            ResultField(
                "stopped", "string", "with glob: why the page ends: entries, bytes, time or memory", ours=True
            ),
            ResultField(
                "ignored_left_out",
                "integer",
                "with glob: ignored directories, and ignored files that match, which this page leaves out",
                ours=True,
            ),
            ResultField("unreadable", "integer", "with glob: entries that could not be read", ours=True),
            ResultField("path_b64", "string", "when path is not UTF-8", ours=True),
        ),
        sets=AGENT_SETS,
        ours=True,
        promise="Sorted by name bytes; symlinks are listed, not followed. A page by glob takes at most 8 "
        "seconds.",
        result_example='{"path": "src", "entries": [{"name": "main.py", "kind": "file", "size": 120}], '
        '"truncated": false}',
    ),
    Operation(
        "file_search",
        "runtime",
        "file",
        "Search file contents",
        "Find lines that contain a text, or match a Python regex, with path and line number. .git, binary "
        "files and what .gitignore excludes are "
        "skipped, unless path is inside. Continue with next.",
        (
            Argument("pattern", "string", required=True, help="Text to find in one line.", value="TEXT"),
            Argument("regex", "boolean", help="pattern is a regex.", default=False),
            Argument(
                "glob", "string", help="Only matching files: *.py, src/**/*.{js,ts}, !*.min.js.", value="GLOB"
            ),
            PATH._replace(required=False, default="", help="File or directory to search."),
            CURSOR,
            SESSION,
            Argument(
                "include_ignored",
                "boolean",
                help="Also what .gitignore excludes.",
                default=False,
                hidden=True,
            ),
            PATH_B64,
        ),
        read_only=True,
        idempotent=True,
        related=("file_read", "file_list"),
        examples=(
            "sandbox-runtime-cli --sandbox-id eos-1 file_search --pattern 'connect('",
            "sandbox-runtime-cli --sandbox-id eos-1 file_search --regex --pattern '^def \\w+_id' --glob "
            "'*.py' --path src",
        ),
        result=(
            ResultField("matches", "array", "path, line and column from 1, text; cut: the line was longer"),
            ResultField("next", "string|null", "cursor of the next page, null on the last"),
            ResultField(
                "stopped", "string", "why the page ends: matches, bytes, time or memory; absent on the last"
            ),
            ResultField("files_searched", "integer"),
            ResultField("skipped", "object", "binary, unreadable: numbers of skipped files"),
        ),
        sets=AGENT_SETS,
        ours=True,
        promise="A page has at most 200 lines and about 20 kB, and takes at most 8 seconds; the same tree "
        "gives the same pages.",
        result_example='{"matches": [{"path": "src/app.py", "line": 3, "column": 5, "text": "    return '
        'user_id"}], "files_searched": 12, '
        '"skipped": {"binary": 1, "unreadable": 0}, "next": null}',
    ),
    Operation(
        "file_stat",
        "runtime",
        "file",
        "Kind, size and mode of a path",
        "Return kind, size, mode, owner and time of a path; of a symlink, which is not followed, its target.",
        (PATH._replace(help="Path in the workspace; empty for its root."), SESSION, PATH_B64, AT_VERSION),
        read_only=True,
        idempotent=True,
        related=("file_list", "file_read"),
        examples=("sandbox-runtime-cli --sandbox-id eos-1 file_stat --path run.sh",),
        result=(
            ResultField("path", "string"),
            ResultField("kind", "string", "file, directory, symlink or other"),
            ResultField("size", "integer|null", "bytes of a file"),
            ResultField("mode", "string", "permission bits in octal"),
            ResultField("uid", "integer"),
            ResultField("gid", "integer"),
            ResultField("mtime_unix_ms", "integer"),
            ResultField("links", "integer", "number of hard links of a file"),
            ResultField("target", "string", "where a symlink points"),
            ResultField("path_b64", "string", "when path is not UTF-8"),
            _AT_VERSION,
        ),
        sets=RUNTIME_SETS,
        ours=True,
        promise="Only the entry itself is read.",
        result_example='{"path": "run.sh", "kind": "file", "size": 18, "mode": "0755", "uid": 0, "gid": 0, '
        '"mtime_unix_ms": 1760000000000, "links": 1}',
    ),
    Operation(
        "file_delete",
        "runtime",
        "file",
        "Delete a file or directory",
        "Delete a file, a symlink (not what it points to) or a directory; one that is not empty only with "
        "recursive.",
        (
            PATH,
            Argument(
                "recursive", "boolean", help="Delete a directory with all that is in it.", default=False
            ),
            SESSION._replace(help="Session to delete in. Omit to publish at once."),
            AGENT,
            PATH_B64,
        ),
        destructive=True,
        related=("file_move", "file_list"),
        examples=("sandbox-runtime-cli --sandbox-id eos-1 file_delete --path build --recursive",),
        result=(
            ResultField("type", "string", "delete"),
            ResultField("path", "string"),
            ResultField("kind", "string", "file, directory, symlink or other"),
            ResultField("path_b64", "string", "when path is not UTF-8"),
        ),
        sets=AGENT_SETS,
        ours=True,
        waits=570,
        promise="Without a session the deletion is one layer; earlier versions still have the content.",
        result_example='{"type": "delete", "path": "build", "kind": "directory"}',
    ),
    Operation(
        "file_move",
        "runtime",
        "file",
        "Move or rename a path",
        "Move a file, symlink or directory to a new path: to is the complete path, never a directory to "
        "move into. Missing parents are made. "
        "Mode, times, xattrs and hard links are kept.",
        (
            Argument("from", "string", required=True, help="Path to move.", value="PATH"),
            Argument("to", "string", required=True, help="Its complete new path.", value="PATH"),
            Argument(
                "overwrite",
                "boolean",
                help="Replace a file by a file, an empty directory by a directory.",
                default=False,
            ),
            SESSION._replace(help="Session to move in. Omit to publish at once."),
            AGENT,
            PATH_B64._replace(name="from_b64"),
            PATH_B64._replace(name="to_b64"),
        ),
        destructive=True,
        related=("file_delete", "file_list"),
        examples=("sandbox-runtime-cli --sandbox-id eos-1 file_move --from a.py --to pkg/a.py",),
        result=(
            ResultField("type", "string", "move"),
            ResultField("from", "string"),
            ResultField("to", "string"),
            ResultField("kind", "string", "file, directory, symlink or other"),
            ResultField("from_b64", "string", "when from is not UTF-8"),
            ResultField("to_b64", "string", "when to is not UTF-8"),
        ),
        sets=AGENT_SETS,
        ours=True,
        waits=570,
        promise="Without a session it is one layer: every version has exactly one of both paths.",
        result_example='{"type": "move", "kind": "file", "from": "a.py", "to": "pkg/a.py"}',
    ),
)
