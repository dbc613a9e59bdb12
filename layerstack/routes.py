"""Which paths of a session are ignored ones: its base version's own `.gitignore` files say so, parsed once per version."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from layerstack.chain import Chain
from layerstack.ignore import IgnoreRules
from layerstack.resolve import Ignored
from layerstack.states import FILE

if TYPE_CHECKING:
    from layerstack.stack import Stack

IGNORE_FILE_MAX = 1 << 20
"""A larger .gitignore is no list of rules."""
KEPT = 16
"""Versions whose rules stay parsed."""


class Routes:
    """The rules of one stack's versions; its methods may be called from any thread."""

    def __init__(self, stack: Stack) -> None:
        self._stack = stack
        self._rules: dict[int, IgnoreRules] = {}

    def ignored(self, version: int) -> Ignored:
        """(path, is it a directory) -> does that version ignore it? The files are read when a path asks for them, by readers of the head."""
        rules = self._rules.get(version)
        if rules is None:
            rules = IgnoreRules(self._reader(version))
            if len(self._rules) >= KEPT:
                self._rules = {}
            self._rules[version] = rules
        return rules.ignored

    def _reader(self, version: int) -> Callable[[str], bytes | None]:
        then: dict[Chain, Chain] = {}  # by the head's chain, of which it keeps one

        def read(path: str) -> bytes | None:
            with self._stack.reading() as snapshot:  # by the layers of now: those of then may be folded away
                chain = then.get(snapshot.chain)
                if chain is None:
                    then.clear()
                    chain = then[snapshot.chain] = snapshot.chain.up_to(version)
                state = chain.find(path)
                return state.data() if state is not None and state.kind == FILE and state.size <= IGNORE_FILE_MAX else None

        return read
