"""`typing.NamedTuple` without importing `typing`, which would add a quarter to the imports of a command line.

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NamedTuple
else:
    from eos_agent.wire.namedtuple import NamedTuple
"""

from __future__ import annotations

from collections import namedtuple


class _Meta(type):
    def __new__(cls, name: str, bases: tuple[type, ...], body: dict[str, object]) -> type:
        if not bases:
            return super().__new__(cls, name, bases, body)
        fields: list[str] = list(body.get("__annotations__", ()))  # type: ignore[call-overload]
        defaults = [body[field] for field in fields if field in body]
        made = namedtuple(name, fields, defaults=defaults, module=str(body["__module__"]))  # type: ignore[misc]
        for key, value in body.items():
            if key not in fields and key not in ("__qualname__", "__module__", "__dict__", "__weakref__"):
                setattr(made, key, value)
        return made


class NamedTuple(metaclass=_Meta):
    """Fields by annotation, with defaults, methods and a docstring, as `typing.NamedTuple`."""
