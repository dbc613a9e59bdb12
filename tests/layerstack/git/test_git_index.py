"""The index: what the real git wrote is read as git lists it, and git reads what is written here."""

from __future__ import annotations

import hashlib
import os
import re
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from layerstack.git.cache_tree import CacheTree
from layerstack.git.git_index import GitIndex, same_entries
from layerstack.git.index_rows import IndexEntry, IndexStat, row_of
from layerstack.git.object_format import FORMATS, SHA1, CorruptObject, GitRefused, ObjectFormat
from tests.git_trees import git, repository


def listed(folder: Path) -> bytes:
    """All that git knows of the entries: modes, ids, stages, flags, stat data; not its flags in memory."""
    debug = git(folder, "ls-files", "-z", "--stage", "--debug")
    return re.sub(rb"flags: \w+", b"", debug) + git(folder, "ls-files", "-v", "-t", "-z")


def parsed(folder: Path, fmt: ObjectFormat = SHA1) -> GitIndex:
    def shared(name: str) -> bytes | None:
        path = folder / ".git" / name
        return path.read_bytes() if path.exists() else None

    return GitIndex.parse((folder / ".git/index").read_bytes(), fmt, shared)


def as_listed(index: GitIndex) -> list[bytes]:
    return [b"%06o %s %d\t%s" % (e.mode, e.oid.hex().encode(), e.stage, e.path) for e in index.entries()]


def staged(folder: Path) -> list[bytes]:
    return git(folder, "ls-files", "-z", "--stage").split(b"\0")[:-1]


def parsed_count(folder: Path) -> int:
    """Number of entries in the file itself, as its header says."""
    return int.from_bytes((folder / ".git/index").read_bytes()[8:12], "big")


def filled(folder: Path, fmt: str = "sha1") -> Path:
    """A repository with files, modes, a symlink, odd names, and a path longer than the flags can say."""
    repository(folder, fmt=fmt)
    for name in ("a", "b/c", "b/c.x", "b/d/e", "ü\n", "z z", "/".join(["deep" * 50] * 12) + "/long" * 400):
        path = folder / name
        if len(name) < 4000:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(name[:40])
    (folder / "run").write_text("#!/bin/sh\n")
    (folder / "run").chmod(0o755)
    (folder / "link").symlink_to("a")
    git(folder, "add", "-A")
    return folder


@pytest.fixture(scope="module", params=["sha1", "sha256"])
def plain(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, ObjectFormat]:
    return filled(tmp_path_factory.mktemp("plain"), request.param), FORMATS[request.param]


@pytest.mark.parametrize("version", ["2", "3", "4"])
def test_each_version_is_read_as_git_lists_it_and_git_reads_what_is_written(
    plain: tuple[Path, ObjectFormat], version: str
) -> None:
    folder, fmt = plain
    git(folder, "update-index", "--index-version", "2")
    git(folder, "update-index", "--no-assume-unchanged", "--no-skip-worktree", "a")
    git(folder, "update-index", "--no-skip-worktree", "b/c")
    if version == "3":
        git(folder, "update-index", "--skip-worktree", "b/c")
        git(folder, "update-index", "--assume-unchanged", "a")
    else:
        git(folder, "update-index", "--index-version", version)
    path = folder / ".git/index"
    raw = path.read_bytes()
    assert raw[4:8] == struct.pack(">I", int(version))
    before = listed(folder)
    index = parsed(folder, fmt)
    assert as_listed(index) == staged(folder)
    assert index.flagged == (version == "3")
    path.write_bytes(index.to_bytes())
    assert listed(folder) == before
    git(folder, "fsck", "--strict")
    assert same_entries(parsed(folder, fmt), index)
    if version == "2":
        written = index.to_bytes()
        assert raw.startswith(written[: len(written) - fmt.size])  # git may have extensions behind


def test_a_split_index_is_read_with_the_file_that_it_shares(tmp_path: Path) -> None:
    folder = filled(tmp_path / "r")
    git(folder, "config", "splitIndex.maxPercentChange", "100")
    for name in ("a", "b/c.x", "b/d/e", "run"):  # not racy, so that git writes each entry once
        os.utime(folder / name, ns=(10**18, 10**18))
    git(folder, "update-index", "--refresh")
    git(folder, "update-index", "--split-index")
    (folder / "new").write_text("new")
    (folder / "a").write_text("other")
    git(folder, "add", "new", "a")
    git(folder, "rm", "-q", "--cached", "b/c")
    assert b"link" in (folder / ".git/index").read_bytes()
    assert parsed_count(folder) < len(staged(folder)), "some entries are in the shared part only"
    index = parsed(folder)
    assert as_listed(index) == staged(folder)
    before = listed(folder)
    (folder / ".git/index").write_bytes(index.to_bytes())
    for name in (folder / ".git").glob("sharedindex.*"):
        name.unlink()
    assert listed(folder) == before


