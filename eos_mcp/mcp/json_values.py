"""Typed access to JSON that was received and may have any shape."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, TypeGuard

Object = Mapping[str, Any]


def is_object(value: object) -> TypeGuard[Object]:
    return isinstance(value, Mapping)


def rows(value: object) -> list[Object]:
    """Return the objects in a JSON array; [] for anything else."""
    items: list[object] = value if isinstance(value, list) else []  # pyright: ignore[reportUnknownVariableType]
    return [item for item in items if is_object(item)]


def items(value: object) -> list[object]:
    """Return the members of a JSON array; [] for anything else."""
    return list(value) if isinstance(value, (list, tuple)) else []  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]


def shown_path(value: object) -> str:
    """A path for one line of text: quoted as JSON if it has a line end, an escape code or the like, which
    could pass for lines of the answer.
    """
    text = str(value)
    return text if text.isprintable() else json.dumps(text, ensure_ascii=True)


def compact(value: object) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)
