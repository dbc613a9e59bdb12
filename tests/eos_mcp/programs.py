"""The command-line programs as separate processes, and the gateways that they start: counted, killed,
stopped.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Generator, Mapping, Sequence
from typing import Any

from tests.processes import WAIT_S, cmdline, ended, kill, pids

MODULES = {
    "manager": "eos_mcp.cli.sandbox_manager",
    "runtime": "eos_mcp.cli.sandbox_runtime",
    "observability": "eos_mcp.cli.sandbox_observability",
    "gateway": "eos_mcp.cli.sandbox_gateway",
    "eos": "eos_mcp.cli.eos",
}


def argv(program: str, *words: str) -> list[str]:
    return [sys.executable, "-m", MODULES.get(program, f"eos_mcp.cli.{program}"), *words]


def run(
    program: str, *words: str, stdin: str | None = None, env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, **(env or {})}
    given: dict[str, Any] = {"stdin": subprocess.DEVNULL} if stdin is None else {"input": stdin}
    return subprocess.run(
        argv(program, *words), env=environment, capture_output=True, text=True, timeout=WAIT_S, **given
    )


def many(count: int, program: str, *words: str) -> list[tuple[int, str, str]]:
    """Run `count` processes at once; return status, standard output and standard error of each."""
    pipes: dict[str, Any] = {
        "stdin": subprocess.DEVNULL,
        "stdout": subprocess.PIPE,
        "stderr": subprocess.PIPE,
        "text": True,
    }
    started = [subprocess.Popen(argv(program, *words), **pipes) for _ in range(count)]
    said = [process.communicate(timeout=WAIT_S) for process in started]
    return [(process.returncode, out, err) for process, (out, err) in zip(started, said, strict=True)]


def result(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    """Return the object of a program that printed one line on standard output and nothing else."""
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("\n") and done.stdout.count("\n") == 1
    value: dict[str, Any] = json.loads(done.stdout)
    return value


def error(done: subprocess.CompletedProcess[str], status: int) -> dict[str, Any]:
    """Return the envelope of a program that printed one line on standard error and nothing else."""
    assert (done.returncode, done.stdout) == (status, ""), (done.returncode, done.stdout, done.stderr)
    assert done.stderr.endswith("\n") and done.stderr.count("\n") == 1
    value = json.loads(done.stderr)
    assert list(value) == ["error"] and list(value["error"]) == ["kind", "message", "details"]
    found: dict[str, Any] = value["error"]
    return found


def pid_of(state_dir: str) -> int:
    with open(os.path.join(state_dir, "gateway.pid")) as file:
        return int(file.read())


def events(state_dir: str, name: str) -> list[dict[str, Any]]:
    """Return the lines of one event in the gateway's log."""
    try:
        with open(os.path.join(state_dir, "gateway.log")) as file:
            lines = file.read().splitlines()
    except FileNotFoundError:
        return []
    found: list[dict[str, Any]] = [json.loads(line) for line in lines if line.startswith("{")]
    return [event for event in found if event.get("event") == name]


def gateways_of(state_dir: str) -> list[int]:
    """Return every gateway process whose environment names this state directory."""
    mark, found = f"EOS_STATE_DIR={state_dir}".encode(), []
    for pid in pids():
        words = cmdline(pid).split(b"\0")
        if b"serve" in words and any(b"gateway" in word for word in words):
            with contextlib.suppress(OSError), open(f"/proc/{pid}/environ", "rb") as file:
                if mark in file.read().split(b"\0"):
                    found.append(pid)
    return found


@contextlib.contextmanager
def no_gateway_left(state_dir: str) -> Generator[None]:
    """Stop every gateway that the block started, and check it."""
    try:
        yield
    finally:
        run("eos", "gateway", "stop")
        left = [pid for pid in gateways_of(state_dir) if not ended(pid)]
        for pid in left:
            kill(pid)
        assert not left, f"gateways that nobody could stop: {left}"


def serve_argv(*words: str) -> Sequence[str]:
    return [sys.executable, "-m", "eos_mcp.gateway", "serve", *words]
