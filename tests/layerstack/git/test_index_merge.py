"""The index after a merge: the new HEAD, and what was staged and not committed, as `git status` shows it."""

from __future__ import annotations

import random
import subprocess
from pathlib import Path

import pytest

from layerstack.git.git_index import GitIndex
from layerstack.git.index_merge import IndexMerge, IndexSide, MergeStaged, merge_indexes
from layerstack.git.object_format import SHA1, GitRefused
from layerstack.git.tree_diff import FileValue, Staged, staged_changes, tree_changes, value_in
from tests.git_trees import git, repository
from tests.layerstack.git.three_sides import Sides, add_objects, commit, rev, three_of, write


@pytest.fixture
def sides(tmp_path: Path) -> Sides:
    base = repository(tmp_path / "base")
    commit(base, "one", a="a\n", b="b\n", d__x="x\n", d__y="y\n", e__deep__z="z\n")
    return three_of(base)


def side(sides: Sides, folder: Path) -> IndexSide:
    has = subprocess.run(
        ["git", "rev-parse", "-q", "--verify", "HEAD"], cwd=folder, capture_output=True, check=False
    )
    return IndexSide(sides.index_of(folder), sides.tree(folder) if has.returncode == 0 else None)


def merge(sides: Sides, new: str, merge_staged: MergeStaged | None = None) -> IndexMerge:
    """Merge the indexes for the tree of the commit `new` of the head's repository; write the result there and
    check out the files that it changed.
    """
    tree = sides.tree(sides.head, new)
    base, ours, head = side(sides, sides.base), side(sides, sides.ours), side(sides, sides.head)
    with sides.objects() as objects:
        result = merge_indexes(objects, base, ours, head, tree, merge_staged)
    add_objects(sides.head, sides.ours)
    (sides.head / ".git/index").write_bytes(result.entries.to_bytes())
    git(sides.head, "update-ref", "--no-deref", "HEAD", new)
    git(sides.head, "fsck", "--strict", "--no-dangling")
    return result


def combined(sides: Sides) -> str:
    """Merge the commits of both with git and return the new one; the work trees stay as they are."""
    git(sides.head, "fetch", "-q", str(sides.ours), "HEAD")
    tree = git(sides.head, "merge-tree", "--write-tree", "HEAD", "FETCH_HEAD").decode().split()[0]
    return git(sides.head, "commit-tree", "-p", "HEAD", "-p", "FETCH_HEAD", "-m", "m", tree).decode().strip()


def shown(folder: Path) -> dict[bytes, bytes]:
    """What is staged, as `git diff --cached` shows it: path -> status."""
    fields = git(folder, "diff", "--cached", "--name-status", "--no-renames", "-z").split(b"\0")[:-1]
    return dict(zip(fields[1::2], fields[::2], strict=True))


def test_commits_of_both_leave_nothing_staged(sides: Sides) -> None:
    commit(sides.ours, "ours", a="ours\n", new__ours="1", d__y=None)
    commit(sides.head, "head", b="head\n", e__deep__z="head\n")
    result = merge(sides, combined(sides))
    assert shown(sides.head) == {} and result.dropped == ()
    assert result.changed == {b"a", b"new/ours", b"d/y"}
    git(sides.head, "checkout-index", "-f", "-a")
    (sides.head / "d/y").unlink()
    assert git(sides.head, "status", "--porcelain") == b""


def test_what_each_side_staged_stays_staged(sides: Sides) -> None:
    commit(sides.ours, "ours", a="ours\n")
    write(sides.ours, d__x="staged\n", added="1")
    git(sides.ours, "add", "-A")
    git(sides.ours, "rm", "-q", "--cached", "d/y")
    commit(sides.head, "head", b="head\n")
    write(sides.head, e__deep__z="staged\n", later="x")
    git(sides.head, "add", "e/deep/z")
    git(sides.head, "add", "-N", "later")
    result = merge(sides, combined(sides))
    assert result.dropped == ()
    assert shown(sides.head) == {b"d/x": b"M", b"added": b"A", b"d/y": b"D", b"e/deep/z": b"M"}
    entry = result.entries.entry(b"later")
    assert entry is not None and entry.intent_to_add
    assert git(sides.head, "show", ":d/x") == b"staged\n"


