"""Parse a patch: a unified diff, with or without git's extended headers, or the `*** Begin Patch` form. Pure,
standard library only.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from eos_agent.wire.protocol import INVALID_REQUEST, OperationError

MAX_PATCH_BYTES = 4 << 20
MAX_FILES = 1000
ADD, UPDATE, DELETE, COPY = "add", "update", "delete", "copy"
_NUMBERS = re.compile(r"@@ -(\d{1,9})(?:,(\d{1,9}))? \+(\d{1,9})(?:,(\d{1,9}))? @@")
_MARKS = (" ", "+", "-")
_ESCAPE = re.compile(rb"\\([abtnvfr\"\\]|[0-7]{3})")
_ESCAPED = {b"a": 7, b"b": 8, b"t": 9, b"n": 10, b"v": 11, b"f": 12, b"r": 13, b'"': 34, b"\\": 92}


class PatchHunk(NamedTuple):
    """One block of a file's changes."""

    lines: tuple[tuple[str, str], ...]
    """(mark, text): the mark is ` `, `-` or `+`."""
    start: int | None = None
    """First line in the old file, from 1; None: the patch gives no number."""
    anchors: tuple[str, ...] = ()
    """Lines above the block that locate it, from the outermost to the nearest."""
    at_end: bool = False
    """True if the block is at the end of the file."""
    old_ends_open: bool = False
    new_ends_open: bool = False
    """True if the last line of that side has no line end."""

    @property
    def old(self) -> list[str]:
        return [text for mark, text in self.lines if mark != "+"]

    @property
    def new(self) -> list[str]:
        return [text for mark, text in self.lines if mark != "-"]


class FilePatch(NamedTuple):
    """The changes of one file."""

    kind: str
    """add, update, delete or copy."""
    path: str
    """Path before the change; for an added file, the path to create."""
    to: str | None
    """Path after a move or copy, else None."""
    hunks: tuple[PatchHunk, ...]
    executable: bool | None = None
    """Set or clear the executable bits; None: leave them."""
    prefixed: str | None = None
    """The path as written in the patch, if `a/` or `b/` was removed from it."""
    checked: bool = True
    """True if the hunks of a deletion have the whole content, which must match."""
    of_git: bool = False
    """True for a part with git's header; its renames and copies are of the files before the patch."""


def invalid_patch(why: str, line: int | None = None) -> OperationError:
    details: dict[str, object] = {"argument": "patch"}
    if line is not None:
        details["line"] = line
    details["hint"] = (
        "example: *** Begin Patch\n*** Update File: a.py\n@@\n unchanged line\n-old line\n+new line\n"
        "*** End Patch"
    )
    where = "" if line is None else f" in line {line}"
    return OperationError(INVALID_REQUEST, f"patch{where}: {why}", details, reason="invalid_patch")


def parse(text: str) -> list[FilePatch]:
    """Parse a patch of either form. Returns the changes in the order of the patch.

    Raises:
        OperationError: invalid_request; the text is in neither form, is larger than MAX_PATCH_BYTES, changes
            more than MAX_FILES files, or has a change that is not supported (a binary file, a symlink).
    """
    if len(text) > MAX_PATCH_BYTES or len(text.encode("utf-8", "replace")) > MAX_PATCH_BYTES:
        raise invalid_patch(f"it has more than {MAX_PATCH_BYTES} bytes; apply it in several parts")
    lines = text.split("\n")
    if lines and lines[-1] == "":
        lines.pop()
    first = next((at for at, line in enumerate(lines) if line.strip()), None)
    if first is None:
        raise invalid_patch("it is empty")
    begun = next((at for at, line in enumerate(lines) if line.rstrip() == "*** Begin Patch"), None)
    if begun is not None and any(map(_names_file, lines[:begun], lines[1:begun])):
        raise invalid_patch(
            "it has a unified diff and, after it, `*** Begin Patch`: send one form at a time", begun + 1
        )
    found = _Listing(lines, begun + 1).files() if begun is not None else _Unified(lines).files()
    if not found:
        raise invalid_patch(
            "it names no file: neither `--- a/PATH` and `+++ b/PATH` nor `*** Begin Patch` is in it"
        )
    if len(found) > MAX_FILES:
        raise invalid_patch(f"it changes {len(found)} files, at most {MAX_FILES} can be changed at once")
    return found


