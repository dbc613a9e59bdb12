"""Where things lie on this machine: state, cache, token, socket, log. Standard library only; nothing is created unless a function says so."""

from __future__ import annotations

import os

from eos_agent.machine import private_dirs

TOKEN_FILE_ENV = "SANDBOX_GATEWAY_TOKEN_FILE"
STATE_DIR_ENV = "EOS_STATE_DIR"
TOKEN_FOLDER = ".ephemeral-sandbox"
VARIABLES = (STATE_DIR_ENV, TOKEN_FILE_ENV, "SANDBOX_GATEWAY_LOG", "EOS_SHARED_BASE_CACHE")
"""Every variable that holds a path of ours and may be relative."""


def home() -> str:
    return os.path.expanduser("~")


def state_dir() -> str:
    """Registry, local sandboxes, locks and log: EOS_STATE_DIR, else $XDG_STATE_HOME/eos, else ~/.local/state/eos."""
    chosen = os.environ.get(STATE_DIR_ENV)
    if chosen:
        return os.path.abspath(chosen)
    base = os.environ.get("XDG_STATE_HOME")
    if not base or not os.path.isabs(base):
        base = os.path.join(home(), ".local", "state")
    return os.path.join(base, "eos")


def cache_dir() -> str:
    """Bases and bundles, which can be made again: $XDG_CACHE_HOME/eos, else ~/.cache/eos."""
    base = os.environ.get("XDG_CACHE_HOME")
    if not base or not os.path.isabs(base):
        base = os.path.join(home(), ".cache")
    return os.path.join(base, "eos")


def token_file() -> str:
    """SANDBOX_GATEWAY_TOKEN_FILE, else in EOS_STATE_DIR when that is set, else ~/.ephemeral-sandbox/gateway.token."""
    chosen = os.environ.get(TOKEN_FILE_ENV)
    if chosen:
        return os.path.abspath(chosen)
    folder = state_dir() if os.environ.get(STATE_DIR_ENV) else os.path.join(home(), TOKEN_FOLDER)
    return os.path.join(folder, "gateway.token")


def socket_path() -> str:
    """This user's gateway socket, beside the token file, so that a server started by an IDE and a shell find the same one."""
    return os.path.join(os.path.dirname(token_file()), "gateway.sock")


def make_folder(path: str) -> None:
    """Make the directory of the file `path`, 0700. One that is there is tightened when it is the default one of token and socket, or state.

    Raises:
        OSError: it cannot be made, or another user owns it.
    """
    folder = os.path.dirname(path)
    if folder in (state_dir(), os.path.join(home(), TOKEN_FOLDER)) or not os.path.isdir(folder):
        private_dirs.make(folder)


def start_lock_path() -> str:
    """Held for the moment in which a client or a leaving gateway changes the socket file."""
    return os.path.join(state_dir(), "gateway.lock")


def pid_path() -> str:
    """The pid of the gateway that owns the state directory, locked by it for as long as it lives."""
    return os.path.join(state_dir(), "gateway.pid")


def existing_parent(path: str) -> str:
    """Return `path` if it is a directory, else the nearest directory above it."""
    while not os.path.isdir(path):
        path = os.path.dirname(path)
    return path


def unusable(path: str) -> str | None:
    """Say why files cannot be kept in the directory `path`; None when they can, or when it can be made."""
    folder = existing_parent(path)
    if not os.access(folder, os.W_OK) or (folder != path and _is_virtual(folder)):
        return f"{path} cannot be {'written' if folder == path else 'made'}"
    return None


def _is_virtual(folder: str) -> bool:
    """Below /proc and /sys root may write, but mkdir(2) fails."""
    return folder.split("/")[1] in ("proc", "sys")


def log_path() -> str:
    return os.environ.get("SANDBOX_GATEWAY_LOG") or os.path.join(state_dir(), "gateway.log")
