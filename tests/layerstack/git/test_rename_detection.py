"""Renames: the scores and the pairs of the real git, and the bounds of the search."""

from __future__ import annotations

import random
import subprocess
from pathlib import Path

import pytest

from layerstack.git.commits import FILE_MODE
from layerstack.git.object_format import SHA1, Oid
from layerstack.git.objects import Objects
from layerstack.git.rename_detection import BY_CONTENT, PathEntry, RenameSearch, SideRename, table_order
from layerstack.git.similarity import SCORE_MAX, Similarity
from layerstack.git.tree_merge import merge_trees
from layerstack.text.myers import Budget
from tests.git_layouts import changed, tied_case
from tests.git_merges import Files, commit_cases
from tests.git_trees import DiskTree, git, repository


def text(_: bytes) -> str:
    return "text"


def stages_by_git(folder: Path, name: str) -> dict[str, list[tuple[int, str]]]:
    """List what git has in conflict: path -> (stage, id of the blob), of files that were not merged yet."""
    words = ["-c", "merge.directoryRenames=false", "merge-tree", "--write-tree", "-z", "--no-messages"]
    try:
        rows = git(folder, *words, f"{name}/ours", f"{name}/theirs")
    except subprocess.CalledProcessError as error:
        assert error.returncode == 1
        rows = error.stdout
    found: dict[str, list[tuple[int, str]]] = {}
    for row in rows.rstrip(b"\0").split(b"\0")[1:]:
        (_, oid, stage), path = row.split(b"\t")[0].decode().split(), row.split(b"\t")[1].decode()
        found.setdefault(path, []).append((int(stage), oid))
    return found


@pytest.mark.parametrize(("folders", "seeds"), [(6, (1, 19, 55)), (20, (2, 12, 29)), (70, (0, 1))])
def test_among_equal_candidates_the_choice_is_that_of_git(
    tmp_path: Path, folders: int, seeds: tuple[int, ...]
) -> None:
    """The entries of each conflict show which files were paired."""
    where = repository(tmp_path / "r")
    cases = {f"c{seed}": tied_case(random.Random(seed), folders) for seed in seeds}
    compared = 0
    for name, trees in commit_cases(where, cases).items():
        with Objects(".git", [DiskTree(where)], SHA1) as objects:
            found = merge_trees(objects, *trees.ids, text)
        expected = stages_by_git(where, name)
        for one in found.conflicts:
            if one.cls in ("content", "modify_delete", "delete_modify"):
                mine = [(n, e.oid.hex()) for n, e in enumerate((one.base, one.ours, one.theirs), 1) if e]
                assert mine == expected[one.path.decode()], (name, one)
                compared += 1
    assert compared


@pytest.mark.soak
@pytest.mark.parametrize("start", range(0, 300, 30))
def test_hundreds_of_ties_are_decided_as_git_decides_them(tmp_path: Path, start: int) -> None:
    where = repository(tmp_path / "r")
    cases = {f"c{seed}": tied_case(random.Random(seed), 70) for seed in range(start, start + 30)}
    for name, trees in commit_cases(where, cases).items():
        with Objects(".git", [DiskTree(where)], SHA1) as objects:
            found = merge_trees(objects, *trees.ids, text)
        assert {one.path.decode() for one in found.conflicts} == {
            path.split("~")[0] for path in stages_by_git(where, name)
        }


