"""`eos gateway start|stop|status`: the gateway of this state directory."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from typing import Any

from eos_agent.wire.protocol import OperationError
from eos_mcp.cli import output, stop
from eos_mcp.cli.start_gateway import last_reason
from eos_mcp.config import paths, token_file
from eos_mcp.gateway_client import sync

USAGE = """usage: eos gateway start [options of `sandbox-gateway serve`] | stop | status
  start   start it in the background, on this user's own socket; it runs until it is stopped
  stop    stop it; sandboxes keep running, and the next gateway finds them
  status  print its endpoints; exit status 1 when none is running
"""
READY_S = 60.0


def main(words: Sequence[str]) -> int:
    verbs = {"start": start, "stop": end, "status": status}
    if not words or words[0] not in verbs or (words[0] != "start" and len(words) > 1):
        output.write_error(USAGE.encode())
        return output.USAGE
    try:
        return verbs[words[0]](list(words[1:]))
    except OperationError as error:
        output.write_error(f"eos gateway: {error.message}\n".encode("utf-8", "replace"))
        return output.FAILED


def start(arguments: list[str]) -> int:
    from eos_mcp.gateway import serve_options
    from eos_mcp.gateway.ownership import running_pid

    try:
        chosen = serve_options.parse(arguments)
    except serve_options.ServeUsageError as error:
        output.write_error(f"eos gateway: {error}\n\n{serve_options.usage()}".encode("utf-8", "replace"))
        return output.USAGE
    if running_pid() is not None:
        if arguments:
            output.write_error(
                b"eos gateway: a gateway already runs, without these options; sandboxes survive: `eos "
                b"gateway stop`, then start again\n"
            )
            return output.FAILED
        output.write(b"a gateway already runs\n")
        return status([])
    mistake = mistake_in(chosen.config_yaml)
    if mistake is not None:
        output.write_error(f"eos gateway: {mistake}\n".encode("utf-8", "replace"))
        return output.FAILED
    if os.environ.get(sync.TOKEN_ENV) is None:
        token_file.ensure()
    own = f"unix://{paths.socket_path()}"
    given = any(word.startswith(("--gateway-endpoint", "--gateway-socket")) for word in arguments)
    pid = sync.spawn_gateway(
        None, [*([] if given else ["--gateway-endpoint", own]), *arguments], environment=os.environ
    )
    deadline = time.monotonic() + READY_S
    while time.monotonic() < deadline:
        ended, code = os.waitpid(pid, os.WNOHANG)
        if ended:
            reason = last_reason(paths.log_path(), pid)
            output.write_error(
                f"eos gateway: it ended with status {os.waitstatus_to_exitcode(code)}: {reason}\n".encode(
                    "utf-8", "replace"
                )
            )
            return output.FAILED
        if running_pid() == pid and info() is not None:
            return status([])
        time.sleep(0.02)
    output.write_error(
        f"eos gateway: pid {pid} does not answer within {READY_S:g} s; see {paths.log_path()}\n".encode()
    )
    return output.FAILED


def mistake_in(path: str | None) -> str | None:
    """Describe the first mistake in a configuration, with the sections that create_sandbox reads later; None:
    valid.
    """
    from eos_mcp.config.load import ConfigError, load

    try:
        return load(path).agent_problem()
    except ConfigError as error:
        return error.message if path is None or path in error.message else f"{path}: {error.message}"


def end(_: list[str]) -> int:
    pid = stop.running()
    output.write(b"no gateway was running\n" if pid is None else f"stopped (pid {pid})\n".encode())
    return output.OK


def status(_: list[str]) -> int:
    found = info()
    if found is None:
        output.write(
            (
                f"no gateway runs for {paths.state_dir()}; it starts on demand, or with: eos gateway start\n"
            ).encode()
        )
        return output.FAILED
    endpoints = ", ".join(str(one) for one in found.get("endpoints", ()))
    lines = [
        f"gateway {found.get('version')} runs (pid {found.get('pid')}), {found.get('sandboxes')} sandboxes",
        f"  endpoints  {endpoints}",
        f"  state      {found.get('state_dir')}",
        f"  log        {paths.log_path()}",
        *(f"  warning    {warning}" for warning in found.get("warnings", ())),
    ]
    return output.page("\n".join(lines))


def info() -> dict[str, Any] | None:
    """`gateway_info` of the gateway that listens on this user's own socket; None when no gateway listens.
    Starts nothing.

    Raises:
        OperationError: the gateway answered with an error.
    """
    settings = sync.discover(endpoint=f"unix://{paths.socket_path()}")._replace(autostart=False)
    try:
        reply = sync.call(settings, "gateway_info", {}, timeout_s=10)
    except OperationError as error:
        if error.details.get("reason") == "gateway_unreachable":
            return None
        raise
    if "error" in reply:
        refused = reply["error"]
        raise OperationError(refused["kind"], refused["message"], refused["details"])
    return reply
