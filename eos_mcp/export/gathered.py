"""Facts that one export gathers about the paths of its delta, until they become rows of the record."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from eos_mcp.export.facts import Fact, Facts, in_range

FEW = 16_384
"""Maximum of facts in memory; with more, all are in a temporary file."""
BYTES = 4 << 20
"""Maximum of bytes of their paths in memory."""


class GatheredFacts:
    """Facts by path in two slots: 0 for written entries, 1 for entries that were not put in place. Used in
    one thread.
    """

    def __init__(self) -> None:
        self._few: tuple[dict[bytes, Fact], dict[bytes, Fact]] = ({}, {})
        self._bytes = 0
        self._many: Facts | None = None

    def close(self) -> None:
        if self._many is not None:
            self._many.close()

    def put(self, path: bytes, fact: Fact, slot: int = 0) -> None:
        if self._many is not None:
            self._many.put(path, fact, slot)
            return
        self._few[slot][path] = fact
        self._grow(len(path))

    def put_all(self, facts: Iterable[tuple[bytes, Fact]]) -> None:
        """Put each fact in slot 0."""
        if self._many is not None:
            self._many.put_all(facts)
            return
        size, few = 0, self._few[0]
        for path, fact in facts:
            few[path] = fact
            size += len(path)
        self._grow(size)

    def _grow(self, size: int) -> None:
        self._bytes += size
        if len(self._few[0]) + len(self._few[1]) > FEW or self._bytes > BYTES:
            self._many = Facts()
            self._many.put_all(self._few[0].items())
            for path, fact in self._few[1].items():
                self._many.put(path, fact, 1)
            self._few = ({}, {})

    def get(self, path: bytes) -> list[Fact]:
        """List the facts about the path, that of slot 0 first."""
        if self._many is not None:
            return self._many.get(path)
        return [slot[path] for slot in self._few if path in slot]

    def rows(self) -> Iterator[tuple[Any, ...]]:
        """Yield path, letter, size, time and digest of all facts in slot 0, in order of the paths."""
        if self._many is not None:
            return self._many.rows()
        return (
            (path, fact.letter, *in_range(fact), fact.digest) for path, fact in sorted(self._few[0].items())
        )