def test_what_was_staged_in_the_base_and_committed_by_one_is_staged_no_more(sides: Sides) -> None:
    write(sides.base, a="staged\n", b="staged\n")
    git(sides.base, "add", "a", "b")
    other = three_of_again(sides)
    git(other.ours, "commit", "-qm", "committed", "a")
    git(other.head, "reset", "-q", "b")
    commit_of_head(other.head, "head", "h")
    result = merge(other, combined(other))
    assert shown(other.head) == {} and result.dropped == ()


def three_of_again(sides: Sides) -> Sides:
    sides.base.rename(sides.base.parent / "again")
    again = sides.base.parent / "again"
    inner = again.parent / "x"
    inner.mkdir()
    again.rename(inner / "base")
    return three_of(inner / "base")


def commit_of_head(folder: Path, message: str, name: str) -> None:
    """Commit one new file and nothing else."""
    write(folder, **{name: "1"})
    git(folder, "add", name)
    git(folder, "commit", "-qm", message, name)


def test_a_path_that_both_staged_differently_is_unstaged_and_named(sides: Sides) -> None:
    for folder, text in ((sides.ours, "ours\n"), (sides.head, "head\n")):
        write(folder, a=text, b="same\n")
        git(folder, "add", "a", "b")
        commit_of_head(folder, text, "f" + text[:1])
    result = merge(sides, combined(sides))
    assert result.dropped == (b"a",) and shown(sides.head) == {b"b": b"M"}


def test_what_was_staged_on_a_file_that_the_other_committed_is_merged_or_named(sides: Sides) -> None:
    write(sides.ours, a="staged\n")
    git(sides.ours, "add", "a")
    commit_of_head(sides.ours, "ours", "o")
    commit(sides.head, "head", a="head\n")
    index = (sides.head / ".git/index").read_bytes()
    new, before = combined(sides), rev(sides.head, "HEAD")
    assert merge(sides, new).dropped == (b"a",) and shown(sides.head) == {}
    (sides.head / ".git/index").write_bytes(index)
    git(sides.head, "update-ref", "HEAD", before)
    seen: list[tuple[FileValue | None, FileValue, FileValue | None]] = []

    def take(path: bytes, old: FileValue | None, staged: FileValue, now: FileValue | None) -> FileValue:
        seen.append((old, staged, now))
        return staged

    assert merge(sides, new, take).dropped == () and shown(sides.head) == {b"a": b"M"}
    texts = [git(sides.head, "cat-file", "blob", one.oid.hex()) for one in seen[0] if one is not None]
    assert texts == [b"a\n", b"staged\n", b"head\n"]


def test_a_staged_file_that_cannot_be_beside_a_directory_is_named(sides: Sides) -> None:
    write(sides.ours, p="file")
    git(sides.ours, "add", "p")
    commit_of_head(sides.ours, "ours", "o")
    commit(sides.head, "head", p__q="1")
    assert merge(sides, combined(sides)).dropped == (b"p",)


def test_flags_of_entries_are_kept(sides: Sides) -> None:
    git(sides.ours, "update-index", "--skip-worktree", "a", "d/x")
    git(sides.head, "update-index", "--assume-unchanged", "b")
    commit(sides.ours, "ours", new="1")
    commit(sides.head, "head", d__x="head\n")
    result = merge(sides, combined(sides))
    found = {e.path: (e.assume_valid, e.skip_worktree) for e in result.entries.entries()}
    assert found[b"a"] == found[b"d/x"] == (False, True) and found[b"b"] == (True, False)
    assert found[b"new"] == (False, False)


def test_the_first_commit_of_a_repository_and_a_missing_index(tmp_path: Path) -> None:
    sides = three_of(repository(tmp_path / "base"))
    new = commit(sides.ours, "ours", a="1", b__c="2")
    add_objects(sides.head, sides.ours)
    write(sides.head, staged="x")
    git(sides.head, "add", "staged")
    result = merge(sides, new)
    assert sorted(result.entries.rows) == [b"a", b"b/c", b"staged"] and shown(sides.head) == {b"staged": b"A"}
    (sides.head / ".git/index").unlink()
    git(sides.head, "symbolic-ref", "HEAD", "refs/heads/unborn")
    assert sorted(merge(sides, new).entries.rows) == [b"a", b"b/c"]


