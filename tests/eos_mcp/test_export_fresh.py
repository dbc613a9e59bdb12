"""An export to a directory that does not exist: one rename puts all of it there, and small files come in
runs.
"""

from __future__ import annotations

import errno
import hashlib
import os
from pathlib import Path
from typing import Any

import pytest

from eos_agent.wire.protocol import OperationError
from eos_mcp.export.apply import recover
from eos_mcp.export.rules import REFERENCE
from layerstack.export import pax
from layerstack.model.run_table import FILE_MAX, RunRow
from tests.eos_mcp.export_runs import AFTER, DELTA, failure, killed_at, run, shape
from tests.export_streams import SECOND, directory, file, hard_link, journals, made, made_by_digests, symlink

DONE = {path: what for path, what in AFTER.items() if path != b"src/kept"}

CAREFUL = REFERENCE._replace(allow_unsafe=False, on_conflict="fail", git="auto")


def run_of(*rows: tuple[bytes, bytes | None, int], digest: bytes | None = None) -> tuple[pax.Header, bytes]:
    """One entry that holds several: (path, content or None for a directory, mode)."""
    table, data = b"", b""
    for path, content, mode in rows:
        made_of = b"-" if content is None else digest or hashlib.sha256(content).hexdigest().encode()
        table += b"%s\0%s %o %d %d %s\n" % (
            path,
            b"d" if content is None else b"f",
            mode,
            len(content or b""),
            7 * SECOND + 5,
            made_of,
        )
        data += content or b""
    return pax.Header(
        pax.RUN, pax.FILE, 0o644, len(table) + len(data), kind=pax.RUN, table=len(table)
    ), table + data


def with_runs(*entries: tuple[pax.Header, bytes], count: int, form: int = 4) -> bytes:
    """A stream of format 4: its digest leaves out the content of files."""
    total = hashlib.sha256()
    made_of: list[tuple[pax.Header, bytes]] = []
    for header, data in entries:
        if header.type == pax.FILE and not header.kind:
            header = header._replace(sha256=hashlib.sha256(data).hexdigest().encode())
        made_of.append((header, data))
        total.update(pax.encode(header) + data[: header.table] + pax.padding(header.size))
    total.update(pax.END)
    return made(*made_of, header={"format": form}, trailer={"sha256": total.hexdigest(), "entries": count})


ROWS = (
    (b"a", None, 0o750),
    (b"a/x", b"one", 0o640),
    (b"a/y", b"", 0o755),
    (b"b", b"two" * 100, 0o600),
    (b"c", None, 0o500),
    (b"c/z", b"3", 0o444),
)
SHAPE = {
    b"a": ("d", 0o750, b""),
    b"a/x": ("f", 0o640, b"one"),
    b"a/y": ("f", 0o755, b""),
    b"b": ("f", 0o600, b"two" * 100),
    b"c": ("d", 0o500, b""),
    b"c/z": ("f", 0o444, b"3"),
    b"d": ("f", 0o644, b"alone"),
    b"l": ("l", 0o777, b"b"),
}


def stream() -> bytes:
    return with_runs(run_of(*ROWS), file(b"d", b"alone"), symlink(b"l", b"b"), count=8)


@pytest.mark.parametrize("exists", [True, False], ids=["into a directory", "into nothing"])
def test_what_comes_in_runs_is_written_as_what_comes_by_itself(tmp_path: Path, exists: bool) -> None:
    single: list[tuple[pax.Header, bytes]] = []
    for path, data, mode in ROWS:
        kind = pax.DIRECTORY if data is None else pax.FILE
        single.append((pax.Header(path, kind, mode, len(data or b""), 7 * SECOND + 5), data or b""))
    alone = made_by_digests(*single, file(b"d", b"alone"), symlink(b"l", b"b"), header={"format": 3})
    results: list[dict[str, Any]] = []
    for name, data in (("runs", stream()), ("alone", alone)):
        if exists:
            (tmp_path / name).mkdir()
        results.append(run(data, tmp_path / name))
        assert shape(tmp_path / name) == SHAPE
        assert os.lstat(tmp_path / name / "a/x").st_mtime_ns == 7 * SECOND + 5
        run(data, tmp_path / f"{name}.tar", "tar")
        os.chmod(tmp_path / name / "c", 0o700)
    assert results[0] == results[1] and results[0]["files_written"] == 5
    assert (tmp_path / "runs.tar").read_bytes() == (tmp_path / "alone.tar").read_bytes()


