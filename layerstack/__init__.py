"""Immutable layers and the manifest over them: overlayfs-backed versions of one directory tree, published all or nothing.

    Store.create("/var/lib/stack", workspace_root="/workspace", base_root_hash="ab…", form=TRUSTED)   # base/B000001-base holds the base
    store = Store.open("/var/lib/stack")
    upper = store.open_upper("s1", origin="workspace_session:s1")
    fd = upper.mount()            # a detached overlay mount: move it somewhere, work in it, unmount it
    upper.publish(owner="s1", request_id="r1")          # one layer on top of the head, or PublishRejected with every conflict
    store.snapshot().read_bytes("README.md")            # the head, without a mount

Importing works on any OS; everything that touches a store wants Linux.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from layerstack.blame_file import Range
    from layerstack.changes import Conflict, Fingerprint, Hunk, Notice, TheirsLayer
    from layerstack.drafts import Draft
    from layerstack.errors import LayerStackError, PublishRejected
    from layerstack.form import TRUSTED, USER, Form
    from layerstack.fsck import Check, Damage, check
    from layerstack.history import Change, Version
    from layerstack.manifest import LayerId, LayerRef, Manifest
    from layerstack.pins import Pin
    from layerstack.projection import Entry, Snapshot
    from layerstack.publish import Preview, Published
    from layerstack.store import Store
    from layerstack.upper import Upper

__all__ = [
    "TRUSTED",
    "USER",
    "Change",
    "Check",
    "Conflict",
    "Damage",
    "Draft",
    "Entry",
    "Fingerprint",
    "Form",
    "Hunk",
    "LayerId",
    "LayerRef",
    "LayerStackError",
    "Manifest",
    "Notice",
    "Pin",
    "Preview",
    "PublishRejected",
    "Published",
    "Range",
    "Snapshot",
    "Store",
    "TheirsLayer",
    "Upper",
    "Version",
    "check",
]

_WHERE = {
    "Change": "layerstack.history",
    "Check": "layerstack.fsck",
    "Conflict": "layerstack.changes",
    "Damage": "layerstack.fsck",
    "Draft": "layerstack.drafts",
    "Entry": "layerstack.projection",
    "Fingerprint": "layerstack.changes",
    "Form": "layerstack.form",
    "Hunk": "layerstack.changes",
    "LayerId": "layerstack.manifest",
    "LayerRef": "layerstack.manifest",
    "LayerStackError": "layerstack.errors",
    "Manifest": "layerstack.manifest",
    "Notice": "layerstack.changes",
    "Pin": "layerstack.pins",
    "Preview": "layerstack.publish",
    "PublishRejected": "layerstack.errors",
    "Published": "layerstack.publish",
    "Range": "layerstack.blame_file",
    "Snapshot": "layerstack.projection",
    "Store": "layerstack.store",
    "TRUSTED": "layerstack.form",
    "TheirsLayer": "layerstack.changes",
    "USER": "layerstack.form",
    "Upper": "layerstack.upper",
    "Version": "layerstack.history",
    "check": "layerstack.fsck",
}


def __getattr__(name: str) -> object:
    """Each noun is imported at its first use: whoever wants one pure module does not pay for the store."""
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_WHERE[name]), name)
