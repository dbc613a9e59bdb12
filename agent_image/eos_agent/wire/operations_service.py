"""Arguments and result fields of services: named programs of a session that run until it ends. Any OS,
standard library only.
"""

from __future__ import annotations

from eos_agent.wire.operation import Argument, ResultField

READY_MS, READY_MOST_MS = 30_000, 600_000
SERVICE = Argument(
    "service",
    "string",
    help="Name for a server that runs until its session ends. It does not hold up publishing, which ends it.",
    value="NAME",
    ours=True,
)
READY = Argument(
    "ready",
    "json_object",
    help="With service: answer once its port or url answers, or a line matches pattern; default 30000 ms.",
    items={
        "type": "object",
        "properties": {
            "port": {"type": "integer"},
            "url": {"type": "string"},
            "pattern": {"type": "string"},
            "timeout_ms": {"type": "integer"},
        },
    },
    value="'{\"port\": 8000}'",
    ours=True,
)
SERVICE_RESULT = (
    ResultField("service", "string", "name of the service", ours=True),
    ResultField(
        "ready",
        "boolean",
        "of a service that was started with ready: false while it starts, or when it was not ready in time",
        ours=True,
    ),
    ResultField(
        "forward",
        "string",
        "of a service that is ready: path of its port at the sandbox's daemon_http",
        ours=True,
    ),
    ResultField("service_url", "string", "the same as a URL; requests need the token", ours=True),
    ResultField("stopped_by", "string", "of a service: operation that ended its session", ours=True),
)
STOPPED = ResultField(
    "services_stopped",
    "array",
    "service and command_session_id of each service that was ended; absent when none ran",
    ours=True,
)
