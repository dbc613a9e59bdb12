"""Which journals of killed exports count: those that the gateway's state directory vouches for. All else of
that name is the person's own.
"""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from eos_agent.wire.protocol import OperationError
from eos_mcp.export import voucher
from eos_mcp.export.apply import recover
from eos_mcp.export.dirfd import DirTree
from eos_mcp.export.names import reserved
from eos_mcp.export.recover import roll_back_killed
from eos_mcp.export.stage import ExportStage, Step
from eos_mcp.workspace import base
from layerstack.kernel import fsync
from tests import in_namespace
from tests.eos_mcp.export_runs import AFTER, DELTA, Killer, Nth, failure, fill, killed_at, run, shape
from tests.eos_mcp.forged_journals import forge, victim_in
from tests.export_streams import SECOND, directory, file, gone, journals, made


def records() -> list[str]:
    return os.listdir(journals()) if os.path.isdir(journals()) else []


@pytest.fixture(autouse=True)
def no_record_is_left() -> Any:
    shutil.rmtree(journals(), ignore_errors=True)
    yield
    shutil.rmtree(journals(), ignore_errors=True)


# what lies in a destination


@pytest.mark.parametrize("form", [1, 2])
def test_a_journal_that_a_clone_brought_is_never_carried_out_opened_or_removed(
    tmp_path: Path, form: int
) -> None:
    dest, victim = tmp_path / "proj", victim_in(tmp_path)
    dest.mkdir()
    staging = forge(dest, "../victim", form)
    before, there = shape(victim), shape(staging)
    assert recover(str(dest), journals()) == []
    foreseen = run(made(file(b"f", b"1")), dest, dry_run=True)
    result = run(made(file(b"f", b"1")), dest)
    assert shape(victim) == before and shape(staging) == there and (dest / "f").read_text() == "1"
    for answer in (foreseen, result):
        assert (answer["ignored_staging"], answer["ignored_staging_count"]) == ([str(staging)], 1)
    assert run(made(file(b"f", b"2")), dest)["files_written"] == 1, "later exports are not blocked"


def test_a_journal_beside_a_destination_that_does_not_exist_yet_is_none_either(tmp_path: Path) -> None:
    victim = victim_in(tmp_path)
    assert killed_at("export.ready", 1, tmp_path / "new"), "to see how such a directory is called"
    name = next(n for n in os.listdir(tmp_path) if n != "victim")
    recover(str(tmp_path / "new"), journals())
    staging = forge(tmp_path, "victim", name=name)
    before, there = shape(victim), shape(staging)
    assert run(made(file(b"f", b"1")), tmp_path / "new")["ignored_staging"] == [str(staging)]
    assert shape(victim) == before and shape(staging) == there


