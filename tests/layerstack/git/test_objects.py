"""Objects of git, loose and in packs of each form, in the union of several trees; damage is found."""

from __future__ import annotations

import os
import random
import struct
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from layerstack.git import objects as objects_module
from layerstack.git.file_bytes import OPEN_MAX
from layerstack.git.object_format import (
    FORMATS,
    SHA1,
    CorruptObject,
    GitError,
    MissingObject,
    ObjectTooLarge,
    loose_bytes,
    loose_path,
)
from layerstack.git.objects import Objects
from layerstack.git.packs import apply_delta
from layerstack.tree.state import State
from tests.git_trees import DiskTree, git, repository


def _history(folder: Path, fmt: str = "sha1", commits: int = 12) -> Path:
    """A repository whose texts change a little in each commit, so that packs have chains of deltas."""
    repo = repository(folder, fmt=fmt)
    chance = random.Random(5)
    lines = [b"line %d %d\n" % (n, chance.getrandbits(60)) for n in range(300)]
    stream = b""
    for n in range(commits):
        lines[chance.randrange(len(lines))] = b"changed %d\n" % n
        stream += b"commit refs/heads/main\ncommitter A <a@b> %d +0000\n" % (1700000000 + n)
        stream += b"data <<E\nnumber %d\nE\n" % n
        for name, text in ((b"text", b"".join(lines)), (b"f%d" % n, chance.randbytes(50))):
            stream += b"M 644 inline %s\ndata %d\n%s\n" % (name, len(text), text)
    git(repo, "-c", "fastimport.unpackLimit=10000", "fast-import", "--quiet", data=stream)
    git(repo, "tag", "-am", "tagged", "v1")
    return repo


def _all(repo: Path) -> dict[str, tuple[str, bytes]]:
    """Every object of a repository as git gives it."""
    names = [
        line.split()[0]
        for line in git(repo, "cat-file", "--batch-check", "--batch-all-objects", "--unordered").splitlines()
    ]
    raw = git(repo, "cat-file", "--batch", data=b"\n".join(names) + b"\n")
    found: dict[str, tuple[str, bytes]] = {}
    while raw:
        head, _, raw = raw.partition(b"\n")
        name, kind, size = head.decode().split()
        found[name] = kind, raw[: int(size)]
        raw = raw[int(size) + 1 :]
    return found


def _same_as_git(repo: Path, objects: Objects) -> None:
    wanted = _all(repo)
    assert len(wanted) > 20
    for name, found in wanted.items():
        oid = bytes.fromhex(name)
        assert objects.has(oid)
        assert objects.header(oid) == (found[0], len(found[1]))
        assert objects.read(oid) == found
    absent = os.urandom(objects.fmt.size)
    assert not objects.has(absent)
    with pytest.raises(MissingObject, match=absent.hex()):
        objects.read(absent)


