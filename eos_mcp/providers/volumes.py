"""Read-only volumes that sandboxes share: the bundle, and each base. A volume is filled once and named by the
hash of its content.

A volume cannot be renamed or labelled once it exists, so the last file written to it is a marker; a volume
without it is filled again.
"""

from __future__ import annotations

import contextlib
import fcntl
import io
import os
import stat
import tarfile
import threading
from collections.abc import Callable, Generator, Iterator
from typing import Any

from agent_image import build
from eos_agent.machine import private_dirs
from eos_mcp.workspace.base import BASE_LAYER
from eos_mcp.workspace.tree_index import look
from layerstack.export import pax
from layerstack.kernel import base_xattrs

MARKER = ".eos-complete"
RUNTIME_PREFIX = "eos-rt-"
HELPER_LABEL = "eos.helper_of"
PIECE = 1 << 20


class Volumes:
    """The shared volumes of one engine that this process has seen complete."""

    def __init__(self, client: Any, lock_dir: str, labels: dict[str, str], instance_id: str) -> None:
        self.client = client
        self.helper_mark = {HELPER_LABEL: instance_id}
        self.lock_dir = lock_dir
        self.labels = labels
        self._complete: set[str] = set()
        self._mutex = threading.Lock()

    def bundle(self, bundle: build.Bundle, image: str) -> str:
        """Return the name of the volume of `bundle`, filled if needed. Then remove unused volumes of earlier
        versions of the runtime.
        """
        name = f"{RUNTIME_PREFIX}{bundle.sha}"
        if self._ensure(name, image, lambda: build.archive(bundle.path)):
            self._drop_earlier(name)
        return name

    def base(self, root_hash: str, path: str, image: str) -> str:
        """Return the name of the volume of the base at `path` (the parent of `B000001-base`), filled if
        needed.
        """
        name = f"eos-shared-base-{root_hash}"
        self._ensure(name, image, lambda: base_archive(path))
        return name

    def remove(self, name: str) -> None:
        """Remove a volume that no container uses; the lock keeps other processes of this user from filling
        it.
        """
        from docker.errors import NotFound

        with self._mutex, _between_processes(os.path.join(self.lock_dir, f"{name}.lock")):
            self._complete.discard(name)
            with contextlib.suppress(NotFound):
                self.client.volumes.get(name).remove()

    def whole(self, *names: str) -> bool:
        """Tell whether the volumes are the filled ones: in place of a removed volume the engine gives a
        container a new, empty volume without labels.
        """
        return all(
            "eos.shared" in (self.client.volumes.get(name).attrs.get("Labels") or {}) for name in names
        )

    def drop_empty(self, *names: str) -> None:
        """Cause incomplete volumes to be filled again; those that no container uses are removed, so that the
        new ones get labels.
        """
        from docker.errors import APIError

        for name in names:
            if not self.whole(name):
                with contextlib.suppress(APIError):
                    self.remove(name)
                self._complete.discard(name)

    def sweep(self) -> None:
        """Remove the containers through which a gateway of this instance id was filling a volume when it was
        killed.
        """
        ((label, value),) = self.helper_mark.items()
        with self._mutex:  # containers of this process exist only while the lock is held
            for left in self.client.containers.list(
                all=True, filters={"label": f"{label}={value}"}, ignore_removed=True
            ):
                left.remove(v=True, force=True)

    def _drop_earlier(self, newest: str) -> None:
        from docker.errors import APIError

        labels = [f"{key}={value}" for key, value in self.labels.items()]
        for volume in self.client.volumes.list(filters={"dangling": True, "label": labels}):
            if volume.name.startswith(RUNTIME_PREFIX) and volume.name != newest:
                with contextlib.suppress(APIError):  # a container uses it now
                    self.remove(volume.name)

    def _ensure(self, name: str, image: str, content: Callable[[], Iterator[bytes]]) -> bool:
        """Fill a volume, unless this process has seen it complete; return True if it was filled. `whole`
        checks again once a container uses it.
        """
        if name in self._complete:
            return False
        with self._mutex, _between_processes(os.path.join(self.lock_dir, f"{name}.lock")):
            if name in self._complete:
                return False
            self.client.volumes.create(name, labels=self.labels)
            with self._helper(name, image) as helper:
                empty = not _has_marker(helper)
                if empty:
                    helper.put_archive("/eos/volume", content())
                    helper.put_archive("/eos/volume", _marker())
            self._complete.add(name)
            return empty

    @contextlib.contextmanager
    def _helper(self, volume: str, image: str) -> Generator[Any]:
        """Create a container that is never started, with the volume at /eos/volume."""
        helper = self.client.containers.create(
            image,
            entrypoint=["/never-started"],
            network_mode="none",
            labels={**self.labels, **self.helper_mark},
            volumes={volume: {"bind": "/eos/volume", "mode": "rw,nocopy"}},
        )
        try:
            yield helper
        finally:
            helper.remove(v=True, force=True)


