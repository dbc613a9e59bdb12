"""Operation -> the JSON schemas and the definition of its tool. Pure; no `$ref`, no `anyOf`, the same bytes
in every process.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from eos_mcp.catalog import Argument, Operation, ResultField, operations_of_set
from eos_mcp.mcp import result_shapes as shapes
from eos_mcp.mcp.server_options import EOS, ServerOptions

_TYPES = {
    "string": "string",
    "path": "string",
    "integer": "integer",
    "float": "number",
    "json_array": "array",
    "json_object": "array",
    "boolean": "boolean",
}
_SANDBOX = Argument("sandbox_id", "string", help="Sandbox id.")

FOR_PERSONS = frozenset({"allow_sensitive", "allow_unsafe", "keep_setuid", "with_git"})
"""Hidden arguments that no schema has: a server accepts them where its own command line allows it."""

DISTINCT_NAMES = {
    "cgroup": "sandbox_cgroup",
    "daemon": "sandbox_daemon",
    "events": "sandbox_events",
    "fsck": "check_store",
    "prune": "prune_unused",
    "resources": "sandbox_resources",
    "snapshot": "sandbox_snapshot",
    "topology": "sandbox_topology",
    "trace": "sandbox_trace",
}
"""Tools of the set `all` whose names other servers use too, in clients that join the lists of several."""


def definitions(options: ServerOptions, operations: Iterable[Operation]) -> list[dict[str, Any]]:
    """The entries of `tools/list` as a server with these options serves them."""
    optional = options.program == EOS or options.sandbox_id is not None
    frugal = options.program == EOS and options.tool_set == "agent"
    found = [
        definition(one, sandbox_optional=optional, frugal=frugal, whole=options.tool_set != "agent")
        for one in operations
    ]
    named = names(options)
    return [{**one, "name": named.get(one["name"], one["name"])} for one in found]


def names(options: ServerOptions) -> dict[str, str]:
    """Names of tools that differ from those of their operations, which are accepted too."""
    return DISTINCT_NAMES if options.program == EOS and options.tool_set == "all" else {}


def operations(options: ServerOptions) -> tuple[Operation, ...]:
    """The operations that this command line offers, in the order of `tools/list`."""
    return operations_of_set(options.tool_set, ours=options.program == EOS)


OUTPUT_MAX = 1600
"""Most characters of an output schema in the set `agent`: some clients show it to the model in every session,
whose texts say the same.
"""


def definition(
    operation: Operation, *, sandbox_optional: bool = False, frugal: bool = False, whole: bool = False
) -> dict[str, Any]:
    """One entry of `tools/list`.

    Args:
        frugal: leave out an output schema above OUTPUT_MAX.
        whole: as of `input_schema`.
    """
    outputs = output_schema(operation)
    if frugal and len(json.dumps(outputs, separators=(",", ":"))) > OUTPUT_MAX:
        outputs = None
    return {
        "name": operation.name,
        "title": operation.summary,
        "description": operation.description,
        "inputSchema": input_schema(operation, sandbox_optional=sandbox_optional, whole=whole),
        **({} if outputs is None else {"outputSchema": outputs}),
        "annotations": {
            "readOnlyHint": operation.read_only,
            "destructiveHint": operation.destructive,
            "idempotentHint": operation.idempotent,
            "openWorldHint": operation.open_world,
        },
    }


def input_schema(
    operation: Operation, *, sandbox_optional: bool = False, whole: bool = False
) -> dict[str, Any]:
    """The object schema of the arguments but the hidden ones, in catalog order; `required` is always there.

    Args:
        whole: with the hidden arguments, but those of persons: in all sets but `agent`, whose definitions a
            model reads in every session.
        sandbox_optional: the server has a sandbox for calls that name none. Destroying still wants the name.
    """
    arguments = tuple(a for a in operation.arguments if shows(a, whole=whole))
    if operation.scope != "system" and operation.argument("sandbox_id") is None:
        arguments = (_SANDBOX._replace(required=operation.scope == "sandbox_required"), *arguments)
    required = [
        a.name
        for a in arguments
        if a.required and not (sandbox_optional and takes_default_sandbox(operation, a))
    ]
    return {
        "type": "object",
        "properties": {a.name: _property(a) for a in arguments},
        "required": required,
        "additionalProperties": False,
    }


def shows(argument: Argument, *, whole: bool) -> bool:
    """Return True when a schema has this argument."""
    return not argument.hidden or (whole and argument.name not in FOR_PERSONS)


def takes_default_sandbox(operation: Operation, argument: Argument) -> bool:
    """Return True when `--sandbox-id` is the default of this argument."""
    return argument.name == "sandbox_id" and operation.name != "destroy_sandbox"


def output_schema(operation: Operation) -> dict[str, Any] | None:
    """The object schema of all keys of a result, or None where the form of an inner object is not declared.

    Nothing is required: success has its fields, a failure has `error`, and some clients check both.
    """
    own = shapes.BY_OPERATION.get(operation.name, {})
    properties: dict[str, Any] = {}
    for field in operation.result:
        if "." in field.name:
            continue  # a key of an inner object
        schema = own.get(field.name, shapes.BY_KEY.get(field.name)) if _is_nested(field) else _scalar(field)
        if schema is None:
            return None
        properties[field.name] = schema
    properties |= {key: schema for key, schema in own.items() if key not in properties}
    if takes_sandbox(operation):
        properties.setdefault("sandbox_id", shapes.STRING)  # of a call that named none
    if any(_is_nested(field) for field in operation.result):
        properties.setdefault("truncated", shapes.BOOLEAN)
        missing = "rows_left_out" if "left_out" in own else "left_out"
        properties[missing] = {"type": "object", "additionalProperties": shapes.INTEGER}
    properties["error"] = shapes.ERROR
    return {"type": "object", "properties": properties}


def _is_nested(field: ResultField) -> bool:
    return not {"object", "array"}.isdisjoint(field.type.split("|"))


def _scalar(field: ResultField) -> dict[str, Any]:
    words = field.type.split("|")
    schema = {"type": words[0]}
    return shapes.nullable(schema) if "null" in words else schema


def takes_sandbox(operation: Operation) -> bool:
    """Return True when calls of this operation may leave out the sandbox that it needs."""
    inner = operation.argument("sandbox_id")
    needs = operation.scope == "sandbox_required" or (inner is not None and inner.required)
    return needs and operation.name != "destroy_sandbox"


def _property(argument: Argument) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": _TYPES[argument.kind]}
    if argument.choices:
        schema["enum"] = list(argument.choices)
    if argument.kind == "json_array":
        schema["items"] = argument.items if argument.items is not None else {"type": "string"}
    if argument.kind == "json_object":
        if argument.items is not None and "properties" in argument.items:
            schema = {**argument.items, "additionalProperties": False}
        else:  # as "key=value": strict modes and Gemini take no object with free keys
            schema["items"] = {"type": "string"}
    if argument.kind in ("integer", "float"):
        minimum = (
            argument.minimum if argument.minimum is not None else 0 if argument.kind == "integer" else None
        )
        for key, bound in (("minimum", minimum), ("maximum", argument.maximum)):
            if bound is not None:
                schema[key] = int(bound) if float(bound).is_integer() else bound
    schema["description"] = argument.help
    if argument.default is not None:
        schema["default"] = argument.default
    return schema
