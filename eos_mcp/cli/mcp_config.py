"""`eos mcp-config CLIENT`: print the snippet to standard output, and the file for it to standard error."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from eos_mcp.cli import output
from eos_mcp.config import paths
from eos_mcp.gateway_client.sync import SOCKET_ENV

CLIENTS = ("claude-code", "cursor", "vscode", "codex", "gemini", "zed")
CALL_TIMEOUT_MS = 600_000
PATHS = (*paths.VARIABLES, "SANDBOX_GATEWAY_CONFIG_YAML")
CARRIED = (*PATHS, SOCKET_ENV, "EOS_GATEWAY_BACKEND")
_ENV_FLAG = {"claude": "--env", "codex": "--env"}
_WHERE = {
    "claude-code": ".mcp.json of the project, or run: claude mcp add eos {claude}-- {line}",
    "cursor": ".cursor/mcp.json of the project, or ~/.cursor/mcp.json",
    "vscode": ".vscode/mcp.json of the project",
    "codex": "~/.codex/config.toml, or run: codex mcp add eos {codex}-- {line}",
    "gemini": ".gemini/settings.json of the project, or ~/.gemini/settings.json",
    "zed": "Zed's settings.json",
}


def main(words: Sequence[str]) -> int:
    if len(words) != 1 or words[0] not in CLIENTS:
        output.write_error(f"usage: eos mcp-config {'|'.join(CLIENTS)}\n".encode())
        return output.USAGE
    argv = server_command()
    carried = variables()
    flags = {
        client: "".join(f"{flag} {shlex.quote(f'{name}={value}')} " for name, value in carried.items())
        for client, flag in _ENV_FLAG.items()
    }
    output.write_error(
        f"# goes into {_WHERE[words[0]].format(line=shlex.join(argv), **flags)}\n".encode("utf-8", "replace")
    )
    return output.page(snippet(words[0], argv, carried))


def variables() -> dict[str, str]:
    """Return the variables that select the gateway, without tokens: a client does not inherit this
    environment.
    """
    found = {name: os.environ[name] for name in CARRIED if os.environ.get(name)}
    return {name: os.path.abspath(value) if name in PATHS else value for name, value in found.items()}


def server_command() -> list[str]:
    """Return the command of the MCP server with an absolute path, for an IDE with another PATH: beside this
    Python, else on PATH, else as a module.
    """
    beside = os.path.join(os.path.dirname(os.path.abspath(sys.executable)), "eos-mcp")
    found = beside if os.access(beside, os.X_OK) else shutil.which("eos-mcp")
    return [found] if found else [sys.executable, "-m", "eos_mcp"]


def snippet(client: str, argv: Sequence[str], carried: Mapping[str, str]) -> str:
    command, args = argv[0], list(argv[1:])
    if client == "codex":
        lines = [
            "[mcp_servers.eos]",
            f"command = {json.dumps(command)}",
            f"args = {json.dumps(args)}",
            f"tool_timeout_sec = {CALL_TIMEOUT_MS // 1000}",
        ]
        if carried:
            lines += [
                "",
                "[mcp_servers.eos.env]",
                *(f"{name} = {json.dumps(value)}" for name, value in carried.items()),
            ]
        return "\n".join(lines)
    server: dict[str, Any] = {"command": command, "args": args, "env": dict(carried)}
    document: dict[str, Any]
    if client == "vscode":
        document = {"servers": {"eos": {"type": "stdio", **server}}}
    elif client == "zed":
        document = {"context_servers": {"eos": server}}
    elif client == "cursor":
        document = {"mcpServers": {"eos": server}}
    elif client == "gemini":
        document = {"mcpServers": {"eos": {**server, "timeout": CALL_TIMEOUT_MS}}}
    else:
        document = {"mcpServers": {"eos": {"type": "stdio", **server, "timeout": CALL_TIMEOUT_MS}}}
    return json.dumps(document, indent=2)