class _Listing:
    """Reader of the `*** Begin Patch` form."""

    def __init__(self, lines: list[str], at: int) -> None:
        self._lines, self._at = lines, at

    def files(self) -> list[FilePatch]:
        found: list[FilePatch] = []
        while self._at < len(self._lines):
            line = self._lines[self._at].rstrip()
            self._at += 1
            if line == "*** End Patch":
                if (more := self._next_patch()) is None:
                    return found
                self._at = more
                continue
            kind, _, path = line.partition(" File: ")
            path = path.strip()
            if kind == "*** Add" and path:
                found.append(self._added(path))
            elif kind == "*** Delete" and path:
                found.append(FilePatch(DELETE, path, None, (), checked=False))
            elif kind == "*** Update" and path:
                found.append(self._updated(path))
            elif line:
                raise invalid_patch(
                    f"expected `*** Add File: PATH`, `*** Update File: PATH`, `*** Delete File: PATH` or "
                    f"`*** End Patch`, found {line[:80]!r}",
                    self._at,
                )
        raise invalid_patch(
            "`*** End Patch` is missing at its end: the patch may have been cut", len(self._lines)
        )

    def _next_patch(self) -> int | None:
        """Return the line after the next `*** Begin Patch`; None if no other patch follows."""
        rest = range(self._at, len(self._lines))
        return next((at + 1 for at in rest if self._lines[at].rstrip() == "*** Begin Patch"), None)

    def _is_next_file(self) -> bool:
        line = self._lines[self._at]
        return line.rstrip() == "*** End Patch" or line.startswith(
            ("*** Add File: ", "*** Update File: ", "*** Delete File: ")
        )

    def _added(self, path: str) -> FilePatch:
        lines: list[tuple[str, str]] = []
        blank = 0
        while self._at < len(self._lines) and not self._is_next_file():
            line = self._lines[self._at]
            self._at += 1
            if not line.startswith("+"):
                if not line.strip():
                    blank += 1  # an empty line of the file, unless no line follows
                    continue
                raise invalid_patch(
                    f"each line of an added file begins with +, found {line[:80]!r}", self._at
                )
            lines += [*[("+", "")] * (blank if lines else 0), ("+", line[1:])]
            blank = 0
        return FilePatch(ADD, path, None, (PatchHunk(tuple(lines)),))

    def _updated(self, path: str) -> FilePatch:
        to: str | None = None
        if self._at < len(self._lines) and self._lines[self._at].startswith("*** Move to: "):
            to = self._lines[self._at][len("*** Move to: ") :].strip()
            self._at += 1
        hunks: list[PatchHunk] = []
        while self._at < len(self._lines) and not self._is_next_file():
            hunk = self._hunk()
            if hunk is not None:
                hunks.append(hunk)
        if not hunks and to is None:
            raise invalid_patch(f"`*** Update File: {path}` has no hunk", self._at)
        return FilePatch(UPDATE, path, to, tuple(hunks))

    def _hunk(self) -> PatchHunk | None:
        anchors: list[str] = []
        while self._at < len(self._lines) and self._lines[self._at].startswith("@@"):
            line = self._lines[self._at]
            anchor = line[2:].strip().removesuffix("@@").strip()
            if anchor and _NUMBERS.match(line) is None:
                anchors.append(anchor)
            self._at += 1
        began, at_end = self._at, False
        lines: list[tuple[str, str]] = []
        while self._at < len(self._lines) and not self._is_next_file():
            line = self._lines[self._at]
            if line.startswith("@@"):
                break
            self._at += 1
            if line.rstrip() == "*** End of File":
                at_end = True
                break
            lines.append(_marked(line, self._at))
        while lines and lines[-1] == (" ", "") and self._lines[began + len(lines) - 1] == "":
            lines.pop()  # an empty line between two parts of the patch
        if not any(mark != " " for mark, _ in lines):
            if lines or anchors:
                raise invalid_patch("a hunk has neither a line with - nor one with +", began)
            return None
        return PatchHunk(tuple(lines), anchors=tuple(anchors), at_end=at_end)


def _marked(line: str, number: int) -> tuple[str, str]:
    if line == "" or line == "\r":
        return " ", line  # editors and models leave out the blank of an empty context line
    if line[0] not in _MARKS:
        raise invalid_patch(f"a line of a hunk begins with a blank, - or +, found {line[:80]!r}", number)
    return line[0], line[1:]


