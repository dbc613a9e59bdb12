"""File operations on the published head, without a session: they read from the layers, and each write
publishes one layer."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from eos_agent.files import text
from eos_agent.files.dirfd import (
    FILE_FLAGS,
    already_exists,
    below_a_file,
    described,
    in_the_way,
    inside_itself,
    moved,
    not_a_directory,
    not_a_file,
    not_empty,
    not_found,
)
from eos_agent.files.mounted import (
    edit_result,
    list_after,
    list_entry,
    list_limit,
    list_page,
    read_content,
)
from eos_agent.files.patch_plan import Plan, plan_patch
from eos_agent.wire.encoding import UTF8, encoding_of
from eos_agent.wire.protocol import OperationError
from eos_agent.wire.workspace_path import resolve
from layerstack.errors import AlreadyExists, LayerStackError, NotADirectory, NotAFile, NotEmpty, NotFound
from layerstack.history import versions
from layerstack.model.conflict import path_json
from layerstack.model.file_change import FileChange
from layerstack.model.paths import ancestors
from layerstack.publish.publish import Author
from layerstack.tree.state import DIRECTORY, FILE, LINK

if TYPE_CHECKING:
    from layerstack.layers.snapshot import Entry, Snapshot
    from layerstack.store import Store

LETTERS = {FILE: "file", LINK: "symlink", DIRECTORY: "directory"}
KINDS = {"directory": "Directory", "symlink": "Symlink", "other": "Other"}


def perform_on_head(
    store: Store,
    name: str,
    root: str,
    args: Mapping[str, Any],
    data: bytes | None,
    *,
    request_id: str,
    agent: str | None,
    message: str | None = None,
) -> dict[str, Any]:
    """Perform one file operation on the head: read | write | edit | list | stat | delete | move | patch,
    like
    `perform_in_mount`.

    Raises:
        OperationError: as contract 1.2.5 to 1.2.7.
        LayerStackError, OSError: the store refused the publication.
    """
    reading = {"read": _read, "list": _list, "stat": _stat}.get(name)
    if reading is not None:
        found = reading(store, root, args)
        return found if args.get("version") is None else {**found, "version": args["version"]}
    if name in ("delete", "move", "patch"):
        author = Author(f"operation:{request_id}", request_id, agent, message=message)
        if name == "patch":
            return _patch(store, root, args, author)
        return _delete(store, root, args, author) if name == "delete" else _move(store, root, args, author)
    encoding = encoding_of(args, text_only=True) if name == "edit" else UTF8
    edits = text.parse_edits(args["edits"], encoding) if name == "edit" else []
    with store.reading() as snapshot:
        path = resolve(args, root, lambda p: _exists(snapshot, p))
    owner = f"operation:{request_id}"
    max_edit: int = args.get("max_bytes", text.MAX_EDIT_BYTES)
    before: list[bytes | None] = []
    edited: list[text.Edited] = []

    def write(old: bytes | None) -> bytes:
        before[:] = [old]
        return data or b""

    def edit(old: bytes | None) -> bytes:
        if old is None:
            raise not_found(path)
        edited[:] = [text.apply_edits(old, edits, path, max_edit, encoding)]
        return edited[0].content

    try:
        change, limit = (write, 0) if name == "write" else (edit, max_edit + 1)
        store.update_file(
            path, change, owner=owner, request_id=request_id, agent=agent, limit=limit, message=message
        )
    except NotAFile as error:
        with store.reading() as snapshot:
            raise _refused(snapshot, path, error) from None
    if name == "edit":
        return edit_result(path, len(edits), edited[0])
    return {
        "type": "create" if before[0] is None else "update",
        **path_json(path),
        "bytes_written": len(data or b""),
    }


def _opened(store: Store, args: Mapping[str, Any]) -> AbstractContextManager[Snapshot]:
    """Open the version that a reading operation names, or the head."""
    version = args.get("version")
    return store.reading() if version is None else versions.opened(store, version)


def _exists(snapshot: Snapshot, path: str) -> bool:
    try:
        return snapshot.stat(path) is not None
    except LayerStackError:
        return False


def _refused(snapshot: Snapshot, path: str, error: NotAFile) -> OperationError:
    """The error for NotAFile, with the symlink and its target, or the parent that is not a directory."""
    parts = path.split("/")
    for depth in range(1, len(parts) + 1):
        at = "/".join(parts[:depth])
        entry = snapshot.stat(at)
        if entry is not None and entry.kind == "symlink":
            return not_a_file(path, "Symlink", at, os.readlink(entry.real_path))
        if entry is not None and entry.kind != "directory" and depth < len(parts):
            return below_a_file(path, at)
    return not_a_file(path, str(error.details.get("kind", "Other")))


def _missing(snapshot: Snapshot, path: str) -> OperationError:
    """The error for an absent `path`, or for a parent that is not a directory."""
    for ancestor in ancestors(path):
        entry = snapshot.stat(ancestor)
        if entry is None:
            break
        if entry.kind != "directory":
            return below_a_file(path, ancestor)
    return not_found(path)


def _entry(snapshot: Snapshot, path: str) -> Entry:
    """Look up the entry at `path`. Raises OperationError if it is absent or a parent is not a directory."""
    try:
        entry = snapshot.stat(path)
    except NotAFile as error:
        raise _refused(snapshot, path, error) from None
    if entry is None:
        raise _missing(snapshot, path)
    return entry


def _read(store: Store, root: str, args: Mapping[str, Any]) -> dict[str, Any]:
    with _opened(store, args) as snapshot:
        path = resolve(args, root, lambda p: _exists(snapshot, p))
        entry = _entry(snapshot, path)
        if entry.kind != "file":
            target = os.readlink(entry.real_path) if entry.kind == "symlink" else None
            raise not_a_file(path, KINDS[entry.kind], target=target)
        with open(os.open(entry.real_path, FILE_FLAGS), "rb", buffering=0) as file:
            return {**path_json(path), **read_content(file, path, args)}


def _list(store: Store, root: str, args: Mapping[str, Any]) -> dict[str, Any]:
    with _opened(store, args) as snapshot:
        path = resolve(args, root, lambda p: _exists(snapshot, p), allow_root=True)
        entry = _entry(snapshot, path) if path else None
        if entry is not None and entry.kind != "directory":
            raise not_a_directory(path, KINDS.get(entry.kind, "File"))
        limit, after = list_limit(args), list_after(args)
        found = [entry for entry in snapshot.list(path) if os.fsencode(os.path.basename(entry.path)) > after]
    entries = [list_entry(path, os.path.basename(e.path), e.kind, e.size) for e in found[:limit]]
    return list_page(
        path, entries, os.fsencode(os.path.basename(found[limit - 1].path)) if len(found) > limit else None
    )


def _stat(store: Store, root: str, args: Mapping[str, Any]) -> dict[str, Any]:
    with _opened(store, args) as snapshot:
        path = resolve(args, root, lambda p: _exists(snapshot, p), allow_root=True)
        entry = _entry(snapshot, path)
        target = os.readlink(entry.real_path) if entry.kind == "symlink" else None
        return described(path, os.lstat(entry.real_path), target)


def _delete(store: Store, root: str, args: Mapping[str, Any], author: Author) -> dict[str, Any]:
    with store.reading() as snapshot:
        path = resolve(args, root, lambda p: _exists(snapshot, p))
    try:
        done = store.delete_path(path, author, recursive=args["recursive"])
    except NotFound:
        raise not_found(path) from None
    except NotEmpty:
        raise not_empty(path) from None
    except NotAFile as error:
        with store.reading() as snapshot:
            raise _refused(snapshot, path, error) from None
    return {"type": "delete", **path_json(path), "kind": LETTERS[done.kind]}


def _move(store: Store, root: str, args: Mapping[str, Any], author: Author) -> dict[str, Any]:
    with store.reading() as snapshot:

        def there(path: str) -> bool:
            return _exists(snapshot, path)

        source, target = (
            resolve(args, root, there, argument="from"),
            resolve(args, root, there, argument="to"),
        )
    if target == source or target.startswith(source + "/"):
        raise inside_itself(source, target)
    try:
        done = store.move_path(source, target, author, overwrite=args["overwrite"])
    except NotFound:
        raise not_found(source) from None
    except AlreadyExists:
        raise already_exists(target) from None
    except NotEmpty:
        raise in_the_way(target) from None
    except NotADirectory:
        with store.reading() as snapshot:
            entry = snapshot.stat(target)
            raise not_a_directory(
                target, KINDS.get(entry.kind, "File") if entry is not None else "File"
            ) from None
    except NotAFile as error:
        with store.reading() as snapshot:
            wrong = source if error.details.get("path") == source else target
            raise _refused(snapshot, wrong, error) from None
    return moved(source, target, LETTERS[done.kind])


def _patch(store: Store, root: str, args: Mapping[str, Any], author: Author) -> dict[str, Any]:
    """Publish all files of a patch as one layer; the patch is applied again if the head has changed in
    between."""
    max_bytes: int = args.get("max_bytes", text.MAX_EDIT_BYTES)
    made: list[Plan] = []

    def plan(snapshot: Snapshot) -> list[FileChange]:
        made[:] = [
            plan_patch(
                args["patch"],
                root,
                lambda path: _content(snapshot, path, max_bytes),
                lambda path: _exists(snapshot, path),
                max_bytes,
            )
        ]
        return made[0].changes

    store.change_files(plan, author)
    return made[0].to_json()


def _content(snapshot: Snapshot, path: str, max_bytes: int) -> bytes | None:
    try:
        entry = snapshot.stat(path)
    except NotAFile as error:
        raise _refused(snapshot, path, error) from None
    if entry is None:
        missing = _missing(snapshot, path)
        if missing.details.get("reason") != "file_not_found":
            raise missing
        return None
    if entry.kind != "file":
        target = os.readlink(entry.real_path) if entry.kind == "symlink" else None
        raise not_a_file(path, KINDS[entry.kind], target=target)
    with open(os.open(entry.real_path, FILE_FLAGS), "rb") as file:
        return file.read(max_bytes + 1)
