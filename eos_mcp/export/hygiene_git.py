"""Judge git's own files by their content: a file is not plain if git could run a program, or read settings
elsewhere, because of it. Pure.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator
from typing import NamedTuple

_SECTION = re.compile(rb'\[([A-Za-z0-9.-]+)(?:[ \t]+"((?:[^"\\\n]|\\.)*)")?\]')
_KEY = re.compile(rb"([A-Za-z][A-Za-z0-9-]*)[ \t]*(?:=[ \t]*(.*))?")
_ADDRESS = re.compile(
    rb"(?:https?|ssh|git|file)://[^-\s][^\s]*|[\w.][\w.-]*@[\w.-]+:[^\s]*|[./][^\s]*|[\w.][\w.-]*(?:/[\w./-]*)?"
)

_PLAIN: dict[bytes, frozenset[bytes]] = {
    b"core": frozenset(
        b"repositoryformatversion filemode bare logallrefupdates ignorecase precomposeunicode symlinks "
        b"autocrlf eol safecrlf abbrev quotepath"
        b" trustctime checkstat sharedrepository untrackedcache preloadindex".split()
    ),
    b"user": frozenset(b"name email useconfigonly".split()),
    b"author": frozenset(b"name email".split()),
    b"committer": frozenset(b"name email".split()),
    b"init": frozenset([b"defaultbranch"]),
    b"remote": frozenset(b"url pushurl fetch push tagopt prune".split()),
    b"branch": frozenset(
        b"remote merge rebase description pushremote autosetupmerge autosetuprebase".split()
    ),
    b"pull": frozenset(b"rebase ff".split()),
    b"push": frozenset(b"default autosetupremote followtags".split()),
    b"fetch": frozenset(b"prune prunetags".split()),
    b"merge": frozenset(b"ff conflictstyle".split()),
    b"rebase": frozenset(b"autostash autosquash".split()),
    b"color": frozenset(b"ui".split()),
    b"gc": frozenset([b"auto"]),
    b"submodule": frozenset(b"url active branch".split()),
    b"extensions": frozenset(b"objectformat worktreeconfig refstorage compatobjectformat".split()),
    b"commit": frozenset(b"gpgsign".split()),
    b"advice": frozenset(),
}


class Setting(NamedTuple):
    """One line of a git configuration: a key (lower case) of a section (lower case); an empty key for the
    section's own line.
    """

    section: bytes
    key: bytes = b""
    value: bytes = b""
    plain: bool = True
    """True: the whole line was understood."""


def settings(content: bytes) -> Iterator[Setting]:
    """Parse a git configuration, without comments and empty lines; a line that git may parse differently is
    not `plain`.
    """
    section = b""
    for line in content.replace(b"\r\n", b"\n").split(b"\n"):
        text = line.strip(b" \t")
        if not text or text[:1] in (b"#", b";"):
            continue
        plain = b"\0" not in text and not text.endswith(b"\\")
        if text.startswith(b"["):
            found = _SECTION.fullmatch(text)
            head, _, rest = text.partition(b"]")
            section = found[1].lower() if found is not None else head[1:].strip().lower()
            yield Setting(section, plain=plain and found is not None)
            text = rest.strip(b" \t") if found is None else b""
            if not text:
                continue
        key = _KEY.fullmatch(text)
        if key is None:
            yield Setting(section, plain=False)
        else:
            yield Setting(section, key[1].lower(), key[2] or b"", plain and bool(section))


def plain_git_config(content: bytes) -> bool:
    """Tell whether a git configuration has only sections and keys that run no program and name no other file.
    A line that was not understood makes it not plain.
    """
    for one in settings(content):
        if not one.plain or one.section not in _PLAIN:
            return False
        if one.key and one.section != b"advice" and one.key not in _PLAIN[one.section]:
            return False
        if one.key in (b"url", b"pushurl") and _ADDRESS.fullmatch(one.value.strip(b'" \t')) is None:
            return False
    return True


def gitdir_is_plain(content: bytes) -> bool:
    """Tell whether a `.git` file has a relative path into a `.git` directory; the files there are judged by
    their own paths.
    """
    text = content.strip()
    if not text.startswith(b"gitdir: ") or b"\n" in text:
        return False
    place = text.removeprefix(b"gitdir: ")
    return not place.startswith(b"/") and b".git" in posixpath.normpath(place).split(b"/")


def plain_common_directory(content: bytes) -> bool:
    """Tell whether a `commondir` file leads from `.git/worktrees/<name>` to its `.git`, or to itself."""
    return posixpath.normpath(content.strip() or b"/") in (b".", b"../..")


def hooks_path(content: bytes) -> bytes:
    """Return the last `core.hooksPath` of a configuration; empty without one."""
    found = [one.value for one in settings(content) if (one.section, one.key) == (b"core", b"hookspath")]
    return found[-1].split(b" #")[0].strip(b'" \t') if found else b""
