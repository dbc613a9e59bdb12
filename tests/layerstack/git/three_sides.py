"""Three copies of one repository, which the real git changes: base, ours and head."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import NamedTuple

from layerstack.git.git_index import GitIndex
from layerstack.git.object_format import SHA1, ObjectFormat
from layerstack.git.objects import Objects
from layerstack.git.ref_store import RefMap, read_refs
from tests.git_trees import DiskTree, git

ROOT = ".git"


class Sides(NamedTuple):
    """The directories of the three work trees."""

    base: Path
    ours: Path
    head: Path

    @property
    def trees(self) -> tuple[DiskTree, DiskTree, DiskTree]:
        return DiskTree(self.base), DiskTree(self.ours), DiskTree(self.head)

    @property
    def refs(self) -> tuple[RefMap, RefMap, RefMap]:
        base, ours, head = (read_refs(ROOT, tree) for tree in self.trees)
        return base, ours, head

    def objects(self, fmt: ObjectFormat = SHA1) -> Objects:
        return Objects(ROOT, self.trees, fmt)

    def index_of(self, side: Path) -> GitIndex | None:
        path = side / ROOT / "index"
        return GitIndex.parse(path.read_bytes(), SHA1) if path.exists() else None

    def tree(self, side: Path, name: str = "HEAD") -> bytes:
        return bytes.fromhex(git(side, "rev-parse", f"{name}^{{tree}}").decode())

    def log(self, side: Path, name: str) -> bytes | None:
        path = side / ROOT / "logs" / name
        return path.read_bytes() if path.exists() else None


def three_of(base: Path) -> Sides:
    """Copy the repository at `base` to two directories beside it."""
    sides = Sides(base, base.with_name("ours"), base.with_name("head"))
    for copy in sides[1:]:
        shutil.copytree(base, copy, symlinks=True)
    return sides


def write(folder: Path, **files: str | None) -> None:
    """Write files, or delete them with None; `__` in a name is a slash."""
    for name, text in files.items():
        path = folder / name.replace("__", "/")
        if text is None:
            path.unlink()
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)


def commit(folder: Path, message: str, **files: str | None) -> str:
    """Write files, commit everything, and return the id in hex."""
    write(folder, **files)
    git(folder, "add", "-A")
    git(folder, "commit", "-q", "--allow-empty", "-m", message)
    return rev(folder, "HEAD")


def rev(folder: Path, name: str) -> str:
    return git(folder, "rev-parse", "--verify", name).decode().strip()


def apply_files(folder: Path, files: dict[str, bytes | None]) -> None:
    """Do with the repository of `folder` what `ref_files` and `merge_logs` list."""
    for below, data in files.items():
        path = folder / ROOT / below
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        elif path.exists():
            path.unlink()
        if data is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)


def add_objects(target: Path, *sources: Path) -> None:
    """Unite the objects, as a publication does."""
    for source in sources:
        shutil.copytree(source / ROOT / "objects", target / ROOT / "objects", dirs_exist_ok=True)


def for_each_ref(folder: Path) -> dict[bytes, bytes]:
    """Refs as git lists them: name -> id in hex."""
    rows = git(folder, "for-each-ref", "--format=%(objectname) %(refname)").splitlines()
    return {name: oid for oid, _, name in (row.partition(b" ") for row in rows)}