def test_a_journal_of_our_own_that_was_copied_elsewhere_or_changed_counts_no_longer(tmp_path: Path) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    fill(one)
    before = shape(one)
    assert killed_at("export.sync_names", 1, one)
    shutil.copytree(one, other, symlinks=True)
    half = shape(other)
    assert run(made(file(b"zz", b"1")), other)["ignored_staging_count"] == 1
    assert {path: what for path, what in shape(other).items() if path != b"zz"} == half
    assert recover(str(one), journals()) == ["rolled_back"] and shape(one) == before

    for spoil in ("plan", "clears", "state"):
        assert killed_at("export.sync_names", 1, one)
        (staging,) = one.glob(".eos-export-*")
        data = bytearray((staging / spoil).read_bytes())
        data[len(data) // 2] ^= 1
        (staging / spoil).write_bytes(data)
        half = shape(one)
        assert recover(str(one), journals()) == ["ignored"] and shape(one) == half
        result = run(made(file(b"zz", b"1")), one)
        assert result["ignored_staging"] == [str(staging)] and records() == []
        fsync.remove_tree(str(one))
        fill(one)


def test_a_directory_that_took_the_name_of_a_recorded_staging_is_left_alone(tmp_path: Path) -> None:
    dest, victim = tmp_path / "d", victim_in(tmp_path)
    fill(dest)
    assert killed_at("export.ready", 1, dest)
    (staging,) = dest.glob(".eos-export-*")
    fsync.remove_tree(str(staging))
    forge(dest, "../victim", 2, staging.name)
    before, there = shape(victim), shape(staging)
    result = run(made(*DELTA), dest)
    assert shape(victim) == before and shape(staging) == there and result["ignored_staging"] == [str(staging)]
    assert records() == []


# kills around the record


AROUND = (
    "export.voucher",
    "export.mkdir",
    "export.bind",
    "export.bound",
    "export.done",
    "export.remove",
    "export.forget",
)


@pytest.mark.parametrize("exists", [True, False], ids=["into a directory", "into nothing"])
@pytest.mark.parametrize("name", AROUND)
def test_a_kill_at_each_step_of_the_record_leaves_nothing_that_is_not_cleared_up(
    tmp_path: Path, name: str, exists: bool
) -> None:
    dest = tmp_path / "d"
    if exists:
        fill(dest)
    before = shape(dest) if exists else None
    assert killed_at(name, 1, dest)
    assert len(records()) == (0 if name == "export.voucher" else 1)
    staged = [*tmp_path.glob(".eos-export-*"), *dest.glob(".eos-export-*")]
    assert len(staged) == (0 if name in ("export.voucher", "export.mkdir", "export.forget") else 1)
    recover(str(dest), journals())
    assert records() == [] and [*tmp_path.glob(".eos-export-*"), *dest.glob(".eos-export-*")] == []
    done = AFTER if exists else {path: what for path, what in AFTER.items() if path != b"src/kept"}
    found = shape(dest) if dest.exists() else None
    assert found == (done if name in ("export.remove", "export.forget") else before)
    run(made(*DELTA), dest)
    assert shape(dest) == done and records() == []


class HalfRemoved(Killer):
    """A kill in the middle of the removal of the staging: some of it is gone."""

    def __init__(self, dest: Path) -> None:
        super().__init__("export.remove", 1)
        self.dest = dest

    def happen(self) -> None:
        (staging,) = self.dest.glob(".eos-export-*")
        fsync.remove_tree(str(staging / "new"))
        fsync.remove_tree(str(staging / "undo"))
        super().happen()


def test_a_recovery_that_is_killed_while_it_removes_the_staging_takes_no_file_with_it(tmp_path: Path) -> None:
    dest = tmp_path / "d"
    fill(dest)
    before = shape(dest)
    assert killed_at("export.sync_names", 1, dest)
    with pytest.raises(in_namespace.ChildDied):
        in_namespace.call(None, recover, str(dest), journals(), step=HalfRemoved(dest))
    assert recover(str(dest), journals()) == ["swept"]
    assert shape(dest) == before and records() == []


def test_a_torn_record_is_of_an_export_that_had_not_begun(tmp_path: Path) -> None:
    dest = tmp_path / "d"
    fill(dest)
    assert killed_at("export.mkdir", 1, dest)
    (name,) = records()
    whole = Path(journals(), name).read_bytes()
    assert stat.S_IMODE(os.lstat(Path(journals(), name)).st_mode) == 0o600
    for data in (whole[:-1], whole[:20], b""):
        Path(journals(), name).write_bytes(data)
        assert recover(str(dest), journals()) == [] and records() == []
    Path(journals(), name).write_bytes(whole.replace(b'"format":1', b'"format":9'))
    assert recover(str(dest), journals()) == [] and records() == [name], "a later version's is that version's"
    assert run(made(*DELTA), dest)["files_written"] == 11


# names and places


def test_a_directory_that_was_renamed_after_a_kill_is_known_again(tmp_path: Path) -> None:
    fill(tmp_path / "d")
    before = shape(tmp_path / "d")
    assert killed_at("export.sync_names", 1, tmp_path / "d")
    (tmp_path / "d").rename(tmp_path / "e")
    (tmp_path / "d").mkdir()
    assert run(made(file(b"f")), tmp_path / "d")["files_written"] == 1, "what has its name now is another one"
    assert recover(str(tmp_path / "e"), journals()) == ["rolled_back"] and shape(tmp_path / "e") == before


def test_after_another_boot_the_number_of_a_device_may_be_another_and_the_journal_is_known_by_the_rest(
    tmp_path: Path,
) -> None:
    for boot, want in (("another", ["rolled_back"]), (None, ["ignored"])):
        fill(tmp_path / "d")
        assert killed_at("export.sync_names", 1, tmp_path / "d")
        (name,) = records()
        lines = [json.loads(line) for line in Path(journals(), name).read_bytes().splitlines()]
        lines[1]["id"][0] += 1
        if boot:
            lines[0]["home_id"][0] += 1
            lines[0]["boot"] = boot
        Path(journals(), name).write_bytes(b"".join(json.dumps(line).encode() + b"\n" for line in lines))
        assert recover(str(tmp_path / "d"), journals()) == want
        fsync.remove_tree(str(tmp_path / "d"))


@pytest.mark.parametrize(("killed", "next_"), [("mono", "mono/src"), ("mono/src", "mono")])
def test_what_was_killed_above_or_below_a_destination_is_taken_back_before_it(
    tmp_path: Path, killed: str, next_: str
) -> None:
    fill(tmp_path / "mono")
    fill(tmp_path / "mono/src/sub")
    before = shape(tmp_path / "mono")
    assert killed_at("export.sync_names", 1, tmp_path / killed)
    assert failure_of(lambda: run(made(*DELTA), tmp_path / next_, dry_run=True)) == "export_unfinished"
    assert run(made(file(b"zz", b"1")), tmp_path / next_)["files_written"] == 1
    os.unlink(tmp_path / next_ / "zz")
    assert shape(tmp_path / "mono") == before and records() == []


def failure_of(call: Callable[[], object]) -> str:
    with pytest.raises(OperationError) as caught:
        call()
    return str(caught.value.details["reason"])


@pytest.mark.parametrize(
    ("running", "other"), [("d", "d"), ("d", "d/src"), ("d/src", "d"), ("new", "new"), ("new", "new/deeper")]
)
def test_two_exports_to_places_that_hold_one_another_do_not_run_at_once(
    tmp_path: Path, running: str, other: str
) -> None:
    fill(tmp_path / "d")
    seen: list[str] = []

    class Second(Nth):
        def happen(self) -> None:
            seen.append(failure_of(lambda: run(made(file(b"f")), tmp_path / other)))
            seen.append(failure_of(lambda: run(made(file(b"f")), tmp_path / other, dry_run=True)))
            assert run(made(file(b"f")), tmp_path / "elsewhere")["files_written"] == 1

    assert (
        run(made(file(b"a", b"1")), tmp_path / running, step=Second("export.ready", 1))["files_written"] == 1
    )
    assert seen == ["in_flight", "in_flight"] and records() == []


# archives


def test_only_the_unfinished_archive_that_is_on_record_is_removed(tmp_path: Path) -> None:
    (tmp_path / ".eos-export-0.tmp").write_text("the person's own")
    run(made(file(b"f", b"0")), tmp_path / "x.tar", "tar")
    for name in (
        "export.voucher",
        "export.mkdir",
        "export.bind",
        "export.bound",
        "export.sync",
        "export.rename",
        "export.sync_names",
    ):
        with pytest.raises(in_namespace.ChildDied):
            in_namespace.call(
                None, run, made(file(b"f", b"1")), str(tmp_path / "x.tar"), "tar", step=Killer(name, 1)
            )
        assert len(records()) == (name != "export.voucher")
        run(made(file(b"f", b"1")), tmp_path / "x.tar", "tar")
        assert sorted(os.listdir(tmp_path)) == [".eos-export-0.tmp", "x.tar"] and records() == [], name
    with pytest.raises(in_namespace.ChildDied):
        in_namespace.call(
            None, run, made(file(b"f", b"1")), str(tmp_path / "x.tar"), "tar", step=Killer("export.rename", 1)
        )
    (left,) = set(os.listdir(tmp_path)) - {".eos-export-0.tmp", "x.tar"}
    (tmp_path / "other").write_text("another file of that name")
    (tmp_path / "other").rename(tmp_path / left)
    run(made(file(b"f", b"1")), tmp_path / "x.tar", "tar")
    assert (tmp_path / left).read_text() == "another file of that name"


def test_a_killed_archive_that_replaces_nothing_leaves_nothing_and_needs_no_record(tmp_path: Path) -> None:
    for name in ("export.sync", "export.rename", "export.sync_names"):
        with pytest.raises(in_namespace.ChildDied):
            in_namespace.call(
                None, run, made(file(b"f", b"1")), str(tmp_path / "x.tar"), "tar", step=Killer(name, 1)
            )
        assert (
            os.listdir(tmp_path) == (["x.tar"] if name == "export.sync_names" else []) and records() == []
        ), name


@pytest.mark.parametrize("theirs", [False, True], ids=["of an export", "a person's"])
def test_a_file_that_takes_the_name_of_a_new_archive_is_replaced_only_if_it_is_an_exports(
    tmp_path: Path, theirs: bool
) -> None:
    dest, data = tmp_path / "x.tar", made(file(b"f", b"1"))
    run(data, tmp_path / "other.tar", "tar")
    work = b"a person's work" if theirs else b"\0" * 1024

    def step(name: str) -> None:
        if name == "export.rename":
            dest.write_bytes(work)

    if theirs:
        with pytest.raises(OperationError) as caught:
            run(data, dest, "tar", step=step)
        assert caught.value.details["reason"] == "export_conflict" and dest.read_bytes() == work
    else:
        run(data, dest, "tar", step=step)
        assert dest.read_bytes() == (tmp_path / "other.tar").read_bytes()
    assert sorted(os.listdir(tmp_path)) == ["other.tar", "x.tar"] and records() == []


@pytest.mark.parametrize(
    "name", ["export.voucher", "export.bind", "export.bound", "export.linked", "export.sync_names"]
)
def test_a_kill_while_a_new_archive_replaces_one_that_came_meanwhile_leaves_one_or_the_other(
    tmp_path: Path, name: str
) -> None:
    dest, data = tmp_path / "x.tar", made(file(b"f", b"1"))
    theirs, killer = b"\0" * 1024, Killer(name, 1)

    def step(reached: str) -> None:
        if reached == "export.rename":
            dest.write_bytes(theirs)
        killer(reached)

    with pytest.raises(in_namespace.ChildDied):
        in_namespace.call(None, run, data, str(dest), "tar", step=step)
    assert len(records()) == (name != "export.voucher")
    assert (dest.read_bytes() == theirs) == (name != "export.sync_names")
    run(data, tmp_path / "other.tar", "tar")
    assert sorted(os.listdir(tmp_path)) == ["other.tar", "x.tar"] and records() == []


# names that exports use themselves


def test_a_delta_with_such_a_name_at_any_depth_is_refused_with_a_way_out_that_works(tmp_path: Path) -> None:
    dest = tmp_path / "d"
    fill(dest)
    before = shape(dest)
    own = [
        directory(b"a"),
        directory(b"a/.eos-export-0"),
        file(b"a/.eos-export-0/plan", b"1"),
        file(b"a/.eos-export-f", b"2"),
    ]
    error = failure(made(*own), dest)
    assert (error.details["reason"], error.details["count"]) == ("reserved_names", 2)
    assert error.details["paths"] == ["a/.eos-export-0", "a/.eos-export-f"]
    assert (
        "mv -- a/.eos-export-0 a/eos-export-0;" in error.details["hint"]
        and "format tar" in error.details["hint"]
    )
    assert shape(dest) == before and records() == []
    renamed = [
        directory(b"a"),
        gone(b"a/.eos-export-0"),
        gone(b"a/.eos-export-f"),
        directory(b"a/eos-export-0"),
        file(b"a/eos-export-0/plan", b"1"),
        file(b"a/eos-export-f", b"2"),
    ]
    assert run(made(*renamed), dest)["files_written"] == 2
    assert (dest / "a/eos-export-0/plan").read_text() == "1"
    assert run(made(*own), tmp_path / "x.tar", "tar")["files_written"] == 2


def test_the_way_out_is_one_command_whatever_the_name_holds(tmp_path: Path) -> None:
    name = "a b'c; touch pwned; $(touch pwned)"
    error = failure(
        made(directory(name.encode()), file(f"{name}/.eos-export-0".encode(), b"1")), tmp_path / "d"
    )
    (tmp_path / "w" / name).mkdir(parents=True)
    (tmp_path / "w" / name / ".eos-export-0").write_text("1")
    command = error.details["hint"].partition("exec_command: ")[2].partition("; then export")[0]
    subprocess.run(["sh", "-c", command], cwd=tmp_path / "w", check=True)
    assert os.listdir(tmp_path / "w") == [name] and os.listdir(tmp_path / "w" / name) == ["eos-export-0"]


def test_a_deletion_of_such_a_name_deletes_nothing_of_the_persons(tmp_path: Path) -> None:
    dest = tmp_path / "d"
    (dest / ".eos-export-mine").mkdir(parents=True)
    (dest / ".eos-export-mine/f").write_text("mine")
    result = run(made(gone(b".eos-export-mine"), file(b"f", b"1")), dest)
    assert (dest / ".eos-export-mine/f").read_text() == "mine" and result["deletes_applied"] == 0


def test_a_name_is_reserved_by_its_beginning_in_any_component() -> None:
    assert reserved(b"a/b.eos-export-1/c") is None and reserved(b"a/.eos-export") is None
    assert reserved(b".eos-export-1") == b".eos-export-1"
    assert reserved(b"a/.eos-export-1/b/.eos-export-2") == b"a/.eos-export-1"


NO_PATHS = (
    b"..",
    b"../x",
    b"a/../x",
    b"a/..",
    b"",
    b".",
    b"./x",
    b"a//b",
    b"a/",
    b"/",
    b"/x",
    b"/etc/passwd",
    b"a/./b",
    b"x\0y",
)


def test_no_path_leads_out_of_a_tree(tmp_path: Path) -> None:
    (tmp_path / "d/a").mkdir(parents=True)
    (tmp_path / "x").write_text("outside")
    (tmp_path / "d/a/b").write_text("inside")
    tree, other = DirTree(str(tmp_path / "d")), DirTree(str(tmp_path))
    calls: tuple[Callable[[bytes], object], ...] = (
        tree.parent,
        tree.lstat,
        tree.open_file,
        tree.readlink,
        tree.remove,
        tree.below,
        lambda path: tree.chmod(path, 0o777),
        lambda path: tree.move(path, other, b"taken"),
        lambda path: other.move(b"x", tree, path),
        lambda path: other.link(b"x", tree, path),
        lambda path: tree.link(path, other, b"linked"),
    )
    try:
        for path in NO_PATHS:
            for call in calls:
                with pytest.raises(OSError, match="no path below") as caught:
                    call(path)
                assert caught.value.errno == 22, (path, call)
    finally:
        tree.close()
        other.close()
    assert shape(tmp_path) == {
        b"d": ("d", 0o755, b""),
        b"d/a": ("d", 0o755, b""),
        b"d/a/b": ("f", 0o644, b"inside"),
        b"x": ("f", 0o644, b"outside"),
    }


def test_no_plan_names_what_an_export_may_not_change(tmp_path: Path) -> None:
    home = DirTree(str(tmp_path))
    stage = ExportStage.create(journals(), home, str(tmp_path), str(tmp_path), "")
    try:
        for path in (*NO_PATHS, b".eos-export-1", b"a/.eos-export-1/b"):
            for letter in (b"f", b"h", b"l", b"d", b"w"):
                with pytest.raises(OSError, match="no path"):
                    stage.add(Step(letter, False, 0, None, path))
        for path in NO_PATHS:
            with pytest.raises(OSError, match="no path"):
                stage.add_clear(path)
        assert len(stage) == 0 and stage.clears() == []
    finally:
        stage.destroy()
        home.close()
    assert os.listdir(tmp_path) == [] and records() == []


def test_a_symlink_that_takes_the_place_of_a_directory_on_the_way_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "real/d").mkdir(parents=True)
    (tmp_path / "link").symlink_to("real")
    with pytest.raises(NotADirectoryError):
        DirTree(str(tmp_path / "link/d"))


