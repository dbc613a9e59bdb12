"""JSON schemas of the objects and arrays in results, by the names of their keys. Pure data.

A key of a result whose type is an object or array has its schema here; scalars have theirs in the catalog. No
schema requires a key, since `gateway.results: contract` leaves out all of ours.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Schema = dict[str, Any]

STRING: Schema = {"type": "string"}
INTEGER: Schema = {"type": "integer"}
NUMBER: Schema = {"type": "number"}
BOOLEAN: Schema = {"type": "boolean"}
NULL: Schema = {"type": "null"}
STRINGS: Schema = {"type": "array", "items": STRING}
INTEGERS: Schema = {"type": "array", "items": INTEGER}


def record(**properties: Schema) -> Schema:
    """The schema of an object with these keys; `from_` stands for `from`, `class_` for `class`."""
    return {"type": "object", "properties": {key.rstrip("_"): value for key, value in properties.items()}}


def table(**properties: Schema) -> Schema:
    """The schema of an array of objects."""
    return {"type": "array", "items": record(**properties)}


def nullable(schema: Schema) -> Schema:
    return {"anyOf": [schema, NULL]}


PATH = {"path": STRING, "path_b64": STRING}
PATHS = table(**PATH)
DETAILS: Schema = {"type": "object", "additionalProperties": True}
ERROR = record(kind=STRING, message=STRING, details=DETAILS)
STATE = record(
    kind=STRING,
    digest=nullable(STRING),
    size=nullable(INTEGER),
    mode=STRING,
    executable=BOOLEAN,
    target=STRING,
)
"""A path in one of the trees that are compared: absent, file, symlink or directory."""
THEIRS = nullable(
    record(layer_id=STRING, manifest_version=INTEGER, owner=nullable(STRING), agent=nullable(STRING))
)
HUNKS = table(
    base=INTEGERS,
    ours=INTEGERS,
    theirs=INTEGERS,
    base_text=STRING,
    ours_text=STRING,
    theirs_text=STRING,
    text_truncated=BOOLEAN,
)
UNIT = record(name=STRING, members=PATHS, member_count=INTEGER, base_commit=STRING, hint=STRING)
CONFLICTS = table(
    **PATH,
    class_=STRING,
    base=STATE,
    ours=STATE,
    theirs=STATE,
    theirs_layer=THEIRS,
    hunks=HUNKS,
    hunks_truncated=BOOLEAN,
    unit=UNIT,
    renamed_to=record(**PATH),
    renamed_by=STRING,
    ref=STRING,
    commits=record(ours=STRINGS, theirs=STRINGS, ours_count=INTEGER, theirs_count=INTEGER),
    hint=STRING,
)
RESOLVED = table(
    **PATH,
    class_=STRING,
    resolution=STRING,
    kept_as=STRING,
    kept_as_b64=STRING,
    why=STRING,
    theirs_version=INTEGER,
)
NOTICES = table(
    kind=STRING,
    **PATH,
    version=INTEGER,
    theirs_layer=THEIRS,
    unit=STRING,
    count=INTEGER,
    more=INTEGER,
    unseen=STRINGS,
    ours=record(**PATH),
    theirs=record(**PATH),
    others=PATHS,
    detail=STRING,
)
ROUTES = record(source_count=INTEGER, ignored_count=INTEGER)
PUBLISH = record(
    published=BOOLEAN,
    no_op=BOOLEAN,
    revision=record(manifest_version=INTEGER, root_hash=STRING, layer_count=INTEGER),
    route_summary=ROUTES,
    notices=NOTICES,
    dropped=PATHS,
    synced=BOOLEAN,
    rewritten={"type": "object", "additionalProperties": STRING},
    kept_refs=STRINGS,
)
REJECTION = record(
    path=nullable(STRING),
    reason=STRING,
    source_conflict=nullable(record(path=STRING, expected=STATE, actual=STATE)),
    protected_drop=nullable(record(path=STRING, reason=STRING)),
    message=nullable(STRING),
    conflict_count=INTEGER,
    conflicts=CONFLICTS,
    conflicts_truncated=BOOLEAN,
    error=ERROR,
)
PROCESSES = table(pid=INTEGER, name=STRING)
WORK = {"paths": STRINGS, "count": INTEGER, "bytes": INTEGER, "truncated": BOOLEAN}
TAIL = record(start_offset=INTEGER, output=STRING)
LIMITS = record(
    state=STRING,
    nano_cpus=nullable(INTEGER),
    memory_high_bytes=nullable(INTEGER),
    memory_max_bytes=nullable(INTEGER),
    pids_max=nullable(INTEGER),
    reason=nullable(STRING),
)
COMMAND_ROW = {
    "command_session_id": STRING,
    "workspace_session_id": STRING,
    "status": STRING,
    "exit_code": nullable(INTEGER),
    "signal": STRING,
    "service": STRING,
    "ready": BOOLEAN,
    "forward": STRING,
    "service_url": STRING,
    "stopped_by": STRING,
    "command": STRING,
    "request_id": STRING,
    "started_unix_ms": INTEGER,
}
SESSIONS = table(
    workspace_session_id=STRING,
    state=STRING,
    finalize_policy=STRING,
    network_profile=STRING,
    base_version=INTEGER,
    created_unix_ms=INTEGER,
    last_activity_unix_ms=INTEGER,
    upper_bytes=nullable(INTEGER),
    active_command_session_ids=STRINGS,
    commands=table(**COMMAND_ROW),
    checkpoints=table(
        checkpoint_id=STRING, label=STRING, created_unix_ms=INTEGER, changed_files=INTEGER, undoes=STRING
    ),
    agent=nullable(STRING),
    limits=LIMITS,
    ttl_s=NUMBER,
    expires_unix_ms=nullable(INTEGER),
    draft_id=STRING,
    address=STRING,
)
DRAFTS = table(
    draft_id=STRING,
    origin=nullable(STRING),
    agent=nullable(STRING),
    request_id=nullable(STRING),
    reason=STRING,
    base_version=nullable(INTEGER),
    created_unix_ms=nullable(INTEGER),
    paths=nullable(INTEGER),
    bytes=nullable(INTEGER),
    why=STRING,
)
DEAD_SESSIONS = table(
    workspace_session_id=STRING,
    state=STRING,
    reason=nullable(STRING),
    paths=nullable(INTEGER),
    bytes=nullable(INTEGER),
    truncated=BOOLEAN,
    tries=INTEGER,
    base_version=nullable(INTEGER),
    agent=nullable(STRING),
)
PATCHED = {"patch": STRING, "binary": BOOLEAN, "patch_truncated": BOOLEAN}
WINDOW = {
    "content": STRING,
    "start_line": INTEGER,
    "num_lines": INTEGER,
    "total_lines": INTEGER,
    "bytes_read": INTEGER,
    "total_bytes": INTEGER,
    "next_offset": nullable(INTEGER),
    "truncated": BOOLEAN,
    "line_cut_characters": INTEGER,
    "encoding": STRING,
    "offset": INTEGER,
    "media_type": STRING,
    "width": INTEGER,
    "height": INTEGER,
}
PLACE = nullable(record(host=STRING, port=INTEGER))
RECORD: dict[str, Schema] = {
    "daemon": PLACE,
    "daemon_http": PLACE,
    "shared_base": nullable(record(source=STRING, target=STRING, root_hash=STRING, readonly=BOOLEAN)),
    "resource_profile": nullable(
        record(
            name=STRING,
            nano_cpus=INTEGER,
            memory_high_bytes=INTEGER,
            memory_max_bytes=INTEGER,
            pids_max=INTEGER,
            workload_memory_high_bytes=INTEGER,
            workload_memory_max_bytes=INTEGER,
            workload_pids_max=INTEGER,
            control_plane_pids_reserve=INTEGER,
            daemon_runtime_profile=STRING,
            separate_workload_cgroup=BOOLEAN,
        )
    ),
    "quota": record(bytes=nullable(INTEGER), layers=nullable(INTEGER), published=STRING, sessions=STRING),
    "warnings": STRINGS,
    "readable": record(files=STRING, hidden=STRING, network=STRING),
}
SANDBOX_ROW = record(
    id=STRING,
    workspace_root=STRING,
    state=STRING,
    activity_revision=INTEGER,
    silent_since_unix_ms=INTEGER,
    failure=STRING,
    **RECORD,
)
NAMED = {"path": STRING, "why": STRING}
DIFFERING = table(path=STRING, differs=STRING, because_of=STRING)

BY_KEY: Mapping[str, Schema] = {
    "publish": PUBLISH,
    "publish_rejection": REJECTION,
    "notices": NOTICES,
    "dropped": PATHS,
    "route_summary": ROUTES,
    "checkpoints_ended": STRINGS,
    "services_stopped": table(service=STRING, command_session_id=STRING),
    "unresolved": table(**PATH, lines=INTEGERS),
    "waiting_on": PROCESSES,
    "left_behind": PROCESSES,
    "tail": TAIL,
    "finalization_error": ERROR,
    "not_kept_open": ERROR,
    "limits": LIMITS,
    "sessions": SESSIONS,
    "drafts": DRAFTS,
    "dead_sessions": DEAD_SESSIONS,
    "commands": table(**COMMAND_ROW),
    "sandboxes": {"type": "array", "items": SANDBOX_ROW},
}
"""Key of a result -> its schema, unless `BY_OPERATION` has another one."""

COMMANDS = (
    "exec_command",
    "write_command_stdin",
    "read_command_lines",
    "signal_command",
    "close_stdin",
    "wait_command",
)
COMMAND: Mapping[str, Schema] = {
    "discarded": record(**WORK, by=STRING, request_id=STRING),
    "dropped": record(start_offset=INTEGER, end_offset=INTEGER, bytes=INTEGER),
}

BY_OPERATION: Mapping[str, Mapping[str, Schema]] = {
    **dict.fromkeys(COMMANDS, COMMAND),
    **dict.fromkeys(("create_sandbox", "inspect_sandbox", "start_sandbox"), RECORD),
    "file_read": {
        **{key: WINDOW[key] for key in ("width", "height")},
        "files": table(**PATH, **WINDOW, error=ERROR),
    },
    "file_blame": {"ranges": table(start_line=INTEGER, line_count=INTEGER, owner=STRING)},
    "file_list": {"entries": table(name=STRING, **PATH, kind=STRING, size=nullable(INTEGER))},
    "file_search": {
        "matches": table(**PATH, line=INTEGER, column=INTEGER, text=STRING, cut=BOOLEAN),
        "skipped": record(binary=INTEGER, unreadable=INTEGER),
    },
    "apply_patch": {
        "files": table(
            type=STRING,
            **PATH,
            from_=STRING,
            from_b64=STRING,
            lines_added=INTEGER,
            lines_removed=INTEGER,
            hunks_moved=INTEGER,
        )
    },
    "create_workspace_session": {"conflicts": RESOLVED},
    "rebase_workspace_session": {"conflicts": RESOLVED},
    "preview_publish": {
        "conflicts": CONFLICTS,
        "refused": nullable({"type": "object", "additionalProperties": True}),
    },
    "destroy_workspace_session": {"discarded": record(**WORK)},
    "destroy_sandbox": {
        **RECORD,
        "discarded": record(
            layers=INTEGER,
            unexported=record(
                newest_version=nullable(INTEGER), exported_version=nullable(INTEGER), dest=nullable(STRING)
            ),
            sessions=STRINGS,
            drafts=STRINGS,
            unpublished=record(
                sessions=STRINGS,
                **WORK,
                drafts=table(draft_id=STRING, paths=nullable(INTEGER), bytes=nullable(INTEGER)),
                dead_sessions=table(
                    workspace_session_id=STRING,
                    state=STRING,
                    reason=nullable(STRING),
                    paths=nullable(INTEGER),
                    bytes=nullable(INTEGER),
                ),
            ),
        ),
    },
    "diff_session": {
        "entries": table(**PATH, status=STRING, change=STRING, from_=STRING, from_b64=STRING, **PATCHED)
    },
    "diff_draft": {"entries": table(**PATH, change=STRING, base=STATE, ours=STATE, theirs=STATE, **PATCHED)},
    "diff_versions": {"entries": table(**PATH, change=STRING, from_=STATE, to=STATE, **PATCHED)},
    "list_versions": {
        "versions": table(
            version=INTEGER,
            root_hash=STRING,
            layer_count=INTEGER,
            layer_id=nullable(STRING),
            owner=nullable(STRING),
            agent=nullable(STRING),
            request_id=nullable(STRING),
            created_unix_ms=nullable(INTEGER),
            paths=nullable(INTEGER),
            bytes=nullable(INTEGER),
            pinned=BOOLEAN,
            head=BOOLEAN,
            message=STRING,
        )
    },
    "list_docker_images": {"images": STRINGS},
    "list_workspace_directories": {"directories": table(name=STRING, path=STRING)},
    "squash_layerstacks": {
        "squashed_blocks": table(
            squashed_layer_id=STRING,
            replaced_layer_ids=STRINGS,
            replaced_layers=STRING,
            blocked_reasons=STRINGS,
        ),
        "swept_sessions": table(session_id=STRING, disposition=STRING, reason=STRING),
        "faulty_sessions": {"type": "array", "items": {"type": "object", "additionalProperties": True}},
    },
    "export_changes": {
        "layers_exported": STRINGS,
        "live_workspace_sessions": STRINGS,
        "hygiene": table(**NAMED),
        "commits": table(
            oid=STRING,
            layer_id=nullable(STRING),
            author=STRING,
            subject=STRING,
            paths=STRINGS,
            path_count=INTEGER,
        ),
        "empty_directories": STRINGS,
        "stripped": table(path=STRING, what=STRING),
        "hygiene_classes": {"type": "object", "additionalProperties": INTEGER},
        "not_kept": table(path=STRING, what=STRING),
        "ignored_staging": STRINGS,
        "left_staging": STRINGS,
        "changes": table(action=STRING, path=STRING),
        "edited": nullable(STRINGS),
        "left_out": record(count=INTEGER, paths=STRINGS, why=table(count=INTEGER, why=STRING)),
        "would_conflict": DIFFERING,
        "kept_back": STRINGS,
        "overwritten": DIFFERING,
        "unsafe": table(**NAMED),
        "ignored": record(files=INTEGER, bytes=INTEGER, included=BOOLEAN),
    },
    "import_changes": {
        "changed": table(path=STRING, change=STRING),
        "left_out": STRINGS,
        "conflicts": CONFLICTS,
        "refused": nullable({"type": "object", "additionalProperties": True}),
    },
    "prune": {"items": table(kind=STRING, name=STRING, bytes=nullable(INTEGER)), "warnings": STRINGS},
    "fsck": {
        "damage": table(file=STRING, what=STRING, found_by=STRING),
        "notes": table(kind=STRING, file=STRING, what=STRING),
        "checked": record(layers=INTEGER, entries=INTEGER, bytes=INTEGER),
    },
}
