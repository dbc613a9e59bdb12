"""The picture of base, ours and head (docs/make_pictures.py): each of its rows is what a publication does."""

from __future__ import annotations

import contextlib
import os
import shutil
import sqlite3
from collections.abc import Callable
from typing import NamedTuple

from tests import page_makers
from tests.layerstack.store_fixture import Base, Stack, on_a_stack, put

TEXT = "1\n2\n3\n4\n5\n6\n7\n8\n"
Edit = Callable[[str], object]


def write(text: str | bytes) -> Edit:
    return lambda full: put(full, text)


def nothing(full: str) -> None:
    """Leave the path as it is."""


def link(target: str) -> Edit:
    def edit(full: str) -> None:
        if os.path.lexists(full):
            os.unlink(full)
        os.symlink(target, full)

    return edit


def mode(bits: int) -> Edit:
    return lambda full: os.chmod(full, bits)


def directory(full: str) -> None:
    os.unlink(full)
    os.mkdir(full)


def without_its_directory(full: str) -> None:
    shutil.rmtree(os.path.dirname(full))


def rows_of(text: str) -> Edit:
    def edit(full: str) -> None:
        with contextlib.closing(sqlite3.connect(full, isolation_level=None)) as base:
            base.execute("create table if not exists t (x)")
            base.execute("insert into t values (?)", (text,))

    return edit


class Row(NamedTuple):
    """A row of the picture, played at one path."""

    path: str
    base: str | bytes | None
    ours: Edit
    head: Edit
    text: str | None
    """The file in the end; None: deleted, or not text."""


A, B, C = "a\n", "b\n", "c\n"
ROWS = {
    ("A", "A", "B"): Row("1", A, nothing, write(B), B),
    ("A", "B", "A"): Row("2", A, write(B), nothing, B),
    ("A", "B", "B"): Row("3", A, write(B), write(B), B),
    ("A", "-", "-"): Row("4", A, os.unlink, os.unlink, None),
    ("A", "-", "B"): Row("5", A, os.unlink, write(B), None),
    ("A", "B", "-"): Row("6", A, write(B), os.unlink, None),
    ("text", "line 3 edited", "line 7 edited"): Row(
        "7",
        TEXT,
        write(TEXT.replace("3", "x")),
        write(TEXT.replace("7", "y")),
        TEXT.replace("3", "x").replace("7", "y"),
    ),
    ("text", "line 3 edited", "line 3 edited otherwise"): Row(
        "8", TEXT, write(TEXT.replace("3", "x")), write(TEXT.replace("3", "y")), None
    ),
    ("-", "text", "other text"): Row("9", None, write(A), write(B), None),
    ("A", "bytes", "other bytes"): Row("10", A, write(b"\0b"), write(b"\0c"), None),
    ("A", "link", "other link"): Row("11", "-> 1", link("2"), link("3"), None),
    ("A", "file", "directory"): Row("12", A, write(B), directory, None),
    ("0644", "0755", "0644, other text"): Row("13", A, mode(0o755), write(B), B),
    ("0644", "0755", "0600"): Row("14", A, mode(0o755), mode(0o600), None),
    ("-", "new file in d/", "d/ deleted"): Row("d/15", None, write(A), without_its_directory, None),
    ("database", "changed", "changed"): Row("16.sqlite", b"", rows_of("ours"), rows_of("head"), None),
    ("ignored", "B", "C"): Row("17.ignored", A, write(B), write(C), B),
    ("derived", "B", "C"): Row(".mypy_cache/18", A, write(B), write(C), C),
}
BASE: Base = {
    ".gitignore": "*.ignored\n",
    "d/old": A,
    **{row.path: row.base for row in ROWS.values() if row.base is not None},
}


def test_each_row_of_the_picture_is_played() -> None:
    assert {row[:3] for row in page_makers.load("make_pictures").MERGES} == set(ROWS)


@on_a_stack(BASE)
def test_each_row_is_what_a_publication_does(stack: Stack) -> None:
    results = {
        (row.base, row.ours, row.head): (row.kind, row.result)
        for row in page_makers.load("make_pictures").MERGES
    }
    head, merging, conflicting = stack.session(), stack.session(), stack.session()
    expected: dict[str, str] = {}
    for key, row in ROWS.items():
        row.head(head.at(row.path))
        kind, result = results[key]
        row.ours((conflicting if kind == "conflict" else merging).at(row.path))
        if kind == "conflict":
            expected[row.path] = result.removeprefix("conflict ").partition(",")[0].partition(" ")[0]
    head.publish()
    assert conflicting.rejected() == expected
    merging.publish()
    shown = stack.shows()
    for key, row in ROWS.items():
        if results[key][0] != "conflict":
            assert shown.get(row.path) == row.text, key
    assert stack.mode("13") == 0o755
