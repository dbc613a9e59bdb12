"""The agent's settings: one JSON file that the provider writes and the agent reads once."""

from __future__ import annotations

import json
import operator
import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

FORMAT = 1
ONLY = {"reserved_names": "none", "recreated_directory": "unite"}
"""Keys of `runtime.layerstack` and the only value implemented here; the reference has another value too."""


class SettingsError(Exception):
    """The settings file is missing or damaged, or has a value that this agent does not support; the message
    names the key."""


class Settings(NamedTuple):
    """Settings fixed for the life of one sandbox. Paths are absolute; `config` has the YAML sections with
    defaults filled in.

    `git_identity`: the argument `carried` of git_identity.name_of; a file without it carries none.
    `limits`: {"workload": {...}, "session": {...}} with the names of cgroups.Limits, or {"none": reason};
    None: no limits are configured.
    """

    sandbox_id: str
    provider: str
    workspace_root: str
    layer_stack_root: str
    scratch_root: str
    runtime_dir: str
    base_root_hash: str
    base_dir: str | None
    token_file: str
    tcp_host: str
    tcp_port: int
    http_host: str
    http_port: int
    socket_path: str
    pid_path: str
    endpoint_path: str
    rootfs: str | None
    hidden_paths: tuple[str, ...]
    private_dirs: tuple[str, ...]
    image_env: tuple[str, ...]
    container_env: Mapping[str, str]
    path: str | None
    limits: Mapping[str, Any] | None
    config: Mapping[str, Any]
    git_identity: Mapping[str, Any]

    def get(self, dotted: str, default: Any) -> Any:
        """The configuration value at `section.key...`, or `default` if it is absent or null."""
        value: Any = self.config
        for key in dotted.split("."):
            if not isinstance(value, Mapping) or key not in value:
                return default
            value = value[key]  # pyright: ignore[reportUnknownVariableType]
        return default if value is None else value  # pyright: ignore[reportUnknownVariableType]

    @property
    def local(self) -> bool:
        return self.provider == "local"

    @property
    def transcripts(self) -> str:
        """The directory of command output: below the configured scratch root if it differs from the default,
        else in the scratch directory."""
        moved = self.get("runtime.namespace_execution.scratch_root", "/eos/namespace_execution")
        return (
            str(moved) if moved != "/eos/namespace_execution" else os.path.join(self.scratch_root, "commands")
        )

    def token(self) -> str:
        """The secret of TCP requests, read once at start.

        Raises:
            SettingsError: the file is empty.
        """
        with open(self.token_file, encoding="utf-8") as file:
            token = file.readline().strip()
        if not token:
            raise SettingsError(f"token_file: {self.token_file} is empty")
        return token


def _required(found: object) -> bool:
    return False


def _absent_or_null(found: object) -> bool:
    return found is None


def _are_strings(found: Iterable[object]) -> bool:
    return all(isinstance(text, str) for text in found)


class _Kind(NamedTuple):
    """The values that a key may have: of type `type`, with `good(value)` true. A value for which `left_out`
    is true becomes `default`."""

    must: str
    type: type
    good: Callable[[Any], bool]
    left_out: Callable[[object], bool] = _required
    default: Any = None

    def read(self, key: str, raw: Mapping[str, Any]) -> Any:
        """The value of `key`. Raises: SettingsError."""
        found = raw.get(key)
        if self.left_out(found):
            return self.default
        if type(found) is not self.type or not self.good(found):
            raise SettingsError(f"{key}: must be {self.must}")
        return found


_TEXT = _Kind("a non-empty string", str, bool)
_TEXT_OR_NONE = _TEXT._replace(left_out=_absent_or_null)
_PORT = _Kind("a port number", int, range(65536).__contains__)
_TEXTS = _Kind("a list of strings", list, _are_strings, operator.not_, ())
_TABLE = _Kind("an object", dict, bool, operator.not_, {})
_KEYS = {
    "sandbox_id": _TEXT,
    "provider": _TEXT,
    "workspace_root": _TEXT,
    "layer_stack_root": _TEXT,
    "scratch_root": _TEXT,
    "runtime_dir": _TEXT,
    "base_root_hash": _TEXT,
    "base_dir": _TEXT_OR_NONE,
    "token_file": _TEXT,
    "tcp_host": _TEXT,
    "tcp_port": _PORT,
    "http_host": _TEXT,
    "http_port": _PORT,
    "socket_path": _TEXT,
    "pid_path": _TEXT,
    "endpoint_path": _TEXT,
    "rootfs": _TEXT_OR_NONE,
    "hidden_paths": _TEXTS,
    "private_dirs": _TEXTS,
    "image_env": _TEXTS,
    "container_env": _TABLE,
    "path": _TEXT_OR_NONE,
    "limits": _TABLE,
    "config": _TABLE,
    "git_identity": _TABLE,
}
"""Key of the file, which is also a field of Settings -> its values."""


def parse(value: Any) -> Settings:
    """Build settings from the decoded JSON.

    Raises:
        SettingsError: a key is missing or of the wrong type, or the format number is unknown.
    """
    if not isinstance(value, dict):
        raise SettingsError("the settings file is not a JSON object")
    raw: dict[str, Any] = value  # pyright: ignore[reportUnknownVariableType]
    if raw.get("format") != FORMAT:
        raise SettingsError(f"format: {raw.get('format')!r} is unknown; this agent reads format {FORMAT}")
    found = {key: kind.read(key, raw) for key, kind in _KEYS.items()}
    found["workspace_root"] = found["workspace_root"].rstrip("/") or "/"
    found["container_env"] = {key: str(item) for key, item in found["container_env"].items()}
    found["limits"] = found["limits"] or None
    found.update({key: tuple(found[key]) for key, kind in _KEYS.items() if kind is _TEXTS})
    settings = Settings(**found)
    if settings.provider not in ("docker", "local"):
        raise SettingsError(f"provider: {settings.provider!r} is neither docker nor local")
    for key, only in ONLY.items():
        if settings.get(f"runtime.layerstack.{key}", only) != only:
            raise SettingsError(f"runtime.layerstack.{key}: only `{only}` is available in this version")
    return settings


def load(path: str) -> Settings:
    """Read settings from the file at `path`.

    Raises:
        SettingsError: the file cannot be read, is not JSON, or `parse` refuses it.
    """
    try:
        with open(path, encoding="utf-8") as file:
            return parse(json.load(file))
    except OSError as error:
        raise SettingsError(f"{path}: {error.strerror}") from None
    except ValueError as error:
        raise SettingsError(f"{path}: not JSON: {error}") from None
