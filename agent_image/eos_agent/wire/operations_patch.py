"""The operation apply_patch. Any OS, standard library only."""

from __future__ import annotations

from eos_agent.wire.operation import AGENT, MESSAGE, RUNTIME_SETS, SESSION, Argument, Operation, ResultField

APPLY_PATCH = Operation(
    "apply_patch",
    "runtime",
    "file",
    "Apply a patch to several files",
    "Change, create, delete and rename files by a patch: a unified diff, or the *** Begin Patch form. All of "
    "it or nothing. A hunk may be at another line, but its unchanged lines must fit in exactly one place; a "
    "refusal names file and hunk and shows the nearest text.",
    (
        Argument(
            "patch",
            "string",
            required=True,
            help="The whole patch. Paths are of the workspace; a/ and b/ are removed.",
            value="TEXT",
            file_flag="--patch-file",
        ),
        SESSION._replace(help="Session to change. Omit to publish at once."),
        AGENT,
        MESSAGE._replace(hidden=True),
    ),
    related=("file_edit", "file_write", "file_read"),
    examples=("sandbox-runtime-cli --sandbox-id eos-1 apply_patch --patch-file fix.diff",),
    result=(
        ResultField("type", "string", "patch"),
        ResultField(
            "files",
            "array",
            "in the order of the patch: type (create, edit, delete, move, copy), path, from (of a move or "
            "copy), lines_added, lines_removed, hunks_moved (number of hunks found at another line)",
        ),
        ResultField("lines_added", "integer"),
        ResultField("lines_removed", "integer"),
    ),
    sets=RUNTIME_SETS,
    ours=True,
    waits=120,
    promise="Without a session the patch is one layer. Modes, line ends and byte order marks are kept.",
    result_example='{"type": "patch", "files": [{"type": "edit", "path": "a.py", "lines_added": 1, '
    '"lines_removed": 1}], "lines_added": 1, "lines_removed": 1}',
)