def test_scores_are_those_that_git_prints(tmp_path: Path) -> None:
    rng = random.Random(2)
    where = repository(tmp_path / "r")
    old: dict[str, bytes] = {}
    new: dict[str, bytes] = {}
    ends = [b"\n", b"\r\n", b" " * 80 + b"\n", b"\0\n", b"\xff" * 64 + b"\n"]
    for n in range(60):
        end = rng.choice(ends)
        lines = b"".join(b"file %d has line %d%s" % (n, m, end) for m in range(rng.randint(3, 30)))
        old[f"a{n}"] = lines
        new[f"b{n}"] = changed(rng, changed(rng, changed(rng, lines))).replace(
            b"has", rng.choice([b"has", b"has", b"had"]), 1
        )
    old["wide"] = b"%s\n%s\n" % (b"x" * 64, b"y" * 64)
    new["wider"] = b"%s!\n%s\n" % (b"x" * 63, b"y" * 64)  # the last byte of its first chunk
    base: Files = old
    trees = commit_cases(where, {"c": (base, new, new)})["c"]
    rows = git(where, "diff", "--name-status", "-M1%", trees.base, trees.ours).decode().splitlines()
    pairs = [row.split("\t") for row in rows if row.startswith("R")]
    assert len(pairs) > 40
    with Objects(".git", [DiskTree(where)], SHA1) as objects:
        similarity = Similarity(objects, Budget(10_000_000))
        for score, a, b in pairs:
            ids = (SHA1.oid_of("blob", old[a]), SHA1.oid_of("blob", new[b]))
            assert similarity.score(*ids, SCORE_MAX // 100) * 100 // SCORE_MAX == int(score[1:]), (a, b)


def entries(objects: Objects, files: dict[str, bytes]) -> list[PathEntry]:
    return [PathEntry(path.encode(), FILE_MODE, objects.write("blob", data)) for path, data in files.items()]


def search(objects: Objects, old: dict[str, bytes], new: dict[str, bytes], steps: int) -> RenameSearch:
    removed, added = entries(objects, old), entries(objects, new)
    relevant = {entry.path: BY_CONTENT for entry in removed}
    similarity = Similarity(objects, Budget(steps))
    return RenameSearch(removed, added, relevant, {}, similarity, objects.fmt.oid_of("blob", b""))


def body(n: int) -> bytes:
    return b"".join(b"%d %d\n" % (n, m) for m in range(10))


def test_a_search_beyond_its_budget_keeps_what_is_certain(tmp_path: Path) -> None:
    where = repository(tmp_path / "r")
    with Objects(".git", [DiskTree(where)], SHA1) as objects:
        old = {f"old{n}": body(n) for n in range(20)} | {"sure": b"sure\n"}
        new = {f"new{n}": body(n) + b"more\n" for n in range(20)} | {"certain": b"sure\n"}
        whole = search(objects, old, new, 1_000_000)
        assert len(whole.run()) == 21 and not whole.limited
        part = search(objects, old, new, 1000)
        assert part.run() == [SideRename(b"sure", b"certain")] and part.limited


def test_empty_files_are_never_renamed(tmp_path: Path) -> None:
    where = repository(tmp_path / "r")
    with Objects(".git", [DiskTree(where)], SHA1) as objects:
        assert search(objects, {"a": b"", "b": b"b\n"}, {"c": b"", "d": b"b\n"}, 1000).run() == [
            SideRename(b"b", b"d")
        ]


def test_the_end_of_a_file_without_newline_counts(tmp_path: Path) -> None:
    where = repository(tmp_path / "r")
    with Objects(".git", [DiskTree(where)], SHA1) as objects:
        found = search(objects, {"a": b"one line"}, {"b": b"one line\n"}, 1000)
        assert found.run() == []  # another chunk: the newline belongs to it
        found = search(objects, {"a": b"x\n" + b"y" * 70}, {"b": b"z\n" + b"y" * 70}, 1000)
        assert found.run() == [SideRename(b"a", b"b")]


def test_keys_are_in_the_order_of_the_table_of_git() -> None:
    def code(key: bytes) -> int:
        found = 0x811C9DC5
        for byte in key:
            found = (found * 0x01000193 & 0xFFFFFFFF) ^ byte
        return found

    few = [b"d%d" % n for n in range(40)]
    assert table_order(few) == sorted(few, key=lambda key: (code(key) % 64, -few.index(key)))
    many = [b"d%d" % n for n in range(60)]
    assert [code(key) % 256 for key in table_order(many)] == sorted(code(key) % 256 for key in many)


def test_a_blob_of_many_lines_is_similar_to_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    where = repository(tmp_path / "r")
    monkeypatch.setattr("layerstack.git.similarity.LINES_MAX", 5)
    with Objects(".git", [DiskTree(where)], SHA1) as objects:

        def blob(data: bytes) -> Oid:
            return objects.write("blob", data)

        similarity = Similarity(objects, Budget(1000))
        assert similarity.score(blob(b"a\n" * 5), blob(b"a\n" * 5 + b"b"), 0) > 0
        assert similarity.score(blob(b"a\n" * 6), blob(b"a\n" * 6 + b"b"), 0) == 0