def test_unmerged_entries_are_refused(sides: Sides) -> None:
    git(sides.ours, "branch", "other")
    commit(sides.ours, "x", a="x\n")
    git(sides.ours, "switch", "-q", "other")
    commit(sides.ours, "y", a="y\n")
    with pytest.raises(subprocess.CalledProcessError):
        git(sides.ours, "merge", "main")
    with pytest.raises(GitRefused, match="unmerged"):
        merge(sides, rev(sides.head, "HEAD"))


def test_trees_that_the_index_names_are_not_read(sides: Sides) -> None:
    """The objects of a directory whose tree is known may be missing."""
    write(sides.head, d__x="staged\n")
    git(sides.head, "add", "d/x")
    known = git(sides.head, "rev-parse", "HEAD:e").decode().strip()
    for folder in sides:
        (folder / ".git/objects" / known[:2] / known[2:]).unlink()
    index = sides.index_of(sides.head)
    assert index is not None
    with sides.objects() as objects:
        assert set(staged_changes(index, objects, sides.tree(sides.head))) == {b"d/x"}


def random_edit(folder: Path, draw: random.Random) -> None:
    names = ["a", "b", "c", "d__a", "d__b", "d__e__a", "f__g"]
    for name in draw.sample(names, draw.randrange(4)):
        path = folder / name.replace("__", "/")
        if path.exists() and draw.randrange(3) == 0:
            path.unlink()
        else:
            write(folder, **{name: draw.choice(["1\n", "2\n", "3\n"])})
        if draw.randrange(3):
            git(folder, "update-index", "--add", "--remove", name.replace("__", "/"))
    if draw.randrange(2):
        git(folder, "commit", "-q", "--allow-empty", "-m", "x")


def check_random(top: Path, seed: int) -> None:
    draw = random.Random(seed)
    base = repository(top / "base")
    commit(base, "start", a="0\n", d__b="0\n")
    random_edit(base, draw)
    sides = three_of(base)
    random_edit(sides.ours, draw)
    random_edit(sides.head, draw)
    before = [side(sides, one) for one in sides]
    with sides.objects() as objects:
        none = dict[bytes, Staged]()
        own = [none if s.entries is None else staged_changes(s.entries, objects, s.tree) for s in before]
    for one, folder in zip(own, sides, strict=True):
        assert set(one) == set(shown(folder)), seed
    try:
        new = combined(sides)
    except subprocess.CalledProcessError:
        return  # the commits conflict
    old = sides.tree(sides.head)
    with sides.objects() as objects:
        found = set(tree_changes(objects, old, sides.tree(sides.head, new)))
    names = git(sides.head, "diff-tree", "-r", "--name-only", "--no-renames", "-z", "HEAD", new).split(b"\0")[
        :-1
    ]
    assert found == set(names), seed
    result = merge(sides, new)
    staged = set(shown(sides.head))
    with sides.objects() as objects:
        committed = tree_changes(objects, None, sides.tree(sides.head, new))
    for path in {*result.entries.rows, *committed}:
        has = value_in(result.entries, path)
        if has != committed.get(path):
            assert path in staged and has in [one[path].value for one in own if path in one], seed
    for path in {*own[1], *own[2]} - {*own[0]}:
        values = {one[path].value for one in own[1:] if path in one}
        assert path in result.dropped or value_in(result.entries, path) in values, seed
        assert path in result.dropped or len(values) == 1, seed
    again = GitIndex.parse((sides.head / ".git/index").read_bytes(), SHA1)
    assert again.to_bytes() == result.entries.to_bytes(), seed


@pytest.mark.parametrize("seed", range(3))
def test_random_states_of_three_indexes(tmp_path: Path, seed: int) -> None:
    check_random(tmp_path, seed)


@pytest.mark.soak
def test_many_random_states_of_three_indexes(tmp_path: Path) -> None:
    for seed in range(100, 220):
        check_random(tmp_path / str(seed), seed)