# workspaces


def copied(workspace: Path, cache: Path) -> base.BaseTree:
    return base.prepare(
        str(workspace), str(cache), check_idle=lambda: roll_back_killed(str(workspace), journals())
    )


def test_a_sandbox_over_a_half_done_export_gets_the_workspace_as_it_was_before(tmp_path: Path) -> None:
    fill(tmp_path / "d")
    before = shape(tmp_path / "d")
    for name in ("export.sync", "export.in", "export.sync_names", "export.done"):
        assert killed_at(name, 1, tmp_path / "d")
        tree = copied(tmp_path / "d", tmp_path / "cache")
        assert (
            shape(tree.source) == before == shape(tmp_path / "d") and tree.warnings == () and records() == []
        )
    assert killed_at("export.sync_names", 1, tmp_path / "new")
    roll_back_killed(str(tmp_path / "new"), journals())
    assert not (tmp_path / "new").exists() and records() == []


def test_a_sandbox_over_a_directory_of_such_a_name_has_all_but_that_and_says_so(tmp_path: Path) -> None:
    dest = tmp_path / "d"
    fill(dest)
    before = shape(dest)
    forge(dest / "src", "../../victim")
    (dest / ".eos-export-f").write_text("a file")
    for _ in range(2):  # the second time by what was remembered
        tree = copied(dest, tmp_path / "cache")
        assert shape(tree.source) == before
        assert [warning.rpartition(" ")[2] for warning in tree.warnings] == [
            ".eos-export-f",
            "src/.eos-export-0",
        ]


