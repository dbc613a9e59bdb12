"""The newest samples of one sandbox in a file of 64 KiB: a header and 1,023 slots that are written in turn,
each with a checksum.
"""

from __future__ import annotations

import os
import struct
import zlib
from typing import NamedTuple

MAGIC = b"EOSRING\0"
VERSION = 1
SLOTS = 1023
_HEADER = struct.Struct("<8sII48x")
_SLOT = struct.Struct("<QqqqqqqII")
SIZE_BYTES = _HEADER.size + SLOTS * _SLOT.size
NONE = -1


class EngineSample(NamedTuple):
    """Counters since the sandbox started, and levels; None: the engine does not report it."""

    ts: int
    cpu_usec: int | None
    io_rbytes: int | None
    io_wbytes: int | None
    mem_cur: int | None
    mem_max: int | None


class Ring:
    """One file. A slot that a crash tore fails its checksum and is left out; a file without the header is
    emptied and reused.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self._next = 0

    def read(self) -> list[EngineSample]:
        """Read the samples, oldest first; an empty list without a file."""
        try:
            with open(self.path, "rb") as file:
                data = file.read(SIZE_BYTES)
        except OSError:
            return []
        if data[: _HEADER.size] != _header():
            return []
        found: list[tuple[int, EngineSample]] = []
        for at in range(_HEADER.size, len(data) - _SLOT.size + 1, _SLOT.size):
            slot = data[at : at + _SLOT.size]
            number, *values, _, check = _SLOT.unpack(slot)
            if number and check == zlib.crc32(slot[:-4]):
                found.append(
                    (
                        number,
                        EngineSample(values[0], *(None if value == NONE else value for value in values[1:])),
                    )
                )
        found.sort(key=lambda one: one[0])
        self._next = found[-1][0] if found else 0
        return [sample for _, sample in found]

    def add(self, sample: EngineSample) -> None:
        """Write one slot in place, without fsync: a power cut may lose samples.

        Raises:
            OSError: the write failed.
        """
        if self._next == 0:
            self.read()
        fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            if os.pread(fd, _HEADER.size, 0) != _header():
                os.ftruncate(fd, 0)
                os.pwrite(fd, _header(), 0)
                self._next = 0
            self._next += 1
            slot = _SLOT.pack(
                self._next, sample.ts, *(NONE if value is None else value for value in sample[1:]), 0, 0
            )
            os.pwrite(
                fd,
                slot[:-4] + struct.pack("<I", zlib.crc32(slot[:-4])),
                _HEADER.size + (self._next - 1) % SLOTS * _SLOT.size,
            )
        finally:
            os.close(fd)


def _header() -> bytes:
    return _HEADER.pack(MAGIC, VERSION, SLOTS)
