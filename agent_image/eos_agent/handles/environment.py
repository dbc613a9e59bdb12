"""The environment of a command: variables of the image, of the container and of the caller, never those of
the agent."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from eos_agent.base.settings import Settings
from eos_agent.wire.protocol import INVALID_REQUEST, OperationError

PROXIES = (
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "NO_PROXY",
    "ALL_PROXY",
    "http_proxy",
    "https_proxy",
    "no_proxy",
    "all_proxy",
)
ALLOWED = ("PATH", "HOME", "USER", "LANG", "LC_ALL", "TERM", "TZ", *PROXIES)
DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

GIT_CONFIG = (
    ("safe.directory", "*"),
    ("core.checkStat", "minimal"),
    ("core.trustctime", "false"),
    ("core.untrackedCache", "false"),
    ("core.fsmonitor", ""),
    ("gc.auto", "0"),
    ("gc.autoDetach", "false"),
    ("maintenance.auto", "false"),
    ("maintenance.autoDetach", "false"),
)
"""Settings of git(1) for every command.

safe.directory: git refuses a repository whose files have another owner, as those of a base do.
core.checkStat, core.trustctime: files of a base have the mtimes and sizes of git's index but other inodes and
ctimes; git would read each file at every status, since it may not refresh the index (GIT_OPTIONAL_LOCKS).
core.untrackedCache, core.fsmonitor: both are tied to one machine and directory, and fsmonitor starts a
process that outlives the command. Empty is false to every version: 2.35 and older run another value, as
`false`, as a program. gc, maintenance: each session would repack what all of them share; in the background it
would end with the session of its command.
"""
GIT_CONFIG_LOCAL = (("commit.gpgSign", "false"), ("tag.gpgSign", "false"))
"""Settings for the local provider, which hides the user's keys but not the configuration that asks for
them.
"""
EDITORS = ("EDITOR", "VISUAL", "GIT_EDITOR", "GIT_SEQUENCE_EDITOR")
NO_EDITOR = (
    "sh -c '"
    'for e in "$GIT_EDITOR" "$VISUAL" "$EDITOR"; do case $e in ""|*"no editor runs here"*) ;; '
    '*) eval "$e \\"\\$@\\""; exit;; esac; done; '
    'echo "no editor runs here: give the text as an argument or a file (git commit -m or -F, '
    "git rebase without -i), or set EDITOR in env\" >&2; exit 1' editor"
)
"""The image's sh(1) runs this text, as git and other programs run an editor: with the file's name appended.

All of `EDITORS` are set to it, since git prefers some of them, and settings of its own, to EDITOR. It starts
an editor that the caller names in a variable of lower rank, in `env` or in the command itself.
"""

_COUNT, _KEY, _VALUE = "GIT_CONFIG_COUNT", "GIT_CONFIG_KEY_", "GIT_CONFIG_VALUE_"
_COUNT_DIGITS = 4


def base_environment(settings: Settings) -> dict[str, str]:
    """Return the environment that every command of the sandbox starts with.

    Docker: the variables of the image and `container_env`. Local provider, or `runtime.command.environment:
    allow_list`: only those variables of the image (local: of the caller) that the allow-list names. PATH and
    HOME (root's) have defaults.
    """
    image = dict(item.split("=", 1) for item in settings.image_env if "=" in item)
    if settings.local or settings.get("runtime.command.environment", "image") == "allow_list":
        image = {key: value for key, value in image.items() if key in ALLOWED}
    found = {**image, **settings.container_env}
    if settings.path:
        found["PATH"] = _visible(settings.path, (*settings.hidden_paths, *settings.private_dirs))
    found.setdefault("PATH", DEFAULT_PATH)
    found.setdefault("HOME", "/root")
    found.setdefault("USER", "root")
    found.setdefault("PAGER", "cat")
    found.setdefault("GIT_PAGER", "cat")
    found.setdefault("GIT_TERMINAL_PROMPT", "0")
    if not found.keys() & {"LANG", "LC_ALL", "LC_CTYPE"}:
        found["LANG"] = "C.UTF-8"
    if settings.get("runtime.command.editor", "refuse") == "refuse":
        found = without_editor(found)
    found["GIT_OPTIONAL_LOCKS"] = "0"
    found["EOS_WORKSPACE"] = settings.workspace_root
    return with_git_config(found, GIT_CONFIG + GIT_CONFIG_LOCAL if settings.local else GIT_CONFIG)


def without_editor(environment: dict[str, str]) -> dict[str, str]:
    """Set the editor's variables, unless one of them is set, to a command that fails with an explanation: a
    program that opens an editor on a terminal would wait for keys that the caller does not know to send.
    """
    if environment.keys() & set(EDITORS):
        return environment
    return {**environment, **dict.fromkeys(EDITORS, NO_EDITOR)}


def with_git_config(
    environment: dict[str, str], wanted: Sequence[tuple[str, str]] = GIT_CONFIG
) -> dict[str, str]:
    """Add `wanted` after the entries of GIT_CONFIG_COUNT. A configured key keeps its value; an invalid
    count is left for git to report.
    """
    text = environment.get(_COUNT) or "0"
    if not _is_count(text):
        return environment
    count = int(text)
    known = {environment.get(f"{_KEY}{number}", "").lower() for number in range(count)}
    found = dict(environment)
    for key, value in wanted:
        if key.lower() not in known:
            found.update({f"{_KEY}{count}": key, f"{_VALUE}{count}": value})
            count += 1
    found[_COUNT] = str(count)
    return found


def _entries(environment: Mapping[str, str]) -> list[tuple[str, str]]:
    """List the entries of GIT_CONFIG_COUNT."""
    count = environment.get(_COUNT, "")
    return [
        (environment[f"{_KEY}{number}"], environment[f"{_VALUE}{number}"])
        for number in range(int(count) if _is_count(count) else 0)
        if environment.keys() >= {f"{_KEY}{number}", f"{_VALUE}{number}"}
    ]


def _is_count(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= _COUNT_DIGITS


def _visible(path: str, hidden: Sequence[str]) -> str:
    def shows(entry: str) -> bool:
        return os.path.isabs(entry) and not any(
            entry == folder or entry.startswith(folder.rstrip("/") + "/") for folder in hidden
        )

    return ":".join(entry for entry in path.split(":") if shows(entry)) or DEFAULT_PATH


def parse_env(items: Sequence[object]) -> dict[str, str]:
    """Parse the `env` argument, an array of "NAME=value".

    Raises:
        OperationError: invalid_request that names the item.
    """
    found: dict[str, str] = {}
    for index, item in enumerate(items):
        name, equals, value = item.partition("=") if isinstance(item, str) else ("", "", "")
        if not name or not equals or "\0" in value or "\0" in name:
            raise OperationError(
                INVALID_REQUEST,
                f'env[{index}] must be a string "NAME=value"',
                {"argument": f"env[{index}]"},
                reason="invalid_env",
            )
        found[name] = value
    return found


def command_environment(base: dict[str, str], extra: dict[str, str], *, tty: bool) -> dict[str, str]:
    """Merge `base` and the caller's variables. For a terminal TERM has a default."""
    found = {**base, **extra}
    if _COUNT in extra:
        found = with_git_config(found, _entries(base))
    if tty:
        found.setdefault("TERM", "xterm-256color")
    return found
