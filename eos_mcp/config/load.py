"""Read one YAML document into frozen values. An unknown key anywhere is an error that names it.

The gateway reads `gateway` and `manager` when it starts. The other four sections belong to the agent: their
bytes are read again at each create_sandbox, so a mistake there fails that call and not the gateway; after the
file is corrected the next call passes.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any, NamedTuple, TypeVar

from pydantic import BaseModel, ValidationError

from eos_mcp.config.key_lines import Lines
from eos_mcp.config.model import (
    AgentConfig,
    Daemon,
    GatewayConfig,
    HostConfig,
    ManagerConfig,
    Observability,
    RunnerConfig,
    Runtime,
)

HOST_SECTIONS = ("gateway", "manager")
AGENT_SECTIONS = ("daemon", "runtime", "runner", "observability")
DEFAULT_BIND_ADDR = "127.0.0.1:7878"

BUILT_IN = """\
# The configuration of a gateway without a file. Absent keys have their defaults.
runtime:
  layerstack:
    autosquash_policies:
      squash_at_n_layers: 100
      squash_at_shared_directory_layers: 16
runner:
  mount_mask:
    hidden_paths: [/eos]
"""

# Limits of the agent per daemon profile. Exact: worker threads. Maxima: blocking threads, their keep-alive in
# s, connections, active commands.
DAEMON_PROFILES = {"standard": (2, 8, 5, 64, 32), "build-heavy": (4, 16, 5, 128, 64)}

Model = TypeVar("Model", bound=BaseModel)


class ConfigError(Exception):
    """`<dotted.field>: <reason> (line N)`, one line per mistake. `field` and `line` belong to the first
    mistake; `line` None: unknown.
    """

    def __init__(self, problems: list[tuple[str, str]], lines: list[int | None] | None = None) -> None:
        known = lines or [None] * len(problems)
        said = [(f"{field}: {reason}" if field else reason) for field, reason in problems]
        super().__init__(
            "\n".join(
                text if line is None else f"{text} (line {line})"
                for text, line in zip(said, known, strict=True)
            )
        )
        self.field, self.line = problems[0][0], known[0]

    @property
    def message(self) -> str:
        return str(self.args[0])


class Config(NamedTuple):
    """The document of one gateway. `path` is None for the built-in document. Relative paths of the file are
    stored as absolute ones.
    """

    path: str | None
    host: HostConfig
    source: bytes

    @property
    def gateway(self) -> GatewayConfig:
        return self.host.gateway

    @property
    def manager(self) -> ManagerConfig:
        return self.host.manager

    @property
    def agent(self) -> AgentConfig:
        """The agent's sections of this document as the gateway read it at its start.

        Raises:
            ConfigError: a section has a mistake.
        """
        return agent_config(self.source)

    @property
    def daemon(self) -> Daemon:
        return self.agent.daemon

    @property
    def runtime(self) -> Runtime:
        return self.agent.runtime

    @property
    def runner(self) -> RunnerConfig:
        return self.agent.runner

    @property
    def observability(self) -> Observability:
        return self.agent.observability

    def daemon_yaml_path(self) -> str | None:
        """The file that `daemon_yaml` reads; None for the built-in document."""
        return self.manager.docker.daemon_config_yaml_path or self.path

    def agent_problem(self) -> str | None:
        """Return the error that the agent's sections would cause at the next create_sandbox, with the file's
        name; None when they are valid.
        """
        try:
            agent_config(self.daemon_yaml())
        except ConfigError as error:
            path = self.daemon_yaml_path()
            return error.message if path is None or path in error.message else f"{path}: {error.message}"
        return None

    def daemon_yaml(self) -> bytes:
        """Read the document for a new sandbox: the file that `manager.docker.daemon_config_yaml_path` names,
        else this document.

        Raises:
            ConfigError: the file cannot be read.
        """
        path = self.daemon_yaml_path()
        if path is None:
            return self.source
        try:
            with open(path, "rb") as file:
                return file.read()
        except OSError as error:
            raise ConfigError(
                [("manager.docker.daemon_config_yaml_path", f"{path}: {error.strerror}")]
            ) from error


def load(path: str | None = None, *, relative_to: str | None = None) -> Config:
    """Read the document, or take the built-in one.

    Args:
        path: the YAML file; None for the built-in document.
        relative_to: the directory that relative paths in it start from; None: the directory of the file.
    Raises:
        ConfigError: the file cannot be read, is not YAML, has an unknown section, or a mistake in `gateway`
            or `manager`.
    """
    if path is None:
        source = BUILT_IN.encode()
    else:
        path = os.path.abspath(path)
        try:
            with open(path, "rb") as file:
                source = file.read()
        except OSError as error:
            raise ConfigError([("", f"{path}: {error.strerror}")]) from error
    document, lines = _document(source)
    host = _checked(
        HostConfig, {name: _section(document, name) for name in HOST_SECTIONS if name in document}, lines
    )
    if path is not None:
        host = _absolute_paths(host, relative_to or os.path.dirname(path))
    return Config(path, host, source)


def agent_config(source: bytes) -> AgentConfig:
    """Read the agent's four sections of a document, defaults filled in; the other two are not checked.

    Raises:
        ConfigError: names the key.
    """
    document, lines = _document(source)
    return _checked(
        AgentConfig, {name: _section(document, name) for name in AGENT_SECTIONS if name in document}, lines
    )


def agent_sections(source: bytes) -> dict[str, Any]:
    """`agent_config` as the JSON object that goes into the agent's settings file."""
    return agent_config(source).model_dump(mode="json")


