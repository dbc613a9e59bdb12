"""A crowded tree: with so few paths that sessions change the same ones, and with entries that small trees
seldom have.

These are: a directory with more names than capture lists when it is recreated, a file larger than the limit
of texts, directories with xattrs, files that are alone in their directory, two names of one file, a file with
holes. `Crowd` changes it like programs do, chosen by a random generator.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from random import Random

from tests.trees import DIRECTORY, FILE, LINK, Entry, Tree, ancestors

LIMIT = 200
"""Limit in bytes of a text, for the length of a run."""
TEXT = b"".join(b"line %d\n" % n for n in range(14))
LONG = b"".join(b"a long text %d\n" % n for n in range(20))
MANY = tuple(f"big/n{n:02}" for n in range(14))
FILES = ("a", "d/f", "d/g", "d/s/x", "d/s/u/v", "one/only", "big/s/x", "ig/o", "long", *MANY[:3])
FOLDERS = ("", "d", "d/s", "d/s/u", "one", "big", "big/s", "ig")
NEW = ("d/new", "one/new", "big/new", "d/s/new", "d/s/u/new", "big/s/new", "new/x", "ig/new", "d.o")
FOCUS = ("", "", "d", "d/s", "big", "big", "one", "ig")
"""Paths at which the sessions of one history meet: everywhere, or in and at one directory."""
LONG_AGO = 1_000_000_000_000_000_000
"""A time in 2001, in ns, which no clock of a test shows."""
HOLE = 3 << 16


PYC = ("d/s/__pycache__/x.pyc", "d/s/__pycache__/x.pyc", "d/s/__pycache__/unchecked.pyc")
TAG = b"Signature: 8a477f597d28d172789f06886806bc55\n"


def byte_code(path: str, number: int) -> bytes:
    """Return byte code: a header, which for `unchecked` paths excludes a comparison with the source, and
    `number`.
    """
    return b"\0\0\r\n" + (b"\1\0\0\0" if "unchecked" in path else bytes(4)) + b"%d" % number


def crowded(random: Random) -> Tree:
    """Make a crowded tree; a few paths are left out, a few have attributes."""
    owner = (os.geteuid(), os.getegid())
    tree: Tree = {
        "": Entry(DIRECTORY, (0o755, *owner)),
        ".gitignore": Entry(FILE, (0o644, *owner), b"ig/\n*.o\n"),
    }
    bodies = {"long": LONG, "d/g": random.choice((TEXT, b"", b"binary\0one"))}
    for path in (*FILES, *MANY):
        if random.random() < 0.08:
            continue
        for above in ancestors(path):
            tree.setdefault(
                above,
                Entry(DIRECTORY, (random.choice((0o755, 0o755, 0o700)), *owner), b"", some_xattrs(random)),
            )
        tree[path] = Entry(FILE, (0o644, *owner), bodies.get(path, TEXT), some_xattrs(random))
    parts = {path: byte_code(path, 9) for path in PYC} | {
        "d/cache/CACHEDIR.TAG": TAG,
        "d/cache/x": b"x",
        "d/cache/x.o": b"x",
    }
    parts |= {"d/u.db": b"", "d/u.db-wal": b"9"}
    for path, body in parts.items():
        if random.random() < 0.4:
            for above in ancestors(path):
                tree.setdefault(above, Entry(DIRECTORY, (0o755, *owner)))
            tree[path] = Entry(FILE, (0o644, *owner), body)
    tree["l"] = Entry(LINK, (0o777, *owner), b"a")
    return tree


def some_xattrs(random: Random) -> tuple[tuple[str, bytes], ...]:
    return (("user.a", b"0"),) if random.random() < 0.1 else ()


class Crowd:
    """Editor of the crowded tree at `root`, or of what is left of it; mostly at and below the directory
    `focus`.
    """

    def __init__(self, root: str, random: Random, focus: str = "") -> None:
        self.root, self.random = root, random
        self.files, self.folders, self.new = (
            [path for path in some if not focus or path == focus or path.startswith(focus + "/")]
            for some in (FILES, FOLDERS, NEW)
        )
        for some, rest in ((self.files, FILES), (self.folders, FOLDERS), (self.new, NEW)):
            if not some or random.random() < 0.2:
                some.append(random.choice(rest))

    def work(self, most: int = 4) -> int:
        """Make at most so many changes, without those that the file system refuses; return their number."""
        done = 0
        for _ in range(self.random.randint(1, most)):
            with contextlib.suppress(OSError, shutil.Error):
                self.random.choice(self.KINDS)(self)
                done += 1
        return done

    def full(self, path: str) -> str:
        return f"{self.root}/{path}" if path else self.root

    def a_file(self) -> str:
        return self.full(self.random.choice(self.files))

    def a_folder(self) -> str:
        return self.full(self.random.choice(self.folders))

    def a_place(self) -> str:
        return self.full(self.random.choice([path for path in self.files + self.folders + self.new if path]))

    @staticmethod
    def put(full: str, body: bytes) -> None:
        if (
            os.path.isdir(full)
            or os.path.islink(full)
            or (os.path.lexists(full) and not os.path.isfile(full))
        ):
            raise FileExistsError(full)
        os.makedirs(os.path.dirname(full), exist_ok=True)
        with open(full, "wb") as file:
            file.write(body)

    @staticmethod
    def take(full: str) -> None:
        if os.path.isdir(full) and not os.path.islink(full):
            shutil.rmtree(full)
        elif os.path.lexists(full):
            os.unlink(full)

    def edit(self) -> None:
        full = self.a_file()
        if not os.path.isfile(full):
            raise FileNotFoundError(full)
        with open(full, "rb") as file:
            lines = file.read().splitlines(keepends=True)
        what = self.random.randrange(8)
        if what < 5 and lines:
            lines[self.random.choice((1, len(lines) - 2)) % len(lines)] = (
                b"changed %d\n" % self.random.randrange(3)
            )
            self.put(full, b"".join(lines))
        else:
            self.put(full, (b"", b"short\n", b"binary\0two")[what % 3])

    def shorten(self) -> None:
        self.put(self.full("long"), b"short %d\n" % self.random.randrange(3))

    def write_new(self) -> None:
        self.put(self.full(self.random.choice(self.new)), self.random.choice((TEXT, b"", b"new\n")))

    def chmod(self) -> None:
        full = self.a_file()
        os.chmod(full, self.random.choice((0o644, 0o600, 0o755)))

    def chmod_folder(self) -> None:
        os.chmod(self.a_folder(), self.random.choice((0o700, 0o755, 0o711)))

    def xattr(self) -> None:
        full = self.random.choice((self.a_folder, self.a_folder, self.a_file))()
        if self.random.random() < 0.3:
            os.removexattr(full, "user.a")
        else:
            os.setxattr(full, self.random.choice(("user.a", "user.b")), b"%d" % self.random.randrange(3))

    def remove(self) -> None:
        full = self.a_place()
        if not os.path.lexists(full):
            raise FileNotFoundError(full)
        self.take(full)

    def spoil(self, path: str) -> None:
        """Delete the file, or replace it by another."""
        self.take(self.full(path))
        if self.random.random() < 0.5:
            self.put(self.full(path), b"spoiled\n")

    def remove_folder(self) -> None:
        full = self.a_folder()
        if full == self.root:
            raise OSError
        shutil.rmtree(full)

    def scatter(self) -> None:
        """Make a few changes at and below a directory."""
        for folder, folders, _ in os.walk(self.a_folder()):
            folders.sort()
            if self.random.random() < 0.6:
                os.chmod(folder, self.random.choice((0o700, 0o711)))
            if self.random.random() < 0.6:
                self.put(f"{folder}/scattered", b"%d\n" % self.random.randrange(3))

    def make_anew(self) -> None:
        """Run rm -r and mkdir, and restore a few names: with many names missing the opaque xattr stays."""
        full = self.a_folder()
        if full == self.root:
            raise OSError
        status, names = os.stat(full), sorted(os.listdir(full))
        shutil.rmtree(full)
        os.mkdir(full)
        if self.random.random() < 0.7:
            os.chmod(full, status.st_mode & 0o7777)
        for name in self.random.sample(names, min(len(names), self.random.randrange(3))):
            self.put(f"{full}/{name}", self.random.choice((TEXT, b"again\n")))

    def fifo(self) -> None:
        full = self.a_place()
        self.take(full)
        os.mkfifo(full)

    def other_kind(self) -> None:
        full = self.a_place()
        was_folder = os.path.isdir(full) and not os.path.islink(full)
        self.take(full)
        what = self.random.randrange(3)
        if what == 0:
            os.symlink(self.random.choice(("a", "b")), full)
        elif was_folder:
            self.put(full, self.random.choice((TEXT, b"a file now\n")))
        else:
            self.put(f"{full}/{self.random.choice(('x', 'new'))}", b"inside\n")

    def link(self) -> None:
        os.link(self.a_file(), self.a_place())

    def rename(self) -> None:
        os.rename(self.a_place(), self.a_place())

    def touch(self) -> None:
        """Set a time of long ago on a file or a directory: no other change sets such a time."""
        full = self.random.choice((self.a_folder, self.a_file))()
        os.utime(full, ns=(LONG_AGO, LONG_AGO + self.random.randrange(1 << 40)))

    def age_folders(self) -> None:
        """Set times of long ago on all directories."""
        for path in FOLDERS:
            with contextlib.suppress(OSError):
                os.utime(self.full(path), ns=(LONG_AGO, LONG_AGO + self.random.randrange(1 << 40)))

    def sparse(self) -> None:
        full = self.a_file()
        self.put(full, b"head\n")
        with open(full, "r+b") as file:
            file.seek(HOLE)
            file.write(b"tail %d\n" % self.random.randrange(3))

    def database(self) -> None:
        """Write a part of the files that SQLite writes."""
        full = self.full(self.random.choice(("d/u.db", "d/u.db", "ig/u.db")))
        if self.random.random() < 0.3:  # a session that only reads
            self.put(full + "-shm", b"%d" % self.random.randrange(3))
            return
        if self.random.random() < 0.6:
            self.put(
                full,
                b"" if self.random.random() < 0.3 else b"SQLite format 3\0page %d" % self.random.randrange(3),
            )
        if self.random.random() < 0.5:
            self.put(full + self.random.choice(("-wal", "-wal", "-shm")), b"%d" % self.random.randrange(3))
        elif os.path.exists(full + "-wal") and self.random.random() < 0.5:
            os.unlink(full + "-wal")

    def byte_code(self) -> None:
        """Write byte code that is compared with its source, or byte code that is not."""
        full = self.full(self.random.choice(PYC))
        if self.random.random() < 0.3:
            os.unlink(full)
        else:
            self.put(full, byte_code(full, self.random.randrange(3)))

    def cache(self) -> None:
        """Change a tool's cache directory or its CACHEDIR.TAG."""
        what = self.random.randrange(5)
        if what == 0:
            self.take(self.full("d/cache/CACHEDIR.TAG"))
        elif what == 1:
            self.put(self.full("d/cache/CACHEDIR.TAG"), TAG)
        else:
            self.put(
                self.full(f"d/cache/x{'.o' if what == 2 else ''}"), b"binary\0%d" % self.random.randrange(3)
            )

    def ignores(self) -> None:
        self.put(
            self.full(".gitignore"),
            self.random.choice((b"ig/\n*.o\n", b"*.o\n", b"ig/\n*.o\nd.o\nbig/n0*\n", b"ig/\n")),
        )

    KINDS = (
        edit, edit, edit, edit, shorten, write_new, write_new, chmod, chmod, chmod_folder, chmod_folder, xattr, xattr, xattr, remove, remove,  # noqa: E501
        remove_folder, remove_folder, scatter, scatter, database, database, byte_code, cache, ignores,        make_anew, make_anew, make_anew, fifo, other_kind, link, rename, touch, age_folders, sparse,  # noqa: E501
    )  # fmt: skip
