"""`dry_run`: the answer that an export to the same place then gives, and a destination that was only read.
Refusals: `failure` asks for both.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from eos_agent.wire.protocol import OperationError
from eos_mcp.export.dry_run import LISTED_MAX, folds_by_names
from layerstack.kernel import syscalls
from tests import in_namespace
from tests.eos_mcp.export_runs import (
    DELTA,
    STEPS,
    Killer,
    check_changes,
    failure,
    fill,
    killed_at,
    run,
    shape,
)
from tests.eos_mcp.folding_destination import on_folding
from tests.export_streams import SECOND, directory, file, gone, made, symlink


def everything(root: Path) -> dict[str, tuple[Any, ...]]:
    """Inode, mode, mtime and ctime of each path, directories and the root too."""
    paths = [root, *root.rglob("*")]
    return {
        str(p): (s.st_ino, s.st_mode, s.st_size, s.st_mtime_ns, s.st_ctime_ns)
        for p in paths
        for s in (os.lstat(p),)
    }


@pytest.mark.parametrize("exists", [True, False], ids=["into a directory", "into nothing"])
@pytest.mark.parametrize("fmt", ["dir", "tar", "tar-zst"])
def test_a_dry_run_touches_nothing_and_the_export_after_it_does_what_it_said(
    tmp_path: Path, fmt: str, exists: bool
) -> None:
    """Content, deletions, an opaque directory, files for directories and back, modes, hard links, names that
    are no UTF-8.
    """
    dest = tmp_path / "d"
    entries = [entry for entry in DELTA if fmt == "dir" or b".wh." not in entry[0].path]
    if exists and fmt == "dir":
        fill(dest)
    elif exists:
        dest.write_bytes(b"\x28\xb5\x2f\xfd an archive of before")
    elif fmt == "dir":
        dest = tmp_path / "above" / "d"
    before, was = everything(tmp_path), shape(tmp_path)
    foreseen = run(made(*entries), dest, fmt, dry_run=True)
    assert everything(tmp_path) == before and shape(tmp_path) == was
    assert run(made(*entries), dest, fmt, dry_run=True) == foreseen
    result = run(made(*entries), dest, fmt)
    assert "dry_run" not in result and {key: foreseen[key] for key in result} == result
    said = {"edited", "would_conflict", "would_conflict_count", "unsafe", "unsafe_count"}
    more = said | ({"edited_count"} if not exists else set()) if fmt == "dir" else {"replaces"}
    assert foreseen.keys() - result.keys() == {"dry_run", "changes", "change_count", *more}
    assert foreseen["dry_run"] is True and foreseen["change_count"] == len(foreseen["changes"])
    if fmt == "dir":
        prefix = os.path.relpath(dest, tmp_path).encode() + b"/"
        old, new = (
            {p[len(prefix) :]: w for p, w in s.items() if p.startswith(prefix)}
            for s in (was, shape(tmp_path))
        )
        check_changes(foreseen["changes"], old, new)
        again = run(made(*entries), dest, fmt, dry_run=True)
        assert (again["files_written"], again["bytes_written"], again["change_count"]) == (0, 0, 0)
    else:
        assert foreseen["replaces"] is exists
        assert {"action": "delete", "path": "src/gone"} in foreseen["changes"]


def test_files_that_were_edited_on_the_host_and_would_be_lost_are_named(tmp_path: Path) -> None:
    base, dest = tmp_path / "base", tmp_path / "d"
    fill(base)
    (base / "twin").write_text("same size")
    shutil.copytree(base, dest, symlinks=True)
    shutil.copystat(base / "src", dest / "src")
    entries = (*DELTA, file(b"zz-not-there"))
    assert run(made(*entries, file(b"zzz")), dest, dry_run=True, base=str(base))["edited"] == []
    os.utime(dest / "src/a", ns=(0, 5 * SECOND))  # touched, not edited
    (dest / "gone/f").write_text("edited below what is deleted")
    (dest / "gone/mine").write_text("new below what is deleted")
    (dest / "old/deep/mine").write_text("new below an opaque directory")
    (dest / "src/kept").write_text("edited, but the export leaves it alone")
    (dest / "src/gone").write_text("GONE")  # as long as it was
    os.utime(dest / "src/gone", ns=(0, 6 * SECOND))
    (dest / "was-dir/f").unlink()
    (dest / "was-dir/f").symlink_to("f")
    (dest / "was-link").unlink()
    (dest / "was-link").symlink_to("elsewhere")
    (dest / "linked").write_text("made by both")
    result = run(made(*DELTA), dest, dry_run=True, base=str(base))
    assert result["edited"] == [
        "gone/f",
        "gone/mine",
        "linked",
        "src/gone",
        "was-dir/f",
        "was-link",
        "old/deep/mine",
    ]
    assert result["edited_count"] == 7
    gone_base = run(made(*DELTA), dest, dry_run=True, base=str(tmp_path / "nowhere"))
    assert gone_base["edited"] is None and "edited_count" not in gone_base
    run(made(*DELTA), dest)
    done = run(made(*DELTA), dest, dry_run=True, base=str(base))
    assert (done["edited"], done["changes"]) == ([], []), "what is there already would not be lost"


def test_what_an_earlier_export_wrote_is_not_taken_for_an_edit(tmp_path: Path) -> None:
    base, dest = tmp_path / "base", tmp_path / "d"
    base.mkdir()
    first = [file(name, b"first", mtime_ns=7 * SECOND + 123_456_789) for name in (b"a", b"b", b"c")]
    run(made(*first), dest)
    os.utime(dest / "b", ns=(0, 7 * SECOND + 123_456_788))
    earlier = b"3:5 5:7123456789"
    second = made(
        *((header._replace(size=6, earlier=earlier), b"second") for header, _ in first[:2]),
        (gone(b"c")[0]._replace(earlier=earlier), b""),
    )
    assert run(second, dest, dry_run=True, base=str(base))["edited"] == ["b"]
    unknown = made(file(b"a", b"second"), gone(b"c"))
    assert run(unknown, dest, dry_run=True, base=str(base))["edited"] == ["a", "c"]
    for what in (
        (file(b"a")[0]._replace(earlier=b"5:x"), b""),
        (directory(b"a")[0]._replace(earlier=b"5:1"), b""),
    ):
        assert failure(made(what), dest).details["reason"] == "bad_stream"


def test_a_dry_run_lists_so_many_and_counts_all(tmp_path: Path) -> None:
    dest, base = tmp_path / "d", tmp_path / "base"
    dest.mkdir()
    base.mkdir()
    names = [b"%04d" % n for n in range(LISTED_MAX + 50)]
    for name in names:
        (dest / name.decode()).write_text("mine")
    result = run(made(*(file(name, b"new") for name in names)), dest, dry_run=True, base=str(base))
    assert len(result["changes"]) == len(result["edited"]) == LISTED_MAX
    assert result["change_count"] == result["edited_count"] == LISTED_MAX + 50
    archive = run(made(*(file(name, b"new") for name in names)), tmp_path / "x.tar", "tar", dry_run=True)
    assert (len(archive["changes"]), archive["change_count"]) == (LISTED_MAX, LISTED_MAX + 50)


def test_after_a_killed_export_a_dry_run_tells_that_it_cannot_tell_and_leaves_it_to_the_next(
    tmp_path: Path,
) -> None:
    dest = tmp_path / "d"
    for name in STEPS:
        fill(dest)
        assert killed_at(name, 1, dest)
        before = everything(tmp_path)
        if name in ("export.sync", "export.ready"):  # nothing of the destination was changed yet
            foreseen = run(made(*DELTA), dest, dry_run=True)
            assert everything(tmp_path) == before
            result = run(made(*DELTA), dest)
            assert {key: foreseen[key] for key in result} == result
        else:
            with pytest.raises(OperationError) as caught:
                run(made(*DELTA), dest, dry_run=True)
            assert caught.value.details["reason"] == "export_unfinished" and everything(tmp_path) == before
        in_namespace.call(None, run, made(*DELTA), str(dest))
        shutil.rmtree(dest)
    run(made(file(b"f", b"0")), tmp_path / "x.tar", "tar")
    with pytest.raises(in_namespace.ChildDied):
        in_namespace.call(
            None, run, made(file(b"f", b"1")), str(tmp_path / "x.tar"), "tar", step=Killer("export.rename", 1)
        )
    before = everything(tmp_path)
    assert run(made(file(b"f", b"1")), tmp_path / "x.tar", "tar", dry_run=True)["files_written"] == 1
    assert everything(tmp_path) == before


@pytest.mark.needs("uid")
def test_what_the_kernel_would_refuse_an_ordinary_user_a_dry_run_refuses_too(short_dir: str) -> None:
    """A destination that cannot be written; in it a directory of somebody else, and a mode of somebody else's
    file.
    """
    root, uid = Path(short_dir), in_namespace.ORDINARY_UID if os.geteuid() == 0 else os.geteuid()
    fill(root / "closed")
    fill(root / "theirs")
    (root / "beside").mkdir()
    os.chmod(root / "closed", 0o555)
    if os.geteuid() == 0:
        os.chown(short_dir, uid, uid)
        os.chown(root / "theirs", uid, uid)
        os.chown(root / "beside", uid, uid)
        os.chmod(root / "theirs" / "old" / "same", 0o600 | 0o044)

    def child() -> None:
        assert failure(made(file(b"f")), root / "closed").details["errno"] == "EACCES"
        assert failure(made(file(b"f")), root / "closed" / "new" / "d").details["errno"] == "EACCES"
        assert failure(made(file(b"f")), root / "closed" / "x.tar", "tar").details["errno"] == "EACCES"
        if os.lstat(root / "theirs" / "src").st_uid != os.geteuid():
            refused = [
                (directory(b"src"), file(b"src/a")),
                (directory(b"src"), gone(b"src/gone")),
                (directory(b"src", 0o700),),
                (gone(b"src"),),
            ]
            refused.append((directory(b"old"), file(b"old/same", b"same", 0o755)))
            for entries in refused:
                assert failure(made(*entries), root / "theirs").details["errno"] in ("EACCES", "EPERM"), (
                    entries
                )
        run(made(file(b"f")), root / "beside" / "d", dry_run=True)
        assert os.listdir(root / "beside") == []

    in_namespace.call("uid" if os.geteuid() == 0 else None, child)


@pytest.mark.needs("overlay")
def test_a_read_only_file_system_is_refused_by_a_dry_run_too(
    short_dir: str, in_mount_namespace: Callable[..., Any]
) -> None:
    def child() -> None:
        syscalls.mount("none", short_dir, "tmpfs", syscalls.MS_RDONLY, "")
        for dest, fmt in ((short_dir, "dir"), (f"{short_dir}/a/b", "dir"), (f"{short_dir}/x.tar", "tar")):
            assert failure(made(file(b"f")), dest, fmt).details["errno"] == "EROFS"

    in_mount_namespace(child)


@pytest.mark.needs("overlay")
def test_a_mount_in_the_destination_is_previewed_as_the_export_treats_it(
    short_dir: str, in_mount_namespace: Callable[..., Any]
) -> None:
    def child() -> None:
        inner = Path(short_dir, "inner")
        inner.mkdir()
        syscalls.mount("none", str(inner), "tmpfs", 0, "mode=0755")
        for delta in (made(gone(b"inner")), made(file(b"inner"))):
            error = failure(delta, short_dir)
            assert error.details["reason"] == "mount_in_the_way" and os.path.ismount(inner)
        delta = made(directory(b"inner"), file(b"inner/f"))
        foretold = run(delta, short_dir, dry_run=True)
        assert foretold["change_count"] == 1 and foretold["changes"] == [
            {"action": "write", "path": "inner/f"}
        ]
        assert os.listdir(inner) == []
        written = run(delta, short_dir)
        assert {key: foretold[key] for key in written} == written and written["files_written"] == 1
        assert os.listdir(inner) == ["f"] and os.listdir(short_dir) == ["inner"]

    in_mount_namespace(child)


def test_a_file_above_the_destination_is_refused_by_a_dry_run_too(tmp_path: Path) -> None:
    (tmp_path / "f").write_text("a file")
    for dest in (tmp_path / "f/d", tmp_path / "f/deeper/d"):
        assert failure(made(symlink(b"l", b"t")), dest).details["errno"] == "ENOTDIR"


def test_an_ordinary_file_system_is_known_without_a_probe_not_to_fold(tmp_path: Path) -> None:
    assert not folds_by_names(str(tmp_path))
    (tmp_path / "Name").write_text("")
    (tmp_path / "nAME").write_text("")
    assert not folds_by_names(str(tmp_path))


@pytest.mark.needs("root", "fuse")
def test_a_folding_file_system_is_known_without_a_probe_by_what_is_in_it_or_above(short_dir: str) -> None:
    def body(dest: Path) -> tuple[bool, bool]:
        empty = folds_by_names(str(dest))
        (dest / "1").mkdir()
        return empty, folds_by_names(str(dest))

    assert on_folding(short_dir, body) == (True, True)
