"""What a path is to a tool that builds by time: an input, which a person or an agent wrote, or an output, which was made from inputs.

An input is a file that is not ignored, or one that is ignored and was last written by `file_write` or `file_edit`, or is named by the
patterns of `runtime.layerstack.inputs`. Any other ignored file, and an ignored directory, is an output.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection
from typing import NamedTuple

from layerstack.text.gitignore import RuleSet, named, parse

INPUTS = (".env*", "*.local")
"""Ignored files that are written by hand, in the form of lines of a `.gitignore`."""


def patterns(lines: Collection[str]) -> RuleSet | None:
    """What `Roles.inputs` takes. Raises `RulesRefused` as a `.gitignore` with these lines does."""
    return parse(os.fsencode("\n".join(lines)))


class Roles(NamedTuple):
    """The roles of paths in the work of one session."""

    ignored: Callable[[str, bool], bool]
    """(path, is it a directory?) -> is it ignored?"""
    inputs: RuleSet | None
    written: Collection[str] = ()
    """Files that were last written by `file_write` or `file_edit`."""

    def by_hand(self, path: str) -> bool:
        """Is the file, if it is ignored, an input all the same?"""
        return path in self.written or named(self.inputs, path)

    def is_output(self, path: str, directory: bool = False) -> bool:
        return bool(path) and self.ignored(path, directory) and (directory or not self.by_hand(path))

    def is_input(self, path: str) -> bool:
        """Of a file."""
        return not self.is_output(path)
