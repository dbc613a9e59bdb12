"""Commits, trees and tags are parsed and written to the bytes of git; what fsck refuses is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from layerstack.git import commits
from layerstack.git.commits import Commit, TreeEntry
from layerstack.git.object_format import (
    FORMATS,
    SHA1,
    CorruptObject,
    ObjectFormat,
    loose_bytes,
    loose_path,
)
from tests.git_trees import git, repository

BLOB = SHA1.oid_of("blob", b"")
LINES = st.lists(
    st.binary(max_size=30).map(lambda b: b.replace(b"\n", b"?").replace(b"\0", b"0")), max_size=4
)
NAMES = st.sampled_from([b"encoding", b"gpgsig", b"mergetag", b"x-more"])


@given(
    headers=st.lists(st.tuples(NAMES, LINES.map(b"\n".join)), max_size=4),
    message=st.binary(max_size=200),
    parents=st.integers(0, 3),
)
@settings(max_examples=60, deadline=None)
def test_a_commit_is_written_to_the_bytes_that_it_was_read_from(
    headers: list[tuple[bytes, bytes]], message: bytes, parents: int
) -> None:
    who = b"A <a@b> 1700000000 +0100"
    commit = Commit(SHA1.empty_tree, (BLOB,) * parents, who, who, tuple(headers), message)
    data = commits.format_commit(commit)
    assert commits.parse_commit(data, SHA1) == commit
    assert commits.parse_links(data, SHA1) == (commit.tree, commit.parents, 1700000000)


@pytest.mark.parametrize("fmt", FORMATS.values(), ids=lambda fmt: fmt.name)
def test_commits_trees_and_tags_of_git_are_read_and_written_to_the_same_ids(
    fmt: ObjectFormat, tmp_path: Path
) -> None:
    repo = repository(tmp_path / "r", fmt=fmt.name)
    for name in ("a", "a.b", "a0", "dir/x", "z/\xff\nname"):
        (repo / name).parent.mkdir(exist_ok=True)
        (repo / name).write_text(name)
    (repo / "run").write_text("#!")
    (repo / "run").chmod(0o755)
    (repo / "link").symlink_to("a")
    git(repo, "add", ".")
    git(repo, "-c", "i18n.commitEncoding=latin1", "commit", "-qm", "caf\xe9\n\nbody\n")
    git(repo, "switch", "-qc", "side")
    git(repo, "commit", "-q", "--allow-empty", "-m", "side")
    git(repo, "tag", "-a", "-m", "a tag", "v1")
    git(repo, "switch", "-q", "main")
    git(repo, "merge", "-q", "--no-ff", "v1", "-m", "merge")
    seen = set[str]()
    for line in git(repo, "cat-file", "--batch-check", "--batch-all-objects").decode().splitlines():
        name, kind, _ = line.split()
        data = git(repo, "cat-file", kind, name)
        seen.add(kind)
        assert fmt.oid_of(kind, data).hex() == name
        if kind == "commit":
            commit = commits.parse_commit(data, fmt)
            assert commits.format_commit(commit) == data
            assert commits.parse_links(data, fmt) == (commit.tree, commit.parents, commit.committed)
        elif kind == "tree":
            entries = commits.parse_tree(data, fmt)
            assert commits.format_tree(reversed(entries)) == data
            shown = b"".join(
                b"%06o %s %s\t%s\0"
                % (e.mode, b"tree" if e.is_tree else b"blob", e.oid.hex().encode(), e.name)
                for e in entries
            )
            assert git(repo, "ls-tree", "-z", name) == shown
        elif kind == "tag":
            oid, of = commits.tag_target(data, fmt)
            assert (oid.hex(), of) == (git(repo, "rev-parse", "v1^{}").decode().strip(), "commit")
    assert seen == {"commit", "tree", "blob", "tag"}
    mine = commits.format_commit(Commit(fmt.empty_tree, (), b"A <a@b> 1 +0000", b"A <a@b> 2 +0000"))
    oid = fmt.oid_of("commit", mine)
    for kind, data in (("commit", mine), ("tree", b"")):
        file = repo / ".git" / loose_path(fmt.oid_of(kind, data))
        file.parent.mkdir(exist_ok=True)
        file.write_bytes(loose_bytes(kind, data))
    assert git(repo, "cat-file", "commit", oid.hex()) == mine
    git(repo, "fsck", "--strict", "--full")


def _tree(*rows: tuple[bytes, bytes]) -> bytes:
    return b"".join(b"%s %s\0%s" % (mode, name, BLOB) for mode, name in rows)


HOSTILE = {
    "dotdot": _tree((b"100644", b"..")),
    "dot": _tree((b"100644", b".")),
    "git": _tree((b"100644", b".git")),
    "upper case": _tree((b"40000", b".GiT")),
    "short name": _tree((b"40000", b"GIT~1")),
    "trailing": _tree((b"40000", b".git . ")),
    "stream": _tree((b"40000", b".git::$INDEX_ALLOCATION")),
    "backslash": _tree((b"100644", b"a\\.git\\hooks")),
    "ignored character": _tree((b"40000", b".g\xe2\x80\x8cit")),
    "slash": _tree((b"100644", b"a/b")),
    "empty": _tree((b"100644", b"")),
    "twice": _tree((b"100644", b"a"), (b"100644", b"a")),
    "twice, with another between": _tree((b"100644", b"a"), (b"100644", b"a.b"), (b"40000", b"a")),
    "order": _tree((b"100644", b"b"), (b"100644", b"a")),
    "order of a directory": _tree((b"40000", b"a"), (b"100644", b"a.b")),
    "null": b"100644 a\0" + bytes(20),
}
BROKEN = {
    "cut": _tree((b"100644", b"a"))[:-1],
    "without NUL": b"100644 a",
    "no mode": b" a\0" + BLOB,
    "mode": _tree((b"100648", b"a")),
    "a device": _tree((b"20000", b"a")),
    "long": b"0" * 5000 + b" a\0" + BLOB,
}


@pytest.mark.parametrize("data", HOSTILE.values(), ids=HOSTILE)
def test_a_tree_that_fsck_refuses_is_refused(data: bytes, tmp_path: Path) -> None:
    with pytest.raises(CorruptObject):
        commits.parse_tree(data, SHA1)
    repo = repository(tmp_path / "r")
    oid = SHA1.oid_of("tree", data)
    for kind, body in (("tree", data), ("blob", b"")):
        file = repo / ".git" / loose_path(SHA1.oid_of(kind, body))
        file.parent.mkdir(exist_ok=True)
        file.write_bytes(loose_bytes(kind, body))
    with pytest.raises(Exception, match="fsck"):
        git(repo, "fsck", "--strict", oid.hex())


@pytest.mark.parametrize("data", BROKEN.values(), ids=BROKEN)
def test_a_tree_that_is_not_one_is_refused(data: bytes) -> None:
    with pytest.raises(CorruptObject):
        commits.parse_tree(data, SHA1)


@given(st.binary(max_size=120))
@settings(max_examples=100, deadline=None)
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    for parse in (commits.parse_tree, commits.parse_commit, commits.parse_links, commits.tag_target):
        try:
            parse(data, SHA1)
        except CorruptObject:
            continue


@pytest.mark.parametrize(
    "name", [b"a.git", b".gitignore", b".github", b"git", b"..a", b"\xff", b"git~2", b".gita"]
)
def test_ordinary_names_are_written(name: bytes) -> None:
    data = commits.format_tree([TreeEntry(name, commits.FILE_MODE, BLOB)])
    assert commits.parse_tree(data, SHA1) == [TreeEntry(name, commits.FILE_MODE, BLOB)]


def test_a_tree_with_a_bad_name_is_not_written() -> None:
    for rows in (
        [(b"..", commits.DIRECTORY)],
        [(b"a", 0o100600)],
        [(b"a", commits.DIRECTORY), (b"a", commits.SYMLINK)],
    ):
        with pytest.raises(CorruptObject):
            commits.format_tree(TreeEntry(name, mode, BLOB) for name, mode in rows)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"tree 12\n",
        b"tree " + BLOB.hex().encode() + b"\nparent x\n",
        b"tree " + BLOB.hex().encode() + b"\n\nauthor A\n\n",
        b"tree " + BLOB.hex().encode() + b"\nauthor A <a> 1 +0000\ncommitter A <a> 1 +0000\n",
        b"tree " + BLOB.hex().encode() + b"\nauthor A\0 <a> 1 +0000\ncommitter A <a> 1 +0000\n\n",
        b"tree " + BLOB.hex().encode() + b"\ncommitter A <a> 1 +0000\n\n",
    ],
)
def test_a_commit_without_its_headers_is_refused(data: bytes) -> None:
    with pytest.raises(CorruptObject):
        commits.parse_commit(data, SHA1)
