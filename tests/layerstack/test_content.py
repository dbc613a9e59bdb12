"""The digest of content and holes: the same for the same bytes wherever the holes lie, at no cost for what is
not there.
"""

from __future__ import annotations

import contextvars
import hashlib
import os
import resource
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from layerstack.errors import Stopped
from layerstack.kernel import content
from layerstack.kernel.content import (
    BLOCK,
    ContentHash,
    data_ranges,
    digest_at,
    digest_of_bytes,
    has_holes,
    same_content,
    sparse_map,
)
from layerstack.model import cancel
from tests.sparse_files import TIB, hole, largest

run = st.tuples(st.sampled_from((b"\0", b"x", b"mixed \0 bytes ")), st.integers(0, 3 * BLOCK))
"""A stretch of one kind of bytes."""


def laid(runs: list[tuple[bytes, int]]) -> bytes:
    return b"".join((unit * (size // len(unit) + 1))[:size] for unit, size in runs)


def in_plain_words(data: bytes) -> bytes:
    """The definition, over bytes that are all in memory."""
    zero = [data[at : at + BLOCK] == bytes(BLOCK) for at in range(0, len(data), BLOCK)]
    if not any(zero):
        return hashlib.sha256(data).digest()
    total, at = hashlib.sha256(bytes(BLOCK)), 0
    while at < len(zero):
        end = at
        while end < len(zero) and zero[end] == zero[at]:
            end += 1
        part = data[at * BLOCK : end * BLOCK]
        total.update(
            b"z%d\n" % len(part) if zero[at] else b"d%d\n%s" % (len(part), hashlib.sha256(part).digest())
        )
        at = end
    return total.digest()


@settings(max_examples=150, deadline=None)
@given(st.lists(run, max_size=6), st.lists(st.integers(1, 2 * BLOCK), max_size=8))
def test_the_digest_is_a_function_of_the_bytes_however_they_come(
    runs: list[tuple[bytes, int]], cuts: list[int]
) -> None:
    data = laid(runs)
    pieces, skipping, at = ContentHash(), ContentHash(), 0
    for size in [*cuts, len(data)]:
        part = data[at : at + size]
        at += len(part)
        pieces.update(part)
        if part.strip(b"\0"):
            skipping.update(part)
        else:
            skipping.skip(len(part))
    assert pieces.digest() == skipping.digest() == digest_of_bytes(data) == in_plain_words(data)


@settings(max_examples=60, deadline=None)
@given(runs=st.lists(run, min_size=1, max_size=6))
def test_a_file_with_holes_is_the_dense_one(
    tmp_path_factory: pytest.TempPathFactory, runs: list[tuple[bytes, int]]
) -> None:
    folder = tmp_path_factory.mktemp("two")
    data = laid(runs)
    dense, holed = folder / "dense", folder / "holed"
    dense.write_bytes(data)
    with open(holed, "wb") as file:
        for unit, size in runs:
            if unit == b"\0":
                file.seek(size, os.SEEK_CUR)
            else:
                file.write(laid([(unit, size)]))
        file.truncate(len(data))
    assert holed.read_bytes() == data
    assert digest_at(str(dense)) == digest_at(str(holed)) == in_plain_words(data)
    assert digest_at(str(holed), plain=True) == hashlib.sha256(data).digest()
    with open(dense, "rb") as one, open(holed, "rb") as other:
        assert same_content(one.fileno(), other.fileno())
        found = sparse_map(other.fileno())
        held = bytearray(len(data))
        for at, size in found if found is not None else [(0, len(data))]:
            held[at : at + size] = data[at : at + size]
        assert bytes(held) == data


def test_no_other_content_has_the_digest_of_one_with_zero_blocks(tmp_path: Path) -> None:
    """Whoever writes down what is hashed for a sparse file gets another digest: these bytes begin with a
    block of zeros.
    """
    inner = bytes(BLOCK) + b"z%d\n" % TIB
    assert hashlib.sha256(inner).digest() == digest_at(hole(tmp_path / "f", TIB))
    assert digest_of_bytes(inner) != hashlib.sha256(inner).digest()


def test_terabytes_of_nothing_cost_nothing(tmp_path: Path) -> None:
    size = largest(tmp_path)
    one = hole(tmp_path / "one", size, {size // 2: b"in the middle", size - 5: b"end!\n"})
    two = hole(tmp_path / "two", size, {size // 2: b"in the middle", size - 5: b"end!\n"})
    other = hole(tmp_path / "other", size, {size // 2: b"in the middle", size - 5: b"End!\n"})
    before = resource.getrusage(resource.RUSAGE_SELF)
    assert digest_at(one) == digest_at(two) != digest_at(other)
    with open(one, "rb") as a, open(two, "rb") as b, open(other, "rb") as c:
        assert same_content(a.fileno(), b.fileno())
        assert not same_content(a.fileno(), c.fileno())
        assert [length for _, length in data_ranges(a.fileno())] and has_holes(os.fstat(a.fileno()))
    after = resource.getrusage(resource.RUSAGE_SELF)
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 1, (
        "CPU seconds: the holes were read"
    )


def test_many_small_holes_are_distinguished_only_so_far(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(content, "RANGES_MAX", 8)
    path = hole(tmp_path / "comb", 64 * 4 * BLOCK, {at * 4 * BLOCK: b"tooth" for at in range(64)})
    with open(path, "rb") as file:
        found = sparse_map(file.fileno())
        assert found is None or len(found) <= 8
        whole = [(begin, end) for begin, end in data_ranges(file.fileno())]
    assert len(whole) == 64


def test_hashing_and_comparing_stop_when_they_are_to(tmp_path: Path) -> None:
    one, two = (hole(tmp_path / name, 64 * BLOCK, {0: b"x" * 32 * BLOCK}) for name in ("one", "two"))
    asked: list[int] = []

    def why() -> str | None:
        asked.append(1)
        return "enough" if len(asked) > 1 else None

    def look() -> None:
        with cancel.stoppable(why), pytest.raises(Stopped, match="enough"):
            digest_at(one)
        asked.clear()
        with cancel.stoppable(why), pytest.raises(Stopped), open(one, "rb") as a, open(two, "rb") as b:
            same_content(a.fileno(), b.fileno())

    contextvars.copy_context().run(look)
    assert len(asked) == 2
    cancel.check()
