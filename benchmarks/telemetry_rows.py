"""What traces cost: the same command in a live session of two agents, one of which keeps none."""

from __future__ import annotations

import contextlib
import hashlib
import json
import socket
import subprocess
import sys
import tempfile
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

from benchmarks.harness import Row, Series, check, in_turn, token
from benchmarks.place import Place, fill
from eos_agent.wire.protocol import KEEP_ALIVE_KEY, encode_request, new_request_id

SANDBOX = "eos-bench"
RUNS = 1000
BLOCKS, PER_BLOCK = 30, 60


def telemetry(place: Place) -> Iterator[Row]:
    """An exec of a random echo over a kept connection to the agent itself: nothing else takes time that could
    hide it.
    """
    with agent(place.home, enabled=True) as traced, agent(place.home, enabled=False) as silent:
        for tty in (True, False):
            sides = [
                ("traced", lambda tty=tty: traced.echo(tty)),
                ("not traced", lambda tty=tty: silent.echo(tty)),
            ]
            ours, beside = in_turn(sides, runs=RUNS, warm_up=50)
            what = f"exec of a random echo at the agent, {'pty' if tty else 'pipes'}"
            yield Row(
                what, ours, beside, "<= 1.02x", "three spans, encoded and written a moment later by a thread"
            )
        yield processor_time(traced, silent)


def processor_time(traced: Agent, silent: Agent) -> Row:
    """What the two agents themselves compute per exec, in blocks by turns."""
    spent: dict[Agent, list[float]] = {traced: [], silent: []}
    begun = {one: one.processor_ms() for one in spent}
    for _ in range(BLOCKS):
        for one in spent:
            for _ in range(PER_BLOCK):
                one.echo(False)
        for one, series in spent.items():
            now = one.processor_ms()
            series.append((now - begun[one]) / PER_BLOCK)
            begun[one] = now
    ours, beside = (
        Series(name, tuple(spent[one])) for name, one in (("traced", traced), ("not traced", silent))
    )
    return Row(
        "processor time of the agent per exec",
        ours,
        beside,
        "2 % of the exec's time more",
        "as above, and samples every 2 s",
    )


class Agent:
    """One session of an agent, over one connection."""

    def __init__(self, path: str, pid: int) -> None:
        self.pid = pid
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.connect(path)
        self._file = self._socket.makefile("rb")
        self._session = self.ask("create_workspace_session", {})["workspace_session_id"]

    def ask(self, op: str, args: dict[str, Any]) -> dict[str, Any]:
        line = encode_request(
            op, args, request_id=new_request_id(), sandbox_id=SANDBOX, **{KEEP_ALIVE_KEY: True}
        )
        self._socket.sendall(line)
        answer: dict[str, Any] = json.loads(self._file.readline())
        if "error" in answer:
            raise RuntimeError(f"{op}: {answer['error']}")
        return answer

    def processor_ms(self) -> float:
        """Of all its threads since its start; see proc_pid_schedstat(5)."""
        tasks = Path(f"/proc/{self.pid}/task").iterdir()
        return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e6

    def echo(self, tty: bool) -> None:
        want = token()
        check(
            self.ask(
                "exec_command", {"cmd": f"echo {want}", "workspace_session_id": self._session, "tty": tty}
            )["output"],
            want,
        )

    def close(self) -> None:
        self._file.close()
        self._socket.close()


@contextlib.contextmanager
def agent(home: Path, *, enabled: bool) -> Generator[Agent]:
    """A local agent on a store of its own."""
    folder = Path(tempfile.mkdtemp(prefix="a", dir=home))
    base = folder / "base" / "B000001-base"
    for path in (base, folder / "ws", folder / "st", folder / "run"):
        path.mkdir(parents=True)
    fill(base, 3)
    (folder / "token").write_text(token() + "\n")
    texts = {
        "workspace_root": "ws",
        "layer_stack_root": "st",
        "scratch_root": "scratch",
        "runtime_dir": "run",
        "base_dir": "base",
    }
    texts |= {
        "token_file": "token",
        "socket_path": "run/s",
        "pid_path": "run/pid",
        "endpoint_path": "run/endpoint.json",
    }
    settings: dict[str, Any] = {name: str(folder / text) for name, text in texts.items()}
    settings |= {
        "format": 1,
        "sandbox_id": SANDBOX,
        "provider": "local",
        "base_root_hash": hashlib.sha256(b"").hexdigest(),
    }
    settings |= {"tcp_host": "127.0.0.1", "tcp_port": 0, "http_host": "127.0.0.1", "http_port": 0}
    settings |= {"private_dirs": [str(folder / name) for name in ("st", "scratch", "run", "base")]}
    settings["config"] = {"observability": {"enabled": enabled}}
    (folder / "agent.json").write_text(json.dumps(settings))
    process = subprocess.Popen(
        [sys.executable, "-m", "eos_agent", "serve", "--settings", str(folder / "agent.json")],
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    try:
        while '"event": "ready"' not in (line := process.stderr.readline()):
            if not line:
                raise RuntimeError("the agent did not start")
        one = Agent(settings["socket_path"], process.pid)
        try:
            yield one
        finally:
            one.close()
    finally:
        process.terminate()
        process.wait(30)
        process.stderr.close()
