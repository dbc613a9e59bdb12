"""Bytes at a place of a repository's files, a bounded number of which stay open; and zlib streams in them."""

from __future__ import annotations

import os
import zlib
from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, TypeVar

from layerstack.git.object_format import CorruptObject
from layerstack.tree.state import State

OPEN_MAX = 64
"""Descriptors that one reader of a repository holds."""
CHUNK = 64 << 10
Read = Callable[[int, int], bytes]
"""(offset, number of bytes) -> bytes, fewer at the end of the file."""

K = TypeVar("K")
V = TypeVar("V")


class RepositoryFiles:
    """Descriptors of files that are read at places, the least recently used of which is closed. Not for
    several threads.
    """

    def __init__(self) -> None:
        self._open: OrderedDict[str, int] = OrderedDict()

    def read(self, state: State, offset: int, size: int) -> bytes:
        """Read at most `size` bytes; fewer only at the end of the file. Raises OSError."""
        if state.body is not None:
            return state.body[offset : offset + size]
        fd = self._descriptor(state.path)
        found = os.pread(fd, size, offset)
        while 0 < len(found) < size and (more := os.pread(fd, size - len(found), offset + len(found))):
            found += more
        return found

    def reader(self, state: State) -> Read:
        return lambda offset, size: self.read(state, offset, size)

    def _descriptor(self, path: str) -> int:
        fd = self._open.get(path)
        if fd is not None:
            self._open.move_to_end(path)
            return fd
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        self._open[path] = fd
        if len(self._open) > OPEN_MAX:
            os.close(self._open.popitem(last=False)[1])
        return fd

    def close(self) -> None:
        while self._open:
            os.close(self._open.popitem()[1])

    def __del__(self) -> None:
        self.close()


class SizedCache(Generic[K, V]):
    """A mapping that forgets what was used least recently above a number of bytes."""

    def __init__(self, most: int) -> None:
        self._most, self._held = most, 0
        self._rows: OrderedDict[K, tuple[V, int]] = OrderedDict()

    def get(self, key: K) -> V | None:
        found = self._rows.get(key)
        if found is None:
            return None
        self._rows.move_to_end(key)
        return found[0]

    def put(self, key: K, value: V, size: int) -> None:
        """Keep a value of about `size` bytes; one above an eighth of the limit is not kept."""
        if size > self._most // 8 or key in self._rows:
            return
        self._rows[key] = value, size
        self._held += size
        while self._held > self._most:
            self._held -= self._rows.popitem(last=False)[1][1]


def inflate(read: Read, offset: int, size: int, begun: bytes = b"") -> bytes:
    """Decompress a zlib stream of exactly `size` bytes, which the caller has bounded.

    Args:
        begun: bytes at `offset` that were read already.

    Raises:
        CorruptObject: the stream is damaged, longer or shorter.
    """
    stream, parts, got, raw = zlib.decompressobj(), list[bytes](), 0, begun
    while True:
        if not raw:
            raw = read(offset, max(4096, min(CHUNK, size - got)))
            if not raw:
                raise CorruptObject(f"a stream that ends after {got} of {size} bytes")
        offset += len(raw)
        while raw and not stream.eof:
            try:
                part = stream.decompress(raw, size - got + 1)
            except zlib.error as error:
                raise CorruptObject(f"a damaged stream after {got} of {size} bytes: {error}") from None
            raw = stream.unconsumed_tail
            got += len(part)
            if part:
                parts.append(part)
            if got > size:
                raise CorruptObject(f"a stream with more than its {size} bytes")
        if stream.eof:
            break
    if got != size:
        raise CorruptObject(f"a stream of {got} bytes in place of {size}")
    return parts[0] if len(parts) == 1 else b"".join(parts)


def inflate_start(raw: bytes, most: int) -> bytes:
    """Decompress the first bytes of a stream, at most `most`. Raises CorruptObject."""
    try:
        return zlib.decompressobj().decompress(raw, most)
    except zlib.error as error:
        raise CorruptObject(f"a damaged stream: {error}") from None
