"""Edits of a tree like those of programs, one operation at a time, each chosen by a few small numbers that
hypothesis draws and shrinks.

The same numbers on the same tree make the same edit. An operation that the file system refuses is like a
program that failed: its earlier changes stay.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable
from typing import NamedTuple

from hypothesis import strategies as st

from tests.trees import IGNORES, MODES, NAMES, TEXTS

COMMON_NAMES = (*NAMES[:4] * 4, *NAMES[4:6] * 2, *NAMES[6:])
MOST_ENTRIES = 90
DEEPEST = 4


class Op(NamedTuple):
    """The name of a method of Hand and the numbers that decide between its possibilities."""

    name: str
    numbers: bytes

    def aimed(self, first: int) -> Op:
        """The same, with another first choice: mostly that of the path."""
        return Op(self.name, bytes([first]) + self.numbers[1:])


class Hand:
    """Editor of the tree at `root`."""

    def __init__(self, root: str) -> None:
        self.root = root
        self.numbers = iter(b"")
        self.folders: list[str] = []
        self.dirs: list[str] = []
        self.files: list[str] = []
        self.links: list[str] = []
        self.specials: list[str] = []

    def do(self, op: Op, within: str = "") -> bool:
        """Perform an operation; return False when the file system refused. `within`: directory for the
        operation, if it exists.
        """
        self.numbers = iter(op.numbers)
        self.scan()
        self.folders = self.dirs[1:]
        full = f"{self.root}/{within}"
        if within and full in self.dirs:
            self.dirs = self.folders = [d for d in self.dirs if d == full or d.startswith(full + "/")]
            self.files = [f for f in self.files if f.startswith(full + "/")]
            self.links = [f for f in self.links if f.startswith(full + "/")]
        method: Callable[[], None] = getattr(self, op.name)
        try:
            method()
        except (OSError, IndexError, shutil.Error):
            return False
        return True

    def scan(self) -> None:
        self.dirs, self.files, self.links, self.specials = [self.root], [], [], []

        def visit(folder: str) -> None:
            with os.scandir(folder) as entries:
                found = sorted(entries, key=lambda e: os.fsencode(e.name))
            for entry in found:
                if entry.is_symlink():
                    self.links.append(entry.path)
                elif entry.is_dir():
                    self.dirs.append(entry.path)
                    visit(entry.path)
                elif entry.is_file():
                    self.files.append(entry.path)
                else:
                    self.specials.append(entry.path)

        visit(self.root)

    # Choices

    def number(self, below: int) -> int:
        return next(self.numbers, 0) % below

    def of(self, some: list[str]) -> str:
        if not some:
            raise IndexError
        return some[self.number(len(some))]

    def a_dir(self) -> str:
        return self.of(self.folders)

    def a_thing(self) -> str:
        return self.of(self.folders + self.files + self.links)

    def a_new_path(self) -> str:
        """In an existing directory that is not deep; often a name that is taken."""
        if len(self.dirs) + len(self.files) > MOST_ENTRIES:
            raise IndexError
        depth = self.root.count("/")
        folder = self.of([d for d in self.dirs if d.count("/") - depth < DEEPEST])
        path = f"{folder}/{COMMON_NAMES[self.number(len(COMMON_NAMES))]}"
        if path in self.specials:
            raise IndexError  # opening a FIFO would wait
        return path

    def text(self, old: bytes | None = None) -> bytes:
        """A new text, or an edit of the old one in one or two places."""
        if old is None or b"\0" in old or self.number(4) == 3:
            return TEXTS[self.number(len(TEXTS))]
        lines = old.splitlines(keepends=True)
        for _ in range(1 + self.number(2)):
            at, what = self.number(len(lines) + 1), self.number(8)
            if what < 4:
                lines[at : at + 1] = [b"changed %d\n" % what]
            elif what < 6:
                lines[at:at] = [b"new %d\n" % what]
            else:
                del lines[at : at + 1]
        return b"".join(lines)

    @staticmethod
    def read(path: str) -> bytes:
        with open(path, "rb") as file:
            return file.read()

    @staticmethod
    def put(path: str, data: bytes, mode: str = "wb") -> None:
        with open(path, mode) as file:
            file.write(data)

    # Operations

    def write(self) -> None:
        path = self.of(self.files)
        self.put(path, self.text(self.read(path)))

    def write_new(self) -> None:
        path = self.a_new_path()
        self.put(path, self.text())

    def replace(self) -> None:
        path = self.of(self.files)
        self.put(path + "~", self.text(self.read(path)))
        os.rename(path + "~", path)

    def append(self) -> None:
        self.put(self.of(self.files), b"appended %d\n" % self.number(3), "ab")

    def chmod(self) -> None:
        os.chmod(self.of(self.files), MODES[self.number(4)])

    def chmod_dir(self) -> None:
        os.chmod(self.of(self.dirs), MODES[self.number(4)] | 0o700)

    def rename(self) -> None:
        os.rename(self.of(self.files + self.links), self.a_new_path())

    def rename_dir(self) -> None:
        self.move(self.a_dir(), self.a_new_path())

    @staticmethod
    def move(old: str, new: str) -> None:
        """As mv does: a directory that cannot be renamed (EXDEV, without redirects) is copied and removed."""
        if new.startswith(old + "/"):
            raise OSError
        try:
            os.rename(old, new)
        except OSError as error:
            if os.path.lexists(new):
                raise
            shutil.copytree(old, new, symlinks=True)
            shutil.rmtree(old)
            del error

    def away_and_back(self) -> None:
        path = self.a_dir()
        self.move(path, path + "~")
        self.move(path + "~", path)

    def away_back_and_more(self) -> None:
        path = self.a_dir()
        self.move(path, path + "~")
        self.put(f"{path}~/{COMMON_NAMES[self.number(4)]}", self.text())
        self.move(path + "~", path)

    def exchange(self) -> None:
        one, two = self.a_thing(), self.a_thing()
        if one == two or one.startswith(two + "/") or two.startswith(one + "/"):
            raise IndexError
        self.move(one, one + "~") if os.path.isdir(one) else os.rename(one, one + "~")
        self.move(two, one) if os.path.isdir(two) else os.rename(two, one)
        self.move(one + "~", two) if os.path.isdir(one + "~") else os.rename(one + "~", two)

    def rm(self) -> None:
        os.unlink(self.of(self.files + self.links))

    def rm_r(self) -> None:
        shutil.rmtree(self.a_dir())

    def recreate(self) -> None:
        """rm -r, mkdir, some of the files again: overlayfs makes it opaque."""
        path = self.a_dir()
        mode = os.stat(path).st_mode & 0o7777
        kept = [
            (n, self.read(f"{path}/{n}"))
            for n in sorted(os.listdir(path), key=os.fsencode)
            if os.path.isfile(f"{path}/{n}")
        ]
        shutil.rmtree(path)
        os.mkdir(path)
        if self.number(4):
            os.chmod(path, mode)
        for name, data in kept:
            what = self.number(4)
            if what:
                self.put(f"{path}/{name}", data if what > 1 else self.text(data))
        if self.number(2):
            self.put(f"{path}/{COMMON_NAMES[self.number(4)]}", self.text())

    def copy_tree(self) -> None:
        path, new = self.a_dir(), self.a_new_path()
        if new.startswith(path + "/"):
            raise IndexError
        shutil.copytree(path, new, symlinks=True)

    def bounce(self) -> None:
        """Copied aside, removed, copied back: nothing changed but every inode."""
        path, aside = self.a_dir(), f"{self.root}/~aside"
        shutil.copytree(path, aside, symlinks=True)
        shutil.rmtree(path)
        shutil.copytree(aside, path, symlinks=True)
        shutil.rmtree(aside)

    def symlink(self) -> None:
        path = self.a_new_path()
        os.symlink(("a", "b", "../c", "/abs")[self.number(4)], path)

    def link(self) -> None:
        os.link(self.of(self.files), self.a_new_path())

    def mkdir(self) -> None:
        os.mkdir(self.a_new_path())

    def mkdir_and_file(self) -> None:
        path = self.a_new_path()
        os.mkdir(path)
        self.put(f"{path}/{COMMON_NAMES[self.number(4)]}", self.text())

    def deep(self) -> None:
        path = f"{self.a_new_path()}/{'abc'[self.number(3)]}/{'ab'[self.number(2)]}"
        os.makedirs(path)
        self.put(f"{path}/{'abc'[self.number(3)]}", self.text())

    def morph(self) -> None:
        """Replace a path by an entry of another kind."""
        path = self.a_thing()
        if os.path.isdir(path) and not os.path.islink(path):
            shutil.rmtree(path)
        else:
            os.unlink(path)
        what = self.number(4)
        if what == 0:
            self.put(path, self.text())
        elif what == 1:
            os.symlink("a", path)
        elif what == 2:
            os.mkdir(path)
            self.put(f"{path}/{'abc'[self.number(3)]}", self.text())
        else:
            os.mkfifo(path)

    def fifo(self) -> None:
        os.mkfifo(self.a_new_path())

    def touch(self) -> None:
        os.utime(self.of(self.files + self.dirs))

    def open_only(self) -> None:
        os.close(os.open(self.of(self.files), os.O_RDWR))

    def create_delete(self) -> None:
        path = self.a_new_path()
        if os.path.lexists(path):
            raise IndexError
        self.put(path, b"")
        os.unlink(path)

    def xattr(self) -> None:
        path, name = self.of(self.files + self.dirs), ("user.a", "user.b")[self.number(2)]
        value = self.number(3)
        if value:
            os.setxattr(path, name, b"%d" % value)
        else:
            os.removexattr(path, name)

    def database(self) -> None:
        """What SQLite writes: the file alone, its log alone, both; or it folds the log into the file and
        removes it.
        """
        path = f"{self.of(self.dirs)}/u.db"
        what, text = self.number(6), b"page %d" % self.number(3)
        if os.path.isdir(path) or path in self.specials:
            raise IndexError
        if what in (0, 1, 5):
            self.put(path, b"SQLite format 3\0" + text if what else b"")
        if what in (1, 2):
            self.put(path + "-wal", text)
        if what in (2, 3):
            self.put(path + "-shm", text)
        if what in (4, 5):
            os.unlink(path + "-wal")

    def store_of_keys(self) -> None:
        """What LMDB and LevelDB write."""
        path, what, text = self.of(self.dirs), self.number(6), b"%d" % self.number(3)
        if what == 0:
            self.put(f"{path}/data.mdb", bytes(16) + b"\xde\xc0\xef\xbe" + text)
        elif what == 1:
            self.put(f"{path}/lock.mdb", text)
        elif what == 2:
            self.put(f"{path}/MANIFEST-000001", text)
            self.put(f"{path}/CURRENT", b"MANIFEST-000001\n")
        elif what == 3:
            self.put(f"{path}/00000%d.log" % self.number(2), text)
        elif what == 4:
            self.put(f"{path}/LOG", text)
        else:
            os.unlink(f"{path}/000000.log")

    def derived_file(self) -> None:
        """Byte code that is compared with its source, byte code that is not, a file of a cache; in a
        directory with a tag a source too.
        """
        path, what, text = self.of(self.dirs), self.number(4), b"%d" % self.number(3)
        folder, name = (
            ("__pycache__", "m.cpython-311.pyc"),
            (".ruff_cache", "x"),
            ("tagged", "x"),
            ("__pycache__", "u.pyc"),
        )[what]
        os.makedirs(f"{path}/{folder}", exist_ok=True)
        if folder == "tagged":
            self.put(f"{path}/{folder}/CACHEDIR.TAG", b"Signature: 8a477f597d28d172789f06886806bc55\n")
            if self.number(2):
                name = "x.o"
        self.put(f"{path}/{folder}/{name}", b"\x00\x00\r\n" + (bytes(4), b"\1\0\0\0")[what // 3] + text)

    def box(self) -> None:
        """A unit by the configuration."""
        path = f"{self.of(self.dirs)}/box"
        os.makedirs(path, exist_ok=True)
        self.put(f"{path}/{'ab'[self.number(2)]}", b"%d" % self.number(3))

    def sparse(self) -> None:
        """A file with a hole."""
        path = self.a_new_path()
        if os.path.isdir(path):
            raise IndexError
        with open(path, "wb") as file:
            file.seek(3 << 16)
            file.write(b"tail %d" % self.number(3))

    def touch_long_ago(self) -> None:
        os.utime(self.of(self.files + self.dirs), ns=(10**18, 10**18 + self.number(200)))

    def gitignore(self) -> None:
        path = f"{self.of(self.dirs)}/.gitignore"
        with contextlib.suppress(IsADirectoryError):
            self.put(path, IGNORES[self.number(len(IGNORES))])


WEIGHTS = {
    "write": 6, "write_new": 6, "replace": 2, "append": 3, "chmod": 2, "chmod_dir": 3, "rename": 2, "rename_dir": 3, "away_and_back": 1,  # noqa: E501
    "away_back_and_more": 1, "exchange": 1, "rm": 3, "rm_r": 2, "recreate": 3, "copy_tree": 1, "bounce": 1, "symlink": 2, "link": 1,  # noqa: E501
    "mkdir": 2, "mkdir_and_file": 5, "deep": 2, "morph": 2, "fifo": 1, "touch": 1, "open_only": 1, "create_delete": 1, "xattr": 2, "gitignore": 1,  # noqa: E501
    "database": 3, "store_of_keys": 2, "derived_file": 2, "box": 1, "sparse": 1, "touch_long_ago": 1,
}  # fmt: skip

ops = st.builds(
    Op,
    st.sampled_from([name for name, weight in WEIGHTS.items() for _ in range(weight)]),
    st.binary(min_size=8, max_size=8),
)
few_ops = st.lists(ops, min_size=1, max_size=5)
