"""Find the ignored paths of a session by the `.gitignore` files of its base version, which are parsed once
per version.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

from layerstack.layers.chain import Chain
from layerstack.layers.snapshot import Snapshot
from layerstack.text.gitignore import FILE_MAX, KEPT_BYTES, Ignored, IgnoreRules
from layerstack.tree.state import FILE

KEPT = 16
"""Versions whose parsed rules are remembered, as long as they fit into KEPT_BYTES together."""
READ_KEPT, READ_BYTES = 2_000, 2_048
"""Most `.gitignore` paths whose last content is remembered, and the most bytes of such a content."""


class IgnoreCache:
    """The rules of one stack's versions; its methods may be called from any thread."""

    def __init__(
        self,
        reading: Callable[[], AbstractContextManager[Snapshot]],
        untouched: Callable[[str, int], bool],
    ) -> None:
        """
        Args:
            reading: `Stack.reading`.
            untouched: `PathIndex.untouched` of the stack's layers.
        """
        self._reading, self._untouched = reading, untouched
        self._rules: dict[int, IgnoreRules] = {}
        self.contents: dict[str, tuple[int, bytes | None]] = {}
        """Path of a `.gitignore` -> a version and the content in it, None for an absent file. Another version
        has the same content if no layer newer than the older of the two versions touches the path.
        """

    def ignored(self, version: int) -> Ignored:
        """Give the predicate (path, whether it is a directory): True when that version ignores the path.
        `.gitignore` files are read when a path needs them, under a reader's lease on the head.
        """
        return self.rules(version).ignored

    def rules(self, version: int) -> IgnoreRules:
        """Give the rules of which `ignored` is the predicate."""
        rules = self._rules.get(version)
        if rules is None:
            rules = IgnoreRules(self._reader(version))
            kept = self._rules
            if len(kept) >= KEPT or sum([other.weight for other in list(kept.values())]) > KEPT_BYTES:
                self._rules = kept = {}
            kept[version] = rules
        return rules

    def for_merge(self, version: int, head: int) -> Ignored:
        """Give the predicate for work on one version that is merged with another version: True for a path
        that both ignore, so that a path that only one of them ignores is checked for conflicts.
        """
        one, other = self.ignored(version), self.ignored(head)
        return (
            one
            if version == head
            else lambda path, is_directory: one(path, is_directory) and other(path, is_directory)
        )

    def refused(self, version: int) -> list[str]:
        """The `.gitignore` files beyond the limits that paths of this version met so far, sorted."""
        rules = self._rules.get(version)
        return [] if rules is None else sorted(rules.refused)

    def _reader(self, version: int) -> Callable[[str], bytes | None]:
        then: dict[Chain, Chain] = {}  # chain of the head -> chain of the version; has one entry

        def read(path: str) -> bytes | None:
            known = self.contents.get(path)
            if known is not None and self._untouched(path, min(version, known[0])):
                return known[1]
            data = read_file(path)
            if len(self.contents) >= READ_KEPT:
                self.contents = {}
            if data is None or len(data) <= READ_BYTES:
                self.contents[path] = version, data
            return data

        def read_file(path: str) -> bytes | None:
            with (
                self._reading() as snapshot
            ):  # through the current head: the version's own layers may be squashed
                chain = then.get(snapshot.chain)
                if chain is None:
                    then.clear()
                    chain = then[snapshot.chain] = snapshot.chain.up_to(version)
                state = chain.find(path)
                return state.data(FILE_MAX + 1) if state is not None and state.kind == FILE else None

        return read
