"""Drafts: captured work that was not published, kept with its base until it is published or discarded.

    drafts/<id>/draft.json    base version and its layers (the lease), origin, reason
    drafts/<id>/layer/        the captured work, immutable: a session opened from it mounts it as a pending
                              layer

`draft.json` is durable before the work is renamed in: a folder without `layer` is the start of a draft whose
work is still elsewhere.
"""

from __future__ import annotations

import os
import re
import time
from typing import Any, NamedTuple

from layerstack.core.stack import Stack
from layerstack.errors import NotFound, StoreCorrupt
from layerstack.kernel import fsync, records
from layerstack.layers.index_file import FORMAT, PLAIN_FORMAT
from layerstack.model.resolution import NOTHING_UNRESOLVED, Unresolved
from layerstack.publish.publish import Work
from layerstack.publish.unresolved import from_json as unresolved_from_json
from layerstack.publish.unresolved import to_json as unresolved_json

_ID = re.compile(r"draft-[0-9a-f]{16}")


class Draft(NamedTuple):
    """One draft as the list shows it."""

    draft_id: str
    base_version: int
    origin: str
    """`workspace_session:<id>`."""
    request_id: str | None
    agent: str | None
    reason: str
    created_unix_ms: int
    paths: int
    """Number of paths that it changes."""
    bytes: int
    layer_ids: tuple[str, ...]
    """The layers of its base, newest first, which its lease keeps."""
    upper: str
    """Token of the upper from which it was made."""
    digest: str = ""
    """Digest of its tree, as a layer's; empty in drafts that are older than this key."""
    content: int = PLAIN_FORMAT
    """The index format that defines the digests of files in `digest`."""
    marked: tuple[tuple[str, tuple[str, ...]], ...] = ()
    """Items of `unresolved`."""

    @property
    def unresolved(self) -> Unresolved:
        """Files with conflict markers of a rebase, as `Upper.unresolved`."""
        return dict(self.marked)

    @property
    def body(self) -> dict[str, Any]:
        """Content of draft.json; an empty `unresolved` is left out, as in older drafts."""
        body = {**self._asdict(), "layer_ids": list(self.layer_ids)}
        del body["marked"]
        return body | ({"unresolved": unresolved_json(self.unresolved)} if self.marked else {})

    def to_json(self) -> dict[str, Any]:
        return {
            "draft_id": self.draft_id,
            "origin": self.origin,
            "agent": self.agent,
            "request_id": self.request_id,
            "reason": self.reason,
            "base_version": self.base_version,
            "created_unix_ms": self.created_unix_ms,
            "paths": self.paths,
            "bytes": self.bytes,
        }


def new_id() -> str:
    """Make an unused id of a draft."""
    return f"draft-{os.urandom(8).hex()}"


def keep(
    stack: Stack,
    work: Work,
    *,
    origin: str,
    request_id: str | None,
    agent: str | None,
    reason: str,
    upper: str,
    unresolved: Unresolved = NOTHING_UNRESOLVED,
) -> Draft:
    """Make a draft of captured work: its tree is renamed, not copied. Durable on return.

    Raises:
        OSError: the disk refused; the work is where it was or, if it could not be moved back, in a draft.
    """
    draft = Draft(
        new_id(),
        work.version,
        origin,
        request_id,
        agent,
        reason,
        time.time_ns() // 1_000_000,
        work.indexed.changes,
        work.indexed.size_bytes,
        stack.layer_ids_at(
            work.version
        ),  # those of the base's chain, or the layers that replaced them in a squash
        upper,
        work.indexed.digest,
        FORMAT,
        tuple(unresolved.items()),
    )
    folder = folder_of(stack, draft.draft_id)
    stack.check_open()
    stack.step("draft.sync_work")
    tree = work.tree
    fsync.sync_files(tree.root, map(tree.full, work.indexed.files()), map(tree.full, work.indexed.folders()))
    stack.step("draft.mkdir")
    os.mkdir(folder)
    try:
        records.write(f"{folder}/draft.json", draft.body, step=stack.step, name="draft.json")
        stack.step("draft.fsync_drafts")
        fsync.fsync_dir(f"{stack.root}/drafts")
        stack.step("draft.rename")
        fsync.rename_new(tree.root, f"{folder}/layer")
        try:
            stack.step("draft.fsync")
            fsync.fsync_dir(folder)
        except OSError:
            fsync.rename_new(f"{folder}/layer", tree.root)
            raise
    except BaseException:
        with fsync.best_effort():
            if os.path.lexists(
                f"{folder}/layer"
            ):  # the only copy of the work could not be moved back: it is a draft now
                adopt(stack, draft)
            else:
                fsync.remove_tree(folder)
        raise
    return draft


