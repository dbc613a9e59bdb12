"""What a person did in a destination after an export to it was killed half-way: taking that export back
leaves it as they made it.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Generator
from pathlib import Path

import pytest

from eos_agent.wire.protocol import OperationError
from eos_mcp.export import stage
from eos_mcp.export.apply import recover
from tests.eos_mcp.export_runs import fill, killed_at, run, shape
from tests.export_streams import file, journals, made

HALF_WAY = "export.sync_names"
"""Everything is in place, nothing is final."""


@pytest.fixture(autouse=True)
def no_record_is_left() -> Generator[None]:
    shutil.rmtree(journals(), ignore_errors=True)
    yield
    shutil.rmtree(journals(), ignore_errors=True)


def save(path: Path, text: str) -> None:
    """As editors do: beside it, then by rename."""
    beside = path.with_name(f".{path.name}.swp")
    beside.write_text(text)
    os.rename(beside, path)


def test_what_was_edited_after_a_kill_stays_and_all_else_is_taken_back(tmp_path: Path) -> None:
    dest = tmp_path / "d"
    fill(dest)
    before = shape(dest)
    assert killed_at(HALF_WAY, 1, dest)
    (dest / "src/a").write_text("an hour of work")
    save(dest / "linked", "saved by rename")
    (dest / "gone").mkdir()
    (dest / "gone/mine").write_text("where something was deleted")
    (dest / "new/mine").write_text("in a directory that the export made")
    os.unlink(dest / "was-dir")
    (dest / "was-dir").write_text("a file where a directory was")
    (dest / "was-file/mine").write_text("in a directory that took the place of a file")
    (dest / "src/link").unlink()
    (dest / "src/link").symlink_to("elsewhere")
    assert recover(str(dest), journals()) == ["rolled_back"]
    after = shape(dest)
    theirs = {
        b"src/a": "an hour of work",
        b"linked": "saved by rename",
        b"gone/mine": "where something was deleted",
        b"new/mine": "in a directory that the export made",
        b"was-dir": "a file where a directory was",
        b"was-file/mine": "in a directory that took the place of a file",
        b"src/link": "elsewhere",
    }
    assert {path: after.pop(path)[2].decode() for path in theirs} == theirs
    for path in (b"new", b"gone", b"was-dir", b"was-file"):
        assert after.pop(path, ("d",))[0] == "d"
        before.pop(path, None)
    for path in (*theirs, b"gone/f", b"was-dir/f"):
        before.pop(path, None)
    assert after == before and not list(tmp_path.rglob(".eos-export-*")) and os.listdir(journals()) == []
    assert run(made(file(b"f", b"1")), dest)["files_written"] == 1, "nothing holds up a later export"


def test_a_destination_that_appears_during_the_export_is_left_alone_and_the_caller_is_asked_to_repeat(
    tmp_path: Path,
) -> None:
    """As of two gateways that export to one new directory: neither knows of the other."""
    dest = tmp_path / "d"

    def appear(name: str) -> None:
        if name == "export.ready":
            dest.mkdir()
            (dest / "theirs").write_text("theirs")

    with pytest.raises(OperationError) as refused:
        run(made(file(b"f", b"1")), dest, step=appear)
    assert refused.value.details["reason"] == "destination_changed" and refused.value.details["retryable"]
    assert os.listdir(tmp_path) == ["d"] and os.listdir(dest) == ["theirs"] and os.listdir(journals()) == []
    assert run(made(file(b"f", b"1")), dest)["files_written"] == 1


def test_a_journal_of_the_form_before_is_taken_back_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dest = tmp_path / "d"
    fill(dest)
    before = shape(dest)
    usual = stage.ExportStage.__init__.__kwdefaults__
    assert usual is not None and usual["format_number"] == stage.FORMAT
    with monkeypatch.context() as patch:
        patch.setitem(usual, "format_number", 2)
        assert killed_at(HALF_WAY, 1, dest)
    (staging,) = dest.glob(".eos-export-*")
    assert '"format": 2' in (staging / "state").read_text()
    assert recover(str(dest), journals()) == ["rolled_back"] and shape(dest) == before
