"""Output schemas as strict as they can be: a key that a schema does not name is an error."""

from __future__ import annotations

from typing import Any

import jsonschema


def closed(schema: Any) -> Any:
    """The schema with no further keys in any object that lists its keys."""
    if isinstance(schema, list):
        return [closed(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    found = {key: closed(value) for key, value in schema.items()}
    if schema.get("type") == "object" and "properties" in schema:
        found["additionalProperties"] = False
    return found


def check(schema: Any, result: Any) -> None:
    """Raise jsonschema.ValidationError if a key of `result` has another type than its schema says, or none
    there.
    """
    jsonschema.Draft202012Validator(closed(schema)).validate(result)
