"""The start of a session: its folder, made whole in staging and renamed in, on a version or on a draft, and the upper that writes into it."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from layerstack.errors import Invalid, StoreCorrupt
from layerstack.kernel import fsync, overlay, records
from layerstack.layers.chain import Chain
from layerstack.layers.index import Layer
from layerstack.model.lease import Lease
from layerstack.model.manifest import Manifest
from layerstack.session.upper import SessionIdentity, Upper
from layerstack.tree.fileops import make_directory

if TYPE_CHECKING:
    from layerstack.store import Store

CARRIED = "0001"
"""The name of the carried-over work among the private layers of a session."""

_ID = re.compile(r"[A-Za-z0-9._-]{1,128}")


def check_id(session_id: str) -> None:
    """Raises Invalid, reason invalid_session_id, for what cannot name a folder."""
    if not _ID.fullmatch(session_id) or session_id in (".", ".."):
        raise Invalid(f"session id {session_id!r} is malformed", reason="invalid_session_id", details={"session_id": session_id})


def open_upper(store: Store, identity: SessionIdentity, version: int | None) -> Upper:
    """On a version, the head by default, or on the draft that `identity` names, at its own base; see `Store.open_upper`."""
    private: list[Layer] = []
    if identity.draft_id is not None:
        manifest, layer, lease = store.draft_book.stand_on(identity.draft_id, identity.holder)
        private.append(layer)
    else:
        manifest, lease = store.take_lease(identity.holder, version)
    try:
        return make_upper(store, identity, manifest, lease, private)
    except BaseException:
        store.release(lease)
        store.draft_book.leave(identity.draft_id)
        raise


def make_upper(
    store: Store, identity: SessionIdentity, manifest: Manifest, lease: Lease, private: Sequence[Layer], *, carried: str | None = None
) -> Upper:
    """A session's folder and its upper, which the lease goes to.

    Args:
        private: sealed work to stand on, the top first.
        carried: where the tree of the only one of these lies in staging: it becomes the session's own.
    Raises:
        Invalid: there is a session of that id (session_exists). LayerLimit: more lowers than the kernel mounts.
    """
    overlay.check_count(len(manifest.layers) + len(private))
    chain = store.layers.chain(manifest, private) if private else store.chain(manifest)
    make_folder(store, identity, manifest, chain, carried)
    if carried is not None:
        chain = store.layers.chain(manifest, [private[0].at(f"{store.root}/sessions/{identity.session_id}/private/{CARRIED}")])
    return Upper(store, identity, manifest, chain, lease)


def make_folder(
    store: Store,
    identity: SessionIdentity,
    manifest: Manifest,
    chain: Chain,
    carried: str | None,
    *,
    name: str = CARRIED,
    replace: bool = False,
) -> None:
    """Complete in staging, then one rename: a folder in `sessions/` is whole.

    Args:
        carried: a tree in staging that becomes the private layer `name`.
        replace: in the place of the session's folder of before, which goes.
    """
    folder = store.scrap.name(f"session-{identity.session_id}")
    try:
        store.step("session.mkdir")
        os.mkdir(folder, 0o700)
        root = chain.find("")
        if root is None:
            base = f"{store.root}/base"
            raise StoreCorrupt(f"{base}: what lies lowest in version {manifest.version} is missing", details={"file": base})
        body = {
            **identity._asdict(),
            "base_version": manifest.version,
            "layers": chain.ids,
            "created_unix_ms": time.time_ns() // 1_000_000,
        }
        store.step("session.write")
        with fsync.writing_before(f"{folder}/session.json", records.dump(body), root=store.root):
            make_directory(f"{folder}/upper", root)
            os.mkdir(f"{folder}/work")
            if carried is not None:
                os.mkdir(f"{folder}/private")
                os.rename(carried, f"{folder}/private/{name}")
        if replace:
            store.step("session.exchange")
            fsync.rename_exchange(folder, f"{store.root}/sessions/{identity.session_id}")
            return
        store.step("session.rename")
        try:
            fsync.rename_new(folder, f"{store.root}/sessions/{identity.session_id}")
        except FileExistsError:
            details = {"session_id": identity.session_id}
            raise Invalid(f"session {identity.session_id} exists", reason="session_exists", details=details) from None
    finally:
        store.scrap.discard(folder)
