"""git's configuration files: parsed as git does, and merged by key.

A file is kept as its own pieces (headers, variables, comments, blank lines), so that a merge writes only what
changed. Source: config.c of git, git-config(1).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from layerstack.git.object_format import GitRefused

CONFIG_MAX = 4 << 20
"""Bytes of a configuration file."""

_BLANKS = b" \t\r\n"
"""Blanks as git has them: without form feed and vertical tab."""
_SECTION = re.compile(rb"[A-Za-z0-9.-]+")
_NAME = re.compile(rb"[A-Za-z][A-Za-z0-9-]*")
_HEADER_SPACE = re.compile(rb"[ \t\r]*")
_ESCAPES = {ord("t"): 9, ord("b"): 8, ord("n"): 10, ord("\\"): 92, ord('"'): 34}


class ConfigSyntax(GitRefused):
    """A file that git could not read. `line` counts from 1."""

    def __init__(self, line: int) -> None:
        super().__init__(f"read a git configuration: line {line} is not one; `git config --list` shows it")
        self.line = line


class ConfigKey(NamedTuple):
    """A variable: section and name in lower case, subsection as written; None: the section has none."""

    section: bytes
    subsection: bytes | None
    name: bytes

    @property
    def text(self) -> str:
        """Write the key as `git config` names it."""
        middle = b"" if self.subsection is None else self.subsection + b"."
        return (self.section + b"." + middle + self.name).decode("utf-8", "replace")


class ConfigPiece(NamedTuple):
    """A piece of the file: with `key` a variable, with `section` only a header, else blanks and comments."""

    raw: bytes
    section: tuple[bytes, bytes | None] | None = None
    """The section in which the piece is; None before the first."""
    key: ConfigKey | None = None
    value: bytes | None = None
    """The value; None for a variable without `=`, which means true."""
    opens: bool = False
    """True for a header."""


class GitConfig:
    """A configuration file in pieces; they joined are the file."""

    def __init__(self, pieces: list[ConfigPiece]) -> None:
        self.pieces = pieces

    @classmethod
    def parse(cls, data: bytes) -> GitConfig:
        """Parse a file.

        Raises:
            ConfigSyntax: git would refuse the file.
            GitRefused: the file has more than CONFIG_MAX bytes.
        """
        if len(data) > CONFIG_MAX:
            raise GitRefused(
                f"read a git configuration: {len(data):,} bytes, at most {CONFIG_MAX:,} are read"
            )
        return cls(list(_ConfigReader(data).pieces()))

    def items(self) -> Iterator[tuple[ConfigKey, bytes | None]]:
        """List variables with their values in the order of the file."""
        for piece in self.pieces:
            if piece.key is not None:
                yield piece.key, piece.value

    def all(self, section: bytes, subsection: bytes | None, name: bytes) -> list[bytes | None]:
        """List the values of one variable, the one that counts last; section and name in lower case."""
        wanted = ConfigKey(section, subsection, name)
        return [value for key, value in self.items() if key == wanted]

    def get(self, section: bytes, subsection: bytes | None, name: bytes) -> bytes | None:
        """Give the value that counts; `true` for a variable without `=`, None when it is not set."""
        found = self.all(section, subsection, name)
        return None if not found else b"true" if found[-1] is None else found[-1]

    def to_bytes(self) -> bytes:
        return b"".join(piece.raw for piece in self.pieces)


class _ConfigReader:
    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 3 if data.startswith(b"\xef\xbb\xbf") else 0
        self.section: tuple[bytes, bytes | None] | None = None

    def pieces(self) -> Iterator[ConfigPiece]:
        data, start = self.data, 0
        while self.at < len(data):
            byte = data[self.at : self.at + 1]
            if byte in _BLANKS:
                self.at += 1
            elif byte in b"#;":
                self.at = self._line_end()
            elif byte == b"[" or _NAME.match(data, self.at):
                if self.at > start:
                    yield ConfigPiece(data[start : self.at], self.section)
                start = self.at
                yield self._header(start) if byte == b"[" else self._variable(start)
                start = self.at
            else:
                raise self._error()
        if self.at > start:
            yield ConfigPiece(data[start:], self.section)

    def _line_end(self) -> int:
        end = self.data.find(b"\n", self.at)
        return len(self.data) if end < 0 else end + 1

    def _error(self) -> ConfigSyntax:
        return ConfigSyntax(self.data.count(b"\n", 0, self.at) + 1)

    def _header(self, start: int) -> ConfigPiece:
        """Read `[section]`, `[section "subsection"]` or the older `[section.subsection]`."""
        data = self.data
        found = _SECTION.match(data, start + 1)
        if found is None:
            raise self._error()
        name, self.at = found[0], found.end()
        if data[self.at : self.at + 1] == b"]":
            self.at += 1
            section, dot, subsection = name.lower().partition(b".")
            self.section = section, subsection if dot else None
            return ConfigPiece(data[start : self.at], self.section, opens=True)
        self.at = self._skip(self.at)
        if data[self.at : self.at + 1] != b'"' or self.at == found.end():
            raise self._error()
        value = bytearray()
        self.at += 1
        while True:
            byte = data[self.at : self.at + 1]
            if byte in (b"", b"\n"):
                raise self._error()
            self.at += 1
            if byte == b'"':
                break
            if byte == b"\\":
                byte = data[self.at : self.at + 1]
                if byte in (b"", b"\n"):
                    raise self._error()
                self.at += 1
            value += byte
        if data[self.at : self.at + 1] != b"]":
            raise self._error()
        self.at += 1
        section, dot, rest = name.lower().partition(b".")
        self.section = section, rest + dot + bytes(value)
        return ConfigPiece(data[start : self.at], self.section, opens=True)

    def _skip(self, at: int) -> int:
        found = _HEADER_SPACE.match(self.data, at)
        return at if found is None else found.end()

    def _variable(self, start: int) -> ConfigPiece:
        found = _NAME.match(self.data, start)
        if found is None or self.section is None:
            raise self._error()
        name = found[0].lower()
        self.at = found.end()
        while self.data[self.at : self.at + 1] in (b" ", b"\t"):
            self.at += 1
        value: bytes | None = None
        here = self.data[self.at : self.at + 2]
        if here[:1] == b"=":
            self.at += 1
            value = self._value()
        elif here[:1] == b"\n" or here == b"\r\n":
            self.at += len(here) if here == b"\r\n" else 1
        elif here:
            raise self._error()
        key = ConfigKey(self.section[0], self.section[1], name)
        return ConfigPiece(self.data[start : self.at], self.section, key, value)

    def _value(self) -> bytes:
        """Read a value as `parse_value` does, up to and with the end of its line."""
        data = self.data
        out = bytearray()
        quoted = comment = False
        kept = 0  # length without blanks at the end
        while True:
            byte = data[self.at : self.at + 1]
            if byte == b"\r" and data[self.at + 1 : self.at + 2] == b"\n":
                self.at += 1
                byte = b"\n"
            if byte in (b"", b"\n"):
                if quoted:
                    raise self._error()
                self.at += len(byte)
                return bytes(out[:kept])
            self.at += 1
            if comment:
                continue
            if byte in b" \t\r" and not quoted:
                if out:
                    out += byte
                continue
            if byte in b";#" and not quoted:
                comment = True
                continue
            if byte == b"\\":
                out += self._escaped()
            elif byte == b'"':
                quoted = not quoted
            else:
                out += byte
            kept = len(out)

    def _escaped(self) -> bytes:
        """Read what follows a backslash: a character, or the end of a line, which is nothing."""
        byte = self.data[self.at : self.at + 1]
        if byte == b"\r" and self.data[self.at + 1 : self.at + 2] == b"\n":
            self.at += 1
            byte = b"\n"
        self.at += len(byte)
        if byte in b"\n":  # or the end of the file
            return b""
        if byte[0] not in _ESCAPES:
            raise self._error()
        return bytes((_ESCAPES[byte[0]],))


def section_header(section: bytes, subsection: bytes | None) -> bytes:
    if subsection is None:
        return b"[%s]" % section
    return b'[%s "%s"]' % (section, subsection.replace(b"\\", b"\\\\").replace(b'"', b'\\"'))
