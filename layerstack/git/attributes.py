"""Attributes of paths by `.gitattributes` and `info/attributes`, as `git check-attr` gives them.

The last line of a file that matches a path decides, a deeper file beats a shallower one, and
`info/attributes` beats all. Files outside of the repository (core.attributesFile, /etc/gitattributes) are not
read. Source: gitattributes(5), attr.c of git.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from typing import NamedTuple

from layerstack.git.file_bytes import SizedCache
from layerstack.git.object_format import ObjectTooLarge
from layerstack.text.wildmatch import Pattern, compile_pattern

NAME = ".gitattributes"
FILE_MAX = 1 << 20
"""Bytes of one file of attributes."""
RULES_MAX = 10_000
"""Lines with a pattern in one file: each is tried for each path."""
LINE_MAX = 2048
"""Bytes of one line; git ignores a longer one."""

Value = str | bool
"""True: set; False: unset (`-name`); a text: set to it. An unspecified attribute has no value."""
_BUILTIN = b"[attr]binary -diff -merge -text\n"
_MACRO = b"[attr]"
_BLANK = b" \t\r\n"
_NAME = re.compile(rb"[A-Za-z0-9_.][-A-Za-z0-9_.]*")
_STATE = re.compile(rb"[^ \t\r\n]+")
_QUOTED = re.compile(rb'"((?:[^"\\]|\\(?:[abfnrtv\\"]|[0-3][0-7][0-7]))*)"')
_ESCAPE = re.compile(rb"\\([0-3][0-7][0-7]|.)", re.DOTALL)
_ESCAPES = {b"a": b"\a", b"b": b"\b", b"f": b"\f", b"n": b"\n", b"r": b"\r", b"t": b"\t", b"v": b"\v"}

_Setting = tuple[str, Value | None]
"""None: `!name`, unspecified whatever another line says."""


class AttributeRule(NamedTuple):
    """One line: a pattern, and what it sets, the last first."""

    pattern: Pattern
    whole: bool
    """The pattern is compared with the path below the file's directory, not with the last name."""
    settings: tuple[_Setting, ...]


class AttributeFile(NamedTuple):
    """The lines of one file, the last first, and its macros."""

    rules: tuple[AttributeRule, ...]
    macros: Mapping[str, tuple[_Setting, ...]]


_NOTHING = AttributeFile((), {})


class GitAttributes:
    """The attributes of the paths of one work tree.

    Args:
        read: path of a `.gitattributes` below the work tree -> its bytes; None where there is no regular
            file.
        info: the bytes of `info/attributes`.
    """

    def __init__(self, read: Callable[[str], bytes | None], info: bytes | None = None) -> None:
        self._read = read
        self._files: SizedCache[bytes, AttributeFile] = SizedCache(16 << 20)
        self._info = parse_attributes(info or b"", "info/attributes", macros=True)
        self._builtin = parse_attributes(_BUILTIN, "builtin", macros=True)

    def of(self, path: bytes) -> Mapping[str, Value]:
        """Give the attributes of a file's path that have a value. Raises ObjectTooLarge."""
        folders = [b""]
        at = path.find(b"/")
        while at >= 0:
            folders.append(path[:at])
            at = path.find(b"/", at + 1)
        stack = [(b"", self._info), *((f, self._file(f)) for f in reversed(folders)), (b"", self._builtin)]
        macros: dict[str, tuple[_Setting, ...]] = {}
        for _, file in reversed(stack):
            macros.update(file.macros)
        found: dict[str, Value | None] = {}
        base = path[path.rfind(b"/") + 1 :]
        for folder, file in stack:
            below = path[len(folder) + 1 :] if folder else path
            for rule in file.rules:
                if _matches(rule, below, base):
                    _set(found, rule.settings, macros)
        return {name: value for name, value in found.items() if value is not None}

    def _file(self, folder: bytes) -> AttributeFile:
        found = self._files.get(folder)
        if found is None:
            path = os.path.join(os.fsdecode(folder), NAME)
            data = self._read(path)
            found = parse_attributes(data, path, macros=not folder) if data else _NOTHING
            self._files.put(folder, found, 10 * len(data or b"") + 300)
        return found


