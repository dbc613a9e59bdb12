"""The operation `trace`: the spans of one request as a tree, with their events. Contract 7.3."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from eos_agent.base.rotating_log import decode
from eos_agent.base.telemetry import trace_id
from eos_agent.observe.limits import MAX_BYTES, MAX_RECORDS

if TYPE_CHECKING:
    from eos_agent.base.telemetry import Telemetry
    from eos_agent.observe.agent import Agent

LAST = "last"
_SPAN_KEYS = ("ts", "trace", "span", "parent", "name", "dur_ms", "status", "attrs")


async def trace(agent: Agent, args: dict[str, Any]) -> dict[str, Any]:
    """Answer the operation: all spans of an answered request, the ended spans of a running command, an empty
    list for an unknown id.
    """
    return await agent.pool.run(lambda: _trace(agent.telemetry, args["trace_id"]))


def _trace(telemetry: Telemetry, asked: str) -> dict[str, Any]:
    lines = telemetry.read()
    wanted = _last(lines) if asked == LAST else trace_id(asked)
    if wanted is None:
        return {"view": "trace", "trace": asked, "spans": []}
    records, truncated = _records(lines, wanted)
    found: dict[str, Any] = {
        "view": "trace",
        "trace": wanted if asked == LAST else asked,
        "spans": tree(records, dict(telemetry.open)),
    }
    if truncated:
        found["truncated"] = True
    return found


def _last(lines: list[bytes]) -> str | None:
    """Trace id of the request that was answered last."""
    for line in reversed(lines):
        if b'"name":"daemon' in line and b'"parent":' not in line:
            value = decode(line, trace=str)
            if value is not None and value.get("kind") == "span":
                return str(value["trace"])
    return None


def _records(lines: list[bytes], wanted: str) -> tuple[list[dict[str, Any]], bool]:
    """The newest records of that trace that fit into one answer, and True if older ones were left out."""
    mark = b'"trace":' + json.dumps(wanted).encode() + b","
    found: list[dict[str, Any]] = []
    size = 0
    for line in reversed(lines):
        if mark not in line:
            continue
        value = decode(line, ts=int, name=str)
        if value is None or value.get("trace") != wanted or not _whole(value):
            continue
        size += len(line) + 64
        if len(found) >= MAX_RECORDS or size > MAX_BYTES:
            return found[::-1], True
        found.append(value)
    return found[::-1], False


def _whole(record: dict[str, Any]) -> bool:
    """True if the fields have the types that the agent writes: after a repair of the disk a line can consist
    of parts of two lines.
    """
    at, parent = record.get("at", 0), record.get("parent", "")
    return (
        isinstance(at, int | float)
        and isinstance(parent, str)
        and (record.get("kind") != "span" or isinstance(record.get("span"), str))
    )


def tree(records: list[dict[str, Any]], still_open: dict[str, str | None]) -> list[dict[str, Any]]:
    """The spans without a parent, in order of their start, with children and events below.

    Args:
        still_open: span that has not ended -> its parent. Children of such a span are shown below its nearest
            ended ancestor.
    """
    spans = sorted(
        (one for one in records if one.get("kind") == "span"), key=lambda one: one.get("at", one["ts"])
    )
    start = min((one.get("at", one["ts"]) for one in records), default=0)
    nodes: dict[str, dict[str, Any]] = {}
    for one in spans:
        shown = {key: one[key] for key in _SPAN_KEYS if key in one}
        offset = max(0.0, round(one.get("at", one["ts"]) - start, 3))
        nodes[one["span"]] = {"span": shown, "offset_ms": offset, "children": [], "events": []}

    def above(parent: str | None) -> dict[str, Any] | None:
        seen: set[str] = set()
        while parent is not None and parent not in nodes and parent not in seen:
            seen.add(parent)
            parent = still_open.get(parent)
        return None if parent is None else nodes.get(parent)

    roots: list[dict[str, Any]] = []
    for node in nodes.values():
        parent = above(node["span"].get("parent"))
        (roots if parent is None or parent is node else parent["children"]).append(node)
    for one in records:
        if one.get("kind") == "event":
            nearest = above(one.get("parent")) or (roots[0] if roots else None)
            if nearest is not None:
                shown = {key: value for key, value in one.items() if key not in ("at", "_counters")}
                nearest["events"].append(
                    {"offset_ms": max(0.0, round(one.get("at", one["ts"]) - start, 3)), "event": shown}
                )
    return roots
