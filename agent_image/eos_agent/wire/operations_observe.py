"""The observability operations, declared once like those of `operations`. Pure data, any OS, standard library
only.
"""

from __future__ import annotations

from eos_agent.wire.operation import OBSERVABILITY_SETS, Argument, Family, Operation, ResultField

WINDOW_DEFAULT_MS, WINDOW_MAX_MS = 60_000, 600_000

OBSERVABILITY_FAMILIES = (
    Family("snapshot", "Snapshot", "What exists now.", "State of one sandbox, or of all of them."),
    Family("trace", "Trace", "Spans of one request.", "Where the time of a request went."),
    Family(
        "events", "Events", "What happened, newest last.", "Leases, failed publications, automatic squashes."
    ),
    Family(
        "resources",
        "Resources",
        "CPU and memory over time.",
        "Samples of one sandbox, or the newest of all of them.",
    ),
    Family("daemon", "Daemon", "The agent process itself.", "Its memory, threads, descriptors and tables."),
    Family("topology", "Topology", "Processes and namespaces.", "Which processes live in which session."),
    Family(
        "cgroup",
        "Cgroup",
        "Usage over time.",
        "Samples of a sandbox as its engine counts them, or of one session.",
    ),
    Family("layerstack", "Layer stack", "Layers, sizes and leases.", "The stack as it is on disk."),
    Family(
        "resource_isolation",
        "Resource isolation",
        "What one sandbox can take from another.",
        "No operations of its own.",
    ),
    Family(
        "resource_efficiency", "Resource efficiency", "What a sandbox costs.", "No operations of its own."
    ),
)

_SANDBOX = Argument("sandbox_id", "string", required=True, help="Sandbox id.", value="ID")
_WINDOW = Argument(
    "window_ms",
    "integer",
    help="How far back the series goes, in ms.",
    default=WINDOW_DEFAULT_MS,
    minimum=0,
    maximum=WINDOW_MAX_MS,
)
_SERIES = (
    ResultField("availability", "string"),
    ResultField("errors", "array"),
    ResultField("series", "array", "points {ts, metrics, deltas, sample_delta_ms}, oldest first"),
)

