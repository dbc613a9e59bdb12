"""Identity of git commits in sessions: configuration files of the lowest rank, so that the user.name of an
image, a user or a repository counts and a commit without one works too.

git(1) reads GIT_CONFIG_SYSTEM (2.32 and newer) before every other file. Older versions take the e-mail
address from EMAIL and the name from the user database.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import NamedTuple

DIRECTORY = "/dev/eos-git"
"""Directory in every session's view, read-only there. The zygote writes its files."""
EMAIL = "agent@eos.invalid"
NAME = "agent"
NAME_MAX = 100
AGENTS_MAX = 1000
"""Maximum of agents of one sandbox that have files in DIRECTORY."""
_SYSTEM_FILES = ("/etc/gitconfig", "/usr/local/etc/gitconfig")
_GLOBAL_FILES = ("~/.config/git/config", "~/.gitconfig")
_OWN = {"GIT_CONFIG_SYSTEM", "GIT_CONFIG_NOSYSTEM"}


class GitIdentity(NamedTuple):
    """The identity of one agent's commits.

    files: name in DIRECTORY -> content: the system's configuration, and where the user's own identity must
    not count, the configuration in place of that in the home directory.
    """

    email: str
    files: Mapping[str, str]

    def added_to(self, environment: dict[str, str]) -> dict[str, str]:
        """Return the variables of a command; those that are set keep their values."""
        found = {"EMAIL": self.email, **environment}
        for name, variable in zip(self.files, ("GIT_CONFIG_SYSTEM", "GIT_CONFIG_GLOBAL"), strict=False):
            if variable not in environment and not (variable in _OWN and environment.keys() & _OWN):
                found[variable] = f"{DIRECTORY}/{name}"
        return found


def name_of(carried: Mapping[str, object], agent: str | None) -> str:
    """Return the name of an agent's commits: of the user, else of the agent, else NAME.

    Args:
        carried: `git_identity` of the settings: `name` and `email` of the user, as far as the host has them;
            `replaces`, true where sessions see the user's home directory and its identity must not count.
    """
    return _one_line(str(carried.get("name") or "")) or _one_line(agent or "") or NAME


def identity_of(carried: Mapping[str, object], name: str, key: str) -> GitIdentity:
    """Return the identity with this name; `key` is the stem of its files' names."""
    email = _one_line(str(carried.get("email") or "")) or EMAIL
    user = f"[user]\n\tname = {_quoted(name)}\n\temail = {_quoted(email)}\n"
    files = {f"{key}.system": f"[safe]\n\tdirectory = *\n{user}{_included(_SYSTEM_FILES)}"}
    if carried.get("replaces") is True:
        files[f"{key}.global"] = f"{_included(_GLOBAL_FILES)}{user}"
    return GitIdentity(email, files)


def write(directory_fd: int, name: str, text: str) -> None:
    """Write a file of DIRECTORY; a reader sees all of it or none.

    Raises:
        OSError: as of open(2), write(2) and rename(2).
    """
    fd = os.open(f".{name}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644, dir_fd=directory_fd)
    with open(fd, "w", encoding="utf-8") as file:
        os.fchmod(fd, 0o644)
        file.write(text)
    os.rename(f".{name}", name, src_dir_fd=directory_fd, dst_dir_fd=directory_fd)


def _included(paths: tuple[str, ...]) -> str:
    return "".join(f"[include]\n\tpath = {path}\n" for path in paths)


def _one_line(text: str) -> str:
    """Remove what an identity cannot have: control characters and angle brackets; git itself removes the
    punctuation at both ends, and refuses a name of nothing else.
    """
    kept = "".join(c if c.isprintable() and c not in "<>" else " " for c in text[:NAME_MAX])
    return " ".join(kept.split()).strip(" .,:;<>\"\\'")


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