def check_profile_fits(agent: AgentConfig, daemon_profile: str) -> None:
    """Refuse a daemon document whose limits exceed those of the sandbox's resource profile.

    Raises:
        ConfigError: names the key and the limit.
    """
    workers, blocking, keep_alive, connections, active = DAEMON_PROFILES[daemon_profile]
    server = agent.daemon.server
    if server.worker_threads is not None and server.worker_threads != workers:
        raise ConfigError(
            [("daemon.server.worker_threads", f"the {daemon_profile} profile runs with exactly {workers}")]
        )
    limits: list[tuple[str, float, float]] = [
        ("daemon.server.max_worker_threads", server.max_worker_threads or workers, workers),
        ("daemon.server.max_blocking_threads", server.max_blocking_threads, blocking),
        ("daemon.server.blocking_thread_keep_alive_s", server.blocking_thread_keep_alive_s, keep_alive),
        ("daemon.server.max_concurrent_connections", server.max_concurrent_connections, connections),
        ("runtime.command.max_active", agent.runtime.command.max_active, active),
    ]
    for field, value, limit in limits:
        if value > limit:
            raise ConfigError(
                [(field, f"{value:g} is more than the {limit:g} of the {daemon_profile} profile")]
            )


def _document(source: bytes) -> tuple[dict[str, Any], Lines]:
    import yaml

    class Loader(yaml.SafeLoader):
        """A loader that also reads 1e-9 as a number, as YAML 1.2 does and YAML 1.1 does not."""

    Loader.add_implicit_resolver(  # pyright: ignore[reportUnknownMemberType]
        "tag:yaml.org,2002:float", re.compile(r"[-+]?[0-9]+(\.[0-9]*)?[eE][-+]?[0-9]+$"), list("-+0123456789")
    )
    try:
        document: Any = yaml.load(source, Loader)
        lines = Lines(yaml.compose(source, yaml.SafeLoader))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError([("", f"the configuration is not YAML: {' '.join(str(error).split())}")]) from error
    except RecursionError:
        raise ConfigError(
            [("", "the configuration cannot be read as YAML: it is nested too deeply")]
        ) from None
    if document is None:
        return {}, lines
    if not isinstance(document, dict):
        raise ConfigError([("", "the configuration must be a mapping of sections")])
    sections: dict[Any, Any] = document  # pyright: ignore[reportUnknownVariableType]
    repeated = lines.repeated()
    if repeated:
        raise ConfigError(
            [(name, f"is given twice, first in line {first}") for name, first, _ in repeated],
            [at for _, _, at in repeated],
        )
    unknown = [str(name) for name in sections if name not in HOST_SECTIONS + AGENT_SECTIONS]
    if unknown:
        raise ConfigError(
            [(name, "unknown field") for name in unknown], [lines.of([name]) for name in unknown]
        )
    return sections, lines


def _section(document: Mapping[str, Any], name: str) -> Any:
    """Return a section; an empty one (`runner:`) gets the defaults."""
    return {} if document[name] is None else document[name]


def _checked(model: type[Model], value: dict[str, Any], lines: Lines) -> Model:
    try:
        return model.model_validate(value)
    except ValidationError as error:
        found = error.errors(include_url=False)
        problems = [_problem(entry["loc"], entry["type"], entry["msg"]) for entry in found]
        raise ConfigError(problems, [lines.of(entry["loc"]) for entry in found]) from None


def _problem(location: tuple[int | str, ...], kind: str, message: str) -> tuple[str, str]:
    field = ""
    for part in location:
        field += f"[{part}]" if isinstance(part, int) else f".{part}" if field else part
    reason = "unknown field" if kind == "extra_forbidden" else message.removeprefix("Value error, ")
    return field, reason[:1].lower() + reason[1:]


def _absolute_paths(host: HostConfig, folder: str) -> HostConfig:
    def absolute(path: str | None) -> str | None:
        return path if path is None else os.path.normpath(os.path.join(folder, os.path.expanduser(path)))

    manager, gateway = host.manager, host.gateway
    docker = manager.docker.model_copy(
        update={
            name: absolute(getattr(manager.docker, name))
            for name in ("daemon_binary_path", "daemon_config_yaml_path")
        }
    )
    return host.model_copy(
        update={
            "gateway": gateway.model_copy(update={"pid_path": absolute(gateway.pid_path)}),
            "manager": manager.model_copy(
                update={"docker": docker, "registry_path": absolute(manager.registry_path)}
            ),
        }
    )
