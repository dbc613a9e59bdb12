"""Make the files of an empty store, lock a store for one process, and check its xattr namespace."""

from __future__ import annotations

import errno
import os
from typing import Any

from layerstack.errors import Invalid, StoreBusy, StoreCorrupt, Unsupported
from layerstack.kernel import fsync, records
from layerstack.kernel.fsync import Step
from layerstack.kernel.xattrs import XATTR_NAMESPACES, XattrNamespace
from layerstack.layers import version_files
from layerstack.layers.index_file import FORMAT
from layerstack.model.manifest import BASE_ID, FIRST_VERSION, Manifest, reference

FOLDERS = ("manifests", "layers", "base", ".layer-metadata", "sessions", "drafts", "staging")
MANIFEST, WORKSPACE, LOCK = "manifest.json", "workspace.json", ".storage-writer.lock"

_READ_ONLY = (errno.EROFS, errno.EEXIST)
"""Errors of a base that is mounted read-only already, or that exists."""
_NO_VERDICT = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO)
"""Errors of a disk that stores nothing at the moment, in any xattr namespace."""


def create(
    root: str, *, workspace_root: str, base_root_hash: str, xattr_namespace: XattrNamespace, step: Step
) -> None:
    """See `Store.create`."""
    root = os.path.realpath(root)
    inner, outer = root + "/", os.path.realpath(workspace_root) + "/"
    if inner.startswith(outer) or outer.startswith(inner):
        details = {"store": root, "workspace_root": workspace_root}
        raise Invalid(
            f"one of {root} and its workspace {workspace_root} is inside the other",
            reason="store_in_workspace",
            details=details,
        )
    body = {
        "workspace_root": workspace_root,
        "layer_stack_root": root,
        "base_root_hash": base_root_hash,
        "form": xattr_namespace.name,
        "content": FORMAT,  # how files are hashed in base_root_hash
    }
    if os.path.exists(f"{root}/{MANIFEST}"):
        there = records.read(f"{root}/{WORKSPACE}")
        different = sorted(
            key
            for key, value in body.items()
            if there.get(key) != value and key not in ("layer_stack_root", "content")
        )
        if different:
            text = f"{root}: there is a store with another {', '.join(different)}"
            raise Invalid(text, reason="store_exists", details={"store": root})
        return
    step("create.mkdir")
    for folder in FOLDERS:
        os.makedirs(f"{root}/{folder}", exist_ok=True)
    with fsync.suppress_errno(*_READ_ONLY):
        os.makedirs(f"{root}/base/{BASE_ID}", exist_ok=True)
    records.write(f"{root}/{WORKSPACE}", body, step=step, name="create.workspace.json")
    numbered = version_files.dump(FIRST_VERSION, BASE_ID)
    fsync.write_file(f"{root}/manifests/{FIRST_VERSION}.json", numbered, step=step, name="create.manifests")
    step("create.fsync_root")
    fsync.fsync_dir(root)
    fsync.fsync_dir(os.path.dirname(root) or "/")
    data = Manifest(FIRST_VERSION, (reference(BASE_ID),)).dump()
    fsync.write_file(f"{root}/{MANIFEST}", data, step=step, name="create.manifest.json")


def lock(root: str) -> int:
    """Lock the store for this process, until the returned descriptor is closed or the process dies.

    Raises:
        StoreCorrupt: there is no store at `root`. StoreBusy: another process has it open.
    """
    import fcntl

    if not os.path.exists(f"{root}/{WORKSPACE}"):
        raise StoreCorrupt(
            f"{root}/{WORKSPACE}: missing: no store is here", details={"file": f"{root}/{WORKSPACE}"}
        )
    fd = os.open(f"{root}/{LOCK}", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BaseException as error:
        os.close(fd)
        if isinstance(error, BlockingIOError):
            raise StoreBusy(f"{root}: another process has this store open", details={"store": root}) from None
        raise
    return fd


def workspace_of(root: str) -> tuple[dict[str, Any], XattrNamespace]:
    """Read workspace.json: its contents, and the xattr namespace that its `form` names.

    Raises StoreCorrupt.
    """
    path = f"{root}/{WORKSPACE}"
    workspace = records.read(path)
    xattr_namespace = XATTR_NAMESPACES.get(str(workspace.get("form")))
    if xattr_namespace is None:
        raise StoreCorrupt(f"{path}: form {workspace.get('form')!r} is not known", details={"file": path})
    return workspace, xattr_namespace


def check_xattr_namespace(root: str, xattr_namespace: XattrNamespace) -> None:
    """Check that this process can set xattrs of the store's namespace. Raises Unsupported, reason store_form.

    A disk that stores nothing at the moment does not prevent the opening: reading and discarding still work.
    """
    probe = f"{root}/staging/form-{os.urandom(4).hex()}"
    try:
        os.mkdir(probe)
    except OSError:
        return
    try:
        os.setxattr(probe, xattr_namespace.opaque, b"y")
    except OSError as error:
        if error.errno in _NO_VERDICT:
            return
        why = os.strerror(error.errno or 0)
        prefix = xattr_namespace.prefix
        text = f"{root}: this store uses xattrs {prefix}*, and this process cannot set them ({why})"
        raise Unsupported(text, reason="store_form", details={"form": xattr_namespace.name}) from error
    finally:
        os.rmdir(probe)
