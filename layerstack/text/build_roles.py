"""Roles of paths for tools that build by comparing times: an input, which a person or an agent wrote, or an
output, which was made from inputs.

An input is a file that is not ignored, or an ignored one that was last written by `file_write` or
`file_edit`, or that the patterns of `runtime.layerstack.inputs` name. Any other ignored file, and an ignored
directory, is an output.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection
from typing import NamedTuple

from layerstack.text.gitignore import RuleSet, named, parse

INPUTS = (".env*", "*.local")
"""Ignored files that are written by hand, in the form of lines of a `.gitignore`."""


def patterns(lines: Collection[str]) -> RuleSet | None:
    """Parse patterns for `Roles.inputs`. Raises `RulesRefused` as a `.gitignore` with these lines does."""
    return parse(os.fsencode("\n".join(lines)))


class Roles(NamedTuple):
    """The roles of paths in the work of one session."""

    ignored: Callable[[str, bool], bool]
    """Predicate (path, whether it is a directory): True for an ignored path."""
    inputs: RuleSet | None
    written: Collection[str] = ()
    """Files that were last written by `file_write` or `file_edit`."""

    def by_hand(self, path: str) -> bool:
        """Check whether the file counts as an input even if it is ignored."""
        return path in self.written or named(self.inputs, path)

    def is_output(self, path: str, directory: bool = False) -> bool:
        return bool(path) and self.ignored(path, directory) and (directory or not self.by_hand(path))

    def is_input(self, path: str) -> bool:
        """Check whether the file is an input."""
        return not self.is_output(path)
