"""The agent's settings: one JSON file that the provider writes and the agent reads once."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any, NamedTuple

FORMAT = 1
ONLY = {"reserved_names": "none", "recreated_directory": "unite"}
"""Keys of `runtime.layerstack` whose other value (the reference's behaviour) is not implemented here."""


class SettingsError(Exception):
    """The settings file is missing or damaged, or has a value that this agent does not support; the message
    names the key."""


class Settings(NamedTuple):
    """Settings fixed for the life of one sandbox. Paths are absolute; `config` has the YAML sections with
    defaults filled in.

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
        """The directory of command output: below the configured scratch root if that was changed, else in the
        scratch directory."""
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

    def text(key: str, *, optional: bool = False) -> Any:
        found = raw.get(key)
        if isinstance(found, str) and found:
            return found
        if optional and found is None:
            return None
        raise SettingsError(f"{key}: must be a non-empty string")

    def port(key: str) -> int:
        found = raw.get(key)
        if isinstance(found, int) and not isinstance(found, bool) and 0 <= found <= 65535:
            return found
        raise SettingsError(f"{key}: must be a port number")

    def texts(key: str) -> tuple[str, ...]:
        found: Any = raw.get(key) or []
        items: list[Any] = found if isinstance(found, list) else [None]  # pyright: ignore[reportUnknownVariableType]
        if not all(isinstance(item, str) for item in items):
            raise SettingsError(f"{key}: must be a list of strings")
        return tuple(items)

    def table(key: str) -> dict[str, Any]:
        found: Any = raw.get(key) or {}
        if not isinstance(found, dict):
            raise SettingsError(f"{key}: must be an object")
        return found  # type: ignore[no-any-return, unused-ignore]  # pyright: ignore[reportUnknownVariableType]

    settings = Settings(
        sandbox_id=text("sandbox_id"),
        provider=text("provider"),
        workspace_root=text("workspace_root").rstrip("/") or "/",
        layer_stack_root=text("layer_stack_root"),
        scratch_root=text("scratch_root"),
        runtime_dir=text("runtime_dir"),
        base_root_hash=text("base_root_hash"),
        base_dir=text("base_dir", optional=True),
        token_file=text("token_file"),
        tcp_host=text("tcp_host"),
        tcp_port=port("tcp_port"),
        http_host=text("http_host"),
        http_port=port("http_port"),
        socket_path=text("socket_path"),
        pid_path=text("pid_path"),
        endpoint_path=text("endpoint_path"),
        rootfs=text("rootfs", optional=True),
        hidden_paths=texts("hidden_paths"),
        private_dirs=texts("private_dirs"),
        image_env=texts("image_env"),
        container_env={key: str(item) for key, item in table("container_env").items()},
        path=text("path", optional=True),
        limits=table("limits") or None,
        config=table("config"),
    )
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
