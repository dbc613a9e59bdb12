"""Line numbers of the keys of a YAML document, for messages. Also finds keys that occur twice: YAML silently
keeps the last.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

Location = tuple[int | str, ...]


class Lines:
    """Line numbers of one document, from 1; empty for a document without a root."""

    def __init__(self, root: Any = None) -> None:
        """Args: root: the node that `yaml.compose` returned."""
        self._root = root

    def of(self, location: Sequence[int | str]) -> int | None:
        """Return the line of the key at `location`, or of the nearest existing key above it; None without
        any.
        """
        import yaml

        node, line = self._root, None
        for part in location:
            if isinstance(node, yaml.MappingNode) and (found := _entry(node, part)) is not None:
                line, node = found[0].start_mark.line + 1, found[1]
            elif isinstance(node, yaml.SequenceNode) and isinstance(part, int) and part < len(node.value):
                node = node.value[part]
                line = node.start_mark.line + 1
            else:
                break
        return line

    def repeated(self) -> list[tuple[str, int, int]]:
        """List each key that occurs twice in one mapping: its dotted name and both lines."""
        return list(_repeated(self._root, ""))


def _entry(mapping: Any, key: int | str) -> tuple[Any, Any] | None:
    """Return the last key of that name, which YAML keeps, and its value."""
    return next(((at, value) for at, value in reversed(mapping.value) if at.value == str(key)), None)


def _repeated(node: Any, above: str) -> Iterator[tuple[str, int, int]]:
    import yaml

    if isinstance(node, yaml.MappingNode):
        seen: dict[str, int] = {}
        for key, value in node.value:
            if not isinstance(key, yaml.ScalarNode):
                continue
            name, line = f"{above}.{key.value}" if above else str(key.value), key.start_mark.line + 1
            if name in seen:
                yield name, seen[name], line
            seen[name] = line
            yield from _repeated(value, name)
    elif isinstance(node, yaml.SequenceNode):
        for number, value in enumerate(node.value):
            yield from _repeated(value, f"{above}[{number}]")