def _has_marker(helper: Any) -> bool:
    from docker.errors import NotFound

    try:
        stream, _ = helper.get_archive(f"/eos/volume/{MARKER}")
        for _ in stream:
            pass
    except NotFound:
        return False
    return True


def _marker() -> bytes:
    return pax.encode(pax.Header(MARKER.encode(), pax.FILE, 0o444)) + pax.END


def base_archive(path: str) -> Iterator[bytes]:
    """Yield the base as a tar: modes, times in ns, symlinks, hard links, attributes; owner root. Only one
    chunk is in memory at a time.
    """
    root = os.path.join(path, BASE_LAYER)
    seen: dict[int, bytes] = {}
    held: list[bytes] = []
    size = 0
    for relative, entry in sorted(look(root).entries.items(), key=lambda item: os.fsencode(item[0])):
        where = os.path.join(root, relative) if relative else root
        name = os.fsencode(os.path.join(BASE_LAYER, relative) if relative else BASE_LAYER)
        mode, length, mtime_ns, inode, links = entry[0], entry[1], entry[2], entry[4], entry[5]
        if stat.S_ISDIR(mode):
            held.append(
                pax.encode(
                    pax.Header(
                        name, pax.DIRECTORY, stat.S_IMODE(mode), mtime_ns=mtime_ns, xattrs=_xattrs(where)
                    )
                )
            )
        elif stat.S_ISLNK(mode):
            held.append(
                pax.encode(
                    pax.Header(
                        name, pax.SYMLINK, 0o777, mtime_ns=mtime_ns, target=os.fsencode(os.readlink(where))
                    )
                )
            )
        elif links > 1 and inode in seen:
            held.append(
                pax.encode(
                    pax.Header(name, pax.HARD_LINK, stat.S_IMODE(mode), mtime_ns=mtime_ns, target=seen[inode])
                )
            )
        else:
            seen[inode] = name
            held.append(
                pax.encode(
                    pax.Header(name, pax.FILE, stat.S_IMODE(mode), length, mtime_ns, xattrs=_xattrs(where))
                )
            )
            with open(where, "rb") as file:
                while data := file.read(PIECE):
                    held.append(data)
                    size += len(data)
                    if size >= PIECE:
                        yield b"".join(held)
                        held, size = [], 0
            held.append(pax.padding(length))
        size += pax.BLOCK
        if size >= PIECE:
            yield b"".join(held)
            held, size = [], 0
    yield b"".join([*held, pax.END])


def _xattrs(path: str) -> dict[bytes, bytes]:
    return {os.fsencode(name): value for name, value in base_xattrs.read(path).items()}


def files_archive(files: dict[str, tuple[int, bytes | None]]) -> bytes:
    """Make a small tar of path -> (mode, content), None for a directory; parents come first in the given
    order.
    """
    out: list[bytes] = []
    for path, (mode, content) in files.items():
        if content is None:
            out.append(
                pax.encode(pax.Header(path.encode(), pax.DIRECTORY, mode, mtime_ns=build.STEADY_TIME * 10**9))
            )
        else:
            header = pax.Header(path.encode(), pax.FILE, mode, len(content), build.STEADY_TIME * 10**9)
            out.append(pax.encode(header) + content + pax.padding(len(content)))
    return b"".join([*out, pax.END])


def read_file(container: Any, path: str) -> bytes:
    """Read one small file of a container, running or not.

    Raises:
        docker.errors.NotFound: the container has no such file.
    """
    stream, _ = container.get_archive(path)
    with tarfile.open(fileobj=io.BytesIO(b"".join(stream))) as tar:
        member = tar.next()
        file = tar.extractfile(member) if member is not None else None
        return file.read() if file is not None else b""


@contextlib.contextmanager
def _between_processes(path: str) -> Generator[None]:
    """Hold a lock over all processes of this user, so that one fills at a time; the kernel releases it when
    the process ends.
    """
    private_dirs.make(os.path.dirname(path))
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600), "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
