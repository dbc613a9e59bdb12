"""The host's git as plumbing: without hooks, fsmonitor, editor, pager, prompt, or the caller's variables."""

from __future__ import annotations

import os
import shutil
import subprocess
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

    The project's own configuration is not read: its settings come along with its `.git`.
    """
    found: dict[str, str] = {}
    home = os.path.expanduser("~")
    config = os.environ.get("XDG_CONFIG_HOME") or os.path.join(home, ".config")
    scopes = [["--system"]] if os.environ.get("GIT_CONFIG_NOSYSTEM", "").lower() in ("", "0", "false") else []
    own = os.environ.get("GIT_CONFIG_GLOBAL")
    files = [own] if own is not None else [f"{config}/git/config", f"{home}/.gitconfig"]
    scopes += [["--file", file] for file in files if file and os.path.isfile(file)]
    for scope in scopes:
        try:
            raw = run(
                workspace, "config", *scope, "--includes", "-z", "--get-regexp", r"^user\.(name|email)$"
            )
        except (GitFailed, OperationError):
            continue  # status 1: the file has none; another file may
        for entry in raw[:_ANSWER_MAX].split(b"\0"):
            key, newline, value = entry.partition(b"\n")
            if newline and value.strip():
                found[key.decode().partition(".")[2]] = value.decode(errors="replace")
    return found
