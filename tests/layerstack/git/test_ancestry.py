"""Ancestors, merge bases, the commits between two, and missing objects: as git itself finds them."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from layerstack.git import ancestry
from layerstack.git.commits import CommitLinks
from layerstack.git.kept_refs import add_kept_refs
from layerstack.git.object_format import SHA1, CorruptObject, MissingObject, ObjectTooLarge, Oid, loose_path
from layerstack.git.objects import Objects
from layerstack.git.ref_store import RefValue
from tests.git_trees import DiskTree, git, repository

COMMITS = 40


def _random_history(folder: Path, seed: int, count: int = COMMITS) -> tuple[Path, list[str]]:
    """A graph of commits with merges, several roots, and dates that often fall."""
    repo = repository(folder)
    chance = random.Random(seed)
    stream: list[str] = []
    wrong = chance.random() < 0.5
    for n in range(1, count + 1):
        when = 1700000000 + (chance.randrange(100_000) if wrong else n * 60 + chance.randrange(60))
        stream.append(
            f"commit refs/heads/c{n}\nmark :{n}\ncommitter A <a@b> {when} +0000\ndata 2\n{n % 10}\n"
        )
        parents = chance.sample(range(max(1, n - 6), n), min(n - 1, chance.choice([0, 1, 1, 1, 1, 2, 3])))
        for at, parent in enumerate(parents):
            stream.append(f"{'merge' if at else 'from'} :{parent}\n")
        stream.append(f"M 644 inline d/f{n}\ndata 3\n{n:03}\n\n")
    git(repo, "fast-import", "--quiet", "--export-marks=m", data="".join(stream).encode())
    git(repo, "pack-refs", "--all")
    marks = dict(line.split() for line in (repo / "m").read_text().splitlines())
    return repo, [marks[f":{n}"] for n in range(1, count + 1)]


def _lines(repo: Path, *words: str) -> list[Oid]:
    return [bytes.fromhex(line) for line in git(repo, *words).decode().split()]


def test_tips_that_no_ref_reaches_are_found_by_one_walk(tmp_path: Path) -> None:
    class Counted(Objects):
        reads = 0

        def links(self, oid: Oid) -> CommitLinks:
            self.reads += 1
            return super().links(oid)

    repo = repository(tmp_path)
    stream = "".join(
        f"commit refs/heads/main\ncommitter A <a@b> {1700000000 + n} +0000\ndata 2\n{n % 10}\n\n"
        for n in range(COMMITS)
    )
    git(repo, "fast-import", "--quiet", data=stream.encode())
    names = [oid.hex().encode() for oid in _lines(repo, "rev-list", "main")]
    refs = {b"refs/heads/b%d" % n: RefValue(name) for n, name in enumerate(names) if n % 2}
    with Counted(".git", [DiskTree(repo)], SHA1) as objects:
        lost = add_kept_refs(objects, refs, [bytes.fromhex(name.decode()) for name in names], "ada")
        assert lost == [b"refs/eos/kept/ada"] and refs[lost[0]].oid == names[0]
        assert objects.reads <= COMMITS


def _compare(folder: Path, seed: int, pairs: int) -> None:
    repo, names = _random_history(folder, seed)
    reached: dict[str, set[str]] = {}  # exact, whatever the dates are
    for row in git(repo, "rev-list", "--all", "--topo-order", "--reverse", "--parents").decode().splitlines():
        name, *parents = row.split()
        reached[name] = {name}.union(*(reached[parent] for parent in parents))
    chance = random.Random(seed)
    with Objects(".git", [DiskTree(repo)], SHA1) as objects:
        for _ in range(pairs):
            a, b = chance.choice(names), chance.choice(names)
            x, y = bytes.fromhex(a), bytes.fromhex(b)
            assert ancestry.is_ancestor(objects, x, y) == (a in reached[b])
            common = reached[a] & reached[b]
            best = {c for c in common if not any(c != d and c in reached[d] for d in common)}
            assert {oid.hex() for oid in ancestry.merge_bases(objects, x, y)} == best
            assert {oid.hex() for oid in ancestry.between(objects, x, y)} == reached[b] - reached[a]
        for _ in range(pairs):
            tips, refs = chance.sample(names, 5), chance.sample(names, chance.randrange(3))
            held = set[str]().union(*(reached[ref] for ref in refs))
            held.update(*(reached[tip] - {tip} for tip in tips))
            found = ancestry.unreached(objects, map(bytes.fromhex, tips), map(bytes.fromhex, refs))
            assert {oid.hex() for oid in found} == set(tips) - held
        for name in chance.sample(names, 4):
            whole = ancestry.between(objects, None, bytes.fromhex(name))
            assert whole == _lines(repo, "rev-list", "--topo-order", "--reverse", name)


@pytest.mark.parametrize("seed", range(3))
def test_walks_find_what_git_finds_in_random_histories(seed: int, tmp_path: Path) -> None:
    _compare(tmp_path / "r", seed, 80)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(100, 160))
def test_walks_find_what_git_finds_in_many_histories(seed: int, tmp_path: Path) -> None:
    _compare(tmp_path / "r", seed, 800)


def test_the_commits_between_two_are_in_the_order_of_git(tmp_path: Path) -> None:
    for seed in (1, 2, 4):
        repo, names = _random_history(tmp_path / str(seed), seed, 25)
        with Objects(".git", [DiskTree(repo)], SHA1) as objects:
            for base, tip in ((0, 24), (5, 23), (11, 22), (20, 10)):
                wanted = _lines(repo, "rev-list", "--topo-order", "--reverse", f"{names[base]}..{names[tip]}")
                found = ancestry.between(objects, bytes.fromhex(names[base]), bytes.fromhex(names[tip]))
                assert found == wanted


class _Counted(Objects):
    """Count the commits that a walk reads."""

    reads = 0

    def read(self, oid: Oid, kind: str | None = None) -> tuple[str, bytes]:
        self.reads += 1
        return super().read(oid, kind)


@pytest.fixture(scope="module")
def line(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, list[str]]]:
    """A long line of 600 commits."""
    repo = repository(tmp_path_factory.mktemp("line") / "r")
    stream = "".join(
        f"commit refs/heads/main\nmark :{n}\ncommitter A <a@b> {1700000000 + n} +0000\ndata 0\n"
        f"M 644 inline f{n % 7}\ndata 4\n{n:04}\n"
        for n in range(1, 601)
    )
    git(repo, "fast-import", "--quiet", data=stream.encode())
    yield repo, git(repo, "rev-list", "--reverse", "main").decode().split()


def test_a_walk_costs_the_difference_of_two_histories(line: tuple[Path, list[str]]) -> None:
    repo, names = line
    base, tip = bytes.fromhex(names[590]), bytes.fromhex(names[599])
    with _Counted(".git", [DiskTree(repo)], SHA1) as objects:
        assert [oid.hex() for oid in ancestry.between(objects, base, tip)] == names[591:]
        assert objects.reads <= 12
        objects.reads = 0
        assert ancestry.is_ancestor(objects, base, tip) and not ancestry.is_ancestor(objects, tip, base)
        assert objects.reads <= 24
        objects.reads = 0
        assert not ancestry.missing(objects, [tip], [base])
        assert objects.reads <= 40


def test_a_walk_has_a_bound(line: tuple[Path, list[str]], monkeypatch: pytest.MonkeyPatch) -> None:
    repo, names = line
    monkeypatch.setattr(ancestry, "WALK_MAX", 100)
    with Objects(".git", [DiskTree(repo)], SHA1) as objects:
        with pytest.raises(ObjectTooLarge):
            ancestry.between(objects, None, bytes.fromhex(names[-1]))
    monkeypatch.setattr(ancestry, "OBJECTS_MAX", 5)
    with Objects(".git", [DiskTree(repo)], SHA1) as objects:
        with pytest.raises(ObjectTooLarge):
            ancestry.missing(objects, [bytes.fromhex(names[20])])


def test_the_history_of_a_shallow_repository_ends_where_it_says(
    line: tuple[Path, list[str]], tmp_path: Path
) -> None:
    repo, names = line
    git(tmp_path, "clone", "-q", "--depth", "5", f"file://{repo}", "c")
    tip, outside = bytes.fromhex(names[-1]), bytes.fromhex(names[3])
    with Objects(".git", [DiskTree(tmp_path / "c")], SHA1) as objects:
        assert [oid.hex() for oid in ancestry.between(objects, None, tip)] == names[-5:]
        assert ancestry.missing(objects, [tip]) == []
        with pytest.raises(MissingObject):
            ancestry.is_ancestor(objects, outside, tip)
    (tmp_path / "c/.git/shallow").unlink()
    with Objects(".git", [DiskTree(tmp_path / "c")], SHA1) as objects:
        assert [oid.hex() for oid in ancestry.missing(objects, [tip])] == [names[-6]]
        with pytest.raises(MissingObject):
            ancestry.between(objects, None, tip)


def test_objects_that_a_tip_lacks_are_found_as_fsck_finds_them(tmp_path: Path) -> None:
    repo = repository(tmp_path / "r")
    (repo / "a/b/c").mkdir(parents=True)
    for n in range(4):
        (repo / f"a/b/c/f{n}").write_text(str(n))
        (repo / f"top{n}").write_text(f"top {n}")
        git(repo, "add", ".")
        git(repo, "commit", "-qm", str(n))
        git(repo, "tag", "-am", str(n), f"v{n}")
    tags = [bytes.fromhex(git(repo, "rev-parse", f"v{n}").decode()) for n in range(4)]
    known = bytes.fromhex(git(repo, "rev-parse", "v1^0").decode())
    gone = [
        _lines(repo, "rev-parse", name)[0] for name in ("v3^0:a/b", "v2^0:top2", "v1^0:top1", "v0^0:top0")
    ]
    files = [repo / ".git" / loose_path(oid) for oid in gone]
    saved = [file.read_bytes() for file in files]
    for some in ([], [0], [1], [0, 1], [2], [3], [0, 1, 2, 3]):
        for n in some:
            files[n].unlink()
        with Objects(".git", [DiskTree(repo)], SHA1) as objects:
            assert set(ancestry.missing(objects, [tags[3], tags[3]], [])) == {gone[n] for n in some}
            assert set(ancestry.missing(objects, [tags[3]], [known])) == {gone[n] for n in some if n < 2}
            assert len(ancestry.missing(objects, tags, [], most=1)) == min(1, len(some))
        if some:
            with pytest.raises(Exception, match="fsck"):
                git(repo, "fsck", "--full", "--no-dangling")
        for n in some:
            files[n].write_bytes(saved[n])


def test_a_tree_that_has_a_tree_as_a_file_is_refused(tmp_path: Path) -> None:
    repo = repository(tmp_path / "r")
    inner = git(repo, "mktree", data=b"").decode().strip()
    outer = git(repo, "hash-object", "-t", "tree", "-w", "--stdin", data=b"100644 a\0" + bytes.fromhex(inner))
    name = git(repo, "commit-tree", "-m", "x", outer.decode().strip()).decode()
    with Objects(".git", [DiskTree(repo)], SHA1) as objects, pytest.raises(CorruptObject):
        ancestry.missing(objects, [bytes.fromhex(name)])
