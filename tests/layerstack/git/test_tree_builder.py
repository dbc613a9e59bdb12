"""A tree that is changed path by path is the tree that git makes of the same files."""

from __future__ import annotations

import random
from pathlib import Path

from layerstack.export.tree_builder import TreeBuilder
from layerstack.git.commits import EXECUTABLE, FILE_MODE
from layerstack.git.object_format import SHA1
from layerstack.git.objects import Objects
from layerstack.git.tree_diff import FileValue
from tests.git_trees import DiskTree, git, repository

NAMES = ("a", "a.b", "a0", "b", "c-d")


def test_random_changes_give_the_tree_of_git(tmp_path: Path) -> None:
    root = repository(tmp_path / "r")
    blobs = [
        SHA1.from_hex(git(root, "hash-object", "-w", "--stdin", data=b"%d\n" % n).strip()) for n in range(4)
    ]
    rng = random.Random(7)
    for _ in range(12):
        wanted: dict[bytes, FileValue] = {}
        git(root, "read-tree", "--empty")
        tree = None
        for _ in range(3):  # each time on top of the tree that git wrote
            objects = Objects(".git", [DiskTree(root)], SHA1)
            builder = TreeBuilder(tree, SHA1, objects.tree)
            for _ in range(rng.randrange(1, 12)):
                path = "/".join(rng.choice(NAMES) for _ in range(rng.randrange(1, 4))).encode()
                if rng.random() < 0.35 and wanted:
                    path = rng.choice(sorted(wanted))
                    assert builder.remove(path)
                    del wanted[path]
                    continue
                blob = rng.choice(blobs)
                assert blob is not None
                value = FileValue(rng.choice((FILE_MODE, EXECUTABLE)), blob)
                assert builder.set(path, value) == (wanted.get(path) != value)
                steps = path.split(b"/")
                gone = {b"/".join(steps[:n]) for n in range(1, len(steps))}
                wanted = {p: v for p, v in wanted.items() if p not in gone and not p.startswith(path + b"/")}
                wanted[path] = value
                assert builder.get(path) == value
            written: dict[bytes, bytes] = {}
            mine = builder.write(written.__setitem__)
            rows = b"".join(
                b"%o %s\t%s\0" % (v.mode, v.oid.hex().encode(), p) for p, v in sorted(wanted.items())
            )
            git(root, "read-tree", "--empty")
            git(root, "update-index", "-z", "--index-info", data=rows)
            tree = SHA1.from_hex(git(root, "write-tree").strip())
            assert mine == tree
            assert all(SHA1.oid_of("tree", data) == oid for oid, data in written.items())
            objects.close()
