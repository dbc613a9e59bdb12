"""Paths on this machine: state, cache, token, socket, log. Standard library only; only `make_folder` creates
anything.
"""

from __future__ import annotations

import os

from eos_agent.machine import private_dirs

TOKEN_FILE_ENV = "SANDBOX_GATEWAY_TOKEN_FILE"
STATE_DIR_ENV = "EOS_STATE_DIR"
TOKEN_FOLDER = ".ephemeral-sandbox"
VARIABLES = (STATE_DIR_ENV, TOKEN_FILE_ENV, "SANDBOX_GATEWAY_LOG", "EOS_SHARED_BASE_CACHE")
"""Environment variables that hold such a path, which may be relative."""


def home() -> str:
    return os.path.expanduser("~")


def state_dir() -> str:
    """Directory of registry, local sandboxes, locks and log: EOS_STATE_DIR, else $XDG_STATE_HOME/eos, else
    ~/.local/state/eos.
    """
    chosen = os.environ.get(STATE_DIR_ENV)
    if chosen:
        return os.path.abspath(chosen)
    base = os.environ.get("XDG_STATE_HOME")
    if not base or not os.path.isabs(base):
        base = os.path.join(home(), ".local", "state")
    return os.path.join(base, "eos")


def cache_dir() -> str:
    """Directory of bases and bundles, all of which can be rebuilt: $XDG_CACHE_HOME/eos, else ~/.cache/eos."""
    base = os.environ.get("XDG_CACHE_HOME")
    if not base or not os.path.isabs(base):
        base = os.path.join(home(), ".cache")
    return os.path.join(base, "eos")


def token_file() -> str:
    """SANDBOX_GATEWAY_TOKEN_FILE, else in EOS_STATE_DIR when that is set, else
    ~/.ephemeral-sandbox/gateway.token.
    """
    chosen = os.environ.get(TOKEN_FILE_ENV)
    if chosen:
        return os.path.abspath(chosen)
    folder = state_dir() if os.environ.get(STATE_DIR_ENV) else os.path.join(home(), TOKEN_FOLDER)
    return os.path.join(folder, "gateway.token")


def socket_path() -> str:
    """Socket of this user's gateway, beside the token file, so that a server started by an IDE and a shell
    find the same one.
    """
    return os.path.join(os.path.dirname(token_file()), "gateway.sock")


def make_folder(path: str) -> None:
    """Make the directory of the file `path`, mode 0700. An existing directory gets that mode if it is the
    state directory or the default directory of token and socket.

    Raises:
        OSError: the directory cannot be made, or another user owns it.
    """
    folder = os.path.dirname(path)
    if folder in (state_dir(), os.path.join(home(), TOKEN_FOLDER)) or not os.path.isdir(folder):
        private_dirs.make(folder)


def start_lock_path() -> str:
    """Lock file that a client or a gateway that exits holds while it changes the socket file."""
    return os.path.join(state_dir(), "gateway.lock")


def pid_path() -> str:
    """File with the pid of the gateway that owns the state directory; the gateway holds a lock on it while it
    runs.
    """
    return os.path.join(state_dir(), "gateway.pid")


def existing_parent(path: str) -> str:
    """Return `path` if it is a directory, else the nearest directory above it."""
    while not os.path.isdir(path):
        path = os.path.dirname(path)
    return path


def unusable(path: str) -> str | None:
    """Return the reason why files cannot be kept in the directory `path`; None when they can, also after a
    mkdir.
    """
    folder = existing_parent(path)
    if not os.access(folder, os.W_OK) or (folder != path and _is_virtual(folder)):
        return f"{path} cannot be {'written' if folder == path else 'made'}"
    return None


def _is_virtual(folder: str) -> bool:
    """Tell whether a path is below /proc or /sys, where root may write but mkdir(2) fails."""
    return folder.split("/")[1] in ("proc", "sys")


def log_path() -> str:
    return os.environ.get("SANDBOX_GATEWAY_LOG") or os.path.join(state_dir(), "gateway.log")
