"""Notes of both sides, merged as `git notes merge -s cat_sort_uniq` merges them."""

from __future__ import annotations

import hashlib
import random
from pathlib import Path

import pytest

from layerstack.git.notes_merge import merge_notes
from layerstack.git.object_format import SHA1
from layerstack.git.objects import Objects
from tests.git_trees import DiskTree, git, repository
from tests.layerstack.git.three_sides import commit, rev

ME = b"Ada <ada@example.org> 1700000000 +0100"


def merged(folder: Path, local: str, remote: str) -> tuple[str, str]:
    """The tree that is written here, and the one that git gives; both refs stay."""
    with Objects(".git", [DiskTree(folder)], SHA1) as objects:
        ids = [bytes.fromhex(rev(folder, f"refs/notes/{name}")) for name in (local, remote)]
        new = merge_notes(objects, ids[0], ids[1], ME, b"refs/notes/" + local.encode())
        if new in ids:
            ours = git(folder, "rev-parse", f"{new.hex()}^{{tree}}").decode().strip()
        else:
            found = objects.commit(new)
            assert found.parents == (ids[0], ids[1])
            ours = found.tree.hex()
    git(folder, "update-ref", "refs/notes/result", f"refs/notes/{local}")
    git(folder, "notes", "--ref", "result", "merge", "-s", "cat_sort_uniq", remote)
    return ours, rev(folder, "refs/notes/result^{tree}")


def many(folder: Path, ref: str, seed: int, count: int, start: str | None = None) -> None:
    """Commit a flat tree of notes about ids that need not exist; a third of the changes are deletions."""
    draw = random.Random(seed)
    out = [f"commit refs/notes/{ref}\ncommitter Ada <ada@example.org> 1700000000 +0100\ndata 1\nx\n"]
    if start is not None:
        out.append(f"from refs/notes/{start}^0\n")
    for _ in range(count):
        about = hashlib.sha1(b"%d" % draw.randrange(2000)).hexdigest()
        lines = "".join(draw.choice("abcde") + "\n" for _ in range(draw.randrange(4)))
        add = f"M 100644 inline {about}\ndata {len(lines)}\n{lines}\n"
        out.append(add if lines and (start is None or draw.randrange(3)) else f"D {about}\n")
    git(folder, "fast-import", "--quiet", "--force", data="".join(out).encode())


@pytest.fixture(scope="module")
def notes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = repository(tmp_path_factory.mktemp("notes"))
    ids = [commit(folder, str(n), a=str(n)) for n in range(5)]
    for one in ids[:3]:
        git(folder, "notes", "--ref", "base", "add", "-m", f"b\na\n{one[:4]}", one)
    for name in ("local", "remote"):
        git(folder, "update-ref", f"refs/notes/{name}", "refs/notes/base")
    git(folder, "notes", "--ref", "local", "append", "-m", "zz\nlocal", ids[0])
    git(folder, "notes", "--ref", "remote", "append", "-m", "zz\nremote", ids[0])
    git(folder, "notes", "--ref", "local", "remove", ids[1])
    git(folder, "notes", "--ref", "remote", "append", "-m", "kept", ids[1])
    git(folder, "notes", "--ref", "local", "append", "-m", "kept", ids[2])
    git(folder, "notes", "--ref", "remote", "remove", ids[2])
    git(folder, "notes", "--ref", "local", "add", "-m", "both\nl", ids[3])
    git(folder, "notes", "--ref", "remote", "add", "-m", "both\nr", ids[3])
    git(folder, "notes", "--ref", "remote", "add", "-m", "new", ids[4])
    git(folder, "notes", "--ref", "alone", "add", "-m", "alone", ids[4])
    return folder


@pytest.mark.parametrize(
    ("local", "remote"),
    [("local", "remote"), ("remote", "local"), ("local", "base"), ("base", "local"), ("local", "alone")],
)
def test_notes_are_merged_to_the_tree_that_git_gives(notes: Path, local: str, remote: str) -> None:
    ours, gits = merged(notes, local, remote)
    assert ours == gits


@pytest.mark.parametrize("count", [40, 2000])
def test_many_notes_get_the_directories_that_git_would_make(tmp_path: Path, count: int) -> None:
    folder = repository(tmp_path / "r")
    many(folder, "base", 1, count)
    many(folder, "local", 2, count // 4, "base")
    many(folder, "remote", 3, count // 4, "base")
    ours, gits = merged(folder, "local", "remote")
    assert ours == gits
