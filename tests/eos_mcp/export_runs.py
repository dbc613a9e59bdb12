"""Exports of hand-made streams: run and refusal, a destination with entries of every kind, kills and errors
at named steps.
"""

from __future__ import annotations

import io
import os
import signal
import stat
from pathlib import Path
from typing import Any

import pytest

from eos_agent.wire.protocol import OperationError
from eos_mcp.export.apply import ExportLimits, ExportRequest, Guards, apply
from layerstack.export import pax
from tests import in_namespace
from tests.export_streams import (
    SECOND,
    directory,
    file,
    gone,
    hard_link,
    journals,
    made,
    symlink,
)


def nowhere() -> Guards:
    """Guards that refuse no destination; records are those of this run."""
    return Guards(home="/nonexistent-home", own=(), journals=journals())


Entries = tuple[tuple[pax.Header, bytes], ...]


def run(data: bytes, dest: str | Path, fmt: str = "dir", **more: Any) -> dict[str, Any]:
    request = ExportRequest(
        str(dest),
        fmt,
        **{key: more.pop(key) for key in list(more) if key in ExportRequest.__dataclass_fields__},
    )
    options = {"limits": ExportLimits(), "places": nowhere(), "progress": lambda line: None, **more}
    return apply(io.BytesIO(data), request, **options)


def failure(data: bytes, dest: str | Path, fmt: str = "dir", **more: Any) -> OperationError:
    """Return the refusal, which a dry run must predict."""
    with pytest.raises(OperationError) as foretold:
        run(data, dest, fmt, dry_run=True, **more)
    with pytest.raises(OperationError) as caught:
        run(data, dest, fmt, **more)
    one, other = (
        (e.value.kind, e.value.details.get("reason"), e.value.details.get("errno"))
        for e in (foretold, caught)
    )
    assert one == other
    return caught.value


Shape = dict[bytes, tuple[str, int, bytes]]


def shape(root: str | Path) -> Shape:
    """Return path -> kind, mode, content or target."""
    out: Shape = {}

    def visit(path: bytes, full: bytes) -> None:
        status = os.lstat(full)
        mode = stat.S_IMODE(status.st_mode)
        if stat.S_ISDIR(status.st_mode):
            out[path] = ("d", mode, b"")
            for name in os.listdir(full):
                visit(path + b"/" + name if path else name, full + b"/" + name)
        elif stat.S_ISLNK(status.st_mode):
            out[path] = ("l", 0o777, os.readlink(full))
        else:
            out[path] = ("f", mode, Path(os.fsdecode(full)).read_bytes())

    visit(b"", os.fsencode(str(root)))
    del out[b""]
    return out


def check_changes(changes: list[dict[str, str]], before: Shape, after: Shape) -> None:
    """Check that a dry run listed exactly the changes that the export made, each path once."""
    actions = {change["path"]: change["action"] for change in changes}
    assert len(actions) == len(changes)
    one, other = (
        {path.decode("utf-8", "replace"): what for path, what in shape_.items()} for shape_ in (before, after)
    )
    for path in one.keys() | other.keys():
        if one.get(path) == other.get(path):
            assert path not in actions or (actions[path] == "write" and other[path][0] == "f"), (
                path
            )  # of a file the mtime alone may differ
            continue
        above = [path[:at] for at, c in enumerate(path) if c == "/"]
        if path not in other:
            assert actions.get(path) == "delete" or any(
                actions.get(way) in ("delete", "write") for way in above
            ), path
        elif path in one and one[path][0] == other[path][0] == "d":
            assert actions[path] == "mode", path
        else:
            assert actions.get(path) in ("write", "mode"), path


def stamps(root: str | Path) -> dict[str, tuple[int, int, int]]:
    """Return inode, mtime and ctime of every file: an unwritten file has equal values before and after."""
    return {
        path: (found.st_ino, found.st_mtime_ns, found.st_ctime_ns)
        for path in (os.path.join(folder, name) for folder, _, names in os.walk(root) for name in names)
        if stat.S_ISREG((found := os.lstat(path)).st_mode)
    }


