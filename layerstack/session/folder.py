"""Folder of a session, made in staging and renamed in; and the identity that its session.json keeps."""

from __future__ import annotations

import os
import time
from typing import Any, NamedTuple

from layerstack.core.stack import Stack
from layerstack.errors import Invalid, StoreCorrupt
from layerstack.kernel import fsync, records
from layerstack.layers.chain import Chain
from layerstack.model.manifest import Manifest
from layerstack.model.resolution import NOTHING_UNRESOLVED, Unresolved
from layerstack.publish import unresolved
from layerstack.tree.fileops import make_directory

CARRIED = "0001"
"""Name of the layer of carried-over work among the pending layers of a session."""


class SessionIdentity(NamedTuple):
    """Identity of an upper; kept in session.json."""

    session_id: str
    origin: str
    agent: str | None
    request_id: str | None
    draft_id: str | None
    token: str
    rebased: bool = False
    """True when the session has a pending layer of its own with the draft's work, carried over to the head.
    False: a session on a draft uses the layer of the draft itself.
    """

    unresolved: Unresolved = NOTHING_UNRESOLVED

    @property
    def lease_name(self) -> str:
        """Name of the session in its lease."""
        return f"session {self.session_id}"

    def to_json(self) -> dict[str, Any]:
        """Fields of session.json; an empty `unresolved` is left out, as in older files."""
        body = self._asdict()
        del body["unresolved"]
        return body | ({"unresolved": unresolved.to_json(self.unresolved)} if self.unresolved else {})


def make_folder(
    stack: Stack,
    identity: SessionIdentity,
    manifest: Manifest,
    chain: Chain,
    carried: str | None,
    *,
    name: str = CARRIED,
    replace: bool = False,
) -> None:
    """Make the folder in staging and rename it: a folder in `sessions/` is complete.

    Args:
        carried: a tree in staging that becomes the pending layer `name`.
        replace: the new folder replaces the session's existing one, which is discarded.
    """
    folder = stack.staging.name(f"session-{identity.session_id}")
    try:
        stack.step("session.mkdir")
        os.mkdir(folder, 0o700)
        root = chain.find("")
        if root is None:
            base = f"{stack.root}/base"
            raise StoreCorrupt(
                f"{base}: the base of version {manifest.version} is missing", details={"file": base}
            )
        body = {
            **identity.to_json(),
            "base_version": manifest.version,
            "layers": chain.ids,
            "created_unix_ms": time.time_ns() // 1_000_000,
        }
        stack.step("session.write")
        with fsync.writing_before(f"{folder}/session.json", records.dump(body), root=stack.root):
            make_directory(f"{folder}/upper", root)
            os.mkdir(f"{folder}/work")
            if carried is not None:
                os.mkdir(f"{folder}/private")
                os.rename(carried, f"{folder}/private/{name}")
        if replace:
            stack.step("session.exchange")
            fsync.rename_exchange(folder, f"{stack.root}/sessions/{identity.session_id}")
            return
        stack.step("session.rename")
        try:
            fsync.rename_new(folder, f"{stack.root}/sessions/{identity.session_id}")
        except FileExistsError:
            details = {"session_id": identity.session_id}
            raise Invalid(
                f"session {identity.session_id} exists", reason="session_exists", details=details
            ) from None
    finally:
        stack.staging.discard(folder)
