"""Files that are mostly holes."""

from __future__ import annotations

from pathlib import Path

TIB = 1 << 40


def hole(path: Path, size: int, data: dict[int, bytes] | None = None) -> str:
    with open(path, "wb") as file:
        file.truncate(size)
        for at, what in (data or {}).items():
            file.seek(at)
            file.write(what)
    return str(path)


def largest(folder: Path) -> int:
    """Make a file of the largest size that is possible here, at most 8 TiB."""
    for size in (8 * TIB, 4 * TIB, 1 * TIB, 1 << 36):
        try:
            hole(folder / "probe", size)
        except OSError:
            continue
        return size
    raise AssertionError("no sparse file of 64 GiB can be made here")