OBSERVABILITY: tuple[Operation, ...] = (
    Operation(
        "snapshot",
        "observability",
        "snapshot",
        "State of one sandbox or of all",
        "Live state: sessions, running commands, the layer stack and the agent. With sandbox_id that of one "
        "sandbox, without it that of every ready one. "
        "A sandbox that does not answer is listed as unavailable; it never makes the call fail.",
        (Argument("sandbox_id", "string", help="Sandbox id. Omit for all sandboxes.", value="ID"),),
        scope="system_or_sandbox",
        owner="observability",
        read_only=True,
        idempotent=True,
        related=("inspect_sandbox", "layerstack"),
        examples=(
            "sandbox-observability-cli snapshot",
            "sandbox-observability-cli snapshot --sandbox-id eos-1",
        ),
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
            ResultField(
                "stack.quota",
                "object|null",
                "bytes, layers, used_bytes, used_layers, and which of them are enforced",
                ours=True,
            ),
            ResultField("warnings", "array", "above 100 drafts or 1 GiB of them", ours=True),
        ),
        sets=OBSERVABILITY_SETS,
        promise="availability says whether the figures are complete.",
        result_example='{"sandbox_id": "eos-1", "lifecycle_state": "ready", "availability": "available", '
        '"workspaces": []}',
    ),
    Operation(
        "trace",
        "observability",
        "trace",
        "Spans of one request",
        "Show where the time of one request went: a tree of spans with their events. The trace id is the "
        "request id; last is the newest traced request. "
        "Complete as soon as the request was answered; what its command does later is added when it ends. "
        "An unknown id returns no spans.",
        (_SANDBOX, Argument("trace_id", "string", help="Request id, or last.", default="last", value="ID")),
        owner="observability",
        read_only=True,
        idempotent=True,
        related=("events", "snapshot"),
        examples=(
            "sandbox-observability-cli trace --sandbox-id eos-1",
            "sandbox-observability-cli trace --sandbox-id eos-1 --trace-id 6f0c…",
        ),
        result=(
            ResultField("view", "string"),
            ResultField("trace", "string"),
            ResultField("spans", "array", "{span, offset_ms, children, events}"),
            ResultField("truncated", "boolean", "the oldest records of this trace are left out", ours=True),
        ),
        sets=OBSERVABILITY_SETS,
        promise="Roots of the tree in order of their start; status is completed, error, cancelled or "
        "timed_out.",
        result_example='{"view": "trace", "trace": "6f0c…", "spans": [{"span": {"span": "d-1", "name": '
        '"daemon.dispatch", "dur_ms": 2.1}, "offset_ms": 0, "children": [], "events": []}]}',
    ),
    Operation(
        "events",
        "observability",
        "events",
        "What happened, newest last",
        "Events of the sandbox in the order of their time: leases acquired and released, failed "
        "publications, automatic squashes. "
        "At most the newest 500 records and 256 KiB.",
        (
            _SANDBOX,
            Argument(
                "name",
                "string",
                help="Only events of this name: lease.acquired, lease.released, "
                "workspace_session.finalize.publish_failed, "
                "workspace_session.finalize_failed, workspace_session.cleanup_failed, "
                "layerstack.autosquash.evaluate, "
                "layerstack.autosquash.triggered, layerstack.autosquash.completed, "
                "layerstack.autosquash.failed.",
            ),
            Argument(
                "since_ms", "integer", help="Only events from this time on, in ms since 1970.", minimum=0
            ),
            Argument("last_n", "integer", help="Only the newest N.", minimum=0),
        ),
        owner="observability",
        read_only=True,
        idempotent=True,
        related=("trace", "snapshot"),
        examples=("sandbox-observability-cli events --sandbox-id eos-1 --last-n 20",),
        result=(
            ResultField("view", "string"),
            ResultField("events", "array", "{kind, ts, trace, parent, name, attrs}"),
        ),
        sets=OBSERVABILITY_SETS,
        promise="Ascending by time; trace is the id of the request that caused it.",
        result_example='{"view": "events", "events": [{"kind": "event", "ts": 1767000000000, "trace": '
        '"6f0c…", "name": "lease.acquired", "attrs": {"version": 4}}]}',
    ),
    Operation(
        "resources",
        "observability",
        "resources",
        "CPU and memory over time",
        "Samples of CPU time, memory, disk traffic and processes. With sandbox_id a series of that sandbox, "
        "without it the newest point of every ready one. "
        "availability and errors say what could not be measured.",
        (Argument("sandbox_id", "string", help="Sandbox id. Omit for all sandboxes.", value="ID"), _WINDOW),
        scope="system_or_sandbox",
        owner="observability",
        read_only=True,
        idempotent=True,
        related=("cgroup", "snapshot", "topology"),
        examples=(
            "sandbox-observability-cli resources",
            "sandbox-observability-cli resources --sandbox-id eos-1 --window-ms 300000",
        ),
        result=(
            ResultField("view", "string"),
            ResultField("scope", "string"),
            ResultField("sandbox_id", "string"),
            ResultField("source", "string"),
            *_SERIES,
            ResultField("sandboxes", "object", "without sandbox_id: {<id>: {availability, errors, current}}"),
        ),
        sets=OBSERVABILITY_SETS,
        promise="deltas has the difference of each counter to the previous point; it is empty for the "
        "first point.",
        result_example='{"view": "resources", "scope": "sandbox", "sandbox_id": "eos-1", "availability": '
        '"available", "errors": [], "series": []}',
    ),
    Operation(
        "daemon",
        "observability",
        "daemon",
        "The agent process itself",
        "Memory, CPU time, threads and descriptors of the agent of a sandbox, its limits and their use, and "
        "how its sessions ended. "
        "A figure that cannot be read is null and named in warnings.",
        (_SANDBOX,),
        owner="observability",
        read_only=True,
        idempotent=True,
        related=("snapshot", "topology"),
        examples=("sandbox-observability-cli daemon --sandbox-id eos-1",),
        result=(
            ResultField("view", "string"),
            ResultField("scope", "string"),
            ResultField("daemon", "object"),
        ),
        sets=OBSERVABILITY_SETS,
        promise="Bytes and microseconds; measured at the call.",
        result_example='{"view": "daemon", "scope": "sandbox", "daemon": {"available": true, "pid": 7, '
        '"resident_memory_bytes": 31457280}}',
    ),
    Operation(
        "topology",
        "observability",
        "topology",
        "Processes and namespaces",
        "List the processes of each session of a sandbox and its agent, read at each call. Pids are those "
        "of the sandbox.",
        (_SANDBOX,),
        owner="observability",
        read_only=True,
        idempotent=True,
        related=("daemon", "snapshot", "list_workspace_sessions"),
        examples=("sandbox-observability-cli topology --sandbox-id eos-1",),
        result=(
            ResultField("view", "string"),
            ResultField("scope", "string"),
            ResultField("topology", "object"),
        ),
        sets=OBSERVABILITY_SETS,
        promise="Sessions by id, processes by pid; at most 512 of them, then truncated is true.",
        result_example='{"view": "topology", "scope": "sandbox", "topology": {"schema_version": 2, '
        '"available": true, "truncated": false, "workspaces": []}}',
    ),
    Operation(
        "cgroup",
        "observability",
        "cgroup",
        "Usage over time as the engine counts it",
        "Samples of a sandbox as its container engine counts them (as its agent does, without an engine), "
        "or of one session, and the current processes.",
        (_SANDBOX, Argument("scope", "string", help="sandbox, or a session id.", default="sandbox"), _WINDOW),
        owner="manager",
        read_only=True,
        idempotent=True,
        related=("resources", "topology"),
        examples=(
            "sandbox-observability-cli cgroup --sandbox-id eos-1",
            "sandbox-observability-cli cgroup --sandbox-id eos-1 --scope SESSION",
        ),
        result=(
            ResultField("view", "string"),
            ResultField("scope", "string"),
            *_SERIES,
            ResultField("topology", "object|null"),
        ),
        sets=OBSERVABILITY_SETS,
        promise="The first point is there within 10 s of the sandbox's creation.",
        result_example='{"view": "cgroup", "scope": "sandbox", "availability": "available", "errors": [], '
        '"series": [], "topology": null}',
    ),
    Operation(
        "layerstack",
        "observability",
        "layerstack",
        "Layers, sizes and leases",
        "The layer stack, newest layer first: size on disk of each layer and which sessions hold it; with "
        "workspace_id "
        "the layers that one session sees and the size of its private changes.",
        (
            Argument("sandbox_id", "string", required=True, help="Sandbox id.", value="ID"),
            Argument(
                "workspace_id", "string", help="Session id: show what this session has mounted.", value="ID"
            ),
            Argument(
                "window_ms",
                "integer",
                help="How far back the trend goes, in ms.",
                default=60000,
                minimum=0,
                maximum=600000,
            ),
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
            ResultField(
                "quota",
                "object|null",
                "bytes, layers, used_bytes, used_layers, and which of them are enforced",
                ours=True,
            ),
            ResultField(
                "layer_id", "string", "of a raw request with layer_id, whose answer has entries and truncated"
            ),
            ResultField("entries", "array"),
            ResultField("truncated", "boolean"),
        ),
        sets=OBSERVABILITY_SETS,
        promise="One manifest version is described.",
        result_example='{"view": "layerstack", "manifest_version": 4, "active_lease_count": 1, "layers": '
        '[{"layer_id": "L000004-…", "bytes": 12}]}',
    ),
)
