"""Refs: read as git lists them, and written so that git reads the wanted ones."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from layerstack.git.object_format import GitRefused
from layerstack.git.ref_names import COMPONENT_MAX, RefNames, free_ref_name, is_ref_name, ref_word
from layerstack.git.ref_store import RefMap, RefValue, parse_packed, read_refs, ref_files
from tests.git_trees import DiskTree, git, repository
from tests.layerstack.git.three_sides import ROOT, apply_files, commit, for_each_ref, rev


def refs_of(folder: Path) -> RefMap:
    return read_refs(ROOT, DiskTree(folder))


def shown(refs: RefMap) -> dict[bytes, bytes | None]:
    return {name: refs.resolve(name) for name in refs if name.startswith(b"refs/")}


@pytest.mark.parametrize("fmt", ["sha1", "sha256"])
def test_loose_packed_symbolic_and_peeled_refs_are_read_as_git_lists_them(tmp_path: Path, fmt: str) -> None:
    folder = repository(tmp_path / "r", fmt=fmt)
    one = commit(folder, "one", a="1")
    git(folder, "tag", "-a", "-m", "note", "v1")
    git(folder, "tag", "light")
    git(folder, "branch", "deep/er/branch")
    git(folder, "branch", "ümläut")
    git(folder, "pack-refs", "--all")
    two = commit(folder, "two", a="2")
    git(folder, "branch", "later")
    git(folder, "symbolic-ref", "refs/remotes/origin/HEAD", "refs/heads/later")
    git(folder, "update-ref", "refs/remotes/origin/later", one)
    refs = refs_of(folder)
    assert shown(refs) == for_each_ref(folder)
    assert refs.branch == b"refs/heads/main" and refs.resolve(b"HEAD") == two.encode()
    assert refs.packed[b"refs/heads/main"] == one.encode() and b"refs/heads/main" in refs.loose
    assert read_refs(ROOT, DiskTree(folder), refs).packed is refs.packed
    git(folder, "switch", "-q", "--detach")
    assert refs_of(folder)[b"HEAD"] == RefValue(two.encode()) and refs_of(folder).branch is None


def test_refs_of_linked_worktrees_are_beside_those_of_the_repository(tmp_path: Path) -> None:
    folder = repository(tmp_path / "r")
    one = commit(folder, "one", a="1").encode()
    git(folder, "worktree", "add", "-q", "-b", "side", "wt")
    git(folder / "wt", "update-ref", "refs/worktree/mine", "HEAD")
    refs = refs_of(folder)
    assert refs[b"worktrees/wt/HEAD"] == RefValue(None, b"refs/heads/side")
    assert refs.resolve(b"worktrees/wt/HEAD") == one
    assert refs[b"worktrees/wt/refs/worktree/mine"] == RefValue(one)
    assert b"refs/worktree/mine" not in refs


def test_what_git_ignores_is_absent_and_is_not_in_the_way(tmp_path: Path) -> None:
    folder = repository(tmp_path / "r")
    commit(folder, "one", a="1")
    heads = folder / ".git/refs/heads"
    (heads / "empty").write_bytes(b"")
    (heads / "cut").write_bytes(b"0123456789")
    (heads / "zero").write_bytes(b"0" * 40 + b"\n")
    (heads / "x.lock").write_bytes(b"")
    (heads / "blocks").write_bytes(b"")
    refs = refs_of(folder)
    assert set(shown(refs)) == {b"refs/heads/main"}
    assert refs.broken == {b"refs/heads/" + name for name in (b"empty", b"cut", b"zero", b"blocks")}
    wanted = dict(refs) | {b"refs/heads/blocks/one": refs[b"refs/heads/main"]}
    apply_files(folder, ref_files(wanted, refs))
    assert b"refs/heads/blocks/one" in for_each_ref(folder)


def test_an_unborn_branch_and_a_circle_have_no_id(tmp_path: Path) -> None:
    folder = repository(tmp_path / "r")
    assert refs_of(folder).resolve(b"HEAD") is None and refs_of(folder).branch == b"refs/heads/main"
    git(folder, "symbolic-ref", "refs/heads/a", "refs/heads/b")
    git(folder, "symbolic-ref", "refs/heads/b", "refs/heads/a")
    assert refs_of(folder).resolve(b"refs/heads/a") is None


def test_a_reftable_is_refused_by_name(tmp_path: Path) -> None:
    folder = repository(tmp_path / "r")
    (folder / ".git/reftable").mkdir()
    with pytest.raises(GitRefused, match="reftable"):
        refs_of(folder)


def test_the_fewest_files_turn_one_map_of_refs_into_another(tmp_path: Path) -> None:
    folder = repository(tmp_path / "r")
    one = commit(folder, "one", a="1").encode()
    for name in ("packed", "both", "dir/a", "dir/b", "loose"):
        if name == "loose":
            git(folder, "pack-refs", "--all")
        git(folder, "branch", name)
    git(folder, "tag", "-a", "-m", "note", "v1")
    git(folder, "pack-refs", "--all", "--no-prune")
    two = commit(folder, "two", a="2").encode()
    git(folder, "update-ref", "refs/heads/both", two.decode())
    refs = refs_of(folder)
    assert ref_files(dict(refs), refs) == {}
    wanted = {
        name: value
        for name, value in refs.items()
        if name not in (b"refs/heads/both", b"refs/heads/dir/a", b"refs/heads/dir/b", b"refs/heads/loose")
    }
    wanted[b"refs/heads/dir"] = RefValue(two)
    wanted[b"refs/heads/loose/below"] = RefValue(one)
    wanted[b"HEAD"] = RefValue(None, b"refs/heads/dir")
    files = ref_files(wanted, refs)
    assert "refs/heads/packed" not in files and "refs/heads/main" not in files
    apply_files(folder, files)
    expected = {name: value.oid for name, value in wanted.items() if name.startswith(b"refs/")}
    assert for_each_ref(folder) == expected
    assert rev(folder, "v1^{commit}") == one.decode(), "the peeled line stays with its tag"
    git(folder, "fsck", "--strict")


names = st.lists(
    st.text(st.sampled_from("ab.@{}/-~^:?*[\\ \x7f\tölk"), min_size=0, max_size=6)
    | st.sampled_from(["x.lock", "..", "a@{b", "@", "HEAD", ".a", "a."]),
    min_size=1,
    max_size=4,
).map("/".join)


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(names, min_size=8, max_size=8))
def test_names_are_valid_where_git_says_so(found: list[str]) -> None:
    for name in found:
        if "\0" in name or not name:
            continue
        code = subprocess.run(["git", "check-ref-format", name], check=False, timeout=60).returncode
        assert is_ref_name(name.encode()) == (code == 0), name


@settings(max_examples=20, deadline=None)
@given(st.text(max_size=80))
def test_any_text_becomes_a_word_with_which_a_name_is_valid(text: str) -> None:
    assert is_ref_name(b"refs/heads/main-" + ref_word(text))


def test_a_free_name_is_beside_all_others() -> None:
    used = RefNames()
    for name in (b"refs/heads/a", b"refs/heads/a-bot", b"refs/heads/b/c", b"refs/heads/x-bot/y"):
        used.add(name)

    def free(name: bytes) -> bytes:
        return free_ref_name(name, b"bot", lambda new: new in used or used.collides(new), used.blocking(name))

    assert free(b"refs/heads/a") == b"refs/heads/a-bot-2"
    assert free(b"refs/heads/a/b") == b"refs/heads/a-bot-2/b"
    assert free(b"refs/heads/b") == b"refs/heads/b-bot"
    assert free(b"refs/heads/x") == b"refs/heads/x-bot-2"
    long = free(b"refs/heads/" + "ö".encode() * 125)
    assert len(long.rpartition(b"/")[2]) <= COMPONENT_MAX and long.decode().endswith("-bot")
    used.discard(b"refs/heads/b/c")
    assert not used.collides(b"refs/heads/b")


def test_lines_that_git_did_not_write_are_left_out_of_packed_refs() -> None:
    oid = b"1" * 40
    data = b"# pack-refs\n%s refs/heads/a\n^%s\nx refs/heads/b\n%s refs/../x\n%s" % (oid, oid, oid, oid)
    assert parse_packed(data) == {b"refs/heads/a": oid}
