"""Export streams for tests: made by hand, taken apart, and a real store on a real overlay whose head is
exported.
"""

from __future__ import annotations

import atexit
import hashlib
import io
import json
import os
import shutil
import struct
import tempfile
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from layerstack.export import pax
from layerstack.export.stream import FileRange, stream
from layerstack.kernel import overlay, syscalls
from layerstack.kernel.xattrs import XATTR_NAMESPACES
from layerstack.layers.index_cursor import Digests
from layerstack.layers.snapshot import Snapshot
from layerstack.store import Store
from tests.trees import Tree, read_tree, write_tree

SECOND = 1_000_000_000


def file(
    path: bytes, data: bytes = b"", mode: int = 0o644, mtime_ns: int = 1_700_000_000 * SECOND
) -> tuple[pax.Header, bytes]:
    return pax.Header(path, pax.FILE, mode, len(data), mtime_ns), data


def directory(path: bytes, mode: int = 0o755, *, opaque: bool = False) -> tuple[pax.Header, bytes]:
    return pax.Header(path, pax.DIRECTORY, mode, kind=pax.OPAQUE if opaque else b""), b""


def symlink(path: bytes, target: bytes) -> tuple[pax.Header, bytes]:
    return pax.Header(path, pax.SYMLINK, 0o777, target=target), b""


def hard_link(path: bytes, target: bytes, mode: int = 0o644) -> tuple[pax.Header, bytes]:
    return pax.Header(path, pax.HARD_LINK, mode, target=target), b""


def gone(path: bytes) -> tuple[pax.Header, bytes]:
    return pax.Header(path, pax.FILE, 0o644, kind=pax.WHITEOUT), b""


def tar_of(entries: Iterable[tuple[pax.Header, bytes]]) -> bytes:
    out = b"".join(pax.encode(header) + data + pax.padding(len(data)) for header, data in entries)
    return out + pax.END


def pack(
    tar: bytes,
    *,
    count: int,
    frame: int = 100_000,
    header: dict[str, Any] | None = None,
    trailer: dict[str, Any] | None = None,
) -> bytes:
    """Return a whole stream around a tar: each part can be damaged."""
    first = {"format": 1, "manifest_version": 2, "layers_exported": ["L000002-0badcafe"], **(header or {})}
    last = {
        "entries": count,
        "tar_bytes": len(tar),
        "sha256": hashlib.sha256(tar).hexdigest(),
        **(trailer or {}),
    }
    frames = b"".join(
        struct.pack(">I", len(tar[at : at + frame])) + tar[at : at + frame]
        for at in range(0, len(tar), frame)
    )
    return json.dumps(first).encode() + b"\n" + frames + bytes(4) + json.dumps(last).encode() + b"\n"


def made(*entries: tuple[pax.Header, bytes], **more: Any) -> bytes:
    """Return the stream of these entries, in the given order."""
    return pack(tar_of(entries), count=len(entries), **more)


def made_by_digests(*entries: tuple[pax.Header, bytes], given: bool = False, **more: Any) -> bytes:
    """Return the stream in format 2: each file has its digest, unless the entries have digests, and the
    trailer's digest leaves out content.
    """
    digest, sent = hashlib.sha256(), list[tuple[pax.Header, bytes]]()
    for header, data in entries:
        plain = header.type == pax.FILE and not header.kind and not given
        sent.append(
            (header._replace(sha256=hashlib.sha256(data).hexdigest().encode()) if plain else header, data)
        )
        digest.update(pax.encode(sent[-1][0]) + pax.padding(len(data)))
    digest.update(pax.END)
    first, last = (
        {"format": 2, **more.pop("header", {})},
        {"sha256": digest.hexdigest(), **more.pop("trailer", {})},
    )
    return made(*sent, header=first, trailer=last, **more)


def journals() -> str:
    """A state directory's folder of records, this run's and this user's: children that are killed and who
    comes after them share it.
    """
    return os.path.join(_STATE, str(os.geteuid()))


_STATE = tempfile.mkdtemp(prefix="eos-test-exports-")
os.chmod(_STATE, 0o1777)
_MADE_BY = os.getpid()


@atexit.register
def _remove_state() -> None:
    if os.getpid() == _MADE_BY:
        shutil.rmtree(_STATE, ignore_errors=True)


class Unpacked(NamedTuple):
    header: dict[str, Any]
    tar: bytes
    trailer: dict[str, Any]


def joined(pieces: Iterable[bytes | FileRange]) -> bytes:
    """Return the bytes of the stream."""
    out = bytearray()
    for piece in pieces:
        out += os.pread(piece.fd, piece.size, piece.offset) if isinstance(piece, FileRange) else piece
    return bytes(out)


def unpack(data: bytes) -> Unpacked:
    source = io.BytesIO(data)
    header, tar = json.loads(source.readline()), bytearray()
    while size := struct.unpack(">I", source.read(4))[0]:
        tar += source.read(size)
    trailer = json.loads(source.readline())
    assert not source.read(), "bytes after the trailer"
    return Unpacked(header, bytes(tar), trailer)


class Stack:
    """A real store over a base, in a child with mount rights; `publish` runs an edit in a session on the
    head.
    """

    def __init__(self, folder: str, base: Tree, namespace: str = "trusted") -> None:
        self.folder, self.xattr_namespace = folder, XATTR_NAMESPACES[namespace]
        self.base = os.path.join(folder, "store", "base", "B000001-base")
        os.makedirs(self.base)
        write_tree(self.base, base)
        self.mount_point = os.path.join(folder, "m")
        os.mkdir(self.mount_point)
        os.mkdir(os.path.join(folder, "empty"))
        root = os.path.join(folder, "store")
        Store.create(
            root, workspace_root="/workspace", base_root_hash="0" * 64, xattr_namespace=self.xattr_namespace
        )
        self.store = Store.open(root)
        self.count = 0

    def publish(self, edit: Callable[[str], object]) -> None:
        self.count += 1
        upper = self.store.open_upper(f"s{self.count}", origin=f"workspace_session:s{self.count}")
        fd = upper.mount()
        syscalls.move_mount(fd, self.mount_point)
        os.close(fd)
        try:
            edit(self.mount_point)
        finally:
            syscalls.umount(self.mount_point)
        upper.publish(owner="test", request_id=f"r{self.count}")

    def snapshot(self) -> Snapshot:
        return self.store.snapshot()

    def export(self, **more: Any) -> bytes:
        return joined(stream(self.snapshot(), **more))

    def export_by_digests(self, **more: Any) -> bytes:
        digests = Digests(self.store.root)
        try:
            return self.export(digests=digests, **more)
        finally:
            digests.close()

    def look(self) -> Tree:
        """Return the head as a mount shows it."""
        fd = overlay.create(
            [*self.snapshot().lowerdirs, os.path.join(self.folder, "empty")],
            xattr_namespace=self.xattr_namespace,
        )
        syscalls.move_mount(fd, self.mount_point)
        os.close(fd)
        try:
            return read_tree(self.mount_point)
        finally:
            syscalls.umount(self.mount_point)

    def close(self) -> None:
        self.store.close()
