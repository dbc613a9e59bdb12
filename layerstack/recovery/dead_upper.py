"""Upper of a session whose process died, read from disk."""

from __future__ import annotations

import contextlib
import os
import time
from typing import Any

from layerstack.core.stack import Stack
from layerstack.errors import StoreBusy
from layerstack.kernel import overlay
from layerstack.layers.index import Layer
from layerstack.model.lease import Lease
from layerstack.model.manifest import LayerId, Manifest, reference
from layerstack.publish import draft_refs, drafts, unresolved
from layerstack.session import saved_work
from layerstack.session.folder import SessionIdentity
from layerstack.session.upper import Upper

FREE_TRIES, FREE_PAUSE_S = 100, 0.03
"""Checks, and the seconds between two, while recovery waits for the mounts of a dead process to end."""


def dead_upper(stack: Stack, session_id: str, body: dict[str, Any], lease: Lease) -> Upper:
    """Open the upper as its process left it.

    Raises:
        NotFound, StoreCorrupt: its base or its draft is missing or damaged.
        StoreBusy: an overlay is still mounted on its upperdir.
    """
    manifest = Manifest(lease.version, tuple(reference(LayerId(layer_id)) for layer_id in lease.layer_ids))
    identity = SessionIdentity(
        session_id,
        body["origin"],
        body["agent"],
        body["request_id"],
        body["draft_id"],
        body["token"],
        body.get("rebased", False),
        unresolved.from_json(body.get("unresolved", {})),
    )
    pending: list[Layer] = []
    if identity.draft_id is not None and not identity.rebased:
        pending.append(draft_refs.layer_of(stack, drafts.load(stack, identity.draft_id), manifest))
    upper = Upper(stack, identity, manifest, stack.layers.chain(manifest, pending), lease)
    if os.path.isdir(upper.upperdir) and not _free(upper.upperdir):
        raise StoreBusy(
            f"{upper.upperdir}: a live overlay still writes into it", details={"upperdir": upper.upperdir}
        )
    with contextlib.suppress(FileNotFoundError):
        upper.adopt(sorted(os.listdir(f"{upper.directory}/private")))
    upper.saved = saved_work.load(upper.directory, body)
    return upper


def _free(upperdir: str) -> bool:
    """Wait until no overlay is mounted on the upperdir; False when one still is after `FREE_TRIES` checks.

    After a kill -9 the processes of a session, and with them its mount, take a moment to end.
    """
    for _ in range(FREE_TRIES):
        if not overlay.is_mounted(upperdir):
            return True
        time.sleep(FREE_PAUSE_S)
    return False