def test_a_run_is_no_way_round_any_check(tmp_path: Path) -> None:
    good = (b"a", b"1", 0o644)
    before = os.listdir(journals()) if os.path.isdir(journals()) else []  # another test may have left one
    for rows, why in (
        (((b"../x", b"1", 0o644),), "bad_entry"),
        (((b"/x", b"1", 0o644),), "bad_entry"),
        (((b"d/./x", b"1", 0o644),), "bad_entry"),
        (((b"d/x", b"1", 0o644),), "bad_entry"),
        ((good, (b"a/b", b"1", 0o644)), "bad_entry"),
        ((good, good), "bad_entry"),
        (((b"b", b"1", 0o644), good), "bad_entry"),
        (((b"a", b"1", 0o4755),), "bad_entry"),
        (((b"a", b"x" * FILE_MAX, 0o644),), "bad_entry"),
        (((b".eos-export-1", b"1", 0o644),), "reserved_names"),
    ):
        error = failure(with_runs(run_of(*rows), count=len(rows)), tmp_path / "d")
        assert error.details["reason"] == why, rows
        assert os.listdir(tmp_path) == [] and os.listdir(journals()) == before
    error = failure(with_runs(run_of(good, digest=b"0" * 64), count=1), tmp_path / "d")
    assert error.details["reason"] == "stream_corrupt" and os.listdir(tmp_path) == []
    for form in (1, 2, 3):
        assert (
            failure(with_runs(run_of(good), count=1, form=form), tmp_path / "d").details["reason"]
            == "bad_stream"
        )
    header, data = run_of(good)
    for spoilt in (
        data[:-1],
        data + b"1",
        data.replace(b"f 644", b"w 644"),
        data.replace(b"\0", b"\n", 1),
        b"x" + data[1:-1] + b"\n",
    ):
        table = header.table + len(spoilt) - len(data) if spoilt.endswith(b"\n") else header.table
        made_of = header._replace(size=len(spoilt), table=max(1, table))
        assert failure(with_runs((made_of, spoilt), count=1), tmp_path / "d").details["reason"] in (
            "bad_stream",
            "stream_corrupt",
        )
    with pytest.raises(OperationError) as caught:
        run(with_runs(run_of((b".envrc", b"x", 0o644)), count=1), tmp_path / "d", rules=CAREFUL)
    assert caught.value.details["reason"] == "unsafe_content" and os.listdir(tmp_path) == []


def test_a_row_holds_a_path_of_any_bytes(tmp_path: Path) -> None:
    names = [b"\x01", b"a b", b"n\nl", b"t\tab", "\u00e9".encode(), b"\xff\xfe"]
    run(with_runs(run_of(*((name, name, 0o644) for name in names)), count=len(names)), tmp_path / "d")
    assert {name: (tmp_path / "d" / os.fsdecode(name)).read_bytes() for name in names} == {
        name: name for name in names
    }
    assert RunRow._fields[0] == "path"


def test_a_kill_before_the_rename_leaves_nothing_and_one_after_it_the_whole(tmp_path: Path) -> None:
    dest = tmp_path / "d"
    for step in ("export.sync", "export.ready", "export.in", "export.done"):
        assert killed_at(step, 1, dest) and not dest.exists()
        assert recover(str(dest), journals()) == ["swept"] and os.listdir(tmp_path) == []
    assert killed_at("export.placed", 1, dest) and shape(dest) == DONE
    (dest / "mine").write_text("written since")
    assert recover(str(dest), journals()) == ["swept"]
    assert shape(dest) == {**DONE, b"mine": ("f", 0o644, b"written since")} and os.listdir(tmp_path) == ["d"]


@pytest.mark.parametrize("meanwhile", [False, True], ids=["alone", "with work of somebody else"])
def test_a_disk_that_fails_after_the_rename_is_reported_and_takes_no_work_with_it(
    tmp_path: Path, meanwhile: bool
) -> None:
    dest = tmp_path / "d"

    def step(name: str) -> None:
        if name == "export.placed":
            if meanwhile:
                (dest / "mine").write_text("mine")
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    with pytest.raises(OperationError) as caught:
        run(made(*DELTA), dest, step=step)
    assert caught.value.details["errno"] == "EIO"
    assert (shape(dest) if dest.exists() else None) == (
        {**DONE, b"mine": ("f", 0o644, b"mine")} if meanwhile else None
    )
    assert os.listdir(tmp_path) == (["d"] if meanwhile else [])


def test_a_destination_that_somebody_makes_meanwhile_is_theirs(tmp_path: Path) -> None:
    dest = tmp_path / "d"

    def step(name: str) -> None:
        if name == "export.done":
            dest.mkdir()
            (dest / "mine").write_text("mine")

    with pytest.raises(OperationError) as caught:
        run(made(*DELTA), dest, step=step)
    assert (
        caught.value.details["reason"] == "destination_changed" and caught.value.details["retryable"] is True
    )
    assert shape(dest) == {b"mine": ("f", 0o644, b"mine")} and os.listdir(tmp_path) == ["d"]


def test_names_of_one_file_in_several_directories_are_one_file_there_too(tmp_path: Path) -> None:
    """A tree opens one directory at a time: the two ends of a link need two."""
    entries = [
        directory(b"a"),
        file(b"a/one", b"1"),
        directory(b"b"),
        hard_link(b"b/two", b"a/one"),
        hard_link(b"three", b"a/one"),
    ]
    run(made(*entries), tmp_path / "new")
    numbers = {os.stat(tmp_path / "new" / name).st_ino for name in ("a/one", "b/two", "three")}
    assert len(numbers) == 1 and (tmp_path / "new/three").read_bytes() == b"1"
