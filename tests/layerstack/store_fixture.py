"""A store for plain tests: a base from a dict, mounted sessions, the head's tree as a dict. For a child with
mount rights.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import tempfile
from collections.abc import Callable, Generator
from typing import Any

import pytest

from layerstack.errors import PublishRejected
from layerstack.kernel import fsync, overlay, syscalls
from layerstack.kernel.fsync import Step, no_step
from layerstack.kernel.xattrs import XATTR_NAMESPACES, XattrNamespace
from layerstack.model.conflict import Conflict
from layerstack.publish.drafts import Draft
from layerstack.publish.outcome import Published
from layerstack.session.upper import Upper
from layerstack.store import Store
from tests import in_namespace, leaks, probes
from tests.trees import Tree, read_tree

Base = dict[str, str | bytes | None]
"""path -> text of a file, `-> target` of a symlink, None for a directory; parents are made."""


def lay(root: str, base: Base) -> None:
    for path, body in base.items():
        full = f"{root}/{path}"
        os.makedirs(os.path.dirname(full), exist_ok=True)
        if body is None:
            os.makedirs(full, exist_ok=True)
        elif isinstance(body, str) and body.startswith("-> "):
            os.symlink(body[3:], full)
        else:
            put(full, body)


def put(full: str, body: str | bytes = "x\n") -> None:
    """Write a file; its parents are made."""
    os.makedirs(os.path.dirname(full), exist_ok=True)
    with open(full, "wb") as file:
        file.write(body.encode() if isinstance(body, str) else body)


def get(full: str) -> str:
    with open(full, "rb") as file:
        return file.read().decode()


def refusing(step: str, *, code: int = errno.ENOSPC) -> Step:
    """Hook of a disk that refuses all calls after this named step."""

    def take(name: str) -> None:
        if name == step:
            raise OSError(code, os.strerror(code))

    return take


class Session:
    """An upper that is mounted at `view`, until it ends."""

    def __init__(self, store: Store, upper: Upper, view: str) -> None:
        self.store, self.upper, self.view = store, upper, view
        self.mounted = False
        self.mount()

    def mount(self) -> None:
        fd = self.upper.mount()
        syscalls.move_mount(fd, self.view)
        os.close(fd)
        self.mounted = True

    def umount(self) -> None:
        if self.mounted:
            syscalls.umount(self.view)
            self.mounted = False

    def at(self, path: str) -> str:
        return f"{self.view}/{path}"

    def publish(self) -> Published:
        self.umount()
        return self.store.publish(self.upper, owner=self.upper.session_id, request_id="request")

    def rejected(self) -> dict[str, str]:
        """Publish, which must be refused: {path: class of the conflict}."""
        return {conflict.path: conflict.cls for conflict in self.conflicts()}

    def conflicts(self) -> tuple[Conflict, ...]:
        try:
            self.publish()
        except PublishRejected as error:
            return error.conflicts
        raise AssertionError("published")

    def keep(self, reason: str = "put aside") -> Draft:
        """End the session; its work becomes a draft."""
        self.umount()
        draft = self.upper.to_draft(reason=reason)
        assert draft is not None
        return draft


class Stack:
    """A store in `folder`, with its sessions."""

    def __init__(self, namespace: str, base: Base, *, folder: str, step: Step = no_step) -> None:
        self.xattr_namespace, self.step, self.folder = XATTR_NAMESPACES[namespace], step, folder
        self.root = f"{self.folder}/store"
        self.base = f"{self.root}/base/B000001-base"
        os.makedirs(self.base)
        lay(self.base, base)
        self.sessions: list[Session] = []
        self.create()
        self.store = Store.open(self.root, step=step)

    def create(self) -> None:
        Store.create(
            self.root,
            workspace_root="/workspace",
            base_root_hash="0" * 64,
            xattr_namespace=self.xattr_namespace,
        )

    def session(self, **how: Any) -> Session:
        name = f"s{len(self.sessions)}"
        view = f"{self.folder}/{name}"
        os.mkdir(view)
        session = Session(
            self.store, self.store.open_upper(name, origin=f"workspace_session:{name}", **how), view
        )
        self.sessions.append(session)
        return session

    def reopen(self) -> None:
        """Reopen the store like a process that was killed and started again."""
        for session in self.sessions:
            session.umount()
        self.store.close()
        self.store = Store.open(self.root, step=self.step)

    @contextlib.contextmanager
    def mounted(self, version: int | None = None) -> Generator[str]:
        """Mount a version read-only."""
        target, empty = f"{self.folder}/look", f"{self.folder}/empty"
        os.makedirs(target, exist_ok=True)
        os.makedirs(empty, exist_ok=True)
        fd = overlay.create(
            [*self.store.snapshot(version).lowerdirs, empty], xattr_namespace=self.xattr_namespace
        )
        syscalls.move_mount(fd, target)
        os.close(fd)
        try:
            yield target
        finally:
            syscalls.umount(target)

    def tree(self, version: int | None = None) -> Tree:
        with self.mounted(version) as view:
            return read_tree(view)

    def shows(self, version: int | None = None) -> dict[str, str]:
        """{path: text of a file, `-> target` or `/`}, without the root."""
        before = {"f": "", "l": "-> ", "d": "/"}
        tree = self.tree(version).items()
        return {
            path: before[entry.kind] + entry.body.decode("utf-8", "surrogateescape")
            for path, entry in tree
            if path
        }

    @contextlib.contextmanager
    def on_a_small_disk(self, base: Base, *, size_mib: int) -> Generator[tuple[Stack, Callable[[], None]]]:
        """Another stack, of the same xattr namespace, on a disk of that size; and how to fill this up. Freed
        again by unlinking `filler` in its folder.
        """
        folder = f"{self.folder}/small"
        os.mkdir(folder)
        syscalls.mount("none", folder, "tmpfs", 0, f"size={size_mib}m,mode=755")

        def fill() -> None:
            with open(f"{folder}/filler", "wb", buffering=0) as file, contextlib.suppress(OSError):
                while file.write(bytes(4096)):
                    pass

        try:
            with contextlib.closing(Stack(self.xattr_namespace.name, base, folder=folder)) as stack:
                yield stack, fill
        finally:
            syscalls.umount(folder)

    def mode(self, path: str) -> int:
        return self.tree()[path].meta[0]

    def layer_dirs(self) -> list[str]:
        return sorted(os.listdir(f"{self.root}/layers"))

    def close(self) -> None:
        for session in self.sessions:
            session.umount()
        with contextlib.suppress(AttributeError):
            self.store.close()
        with contextlib.suppress(OSError):
            syscalls.umount(f"{self.root}/base")


NAMESPACE_PARAMS = [
    pytest.param("trusted", marks=pytest.mark.needs("root", "overlay")),
    pytest.param("user", marks=pytest.mark.needs("userns")),
]


def _run(body: Callable[[Stack], None], namespace: str, base: Base) -> None:
    folder = tempfile.mkdtemp(prefix="eos-l-", dir=probes.scratch_root())
    leaks.note("directory", folder)
    memory = _in_memory(folder, XATTR_NAMESPACES[namespace])
    stack = Stack(namespace, base, folder=folder)
    try:
        body(stack)
    finally:
        stack.close()
        if memory:
            syscalls.umount(folder)
        fsync.remove_tree(folder)


def _in_memory(folder: str, namespace: XattrNamespace) -> bool:
    """Mount a tmpfs on the folder, to avoid waits for the disk. tmpfs has user xattrs since Linux 6.6; on
    older kernels the disk is used.
    """
    syscalls.mount("none", folder, "tmpfs", 0, "mode=755")
    try:
        os.setxattr(folder, namespace.opaque, b"n")
        os.removexattr(folder, namespace.opaque)
    except OSError:
        syscalls.umount(folder)
        return False
    return True


def on_a_stack(
    base: Base, *, namespaces: tuple[str, ...] = ("trusted", "user")
) -> Callable[[Callable[[Stack], None]], Callable[[str], None]]:
    """The decorated function gets a stack over `base`, in a child, in each xattr namespace: as root, and as
    an ordinary user in a user namespace.
    """

    def wrap(body: Callable[[Stack], None]) -> Callable[[str], None]:
        @pytest.mark.parametrize(
            "namespace", [param for param in NAMESPACE_PARAMS if param.values[0] in namespaces]
        )
        def test(namespace: str) -> None:
            in_namespace.call(namespace, _run, body, namespace, base)

        functools.update_wrapper(test, body)
        del test.__wrapped__  # type: ignore[attr-defined]
        test.__annotations__ = {"namespace": str, "return": None}
        return test

    return wrap