def _matches(rule: AttributeRule, below: bytes, base: bytes) -> bool:
    text = below if rule.whole else base
    pattern = rule.pattern
    return pattern.literal == text if pattern.literal is not None else pattern.matches(text)


def _set(
    found: dict[str, Value | None], settings: tuple[_Setting, ...], macros: Mapping[str, tuple[_Setting, ...]]
) -> None:
    """Give values to attributes that have none; one that is set and is a macro gives those that it names."""
    stack = list(reversed(settings))
    while stack:
        name, value = stack.pop()
        if name in found:
            continue
        found[name] = value
        if value is True and name in macros:
            stack += reversed(macros[name])


def parse_attributes(data: bytes, name: str, *, macros: bool) -> AttributeFile:
    """Parse a file of attributes; a line that git reports as wrong is left out.

    Args:
        macros: the file may define macros: that of the top directory, and `info/attributes`.

    Raises:
        ObjectTooLarge: more than FILE_MAX bytes or RULES_MAX lines.
    """
    if len(data) > FILE_MAX:
        raise ObjectTooLarge(f"{name} of {len(data)} bytes, more than {FILE_MAX}")
    rules: list[AttributeRule] = []
    defined: dict[str, tuple[_Setting, ...]] = {}
    for line in data.removeprefix(b"\xef\xbb\xbf").split(b"\n"):
        text = line.partition(b"\0")[0]
        if len(text) >= LINE_MAX or not (text := text.lstrip(_BLANK)) or text.startswith(b"#"):
            continue
        head, rest = _head(text)
        macro: str | None = None
        if len(head) > len(_MACRO) and head.startswith(_MACRO):
            found = _NAME.fullmatch(head[len(_MACRO) :])
            if not macros or found is None:
                continue
            macro = found[0].decode()
        settings = _settings(rest)
        if settings is None:
            continue
        if macro is not None:
            defined[macro] = settings
        elif (rule := _rule(head, settings)) is not None:
            rules.append(rule)
            if len(rules) > RULES_MAX:
                raise ObjectTooLarge(f"{name} with more than {RULES_MAX} patterns")
    rules.reverse()
    return AttributeFile(tuple(rules), defined)


def _head(text: bytes) -> tuple[bytes, bytes]:
    """Split a line into its pattern and the rest."""
    quoted = _QUOTED.match(text)
    if quoted is not None:
        return _ESCAPE.sub(_escaped, quoted[1]), text[quoted.end() :]
    end = next((n for n, c in enumerate(text) if c in _BLANK), len(text))
    return text[:end], text[end:]


def _escaped(found: re.Match[bytes]) -> bytes:
    what: bytes = found[1]
    return bytes([int(what, 8)]) if len(what) == 3 else _ESCAPES.get(what, what)


def _settings(text: bytes) -> tuple[_Setting, ...] | None:
    """Parse what a line sets, the last first; None for a line with a wrong name."""
    rows: list[_Setting] = []
    for word in _STATE.findall(text):
        sign = word[:1] if word[:1] in (b"-", b"!") else b""
        name, equals, value = word[len(sign) :].partition(b"=")
        if _NAME.fullmatch(name) is None:
            return None
        if sign:
            rows.append((name.decode(), False if sign == b"-" else None))
        else:
            rows.append((name.decode(), value.decode(errors="surrogateescape") if equals else True))
    return tuple(reversed(rows))


def _rule(pattern: bytes, settings: tuple[_Setting, ...]) -> AttributeRule | None:
    """Compile a line; None when its pattern can match no file: a negative one, one of a directory."""
    if pattern.startswith(b"!") or pattern.endswith(b"/"):
        return None
    whole = b"/" in pattern
    compiled = compile_pattern(pattern.removeprefix(b"/"), whole=whole)
    if compiled is None:
        return None
    return AttributeRule(compiled, whole and not compiled.name_only, settings)


def merge_driver(attributes: Mapping[str, Value], default: str = "text") -> str:
    """Name the way in which a file is merged: `text`, `union`, `binary`, or `unset` for `-merge`. Drivers of
    the configuration are not run: their files are texts.
    """
    value = attributes.get("merge", default)
    if value is False:
        return "unset"
    return value if isinstance(value, str) and value in ("union", "binary") else "text"
