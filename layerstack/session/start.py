"""Start of a session on a version or on a draft: its folder, and the upper that writes into it."""

from __future__ import annotations

import re
from collections.abc import Sequence

from layerstack.core.stack import Stack
from layerstack.errors import Invalid
from layerstack.kernel import overlay
from layerstack.layers.index import Layer
from layerstack.model.lease import Lease
from layerstack.model.manifest import Manifest
from layerstack.model.resolution import Choice
from layerstack.publish import draft_refs, unresolved
from layerstack.session.folder import CARRIED, SessionIdentity, make_folder
from layerstack.session.rebase import rebase
from layerstack.session.upper import Upper

_ID = re.compile(r"[A-Za-z0-9._-]{1,128}")


def check_id(session_id: str) -> None:
    """Check that the id can name a folder. Raises Invalid, reason invalid_session_id."""
    if not _ID.fullmatch(session_id) or session_id in (".", ".."):
        raise Invalid(
            f"session id {session_id!r} is malformed",
            reason="invalid_session_id",
            details={"session_id": session_id},
        )


def open_upper(stack: Stack, identity: SessionIdentity, version: int | None) -> Upper:
    """Open a session on a version, or on the draft that `identity` names, at the base of the draft.

    The version is the head by default; see `Store.open_upper`.
    """
    pending: list[Layer] = []
    if identity.draft_id is not None:
        manifest, layer, lease = draft_refs.stand_on(stack, identity.draft_id, identity.lease_name)
        pending.append(layer)
        identity = identity._replace(unresolved=draft_refs.get(stack, identity.draft_id).unresolved)
    else:
        manifest, lease = stack.acquire_lease(identity.lease_name, version)
    try:
        return make_upper(stack, identity, manifest, lease, pending)
    except BaseException:
        stack.release(lease)
        draft_refs.leave(stack, identity.draft_id)
        raise


def make_upper(
    stack: Stack,
    identity: SessionIdentity,
    manifest: Manifest,
    lease: Lease,
    pending: Sequence[Layer],
    *,
    carried: str | None = None,
) -> Upper:
    """Make a session's folder and its upper, which takes over the lease.

    Args:
        private: pending layers of the session, the topmost first.
        carried: path in staging of the tree of the only pending layer, which becomes the session's own.
    Raises:
        Invalid: there is a session of that id (session_exists).
        LayerLimit: more lower directories than the kernel mounts.
    """
    overlay.check_count(len(manifest.layers) + len(pending))
    chain = stack.layers.chain(manifest, pending) if pending else stack.chain(manifest)
    make_folder(stack, identity, manifest, chain, carried)
    if carried is not None:
        chain = stack.layers.chain(
            manifest, [pending[0].at(f"{stack.root}/sessions/{identity.session_id}/private/{CARRIED}")]
        )
    return Upper(stack, identity, manifest, chain, lease)


def open_rebased(stack: Stack, identity: SessionIdentity, choice: Choice | None) -> Upper:
    """Open a session on the head, with a draft's work carried over to it; see `Store.open_upper`."""
    draft_id = identity.draft_id
    assert draft_id is not None
    base, work, own = draft_refs.stand_on(stack, draft_id, identity.lease_name)
    try:
        head, lease = stack.acquire_lease(identity.lease_name)
        try:
            with stack.staging.temporary_names() as new_name:
                root = new_name("rebase")
                carried = rebase(stack, base, work, head, root, choice=choice)
                now = stack.layers.chain(head, [] if carried.layer is None else [carried.layer])
                left = unresolved.still(draft_refs.get(stack, draft_id).unresolved, now.find)
                identity = identity._replace(unresolved=unresolved.joined(left, carried.marked))
                if carried.layer is None:
                    upper = make_upper(stack, identity, head, lease, [])
                else:
                    upper = make_upper(stack, identity, head, lease, [carried.layer], carried=root)
                upper.notices = carried.notices
                upper.resolved = carried.resolved
                return upper
        except BaseException:
            stack.release(lease)
            raise
    except BaseException:
        draft_refs.leave(stack, draft_id)
        raise
    finally:
        stack.release(own)