def test_a_split_index_without_its_file_is_damaged(tmp_path: Path) -> None:
    folder = filled(tmp_path / "r")
    git(folder, "update-index", "--split-index")
    with pytest.raises(CorruptObject):
        GitIndex.parse((folder / ".git/index").read_bytes(), SHA1)
    with pytest.raises(CorruptObject):
        GitIndex.parse((folder / ".git/index").read_bytes(), SHA1, lambda name: b"DIRC\0\0\0\2" + bytes(24))


def test_extensions_of_git_are_read_over(tmp_path: Path) -> None:
    folder = filled(tmp_path / "r")
    git(folder, "commit", "-qm", "one")
    git(folder, "config", "index.threads", "4")
    git(folder, "update-index", "--untracked-cache")
    git(folder, "-c", "core.untrackedCache=true", "status")
    (folder / "intent").write_text("x")
    git(folder, "add", "-N", "intent")
    data = (folder / ".git/index").read_bytes()
    assert b"UNTR" in data and b"TREE" in data
    index = parsed(folder)
    assert as_listed(index) == staged(folder)
    assert index.flagged and (entry := index.entry(b"intent")) is not None and entry.intent_to_add
    before = listed(folder)
    (folder / ".git/index").write_bytes(index.to_bytes())
    assert listed(folder) == before


def test_unmerged_entries_are_kept_apart_by_stage(tmp_path: Path) -> None:
    folder = repository(tmp_path / "r")
    (folder / "f").write_text("base\n")
    git(folder, "add", "-A")
    git(folder, "commit", "-qm", "base")
    git(folder, "branch", "other")
    (folder / "f").write_text("ours\n")
    git(folder, "commit", "-qam", "ours")
    git(folder, "switch", "-q", "other")
    (folder / "f").write_text("theirs\n")
    git(folder, "commit", "-qam", "theirs")
    with pytest.raises(Exception, match="exit status 1"):
        git(folder, "merge", "main")
    index = parsed(folder)
    assert sorted(index.unmerged[b"f"]) == [1, 2, 3] and not index.rows
    assert as_listed(index) == staged(folder)
    before = listed(folder)
    (folder / ".git/index").write_bytes(index.to_bytes())
    assert listed(folder) == before
    assert git(folder, "status", "--porcelain") == b"UU f\n"


def test_the_trees_that_the_index_agrees_with_are_kept_until_an_entry_changes(tmp_path: Path) -> None:
    folder = filled(tmp_path / "r")
    git(folder, "commit", "-qm", "one")
    index = parsed(folder)
    tree = git(folder, "rev-parse", "HEAD^{tree}").decode().strip()
    assert index.trees.oid is not None and index.trees.oid.hex() == tree
    assert index.trees.count == len(index)
    deep = index.trees.below(b"b/d")
    assert deep is not None
    again = CacheTree.parse(index.trees.to_bytes(20), 20)
    assert again.to_bytes(20) == index.trees.to_bytes(20)
    found = git(folder, "hash-object", "-w", "--stdin", data=b"new content").decode().strip()
    index.put(IndexEntry(b"b/c", 0o100644, bytes.fromhex(found)))
    assert index.trees.oid is None and index.trees.below(b"b/d") is deep and deep.oid is not None
    (folder / ".git/index").write_bytes(index.to_bytes())
    (folder / "b/c").write_text("new content")
    written = git(folder, "write-tree").decode().strip()
    git(folder, "read-tree", "--empty")
    git(folder, "add", "-A")
    assert git(folder, "write-tree").decode().strip() == written


def test_a_refreshed_entry_is_not_read_and_one_without_size_is(tmp_path: Path) -> None:
    """Only the stat data say so: the id of the entry is wrong on purpose."""
    folder = repository(tmp_path / "r")
    path = folder / "f"
    path.write_bytes(b"12345")
    git(folder, "add", "f")
    git(folder, "config", "core.checkStat", "minimal")
    git(folder, "config", "core.trustctime", "false")
    os.utime(path, ns=(10**18, 10**18))
    index = parsed(folder)
    other = bytes.fromhex(git(folder, "hash-object", "-w", "--stdin", data=b"abcde").decode())
    index.put(IndexEntry(b"f", 0o100644, other))
    assert index.stat(b"f") == IndexStat()
    index.restat(b"f", IndexStat(mtime=10**9, size=5))
    (folder / ".git/index").write_bytes(index.to_bytes())
    assert git(folder, "diff", "--name-only") == b""
    index.smudge(b"f")
    (folder / ".git/index").write_bytes(index.to_bytes())
    assert git(folder, "diff", "--name-only") == b"f\n"


