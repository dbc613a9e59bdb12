"""Make a draft of the work of one dead session, in a process of its own beside the one that has the store
open, so that limits of time and memory apply to this work alone.

The caller holds the session's lease, and a name in staging for the temporary files of this process. The
process inherits the descriptor that holds the store, so that no third process opens the store while this one
still writes. However this process ends, the files on disk show its progress: `Dead.end_try` reads them.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from layerstack.kernel import records
from layerstack.kernel.fsync import no_step
from layerstack.model.lease import Lease
from layerstack.model.manifest import LayerId, Manifest, reference
from layerstack.publish.drafts import Draft
from layerstack.recovery import opening
from layerstack.recovery.dead_upper import dead_upper
from layerstack.store import PATH_DEPTH_MAX, Store
from layerstack.tree.staging import Staging


class Beside:
    """The store as this process uses it: the base versions of dead sessions, and a staging directory of its
    own.
    """

    def __init__(self, root: str, staging: str, lock_fd: int) -> None:
        sys.setrecursionlimit(max(sys.getrecursionlimit(), 4 * PATH_DEPTH_MAX))
        workspace, xattr_namespace = opening.workspace_of(root)
        self._store = Store(root, xattr_namespace, workspace, lock_fd, no_step)
        os.makedirs(staging, mode=0o700, exist_ok=True)
        self._store.staging = Staging(staging)

    def recover(self, session_id: str, version: int, layer_ids: Sequence[str]) -> Draft | None:
        """Make the draft; None when the session has no unpublished work beyond that of its own draft.

        Args:
            version, layer_ids: those of the session's lease.
        Raises:
            NotFound, StoreCorrupt, StoreBusy, OSError, MemoryError.
        """
        store = self._store
        store.become(Manifest(version, tuple(reference(LayerId(layer_id)) for layer_id in layer_ids)))
        body = records.read_session(f"{store.root}/sessions/{session_id}")
        lease = Lease(0, f"session {session_id}", version, tuple(layer_ids))
        draft = dead_upper(store, session_id, body, lease).to_draft(reason="recovered")
        return None if draft is not None and draft.draft_id == body["draft_id"] else draft