class _Header:
    """Values of git's extended header lines of one file."""

    def __init__(self) -> None:
        self.source = self.target = ""
        self.copies = self.new = self.deleted = self.git = False
        self.old_mode = self.new_mode = ""


class _Unified:
    """Reader of unified diffs."""

    def __init__(self, lines: list[str]) -> None:
        self._lines, self._at = lines, 0

    def files(self) -> list[FilePatch]:
        found: list[FilePatch] = []
        while self._at < len(self._lines):
            line = self._lines[self._at]
            if line.startswith("diff --git "):
                found.append(self._git())
            elif self._is_names():
                found.append(self._plain(_Header()))
            elif line.startswith("@@ ") and _NUMBERS.match(line):
                raise invalid_patch("a hunk comes before `--- PATH` and `+++ PATH`", self._at + 1)
            else:
                self._at += 1  # a message or an index line, which git-apply(1) ignores too
        return found

    def _is_names(self) -> bool:
        """True at a line `--- PATH` that is followed by `+++ PATH`."""
        at = self._at
        return at + 1 < len(self._lines) and _names_file(self._lines[at], self._lines[at + 1])

    def _git(self) -> FilePatch:
        about, began = _Header(), self._at
        a, b = _two_names(self._lines[self._at][len("diff --git ") :].rstrip("\r"))
        about.git = True
        self._at += 1
        while self._at < len(self._lines) and not self._is_names():
            line = self._lines[self._at].rstrip("\r")
            if line.startswith(("diff --git ", "@@ ")):
                break
            if line.startswith(("Binary files ", "GIT binary patch")):
                raise invalid_patch(
                    f"{b or a} is a binary file: write it with file_write, encoding base64", self._at + 1
                )
            for start, attribute in _MODES:
                if line.startswith(start):
                    setattr(about, attribute, line[len(start) :].strip())
            about.new |= line.startswith("new file mode ")
            about.deleted |= line.startswith("deleted file mode ")
            about.copies |= line.startswith("copy from ")
            self._at += 1
            if not line.startswith(_EXTENDED):
                self._at -= 1
                break
        for mode in (about.old_mode, about.new_mode):
            if mode.startswith(("12", "16")):
                kind = "symlink" if mode.startswith("12") else "submodule"
                raise invalid_patch(f"{b or a} is a {kind}: make or delete it with a command", began + 1)
        if self._at < len(self._lines) and self._is_names():
            return self._plain(about)
        if self._at < len(self._lines) and self._lines[self._at].startswith("@@ "):
            raise invalid_patch("a hunk comes before `--- PATH` and `+++ PATH`", self._at + 1)
        return self._made(about, a, b, (), began)

    def _plain(self, about: _Header) -> FilePatch:
        began = self._at
        a, b = (_one_name(self._lines[self._at + i][4:]) for i in (0, 1))
        self._at += 2
        hunks: list[PatchHunk] = []
        while self._at < len(self._lines) and self._lines[self._at].startswith("@@"):
            hunks.append(self._hunk())
        return self._made(about, a, b, tuple(hunks), began)

    def _made(self, about: _Header, a: str, b: str, hunks: tuple[PatchHunk, ...], began: int) -> FilePatch:
        mode = about.new_mode
        executable = None if not mode else mode.endswith(("755", "775", "777"))
        prefixes = (a == "/dev/null" or a.startswith("a/")) and (b == "/dev/null" or b.startswith("b/"))
        old, new = (name[2:] if prefixes and name != "/dev/null" else name for name in (a, b))
        if about.source and about.target:
            kind = COPY if about.copies else UPDATE
            return FilePatch(kind, about.source, about.target, hunks, executable, of_git=True)
        if a == "/dev/null" or about.new:
            prefixed = b if prefixes else None
            return FilePatch(ADD, new, None, hunks, executable or None, prefixed, of_git=about.git)
        if b == "/dev/null" or about.deleted:
            prefixed = a if prefixes else None
            return FilePatch(DELETE, old, None, hunks, None, prefixed, of_git=about.git)
        if not new:
            raise invalid_patch("the file is not named", began + 1)
        if not hunks and executable is None:
            raise invalid_patch(f"nothing is changed in {new}", began + 1)
        return FilePatch(UPDATE, new, None, hunks, executable, b if prefixes else None)

    def _hunk(self) -> PatchHunk:
        number = self._at + 1
        header = self._lines[self._at]
        match = _NUMBERS.match(header)
        self._at += 1
        start: int | None = None
        taken: int | None = None
        anchors: tuple[str, ...] = ()
        if match is not None:
            start = int(match[1])
            counts = (int(match[2] or 1), int(match[4] or 1))
            if match[2] is not None and counts[0] == 0:
                start += 1  # `-N,0` inserts after line N
            taken = self._count(*counts)
        elif (anchor := header[2:].strip().removesuffix("@@").strip()) not in ("", "..."):
            anchors = (anchor,)
        lines: list[tuple[str, str]] = []
        open_old = open_new = False
        while self._at < len(self._lines) and (taken is None or self._at < taken):
            line = self._lines[self._at]
            if taken is None and (
                line.startswith(("@@", "diff --git ")) or self._is_names() or line.rstrip() == "-- "
            ):
                break
            self._at += 1
            if line.startswith("\\"):
                open_old |= bool(lines) and lines[-1][0] != "+"
                open_new |= bool(lines) and lines[-1][0] != "-"
                continue
            lines.append(_marked(line, self._at))
        if taken is None:
            while lines and lines[-1] == (" ", "") and self._lines[self._at - 1] == "":
                lines.pop()
        if not any(mark != " " for mark, _ in lines):
            raise invalid_patch("a hunk has neither a line with - nor one with +", number)
        return PatchHunk(tuple(lines), start, anchors, False, open_old, open_new)

    def _count(self, old: int, new: int) -> int | None:
        """Return the end of a hunk by the counts of its header; None if the counts do not match the lines
        after it, as in patches that models write.
        """
        at = self._at
        while at < len(self._lines) and (old or new):
            mark = self._lines[at][:1]
            if mark not in ("", "\r", *_MARKS, "\\"):
                return None
            if mark == "\\":
                at += 1
                continue
            old -= mark != "+"
            new -= mark != "-"
            if old < 0 or new < 0:
                return None
            at += 1
        if old or new:
            return None
        if at < len(self._lines) and self._lines[at].startswith("\\"):
            at += 1
        rest = self._lines[at] if at < len(self._lines) else ""
        names = (
            rest.startswith("--- ") and at + 1 < len(self._lines) and self._lines[at + 1].startswith("+++ ")
        )
        more = rest.startswith(_MARKS) and rest.rstrip() != "--" and not names
        return None if more else at


