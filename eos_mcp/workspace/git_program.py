"""The host's git as plumbing: without hooks, fsmonitor, editor, pager, prompt, or the caller's variables."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence

from eos_agent.wire.protocol import OPERATION_FAILED, OperationError

ANSWER_S = 10.0
QUIET = (
    "-c",
    "core.hooksPath=/dev/null",
    "-c",
    "core.fsmonitor=",
    "-c",
    "gc.auto=0",
    "-c",
    "maintenance.auto=false",
)
KEPT = ("GIT_CONFIG_GLOBAL", "GIT_CONFIG_SYSTEM", "GIT_CONFIG_NOSYSTEM")
"""Variables of git that name the user's own configuration."""
_ANSWER_MAX = 64 << 10


class GitFailed(Exception):
    """git ended with an error, or not in time; the message has its own words."""


def program() -> str:
    """Return the path of git.

    Raises:
        OperationError: operation_failed, reason git_missing.
    """
    found = shutil.which("git")
    if found is None:
        hint = "install git on the machine where the gateway runs, or leave the option out"
        raise OperationError(
            OPERATION_FAILED,
            "git was not found in the gateway's PATH",
            {"hint": hint, "path": os.environ.get("PATH", "")},
            reason="git_missing",
        )
    return found


def environment() -> dict[str, str]:
    """Return the gateway's variables for a call of git: those of git only as far as `KEPT` has them."""
    found = {name: value for name, value in os.environ.items() if not name.startswith("GIT_") or name in KEPT}
    return found | {
        "GIT_TERMINAL_PROMPT": "0",
        "GIT_OPTIONAL_LOCKS": "0",
        "GIT_EDITOR": "false",
        "LC_ALL": "C",
    }


def run(
    folder: str, *words: str, timeout_s: float = ANSWER_S, more: Mapping[str, str] | None = None
) -> bytes:
    """Run git in `folder` and return its standard output.

    Raises:
        OperationError: as `program`.
        GitFailed: a status other than 0, no answer within `timeout_s`, or git cannot be executed.
    """
    argv: Sequence[str] = [program(), *QUIET, *words]
    try:
        done = subprocess.run(
            argv,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            env={**environment(), **(more or {})},
            timeout=timeout_s,
            check=False,
            umask=0o022,
        )
    except subprocess.TimeoutExpired:
        raise GitFailed(f"git {words[0]} in {folder} gave no answer within {timeout_s:g} s") from None
    except OSError as error:
        raise GitFailed(f"git {words[0]} in {folder}: {error.strerror}") from None
    if done.returncode != 0:
        said = done.stderr.decode(errors="replace").strip()[-500:]
        raise GitFailed(f"git {words[0]} in {folder} ended with {done.returncode}: {said}")
    return done.stdout


def identity(workspace: str) -> dict[str, str]:
    """Return `name` and `email` of the user as the machine's and the user's own configuration have them, with
    conditional includes judged for `workspace`; without those that are not set, empty without git.

    The project's own configuration is not read, since its includes may name any file: git takes the common
    directory, which has it, from a directory of ours. Its settings come along with its `.git`.
    """
    found: dict[str, str] = {}
    with tempfile.TemporaryDirectory(prefix="eos-git-") as empty:
        for name in ("objects", "refs"):
            os.mkdir(f"{empty}/{name}")
        for name, text in (("HEAD", "ref: refs/heads/main\n"), ("config", "")):
            with open(f"{empty}/{name}", "w", encoding="ascii") as file:
                file.write(text)
        folders = (_repository_around(workspace), empty)
        for scope in _scopes():
            for entry in _user_of(scope, [folder for folder in folders if folder is not None], empty):
                key, newline, value = entry.partition(b"\n")
                if newline and value.strip():
                    found[key.decode().partition(".")[2]] = value.decode(errors="replace")
    return found


def _scopes() -> list[list[str]]:
    """List the options that select a file of the configuration, the lowest rank first."""
    home = os.path.expanduser("~")
    config = os.environ.get("XDG_CONFIG_HOME") or os.path.join(home, ".config")
    system = os.environ.get("GIT_CONFIG_NOSYSTEM", "").lower() in ("", "0", "false")
    own = os.environ.get("GIT_CONFIG_GLOBAL")
    files = [own] if own is not None else [f"{config}/git/config", f"{home}/.gitconfig"]
    found = [["--file", file] for file in files if file and os.path.isfile(file)]
    return [["--system"], *found] if system else found


def _user_of(scope: Sequence[str], folders: Sequence[str], common: str) -> list[bytes]:
    """List `key\\nvalue` of user.name and user.email in one file; git directories are tried in turn."""
    words = ("config", *scope, "--includes", "-z", "--get-regexp", r"^user\.(name|email)$")
    for folder in folders:
        try:
            raw = run("/", *words, more={"GIT_DIR": folder, "GIT_COMMON_DIR": common})
        except (GitFailed, OperationError):
            continue  # neither is in the file, or this is not a git directory
        return raw[:_ANSWER_MAX].split(b"\0")
    return []


def _repository_around(workspace: str) -> str | None:
    at = os.path.realpath(workspace)
    while not os.path.lexists(f"{at}/.git"):
        if at == os.path.dirname(at):
            return None
        at = os.path.dirname(at)
    return f"{at}/.git"
