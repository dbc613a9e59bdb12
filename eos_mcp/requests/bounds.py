"""Bounds of one request: the directories from which it may copy a workspace and to which it may export.

The bounds are the roots of the server that sent the request, without sensitive places. A command line is used
by a person and has no roots. An MCP server sends its roots with each request (`allowed_roots`), since a model
chose the paths in the request. Sensitive places need `allow_sensitive`, which a model cannot give.
"""

from __future__ import annotations

import os
import pwd
import shlex
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, cast

from eos_agent.machine import secret_paths
from eos_agent.wire.protocol import INVALID_REQUEST, OperationError
from eos_mcp.requests import arguments, roots

ROOTS_MAX = 256
SYSTEM = (
    "/bin", "/boot", "/dev", "/etc", "/lib", "/lib32", "/lib64", "/proc", "/run", "/sbin", "/sys", "/usr/bin", "/usr/lib", "/usr/sbin",  # noqa: E501
    "/usr/share", "/usr/local/bin", "/usr/local/sbin", "/usr/local/lib", "/var/run", "/var/spool", "/var/log", "/var/mail",  # noqa: E501
    "/Library", "/System", "/private/etc", "/private/var/db",
)  # fmt: skip
"""Directories of the machine: settings, programs, mail, devices."""
START_UP = (
    ".bashrc", ".bash_profile", ".bash_login", ".bash_logout", ".profile", ".zshrc", ".zshenv", ".zprofile", ".zlogin", ".zlogout", ".cshrc",  # noqa: E501
    ".tcshrc", ".kshrc", ".inputrc", ".xinitrc", ".xprofile", ".xsession", ".xsessionrc", ".pam_environment", ".gitconfig", ".gdbinit",  # noqa: E501
    ".lldbinit", ".vimrc", ".vim", ".emacs", ".emacs.d", ".tmux.conf", ".screenrc", ".config", ".local/bin", ".local/lib", ".local/share/applications",  # noqa: E501
    ".local/share/systemd", "bin", ".oh-my-zsh", ".cargo/bin", ".vscode/extensions", "Library/LaunchAgents", "Library/Keychains",  # noqa: E501
)  # fmt: skip
"""Paths in a home whose files run without a command of the user, or under a name that the user types."""
APART = (".codex/worktrees", ".cursor/worktrees", ".claude/worktrees")
"""Paths in a home: checkouts that coding agents make inside their own, otherwise secret, directories."""
_NAMES = (*secret_paths.SECRET_NAMES, *secret_paths.ENGINE_ROOTS_OF_HOME, *START_UP)
_OF_HOME = tuple((name, name.partition("/")[0].casefold()) for name in _NAMES)
"""Each name with its first component, case folded for file systems that fold names."""


class Bounds(NamedTuple):
    """The bounds of one request. `roots`: resolved by the sender; None: no bound; an empty tuple allows
    nothing.
    """

    roots: tuple[str, ...] | None = None
    allow_sensitive: bool = False

    def check(self, path: str, argument: str) -> None:
        """Refuse a path that is, or resolves to a path, outside the roots or in a sensitive place.

        A path that does not exist yet is judged by its directory. Relative paths, and paths that file system
        calls refuse, pass here: the next check refuses them. Roots are not resolved again: an export may have
        replaced a root inside another root by a symlink.

        Raises:
            OperationError: invalid_request, reason outside_roots or sensitive_place.
        """
        if not os.path.isabs(path) or "\0" in path or any("\ud800" <= c <= "\udfff" for c in path):
            return
        real = os.path.realpath(path)
        details: dict[str, Any] = {"argument": argument, "value": path}
        if self.roots is not None and not roots.inside(real, self.roots):
            below = (
                ", ".join(self.roots)
                if self.roots
                else "nothing: the client gave no directory, and the server was not started in a project"
            )
            hint = (
                f"choose a directory below one of the roots, or have the user start the server with "
                f"--root {shlex.quote(real)}"
            )
            message = f"{argument} {path} is outside the directories of this MCP server ({below})"
            raise OperationError(
                INVALID_REQUEST,
                message,
                {**details, "roots": list(self.roots), "hint": hint},
                reason="outside_roots",
            )
        if not self.allow_sensitive and (why := sensitive(real)) is not None:
            hint = (
                "choose another directory; to use this one, the user gives --allow-sensitive to eos-mcp "
                "when it starts, or to the command"
            )
            raise OperationError(
                INVALID_REQUEST,
                f"{argument} {path} is a sensitive place: {why}",
                {**details, "hint": hint},
                reason="sensitive_place",
            )

    def check_rootfs(self, image: str) -> None:
        """Refuse the directory of `rootfs:DIR` outside the roots. Sensitive ones pass: secrets in it are
        hidden from sessions.

        Raises:
            OperationError: as `check`.
        """
        self._replace(allow_sensitive=True).check(image.partition(":")[2], "image")


