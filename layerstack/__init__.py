"""Immutable layers and the manifest over them: overlayfs-backed versions of one directory tree, published all
or nothing.

    # base/B000001-base holds the base
    Store.create("/var/lib/stack", workspace_root="/workspace", base_root_hash="ab…", xattr_namespace=TRUSTED)
    store = Store.open("/var/lib/stack")
    upper = store.open_upper("s1", origin="workspace_session:s1")
    fd = upper.mount()  # a detached overlay mount: move it somewhere, work in it, unmount it
    # one layer on top of the head, or PublishRejected with every conflict
    upper.publish(owner="s1", request_id="r1")
    store.snapshot().read_bytes("README.md")  # the head, without a mount

The package can be imported on any OS; everything that uses a store needs Linux.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from layerstack.core.gc_roots import Pin
    from layerstack.errors import LayerStackError, PublishRejected
    from layerstack.fsck.check import Check, Damage, check
    from layerstack.history.blame_file import Range
    from layerstack.history.versions import Change, Version
    from layerstack.kernel.xattrs import TRUSTED, USER, XattrNamespace
    from layerstack.layers.snapshot import Entry, Snapshot
    from layerstack.model.conflict import Conflict, Fingerprint, Hunk, Notice, TheirsLayer
    from layerstack.model.manifest import LayerId, LayerRef, Manifest
    from layerstack.publish.drafts import Draft
    from layerstack.publish.outcome import Preview, Published
    from layerstack.session.upper import Upper
    from layerstack.store import Store

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
    "XattrNamespace",
    "check",
]

_WHERE = {
    "Change": "layerstack.history.versions",
    "Check": "layerstack.fsck.check",
    "Conflict": "layerstack.model.conflict",
    "Damage": "layerstack.fsck.check",
    "Draft": "layerstack.publish.drafts",
    "Entry": "layerstack.layers.snapshot",
    "Fingerprint": "layerstack.model.conflict",
    "XattrNamespace": "layerstack.kernel.xattrs",
    "Hunk": "layerstack.model.conflict",
    "LayerId": "layerstack.model.manifest",
    "LayerRef": "layerstack.model.manifest",
    "LayerStackError": "layerstack.errors",
    "Manifest": "layerstack.model.manifest",
    "Notice": "layerstack.model.conflict",
    "Pin": "layerstack.core.gc_roots",
    "Preview": "layerstack.publish.outcome",
    "PublishRejected": "layerstack.errors",
    "Published": "layerstack.publish.outcome",
    "Range": "layerstack.history.blame_file",
    "Snapshot": "layerstack.layers.snapshot",
    "Store": "layerstack.store",
    "TRUSTED": "layerstack.kernel.xattrs",
    "TheirsLayer": "layerstack.model.conflict",
    "USER": "layerstack.kernel.xattrs",
    "Upper": "layerstack.session.upper",
    "Version": "layerstack.history.versions",
    "check": "layerstack.fsck.check",
}


def __getattr__(name: str) -> object:
    """Import each public name at its first use, so that a program that needs one pure module does not load
    the store.
    """
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_WHERE[name]), name)
