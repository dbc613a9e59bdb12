"""F22: a destination whose file system takes two names for one: a collision is reported and nothing is lost;
all else is exported as ever.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from eos_agent.wire.protocol import OperationError
from layerstack.export import pax
from tests.eos_mcp.export_runs import failure, run, shape
from tests.eos_mcp.folding_destination import on_folding
from tests.export_streams import directory, file, gone, made, symlink

pytestmark = pytest.mark.needs("root", "fuse")


def refused(dest: Path, *entries: tuple[pax.Header, bytes]) -> OperationError:
    before = shape(dest)
    error = failure(made(*entries), dest)
    assert shape(dest) == before and os.listdir(dest.parent) == ["dest"], "nothing was written"
    return error


def test_the_file_system_of_these_tests_folds(short_dir: str) -> None:
    def body(dest: Path) -> None:
        (dest / "README").write_text("one\n")
        assert (dest / "readme").read_text() == "one\n" and os.listdir(dest) == ["README"]
        (dest / "caf\u00e9").mkdir()
        assert (dest / "CAFE\u0301").is_dir()

    on_folding(short_dir, body)


@pytest.mark.parametrize(
    ("one", "other"),
    [(b"A.txt", b"a.txt"), ("caf\u00e9".encode(), "cafe\u0301".encode()), (b"Makefile", b"makefile")],
    ids=["case", "composition", "more case"],
)
def test_two_names_of_the_delta_that_are_one_there_are_both_named_and_nothing_is_written(
    short_dir: str, one: bytes, other: bytes
) -> None:
    def body(dest: Path) -> Any:
        (dest / "kept").write_text("kept\n")
        entries = sorted(
            [file(b"kept", b"other"), file(one, b"1\n"), file(other, b"2\n")], key=lambda entry: entry[0].path
        )
        return refused(dest, *entries).envelope()["error"]

    error = on_folding(short_dir, body)
    assert (error["kind"], error["details"]["reason"]) == ("operation_failed", "name_collision")
    assert [sorted(pair) for pair in error["details"]["collisions"]] == [
        sorted([one.decode(), other.decode()])
    ]


def test_directories_that_are_one_there_collide_before_their_files_mix(short_dir: str) -> None:
    def body(dest: Path) -> Any:
        return refused(
            dest, directory(b"Docs"), file(b"Docs/a", b"1\n"), directory(b"docs"), file(b"docs/b", b"2\n")
        ).envelope()["error"]

    error = on_folding(short_dir, body)
    assert (
        error["details"]["reason"] == "name_collision" and ["Docs", "docs"] in error["details"]["collisions"]
    )


def test_another_spelling_in_the_destination_is_a_collision_whether_it_would_be_written_over_or_deleted(
    short_dir: str,
) -> None:
    def body(dest: Path) -> Any:
        (dest / "ReadMe").write_text("somebody's own\n")
        return [
            refused(dest, entry).envelope()["error"]
            for entry in (file(b"readme", b"ours\n"), gone(b"readme"), symlink(b"readme", b"x"))
        ]

    for error in on_folding(short_dir, body):
        assert error["details"]["reason"] == "name_collision" and error["details"]["collisions"] == [
            ["ReadMe", "readme"]
        ]


def test_what_collides_with_nothing_is_exported_and_again_without_a_write(short_dir: str) -> None:
    entries = (
        directory(b"Sub", 0o750),
        file(b"Sub/File", b"file\n", 0o755),
        file("Sub/caf\u00e9".encode(), b"coffee\n"),
        gone(b"gone"),
        symlink(b"link", b"Sub/File"),
        file(b"top", b"top\n"),
    )

    def body(dest: Path) -> Any:
        (dest / "gone").mkdir()
        (dest / "gone/x").write_text("x\n")
        (dest / "top").write_text("old\n")
        run(made(*entries), dest)
        found = shape(dest)
        again = run(made(*entries), dest)
        return found, again["files_written"], again["bytes_written"]

    found, files, size = on_folding(short_dir, body)
    assert found == {
        b"Sub": ("d", 0o750, b""),
        b"Sub/File": ("f", 0o755, b"file\n"),
        "Sub/caf\u00e9".encode(): ("f", 0o644, b"coffee\n"),
        b"link": ("l", 0o777, b"Sub/File"),
        b"top": ("f", 0o644, b"top\n"),
    }
    assert (files, size) == (0, 0)
