"""Translate a refusal of the native init, a word and an errno, into the error that loop.py raises in the same
case."""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping
from typing import Any

from eos_agent.init.spawn import cwd_not_found, exec_failed, too_many_in_flight
from eos_agent.wire.protocol import INVALID_REQUEST, OPERATION_FAILED, OperationError, os_error


def refusal(request: Mapping[str, Any], answer: Mapping[str, Any]) -> Exception:
    """Return the error of `request`, whose reply has `refused`: [word, errno]."""
    word, code = str(answer["refused"][0]), int(answer["refused"][1])
    error = OSError(code, os.strerror(code))
    argv: list[str] = request.get("argv") or [""]
    if word == "cwd_not_found":
        return cwd_not_found(request["cwd"], error)
    if word == "exec_failed":
        return exec_failed(argv[0], error)
    if word == "not_in_path":
        return exec_failed(argv[0], FileNotFoundError(errno.ENOENT, "not found in PATH"))
    if word == "no_terminal":
        details = {"errno": errno.errorcode.get(code, "EIO")}
        return OperationError(
            OPERATION_FAILED, f"cannot make a terminal: {error.strerror}", details, reason="no_terminal"
        )
    if word == "invalid_argument":
        return _invalid(request, argv)
    if word == "freeze_failed":
        moving = list(answer["processes"])
        return OperationError(
            OPERATION_FAILED, f"cannot freeze: {moving}", {"processes": moving}, reason="freeze_failed"
        )
    if word == "in_flight":
        return too_many_in_flight()
    if word in ("no_pipe", "no_socket", "no_namespace"):
        return os_error(error)
    return RuntimeError(f"{request.get('op')} in the native init: {word} {code}")


def _invalid(request: Mapping[str, Any], argv: list[str]) -> OperationError:
    """Return the error for a request with a string that cannot be passed to a system call; it names the
    string."""
    cwd = str(request["cwd"])
    if not _fits(cwd):
        return cwd_not_found(cwd, FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT)))
    why = "embedded null byte"
    environment: dict[str, str] = request.get("env") or {}
    if any("=" in name or not name for name in environment):
        why = "illegal environment variable name"
    elif not all(map(_encodes, (*argv, *environment, *environment.values()))):
        why = "it holds a character that has no bytes"
    return OperationError(INVALID_REQUEST, f"cannot run {argv[0]!r}: {why}", reason="invalid_argument")


def _encodes(text: str) -> bool:
    try:
        os.fsencode(text)
    except UnicodeEncodeError:
        return False
    return True


def _fits(text: str) -> bool:
    return "\0" not in text and _encodes(text)
