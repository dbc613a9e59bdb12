"""Data directories of this machine's container engines, from their configuration and their command lines."""

from __future__ import annotations

import contextlib
import json
import os
import re
from typing import Any

_ROOT_IN_TOML = re.compile(
    r"^\s*(?:root|graphroot|rootless_storage_path)\s*=\s*[\"']([^\"'$]+)[\"']", re.MULTILINE
)
_BYTES_MAX = 1 << 20


def configured(homes: list[str]) -> list[str]:
    """List configured data directories, as absolute paths; the default ones are in secret_paths.py."""
    found: list[str] = []
    for path in ("/etc/docker/daemon.json", *(f"{home}/.config/docker/daemon.json" for home in homes)):
        with contextlib.suppress(ValueError, AttributeError):
            value: dict[str, Any] = json.loads(_text(path) or "{}")
            found += [str(value[key]) for key in ("data-root", "graph") if key in value]
    for path in (
        "/etc/containerd/config.toml",
        "/etc/containers/storage.conf",
        *(f"{home}/.config/containers/storage.conf" for home in homes),
    ):
        found += _ROOT_IN_TOML.findall(_text(path))
    run = os.environ.get("XDG_RUNTIME_DIR")
    for path in ("/run/docker.pid", *([f"{run}/docker.pid"] if run else [])):
        found += _data_root_of(_text(path).strip())
    return [
        os.path.normpath(path) for path in found if path.startswith("/") and os.path.normpath(path) != "/"
    ]


def _data_root_of(pid: str) -> list[str]:
    """Read the data root from the command line of the dockerd with that pid."""
    words = _text(f"/proc/{pid}/cmdline").split("\0") if pid.isdigit() else []
    found: list[str] = []
    for word, following in zip(words, [*words[1:], ""], strict=True):
        for option in ("--data-root", "--graph", "-g"):
            if word == option:
                found.append(following)
            elif word.startswith(f"{option}="):
                found.append(word.partition("=")[2])
    return found


def _text(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="surrogateescape") as file:
            return file.read(_BYTES_MAX)
    except OSError:
        return ""
