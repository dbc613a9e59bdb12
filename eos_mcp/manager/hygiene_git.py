"""Git's own files by their content: whether they could make git run a program, or read its settings elsewhere. Pure."""

from __future__ import annotations

import posixpath
import re

_SECTION = re.compile(rb'\[([A-Za-z0-9.-]+)(?:[ \t]+"((?:[^"\\\n]|\\.)*)")?\]')
_KEY = re.compile(rb"([A-Za-z][A-Za-z0-9-]*)[ \t]*(?:=[ \t]*(.*))?")
_ADDRESS = re.compile(rb"(?:https?|ssh|git|file)://[^-\s][^\s]*|[\w.][\w.-]*@[\w.-]+:[^\s]*|[./][^\s]*|[\w.][\w.-]*(?:/[\w./-]*)?")

_PLAIN: dict[bytes, frozenset[bytes]] = {
    b"core": frozenset(
        b"repositoryformatversion filemode bare logallrefupdates ignorecase precomposeunicode symlinks autocrlf eol safecrlf abbrev quotepath"
        b" trustctime checkstat sharedrepository untrackedcache preloadindex".split()
    ),
    b"user": frozenset(b"name email useconfigonly".split()),
    b"author": frozenset(b"name email".split()),
    b"committer": frozenset(b"name email".split()),
    b"init": frozenset([b"defaultbranch"]),
    b"remote": frozenset(b"url pushurl fetch push tagopt prune".split()),
    b"branch": frozenset(b"remote merge rebase description pushremote autosetupmerge autosetuprebase".split()),
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


def plain_git_config(content: bytes) -> bool:
    """Whether a git configuration holds only sections and keys that run nothing and lead nowhere; what is not understood is not plain."""
    section = b""
    for line in content.replace(b"\r\n", b"\n").split(b"\n"):
        text = line.strip(b" \t")
        if not text or text[:1] in (b"#", b";"):
            continue
        if b"\0" in text or text.endswith(b"\\"):
            return False
        if text.startswith(b"["):
            found = _SECTION.fullmatch(text)
            if found is None:
                return False
            section = found[1].lower()
            if section not in _PLAIN:
                return False
            continue
        found = _KEY.fullmatch(text)
        if found is None or not section:
            return False
        key = found[1].lower()
        if section != b"advice" and key not in _PLAIN[section]:
            return False
        if key in (b"url", b"pushurl") and _ADDRESS.fullmatch((found[2] or b"").strip(b'" \t')) is None:
            return False
    return True


def gitdir_is_plain(content: bytes) -> bool:
    """Whether a `.git` file names, relatively, a place in a `.git` directory: what lies there is looked at by its own name."""
    text = content.strip()
    if not text.startswith(b"gitdir: ") or b"\n" in text:
        return False
    place = text.removeprefix(b"gitdir: ")
    return not place.startswith(b"/") and b".git" in posixpath.normpath(place).split(b"/")


def plain_common_directory(content: bytes) -> bool:
    """Whether a `commondir` file leads from `.git/worktrees/<name>` to its `.git`, or to itself."""
    return posixpath.normpath(content.strip() or b"/") in (b".", b"../..")


def hooks_path(content: bytes) -> bytes:
    """The last `core.hooksPath` of a configuration, as far as that is written in the ordinary way; empty without one."""
    section, found = b"", b""
    for line in content.replace(b"\r\n", b"\n").split(b"\n"):
        text = line.strip(b" \t")
        if text.startswith(b"["):
            head, _, text = text.partition(b"]")
            section = head[1:].strip().lower()
            text = text.strip(b" \t")
        if section == b"core" and (key := _KEY.fullmatch(text)) and key[1].lower() == b"hookspath":
            found = (key[2] or b"").split(b" #")[0].strip(b'" \t')
    return found
