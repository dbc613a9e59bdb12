"""Operation -> the JSON schemas and the definition of its tool. Pure; no `$ref`, no `anyOf`, the same bytes
in every process.
"""

from __future__ import annotations

from typing import Any

from eos_mcp.catalog import Argument, Operation, operations_of_set
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

# A definition is read by a model in every session: a schema names a result's first key and forbids no others.
OUTPUT_FIELDS = 1


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


def names(options: ServerOptions) -> dict[str, str]:
    """Names of tools that differ from those of their operations, which are accepted too."""
    return DISTINCT_NAMES if options.program == EOS and options.tool_set == "all" else {}


def operations(options: ServerOptions) -> tuple[Operation, ...]:
    """The operations that this command line offers, in the order of `tools/list`."""
    return operations_of_set(options.tool_set, ours=options.program == EOS)


def definition(operation: Operation, *, sandbox_optional: bool = False) -> dict[str, Any]:
    """One entry of `tools/list`."""
    return {
        "name": operation.name,
        "title": operation.summary,
        "description": operation.description,
        "inputSchema": input_schema(operation, sandbox_optional=sandbox_optional),
        "outputSchema": output_schema(operation),
        "annotations": {
            "readOnlyHint": operation.read_only,
            "destructiveHint": operation.destructive,
            "idempotentHint": operation.idempotent,
            "openWorldHint": operation.open_world,
        },
    }


def input_schema(operation: Operation, *, sandbox_optional: bool = False) -> dict[str, Any]:
    """The object schema of the arguments but the hidden ones, in catalog order; `required` is always there.

    Args:
        sandbox_optional: the server has a sandbox for calls that name none. Destroying still wants the name.
    """
    arguments = tuple(a for a in operation.arguments if not a.hidden)
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


def takes_default_sandbox(operation: Operation, argument: Argument) -> bool:
    """Return True when `--sandbox-id` is the default of this argument."""
    return argument.name == "sandbox_id" and operation.name != "destroy_sandbox"


def output_schema(operation: Operation) -> dict[str, Any]:
    """One object schema with nothing required: success has its fields, a failure has `error`; some clients
    check both against it.
    """
    properties: dict[str, Any] = {}
    for field in operation.result[:OUTPUT_FIELDS]:
        words = field.type.split("|")
        properties[field.name] = {"type": words[0] if len(words) == 1 else words}
    properties["error"] = {"type": "object"}
    return {"properties": properties, "type": "object"}


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
