"""The command line of `eos-mcp` and `sandbox-mcp`. Standard library only, and little of it: this runs before
the first answer.
"""

from __future__ import annotations

import os
from typing import NamedTuple

SETS = ("agent", "management", "runtime", "observability", "all")
TRANSPORTS = ("stdio", "http", "sse")

# One limit for a message on every transport: a line on standard input, the body of a POST. The gateway's
# request line has the same.
MAX_MESSAGE_BYTES = 16 * 1024 * 1024

EOS = "eos-mcp"
SANDBOX = "sandbox-mcp"


class ServerOptions(NamedTuple):
    """Options of the command line, with defaults filled in."""

    program: str = EOS
    tool_set: str = "agent"
    transport: str = "stdio"
    host: str = "127.0.0.1"
    port: int = 8765
    token_file: str | None = None
    allow_hosts: tuple[str, ...] = ()
    sandbox_id: str | None = None
    gateway_endpoint: str | None = None
    gateway_token: str | None = None
    timeout_s: float = 60.0
    on_disconnect: str = "cancel"
    roots: tuple[str, ...] = ()
    allowed: frozenset[str] = frozenset()
    """Guards that the command line lowers, by the names of their flags: `allow_sensitive`, `allow_overwrite`,
    ...
    """


class ServerUsageError(Exception):
    """The command line is invalid; the text says why."""


class HelpShown(Exception):
    """`--help` or `--version` was asked for; the text is the answer."""


def usage(program: str) -> str:
    """The help page of `program`."""
    demanded = program == SANDBOX
    which = "--set agent|management|runtime|observability|all" + ("" if demanded else " (default agent)")
    return f"""usage: {program} {"--set SET" if demanded else "[--set SET]"} [options]

The MCP server of eos: layer-stacked sandboxes for coding agents. A client starts it and speaks MCP on its standard input and output.

  {which}
        which tools to offer{"" if demanded else "; agent: all that a coding agent needs, about 25 tools"}
  --sandbox-id ID
        the sandbox of every call that names none; sandbox_id is then optional (destroy_sandbox always wants it)
  --root DIR
        a directory below which create_sandbox may copy and export_changes may write; may be repeated
        (default: {"none named: everything but sensitive places" if demanded else "the roots that the client names, else the working directory"})
  --allow-sensitive, --allow-unsafe, --keep-setuid, --allow-overwrite, --with-git
        let models ask for: homes, ~/.ssh, /etc and the like; exports of files that run by themselves; setuid bits;
        exports over files changed in the destination (on_conflict overwrite); exports over its .git
  --gateway-endpoint URI, --gateway-socket URI
        unix:/path or tcp://host:port; default: the socket of this user's gateway, started when none is running
  --gateway-auth-token TOKEN
        discouraged, since other users can see it: set SANDBOX_GATEWAY_AUTH_TOKEN or SANDBOX_GATEWAY_TOKEN_FILE
  --timeout-s SECONDS
        how long one call may take beyond the wait that it asks for (default 60; creating and exporting have more)
  --on-disconnect cancel|detach
        commands without a session 10 s after the end of this server: cancelled, their work a draft (default); or left
        running
  --transport stdio|http|sse
        default stdio; http serves Streamable HTTP at /mcp, sse the older form at /sse
  --host ADDRESS, --port PORT
        where http and sse listen (default 127.0.0.1 and 8765; port 0: any)
  --token-file FILE
        http and sse: file with one line, the bearer token that clients must send; created with a random token when missing
        (default: mcp.token in the state directory)
  --allow-host NAME
        http and sse: another name that clients may use in the Host header; may be repeated
  --version, --help

A message may have at most {MAX_MESSAGE_BYTES // (1024 * 1024)} MiB on every transport.
"""  # noqa: E501


def parse(program: str, words: list[str], *, version: str) -> ServerOptions:
    """`words` (without the program's name) as Options.

    Raises:
        UsageError: unknown flag, missing or bad value, or no --set where it is demanded.
        Shown: help or version; print it on standard output and exit 0.
    """
    taken: dict[str, list[str]] = {}
    allowed: set[str] = set()
    rest = list(words)
    while rest:
        word = rest.pop(0)
        if word in ("--help", "-h"):
            raise HelpShown(usage(program))
        if word == "--version":
            raise HelpShown(f"{program} {version}\n")
        if word in _GUARDS:
            allowed.add(_GUARDS[word])
            continue
        flag, equals, value = word.partition("=")
        name = _FLAGS.get(flag)
        if name is None:
            raise ServerUsageError(f"unknown argument: {word}")
        if not equals:
            if not rest:
                raise ServerUsageError(f"{flag} needs a value")
            value = rest.pop(0)
        taken.setdefault(name, []).append(value)
    last = {name: values[-1] for name, values in taken.items()}
    if program == SANDBOX and "tool_set" not in last:
        raise ServerUsageError("--set is required")
    defaults = ServerOptions()
    return ServerOptions(
        program=program,
        tool_set=_choice("--set", last.get("tool_set", defaults.tool_set), SETS),
        transport=_choice("--transport", last.get("transport", defaults.transport), TRANSPORTS),
        host=_text("--host", last.get("host", defaults.host)),
        port=_port(last.get("port", str(defaults.port))),
        token_file=last.get("token_file"),
        allow_hosts=tuple(name.lower() for name in taken.get("allow_hosts", ())),
        sandbox_id=_text("--sandbox-id", last["sandbox_id"]) if "sandbox_id" in last else None,
        gateway_endpoint=last.get("gateway_endpoint"),
        gateway_token=last.get("gateway_token"),
        timeout_s=_seconds(last["timeout_s"]) if "timeout_s" in last else defaults.timeout_s,
        on_disconnect=_choice("--on-disconnect", last.get("on_disconnect", "cancel"), ("cancel", "detach")),
        roots=tuple(_directory("--root", root) for root in taken.get("roots", ())),
        allowed=frozenset(allowed),
    )


_FLAGS = {
    "--set": "tool_set",
    "--transport": "transport",
    "--host": "host",
    "--port": "port",
    "--token-file": "token_file",
    "--allow-host": "allow_hosts",
    "--sandbox-id": "sandbox_id",
    "--gateway-endpoint": "gateway_endpoint",
    "--gateway-socket": "gateway_endpoint",
    "--gateway-auth-token": "gateway_token",
    "--timeout-s": "timeout_s",
    "--on-disconnect": "on_disconnect",
    "--root": "roots",
}
_GUARDS = {
    f"--{name.replace('_', '-')}": name
    for name in ("allow_sensitive", "allow_unsafe", "keep_setuid", "allow_overwrite", "with_git")
}


def _choice(flag: str, value: str, choices: tuple[str, ...]) -> str:
    if value not in choices:
        raise ServerUsageError(f"{flag} {value}: must be one of {', '.join(choices)}")
    return value


def _text(flag: str, value: str) -> str:
    if not value.strip():
        raise ServerUsageError(f"{flag}: must not be blank")
    return value


def _directory(flag: str, value: str) -> str:
    path = os.path.abspath(os.path.expanduser(_text(flag, value)))
    if not os.path.isdir(path):
        raise ServerUsageError(f"{flag} {value}: is not a directory")
    return path


def _port(value: str) -> int:
    if not value.isascii() or not value.isdigit() or int(value) > 65535:
        raise ServerUsageError(f"--port {value}: must be a number from 0 to 65535")
    return int(value)


def _seconds(value: str) -> float:
    try:
        seconds = float(value)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < 1e6:
        raise ServerUsageError(f"--timeout-s {value}: must be a number of seconds above 0")
    return seconds
