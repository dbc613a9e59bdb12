"""A destination on a folding file system."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests import casefold_fs, in_namespace


def on_folding(short_dir: str, body: Callable[[Path], Any]) -> Any:
    """Call body(a directory of a case-folding file system) in a child."""

    def in_child() -> Any:
        backing, target = Path(short_dir, "backing"), Path(short_dir, "folding")
        backing.mkdir()
        target.mkdir()
        with casefold_fs.mounted(str(target), str(backing)):
            dest = target / "dest"
            dest.mkdir()
            return body(dest)

    return in_namespace.call("trusted", in_child)
