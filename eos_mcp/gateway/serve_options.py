"""Flags and environment of `sandbox-gateway serve`. With the configuration they determine endpoints, token
and pid file.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import NamedTuple

from eos_mcp.config import paths, token_file
from eos_mcp.gateway_client import sync
from eos_mcp.gateway_client.sync import GatewayEndpoint

BACKENDS = ("auto", "docker", "local", "none")
DEFAULT_ENDPOINT = "127.0.0.1:7878"
USAGE = f"""usage: sandbox-gateway serve [options]
  --gateway-endpoint, --gateway-socket ENDPOINT   HOST:PORT, tcp://HOST:PORT or unix:///PATH (default: gateway.bind_addr, else {DEFAULT_ENDPOINT})
  --auth-token TOKEN                              else SANDBOX_GATEWAY_AUTH_TOKEN, else the token file (made when absent)
  --backend auto|docker|local|none                else EOS_GATEWAY_BACKEND, else auto
  --config-yaml FILE                              else SANDBOX_GATEWAY_CONFIG_YAML, else built-in defaults
  --pid-file FILE                                 else gateway.pid_path
  --max-concurrent-connections N                  else gateway.max_concurrent_connections
This user's own socket ({{socket}}) is listened on as well.
"""  # noqa: E501
_FLAGS = {
    "--gateway-endpoint": "endpoint",
    "--gateway-socket": "endpoint",
    "--auth-token": "token",
    "--backend": "backend",
    "--config-yaml": "config_yaml",
    "--pid-file": "pid_file",
    "--max-concurrent-connections": "max_connections",
    "--listen-fd": "listen_fd",
    "--relative-to": "relative_to",
}


class ServeUsageError(Exception):
    pass


class ServeOptions(NamedTuple):
    """`listen_fd` is a listening socket for `endpoint` that a client handed over: this gateway was started on
    demand.
    """

    endpoint: GatewayEndpoint | None = None
    token: str | None = None
    backend: str = "auto"
    config_yaml: str | None = None
    pid_file: str | None = None
    max_connections: int | None = None
    listen_fd: int | None = None
    relative_to: str | None = None


def parse(words: Sequence[str]) -> ServeOptions:
    """Parse the options of `serve`.

    Raises:
        ServeUsageError: names the wrong word.
    """
    found: dict[str, str] = {}
    rest = list(words)
    while rest:
        flag, equals, value = rest.pop(0).partition("=")
        name = _FLAGS.get(flag)
        if name is None:
            raise ServeUsageError(f"unknown option: {flag}")
        if name in found:
            raise ServeUsageError(f"{flag} was provided more than once")
        if not equals:
            if not rest:
                raise ServeUsageError(f"{flag} requires a value")
            value = rest.pop(0)
        found[name] = value
    backend = found.get("backend") or os.environ.get("EOS_GATEWAY_BACKEND") or "auto"
    if backend not in BACKENDS:
        raise ServeUsageError(f"--backend must be one of {', '.join(BACKENDS)}: {backend}")
    try:
        endpoint = sync.parse_endpoint(found["endpoint"]) if "endpoint" in found else None
    except ValueError as error:
        raise ServeUsageError(f"--gateway-endpoint: {error}") from None
    return ServeOptions(
        endpoint,
        _token(found.get("token")),
        backend,
        _absolute(found.get("config_yaml") or os.environ.get("SANDBOX_GATEWAY_CONFIG_YAML")),
        _absolute(found.get("pid_file")),
        _number(found, "max_connections", "--max-concurrent-connections", 1),
        _number(found, "listen_fd", "--listen-fd", 0),
        _absolute(found.get("relative_to")),
    )


def usage() -> str:
    return USAGE.replace("{socket}", paths.socket_path())


def token_of(options: ServeOptions) -> str:
    """Return the token that requests must carry.

    Raises:
        OperationError: config_error about the token file.
    """
    return options.token if options.token is not None else token_file.ensure()


def _token(flag: str | None) -> str | None:
    for source, value in (("--auth-token", flag), (sync.TOKEN_ENV, os.environ.get(sync.TOKEN_ENV))):
        if value is not None:
            if not value.strip():
                raise ServeUsageError(f"{source} is blank")
            return value
    return None


def _number(found: dict[str, str], name: str, flag: str, least: int) -> int | None:
    text = found.get(name)
    if text is None:
        return None
    if not (text.isascii() and text.isdigit()) or len(text) > 18 or int(text) < least:
        raise ServeUsageError(f"{flag} must be an integer of at least {least}: {text[:40]}")
    return int(text)


def _absolute(path: str | None) -> str | None:
    return os.path.abspath(path) if path else None
