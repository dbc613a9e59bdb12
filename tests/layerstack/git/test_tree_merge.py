"""Tree merge: the same trees and the same paths in conflict as the real git, on random and chosen trees."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from layerstack.git.object_format import FORMATS, SHA1
from layerstack.git.objects import Objects
from layerstack.git.tree_merge import MergedTree, TreeConflict, merge_trees
from layerstack.model.conflict import Hunk
from tests.git_layouts import edit_layout, layout
from tests.git_merges import Files, ThreeTrees, commit_cases, merge_by_git
from tests.git_trees import DiskTree, repository
from tests.git_versions import newest

Case = tuple[Files, Files, Files]


def text(_: bytes) -> str:
    return "text"


def merged(folder: Path, trees: ThreeTrees, fmt: str = "sha1") -> MergedTree:
    with Objects(".git", [DiskTree(folder)], FORMATS[fmt]) as objects:
        found = merge_trees(objects, *trees.ids, text)
        assert found.tree is not None or not objects.new
        return found


def drops_an_edit(case: Case, found: MergedTree) -> bool:
    """Recognize the merges of `test_an_edit_of_a_file_that_was_renamed_onto_an_equal_one_is_a_conflict`."""
    paths = [one.path.decode() for one in found.conflicts if one.was is not None]
    return bool(paths) and all(case[1].get(path) == case[2].get(path) is not None for path in paths)


def compare(folder: Path, cases: dict[str, Case], fmt: str = "sha1") -> int:
    """Merge each case by git and by ours; return the number of clean ones."""
    where = repository(folder, fmt=fmt)
    clean = 0
    for name, trees in commit_cases(where, cases).items():
        expected = merge_by_git(where, name)
        found = merged(where, trees, fmt)
        if expected.clean and found.conflicts and drops_an_edit(cases[name], found):
            continue
        seen = "" if found.tree is None else found.tree.hex()
        assert seen == (expected.tree if expected.clean else ""), (name, cases[name])
        assert {one.path for one in found.conflicts} == expected.conflicts, (name, cases[name])
        clean += expected.clean
    return clean


def random_case(seed: int, size: int) -> Case:
    rng = random.Random(seed)
    base = layout(rng, rng.randint(1, size))
    both = edit_layout(rng, base, rng.choice([0, 0, 1]))
    most = rng.choice([1, 2, 4, 8])
    sides = [edit_layout(rng, both, rng.randint(0, most)) for _ in range(2)]
    return base, sides[0], sides[1]


def test_random_trees_merge_as_git_merges_them(tmp_path: Path) -> None:
    cases = {f"c{seed}": random_case(seed, 12 if seed % 2 else 30) for seed in range(40)}
    assert 20 < compare(tmp_path / "r", cases) < 38


@pytest.mark.soak
@pytest.mark.parametrize("start", range(0, 10_000, 500))
def test_thousands_of_random_trees_merge_as_git_merges_them(tmp_path: Path, start: int) -> None:
    compare(tmp_path / "r", {f"c{seed}": random_case(seed, 20) for seed in range(start, start + 500)})


LINES = [b"line %d\n" % n for n in range(20)]


def lines(*changed: int) -> bytes:
    """Make a text of which some lines are changed."""
    return b"".join(b"new %d\n" % n if n in changed else line for n, line in enumerate(LINES))


T = lines()
SIX = {f"a{n}": lines(n) for n in range(6)}
MOVED = {f"x{n}": b"%d\n" % n for n in range(3)}
CHOSEN: dict[str, Case] = {
    "six-equal-candidates": (SIX, {"z": T}, {path: data + b"more\n" for path, data in SIX.items()}),
    "a-file-that-matters-for-its-folder": (
        {"d/a": lines(1), "d/b": lines(1, 2, 3)},
        {"e/c": T},
        {"d/a": lines(1), "d/b": lines(1, 2, 3) + b"more\n", "d/n": b"n\n"},
    ),
    "a-file-whose-folder-has-a-known-place": (
        {"d/a": lines(1), "d/b": lines(1, 2, 3)} | {f"d/{name}": data for name, data in MOVED.items()},
        {"e/c": T} | {f"e/{name}": data for name, data in MOVED.items()},
        {"d/a": lines(1), "d/b": lines(1, 2, 3) + b"more\n", "d/n": b"n\n"}
        | {f"d/{name}": data for name, data in MOVED.items()},
    ),
    "a-folder-with-two-places": (
        {"d/p": b"p\n", "d/q": b"q\n", "d/Makefile": T, "k/Makefile": b"k\n" + lines(5)},
        {"w/m1/p": b"p\n", "w/m8/q": b"q\n", "w/m1/Makefile": lines(1), "w/m8/Makefile": lines(2)},
        {"d/p": b"p\n", "d/q": b"q\n", "d/Makefile": lines(9), "k/Makefile": b"k\n" + lines(5)},
    ),
    "one-side": ({"a": T}, {"a": T, "d/n": b"n\n"}, {"a": lines(1)}),
    "content": ({"a": T}, {"a": lines(1)}, {"a": lines(10)}),
    "content-conflict": ({"a": T}, {"a": lines(1)}, {"a": T.replace(b"line 1\n", b"their\n")}),
    "rename-modify": ({"a": T, "k": b"k\n"}, {"b": T, "k": b"k\n"}, {"a": lines(3), "k": b"k\n"}),
    "both-rename-and-modify": ({"a": T}, {"b": lines(1)}, {"b": lines(12)}),
    "folder-renamed-file-edited": (
        {f"old/f{n}": b"%d\n" % n + T for n in range(4)},
        {f"new/f{n}": b"%d\n" % n + T for n in range(4)},
        {f"old/f{n}": b"%d\n" % n + (lines(2) if n == 1 else T) for n in range(4)},
    ),
    "folder-renamed-file-added": (
        {f"old/f{n}": b"%d\n" % n + T for n in range(4)},
        {f"new/f{n}": b"%d\n" % n + T for n in range(4)},
        {f"old/f{n}": b"%d\n" % n + T for n in range(4)} | {"old/added": b"x\n"},
    ),
    "same-file-in-two-folders": (
        {"a/Makefile": b"a\n" + T, "b/Makefile": b"b\n" + T, "a/x": b"1\n", "b/x": b"2\n"},
        {"c/Makefile": b"a\n" + lines(1), "d/Makefile": b"b\n" + lines(1), "c/x": b"1\n", "d/x": b"2\n"},
        {"a/Makefile": b"a\n" + lines(9), "b/Makefile": b"b\n" + lines(8), "a/x": b"1\n", "b/x": b"2\n"},
    ),
    "rename-delete": ({"a": T, "k": b"k\n"}, {"b": T, "k": b"k\n"}, {"k": b"k\n"}),
    "renamed-twice": ({"a": T}, {"b": T}, {"c": T}),
    "two-to-one": (
        {"a": T, "b": b"z\n" + lines(5, 6)},
        {"c": T, "b": b"z\n" + lines(5, 6)},
        {"a": T, "c": b"z\n"},
    ),
    "rename-add": ({"a": T}, {"b": T}, {"a": lines(1), "b": b"other\n"}),
    "add-add": ({"k": b"k\n"}, {"k": b"k\n", "n": b"1\n"}, {"k": b"k\n", "n": b"2\n"}),
    "add-add-empty": ({"k": b"k\n"}, {"k": b"k\n", "n": b""}, {"k": b"k\n", "n": b"2\n"}),
    "add-add-modes": ({"k": b"k\n"}, {"n": ("100755", b"1\n")}, {"n": b"1\n"}),
    "modify-delete": ({"a": T, "b": T}, {"a": lines(1), "b": T}, {"b": T}),
    "both-delete": ({"a": T, "b": T}, {"b": T}, {"b": T}),
    "modes": ({"a": T}, {"a": ("100755", T)}, {"a": lines(1)}),
    "binary": ({"a": b"\0a"}, {"a": b"\0b"}, {"a": b"\0c"}),
    "symlinks": ({"a": ("120000", b"x")}, {"a": ("120000", b"y")}, {"a": ("120000", b"z")}),
    "type": ({"a": T}, {"a": ("120000", b"x")}, {"a": lines(1)}),
    "submodule-one-side": (
        {"s": ("160000", b"1" * 40)},
        {"s": ("160000", b"2" * 40)},
        {"s": ("160000", b"1" * 40), "n": b"n\n"},
    ),
    "submodules": ({"s": ("160000", b"1" * 40)}, {"s": ("160000", b"2" * 40)}, {"s": ("160000", b"3" * 40)}),
    "file-to-folder": ({"a": T}, {"a/b": T}, {"a": lines(1)}),
    "file-against-folder": ({"k": b"k\n"}, {"k": b"k\n", "a": b"1\n"}, {"k": b"k\n", "a/b": b"2\n"}),
    "all-deleted": ({"a": T, "b": b"b\n"}, {"b": b"b\n"}, {"a": T}),
    "order-of-names": (
        {"a/x": b"1\n", "a-b": b"2\n", "a.c": b"3\n"},
        {"a/x": b"1\n", "a/y": b"y\n", "a-b": b"2\n", "a.c": b"3\n"},
        {"a/x": b"1\n", "a-b": b"4\n", "a.c": b"3\n", "a0": b"5\n"},
    ),
    "equal-files-moved": (
        {f"d{n}/f": T for n in range(6)},
        {f"e{n}/f": T for n in (3, 1, 2, 0, 5, 4)},
        {f"d{n}/f": lines(n) for n in range(6)},
    ),
}


@pytest.mark.parametrize("fmt", ["sha1", "sha256"])
def test_chosen_trees_merge_as_git_merges_them(tmp_path: Path, fmt: str) -> None:
    def wide(files: Files) -> Files:
        return {
            path: (value[0], value[1].ljust(64, b"0"))
            if isinstance(value, tuple) and value[0] == "160000"
            else value
            for path, value in files.items()
        }

    cases = CHOSEN if fmt == "sha1" else {n: (wide(b), wide(o), wide(t)) for n, (b, o, t) in CHOSEN.items()}
    assert compare(tmp_path / "r", cases, fmt) > 10


CLASSES = {
    "content-conflict": {b"a": "content"},
    "rename-delete": {b"b": "modify_delete"},
    "renamed-twice": {b"a": "rename_rename", b"b": "rename_rename", b"c": "rename_rename"},
    "rename-add": {b"b": "add_add"},
    "add-add": {b"n": "add_add"},
    "modify-delete": {b"a": "modify_delete"},
    "binary": {b"a": "binary"},
    "symlinks": {b"a": "symlink"},
    "type": {b"a": "type"},
    "submodules": {b"s": "submodule"},
    "file-against-folder": {b"a": "directory_file"},
}


@pytest.fixture(scope="module")
def chosen(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, dict[str, ThreeTrees]]]:
    where = repository(tmp_path_factory.mktemp("chosen") / "r")
    yield where, commit_cases(where, CHOSEN)


def test_a_conflict_has_the_class_of_what_happened(chosen: tuple[Path, dict[str, ThreeTrees]]) -> None:
    where, trees = chosen
    found = {name: merged(where, trees[name]).conflicts for name in CLASSES}
    assert {name: {one.path: one.cls for one in those} for name, those in found.items()} == CLASSES


def test_a_conflict_after_a_rename_names_both_paths_and_the_lines(tmp_path: Path) -> None:
    where = repository(tmp_path / "r")
    case: Case = {"d/a": T}, {"e/b": lines(4)}, {"d/a": T.replace(b"line 4\n", b"their\n")}
    (conflict,) = merged(where, commit_cases(where, {"c": case})["c"]).conflicts
    assert isinstance(conflict, TreeConflict)
    assert (conflict.path, conflict.was, conflict.cls) == (b"e/b", b"d/a", "content")
    assert [(one.to, one.by) for one in conflict.renamed] == [("e/b", "ours")]
    assert conflict.hunks == (Hunk((5, 1), (5, 1), (5, 1)),)
    names = [one and one.name for one in (conflict.base, conflict.ours, conflict.theirs)]
    assert names == [b"a", b"b", b"a"]


def test_an_edit_of_a_file_that_was_renamed_onto_an_equal_one_is_a_conflict(tmp_path: Path) -> None:
    """Git 2.39 calls this merge clean, and the edit of theirs is in no file of the result."""
    where = repository(tmp_path / "r")
    renamed, edit = lines(1), lines(15)
    case: Case = {"a": T}, {"b": renamed}, {"a": edit, "b": renamed}
    back: Case = case[0], case[2], case[1]
    for name, trees in commit_cases(where, {"c": case, "d": back}).items():
        assert [(one.path, one.cls) for one in merged(where, trees).conflicts] == [(b"b", "add_add")]
        assert merge_by_git(where, name).clean


@pytest.mark.parametrize(
    ("driver", "cls"), [("union", None), ("binary", "binary"), ("unset", "binary"), ("mine", "content")]
)
def test_a_driver_decides_how_contents_merge(
    chosen: tuple[Path, dict[str, ThreeTrees]], driver: str, cls: str | None
) -> None:
    where, trees = chosen
    with Objects(".git", [DiskTree(where)], SHA1) as objects:
        found = merge_trees(objects, *trees["content-conflict"].ids, lambda _: driver)
        assert [one.cls for one in found.conflicts] == ([] if cls is None else [cls])
        if found.tree is not None:
            (row,) = objects.tree(found.tree)
            assert objects.read(row.oid)[1] == lines(1).replace(b"new 1\n", b"new 1\ntheir\n")


def test_directories_that_only_one_side_changed_are_not_read(tmp_path: Path) -> None:
    where = repository(tmp_path / "r")
    base = {f"d{n}/f{m}": b"%d %d\n" % (n, m) for n in range(20) for m in range(3)}
    ours, theirs = base | {"d3/f1": b"ours\n", "d4/f1": b"o\n"}, base | {"d5/f1": b"t\n", "d4/f2": b"t\n"}
    trees = commit_cases(where, {"c": (base, ours, theirs)})["c"]
    read: list[bytes] = []

    class Counting(Objects):
        def read(self, oid: bytes, kind: str | None = None) -> tuple[str, bytes]:
            read.append(oid)
            return super().read(oid, kind)

    with Counting(".git", [DiskTree(where)], SHA1) as objects:
        found = merge_trees(objects, *trees.ids, text)
    assert found.tree is not None and found.tree.hex() == merge_by_git(where, "c").tree
    assert len(read) == 6  # three trees at the top, three of d4


@pytest.mark.soak
def test_the_newest_git_merges_files_without_a_last_newline_alike(tmp_path: Path) -> None:
    version = newest()
    where = repository(tmp_path / "r")
    cases: dict[str, Case] = {
        "short": ({"a": b"a short file"}, {"b": b"a short file\nx"}, {"a": b"a short file\n"}),
        "long": ({"a": T + b"end"}, {"b": lines(1) + b"end"}, {"a": lines(9) + b"end"}),
    }
    for name, trees in commit_cases(where, cases).items():
        expected = merge_by_git(where, name, version.environment)
        found = merged(where, trees)
        assert (found.tree is not None) == expected.clean
