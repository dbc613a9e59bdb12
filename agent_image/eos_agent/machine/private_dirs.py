"""Directories that only one user may enter: cache, state, runtimes. Standard library only.

The agent's code and the content of its sessions must be private under any umask, also in a directory that an
older version left open. A directory of ours is made with mode 0700, tightened if other users may enter it,
and refused if another user owns it or could have replaced it.
"""

from __future__ import annotations

import errno
import os
import stat

OWN_NAMES = frozenset(
    {
        "registry.json",
        "gateway.pid",
        "gateway.lock",
        "gateway.token",
        "gateway.log",
        "export-records",
        "gateway.sock",
    }
)
_OF_A_CACHE = ("key-", ".building-", ".torn-", ".pruned-", ".unpacking-", "eos-rt-", "eos-shared-base-")
_LENGTH_OF_A_HASH = 64
"""Names, prefixes, and the length of hashes that identify a directory as ours; it may have other entries
too."""
COMMON_NAMES = frozenset({"exports", "instance_id", "sandboxes", "bundles", "bases", "index"})
"""Names that we and other programs may use. The mode of a directory open to other users is not changed if the
directory also has names that are not listed here."""
OTHERS = 0o077
MAY_WRITE = 0o022
LINKS_MAX = 40


class NotPrivate(OSError):
    """A directory is not private: the message has its path and its state, `hint` a next step that loses
    nothing."""

    def __init__(self, path: str, what: str, hint: str) -> None:
        super().__init__(errno.EACCES, f"{what}; {hint}", path)
        self.hint = hint


def make(path: str) -> int:
    """Make the directory `path` and its missing parents with mode 0700, or tighten the one that exists.

    Returns:
        The permission bits that group and others had before: 0 for a new or a private directory.
    Raises:
        NotPrivate: another user owns it, or it is open and is not recognised as ours.
        OSError: the kernel refused to make it.
    """
    for folder in reversed(_missing(path)):
        try:
            os.mkdir(folder, 0o700)
        except FileExistsError:
            continue
        os.chmod(folder, 0o700)  # the umask may have removed bits
    if os.name != "posix":
        return 0
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        found = os.fstat(fd)
        if found.st_uid != os.geteuid():
            hint = "name a directory of your own with EOS_STATE_DIR and XDG_CACHE_HOME"
            raise NotPrivate(path, f"belongs to uid {found.st_uid}, not to uid {os.geteuid()}", hint)
        open_to = found.st_mode & OTHERS
        if open_to:
            _check_ours(path, fd, found)
            os.fchmod(fd, stat.S_IMODE(found.st_mode) & ~OTHERS)
        return open_to
    finally:
        os.close(fd)


def _missing(path: str) -> list[str]:
    """List `path` and its parents that do not exist, innermost first."""
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
        hint = (
            f"name an empty directory, or {os.path.join(path, 'eos')}, which is made when needed; or "
            f"close it: chmod 700 {path}"
        )
        mode = stat.S_IMODE(found.st_mode)
        raise NotPrivate(
            path,
            f"is open to other users (mode {mode:04o}) and has files that are not ours ({shown}): its mode "
            f"was not changed",
            hint,
        )


def _are_ours(names: set[str]) -> bool:
    return names <= COMMON_NAMES or any(map(_is_our_name, names))


def _is_our_name(name: str) -> bool:
    return (
        name in OWN_NAMES
        or name.startswith(_OF_A_CACHE)
        or (len(name) == _LENGTH_OF_A_HASH and not set(name) - set("0123456789abcdef"))
    )


def untrusted(path: str) -> NotPrivate | None:
    """Follow `path` link by link and return the first component that another user could replace, or None.

    A directory is safe if root or this user owns it and only they may write to it, or if it is sticky. Write
    permission of a group counts as this user's own if the user is its only member (systems with umask 002).
    Cost: one lstat per component.
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
                return NotPrivate(
                    path, f"leads through more than {LINKS_MAX} symbolic links", "name the directory itself"
                )
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
    what = f"belongs to uid {found.st_uid}, who could replace the agent's code there"
    return NotPrivate(path, what, "name another directory with XDG_CACHE_HOME")


def _loose(path: str, found: os.stat_result) -> NotPrivate | None:
    if (problem := _foreign(path, found)) is not None:
        return problem
    writers = found.st_mode & MAY_WRITE
    if (
        not writers
        or found.st_mode & stat.S_ISVTX
        or (writers == 0o020 and _is_own_group(found.st_uid, found.st_gid))
    ):
        return None
    import shlex

    letters = ("g" if writers & 0o020 else "") + ("o" if writers & 0o002 else "")
    what = (
        f"can be written by other users (mode {stat.S_IMODE(found.st_mode):04o}), who could replace the "
        f"agent's code below it"
    )
    return NotPrivate(
        path, what, f"chmod {letters}-w {shlex.quote(path)}, or name another directory with XDG_CACHE_HOME"
    )


def _is_own_group(uid: int, gid: int) -> bool:
    """Test that the group is the private group of this user."""
    import grp
    import pwd

    try:
        user, group = pwd.getpwuid(uid), grp.getgrgid(gid)
    except KeyError:
        return False
    return user.pw_gid == gid and group.gr_name == user.pw_name and set(group.gr_mem) <= {user.pw_name}


def _overflow_uid() -> int:
    """The overflow uid, which a user namespace shows for unmapped users; -1 outside of one. A session sees
    root as this uid."""
    try:
        with open("/proc/self/uid_map", encoding="ascii") as file:
            if file.read().split() == ["0", "0", "4294967295"]:
                return -1
        with open("/proc/sys/kernel/overflowuid", encoding="ascii") as file:
            return int(file.read())
    except (OSError, ValueError):
        return -1


def untrusted_file(path: str) -> bool:
    """Test whether another user may have written this file, by owner and mode; True if it is not a regular
    file."""
    if os.name != "posix":
        return False
    found = os.lstat(path)
    return not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid() or bool(found.st_mode & MAY_WRITE)