NO_BOUNDS = Bounds()


def of_request(args: Mapping[str, Any]) -> Bounds:
    """Read the bounds of a request.

    Raises:
        OperationError: invalid_request: the bounds are malformed, so that they would allow everything.
    """
    found = args.get("allowed_roots")
    if found is not None:
        listed = cast("list[object]", found) if isinstance(found, list) else [None]
        if len(listed) > ROOTS_MAX or not all(
            isinstance(root, str) and os.path.isabs(root) and "\0" not in root for root in listed
        ):
            message = f"allowed_roots must be at most {ROOTS_MAX} absolute paths"
            raise OperationError(
                INVALID_REQUEST, message, {"argument": "allowed_roots"}, reason="bad_argument"
            )
        found = tuple(cast("list[str]", listed))
    return Bounds(found, arguments.flag(args, "allow_sensitive"))


def sensitive(real: str) -> str | None:
    """Return the reason why a resolved path is a sensitive place; None when it is not.

    Cost: one look-up per known place that may exist; it reads only the list of users and the names in their
    homes.
    """
    there = [(home, _there(home)) for home in homes()]
    for home, names in there:
        if roots.inside(home, [real]):
            return f"it is or holds the home directory {home}"
        for name in APART:
            if roots.inside(real, [f"{home}/{name}"]) and real != f"{home}/{name}":
                return None
        below = roots.inside(real, [home])
        for name, first in _OF_HOME:
            if (below and roots.inside(real, [f"{home}/{name}"])) or (
                _may(first, names) and _met(real, f"{home}/{name}")
            ):
                return f"{home}/{name} holds secrets or files that run by themselves"
    if (why := _another_name(real, there)) is not None:
        return why
    for place in (*SYSTEM, *secret_paths.ENGINE_ROOTS):
        if _met(real, place) or roots.inside(place, [real]):
            return f"{place} is a directory of the machine"
    return None


def _there(home: str) -> frozenset[str] | None:
    """List the names in a home, case folded; None: they cannot be listed."""
    try:
        return frozenset(name.casefold() for name in os.listdir(home))
    except FileNotFoundError:
        return frozenset()
    except OSError:
        return None


def _may(first: str, names: frozenset[str] | None) -> bool:
    """Tell whether a place whose first component below its home is `first` can exist."""
    return names is None or first in names


def _another_name(real: str, there: Sequence[tuple[str, frozenset[str] | None]]) -> str | None:
    """Compare by device and inode: a bind mount shows a sensitive place under another path."""
    around: set[tuple[int, int]] = set()
    own, at = _identity(real), real
    while at != os.path.dirname(at):
        if (one := _identity(at)) is not None:
            around.add(one)
        at = os.path.dirname(at)
    for home, names in there:
        if own is not None and _identity(home) == own:
            return f"it is the home directory {home} under another name"
        for name, first in _OF_HOME:
            if _may(first, names) and _identity(f"{home}/{name}") in around:
                return (
                    f"under another name it is, or is inside, {home}/{name}, which holds secrets or files "
                    f"that run by themselves"
                )
    for place in (*SYSTEM, *secret_paths.ENGINE_ROOTS):
        if _identity(place) in around:
            return f"under another name it is, or is inside, {place}, a directory of the machine"
    return None


def _identity(path: str) -> tuple[int, int] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _met(real: str, place: str) -> bool:
    """Tell whether `real` is the place, what it resolves to, or below it."""
    return roots.inside(real, [place]) or (
        os.path.islink(place) and roots.inside(real, [os.path.realpath(place)])
    )


def homes() -> Sequence[str]:
    """List the resolved home directories of this user and, for root, of each person of the machine."""
    found = {os.path.expanduser("~")}
    try:
        for entry in pwd.getpwall():
            if entry.pw_uid == os.geteuid() or (
                os.geteuid() == 0 and secret_paths.FIRST_UID <= entry.pw_uid <= secret_paths.LAST_UID
            ):
                found.add(entry.pw_dir)
    except OSError:
        pass
    return sorted({os.path.realpath(home) for home in found if os.path.isabs(home)} - {"/"})