FORMS = {
    "loose": (),
    "offset deltas": ("repack", "-adqf"),
    "deltas by id": ("-c", "repack.useDeltaBaseOffset=false", "repack", "-adqf"),
    "index version 1": ("-c", "pack.indexVersion=1", "repack", "-adqf"),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("fmt", FORMATS.values(), ids=lambda fmt: fmt.name)
def test_every_object_is_read_as_git_reads_it(
    fmt: objects_module.ObjectFormat, form: str, tmp_path: Path
) -> None:
    if fmt.name == "sha256" and form == "index version 1":
        form = "offset deltas"
    repo = _history(tmp_path / "r", fmt.name)
    if FORMS[form]:
        git(repo, *FORMS[form])
        assert not list(repo.glob(".git/objects/[0-9a-f][0-9a-f]"))
        assert b"chain length = " in git(
            repo, "verify-pack", "-v", *map(str, repo.glob(".git/objects/pack/*.idx"))
        )
    with Objects(".git", [DiskTree(repo)], fmt) as objects:
        _same_as_git(repo, objects)
        head = bytes.fromhex(git(repo, "rev-parse", "HEAD").decode())
        assert objects.commit(head).message == b"number 11\n"
        tree = objects.tree(objects.commit(head).tree)
        assert [e.name.decode() for e in tree] == git(repo, "ls-tree", "--name-only", "HEAD").decode().split()
        with pytest.raises(CorruptObject, match="not a blob"):
            objects.read(head, "blob")


def test_offsets_above_two_gigabytes_are_read_from_their_table(tmp_path: Path) -> None:
    """Write an index in which each offset above 64 is in the table of 64 bits; git refuses one of all."""
    repo = _history(tmp_path / "r")
    git(repo, "repack", "-adqf")
    (pack,) = repo.glob(".git/objects/pack/*.pack")
    pack.with_suffix(".idx").unlink()
    git(repo, "index-pack", "--index-version=2,0x40", str(pack))
    git(repo, "fsck", "--full")
    with Objects(".git", [DiskTree(repo)], SHA1) as objects:
        _same_as_git(repo, objects)


class _Counting(DiskTree):
    """Count the listings of directories."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.listed: list[str] = []
        self.found = 0

    def names(self, path: str) -> Iterable[str]:
        self.listed.append(path)
        return super().names(path)

    def find(self, path: str) -> State | None:
        self.found += 1
        return super().find(path)


def test_opening_lists_packs_once_and_never_loose_objects(tmp_path: Path) -> None:
    repo = _history(tmp_path / "r", commits=3)
    tree = _Counting(repo)
    with Objects(".git", [tree], SHA1) as objects:
        _ = objects.has(bytes(20)), objects.has(os.urandom(20))
        assert tree.listed == [".git/objects/pack"]
        before = tree.found
        assert objects.has(bytes.fromhex(git(repo, "rev-parse", "HEAD").decode()))
        assert tree.found == before + 1


def test_the_union_of_trees_has_the_objects_of_each(tmp_path: Path) -> None:
    base = _history(tmp_path / "base")
    git(base, "repack", "-adq")
    sides: list[Path] = []
    for name in ("ours", "head"):
        git(tmp_path, "clone", "-q", "--no-local", "base", name)
        side = tmp_path / name
        (side / name).write_text(name)
        git(side, "add", ".")
        git(side, "commit", "-qm", name)
        sides.append(side)
    git(sides[1], "gc", "-q")
    with Objects(".git", [DiskTree(p) for p in (base, *sides)], SHA1) as objects:
        for side in sides:
            for name, found in _all(side).items():
                assert objects.read(bytes.fromhex(name)) == found
        wanted = _all(sides[0])
        name = next(iter(wanted))
        assert objects.write(*wanted[name]) == bytes.fromhex(name)
        assert not objects.new
        oid = objects.write("blob", b"new")
        assert objects.write("blob", b"new") == oid
        assert objects.new == {oid: ("blob", b"new")} and objects.read(oid) == ("blob", b"new")
        assert objects.has(oid) and objects.size(oid) == 3


def test_a_damaged_copy_is_passed_over_when_another_tree_has_a_good_one(tmp_path: Path) -> None:
    good, bad = _history(tmp_path / "good"), tmp_path / "bad"
    head = bytes.fromhex(git(good, "rev-parse", "HEAD").decode())
    (bad / ".git" / loose_path(head)).parent.mkdir(parents=True)
    for damage in (b"", b"nonsense", loose_bytes("commit", b"other"), loose_bytes("blob", b"")[:-3]):
        (bad / ".git" / loose_path(head)).write_bytes(damage)
        with Objects(".git", [DiskTree(bad), DiskTree(good)], SHA1) as objects:
            assert objects.commit(head).message == b"number 11\n"
        with Objects(".git", [DiskTree(bad)], SHA1) as objects:
            with pytest.raises(CorruptObject, match=head.hex()):
                objects.read(head)


def test_objects_of_repositories_that_lend_theirs_are_found(tmp_path: Path) -> None:
    _history(tmp_path / "w/lender")
    git(tmp_path / "w", "clone", "-q", "--shared", "lender", "absolute")
    git(tmp_path / "w", "clone", "-q", "--shared", "absolute", "twice")
    alternates = tmp_path / "w/absolute/.git/objects/info/alternates"
    assert alternates.read_text().startswith(str(tmp_path))
    head = bytes.fromhex(git(tmp_path / "w/twice", "rev-parse", "HEAD").decode())
    tree = DiskTree(tmp_path / "w")
    with Objects("twice/.git", [tree], SHA1, mount=str(tmp_path / "w")) as objects:
        assert objects.read(head)[0] == "commit"
    for mount in (None, "/elsewhere", str(tmp_path / "w/lend")):
        with Objects("twice/.git", [tree], SHA1, mount=mount) as objects:
            assert not objects.has(head)
    alternates.write_text("../../../lender/.git/objects\n")
    with Objects("absolute/.git", [tree], SHA1) as objects:
        assert objects.read(head)[0] == "commit"
    alternates.write_text("../../../../../../lender/.git/objects\n")
    with Objects("absolute/.git", [tree], SHA1) as objects:
        assert not objects.has(head)
    alternates.write_text("../../../absolute/.git/objects\n")
    with Objects("absolute/.git", [tree], SHA1) as objects:
        assert not objects.has(head)


def test_a_file_that_unpacks_to_more_than_it_says_is_refused(tmp_path: Path) -> None:
    repo = repository(tmp_path / "r")
    oid = os.urandom(20)
    file = repo / ".git" / loose_path(oid)
    file.parent.mkdir()
    bomb = zlib.compress(b"blob 10\0" + bytes(4 << 20), 9)
    for body, error in (
        (bomb, CorruptObject),
        (zlib.compress(b"blob %d\0" % (1 << 40)), ObjectTooLarge),
        (zlib.compress(b"blob 010\0" + bytes(10)), CorruptObject),
        (zlib.compress(b"blob -1\0"), CorruptObject),
        (zlib.compress(b"tree" + b"1" * 100), CorruptObject),
    ):
        file.write_bytes(body)
        with Objects(".git", [DiskTree(repo)], SHA1) as objects, pytest.raises(error):
            objects.read(oid)


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*out, number])


def _pack(folder: Path, rows: list[tuple[bytes, bytes]], name: str = "p") -> list[int]:
    """Write a pack of raw entries with its index; returns their offsets."""
    body, offsets = b"PACK" + struct.pack(">II", 2, len(rows)), list[int]()
    for _, raw in rows:
        offsets.append(len(body))
        body += raw
    checksum = SHA1.oid_of("blob", body)
    order = sorted(range(len(rows)), key=lambda n: rows[n][0])
    fanout = [sum(row[0][0] <= first for row in rows) for first in range(256)]
    index = b"\377tOc\0\0\0\2" + struct.pack(">256I", *fanout) + b"".join(rows[n][0] for n in order)
    index += bytes(4 * len(rows)) + b"".join(struct.pack(">I", offsets[n]) for n in order) + checksum
    (folder / f"{name}.pack").write_bytes(body + checksum)
    (folder / f"{name}.idx").write_bytes(index + bytes(20))
    return offsets


def test_many_packs_are_read_with_few_descriptors(tmp_path: Path) -> None:
    folder = tmp_path / "r/objects/pack"
    folder.mkdir(parents=True)
    names = [SHA1.oid_of("blob", b"%03d" % n) for n in range(100)]
    for n, name in enumerate(names):
        _pack(folder, [(name, b"\x33" + zlib.compress(b"%03d" % n))], f"p{n}")
    before = len(os.listdir("/proc/self/fd"))
    with Objects("r", [DiskTree(tmp_path)], SHA1) as objects:
        for n in (*range(100), *reversed(range(100))):
            assert objects.read(names[n]) == ("blob", b"%03d" % n)
        assert before < len(os.listdir("/proc/self/fd")) <= before + OPEN_MAX
    assert len(os.listdir("/proc/self/fd")) <= before


def test_deltas_in_a_circle_and_numbers_out_of_range_are_refused(tmp_path: Path) -> None:
    folder = tmp_path / "r/objects/pack"
    folder.mkdir(parents=True)
    a, b = b"a" * 20, b"b" * 20
    delta = zlib.compress(_varint(3) + _varint(3) + b"\x03abc")
    size = len(_varint(3) * 2) + 4
    head = bytes([7 << 4 | size])
    for rows in (
        [(a, head + b + delta), (b, head + a + delta)],  # each the other's base
        [(a, head + a + delta)],
        [(a, head + b"c" * 20 + delta)],  # a base that is not there
        [(a, bytes([6 << 4 | size]) + b"\x7f" + delta)],  # a base before the pack
        [(a, bytes([6 << 4 | size]) + b"\xff" * 40)],
        [(a, b"\xff" * 40)],  # a size that never ends
        [(a, b"\xb0")],
        [(a, bytes([5 << 4 | size]) + delta)],  # a kind that does not exist
    ):
        _pack(folder, rows)
        with Objects("r", [DiskTree(tmp_path)], SHA1) as objects:
            assert objects.has(a)
            with pytest.raises(CorruptObject):
                objects.read(a)
            with pytest.raises(CorruptObject):
                objects.header(a)


@pytest.mark.parametrize(
    "delta",
    [
        b"",
        b"\x80" * 20,
        _varint(9) + _varint(1) + b"\x01x",  # another base
        _varint(4) + _varint(1 << 40),
        _varint(4) + _varint(4),
        _varint(4) + _varint(4) + b"\x00",
        _varint(4) + _varint(4) + b"\x05ab",
        _varint(4) + _varint(4) + b"\x91\x03\x04",  # a copy beyond the end
        _varint(4) + _varint(4) + b"\x91\x01",
        _varint(4) + _varint(2) + b"\x90\x04" * 3,
    ],
)
def test_a_delta_that_is_wrong_is_refused(delta: bytes) -> None:
    with pytest.raises((CorruptObject, ObjectTooLarge)):
        apply_delta(b"base", delta)


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, dict[str, tuple[str, bytes]]]]:
    repo = _history(tmp_path_factory.mktemp("packed") / "r")
    git(repo, "repack", "-adqf")
    yield repo, _all(repo)


def _flip(repo: Path, wanted: dict[str, tuple[str, bytes]], data: st.DataObject) -> None:
    """Change some bytes of a pack or its index: each object is right, or refused."""
    suffix = data.draw(st.sampled_from([".idx", ".pack"]))
    (file,) = repo.glob(f".git/objects/pack/*{suffix}")
    file.chmod(0o600)
    whole = file.read_bytes()
    changed = bytearray(whole)
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(whole) - 1))
        changed[at] = data.draw(st.integers(0, 255))
    cut = data.draw(st.sampled_from([0, 0, 0, 1, 100]))
    try:
        file.write_bytes(bytes(changed[: len(changed) - cut]))
        with Objects(".git", [DiskTree(repo)], SHA1) as objects:
            for name, found in wanted.items():
                try:
                    assert objects.read(bytes.fromhex(name)) == found
                except GitError as error:
                    assert name in str(error)
                try:
                    objects.header(bytes.fromhex(name))
                except GitError:
                    continue
    finally:
        file.write_bytes(whole)


@given(st.data())
@settings(max_examples=25, deadline=None)
def test_a_damaged_pack_gives_right_objects_or_none(
    packed: tuple[Path, dict[str, tuple[str, bytes]]], data: st.DataObject
) -> None:
    _flip(*packed, data)


@pytest.mark.soak
@given(st.data())
@settings(max_examples=3000, deadline=None)
def test_a_pack_damaged_in_many_ways_gives_right_objects_or_none(
    packed: tuple[Path, dict[str, tuple[str, bytes]]], data: st.DataObject
) -> None:
    _flip(*packed, data)


def test_what_one_merge_writes_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    repo = repository(tmp_path / "r")
    monkeypatch.setattr(objects_module, "NEW_BYTES_MAX", 10)
    with Objects(".git", [DiskTree(repo)], SHA1) as objects:
        objects.write("blob", b"12345678")
        with pytest.raises(ObjectTooLarge):
            objects.write("blob", b"123")
