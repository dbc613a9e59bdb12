"""Bitmaps in git's compressed form EWAH, as a split index has them. Source: ewah/ewah_io.c, ewah_bitmap.c.

    <u32 bits> <u32 words> <words of 64 bits> <u32 position of the last marker>

A marker word says: bit 0 the repeated bit, bits 1 to 32 how many words of it, bits 33 to 63 how many literal
words follow.
"""

from __future__ import annotations

import struct

from layerstack.git.object_format import CorruptObject

_HEAD = struct.Struct(">II")


def bits_of(data: bytes, at: int, limit: int) -> tuple[list[int], int]:
    """Read a bitmap.

    Args:
        at: the offset at which it begins.
        limit: numbers from here on are an error.
    Returns:
        The numbers of the bits that are set, ascending; the offset behind the bitmap.
    """
    if at + _HEAD.size > len(data):
        raise CorruptObject(f"read a bitmap at {at}: it is cut short")
    _, count = _HEAD.unpack_from(data, at)
    at += _HEAD.size
    end = at + 8 * count
    if end + 4 > len(data):
        raise CorruptObject(f"read a bitmap: it says {count:,} words, {(len(data) - at) // 8:,} are there")
    words = struct.unpack_from(f">{count}Q", data, at)
    found: list[int] = []
    here, place = 0, 0
    while here < count:
        marker = words[here]
        here += 1
        run, literals = 64 * (marker >> 1 & 0xFFFFFFFF), marker >> 33
        if place + run + 64 * literals > limit + 64 and (marker & 1 or literals):
            raise CorruptObject(f"read a bitmap: it reaches beyond {limit:,}")
        if marker & 1:
            found.extend(range(place, place + run))
        place += run
        if here + literals > count:
            raise CorruptObject("read a bitmap: a literal word is behind its end")
        for word in words[here : here + literals]:
            while word:
                low = word & -word
                found.append(place + low.bit_length() - 1)
                word ^= low
            place += 64
        here += literals
    return found, end + 4
