"""Arguments as models send them, made into those that the catalog checks. Pure.

Clients in strict mode fill in every argument, with null, "" or 0 for those that a model leaves out; other
models write numbers and arrays as text. A value with only one possible meaning is converted; any other is
left as it is, and the check of arguments refuses it by name.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any, TypeGuard

from eos_mcp.catalog import Argument, Operation

TEXT_MAX = 1 << 20
"""Longest text, in characters, that is tried as JSON; a longer one stays text."""
SANDBOX = "sandbox_id"
NAMES = frozenset({SANDBOX, "agent", "user", "cursor", "after", "image"})
ABSENT_AT_ZERO = frozenset({"timeout_ms", "limit"})
"""Limits for which 0 means none: the 0 of a strict client would kill a command at its start."""
EDIT_KEYS = ("old_string", "new_string", "replace_all")


def plain(operation: Operation, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments in the catalog's types; absent ones are left out, wrong ones stay as they are."""
    known = {argument.name: argument for argument in operation.arguments}
    found: dict[str, Any] = {}
    for name, value in given.items():
        if value is None:
            continue
        argument = known.get(name)
        if argument is None:
            if name == SANDBOX and value == "":
                continue
            found[name] = value
            continue
        value = _typed(argument, value)
        if not _absent(operation, argument, value):
            found[name] = value
    if operation.name == "file_edit":
        _edits(found)
    return found


def _absent(operation: Operation, argument: Argument, value: Any) -> bool:
    """Return True for what a strict client sends in place of an argument that the model left out."""
    if value == "":
        free_text = argument.kind in ("string", "path") and not argument.choices
        return not (free_text and argument.required) or _is_name(argument.name)
    if argument.required:
        return False
    if isinstance(value, (list, dict)):
        return not value
    if isinstance(value, (int, float)) and not isinstance(value, bool) and value == 0:
        if argument.minimum is not None and argument.minimum > 0:
            return True
        return argument.name in ABSENT_AT_ZERO and operation.waits != argument.name
    return False


def _is_name(name: str) -> bool:
    return name.endswith("_id") or name in NAMES


def _typed(argument: Argument, value: Any) -> Any:
    kind = argument.kind
    if kind in ("integer", "float"):
        return _number(kind, value)
    if kind == "boolean":
        return {"true": True, "false": False}.get(value.strip().lower(), value) if _text(value) else value
    if kind == "json_array":
        return _array(argument, value)
    if kind == "json_object":
        value = _parsed(value, "{[")
        return _properties(argument, value) if "properties" in (argument.items or {}) else _pairs(value)
    if _text(value):
        return _choice(argument, value)
    if isinstance(value, int) and not isinstance(value, bool) and _is_name(argument.name):
        return str(value)  # a uid
    return value


def _number(kind: str, value: Any) -> Any:
    if _text(value):
        text = value.strip()
        try:
            value = (
                int(text)
                if len(text) <= 20 and text.lstrip("+-").isdecimal() and text.isascii()
                else float(text)
            )
        except ValueError:
            return value
    if kind == "integer" and isinstance(value, float) and math.isfinite(value) and value.is_integer():
        return int(value)
    return value


def _choice(argument: Argument, value: str) -> str:
    """Return the choice that differs by case, or by the SIG of a signal, only."""
    if not argument.choices or value in argument.choices:
        return value
    wanted = value.strip().lower()
    for choice in argument.choices:
        if wanted in (choice.lower(), f"sig{choice.lower()}"):
            return choice
    return value


def _array(argument: Argument, value: Any) -> Any:
    items = argument.items or {"type": "string"}
    value = _parsed(value, "[{")
    if argument.name == "env":
        return _environment(value)
    wanted = items.get("type")
    if wanted == "object":
        if _object(value):
            value = [value]
        if _list(value):
            return [_member(items, _parsed(one, "{")) for one in value]
        return value
    if _text(value) and value and wanted == "string":
        return [value]
    return value


def _member(items: Mapping[str, Any], value: Any) -> Any:
    """One object of an array, without nulls and with its booleans and numbers in their types."""
    if not _object(value):
        return value
    properties: Mapping[str, Any] = items.get("properties") or {}
    types: dict[str, Any] = {name: part.get("type") for name, part in properties.items()}
    found: dict[str, Any] = {}
    for name, inner in value.items():
        if inner is None or (inner == "" and types.get(name, "string") != "string"):
            continue
        if types.get(name) == "boolean" and _text(inner):
            inner = {"true": True, "false": False}.get(inner.strip().lower(), inner)
        elif types.get(name) in ("integer", "number"):
            inner = _number("integer" if types[name] == "integer" else "float", inner)
        found[name] = inner
    return found


def _environment(value: Any) -> Any:
    """`{"NAME": value}`, or an array of "NAME=value" or of such objects, as an array of "NAME=value"."""
    if _text(value):
        return [value] if "=" in value else value
    if _object(value):
        pairs = [(name, _scalar(inner)) for name, inner in value.items() if inner is not None]
        if any(text is None or "=" in name for name, text in pairs):
            return value
        return [f"{name}={text}" for name, text in pairs]
    if _list(value):
        found: list[Any] = []
        for one in value:
            if _object(one) and {"name", "value"} == set(one):
                one = {one["name"]: one["value"]}
            changed = _environment(one) if _object(one) else one
            if _list(changed):
                found += changed
            else:
                found.append(changed)
        return found
    return value


def _pairs(value: Any) -> Any:
    """Convert an array of "key=value" into an object; return any other value as it is."""
    if _list(value) and all(_text(one) and "=" in one for one in value):
        return {one.rpartition("=")[0]: one.rpartition("=")[2] for one in value}
    return value


def _properties(argument: Argument, value: Any) -> Any:
    """An object of known keys, or an array of "key=value", without what strict clients fill in."""
    if _list(value) and all(_text(one) and "=" in one for one in value):
        value = {one.partition("=")[0].strip(): one.partition("=")[2] for one in value}
    if not _object(value):
        return value
    found = _member(argument.items or {}, value)
    kept = {name: inner for name, inner in found.items() if inner not in ("", 0)}
    return {} if set(kept) <= {"timeout_ms"} else kept


def _scalar(value: Any) -> str | None:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value) if isinstance(value, (str, int, float)) else None


def _edits(found: dict[str, Any]) -> None:
    """Move one edit that is given beside the path, as in the edit tools of other servers, into `edits`."""
    if "edits" in found or "old_string" not in found or "new_string" not in found:
        return
    edit = {name: found.pop(name) for name in EDIT_KEYS if name in found}
    if _text(edit.get("replace_all")):
        edit["replace_all"] = {"true": True, "false": False}.get(
            edit["replace_all"].lower(), edit["replace_all"]
        )
    found["edits"] = [edit]


def _parsed(value: Any, openings: str) -> Any:
    """Decode an array or object that is given as JSON text; return any other value as it is."""
    if not _text(value) or len(value) > TEXT_MAX or value.lstrip()[:1] not in tuple(openings):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        return value


def _text(value: object) -> TypeGuard[str]:
    return isinstance(value, str)


def _list(value: object) -> TypeGuard[list[Any]]:
    return isinstance(value, list)


def _object(value: object) -> TypeGuard[dict[str, Any]]:
    return isinstance(value, dict)
