"""Hostile destinations, hostile streams, and destinations that change under the export: what lies beside is
never touched, and all or nothing is done.

The neighbours of a destination are looked at as a whole after each round: content, modes, owners, times,
names. A destination that nobody changes meanwhile is afterwards as it was, or as a model of the delta says.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import socket
import stat
from pathlib import Path
from typing import NamedTuple

import pytest

from eos_agent.wire.protocol import OperationError
from eos_mcp.export.names import reserved
from layerstack.export import pax
from layerstack.kernel import fsync
from tests import in_namespace
from tests.conftest import soaking
from tests.eos_mcp.export_runs import run
from tests.eos_mcp.forged_journals import forge
from tests.export_streams import SECOND, journals, made, made_by_digests

Entries = list[tuple[pax.Header, bytes]]

NAMES = (b"a", b"b", b"c", b"d", b".git", b".wh.a", b"n\nl", b"\xff\xfe", b" ", b"-rf", b"n" * 240)
ODD_NAMES = (b"..", b".", b"", b"a\0b", b".eos-export-0", b".eos-export-" + b"0" * 32, b"n" * 300, b"/")
TEXTS = (b"", b"x", b"y", b"x" * 5000, b"\0" * 9000)
MODES = (0o644, 0o600, 0o755, 0o444, 0o000, 0o4755, 0o2755, 0o1777)
TIME = 1_700_000_000 * SECOND


class Look(NamedTuple):
    """What a path is, times of directories left out."""

    kind: int
    mode: int
    owner: tuple[int, int]
    body: bytes
    mtime_ns: int


def looks(root: str) -> dict[bytes, Look]:
    out: dict[bytes, Look] = {}
    waiting = [os.fsencode(root)]
    while waiting:
        full = waiting.pop()
        found = os.lstat(full)
        kind, body = stat.S_IFMT(found.st_mode), b""
        if stat.S_ISDIR(found.st_mode):
            waiting += [os.path.join(full, name) for name in os.listdir(full)]
        elif stat.S_ISLNK(found.st_mode):
            body = os.readlink(full)
        elif stat.S_ISREG(found.st_mode):
            with open(full, "rb") as file:
                body = file.read()
        path = full[len(os.fsencode(root)) + 1 :]
        time = 0 if stat.S_ISDIR(found.st_mode) else found.st_mtime_ns
        out[path] = Look(kind, stat.S_IMODE(found.st_mode), (found.st_uid, found.st_gid), body, time)
    return out


def neighbours(root: str) -> dict[bytes, tuple[Look, int]]:
    """All of a tree, times of directories too."""
    return {
        path: (look, os.lstat(os.path.join(os.fsencode(root), path)).st_mtime_ns)
        for path, look in looks(root).items()
    }


def fill_neighbour(root: str) -> None:
    os.makedirs(root + "/sub/.eos-export-0")
    for number, name in enumerate(("authorized_keys", "secret", "sub/file", "sub/.eos-export-0/plan")):
        with open(f"{root}/{name}", "w") as file:
            file.write(name)
        os.chmod(f"{root}/{name}", 0o600)
        os.utime(f"{root}/{name}", ns=(TIME, TIME + number))
    os.symlink("secret", root + "/link")


class Maker:
    """Draws destinations and deltas."""

    def __init__(self, rng: random.Random, folder: str) -> None:
        self.rng, self.folder = rng, folder

    def path(self, odd: float = 0.0) -> bytes:
        names = [
            self.rng.choice(ODD_NAMES if self.rng.random() < odd else NAMES)
            for _ in range(self.rng.choice((1, 1, 2, 2, 3)))
        ]
        return b"/".join(names)

    def mode(self) -> int:
        """Of a file; one that the test itself could read."""
        return self.rng.choice(MODES) | (0o400 if os.geteuid() else 0)

    def destination(self, dest: str) -> None:
        """Something of every sort, much of it meant to lead elsewhere."""
        os.mkdir(dest)
        root = os.fsencode(dest)
        victim = os.fsencode(self.folder) + b"/victim"
        for _ in range(self.rng.randrange(14)):
            full = os.path.join(root, self.path())
            with contextlib.suppress(
                FileExistsError, NotADirectoryError, FileNotFoundError, PermissionError, OSError
            ):
                os.makedirs(os.path.dirname(full), exist_ok=True)
                self._place(full, victim)
        for _ in range(self.rng.randrange(3)):
            name = self.rng.choice((".eos-export-0", ".eos-export-" + "0" * 32, ".eos-export-x"))
            with contextlib.suppress(OSError):
                if self.rng.random() < 0.7:
                    forge(Path(dest), "../victim", self.rng.choice((1, 2)), name)
                else:
                    self._place(os.path.join(root, name.encode()), victim)
        for folder, folders, _ in os.walk(root, topdown=False):
            for name in folders:
                full = os.path.join(folder, name)
                if not os.path.islink(full) and self.rng.random() < 0.3:
                    os.chmod(full, self.rng.choice((0o555, 0o500 if os.geteuid() else 0, 0o2775, 0o1777)))

    def _place(self, full: bytes, victim: bytes) -> None:
        sort = self.rng.randrange(9)
        if sort <= 2:
            with open(full, "xb") as file:
                file.write(self.rng.choice(TEXTS))
            os.chmod(full, self.mode())
            os.utime(full, ns=(TIME, TIME + self.rng.randrange(2) * SECOND))
            if os.geteuid() == 0 and self.rng.random() < 0.3:
                os.chown(full, 1234, 1234)
        elif sort == 3:
            os.symlink(
                self.rng.choice(
                    (victim, victim + b"/secret", b"../victim", b"../../victim/sub", b"a", b"..")
                ),
                full,
            )
        elif sort == 4:
            os.mkfifo(full)
        elif sort == 5:
            with socket.socket(socket.AF_UNIX) as listener:
                listener.bind(full)
        elif sort == 6:
            os.link(victim + b"/" + self.rng.choice((b"secret", b"sub/file")), full)
        elif sort == 7:
            os.mkdir(full)
        else:
            os.makedirs(full + b"/" + self.rng.choice(NAMES))

    def delta(self) -> Entries:
        """A stream that our own agent might send."""
        kinds: dict[bytes, bytes] = {}
        for _ in range(self.rng.randrange(1, 12)):
            path = self.path()
            above = path.rpartition(b"/")[0]
            while above and kinds.get(above, b"d") == b"d":
                kinds[above] = b"d"
                above = above.rpartition(b"/")[0]
            below_no_directory = above != b""
            if not below_no_directory and (kinds.get(path) != b"d"):
                kinds[path] = self.rng.choice((b"f", b"f", b"f", b"l", b"d", b"o", b"w", b"h"))
        out: Entries = []
        files: list[bytes] = []
        for path in sorted(kinds):
            if any(
                kinds.get(path[:at], b"d") not in (b"d", b"o")
                for at, byte in enumerate(path)
                if byte == ord("/")
            ):
                continue
            kind = kinds[path]
            mode, time = self.mode(), TIME + self.rng.randrange(2) * SECOND
            if kind == b"h" and files:
                target = self.rng.choice(files)
                first = next(header for header, _ in out if header.path == target)
                out.append((pax.Header(path, pax.HARD_LINK, first.mode, 0, first.mtime_ns, target), b""))
            elif kind in (b"f", b"h"):
                data = self.rng.choice(TEXTS)
                out.append((pax.Header(path, pax.FILE, mode, len(data), time), data))
                files.append(path)
            elif kind == b"l":
                target = self.rng.choice((b"/etc/passwd", b"../victim", b"../../victim/secret", b"a", b"."))
                out.append((pax.Header(path, pax.SYMLINK, 0o777, 0, time, target), b""))
            elif kind == b"w":
                out.append((pax.Header(path, pax.FILE, 0o644, kind=pax.WHITEOUT), b""))
            else:
                out.append(
                    (
                        pax.Header(
                            path, pax.DIRECTORY, mode | 0o700, kind=pax.OPAQUE if kind == b"o" else b""
                        ),
                        b"",
                    )
                )
        return out

    def spoil(self, delta: Entries) -> Entries:
        """The same with entries that no agent of ours sends."""
        out = list(delta)
        for _ in range(self.rng.randrange(1, 4)):
            at, odd = self.rng.randrange(len(out) + 1), self.path(odd=0.5)
            header, data = out[at % len(out)] if out else (pax.Header(b"a", pax.FILE, 0o644), b"")
            what = self.rng.randrange(9)
            if what == 0:
                out.insert(at, (header._replace(path=odd), data))
            elif what == 1:
                out.insert(at, (pax.Header(odd, pax.HARD_LINK, 0o4755, target=self.path(odd=0.7)), b""))
            elif what == 2:
                xattrs = {
                    b"security.capability": b"\1\0\0\2" + bytes(16),
                    b"system.posix_acl_access": b"\2\0\0\0",
                    b"trusted.overlay.opaque": b"y",
                }
                out[at % max(1, len(out)) : at % max(1, len(out)) + 1] = [
                    (header._replace(xattrs=xattrs, earlier=b""), data)
                ]
            elif what == 3:
                out.insert(
                    at, (pax.Header(odd, self.rng.choice((b"3", b"4", b"6", b"7", b"K", b"g")), 0o666), b"")
                )
            elif what == 4:
                self.rng.shuffle(out)
            elif what == 5:
                out.append((header._replace(path=b"zz" + b"/../" * self.rng.randrange(3) + b"z"), data))
            elif what == 6:
                out.insert(at, (header._replace(mtime_ns=self.rng.choice((-1, 1 << 70, -(1 << 70)))), data))
            elif what == 7:
                out.insert(at, (header._replace(target=self.path(odd=0.5)), data))
            else:
                out.insert(
                    at, (header._replace(path=odd, kind=self.rng.choice((pax.WHITEOUT, pax.OPAQUE))), data)
                )
        return out

    def stream(self, entries: Entries, *, spoilt: bool) -> bytes:
        data = self.rng.choice((made, made_by_digests))(*entries)
        if spoilt and self.rng.random() < 0.3:
            at = self.rng.randrange(len(data))
            data = self.rng.choice(
                (
                    data[:at],
                    data[:at] + bytes([data[at] ^ 1 << self.rng.randrange(8)]) + data[at + 1 :],
                    data + data[at:],
                )
            )
        return data


def expected(before: dict[bytes, Look], delta: Entries) -> dict[bytes, Look]:
    """The destination after the delta."""
    tree = dict(before)
    listed = {header.path for header, _ in delta}

    def take(path: bytes) -> None:
        for below in [p for p in tree if p == path or p.startswith(path + b"/")]:
            del tree[below]

    def reachable(path: bytes) -> bool:
        return all(
            stat.S_ISDIR(tree[path[:at]].kind) if path[:at] in tree else False
            for at, byte in enumerate(path)
            if byte == ord("/")
        )

    for header, _ in delta:
        if header.kind == pax.OPAQUE and header.path in tree and stat.S_ISDIR(tree[header.path].kind):
            for path in sorted(p for p in tree if p.startswith(header.path + b"/")):
                if path in tree and path not in listed:
                    take(path)
    for header, _ in delta:
        if header.kind == pax.WHITEOUT and reachable(header.path) and reserved(header.path) is None:
            take(header.path)
    own = (os.geteuid(), os.getegid())
    bodies = {header.path: data for header, data in delta}
    for header, data in delta:
        old = before.get(header.path)
        if header.kind == pax.WHITEOUT:
            continue
        if header.type == pax.DIRECTORY:
            there = tree.get(header.path)
            if there is not None and stat.S_ISDIR(there.kind):
                tree[header.path] = there._replace(mode=header.mode | there.mode & stat.S_ISGID)
            else:
                take(header.path)
                folder = tree[header.path.rpartition(b"/")[0]]
                tree[header.path] = Look(stat.S_IFDIR, header.mode | folder.mode & stat.S_ISGID, own, b"", 0)
            continue
        take(header.path)
        if header.type == pax.SYMLINK:
            tree[header.path] = Look(stat.S_IFLNK, 0o777, own, header.target, header.mtime_ns)
            continue
        if header.type == pax.HARD_LINK:
            tree[header.path] = tree[header.target]
            bodies[header.path] = bodies[header.target]
            continue
        mode, owner = header.mode & ~0o6000, own
        if (
            old is not None
            and stat.S_ISREG(old.kind)
            and old.body == data
            and old.mtime_ns // SECOND == header.mtime_ns // SECOND
        ):
            mode |= old.mode & header.mode & 0o6000
        if old is not None and stat.S_ISREG(old.kind):
            owner = old.owner
        tree[header.path] = Look(stat.S_IFREG, mode, owner, data, header.mtime_ns)
    return tree


def differences(found: dict[bytes, Look], want: dict[bytes, Look]) -> str:
    paths = sorted(path for path in found.keys() | want.keys() if found.get(path) != want.get(path))
    return "; ".join(f"{path!r}: found {found.get(path)}, want {want.get(path)}" for path in paths[:3])


class Meddler:
    """Another process of the destination's owner: at some step it puts something else where the export is
    about to work.
    """

    def __init__(self, rng: random.Random, folder: str, dest: str) -> None:
        self.rng, self.folder, self.dest = rng, folder, dest
        self.done = 0

    def __call__(self, name: str) -> None:
        if self.rng.random() > 0.25 or self.done > 6:
            return
        self.done += 1
        top = os.fsencode(self.dest)
        with contextlib.suppress(OSError):
            what = self.rng.randrange(6)
            if what == 0:
                self._swap(os.fsencode(os.path.dirname(self.dest)), os.fsencode(self.folder) + b"/victim")
                return
            names = sorted(os.listdir(top)) or [b"a"]
            full = os.path.join(top, self.rng.choice(names))
            below = (
                [os.path.join(full, name) for name in sorted(os.listdir(full))]
                if os.path.isdir(full) and not os.path.islink(full)
                else []
            )
            full = self.rng.choice([full, *below])
            if what == 1:
                self._swap(full, os.fsencode(self.folder) + b"/victim")
            elif what == 2:
                self._swap(full, os.fsencode(self.folder) + b"/victim/secret")
            elif what == 3 and not os.path.isdir(full):
                os.unlink(full)
                os.link(os.fsencode(self.folder) + b"/victim/secret", full)
            elif what == 4 and not os.path.isdir(full):
                os.unlink(full)
                os.mkfifo(full)
            else:
                os.rename(full, full + b".away")
                os.mkdir(full)

    def _swap(self, path: bytes, target: bytes) -> None:
        os.rename(path, path + b".was")
        os.symlink(target, path)


def hostile_round(seed: int, top: str) -> str:
    """One of: done, refused, meddled."""
    rng = random.Random(seed)
    folder = os.path.join(top, str(seed))
    os.makedirs(folder + "/up")
    fill_neighbour(folder + "/victim")
    dest = folder + "/up/dest"
    maker = Maker(rng, folder)
    if rng.random() < 0.85:
        maker.destination(dest)
    elif rng.random() < 0.5:
        forge(Path(folder + "/up"), "../victim", 1, ".eos-export-0")
    before = neighbours(folder + "/victim")  # some of what was made went there through a symlink
    spoilt, meddled = rng.random() < 0.45, rng.random() < 0.4
    delta = maker.delta()
    data = maker.stream(maker.spoil(delta) if spoilt else delta, spoilt=spoilt)
    was = looks(dest) if os.path.lexists(dest) else None
    fmt = "dir" if rng.random() < 0.85 else "tar"
    place = dest if fmt == "dir" else folder + "/up/x.tar"
    outcome = "done"
    try:
        run(data, place, fmt, dry_run=True)
    except OperationError:
        outcome = "refused"
    assert (looks(dest) if os.path.lexists(dest) else None) == was, (seed, "a dry run changed something")
    meddler = Meddler(rng, folder, dest)
    try:
        run(data, place, fmt, **({"step": meddler} if meddled else {}))
    except OperationError:
        outcome = "refused"
    else:
        assert meddled or outcome == "done", (seed, "the dry run had refused what the export does")
    assert neighbours(folder + "/victim") == before, (
        seed,
        differences(looks(folder + "/victim"), {p: look for p, (look, _) in before.items()}),
    )
    if meddled and meddler.done:
        if os.path.islink(folder + "/up"):  # who names it now means what it leads to
            place = place.replace("/up/", "/up.was/")
        with contextlib.suppress(OperationError):  # whoever comes next does no harm either
            run(made(), place, fmt)
        assert neighbours(folder + "/victim") == before, (seed, "the next export")
        outcome = "meddled"
    else:
        found = looks(dest) if os.path.lexists(dest) else None
        assert not spoilt or outcome == "refused" or fmt == "tar" or found is not None
        if outcome == "refused" or fmt == "tar":
            assert found == was, (seed, differences(found or {}, was or {}))
        elif not spoilt:
            start = (
                was
                if was is not None
                else {b"": Look(stat.S_IFDIR, 0o755, (os.geteuid(), os.getegid()), b"", 0)}
            )
            want = expected(start, delta)
            assert found is not None and found == want, (seed, differences(found, want))
        left = [name for _, _, names in os.walk(journals()) for name in names]
        assert not left, (seed, left)
    fsync.remove_tree(folder)
    return outcome


def play(top: str, rounds: range, namespace: str | None) -> dict[str, int]:
    def child() -> dict[str, int]:
        shutil.rmtree(journals(), ignore_errors=True)
        seen: dict[str, int] = {}
        for seed in rounds:
            outcome = hostile_round(seed, top)
            seen[outcome] = seen.get(outcome, 0) + 1
            shutil.rmtree(journals(), ignore_errors=True)
        return seen

    return in_namespace.call(namespace, child)


@pytest.mark.parametrize("who", ["own", "ordinary"])
def test_whatever_a_destination_and_a_stream_hold_the_neighbours_stay_and_it_is_all_or_nothing(
    short_dir: str, who: str, pytestconfig: pytest.Config
) -> None:
    ordinary = who == "ordinary" and os.geteuid() == 0
    if ordinary:
        os.chown(short_dir, in_namespace.ORDINARY_UID, in_namespace.ORDINARY_UID)
    count = 3000 if soaking(pytestconfig) else 40
    seen = play(short_dir, range(count), "uid" if ordinary else None)
    assert seen["done"] > count / 8 and seen["refused"] > count / 8 and seen["meddled"] > count / 8, seen
