"""Directories that one user alone may enter: cache, state, runtimes. Standard library only.

What the agent is made of and what its sessions hold must not depend on a umask, nor on what an older version left open. A directory of ours
is made 0700, tightened when it is found open, and refused when another user owns it or could have exchanged it.
"""

from __future__ import annotations

import errno
import os
import stat

OWN_NAMES = frozenset({"registry.json", "gateway.pid", "gateway.lock", "gateway.token", "gateway.log", "export-records", "gateway.sock"})
_OF_A_CACHE = ("key-", ".building-", ".torn-", ".pruned-", ".unpacking-", "eos-rt-", "eos-shared-base-")
_LENGTH_OF_A_HASH = 64
"""Signs that a directory is ours, whatever else is in it."""
COMMON_NAMES = frozenset({"exports", "instance_id", "sandboxes", "bundles", "bases", "index"})
"""Names that we have too, and others may: a directory that is found open and holds something else beside these is another's, and stays as it is."""
OTHERS = 0o077
MAY_WRITE = 0o022
LINKS_MAX = 40


class NotPrivate(OSError):
    """The message says what was found at which path; `hint` what to do, which loses nothing."""

    def __init__(self, path: str, what: str, hint: str) -> None:
        super().__init__(errno.EACCES, f"{what}; {hint}", path)
        self.hint = hint


def make(path: str) -> int:
    """Make `path` a directory of mode 0700 with all that is missing above it, or tighten the one that is there.

    Returns:
        The permission bits that group and others had before: 0 for a new or private one.
    Raises:
        NotPrivate: another user owns it, or it is open and is not ours to close.
        OSError: it cannot be made.
    """
    for folder in reversed(_missing(path)):
        try:
            os.mkdir(folder, 0o700)
        except FileExistsError:
            continue
        os.chmod(folder, 0o700)  # a umask may have taken from it
    if os.name != "posix":
        return 0
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        found = os.fstat(fd)
        if found.st_uid != os.geteuid():
            hint = "name a directory of your own with EOS_STATE_DIR and XDG_CACHE_HOME"
            raise NotPrivate(path, f"belongs to the user with the number {found.st_uid}, not to {os.geteuid()}", hint)
        open_to = found.st_mode & OTHERS
        if open_to:
            _check_ours(path, fd, found)
            os.fchmod(fd, stat.S_IMODE(found.st_mode) & ~OTHERS)
        return open_to
    finally:
        os.close(fd)


def _missing(path: str) -> list[str]:
    """`path` and what is above it, innermost first, as far as it is not there."""
    missing: list[str] = []
    while not os.path.isdir(path) and path != os.path.dirname(path):
        missing.append(path)
        path = os.path.dirname(path)
    return missing


def _check_ours(path: str, fd: int, found: os.stat_result) -> None:
    names = set(os.listdir(fd)) - {"lost+found"}
    home = os.path.realpath(os.path.expanduser("~"))
    if found.st_mode & stat.S_ISVTX or os.path.realpath(path) in ("/", home) or not _are_ours(names):
        shown = ", ".join(sorted(names)[:3])
        hint = f"name an empty directory, or {os.path.join(path, 'eos')}, which is made when needed; or close it: chmod 700 {path}"
        mode = stat.S_IMODE(found.st_mode)
        raise NotPrivate(path, f"is open to other users (mode {mode:04o}) and holds what is not ours ({shown}): it is not closed", hint)


def _are_ours(names: set[str]) -> bool:
    return names <= COMMON_NAMES or any(map(_is_our_name, names))


def _is_our_name(name: str) -> bool:
    return name in OWN_NAMES or name.startswith(_OF_A_CACHE) or (len(name) == _LENGTH_OF_A_HASH and not set(name) - set("0123456789abcdef"))


def untrusted(path: str) -> NotPrivate | None:
    """Which component of `path`, links followed one by one, another user could exchange for something else, or None.

    A directory counts as safe when root or this user owns it and no one else may write it; a sticky one protects what others own in it. A
    group counts as no one else when it is its only member's own, as systems with a umask of 002 have it.
    Cost: an lstat per component.
    """
    if os.name != "posix":
        return None
    pending, seen, links = [part for part in reversed(os.path.abspath(path).split("/")) if part], "/", 0
    problem = _loose("/", os.lstat("/"))
    while pending and problem is None:
        name = pending.pop()
        if name == "..":
            seen = os.path.dirname(seen)
            continue
        at = os.path.join(seen, name)
        try:
            found = os.lstat(at)
        except FileNotFoundError:
            return None
        if stat.S_ISLNK(found.st_mode):
            links += 1
            if links > LINKS_MAX:
                return NotPrivate(path, f"leads through more than {LINKS_MAX} symbolic links", "name the directory itself")
            problem = _foreign(at, found)
            target = os.readlink(at)
            seen = "/" if target.startswith("/") else seen
            pending += [part for part in reversed(target.split("/")) if part not in ("", ".")]
        else:
            problem, seen = _loose(at, found), at
    return problem


def _foreign(path: str, found: os.stat_result) -> NotPrivate | None:
    if found.st_uid in (0, os.geteuid()) or (found.st_uid == _overflow_uid()):
        return None
    what = f"belongs to the user with the number {found.st_uid}, who could put other code of the agent there"
    return NotPrivate(path, what, "name another directory with XDG_CACHE_HOME")


def _loose(path: str, found: os.stat_result) -> NotPrivate | None:
    if (problem := _foreign(path, found)) is not None:
        return problem
    writers = found.st_mode & MAY_WRITE
    if not writers or found.st_mode & stat.S_ISVTX or (writers == 0o020 and _is_own_group(found.st_uid, found.st_gid)):
        return None
    import shlex

    letters = ("g" if writers & 0o020 else "") + ("o" if writers & 0o002 else "")
    what = f"can be written by other users (mode {stat.S_IMODE(found.st_mode):04o}), who could put other code of the agent below it"
    return NotPrivate(path, what, f"chmod {letters}-w {shlex.quote(path)}, or name another directory with XDG_CACHE_HOME")


def _is_own_group(uid: int, gid: int) -> bool:
    """Whether the group is the one that the system made for this user alone."""
    import grp
    import pwd

    try:
        user, group = pwd.getpwuid(uid), grp.getgrgid(gid)
    except KeyError:
        return False
    return user.pw_gid == gid and group.gr_name == user.pw_name and set(group.gr_mem) <= {user.pw_name}


def _overflow_uid() -> int:
    """What files of users without a number here are shown to belong to, in a user namespace; else -1: root is shown so in a session."""
    try:
        with open("/proc/self/uid_map", encoding="ascii") as file:
            if file.read().split() == ["0", "0", "4294967295"]:
                return -1
        with open("/proc/sys/kernel/overflowuid", encoding="ascii") as file:
            return int(file.read())
    except (OSError, ValueError):
        return -1


def untrusted_file(path: str) -> bool:
    """Whether another user may have written this file: owner or mode say so, or it is no plain file."""
    if os.name != "posix":
        return False
    found = os.lstat(path)
    return not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid() or bool(found.st_mode & MAY_WRITE)
