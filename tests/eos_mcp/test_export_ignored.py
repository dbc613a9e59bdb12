"""Exports without ignored paths: what the destination has at them stays, whatever the sandbox did there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from eos_agent.wire.protocol import OperationError
from eos_mcp.config.model import Export
from eos_mcp.export.rules import ExportRules, chosen
from layerstack.export import pax
from tests.eos_mcp.export_runs import Entries, run, shape
from tests.export_streams import directory, file, gone, made

EXCLUDE = ExportRules(ignored="exclude")
COUNTED = {"files": 3, "bytes": 12}


def mark(path: bytes) -> tuple[pax.Header, bytes]:
    return pax.Header(path, pax.FILE, 0o644, kind=pax.IGNORED), b""


def marked(*entries: tuple[pax.Header, bytes], header: str = "mark") -> bytes:
    return made(*entries, header={"ignored": header}, trailer={"ignored": COUNTED})


def put(root: Path, *paths: str) -> None:
    for path in paths:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(path)


def contents(root: Path) -> dict[str, str]:
    return {path.decode(): data.decode() for path, (kind, _, data) in shape(root).items() if kind == "f"}


def test_what_the_destination_has_at_ignored_paths_stays_also_below_opaque_directories(
    tmp_path: Path,
) -> None:
    dest = tmp_path / "d"
    put(dest, ".gitignore", "a.log", "build/x", "src/old", "src/.venv/lib", "src/keep/cache/c", "src/sub/y")
    (dest / ".gitignore").write_text("cache/\n")
    entries: Entries = (
        mark(b"a.log"),
        mark(b"build"),
        file(b"new", b"new"),
        directory(b"src", opaque=True),
        mark(b"src/.venv"),
        directory(b"src/keep"),
    )
    result = run(marked(*entries), dest, rules=EXCLUDE)
    assert result["ignored"] == {**COUNTED, "included": False}
    assert contents(dest) == {
        ".gitignore": "cache/\n",
        "a.log": "a.log",
        "build/x": "build/x",
        "new": "new",
        "src/.venv/lib": "src/.venv/lib",
        "src/keep/cache/c": "src/keep/cache/c",  # ignored by the destination's own file
    }
    assert result["files_written"] == 1 and result["deletes_applied"] == 0


def test_a_dry_run_without_ignored_paths_says_what_the_export_then_does(tmp_path: Path) -> None:
    put(tmp_path / "d", "gone", "a.log")
    data = marked(mark(b"a.log"), gone(b"gone"), file(b"z", b"1"))
    foreseen = run(data, tmp_path / "d", rules=EXCLUDE, dry_run=True)
    assert [row["path"] for row in foreseen["changes"]] == ["gone", "z"]
    result = run(data, tmp_path / "d", rules=EXCLUDE)
    assert {key: foreseen[key] for key in result if key in foreseen} == {
        key: result[key] for key in result if key in foreseen
    }
    assert contents(tmp_path / "d") == {"a.log": "a.log", "z": "1"}


@pytest.mark.parametrize("fmt", ["dir", "tar"])
def test_counts_are_part_of_every_result(tmp_path: Path, fmt: str) -> None:
    data = made(file(b"a", b"1"), header={"ignored": "count"}, trailer={"ignored": COUNTED})
    result = run(data, tmp_path / "out", fmt)
    assert result["ignored"] == {**COUNTED, "included": True}
    for trailer in ({}, {"ignored": {"files": -1, "bytes": 0}}, {"ignored": {"files": True, "bytes": 1}}):
        odd = made(file(b"a", b"1"), trailer=trailer)
        assert "ignored" not in run(odd, tmp_path / f"out-{len(str(trailer))}", fmt)


@pytest.mark.parametrize("fmt", ["dir", "tar"])
def test_an_agent_that_cannot_leave_them_out_is_refused_and_nothing_is_written(
    tmp_path: Path, fmt: str
) -> None:
    with pytest.raises(OperationError) as caught:
        run(made(file(b"a.log", b"1")), tmp_path / "out", fmt, rules=EXCLUDE)
    assert caught.value.details["reason"] == "agent_too_old"
    assert list(tmp_path.iterdir()) == []


def test_a_mark_that_was_not_asked_for_is_refused(tmp_path: Path) -> None:
    with pytest.raises(OperationError) as caught:
        run(marked(mark(b"a"), header="count"), tmp_path / "out")
    assert caught.value.details["reason"] == "bad_entry"
    assert list(tmp_path.iterdir()) == []


def test_a_new_destination_is_told_from_one_that_was_filled(tmp_path: Path) -> None:
    workspace = tmp_path / "my project"
    rules = ExportRules(workspace=str(workspace))
    data = made(file(b"a", b"1"))
    foreseen = run(data, tmp_path / "new", rules=rules, dry_run=True)
    result = run(data, tmp_path / "new", rules=rules)
    for found in (foreseen, result):
        assert found["created"] is True and f"'{workspace}'" in found["hint"]
    again = run(data, tmp_path / "new", rules=rules)
    assert again["created"] is False and "hint" not in again
    (tmp_path / "empty").mkdir()
    assert run(data, tmp_path / "empty", rules=rules)["created"] is False
    assert "created" not in run(data, tmp_path / "a.tar", "tar", rules=rules)


@pytest.mark.parametrize(
    ("args", "setting", "rule"),
    [
        ({}, "include", "include"),
        ({}, "exclude", "exclude"),
        ({"ignored": "include"}, "exclude", "include"),
        ({"ignored": "exclude"}, "include", "exclude"),
    ],
)
def test_the_argument_comes_before_the_configuration(args: dict[str, Any], setting: str, rule: str) -> None:
    assert chosen(args, Export.model_validate({"ignored": setting})).ignored == rule


def test_another_word_is_refused() -> None:
    with pytest.raises(OperationError) as caught:
        chosen({"ignored": "no"}, Export())
    assert caught.value.details == {"argument": "ignored", "reason": "bad_argument"}
