"""Read digests of files by layer and path, in byte order of paths: each index file is read once from start to
end, and never kept in memory.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import IO, NamedTuple

from layerstack.kernel.content import BLOCK
from layerstack.layers.index_file import PLAIN_FORMAT, format_of, unescaped
from layerstack.model.paths import byte_order

OPEN_AT_ONCE = 64
"""Index files that are open at a time; for the others the position is remembered."""


class _At(NamedTuple):
    """Position in an index file: the offset of the next line, and the last line read."""

    offset: int
    path: bytes | None
    digest: bytes | None


class Digests:
    """`digests(layer_id, path)` is the digest (`layerstack.kernel.content`) of the layer's file at the path,
    or None.

    Paths must come in byte order. Memory: the buffers of OPEN_AT_ONCE files. Not thread-safe.
    """

    def __init__(self, root: str) -> None:
        self._folder = f"{root}/.layer-metadata"
        self._open: OrderedDict[str, IO[bytes]] = OrderedDict()
        self._at: dict[str, _At] = {}
        self._plain: set[str] = set()
        """Layers whose digests are plain SHA-256; not used for files for which `content` defines another
        digest.
        """

    def __call__(self, layer_id: str, path: str) -> bytes | None:
        wanted, file = byte_order(path), self._file(layer_id)
        at = self._at[layer_id]
        if at.path is None or at.path < wanted:
            here, digest, offset = at.path, at.digest, at.offset
            while (here is None or here < wanted) and (line := file.readline()):
                offset += len(line)
                raw, _, _, size, hexadecimal = line.rstrip(b"\n").split(b"\t")
                here = unescaped(raw)
                known = hexadecimal != b"-" and not (layer_id in self._plain and int(size) >= BLOCK)
                digest = bytes.fromhex(hexadecimal.decode()) if known else None
            at = self._at[layer_id] = _At(offset, here, digest)
        return at.digest if at.path == wanted else None

    def _file(self, layer_id: str) -> IO[bytes]:
        file = self._open.get(layer_id)
        if file is not None:
            self._open.move_to_end(layer_id)
            return file
        if len(self._open) >= OPEN_AT_ONCE:
            self._open.popitem(last=False)[1].close()
        file = self._open[layer_id] = open(f"{self._folder}/{layer_id}.index", "rb", 1 << 16)  # noqa: SIM115
        if layer_id in self._at:
            file.seek(self._at[layer_id].offset)
        else:
            header = file.readline()
            if format_of(header.split(b" ")[1], file.name) == PLAIN_FORMAT:
                self._plain.add(layer_id)
            self._at[layer_id] = _At(len(header), None, None)
        return file

    def close(self) -> None:
        for file in self._open.values():
            file.close()
        self._open.clear()