def test_entries_are_equal_when_only_their_stat_data_differ(tmp_path: Path) -> None:
    folder = filled(tmp_path / "r")
    one = parsed(folder)
    for name in ("a", "b/c"):
        os.utime(folder / name, ns=(10**18, 10**18))
    git(folder, "update-index", "--refresh")
    two = parsed(folder)
    assert one.to_bytes() != two.to_bytes() and same_entries(one, two)
    git(folder, "update-index", "--assume-unchanged", "a")
    assert not same_entries(one, parsed(folder))
    git(folder, "update-index", "--no-assume-unchanged", "a")
    git(folder, "update-index", "--chmod=+x", "a")
    assert not same_entries(one, parsed(folder))


def resum(data: bytes) -> bytes:
    """The bytes with the checksum that fits them."""
    return data[:-20] + hashlib.sha1(data[:-20]).digest()


def hostile() -> Iterator[tuple[str, Callable[[bytes], bytes]]]:
    yield "empty", lambda data: b""
    yield "header only", lambda data: resum(data[:12] + bytes(20))
    yield "too many entries", lambda data: resum(data[:8] + b"\xff\xff\xff\xff" + data[12:])
    yield "one entry more", lambda data: resum(data[:11] + bytes((data[11] + 1,)) + data[12:])
    yield "a bit", lambda data: data[:40] + bytes((data[40] ^ 1,)) + data[41:]
    yield "cut", lambda data: resum(data[: len(data) // 2] + bytes(20))
    yield "extension too long", lambda data: resum(data[:-20] + b"ABCD\xff\xff\xff\xff" + bytes(20))
    yield "tree", lambda data: resum(data[:-20] + b"TREE\0\0\0\5\x005 9\n" + bytes(20))
    yield "twice", lambda data: _twice()


def _twice() -> bytes:
    index = GitIndex(SHA1)
    index.put(IndexEntry(b"a", 0o100644, bytes(20)))
    data = index.to_bytes()
    return resum(data[:8] + struct.pack(">I", 2) + data[12:-20] * 2 + bytes(20))


@pytest.mark.parametrize("change", [pair[1] for pair in hostile()], ids=[pair[0] for pair in hostile()])
def test_a_damaged_index_is_refused_and_not_guessed(
    plain: tuple[Path, ObjectFormat], change: Callable[[bytes], bytes]
) -> None:
    index = GitIndex(SHA1)
    index.put(IndexEntry(b"a", 0o100644, bytes(20)))
    index.put(IndexEntry(b"b/c", 0o100644, bytes(20)))
    with pytest.raises(CorruptObject):
        GitIndex.parse(change(index.to_bytes()), SHA1)


@pytest.mark.parametrize("name", [b"sdir", b"link", b"abcd"])
def test_extensions_that_must_be_understood_are_refused_by_name(name: bytes) -> None:
    data = GitIndex(SHA1).to_bytes()
    with pytest.raises((GitRefused, CorruptObject)) as caught:
        GitIndex.parse(resum(data[:-20] + name + struct.pack(">I", 2) + b"xx" + bytes(20)), SHA1)
    assert name == b"link" or name.decode() in str(caught.value) or "sparse" in str(caught.value)


def test_a_bitmap_that_claims_more_than_is_there_costs_nothing() -> None:
    """A marker that says 2^32 words of ones is 32 GiB of numbers."""
    marker = struct.pack(">Q", 1 | 0xFFFFFFFF << 1)
    body = bytes.fromhex("11" * 20) + struct.pack(">II", 1 << 31, 1) + marker + struct.pack(">I", 0)
    data = GitIndex(SHA1).to_bytes()
    with pytest.raises(CorruptObject):
        GitIndex.parse(resum(data[:-20] + b"link" + struct.pack(">I", len(body)) + body + bytes(20)), SHA1)


def test_rows_hold_numbers_beyond_32_bits_as_git_does() -> None:
    entry = IndexEntry(b"a", 0o100644, bytes(20))
    assert len(row_of(entry, IndexStat(size=1 << 33, inode=1 << 40))) == 62


@pytest.mark.soak
def test_no_changed_bit_is_more_than_a_refusal(plain: tuple[Path, ObjectFormat]) -> None:
    folder, fmt = plain
    data = (folder / ".git/index").read_bytes()
    for at in range(12, len(data) - 20):
        for bit in (1, 0x80):
            broken = data[:at] + bytes((data[at] ^ bit,)) + data[at + 1 :]
            if fmt is SHA1:
                broken = resum(broken)
            try:
                GitIndex.parse(broken, fmt)
            except (CorruptObject, GitRefused):
                continue
