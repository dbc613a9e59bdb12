"""What a person changed in the destination is theirs: refused, kept or written over as they say, whatever the
export knows of the base.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import sqlite3
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from eos_agent.wire.protocol import OperationError
from eos_mcp.export import facts, guard
from eos_mcp.export.rules import ExportRules
from layerstack.export import pax
from layerstack.kernel.content import BLOCK
from tests import in_namespace
from tests.eos_mcp.export_runs import DELTA, STEPS, Killer, failure, fill, run, shape
from tests.export_streams import SECOND, Stack, directory, file, gone, hard_link, made_by_digests, symlink
from tests.sparse_files import hole
from tests.trees import DIRECTORY, FILE, LINK, Entry, write_tree

Entries = tuple[tuple[pax.Header, bytes], ...]
KNOWN = pytest.mark.parametrize(
    "known", ["copy", "sandbox"], ids=["a copy of the base here", "the sandbox tells of its base"]
)


class Project:
    """A workspace, the copy that a sandbox was made from, and exports to it or to another directory."""

    def __init__(self, root: Path, known: str = "copy") -> None:
        self.root, self.known = root, known
        self.workspace, self.base = root / "w", root / "base"
        self.dest = self.workspace

    def begin(self) -> None:
        """The sandbox is made."""
        shutil.copytree(self.workspace, self.base, symlinks=True)

    def rules(self, **more: Any) -> ExportRules:
        record = facts.place_of(str(self.root / "records"), "eos-1", str(self.dest))
        usual: dict[str, Any] = {"git": "auto", "on_conflict": "fail", "allow_unsafe": False}
        usual.update(workspace=str(self.workspace), record=record)
        return ExportRules(**(usual | more))

    def stream(self, entries: Entries) -> bytes:
        if self.known == "copy":
            return made_by_digests(*entries)
        from_sandbox: list[tuple[pax.Header, bytes]] = []
        for path in sorted(self.base.rglob("*")):
            name = os.fsencode(os.path.relpath(path, self.base))
            from_sandbox.append(
                (pax.Header(name, pax.FILE, 0o644, kind=pax.BASE, of_base=state_of(path)), b"")
            )
        return made_by_digests(*from_sandbox, *entries, header={"base": True})

    def export(
        self, *entries: tuple[pax.Header, bytes], dry_run: bool = False, **rules: Any
    ) -> dict[str, Any]:
        base = str(self.base) if self.known == "copy" else None
        return run(self.stream(entries), self.dest, base=base, rules=self.rules(**rules), dry_run=dry_run)

    def refused(self, *entries: tuple[pax.Header, bytes], **rules: Any) -> list[tuple[str, str]]:
        """The conflicts of an export, which a dry run foretells and which leaves all as it was."""
        before = shape(self.dest)
        foretold = self.export(*entries, dry_run=True, **rules)
        with pytest.raises(OperationError) as caught:
            self.export(*entries, **rules)
        error = caught.value
        assert error.details["reason"] == "export_conflict" and shape(self.dest) == before
        assert foretold["would_conflict"] == error.details["conflicts"]
        assert (
            foretold["would_conflict_count"]
            == error.details["conflict_count"]
            == len(error.details["conflicts"])
        )
        return [(row["path"], row["differs"]) for row in error.details["conflicts"]]


def state_of(path: Path) -> bytes:
    found = path.lstat()
    if stat.S_ISDIR(found.st_mode):
        return b"d"
    if stat.S_ISLNK(found.st_mode):
        return b"l:" + hashlib.sha256(os.fsencode(os.readlink(path))).hexdigest().encode()
    return b"f:%d:%d:%s" % (
        found.st_size,
        found.st_mtime_ns,
        hashlib.sha256(path.read_bytes()).hexdigest().encode(),
    )


@pytest.fixture
def project(tmp_path: Path) -> Callable[..., Project]:
    def make(known: str = "copy", copy: bool = False) -> Project:
        made = Project(tmp_path, known)
        fill(made.workspace)
        made.begin()
        if copy:
            made.dest = tmp_path / "copy"
            shutil.copytree(
                made.workspace, made.dest, symlinks=True, copy_function=shutil.copyfile
            )  # as `cp -r`: without times
        return made

    return make


ONTO = pytest.mark.parametrize(
    "copy", [False, True], ids=["onto the workspace", "onto a copy with other times"]
)


@KNOWN
@ONTO
def test_an_untouched_destination_gets_all_without_a_word_and_again(
    project: Callable[..., Project], known: str, copy: bool
) -> None:
    at = project(known, copy)
    first = at.export(*DELTA)
    assert not {"left_out", "kept_back", "overwritten", "unsafe", "would_conflict"} & first.keys()
    assert at.export(*DELTA)["files_written"] == 0
    later = (file(b"linked", b"another", 0o755), file(b"was-dir", b"later", mtime_ns=9), gone(b"was-file"))
    assert at.export(*later)["files_written"] == 2
    assert (at.dest / "was-dir").read_bytes() == b"later" and not (at.dest / "was-file").exists()


@KNOWN
@ONTO
def test_each_way_in_which_the_person_differs_is_a_conflict_and_named(
    project: Callable[..., Project], known: str, copy: bool
) -> None:
    at = project(known, copy)
    dest = at.dest
    (dest / "src/a").write_text("mine")
    (dest / "src/gone").write_text("GONE")  # as long as it was
    (dest / "gone/f").write_text("edited below what is deleted")
    (dest / "gone/mine").write_text("new below what is deleted")
    (dest / "gone/__pycache__").mkdir()
    (dest / "gone/__pycache__/f.cpython-311.pyc").write_bytes(b"made again by itself")
    (dest / "gone/__pycache__/notes.txt").write_text("no program makes it again")
    (dest / "gone/__pycache__/planned.py").write_text("nor this")
    (dest / "old/deep/mine").write_text("new below an opaque directory")
    (dest / "src/kept").write_text("edited, but the export leaves it alone")
    (dest / "linked").write_text("made by both")
    (dest / "new").symlink_to("src")
    (dest / "was-dir/f").unlink()
    (dest / "was-dir/f").symlink_to("f")
    (dest / "was-link").unlink()
    (dest / "was-link").write_text("a file now")
    assert at.refused(*DELTA) == [
        ("gone/__pycache__/notes.txt", "created"),
        ("gone/__pycache__/planned.py", "created"),
        ("gone/f", "edited"),
        ("gone/mine", "created"),
        ("linked", "created"),
        ("new", "created"),
        ("src/a", "edited"),
        ("src/gone", "edited"),
        ("was-dir/f", "kind"),
        ("was-link", "kind"),
        ("old/deep/mine", "created"),
    ]


def test_a_file_that_the_person_deleted_is_a_conflict_in_the_workspace_and_written_elsewhere(
    project: Callable[..., Project],
) -> None:
    at = project()
    os.unlink(at.dest / "src/a")
    assert at.refused(directory(b"src"), file(b"src/a", b"new")) == [("src/a", "deleted")]
    kept = at.export(directory(b"src"), file(b"src/a", b"new"), file(b"z", b"z"), on_conflict="keep")
    assert kept["kept_back"] == ["src/a"] and not (at.dest / "src/a").exists() and (at.dest / "z").exists()
    assert at.refused(directory(b"src"), file(b"src/a", b"newer")) == [("src/a", "deleted")], "it stays known"
    at.dest = at.root / "other"
    at.dest.mkdir()
    (at.dest / "something").write_text("")
    assert at.export(directory(b"src"), file(b"src/a", b"new"))["files_written"] == 1


@ONTO
def test_what_the_sandbox_made_and_removed_again_goes_with_the_next_export(
    project: Callable[..., Project], copy: bool
) -> None:
    """A file that an export brought and the version has no more: neither the base nor the delta speaks of
    it.
    """
    at = project(copy=copy)
    brought = (
        file(b"brought", b"1"),
        directory(b"dir"),
        file(b"dir/edited", b"1"),
        file(b"dir/gone", b"1"),
        symlink(b"link", b"src"),
    )
    at.export(*brought, directory(b"src"), file(b"src/a", b"1"), file(b"stays", b"1"))
    (at.dest / "dir/edited").write_text("mine now")
    (at.dest / "mine").write_text("mine")
    (at.dest / "src/a").write_text((at.base / "src/a").read_text())  # what the base has is never taken away
    foretold = at.export(file(b"stays", b"1"), dry_run=True)
    done = at.export(file(b"stays", b"1"))
    assert (
        sorted(change["path"] for change in foretold["changes"]) == ["brought", "dir/gone", "link"]
        and done["deletes_applied"] == 3
    )
    there = shape(at.dest)
    assert (
        not {b"brought", b"dir/gone", b"link"} & there.keys()
        and {b"dir/edited", b"mine", b"src/a", b"stays", b"src/kept"} <= there.keys()
    )
    again = at.export(file(b"brought", b"2"), file(b"stays", b"1"))
    assert again["files_written"] == 1 and again["deletes_applied"] == 0


def test_a_directory_that_goes_as_a_whole_takes_what_an_export_brought_into_it(
    project: Callable[..., Project],
) -> None:
    at = project()
    at.export(directory(b"gone"), file(b"gone/brought", b"1"), directory(b"src"), file(b"src/brought", b"1"))
    done = at.export(gone(b"gone"), file(b"src", b"a file now"))
    assert (
        (at.dest / "src").read_text() == "a file now"
        and not (at.dest / "gone").exists()
        and done["deletes_applied"] == 1
    )


def test_what_the_person_closed_to_others_stays_closed(project: Callable[..., Project]) -> None:
    """Content comes, permissions of group and others that they took away do not."""
    at = project()
    (at.dest / "src").chmod(0o700)
    (at.dest / "src/a").chmod(0o600)
    (at.dest / "was-file").chmod(0o640)
    entries = (
        directory(b"src", 0o755),
        file(b"src/a", b"new", 0o755),
        file(b"src/fresh", b"", 0o644),
        file(b"was-file", b"other", 0o644),
    )
    at.export(*entries)
    at.export(*entries)
    modes = {
        name: stat.S_IMODE(os.lstat(at.dest / name).st_mode)
        for name in ("src", "src/a", "src/fresh", "was-file")
    }
    assert modes == {"src": 0o700, "src/a": 0o711, "src/fresh": 0o644, "was-file": 0o640}
    assert (at.dest / "src/a").read_text() == "new"


@KNOWN
def test_the_same_change_made_by_both_is_none(project: Callable[..., Project], known: str) -> None:
    at = project(known)
    (at.dest / "src/a").write_text("new a")
    shutil.rmtree(at.dest / "gone")
    (at.dest / "linked").write_bytes(b"linked")
    (at.dest / "src/link").symlink_to("a")
    assert at.export(*DELTA)["deletes_applied"] == 2


@KNOWN
def test_keep_leaves_the_persons_version_and_says_what_it_kept_back(
    project: Callable[..., Project], known: str
) -> None:
    at = project(known)
    dest = at.dest
    (dest / "gone/mine").write_text("new below what is deleted")
    (dest / "linked").write_text("mine")
    (dest / "old/deep/mine").write_text("mine")
    (dest / "new").write_text("a file where a directory comes")
    (dest / "src/a").write_text("mine")
    before = shape(dest)
    foretold = at.export(*DELTA, on_conflict="keep", dry_run=True)
    done = at.export(*DELTA, on_conflict="keep")
    assert done["kept_back"] == [
        "gone",
        "linked",
        "new",
        "new/deeper",
        "new/deeper/f",
        "src/a",
        "old/deep/mine",
    ]
    assert {key: foretold[key] for key in done} == done and done["kept_back_count"] == 7
    after = shape(dest)
    for path in (b"gone/mine", b"gone/f", b"linked", b"new", b"src/a", b"old/deep/mine"):
        assert after[path] == before[path]
    assert after[b"linked-2"] == ("f", 0o755, b"linked"), (
        "another name of a file that was kept back has that file's bytes"
    )
    assert b"old/hidden" not in after and b"old/deep/x" not in after and after[b"was-dir"][2] == b"now a file"
    kept = {"gone/mine", "linked", "new", "src/a", "old/deep/mine"}
    assert {path for path, _ in at.refused(*DELTA)} == kept, "the next export still knows"
    lost = at.export(*DELTA, on_conflict="overwrite")
    assert {row["path"] for row in lost["overwritten"]} == kept and lost["overwritten_count"] == 5
    assert "kept_back" not in at.export(*DELTA) and not (dest / "gone").exists()


@KNOWN
@ONTO
def test_what_was_changed_since_an_export_is_a_conflict_and_what_it_left_is_none(
    project: Callable[..., Project], known: str, copy: bool
) -> None:
    at = project(known, copy)
    first = (
        file(b"fresh", b"1"),
        gone(b"gone"),
        directory(b"src"),
        file(b"src/a", b"1"),
        symlink(b"way", b"src"),
    )
    second = (
        file(b"fresh", b"2"),
        gone(b"gone"),
        directory(b"src"),
        file(b"src/a", b"2"),
        symlink(b"way", b"old"),
    )
    at.export(*first)
    for name in ("fresh", "src/a"):
        os.utime(at.dest / name, ns=(0, 77 * SECOND))  # touched, not edited
    at.export(*second)
    (at.dest / "fresh").write_text("mine")
    (at.dest / "gone").mkdir()
    (at.dest / "gone/f").write_text("again, and other")
    os.unlink(at.dest / "src/a")
    os.unlink(at.dest / "way")
    (at.dest / "way").symlink_to("elsewhere")
    third = (
        file(b"fresh", b"3"),
        gone(b"gone"),
        directory(b"src"),
        file(b"src/a", b"3"),
        symlink(b"way", b"gone"),
    )
    assert at.refused(*third) == [
        ("fresh", "edited"),
        ("gone/f", "created"),
        ("src/a", "deleted"),
        ("way", "edited"),
    ]


def test_another_branch_and_a_directory_made_again_are_not_taken_for_deletions(
    project: Callable[..., Project],
) -> None:
    at = project(copy=True)
    (at.dest / ".git").mkdir()
    (at.dest / ".git/HEAD").write_text("ref: refs/heads/agent\n")
    first, second = (
        (directory(b"src"), file(b"src/a", text), file(b"src/fresh", text)) for text in (b"first", b"second")
    )
    at.export(*first)
    shutil.copyfile(at.base / "src/a", at.dest / "src/a")
    os.unlink(at.dest / "src/fresh")
    assert at.refused(*second) == [("src/fresh", "deleted")]
    (at.dest / ".git/HEAD").write_text("ref: refs/heads/main\n")
    assert at.export(*second)["files_written"] == 2
    shutil.rmtree(at.dest)
    at.dest.mkdir()
    assert at.export(*second)["files_written"] == 2
    shutil.rmtree(at.dest)
    assert at.export(*first)["files_written"] == 2, "what an earlier export left is gone with the directory"


@pytest.mark.parametrize("edit", ["in place", "by rename", "deleted and made again", "below what is deleted"])
def test_what_changes_while_it_is_exported_is_put_back(project: Callable[..., Project], edit: str) -> None:
    """The person saves a file after it was compared, before everything is in place."""
    at = project()

    def save(name: str) -> None:
        if name != "export.ready":
            return
        mine = at.dest / ("gone/f" if edit == "below what is deleted" else "src/a")
        if edit == "by rename":
            (at.dest / "src/.a.swp").write_text("mine")
            os.rename(at.dest / "src/.a.swp", mine)
        else:
            if edit == "deleted and made again":
                mine.unlink()
            mine.write_text("mine")

    with pytest.raises(OperationError) as caught:
        run(at.stream(DELTA), at.dest, base=str(at.base), rules=at.rules(), step=save)
    assert caught.value.details["reason"] == "export_conflict" and caught.value.details["retryable"]
    after, base = shape(at.dest), shape(at.base)
    changed = b"gone/f" if edit == "below what is deleted" else b"src/a"
    assert after.pop(changed)[2] == b"mine"
    del base[changed]
    assert after == base
    assert at.refused(*DELTA) == [(os.fsdecode(changed), "edited")], (
        "and the next one says so before it begins"
    )


def test_a_file_that_appears_while_it_is_exported_is_put_back(project: Callable[..., Project]) -> None:
    at = project()
    with pytest.raises(OperationError) as caught:
        run(
            at.stream(DELTA),
            at.dest,
            base=str(at.base),
            rules=at.rules(),
            step=_then("export.ready", lambda: (at.dest / "linked").write_text("mine")),
        )
    assert caught.value.details["reason"] == "export_conflict"
    assert (at.dest / "linked").read_text() == "mine" and (at.dest / "src/a").read_text() == "old a"


def _then(at: str, do: Callable[[], object]) -> Callable[[str], None]:
    def step(name: str) -> None:
        if name == at:
            do()

    return step


@pytest.mark.parametrize("name", [name for name in STEPS if name.startswith("export.")])
def test_after_a_kill_what_the_killed_export_wrote_is_not_taken_for_the_persons(
    project: Callable[..., Project], name: str
) -> None:
    at = project()
    with pytest.raises(in_namespace.ChildDied):
        in_namespace.call(
            None,
            lambda: run(at.stream(DELTA), at.dest, base=str(at.base), rules=at.rules(), step=Killer(name, 1)),
        )
    at.export(*DELTA)
    at.export(file(b"linked", b"later", 0o755))


def test_a_record_is_private_has_a_format_and_a_later_one_is_refused(project: Callable[..., Project]) -> None:
    at = project()
    at.export(file(b"x", b"x"))
    place = Path(str(at.rules().record))
    assert stat.S_IMODE(place.stat().st_mode) == 0o600 and stat.S_IMODE(place.parent.stat().st_mode) == 0o700
    db = sqlite3.connect(place)
    assert db.execute("pragma user_version").fetchone() == (facts.FORMAT,)
    assert db.execute("select path, slot, letter from fact").fetchall() == [(b"x", 0, "f")]
    db.execute("pragma user_version = 99")
    db.close()
    for spoil in (
        lambda: None,
        lambda: place.write_bytes(b"no database, but longer than the head of one" * 40),
    ):
        spoil()
        with pytest.raises(OperationError) as caught:
            at.export(file(b"x", b"y"))
        assert (
            caught.value.details["reason"] == "export_record_unreadable"
            and str(place) in caught.value.message
        )
        assert (at.dest / "x").read_bytes() == b"x"
    os.rename(place, str(place) + ".aside")  # what the hint says
    assert at.refused(file(b"x", b"y")) == [("x", "created")]
    facts.forget(str(at.root / "records"), "eos-1")
    assert os.listdir(at.root / "records") == []


def test_a_record_that_is_full_drops_earlier_exports_says_so_and_then_asks(
    project: Callable[..., Project], monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (facts, guard):
        monkeypatch.setattr(module, "ROWS_MAX", 3)
    at = project()
    assert "not_recorded" not in at.export(
        file(b"a", b"1"), file(b"b", b"1"), file(b"c", b"1"), directory(b"src")
    )
    for name in ("a", "b"):  # else they would be taken away, and that be on record
        (at.dest / name).write_text("mine")
    done = at.export(file(b"c", b"1"), file(b"d", b"1"))
    assert "is limited to 3: 3 of earlier exports were deleted" in done["not_recorded"]
    assert "not_recorded" not in at.export(file(b"c", b"2"), file(b"d", b"2")), (
        "what it named itself is there"
    )
    assert at.refused(file(b"a", b"2")) == [("a", "created")]
    record = sqlite3.connect(str(at.rules().record))
    assert [path for (path,) in record.execute("select path from fact order by path")] == [b"c", b"d"]
    record.close()


@pytest.mark.parametrize("killed", [None, "export.placed"])
def test_what_a_person_deletes_from_a_new_directory_is_known_after_a_kill_too(
    project: Callable[..., Project], killed: str | None
) -> None:
    """The record of a new directory speaks of it before it has its name: a kill that comes right after leaves
    nothing unsaid.
    """
    at = project()
    at.dest = at.root / "new"
    first = (file(b"a", b"1"), file(b"b", b"1"))
    if killed is None:
        at.export(*first)
    else:
        with pytest.raises(in_namespace.ChildDied):
            in_namespace.call(
                None,
                run,
                at.stream(first),
                str(at.dest),
                base=str(at.base),
                rules=at.rules(),
                step=Killer(killed, 1),
            )
    os.unlink(at.dest / "b")
    assert at.refused(file(b"a", b"2"), file(b"b", b"2")) == [("b", "deleted")]


def test_a_directory_made_after_a_killed_export_is_not_the_one_that_it_was_about_to_make(
    project: Callable[..., Project],
) -> None:
    at = project()
    at.dest = at.root / "new"
    first = (file(b"a", b"1"), file(b"b", b"1"))
    with pytest.raises(in_namespace.ChildDied):
        in_namespace.call(
            None,
            run,
            at.stream(first),
            str(at.dest),
            base=str(at.base),
            rules=at.rules(),
            step=Killer("export.done", 1),
        )
    assert not at.dest.exists()
    at.dest.mkdir()
    (at.dest / "a").write_text("1")
    (at.dest / "mine").write_text("mine")
    done = at.export(file(b"b", b"2"))
    assert (done["files_written"], done["deletes_applied"]) == (1, 0), (
        "b was not deleted there, and a is not this export's to take away"
    )
    assert sorted(os.listdir(at.dest)) == ["a", "b", "mine"]


def test_conflicts_are_listed_up_to_a_bound_and_all_counted(project: Callable[..., Project]) -> None:
    at = project()
    names = [b"n%04d" % n for n in range(250)]
    for name in names:
        (at.dest / os.fsdecode(name)).write_text("mine")
    with pytest.raises(OperationError) as caught:
        at.export(*(file(name, b"new") for name in names))
    assert len(caught.value.details["conflicts"]) == 200 and caught.value.details["conflict_count"] == 250
    assert "and 245 more" in caught.value.message


def test_what_the_sandbox_says_of_its_base_unasked_or_late_is_refused(tmp_path: Path) -> None:
    from_sandbox = (pax.Header(b"f", pax.FILE, 0o644, kind=pax.BASE, of_base=b"d"), b"")
    assert failure(made_by_digests(from_sandbox), tmp_path / "d").details["reason"] == "bad_entry"
    assert (
        failure(made_by_digests(file(b"a"), from_sandbox, header={"base": True}), tmp_path / "d").details[
            "reason"
        ]
        == "bad_entry"
    )
    for state in (b"f:1:2", b"x", b"d:1", b"l:zz", b"f:1:2:" + b"g" * 64, b"f::2:" + b"a" * 64):
        spoilt = (from_sandbox[0]._replace(of_base=state), b"")
        assert (
            failure(made_by_digests(spoilt, header={"base": True}), tmp_path / "d").details["reason"]
            == "bad_stream"
        ), state


def test_a_hard_link_to_what_is_left_out_has_its_bytes(project: Callable[..., Project]) -> None:
    at = project()
    (at.dest / ".git").mkdir()
    at.export(directory(b".git"), file(b".git/x", b"theirs"), hard_link(b"y", b".git/x"))
    assert (at.dest / "y").read_bytes() == b"theirs" and not (at.dest / ".git/x").exists()


@pytest.mark.needs("overlay")
def test_a_store_tells_of_its_base_where_the_delta_decides(
    short_dir: str, in_mount_namespace: Callable[..., Any]
) -> None:
    me = (os.geteuid(), os.getegid())
    base = {name: Entry(DIRECTORY, (0o755, *me)) for name in ("", "gone", "gone/deep")}
    base |= {name: Entry(FILE, (0o644, *me), name.encode()) for name in ("gone/deep/f", "a", "kept")}
    base["gone/l"] = Entry(LINK, (0o777, *me), b"deep")

    def edit(root: str) -> None:
        shutil.rmtree(f"{root}/gone")
        Path(root, "a").write_text("new")
        Path(root, "b").write_text("new")

    def child() -> None:
        stack = Stack(short_dir, base, "trusted" if os.geteuid() == 0 else "user")
        try:
            stack.publish(edit)
            stream = stack.export_by_digests(base=True)
        finally:
            stack.close()
        dest = Path(short_dir, "d")
        write_tree(str(dest), base)
        rules = ExportRules("auto", "fail", False, str(dest))
        (dest / "gone/deep/mine").write_text("")
        with pytest.raises(OperationError) as caught:
            run(stream, dest, rules=rules)
        assert caught.value.details["conflicts"] == [
            {"path": "gone/deep/mine", "differs": "created", "because_of": "gone"}
        ]
        os.unlink(dest / "gone/deep/mine")
        run(stream, dest, rules=rules)
        assert sorted(os.listdir(dest)) == ["a", "b", "kept"] and (dest / "a").read_text() == "new"

    in_mount_namespace(child)


@pytest.mark.parametrize(
    "from_sandbox", [False, True], ids=["a copy of the base here", "the sandbox tells of its base"]
)
def test_files_with_holes_are_compared_like_others(
    short_dir: str, in_mount_namespace: Callable[..., Any], from_sandbox: bool
) -> None:
    """Equal content is no work of the person's, whatever the times and wherever the holes are; `keep` leaves
    what was edited.
    """
    me = (os.geteuid(), os.getegid())
    size = 4 * BLOCK
    base = {"": Entry(DIRECTORY, (0o755, *me))} | {
        n: Entry(FILE, (0o644, *me), bytes(size) + n.encode()) for n in ("changed", "gone", "mine")
    }

    def edit(root: str) -> None:
        os.unlink(f"{root}/gone")
        for name in ("changed", "mine", "new"):
            hole(Path(root, name), 2 * size, {size: b"theirs"})
        os.link(f"{root}/mine", f"{root}/mine too")

    def child() -> None:
        stack = Stack(short_dir, base, "trusted" if os.geteuid() == 0 else "user")
        try:
            stack.publish(edit)
            stream = stack.export_by_digests(base=from_sandbox, holes=True)
        finally:
            stack.close()
        dest, copy = Path(short_dir, "d"), Path(short_dir, "copy")
        for place in (dest, copy):
            write_tree(str(place), base)
        for path in dest.iterdir():
            os.utime(path, (1, 1))
        record = facts.place_of(f"{short_dir}/records", "eos-1", str(dest))
        more: dict[str, Any] = {"base": None if from_sandbox else str(copy)}
        rules = ExportRules("auto", "fail", False, str(dest), record=record)
        (dest / "mine").write_bytes(bytes(size) + b"MINE")
        os.utime(dest / "mine", (1, 1))
        with pytest.raises(OperationError) as caught:
            run(stream, dest, rules=rules, **more)
        assert caught.value.details["conflicts"] == [{"path": "mine", "differs": "edited"}]
        kept = run(stream, dest, rules=rules._replace(on_conflict="keep"), **more)
        assert kept["kept_back"] == ["mine"] and (dest / "mine").read_bytes() == bytes(size) + b"MINE"
        whole = bytes(size) + b"theirs" + bytes(size - 6)
        assert sorted(os.listdir(dest)) == ["changed", "mine", "mine too", "new"]
        assert all((dest / name).read_bytes() == whole for name in ("changed", "new", "mine too"))
        for name in ("changed", "new"):
            (dest / name).write_bytes(whole)  # the same without holes, at another time
            os.utime(dest / name, (2, 2))
        again = run(stream, dest, rules=rules._replace(on_conflict="keep"), **more)
        assert again["kept_back"] == ["mine"]
        done = run(stream, dest, rules=rules._replace(on_conflict="overwrite"), **more)
        assert [row["path"] for row in done["overwritten"]] == ["mine"] and (
            dest / "mine"
        ).read_bytes() == whole

    in_mount_namespace(child)