def fill(root: Path) -> None:
    """Make a destination with entries of every kind."""
    root.mkdir(exist_ok=True)
    (root / "src").mkdir()
    (root / "src" / "a").write_text("old a")
    (root / "src" / "kept").write_text("kept")
    (root / "old").mkdir()
    (root / "old" / "hidden").write_text("hidden")
    (root / "old" / "same").write_text("same")
    os.utime(root / "old" / "same", ns=(0, 1_700_000_000 * SECOND))
    (root / "old" / "deep").mkdir()
    (root / "old" / "deep" / "x").write_text("x")
    (root / "gone").mkdir()
    (root / "gone" / "f").write_text("f")
    (root / "was-dir").mkdir()
    (root / "was-dir" / "f").write_text("f")
    (root / "was-file").write_text("file")
    (root / "was-link").symlink_to("src")
    (root / "src" / "gone").write_text("gone")
    (root / "closed").mkdir(mode=0o555)


DELTA: Entries = (
    directory(b"closed", 0o555),
    file(b"closed/new", b"in a closed directory"),
    gone(b"gone"),
    file(b"linked", b"linked", 0o755),
    hard_link(b"linked-2", b"linked", 0o755),
    directory(b"new", 0o700),
    directory(b"new/deeper", 0o500),
    file(b"new/deeper/f", b"f"),
    directory(b"old", 0o755, opaque=True),
    file(b"old/.dot", b"dot"),
    file(b"old/same", b"same"),
    directory(b"src", 0o750),
    file(b"src/.wh.x", b"an ordinary file"),
    file(b"src/a", b"new a", 0o600, 1_600_000_000 * SECOND + 7),
    gone(b"src/gone"),
    symlink(b"src/link", b"a"),
    file(b"src/\xff\xfe", b"no utf-8"),
    file(b"was-dir", b"now a file"),
    directory(b"was-file"),
    file(b"was-file/f", b"f"),
    directory(b"was-link"),
    file(b"was-link/f", b"not through the link"),
)


AFTER: Shape = {
    b"closed": ("d", 0o555, b""),
    b"closed/new": ("f", 0o644, b"in a closed directory"),
    b"linked": ("f", 0o755, b"linked"),
    b"linked-2": ("f", 0o755, b"linked"),
    b"new": ("d", 0o700, b""),
    b"new/deeper": ("d", 0o500, b""),
    b"new/deeper/f": ("f", 0o644, b"f"),
    b"old": ("d", 0o755, b""),
    b"old/.dot": ("f", 0o644, b"dot"),
    b"old/same": ("f", 0o644, b"same"),
    b"src": ("d", 0o750, b""),
    b"src/.wh.x": ("f", 0o644, b"an ordinary file"),
    b"src/\xff\xfe": ("f", 0o644, b"no utf-8"),
    b"src/a": ("f", 0o600, b"new a"),
    b"src/kept": ("f", 0o644, b"kept"),
    b"src/link": ("l", 0o777, b"a"),
    b"was-dir": ("f", 0o644, b"now a file"),
    b"was-file": ("d", 0o755, b""),
    b"was-file/f": ("f", 0o644, b"f"),
    b"was-link": ("d", 0o755, b""),
    b"was-link/f": ("f", 0o644, b"not through the link"),
}


STEPS = (
    "export.sync",
    "export.ready",
    "export.clear",
    "export.delete",
    "export.out",
    "export.in",
    "export.mode",
    "export.sync_names",
)


class Nth:
    """Hook that calls `happen` at the n-th step of a name."""

    def __init__(self, name: str, count: int) -> None:
        self.name, self.left = name, count

    def __call__(self, name: str) -> None:
        if name == self.name:
            self.left -= 1
            if self.left == 0:
                self.happen()

    def happen(self) -> None: ...


class Killer(Nth):
    """Hook that kills this process with SIGKILL."""

    def happen(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)


def killed_at(name: str, count: int, dest: Path) -> bool:
    """Return True when the export reached that step and was killed there."""
    try:
        in_namespace.call(None, run, made(*DELTA), str(dest), step=Killer(name, count))
    except in_namespace.ChildDied as died:
        assert died.signal == signal.SIGKILL
        return True
    return False


class Refusing(Nth):
    """Hook that raises EIO."""

    def happen(self) -> None:
        raise OSError(5, "Input/output error")