def rewrite(stack: Stack, draft: Draft, layer_ids: tuple[str, ...]) -> None:
    """Rewrite draft.json with other layers of the same content. A crash leaves the old document or the new
    one; the caller syncs the folder.

    Raises:
        OSError: the disk refused; the draft is as before.
    """
    draft = draft._replace(layer_ids=layer_ids)
    with stack.staging.temporary_names() as new_name:
        new = new_name("draft")
        fsync.write_before(new, records.dump(draft.body), root=stack.root)
        stack.step("draft.rename_rewritten")
        os.rename(new, f"{folder_of(stack, draft.draft_id)}/draft.json")
    hold(stack, draft)


def hold(stack: Stack, draft: Draft) -> None:
    """Take a lease on the draft's base for as long as the draft exists; called again when the layers of the
    base were replaced.
    """
    with stack.lock:
        held = stack.draft_table.leases.get(draft.draft_id)
        stack.draft_table.leases[draft.draft_id] = stack.leases.acquire(
            f"draft {draft.draft_id}", draft.base_version, draft.layer_ids
        )
        if held is not None:
            stack.release(held)


def adopt(stack: Stack, draft: Draft) -> None:
    """Take a lease on the base of a new draft: on the layers that its version has now."""
    with stack.lock:
        ids = stack.layer_ids_at(draft.base_version)
        if draft.layer_ids != ids:
            with fsync.best_effort():
                rewrite(stack, draft, ids)
                return
        hold(stack, draft)


def folder_of(stack: Stack, draft_id: str) -> str:
    """Give the path of the folder for that draft id; it need not exist."""
    return f"{stack.root}/drafts/{draft_id}"


def load(stack: Stack, draft_id: str) -> Draft:
    """Raises:
    NotFound: there is no such draft (reason draft_not_found).
    StoreCorrupt: its draft.json is damaged.
    """
    folder = folder_of(stack, draft_id)
    if not _ID.fullmatch(draft_id) or not os.path.isdir(f"{folder}/layer"):
        raise NotFound(
            f"draft {draft_id!r} is not in this store",
            reason="draft_not_found",
            details={"draft_id": draft_id},
        )
    path = f"{folder}/draft.json"
    body = records.read(path)
    try:
        body["layer_ids"] = tuple(body["layer_ids"])
        body["marked"] = tuple(unresolved_from_json(body.pop("unresolved", {})).items())
        draft = Draft(**body)
    except (AttributeError, KeyError, TypeError) as error:
        raise StoreCorrupt(f"{path}: {error}", details={"file": path}) from None
    if draft.draft_id != draft_id:
        raise StoreCorrupt(f"{path}: belongs to {draft.draft_id}", details={"file": path})
    return draft


def all_of(stack: Stack) -> list[Draft]:
    """Load all drafts, oldest first; a draft whose draft.json is damaged is quarantined."""
    found: list[Draft] = []
    for name in os.listdir(f"{stack.root}/drafts"):
        try:
            found.append(load(stack, name))
        except NotFound:
            continue  # being made, or just discarded
        except StoreCorrupt as error:
            if os.path.isdir(f"{folder_of(stack, name)}/layer"):
                stack.set_apart(error)
            continue
        stack.damaged.pop(f"{folder_of(stack, name)}/draft.json", None)
    return sorted(found, key=lambda draft: (draft.created_unix_ms, draft.draft_id))
