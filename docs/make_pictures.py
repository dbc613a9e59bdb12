"""Write docs/pictures/*.svg: `python docs/make_pictures.py`. A test compares the files with what this gives.

Standard library only, and the same bytes on each machine: positions are computed from the texts below, which
are what to change. The picture of the import levels is read from the imports of the sources and from
tests/levels.py.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple
from xml.sax.saxutils import escape

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
if __name__ == "__main__":
    sys.path.insert(0, ROOT)

from tests import levels  # noqa: E402

FOLDER = os.path.join(ROOT, "docs", "pictures")
FONT = 13
LINE = 17
"""Pixels from one line of text to the next."""
COLOURS = {
    "process": ("#e3ecfa", "#3b6fb5"),
    "files": ("#fdf1d6", "#b58a2c"),
    "zone": ("#f7f7f7", "#bbbbbb"),
    "state": ("#e6f4e6", "#4f8f4f"),
    "end": ("#eeeeee", "#888888"),
    "work": ("#fde4e1", "#b5523b"),
}
"""Fill and border of each kind of box."""


class Picture:
    """Shapes of one picture, in the order of drawing."""

    def __init__(self, title: str, width: int, height: int) -> None:
        self.title, self.width, self.height = title, width, height
        self.shapes: list[str] = []

    def box(
        self, x: int, y: int, width: int, height: int, kind: str, lines: Sequence[str], *, top: bool = False
    ) -> None:
        """A rectangle with centred lines, the first one bold; `top`: the text begins at the upper edge."""
        fill, border = COLOURS[kind]
        self.shapes.append(
            f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="6" fill="{fill}" '
            f'stroke="{border}"/>'
        )
        first = y + LINE if top else y + (height - LINE * len(lines)) // 2 + 13
        for n, line in enumerate(lines):
            self.text(x + width // 2, first + n * LINE, line, anchor="middle", bold=n == 0)

    def text(
        self,
        x: int,
        y: int,
        line: str,
        *,
        anchor: str = "start",
        bold: bool = False,
        size: int = FONT,
        turn: int = 0,
    ) -> None:
        weight = ' font-weight="bold"' if bold else ""
        turned = f' transform="rotate({turn} {x} {y})"' if turn else ""
        sized = f' font-size="{size}"' if size != FONT else ""
        self.shapes.append(
            f'<text x="{x}" y="{y}" text-anchor="{anchor}"{weight}{sized}{turned}>{escape(line)}</text>'
        )

    def arrow(
        self,
        points: Sequence[tuple[int, int]],
        label: Sequence[str] = (),
        at: tuple[int, int] | None = None,
        *,
        both: bool = False,
        anchor: str = "middle",
    ) -> None:
        """A line through `points` with a head at its end, and lines of text from `at` (by default the middle
        of its first piece).
        """
        path = " ".join(f"{x},{y}" for x, y in points)
        start = ' marker-start="url(#back)"' if both else ""
        self.shapes.append(
            f'<polyline points="{path}" fill="none" stroke="#444444" marker-end="url(#head)"{start}/>'
        )
        (x1, y1), (x2, y2) = points[0], points[1]
        x, y = at or ((x1 + x2) // 2, (y1 + y2) // 2 - 5)
        for n, line in enumerate(label):
            self.text(x, y + n * 15, line, anchor=anchor, size=12)

    def cell(self, x: int, y: int, width: int, height: int, fill: str) -> None:
        self.shapes.append(
            f'<rect x="{x}" y="{y}" width="{width}" height="{height}" fill="{fill}" stroke="#cccccc"/>'
        )

    def svg(self) -> str:
        heads = "".join(
            f'<marker id="{name}" viewBox="0 0 10 10" refX="{at}" refY="5" markerWidth="8" markerHeight="8" '
            f'orient="auto">'
            f'<path d="{path}" fill="#444444"/></marker>'
            for name, at, path in (("head", 9, "M0,0 L10,5 L0,10 z"), ("back", 1, "M10,0 L0,5 L10,10 z"))
        )
        return "\n".join(
            [
                f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.width} {self.height}" '
                f'width="{self.width}" height="{self.height}" '
                f'font-family="Helvetica, Arial, sans-serif" font-size="{FONT}" role="img">',
                f"<title>{escape(self.title)}</title>",
                f"<defs>{heads}</defs>",
                f'<rect width="{self.width}" height="{self.height}" fill="#ffffff"/>',
                *self.shapes,
                "</svg>",
                "",
            ]
        )


def overview() -> Picture:
    """What the whole is for."""
    p = Picture("Sessions over one stack of layers", 980, 330)
    p.box(20, 120, 150, 72, "files", ["your project", "on the host;", "never written to"])
    p.box(240, 20, 320, 290, "zone", ["sandbox: one stack of layers"], top=True)
    for n, (title, line) in enumerate(
        (
            ("version 3, the head", "published by A"),
            ("version 2", "published by B"),
            ("version 1", "the base: the copied project"),
        )
    ):
        p.box(270, 60 + n * 66, 260, 52, "state", [title, line])
    p.text(400, 276, "layers are immutable; overlayfs shows a", anchor="middle", size=12)
    p.text(400, 292, "version as one ordinary directory", anchor="middle", size=12)
    p.arrow([(170, 156), (222, 156), (222, 218), (270, 218)], ["copy, once"], (95, 210))
    p.box(640, 40, 150, 56, "process", ["session of A", "commands, files"])
    p.box(640, 126, 150, 56, "process", ["session of B", "commands, files"])
    p.box(640, 212, 150, 56, "process", ["session of C", "commands, files"])
    for y in (72, 154):
        p.arrow([(640, y), (530, y)], ["publish"], (567, y - 6))
    p.arrow([(640, 240), (545, 240), (545, 100), (530, 100)], ["conflict"], (594, 234))
    p.box(830, 212, 130, 56, "work", ["draft", "kept, not lost"])
    p.arrow([(790, 240), (830, 240)])
    p.box(830, 40, 130, 56, "files", ["a directory", "of your choice"])
    p.arrow([(530, 86), (600, 86), (600, 20), (895, 20), (895, 40)], ["export"], (720, 14))
    return p


def processes() -> Picture:
    """Processes, and the sockets between them."""
    p = Picture("Processes and sockets", 980, 560)
    p.box(10, 10, 440, 540, "zone", ["host"], top=True)
    p.box(500, 10, 470, 540, "zone", ["sandbox: a container, or namespaces of this machine"], top=True)
    p.box(30, 50, 180, 56, "process", ["coding agent", "an MCP client"])
    p.box(250, 50, 180, 56, "process", ["MCP server", "eos-mcp"])
    p.arrow([(210, 78), (250, 78)], ["stdio"], (230, 46), both=True)
    p.box(30, 170, 180, 72, "process", ["command line", "eos, sandbox-*-cli", "a process for each call"])
    p.box(250, 280, 180, 90, "process", ["gateway", "one for each user:", "router, manager,", "providers"])
    p.arrow([(340, 106), (340, 280)], ["one JSON line", "each way"], (348, 180), both=True, anchor="start")
    p.arrow(
        [(120, 242), (120, 325), (250, 325)],
        ["unix socket, or", "TCP; token"],
        (128, 290),
        both=True,
        anchor="start",
    )
    p.box(
        30,
        430,
        400,
        96,
        "files",
        [
            "files of the gateway",
            "records of sandboxes, tokens, log (state directory)",
            "copies of workspaces, the agent's bundle (cache)",
            "directories that exports write to",
        ],
    )
    p.arrow([(340, 370), (340, 430)])
    p.box(540, 280, 150, 90, "process", ["agent", "asyncio; alone", "opens the store;", "reads terminals"])
    p.arrow(
        [(430, 325), (540, 325)],
        ["unix socket or", "127.0.0.1; both", "ends prove who", "they are"],
        (486, 256),
        both=True,
    )
    p.box(540, 430, 150, 96, "files", ["store", "layers, manifests,", "sessions, drafts"])
    p.arrow([(615, 370), (615, 430)])
    p.box(540, 60, 150, 72, "process", ["zygote", "one thread: forks", "and reaps"])
    p.arrow(
        [(615, 280), (615, 132)],
        ["socket pair:", "frames and", "descriptors"],
        (622, 196),
        both=True,
        anchor="start",
    )
    p.box(760, 60, 190, 72, "process", ["init of session A", "pid 1: mounts, limits,", "spawns and reaps"])
    p.arrow([(690, 96), (760, 96)], ["clone"], (725, 90))
    p.box(760, 170, 190, 56, "process", ["commands of A", "terminal or pipes"])
    p.arrow([(855, 132), (855, 170)], ["exec"], (863, 156), anchor="start")
    p.box(760, 280, 190, 56, "process", ["init of session B", "namespaces of its own"])
    p.arrow([(690, 325), (726, 325), (726, 116), (760, 116)], (), both=True)
    p.arrow([(690, 308), (760, 308)], (), both=True)
    p.text(742, 250, "socket pair", size=12, turn=-90)
    p.box(760, 370, 190, 40, "process", ["commands of B"])
    p.arrow([(855, 336), (855, 370)])
    p.box(
        760,
        450,
        190,
        76,
        "process",
        ["helper", "file operations in a", "session: a fork of the", "zygote, on demand"],
    )
    p.arrow([(675, 370), (675, 400), (740, 400), (740, 488), (760, 488)], (), both=True)
    return p


class Row(NamedTuple):
    """One place of the store, and the letters of what happens to it: w written, d deleted, r renamed in, by
    column.
    """

    path: str
    what: str
    marks: Mapping[str, str]


STORE_COLUMNS = ("create", "session", "publish", "draft", "squash", "pin", "open")
STORE = (
    Row("workspace.json", "workspace, base, namespace of the overlay's xattrs", {"create": "w"}),
    Row("base/B000001-base/", "the copied workspace, read-only, a mount of its own", {"create": "w"}),
    Row(
        "manifest.json",
        "the head: its version and its layers, newest first",
        {"create": "w", "publish": "w", "squash": "w"},
    ),
    Row(
        "manifests/VERSION.json",
        "each version that can be opened",
        {"create": "w", "publish": "w", "squash": "wd", "open": "d"},
    ),
    Row(
        "layers/ID/",
        "one immutable tree each: L published, S squashed",
        {"publish": "w", "squash": "wd", "open": "d"},
    ),
    Row(
        ".layer-metadata/ID.*",
        "owner, sizes, digest, index of paths, blame",
        {"publish": "w", "squash": "wd", "open": "d"},
    ),
    Row(
        "sessions/ID/",
        "upperdir and workdir of a live session, session.json",
        {"session": "wd", "publish": "d", "draft": "d", "open": "d"},
    ),
    Row(
        "drafts/ID/",
        "work that was not published: draft.json, layer/",
        {"draft": "wd", "publish": "d", "squash": "w", "open": "w"},
    ),
    Row("pins/VERSION.json", "a version that a squash must not close", {"pin": "wd"}),
    Row(
        "staging/",
        "on its way in or out by rename; empty at rest",
        {"publish": "wd", "draft": "wd", "squash": "wd", "open": "d"},
    ),
    Row(".storage-writer.lock", "flock: one process has the store open", {"create": "w", "open": "w"}),
)


def store() -> Picture:
    """The store on disk: what each operation writes and deletes."""
    left, top, row, column = 560, 60, 30, 66
    p = Picture(
        "The store on disk, and what writes what",
        left + column * len(STORE_COLUMNS) + 20,
        top + row * len(STORE) + 60,
    )
    for n, name in enumerate(STORE_COLUMNS):
        p.text(left + n * column + column // 2, top - 12, name, anchor="middle", bold=True)
    for y, entry in ((top + k * row, entry) for k, entry in enumerate(STORE)):
        p.text(14, y + 20, entry.path, bold=True)
        p.text(200, y + 20, entry.what)
        for n, name in enumerate(STORE_COLUMNS):
            marks = entry.marks.get(name, "")
            p.cell(
                left + n * column,
                y,
                column,
                row,
                {"": "#ffffff", "w": "#cfe5cf", "d": "#f6d5d0", "wd": "#f3e7c3"}[marks],
            )
            words = " ".join({"w": "write", "d": "delete"}[mark] for mark in marks)
            p.text(
                left + n * column + column // 2,
                y + 19,
                "both" if marks == "wd" else words,
                anchor="middle",
                size=12,
            )
    below = top + row * len(STORE) + 26
    p.text(
        14,
        below,
        "Everything is written under another name and renamed in, synced first but for manifests/; the "
        "rename of manifest.json is the commit.",
        size=12,
    )
    p.text(
        14,
        below + 18,
        "open: what a crash left is swept, and the work of dead sessions becomes drafts.",
        size=12,
    )
    return p


def session() -> Picture:
    """The life of a session."""
    p = Picture("The life of a session", 980, 600)
    p.box(30, 40, 190, 56, "process", ["exec_command", "without a session"])
    p.box(290, 40, 220, 56, "process", ["create_workspace_session"])
    p.box(30, 170, 190, 72, "state", ["implicit session", "publishes when its", "last command ends"])
    p.box(300, 170, 200, 72, "state", ["explicit session", "private until it is", "published"])
    p.arrow([(125, 96), (125, 170)])
    p.arrow([(400, 96), (400, 170)])
    p.arrow(
        [(500, 190), (560, 190), (560, 222), (500, 222)],
        ["rebase; publish with keep_open;", "rejected publish: it stays"],
        (566, 202),
        anchor="start",
    )
    p.box(30, 330, 190, 56, "end", ["published", "one layer more, or none"])
    p.arrow([(90, 242), (90, 330)], ["no conflict"], (84, 290), anchor="end")
    p.arrow([(330, 242), (330, 358), (220, 358)], ["publish"], (322, 300), anchor="end")
    p.box(300, 470, 200, 72, "work", ["draft", "work that is kept; leases", "its base"])
    p.arrow(
        [(160, 242), (160, 300), (270, 300), (270, 490), (300, 490)],
        ["conflict, or cancelled"],
        (262, 420),
        anchor="end",
    )
    p.arrow([(400, 470), (400, 242)], ["create with draft_id"], (394, 400), anchor="end")
    p.box(600, 330, 170, 56, "work", ["expired", "unused for its ttl_s"])
    p.box(790, 330, 170, 72, "work", ["lost", "its init, or the", "agent, was killed"])
    p.arrow([(480, 242), (480, 300), (685, 300), (685, 330)], ["ttl_s over"], (640, 294))
    p.arrow([(440, 242), (440, 270), (875, 270), (875, 330)], ["killed (implicit sessions too)"], (770, 264))
    p.arrow([(685, 386), (685, 490), (500, 490)], ["had changes"], (610, 484))
    p.arrow([(830, 402), (830, 440), (450, 440), (450, 470)], ["recovered"], (760, 434))
    p.box(
        790,
        470,
        170,
        90,
        "work",
        ["quarantined", "recovery failed twice;", "destroy_workspace_", "session gives it up"],
    )
    p.arrow([(920, 402), (920, 470)])
    p.arrow([(790, 535), (500, 535)], ["recover_workspace_session"], (640, 551))
    p.box(600, 40, 360, 56, "end", ["discarded", "destroy_workspace_session, discard_draft"])
    p.arrow([(460, 170), (460, 130), (640, 130), (640, 96)], ["destroy_workspace_session"], (550, 124))
    p.text(
        30,
        590,
        "A session leases the version that it started from. Nothing that a session wrote is deleted without "
        "a call that says so.",
        size=12,
    )
    return p


class Merge(NamedTuple):
    """A row of the merge table: what base, ours (the session) and head have at a path, and what follows."""

    base: str
    ours: str
    head: str
    result: str
    kind: str
    """`ours`, `head`, `merge` or `conflict`."""


MERGES = (
    Merge("A", "A", "B", "head's B", "head"),
    Merge("A", "B", "A", "ours: B", "ours"),
    Merge("A", "B", "B", "both did the same: nothing to do", "head"),
    Merge("A", "-", "-", "both deleted it: nothing to do", "head"),
    Merge("A", "-", "B", "conflict delete_modify", "conflict"),
    Merge("A", "B", "-", "conflict modify_delete", "conflict"),
    Merge("text", "line 3 edited", "line 7 edited", "merged by lines", "merge"),
    Merge("text", "line 3 edited", "line 3 edited otherwise", "conflict content, with hunks", "conflict"),
    Merge("-", "text", "other text", "conflict add_add", "conflict"),
    Merge("A", "bytes", "other bytes", "conflict binary (NUL, or over 8 MiB)", "conflict"),
    Merge("A", "link", "other link", "conflict symlink", "conflict"),
    Merge("A", "file", "directory", "conflict type", "conflict"),
    Merge("0644", "0755", "0644, other text", "both: mode and content merge apart", "merge"),
    Merge("0644", "0755", "0600", "conflict mode", "conflict"),
    Merge("-", "new file in d/", "d/ deleted", "conflict parent", "conflict"),
    Merge("database", "changed", "changed", "conflict unit, whole (ADR 0046)", "conflict"),
    Merge("ignored", "B", "C", "merged, else ours with a notice", "merge"),
    Merge("derived", "B", "C", "head's C, counted in a notice", "head"),
)
MERGE_COLOURS = {"ours": "#e3ecfa", "head": "#eeeeee", "merge": "#cfe5cf", "conflict": "#f6d5d0"}


def merge() -> Picture:
    """What a publish does with a path, by what base, ours and head have there."""
    widths, row, top = (150, 190, 190, 330), 28, 40
    p = Picture(
        "What a publication does with one path: base, ours, head",
        sum(widths) + 20,
        top + row * len(MERGES) + 84,
    )
    for n, name in enumerate(("base", "ours", "head", "result")):
        p.text(16 + sum(widths[:n]), top - 14, name, bold=True)
    for k, entry in enumerate(MERGES):
        for n, word in enumerate(entry[:4]):
            p.cell(
                10 + sum(widths[:n]),
                top + k * row,
                widths[n],
                row,
                MERGE_COLOURS[entry.kind] if n == 3 else "#ffffff",
            )
            p.text(16 + sum(widths[:n]), top + k * row + 19, word)
    below = top + row * len(MERGES) + 24
    p.text(
        14,
        below,
        "base: the version that the session began with; ours: what the session shows; head: the newest "
        "version; -: nothing there.",
        size=12,
    )
    p.text(
        14, below + 18, "One conflict rejects the whole publication, and all conflicts are listed.", size=12
    )
    p.text(14, below + 36, "Content, mode, owner and each xattr are merged by themselves.", size=12)
    return p


def rooms(package: str) -> Picture:
    """Rooms of a package, lowest first, and which room imports which: a filled cell right of the diagonal
    would be an arrow up.
    """
    names = [room for level in levels.LEVELS[package] for room in level]
    level_of = {room: n for n, level in enumerate(levels.LEVELS[package]) for room in level}
    found = levels.room_imports(package)
    left, top, size = 150, 150, 24
    p = Picture(f"Import levels of {package}", left + size * len(names) + 60, top + size * len(names) + 60)
    p.text(14, 24, package, bold=True, size=15)
    for n, room in enumerate(names):
        p.text(left - 8, top + n * size + 17, room, anchor="end", bold=True)
        p.text(left + n * size + 16, top - 8, room, turn=-60)
        for k, other in enumerate(names):
            imports = other in found.get(room, ())
            up = level_of[other] > level_of[room]
            fill = ("#c0392b" if up else "#3b6fb5") if imports else "#f2f2f2" if up else "#ffffff"
            p.cell(left + k * size, top + n * size, size, size, "#999999" if n == k else fill)
    p.text(
        14,
        top + size * len(names) + 26,
        "A row imports the columns that are filled: rooms to its left. Red: up.",
        size=12,
    )
    p.text(
        14,
        top + size * len(names) + 44,
        "Read from the sources, imports for types and inside functions included.",
        size=12,
    )
    return p


def pictures() -> Iterator[tuple[str, str]]:
    """(file name, its content) of each."""
    yield "overview.svg", overview().svg()
    yield "processes.svg", processes().svg()
    yield "store.svg", store().svg()
    yield "session.svg", session().svg()
    yield "merge.svg", merge().svg()
    for package in levels.LEVELS:
        yield f"levels-{package}.svg", rooms(package).svg()


def main() -> None:
    os.makedirs(FOLDER, exist_ok=True)
    for name, content in pictures():
        with open(os.path.join(FOLDER, name), "w", encoding="utf-8") as file:
            file.write(content)


if __name__ == "__main__":
    main()
