"""Similarity of two files as git measures it: the share of the larger one that is also in the other, in
chunks of a line or 64 bytes.

The end of a file behind its last newline counts as a chunk, as in git since 2.44. Source: gitdiffcore(7),
and the scores that `git diff -M` prints.
"""

from __future__ import annotations

from layerstack.git.object_format import Oid
from layerstack.git.objects import Objects
from layerstack.git.text_merge import LINES_MAX, TEXT_MAX, is_binary
from layerstack.text.myers import Budget

SCORE_MAX = 60_000
"""Score of equal contents."""
CHUNK = 64
"""Bytes of a chunk in a long line."""
PAIR = 8
"""Steps that a pair costs beside its chunks."""
CONTENTS_MAX = 2_000_000
"""Chunks of contents that are remembered."""
CHUNKS_MAX = 200_000
"""Hashes of chunks that are remembered."""
_HASHES = 107_927
_WORD = (1 << 64) - 1
_HALF = (1 << 32) - 1


class Similarity:
    """Scores of pairs of blobs, with the contents that were read last.

    Args:
        budget: chunks that all comparisons may cost together.
    """

    def __init__(self, objects: Objects, budget: Budget) -> None:
        self._objects, self._budget = objects, budget
        self._sizes: dict[Oid, int] = {}
        self._contents: dict[Oid, dict[int, int]] = {}
        self._hashes: dict[bytes, int] = {}
        self._kept = 0

    @property
    def spent(self) -> bool:
        """True when the budget is used up; scores from then on are 0."""
        return self._budget.steps < 0

    def score(self, old: Oid, new: Oid, least: int) -> int:
        """Give the score of two files from 0 to SCORE_MAX; 0 when their sizes rule out `least`."""
        if not self._budget.spend(PAIR):
            return 0
        old_size, new_size = self._size(old), self._size(new)
        larger, smaller = max(old_size, new_size), min(old_size, new_size)
        if not new_size or larger * (SCORE_MAX - least) < (larger - smaller) * SCORE_MAX or larger > TEXT_MAX:
            return 0
        x, y = self._chunks(old), self._chunks(new)
        if len(x) > len(y):
            x, y = y, x
        if not self._budget.spend(len(x)):
            return 0
        copied = sum(min(size, y[key]) for key, size in x.items() if key in y)
        return copied * SCORE_MAX // larger

    def _size(self, oid: Oid) -> int:
        found = self._sizes.get(oid)
        if found is None:
            found = self._sizes[oid] = self._objects.size(oid)
        return found

    def _chunks(self, oid: Oid) -> dict[int, int]:
        """Give hash -> bytes of the chunks of a file."""
        found = self._contents.get(oid)
        if found is None:
            data = self._objects.read(oid, "blob")[1]
            self._budget.steps -= len(data) >> 3
            found = self._hashed(data)
            self._kept += len(found)
            while self._kept > CONTENTS_MAX and self._contents:
                self._kept -= len(self._contents.pop(next(iter(self._contents))))
            self._contents[oid] = found
        return found

    def _hashed(self, data: bytes) -> dict[int, int]:
        if data.count(b"\n") > LINES_MAX:
            return {}
        if not is_binary(data):
            data = data.replace(b"\r\n", b"\n")
        lines = data.split(b"\n")
        last = lines.pop()
        found: dict[int, int] = {}
        known = self._hashes
        for n in range(len(lines) + 1):
            line = lines[n] + b"\n" if n < len(lines) else last
            for at in range(0, len(line), CHUNK):
                chunk = line[at : at + CHUNK]
                key = known.get(chunk)
                if key is None:
                    if len(known) >= CHUNKS_MAX:
                        known.clear()
                    key = known[chunk] = _hash(chunk)
                found[key] = found.get(key, 0) + len(chunk)
        return found


def _hash(chunk: bytes) -> int:
    word = 0
    for byte in chunk:
        word = ((word << 7 | word >> 57) + (byte << 32)) & _WORD
    return (((word >> 32) + (word & _HALF) * 0x61) & _HALF) % _HASHES