_MODES = (
    ("old mode ", "old_mode"),
    ("new mode ", "new_mode"),
    ("new file mode ", "new_mode"),
    ("deleted file mode ", "old_mode"),
    ("rename from ", "source"),
    ("rename to ", "target"),
    ("copy from ", "source"),
    ("copy to ", "target"),
)
_EXTENDED = (*(start for start, _ in _MODES), "index ", "similarity index ", "dissimilarity index ")


def _names_file(line: str, after: str) -> bool:
    """True for the two lines that name the file of a unified diff."""
    return line.startswith("--- ") and after.startswith("+++ ")


def _one_name(raw: str) -> str:
    """The name after `--- ` or `+++ `: in quotes, or up to a tab, after which a time follows."""
    name = raw.rstrip("\r")
    if name.startswith('"'):
        return _unquoted(name[: name.rfind('"') + 1])
    return name.partition("\t")[0].rstrip()


def _two_names(rest: str) -> tuple[str, str]:
    """The names of `diff --git a/PATH b/PATH`; both are the same unless the header also has a rename."""
    if rest.startswith('"'):
        first, _, second = rest.partition('" ')
        return _unquoted(first + '"'), _unquoted(second)
    half = len(rest) // 2
    if len(rest) % 2 and rest[half] == " " and rest[:half][1:] == rest[half + 1 :][1:]:
        return rest[:half], rest[half + 1 :]
    first, _, second = rest.partition(" ")
    return first, _unquoted(second)


def _unquoted(name: str) -> str:
    """Decode a name in git's quotes (core.quotePath); bytes that are not UTF-8 are decoded as by
    os.fsdecode."""
    if len(name) < 2 or not (name.startswith('"') and name.endswith('"')):
        return name

    def byte(match: re.Match[bytes]) -> bytes:
        code = match[1]
        value = _ESCAPED.get(code)
        return bytes((int(code, 8) & 0xFF if value is None else value,))

    raw = _ESCAPE.sub(byte, name[1:-1].encode("utf-8", "surrogateescape"))
    return raw.decode("utf-8", "surrogateescape")
