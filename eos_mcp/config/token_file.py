"""The gateway token's file: one non-blank line, readable by its owner only. Standard library only."""

from __future__ import annotations

import os
import stat

from eos_agent.wire.protocol import CONFIG_ERROR, OperationError
from eos_mcp.config import paths


def read(path: str | None = None) -> str | None:
    """Read the token; None when the file does not exist.

    Raises:
        OperationError: config_error that names the file and the change to make; a message never quotes the
            content of the file.
    """
    path = path or paths.token_file()
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise _bad(path, f"cannot be read: {error.strerror}") from None
    try:
        info = os.fstat(fd)
        if not stat.S_ISREG(info.st_mode):
            raise _bad(path, "is not a regular file")
        if os.name == "posix" and info.st_uid not in (0, os.geteuid()):
            raise _bad(
                path,
                f"belongs to uid {info.st_uid}, not to uid {os.geteuid()}; name a file of your own with "
                f"{paths.TOKEN_FILE_ENV}",
            )
        if info.st_mode & 0o077 and os.name == "posix":
            import shlex  # late: with its imports it would take half a millisecond of each command line

            raise _bad(path, f"has mode {stat.S_IMODE(info.st_mode):04o}; run: chmod 600 {shlex.quote(path)}")
        content = os.read(fd, 65536)
    except OSError as error:
        raise _bad(path, f"cannot be read: {error.strerror}") from None
    finally:
        os.close(fd)
    return _one_line(path, content)


def ensure(path: str | None = None) -> str:
    """Read the token, or make one of 64 lower-case hex digits. Concurrent callers get the same one.

    Raises:
        OperationError: config_error.
    """
    path = path or paths.token_file()
    for _ in range(8):
        token = read(path)
        if token is not None:
            return token
        try:
            paths.make_folder(path)
            _create(path, os.urandom(32).hex())
        except FileExistsError:
            continue
        except OSError as error:
            raise _bad(path, f"cannot be created: {error.strerror}") from None
    raise _bad(path, "was created and removed by other processes eight times while it was being created")


def write(token: str, path: str | None = None) -> None:
    """Store `token`; a file named by SANDBOX_GATEWAY_TOKEN_FILE that holds another token is not changed.

    Raises:
        OperationError: config_error.
    """
    path = path or paths.token_file()
    token = _one_line("standard input", token.encode("utf-8", "surrogateescape"))
    if os.environ.get(paths.TOKEN_FILE_ENV) and (held := read(path)) is not None and held != token:
        raise _bad(path, f"is named by {paths.TOKEN_FILE_ENV} and holds another token")
    try:
        paths.make_folder(path)
        os.replace(_temporary(path, token), path)
    except OSError as error:
        raise _bad(path, f"cannot be written: {error.strerror}") from None


def _create(path: str, token: str) -> None:
    """Create the file complete, in one step: link(2) refuses an existing name, and a reader never sees half a
    file.
    """
    temporary = _temporary(path, token)
    try:
        os.link(temporary, path)
    finally:
        os.unlink(temporary)


def _temporary(path: str, token: str) -> str:
    name = f"{path}.{os.urandom(6).hex()}"
    fd = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        os.write(fd, token.encode() + b"\n")
        os.fsync(fd)
    finally:
        os.close(fd)
    return name


def _one_line(path: str, content: bytes) -> str:
    try:
        lines = content.decode().splitlines()
    except UnicodeDecodeError:
        raise _bad(path, "is not text") from None
    if len(lines) != 1 or not lines[0].strip():
        raise _bad(path, "must hold exactly one non-blank line")
    return lines[0].strip()


def _bad(path: str, what: str) -> OperationError:
    return OperationError(
        CONFIG_ERROR, f"gateway token file {path} {what}", {"path": path}, reason="bad_token_file"
    )
