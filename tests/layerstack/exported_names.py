"""Files of an export by name, as the store streams them."""

from __future__ import annotations

import os

from layerstack.export.stream import flatten_changes
from tests.layerstack.store_fixture import Stack


def names_in_export(stack: Stack) -> dict[str, bytes]:
    """Return name -> content of the files of the export, without whiteouts and opaque directories."""
    found: dict[str, bytes] = {}
    for entry in flatten_changes(stack.store.snapshot()):
        if entry.real_path is not None and not entry.header.kind:
            with open(entry.real_path, "rb") as file:
                found[os.fsdecode(entry.header.path)] = file.read()
    return found
