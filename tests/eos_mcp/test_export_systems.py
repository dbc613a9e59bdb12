"""A destination that has other file systems mounted in it (N11): each is written by renames of its own, under
one journal.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from eos_agent.wire.protocol import OperationError
from eos_mcp.export.apply import recover
from layerstack.kernel import syscalls
from tests import in_namespace
from tests.eos_mcp.export_runs import STEPS, Killer, Refusing, failure, run, shape, stamps
from tests.export_streams import directory, file, gone, hard_link, journals, made, symlink

ROOT = os.geteuid() == 0
ANNEX_STEPS = ("export.annex", "export.annex_bind", "export.annex_bound")


@pytest.fixture(autouse=True)
def no_record_is_left() -> Iterator[None]:
    shutil.rmtree(journals(), ignore_errors=True)
    yield
    shutil.rmtree(journals(), ignore_errors=True)


DELTA = made(
    file(b"a", b"new a"),
    hard_link(b"a-link", b"a"),
    directory(b"bound"),
    file(b"bound/f", b"new f"),
    directory(b"bound/opaque", 0o755, opaque=True),
    file(b"bound/opaque/here", b"here"),
    directory(b"tmp", 0o1755),
    hard_link(b"tmp/a-link", b"a"),
    gone(b"tmp/dir"),
    directory(b"tmp/inner"),
    file(b"tmp/inner/f", b"new"),
    symlink(b"tmp/inner/l", b"f"),
    directory(b"tmp/kind"),
    file(b"tmp/kind/f", b"f"),
    file(b"z", b"z"),
)
POINTS = ("tmp", "tmp/inner", "bound")


def _fill(dest: Path) -> None:
    for folder in ("bound/opaque", "tmp/dir", "tmp/inner"):
        (dest / folder).mkdir(parents=True, exist_ok=True)
    for name in (
        "a",
        "bound/f",
        "bound/opaque/hidden",
        "bound/opaque/here",
        "bound/stays",
        "tmp/dir/f",
        "tmp/inner/f",
        "tmp/kind",
    ):
        (dest / name).write_text(f"old {name}")


def _mount(dest: Path, behind: Path) -> None:
    """Two of memory, one in the other, and another view of the same disk, between which rename(2) says EXDEV
    as well.
    """
    for point in POINTS:
        (dest / point).mkdir(parents=True, exist_ok=True)
        if point == "bound":
            behind.mkdir(exist_ok=True)
            syscalls.mount(str(behind), str(dest / point), None, syscalls.MS_BIND)
        else:
            syscalls.mount("tmpfs", str(dest / point), "tmpfs", 0)


def _nothing_is_left(dest: Path) -> None:
    assert list(dest.rglob(".eos-export-*")) == [] and os.listdir(journals()) == []


@pytest.mark.needs("userns")
@pytest.mark.parametrize("namespace", ["trusted", "user"] if ROOT else ["user"])
def test_an_export_over_mounts_is_as_one_without_them(short_dir: str, namespace: str) -> None:
    root = Path(short_dir)
    if ROOT and namespace == "user":
        os.chown(root, in_namespace.ORDINARY_UID, in_namespace.ORDINARY_UID)

    def child() -> None:
        plain, dest = root / "plain", root / "d"
        _fill(plain)
        _mount(dest, root / "behind")
        _fill(dest)
        want = run(DELTA, plain)
        before = shape(dest)
        foreseen = run(DELTA, dest, dry_run=True)
        assert shape(dest) == before
        result = run(DELTA, dest)
        assert result == want == {key: foreseen[key] for key in result}
        found, wanted = shape(dest), shape(plain)
        assert {p: w for p, w in found.items() if p not in (b"tmp", b"tmp/inner")} == {
            p: w for p, w in wanted.items() if p not in (b"tmp", b"tmp/inner")
        }
        _nothing_is_left(dest)
        same = stamps(dest)
        again = run(DELTA, dest)
        assert again["bytes_written"] == 0 and again["files_written"] == 1, (
            "a hard link to another file system is a copy each time"
        )
        assert {path: stamp for path, stamp in stamps(dest).items() if not path.endswith("tmp/a-link")} == {
            path: stamp for path, stamp in same.items() if not path.endswith("tmp/a-link")
        }

    in_namespace.call(namespace, child)


@pytest.mark.needs("overlay")
def test_killed_or_refused_at_any_step_all_file_systems_are_as_they_were(short_dir: str) -> None:
    def child() -> int:
        happened = 0
        dest = Path(short_dir, "d")
        _mount(dest, Path(short_dir, "behind"))
        _fill(dest)
        before = shape(dest)
        for name in (*STEPS, *ANNEX_STEPS):
            for count in (1, 2, 3, 5, 9):
                try:
                    in_namespace.call(None, run, DELTA, str(dest), step=Killer(name, count))
                except in_namespace.ChildDied:
                    happened += 1
                    recover(str(dest), journals())
                    assert shape(dest) == before, (name, count)
                    _nothing_is_left(dest)
                    try:
                        run(DELTA, dest, step=Refusing(name, count))
                    except OperationError:
                        assert shape(dest) == before, (name, count)
                        _nothing_is_left(dest)
                        continue
                    raise AssertionError("not refused") from None
                for path in dest.iterdir():  # it came through: begin anew
                    if path.name not in ("tmp", "bound"):
                        path.unlink()
                for point in ("tmp/inner", "tmp", "bound"):
                    for path in (dest / point).iterdir():
                        if str(path.relative_to(dest)) not in POINTS:
                            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
                os.chmod(dest / "tmp", 0o1777)
                _fill(dest)
                os.chmod(dest / "bound", before[b"bound"][1])
                os.chmod(dest / "tmp", before[b"tmp"][1])
                os.chmod(dest / "tmp/inner", before[b"tmp/inner"][1])
                assert shape(dest) == before
                break
        return happened

    assert in_namespace.call("trusted" if ROOT else "user", child) > 20


@pytest.mark.needs("overlay")
def test_what_is_not_mounted_any_more_is_asked_for_before_anything_is_taken_back(short_dir: str) -> None:
    def child() -> None:
        dest, behind = Path(short_dir, "d"), Path(short_dir, "behind")
        (dest / "bound").mkdir(parents=True)
        behind.mkdir()
        syscalls.mount(str(behind), str(dest / "bound"), None, syscalls.MS_BIND)
        (dest / "bound/f").write_text("old f")
        delta = made(file(b"a", b"a"), directory(b"bound"), file(b"bound/f", b"new f"))
        before = shape(dest)
        hint = staging = ""
        for turn in range(2):
            with pytest.raises(in_namespace.ChildDied):
                in_namespace.call(None, run, delta, str(dest), step=Killer("export.sync_names", 1))
            assert (dest / "bound/f").read_text() == "new f"
            syscalls.umount(str(dest / "bound"))
            with pytest.raises(OperationError) as caught:
                run(delta, dest)
            assert caught.value.details["reason"] == "rollback_failed"
            hint, staging = caught.value.details["hint"], caught.value.details["staging"]
            assert f"mount it at {dest}/bound again" in hint and (dest / "a").read_text() == "a", (
                "nothing was taken back in part"
            )
            if turn == 0:
                syscalls.mount(str(behind), str(dest / "bound"), None, syscalls.MS_BIND)
                assert recover(str(dest), journals()) == ["rolled_back"] and shape(dest) == before
                _nothing_is_left(dest)
        (record,) = Path(journals()).iterdir()  # the other way that the hint names
        assert f"move {record} to another directory" in hint
        record.rename(Path(short_dir, record.name))
        result = run(made(file(b"later", b"1")), dest)
        assert (dest / "later").exists() and result["ignored_staging"] == [staging]
        (left,) = behind.glob(".eos-export-*")
        assert [path.read_text() for path in (left / "undo").iterdir()] == ["old f"], (
            "what was replaced is still there"
        )

    in_namespace.call("trusted" if ROOT else "user", child)


@pytest.mark.needs("overlay")
def test_after_a_restart_of_the_machine_a_file_system_in_memory_has_nothing_to_take_back(
    short_dir: str,
) -> None:
    def child() -> None:
        dest = Path(short_dir, "d")
        (dest / "tmp").mkdir(parents=True)
        (dest / "a").write_text("old a")
        syscalls.mount("tmpfs", str(dest / "tmp"), "tmpfs", 0)
        (dest / "tmp/f").write_text("old f")
        with pytest.raises(in_namespace.ChildDied):
            in_namespace.call(
                None,
                run,
                made(file(b"a", b"new a"), directory(b"tmp"), file(b"tmp/f", b"new f")),
                str(dest),
                step=Killer("export.sync_names", 1),
            )
        syscalls.umount(str(dest / "tmp"))
        syscalls.mount("tmpfs", str(dest / "tmp"), "tmpfs", 0)
        (dest / "tmp/f").write_text("of after the restart")
        (record,) = Path(journals()).iterdir()
        first, *rest = record.read_text().splitlines()
        record.write_text("\n".join([json.dumps({**json.loads(first), "boot": "another"}), *rest, ""]))
        assert recover(str(dest), journals()) == ["rolled_back"]
        assert (dest / "a").read_text() == "old a" and (dest / "tmp/f").read_text() == "of after the restart"
        _nothing_is_left(dest)

    in_namespace.call("trusted" if ROOT else "user", child)


@pytest.mark.needs("overlay")
def test_a_mount_that_cannot_be_written_refuses_what_goes_there_and_nothing_else(short_dir: str) -> None:
    def child() -> None:
        dest = Path(short_dir, "d")
        (dest / "tmp").mkdir(parents=True)
        syscalls.mount("tmpfs", str(dest / "tmp"), "tmpfs", 0)
        (dest / "tmp/f").write_text("old")
        os.utime(dest / "tmp/f", (1_700_000_000, 1_700_000_000))
        os.chmod(dest / "tmp/f", 0o644)
        os.chmod(dest / "tmp", 0o755)
        syscalls.mount("tmpfs", str(dest / "tmp"), "tmpfs", syscalls.MS_REMOUNT | syscalls.MS_RDONLY)
        before = shape(dest)
        error = failure(made(file(b"a", b"a"), directory(b"tmp"), file(b"tmp/f", b"new")), dest)
        assert error.details["errno"] == "EROFS" and "tmp" in str(error.details) and shape(dest) == before
        run(made(file(b"a", b"a"), directory(b"tmp"), file(b"tmp/f", b"old")), dest)
        assert (dest / "a").exists()

    in_namespace.call("trusted" if ROOT else "user", child)
