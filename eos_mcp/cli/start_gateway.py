"""`start-sandbox-docker-gateway`: replace the gateway that the pid file names by a new one, detached.

The new one listens on TCP (and on this user's own socket, as every gateway), runs until it is stopped, and
finds the running sandboxes of its predecessor. This program returns once the new gateway answers, or prints
the reason why it does not.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence

from eos_agent.wire.protocol import OperationError
from eos_mcp.cli import output, stop
from eos_mcp.config import paths, token_file
from eos_mcp.gateway_client import sync

USAGE = """usage: start-sandbox-docker-gateway [--gateway-socket HOST:PORT] [--pid-file FILE] [--rebuild-binary]
environment: SANDBOX_GATEWAY_CONFIG_YAML (config/prd.yml), SANDBOX_GATEWAY_SOCKET (127.0.0.1:7878), SANDBOX_GATEWAY_PID_FILE,
  SANDBOX_GATEWAY_LOG, SANDBOX_GATEWAY_AUTH_TOKEN, SANDBOX_GATEWAY_TOKEN_FILE (made when absent)
"""  # noqa: E501
DEFAULT_SOCKET = "127.0.0.1:7878"
READY_S = 60.0
_VALUES = {"--gateway-socket": "socket", "--gateway-endpoint": "socket", "--pid-file": "pid_file"}


def main(argv: Sequence[str] | None = None) -> int:
    words = list(sys.argv[1:] if argv is None else argv)
    found: dict[str, str] = {}
    while words:
        flag, equals, value = words.pop(0).partition("=")
        if flag in ("--help", "-h"):
            return output.page(USAGE)
        if flag == "--rebuild-binary":
            continue
        if flag not in _VALUES or (not equals and not words):
            output.write_error(
                f"{flag}: {'unknown option' if flag not in _VALUES else 'requires a value'}\n{USAGE}".encode()
            )
            return output.USAGE
        found[_VALUES[flag]] = value if equals else words.pop(0)
    try:
        return replace(found.get("socket"), found.get("pid_file"))
    except OperationError as error:
        return _fail(error.message)
    except (OSError, ValueError) as error:
        return _fail(str(error))


def replace(socket_text: str | None, pid_file: str | None) -> int:
    """Stop the old gateway, start a new one and wait for its first answer."""
    endpoint = sync.parse_endpoint(socket_text or os.environ.get(sync.SOCKET_ENV) or DEFAULT_SOCKET)
    pid_file = os.path.abspath(
        pid_file
        or os.environ.get("SANDBOX_GATEWAY_PID_FILE")
        or os.path.join(paths.state_dir(), "start-gateway.pid")
    )
    if os.environ.get(sync.TOKEN_ENV) is None:
        token_file.ensure()
    root = product_root()
    configuration = os.environ.get("SANDBOX_GATEWAY_CONFIG_YAML") or (
        os.path.join(root, "config", "prd.yml") if root else None
    )
    pid_file = os.path.abspath(
        pid_file or os.environ.get("SANDBOX_GATEWAY_PID_FILE") or _configured_pid_file(configuration, root)
    )
    log = paths.log_path()
    stop.by_pid_file(pid_file)
    stop.running()  # also a gateway started on demand: one gateway per state directory
    arguments = ["--gateway-endpoint", str(endpoint), "--pid-file", pid_file]
    if configuration is not None:
        arguments += ["--config-yaml", os.path.abspath(configuration)]
    if root is not None:
        arguments += ["--relative-to", root]
    pid = sync.spawn_gateway(None, arguments, environment=os.environ, log=log)
    settings = sync.GatewaySettings(endpoint, os.environ.get(sync.TOKEN_ENV), autostart=False)
    deadline = time.monotonic() + READY_S
    while time.monotonic() < deadline:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return _fail(
                f"the gateway ended with status {os.waitstatus_to_exitcode(status)}: {last_reason(log, pid)}"
            )
        try:
            reply = sync.call(settings, "gateway_info", {}, timeout_s=1)
        except OperationError:
            time.sleep(0.02)
            continue
        if reply.get("pid") == pid:
            return output.OK
        return _fail(
            f"another gateway (pid {reply.get('pid')}) answers at {endpoint}: {reply.get('error', {})}"
        )
    return _fail(f"the gateway (pid {pid}) does not answer at {endpoint} within {READY_S:g} s; see {log}")


def _configured_pid_file(configuration: str | None, root: str | None) -> str:
    """Return `gateway.pid_path`. For an unreadable document return the default: the gateway itself will
    report the fault.
    """
    from eos_mcp.config.load import ConfigError, load

    try:
        found = load(configuration, relative_to=root).gateway.pid_path
    except ConfigError:
        found = None
    return found or os.path.join(paths.state_dir(), "start-gateway.pid")


def product_root() -> str | None:
    """Return the directory with bin/ and config/ that this program is in; None when installed elsewhere."""
    given = os.environ.get("EOS_PRODUCT_ROOT")
    root = given or os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    return root if os.path.exists(os.path.join(root, "config", "prd.yml")) else None


def last_reason(log: str, pid: int) -> str:
    """Return the error in the `start_failed` log line of process `pid`."""
    import json

    try:
        with open(log, errors="replace") as file:
            lines = file.read()[-65536:].splitlines()
    except OSError:
        lines = []
    for line in reversed(lines):
        try:
            entry = json.loads(line)
        except ValueError:
            continue
        if isinstance(entry, dict) and entry.get("event") == "start_failed" and entry.get("pid") == pid:  # pyright: ignore[reportUnknownMemberType]
            return str(entry.get("error"))  # pyright: ignore[reportUnknownArgumentType, reportUnknownMemberType]
    return f"see {log}"


def _fail(why: str) -> int:
    output.write_error(f"start-sandbox-docker-gateway: {why}\n".encode("utf-8", "replace"))
    return output.FAILED


if __name__ == "__main__":
    sys.exit(main())