def test_a_workspace_is_not_copied_while_an_export_changes_it_but_while_one_is_received(
    tmp_path: Path,
) -> None:
    fill(tmp_path / "d")
    before, seen = shape(tmp_path / "d"), list[str]()

    class Copying(Nth):
        def happen(self) -> None:
            if self.name == "export.ready":
                tree = copied(tmp_path / "d", tmp_path / "cache")
                assert shape(tree.source) == before
                seen.append(tree.warnings[0].rpartition(" ")[2][:12])
            else:
                seen.append(failure_of(lambda: copied(tmp_path / "d", tmp_path / "cache")))

    run(made(*DELTA), tmp_path / "d", step=Copying("export.ready", 1))
    fsync.remove_tree(str(tmp_path / "d"))
    fill(tmp_path / "d")
    run(made(*DELTA), tmp_path / "d", step=Copying("export.in", 2))
    assert seen == [".eos-export-", "in_flight"] and records() == []


# times


def test_a_file_that_is_there_to_the_second_keeps_its_nanoseconds_and_any_other_gets_the_heads(
    tmp_path: Path,
) -> None:
    dest = tmp_path / "d"
    dest.mkdir()
    for name, ns in (("same", 7 * SECOND + 5), ("older", 6 * SECOND + 999_999_999)):
        (dest / name).write_text("x")
        os.utime(dest / name, ns=(0, ns))
    head = 7 * SECOND + 123
    result = run(made(*(file(name, b"x", mtime_ns=head) for name in (b"older", b"same"))), dest)
    assert (
        os.lstat(dest / "same").st_mtime_ns == 7 * SECOND + 5 and os.lstat(dest / "older").st_mtime_ns == head
    )
    assert (result["skipped_unchanged"], result["files_written"]) == (1, 1)


def test_a_record_is_looked_for_in_its_own_directory_only(tmp_path: Path) -> None:
    """Another gateway's export: its journal is left to it, and named."""
    fill(tmp_path / "d")
    assert killed_at("export.sync_names", 1, tmp_path / "d")
    (staging,) = (tmp_path / "d").glob(".eos-export-*")
    other = voucher.find_records(str(tmp_path / "other-state"), str(tmp_path / "d"))
    assert (other.dead, other.alive) == ([], [])
    assert recover(str(tmp_path / "d"), str(tmp_path / "other-state")) == [] and staging.exists()
    assert recover(str(tmp_path / "d"), journals()) == ["rolled_back"]
