"""Random trees of files and edits of them: renamed and moved files and directories, files that become
directories, modes, symlinks, submodules.
"""

from __future__ import annotations

import random
from collections.abc import Callable

Entry = tuple[str, bytes]
Layout = dict[str, Entry]
FOLDERS = ["", "a", "b", "a/x", "a/y", "lib", "lib/deep/er", "src"]
NAMES = ["f", "g", "Makefile", "main.c", "a", "x", "b-1", "readme", "x.c", "y.c"]


def layout(rng: random.Random, size: int) -> Layout:
    """Make a tree of at most so many files; some are alike, some are empty or small."""
    found: Layout = {}
    for _ in range(size):
        put(found, path_of(rng), entry(rng))
    put(found, "keep", ("100644", b"keep\n"))
    return found


def path_of(rng: random.Random) -> str:
    folder = rng.choice(FOLDERS)
    name = rng.choice(NAMES) if rng.random() < 0.7 else f"n{rng.randint(0, 40)}"
    return f"{folder}/{name}" if folder else name


def put(files: Layout, path: str, value: Entry) -> None:
    """Put an entry at a path; what is in its way is removed."""
    for other in list(files):
        if other.startswith(path + "/") or path.startswith(other + "/"):
            del files[other]
    files[path] = value


def entry(rng: random.Random) -> Entry:
    kind = rng.random()
    if kind < 0.05:
        return "120000", rng.choice([b"keep", b"a/f", b"gone"])
    if kind < 0.08:
        return "160000", rng.choice([b"1" * 40, b"2" * 40, b"3" * 40])
    return rng.choice(["100644"] * 5 + ["100755"]), content(rng)


def content(rng: random.Random) -> bytes:
    shape = rng.random()
    if shape < 0.08:
        return b""
    if shape < 0.15:
        return b"\0bin%d\n" % rng.randint(0, 3)
    if shape < 0.3:
        return b"one line %d\n" % rng.randint(0, 4)
    seed = rng.randint(0, 9)  # few families of alike texts
    lines = [b"family %d line %d\n" % (seed, n) for n in range(12)]
    for _ in range(rng.choice([0, 0, 1, 3])):
        lines[rng.randrange(12)] = b"other %d\n" % rng.randint(0, 99)
    return b"".join(lines)


def changed(rng: random.Random, data: bytes) -> bytes:
    """Edit some lines of a content."""
    lines = data.splitlines(keepends=True) or [b"\n"]
    for _ in range(rng.choice([1, 1, 1, 2, 5])):
        at = rng.randrange(len(lines))
        lines[at : at + 1] = rng.choice([[], [b"new %d\n" % rng.randint(0, 99)], [lines[at], b"more\n"]])
        if not lines:
            lines = [b"\n"]
    return b"".join(lines)


def edit_layout(rng: random.Random, before: Layout, edits: int) -> Layout:
    """Apply random edits to a copy of a tree."""
    files = dict(before)
    for _ in range(edits):
        rng.choices([_modify, _remove, _add, _move, _move_folder, _retype, _spill], [8, 2, 2, 5, 1.5, 1, 1])[
            0
        ](rng, files)
    put(files, "keep", files.get("keep", ("100644", b"keep\n")))
    return files


Edit = Callable[[random.Random, Layout], None]


def _some(rng: random.Random, files: Layout) -> str | None:
    found = [path for path in files if path != "keep"]
    return rng.choice(found) if found else None


def _modify(rng: random.Random, files: Layout) -> None:
    if (path := _some(rng, files)) is not None and files[path][0].startswith("100"):
        files[path] = files[path][0], changed(rng, files[path][1])


def _remove(rng: random.Random, files: Layout) -> None:
    if (path := _some(rng, files)) is not None:
        del files[path]


def _add(rng: random.Random, files: Layout) -> None:
    put(files, path_of(rng), entry(rng))


def _move(rng: random.Random, files: Layout) -> None:
    if (path := _some(rng, files)) is None:
        return
    mode, data = files.pop(path)
    if mode.startswith("100") and rng.random() < 0.5:
        data = changed(rng, data)
    to = path_of(rng)
    if rng.random() < 0.5:
        folder, name = rng.choice(FOLDERS), path.rpartition("/")[2]
        to = f"{folder}/{name}" if folder else name
    put(files, to, (mode, data))


def _move_folder(rng: random.Random, files: Layout) -> None:
    old = rng.choice(FOLDERS[1:])
    new = rng.choice([*FOLDERS[1:], "moved", "moved/here"])
    for path in [path for path in files if path.startswith(old + "/")]:
        if path in files:
            value = files.pop(path)
            if rng.random() < 0.2 and value[0].startswith("100"):
                value = value[0], changed(rng, value[1])
            put(files, new + path[len(old) :], value)


def _retype(rng: random.Random, files: Layout) -> None:
    if (path := _some(rng, files)) is not None:
        mode, data = files[path]
        if mode.startswith("100") and rng.random() < 0.5:
            files[path] = ("100755" if mode == "100644" else "100644"), data
        else:
            files[path] = entry(rng)


def _spill(rng: random.Random, files: Layout) -> None:
    """Make a directory of a file, with the file in it."""
    if (path := _some(rng, files)) is not None:
        value = files.pop(path)
        put(files, f"{path}/{rng.choice(NAMES)}", value)


def tied_case(rng: random.Random, folders: int) -> tuple[Layout, Layout, Layout]:
    """Make three trees in which ties decide the renames: few contents and names in many directories, which
    one side moves while the other edits files.
    """
    names = [f"d{n}" for n in range(folders)]
    texts = [
        b"".join(b"family %d line %d\n" % (k, n) for n in range(10)) for k in range(rng.choice([1, 2, 6]))
    ]
    base: Layout = {"keep": ("100644", b"k\n")}
    for folder in names:
        for name in rng.sample(["Makefile", "x.c", "y.c", "z"], rng.randint(1, 3)):
            data = rng.choice(texts)
            base[f"{folder}/{name}"] = "100644", changed(rng, data) if rng.random() < 0.4 else data
    places = {folder: folder for folder in names}
    for folder in names:
        if rng.random() < 0.5:
            near = [f"m{rng.randint(0, 70)}", f"q/{folder}", f"q/w/{folder}", "", "d1", f"{folder}/sub"]
            places[folder] = rng.choice(near)
    ours: Layout = {}
    for path, value in base.items():
        folder, _, name = path.rpartition("/")
        to = places.get(folder, folder) if rng.random() < 0.85 else rng.choice(list(places.values()))
        new = f"{to}/{name}" if to else name
        if rng.random() < 0.95:
            edited = ("100644", changed(rng, value[1])) if rng.random() < 0.3 else value
            put(ours, new + "2" if new in ours else new, edited)
    for _ in range(rng.randint(0, 6)):
        name = rng.choice(["Makefile", "new", "x.c"])
        put(ours, f"{rng.choice(names)}/{name}", ("100644", changed(rng, rng.choice(texts))))
    theirs = dict(base)
    for path in rng.sample(sorted(base), len(base) // 3):
        theirs[path] = "100644", changed(rng, base[path][1])
    if rng.random() < 0.5:
        put(theirs, f"{rng.choice(names)}/added", ("100644", b"added\n"))
    return base, ours, theirs
