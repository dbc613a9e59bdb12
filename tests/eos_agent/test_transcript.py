"""Rows of a transcript: stable numbers, bounded size, nothing lost but what the marker names."""

from __future__ import annotations

import os
import random

from eos_agent.sessions.transcript import ANSWER_MAX_BYTES, ROW_MAX_BYTES, Transcript


def all_rows(transcript: Transcript) -> list[str]:
    rows: list[str] = []
    at = 0
    while at < transcript.total_rows:
        found = transcript.read(at)
        assert found.start == at and found.end > at
        assert len(found.text.encode()) <= ANSWER_MAX_BYTES
        rows += found.text.split("\n")
        at = found.end
    return rows


def test_rows_are_the_same_whatever_the_pieces(short_dir: str) -> None:
    chance = random.Random(1)
    lines = ["x" * chance.choice([0, 1, 7, 300, 5000]) + chr(0x100 + n % 50) for n in range(2000)]
    raw = "\r\n".join(lines).encode()
    transcript = Transcript(os.path.join(short_dir, "t"))
    at = 0
    while at < len(raw):
        step = chance.choice([1, 2, 100, 4096, 65536])
        transcript.append(raw[at : at + step])
        at += step
    transcript.finish()
    assert all_rows(transcript) == lines
    for n in (0, 1, 777, 1999):
        assert transcript.read(n, 1).text == lines[n]
    transcript.remove()
    assert os.listdir(os.path.join(short_dir, "t")) == []


def test_a_row_over_64_kib_is_split_between_characters(short_dir: str) -> None:
    text = "\u20ac" * 100_000
    transcript = Transcript(os.path.join(short_dir, "t"))
    transcript.append(b"a" + text.encode() + b"\nend")
    rows = all_rows(transcript)
    assert "".join(rows[:-1]) == "a" + text
    assert all(len(row.encode()) <= ROW_MAX_BYTES for row in rows)
    assert rows[-1] == "end"


def test_one_answer_ends_at_256_kib_and_the_next_goes_on(short_dir: str) -> None:
    transcript = Transcript(os.path.join(short_dir, "t"))
    lines = [f"{n:07}" * 10 for n in range(20_000)]
    transcript.append(("\n".join(lines) + "\n").encode())
    first = transcript.read(0)
    assert first.end < 20_000
    assert len(first.text.encode()) <= ANSWER_MAX_BYTES
    assert transcript.read(first.end, 3).text.split("\n") == lines[first.end : first.end + 3]
    assert all_rows(transcript) == lines


def test_what_is_over_the_bound_is_dropped_in_the_middle_and_said_so(short_dir: str) -> None:
    folder = os.path.join(short_dir, "t")
    transcript = Transcript(folder, max_bytes=12 << 20)
    total = 400_000
    for n in range(0, total, 1000):
        transcript.append("".join(f"line {k} {'.' * 90}\n" for k in range(n, n + 1000)).encode())
    assert transcript.total_rows == total
    assert sum(os.stat(os.path.join(folder, name)).st_size for name in os.listdir(folder)) <= 13 << 20
    dropped = transcript.dropped
    assert dropped is not None
    first, end, size = dropped
    assert 0 < first < end < total and size > 20 << 20
    for n in (0, first - 1, end, total - 1):
        assert transcript.read(n, 1).text.startswith(f"line {n} ")
    marker = transcript.read(first + 5, 2)
    assert marker.dropped is not None and marker.end == end
    assert f"{end - first - 5} lines were dropped here" in marker.text


def test_an_unfinished_row_counts_and_grows(short_dir: str) -> None:
    transcript = Transcript(os.path.join(short_dir, "t"))
    assert transcript.total_rows == 0 and transcript.read(0).text == ""
    transcript.append(b"name? ")
    assert (transcript.total_rows, transcript.open_bytes, transcript.read(0).text) == (1, 6, "name? ")
    transcript.append(b"bob\r")
    transcript.append(b"\n")
    assert (transcript.total_rows, transcript.open_bytes, transcript.read(0).text) == (1, 0, "name? bob")
    transcript.append(b"10%\r20%\r")
    transcript.finish()
    assert transcript.read(1).text == "10%\r20%\r"


def test_bytes_that_are_no_utf8_are_shown_with_the_replacement_character(short_dir: str) -> None:
    transcript = Transcript(os.path.join(short_dir, "t"))
    transcript.append(b"\xff\xfe ok\n")
    assert transcript.read(0).text == "\ufffd\ufffd ok"
