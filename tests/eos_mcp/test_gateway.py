"""Gateways as processes: started on demand by many at once, killed, stopped, left idle, replaced; nobody's
call is lost.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import select
import signal
import socket
import stat
import subprocess
import threading
import time
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from eos_agent.wire import protocol
from eos_agent.wire.protocol import OperationError
from eos_mcp.config import paths
from eos_mcp.gateway import ownership
from eos_mcp.gateway_client import sync
from tests.eos_mcp.programs import (
    argv,
    error,
    events,
    gateways_of,
    many,
    no_gateway_left,
    pid_of,
    result,
    run,
    serve_argv,
)
from tests.processes import WAIT_S, kill

EMPTY = '{"sandboxes":[]}\n'


@pytest.fixture
def alone(state_dir: str, monkeypatch: pytest.MonkeyPatch) -> Generator[str]:
    """A state directory whose gateways have no provider, are stopped afterwards, and leave no process."""
    monkeypatch.setenv("EOS_GATEWAY_BACKEND", "none")
    with no_gateway_left(state_dir):
        yield state_dir


def config(state_dir: str, text: str) -> str:
    os.chmod(state_dir, 0o700)  # a directory that holds something is taken only when it is closed to others
    path = os.path.join(state_dir, "config.yml")
    with open(path, "w") as file:
        file.write(text)
    return path


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_for_line(process: subprocess.Popen[str], text: str) -> str:
    """The next line of standard error that holds `text`."""
    assert process.stderr is not None
    while select.select([process.stderr], [], [], WAIT_S)[0]:
        line = process.stderr.readline()
        if text in line:
            return line
        assert line, f"it ended without {text}"
    raise AssertionError(text)


def test_twenty_calls_at_once_start_one_gateway_cold_and_after_it_was_killed(alone: str) -> None:
    for starts in (1, 2):
        assert many(20, "manager", "list_sandboxes") == [(0, EMPTY, "")] * 20
        assert len(events(alone, "ready")) == starts
        assert len(gateways_of(alone)) == 1
        kill(pid_of(alone))
        assert os.path.exists(f"{alone}/gateway.sock")  # what kill -9 leaves is recovered from


def test_callers_that_look_at_the_same_moment_start_one_gateway(alone: str) -> None:
    """Threads behind a barrier: all have seen that nobody listens before the first of them binds."""
    dial, barrier = sync._dial, threading.Barrier(8)  # pyright: ignore[reportPrivateUsage]
    seen = threading.local()

    def dial_together(endpoint: sync.GatewayEndpoint, timeout_s: float | None) -> socket.socket:
        try:
            return dial(endpoint, timeout_s)
        except (FileNotFoundError, ConnectionRefusedError):
            seen.times = getattr(seen, "times", 0) + 1
            if seen.times == 1:
                barrier.wait(WAIT_S)
            raise

    with pytest.MonkeyPatch.context() as patch, ThreadPoolExecutor(8) as pool:
        patch.setattr(sync, "_dial", dial_together)
        settings = sync.discover()
        replies = list(pool.map(lambda _: sync.call(settings, "list_sandboxes", {}), range(8)))
    assert replies == [{"sandboxes": []}] * 8
    assert len(gateways_of(alone)) == len(events(alone, "ready")) == 1


def test_descriptors_of_the_caller_are_not_held_open_by_the_gateway(alone: str) -> None:
    readable, writable = os.pipe()
    done = subprocess.run(
        argv("manager", "list_sandboxes"),
        pass_fds=(writable,),
        capture_output=True,
        text=True,
        timeout=WAIT_S,
    )
    assert done.stdout == EMPTY
    os.close(writable)
    assert select.select([readable], [], [], WAIT_S)[0] and os.read(readable, 1) == b""
    os.close(readable)


def test_a_call_that_connects_while_the_gateway_leaves_is_still_answered(alone: str) -> None:
    """The test holds the start lock, so the gateway stands between its last accept and the removal of its
    socket.
    """
    result(run("manager", "list_sandboxes"))
    pid = pid_of(alone)
    with ThreadPoolExecutor(1) as pool:
        with sync.StartLock():
            os.kill(pid, signal.SIGTERM)
            deadline = time.monotonic() + WAIT_S
            while not blocked_on_a_lock(pid):
                assert time.monotonic() < deadline
            late = sync.connect(sync.discover())
            token = Path(paths.token_file()).read_text().strip()
            late.sendall(
                protocol.encode_request(
                    "list_sandboxes", {}, request_id="late", **{protocol.GATEWAY_TOKEN_KEY: token}
                )
            )
        answer = pool.submit(late.makefile("rb").readline).result(WAIT_S)
    late.close()
    assert json.loads(answer) == {"sandboxes": []}


def blocked_on_a_lock(pid: int) -> bool:
    with open("/proc/locks") as file:
        return any("->" in line and f" {pid} " in line for line in file)


def test_what_is_started_on_demand_is_private_and_detached(alone: str) -> None:
    result(run("manager", "list_sandboxes"))
    pid = pid_of(alone)
    for name in ("gateway.sock", "gateway.token", "gateway.log", "gateway.pid", "gateway.lock"):
        assert stat.S_IMODE(os.stat(f"{alone}/{name}").st_mode) == 0o600
    with open(f"{alone}/gateway.token") as file:
        token = file.read().strip()
    with open(f"/proc/{pid}/cmdline") as file:
        assert token not in file.read()
    with open(f"{alone}/gateway.log") as file:
        assert token not in file.read()
    assert os.getsid(pid) == pid and os.readlink(f"/proc/{pid}/cwd") == "/"
    descriptors = {os.readlink(f"/proc/{pid}/fd/{n}") for n in os.listdir(f"/proc/{pid}/fd")}
    assert "/dev/null" in descriptors and not any(place.startswith("pipe:") for place in descriptors)


def test_calls_that_meet_a_stopping_gateway_are_answered_by_it_or_by_the_next(alone: str) -> None:
    result(run("manager", "list_sandboxes"))
    for number in (signal.SIGTERM, signal.SIGINT):
        outcomes: list[list[tuple[int, str, str]]] = []
        callers = threading.Thread(
            target=lambda into=outcomes: into.append(many(12, "manager", "list_sandboxes"))
        )
        callers.start()
        os.kill(pid_of(alone), number)
        callers.join()
        assert outcomes == [[(0, EMPTY, "")] * 12]
    assert len(gateways_of(alone)) == 1


def test_a_stopped_gateway_leaves_no_socket_no_pid_and_an_open_lock(alone: str) -> None:
    result(run("manager", "list_sandboxes"))
    pid = pid_of(alone)
    assert ownership.running_pid() == pid
    assert run("eos", "gateway", "stop").stdout == f"stopped (pid {pid})\n"
    assert not os.path.exists(f"{alone}/gateway.sock") and not os.path.exists(f"{alone}/gateway.pid")
    assert ownership.running_pid() is None and gateways_of(alone) == []
    assert run("eos", "gateway", "stop").stdout == "no gateway was running\n"
    assert events(alone, "stopped")


def test_an_idle_gateway_leaves_by_itself_and_the_next_call_starts_another(
    alone: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SANDBOX_GATEWAY_CONFIG_YAML", config(alone, "gateway: {idle_exit_s: 0.2}\n"))
    result(run("manager", "list_sandboxes"))
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it has left already
        descriptor = os.pidfd_open(pid_of(alone))
        assert select.select([descriptor], [], [], WAIT_S)[0]
        os.close(descriptor)
    assert events(alone, "idle") and not os.path.exists(f"{alone}/gateway.sock")
    for _ in range(5):  # calls that fall into the moment of leaving
        assert many(4, "manager", "list_sandboxes") == [(0, EMPTY, "")] * 4


def test_start_status_and_stop_of_the_umbrella(alone: str) -> None:
    assert run("eos", "gateway", "status").returncode == 1
    started = run("eos", "gateway", "start")
    assert started.returncode == 0 and f"pid {pid_of(alone)}" in started.stdout
    assert "a gateway already runs" in run("eos", "gateway", "start").stdout
    ignored = run("eos", "gateway", "start", "--backend", "local")
    assert (
        ignored.returncode == 1
        and "without these options" in ignored.stderr
        and "eos gateway stop" in ignored.stderr
    )
    assert f"unix://{alone}/gateway.sock" in run("eos", "gateway", "status").stdout
    information = result(run("manager", "gateway_info"))
    assert information["pid"] == pid_of(alone) and len(information["catalog_hash"]) == 64
    bad = run("eos", "gateway", "stop", "x")
    assert bad.returncode == 2


def test_a_start_that_fails_says_its_own_reason_with_the_file_and_the_key(alone: str) -> None:
    broken = config(alone, "gatewy: {}\n")
    for _ in range(2):
        failed = run("eos", "gateway", "start", "--config-yaml", broken)
        assert failed.returncode == 1 and f"{broken}: gatewy: unknown field" in failed.stderr
    serve = subprocess.run(
        serve_argv("--config-yaml", broken), capture_output=True, text=True, timeout=WAIT_S
    )
    assert serve.returncode == 1 and f"{broken}: gatewy: unknown field" in serve.stderr
    demanded = run("manager", "list_sandboxes", env={"SANDBOX_GATEWAY_CONFIG_YAML": broken})
    assert (
        demanded.returncode == 1
        and f"{broken}: gatewy: unknown field (line 1)" in demanded.stderr
        and "operation_failed" in demanded.stderr
    )
    unread = config(alone, "runtime: {layerstack: {quota_byte: 1}}\n")
    failed = run("eos", "gateway", "start", "--config-yaml", unread)
    assert (
        failed.returncode == 1 and f"{unread}: runtime.layerstack.quota_byte: unknown field" in failed.stderr
    )
    assert run("manager", "list_sandboxes", env={"SANDBOX_GATEWAY_CONFIG_YAML": unread}).stdout == EMPTY
    for shown in (
        run("eos", "gateway", "status").stdout,
        json.dumps(result(run("manager", "gateway_info"))["warnings"]),
    ):
        assert (
            f"create_sandbox would fail: {unread}: runtime.layerstack.quota_byte: unknown field (line 1)"
            in shown
        )
    assert run("eos", "gateway", "stop").returncode == 0
    wrong = run("eos", "gateway", "start", "--frob")
    assert wrong.returncode == 2 and "unknown option: --frob" in wrong.stderr and "gatewy" not in wrong.stderr
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        failed = run("eos", "gateway", "start", "--gateway-endpoint", f"127.0.0.1:{port}")
    assert failed.returncode == 1 and str(port) in failed.stderr and "gatewy" not in failed.stderr
    assert gateways_of(alone) == []


def test_serve_runs_in_the_foreground_on_tcp_and_on_the_users_own_socket(alone: str) -> None:
    port = free_port()
    pid_file = f"{alone}/given.pid"
    words = serve_argv(
        "--gateway-endpoint", f"127.0.0.1:{port}", "--pid-file", pid_file, "--max-concurrent-connections", "7"
    )
    with subprocess.Popen(words, stderr=subprocess.PIPE, text=True) as process:
        ready = json.loads(wait_for_line(process, '"ready"'))
        assert ready["endpoints"] == [f"127.0.0.1:{port}", f"unix://{alone}/gateway.sock"]
        with open(pid_file) as file:
            assert file.read() == f"{process.pid}\n"
        assert (
            run("manager", "--gateway-endpoint", f"tcp://127.0.0.1:{port}", "list_sandboxes").stdout == EMPTY
        )
        assert run("manager", "list_sandboxes").stdout == EMPTY
        wrong = run("manager", "--gateway-auth-token", "wrong", "list_sandboxes")
        assert error(wrong, 1)["kind"] == "unauthorized"
        second = subprocess.run(
            serve_argv("--gateway-endpoint", f"127.0.0.1:{free_port()}"),
            capture_output=True,
            text=True,
            timeout=WAIT_S,
        )
        assert (
            second.returncode == 1
            and f"pid {process.pid}" in second.stderr
            and "eos gateway stop" in second.stderr
        )
        process.send_signal(signal.SIGTERM)
        assert process.wait(WAIT_S) == 0
    assert not os.path.exists(pid_file) and not os.path.exists(f"{alone}/gateway.sock")


def test_a_taken_port_is_one_clear_error_and_leaves_nothing(alone: str) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = subprocess.run(
            serve_argv("--gateway-endpoint", f"127.0.0.1:{port}"),
            capture_output=True,
            text=True,
            timeout=WAIT_S,
        )
    assert (
        done.returncode == 1
        and f"port {port} of 127.0.0.1 is taken" in done.stderr
        and "--gateway-endpoint" in done.stderr
    )
    assert not os.path.exists(f"{alone}/gateway.sock") and not os.path.exists(f"{alone}/gateway.pid")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--backend", "podman"), "--backend"),
        (("--gateway-endpoint", "nonsense"), "not an endpoint"),
        (("--max-concurrent-connections", "0"), "at least 1"),
        (("--auth-token", " "), "blank"),
        (("--nope",), "unknown option"),
        (("--pid-file",), "requires a value"),
    ],
)
def test_bad_flags_of_serve_are_exit_status_2(alone: str, words: tuple[str, ...], said: str) -> None:
    done = subprocess.run(serve_argv(*words), capture_output=True, text=True, timeout=WAIT_S)
    assert done.returncode == 2 and said in done.stderr


def test_a_bad_configuration_names_the_key(alone: str) -> None:
    done = subprocess.run(
        serve_argv("--config-yaml", config(alone, "manager: {docker: {nope: 1}}\n")),
        capture_output=True,
        text=True,
        timeout=WAIT_S,
    )
    assert done.returncode == 1 and "manager.docker.nope: unknown field" in done.stderr


def test_the_instance_id_is_minted_once_per_state_directory(alone: str) -> None:
    first = ownership.instance_id()
    assert re.fullmatch("eos-[0-9a-f]{12}", first) and ownership.instance_id() == first


def test_ownership_passes_on_when_the_owner_ends(alone: str) -> None:
    first, second = ownership.Ownership(), ownership.Ownership()
    first.claim(wait_s=0)
    with pytest.raises(ownership.AlreadyRunning, match=f"pid {os.getpid()}"):
        second.claim(wait_s=0)
    first.release()
    second.claim(wait_s=0)
    assert ownership.running_pid() == os.getpid()
    second.release()
    assert not os.path.exists(paths.pid_path())


def test_a_large_log_moves_aside_when_the_next_gateway_starts(alone: str) -> None:
    with open(f"{alone}/gateway.log", "w") as file:
        file.truncate(sync.LOG_MAX_BYTES + 1)
    result(run("manager", "list_sandboxes"))
    assert os.stat(f"{alone}/gateway.log.1").st_size > sync.LOG_MAX_BYTES
    assert len(events(alone, "ready")) == 1


def test_a_tcp_gateway_is_never_started_on_demand(alone: str) -> None:
    settings = sync.discover(endpoint=f"127.0.0.1:{free_port()}", token="t")
    with pytest.raises(OperationError) as caught:
        sync.call(settings, "list_sandboxes", {})
    assert caught.value.kind == "connection_error" and "sandbox-gateway serve" in caught.value.message
    assert gateways_of(alone) == []


def test_a_file_where_the_socket_should_be_is_named_and_kept(alone: str) -> None:
    with open(f"{alone}/gateway.sock", "w") as file:
        file.write("mine")
    found = error(run("manager", "list_sandboxes"), 1)
    assert found["kind"] == "connection_error" and "not a socket" in found["message"]
    with open(f"{alone}/gateway.sock") as file:
        assert file.read() == "mine"


def test_a_token_of_the_environment_starts_a_gateway_with_that_token(
    alone: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SANDBOX_GATEWAY_AUTH_TOKEN", "of-the-environment")
    assert run("manager", "list_sandboxes").stdout == EMPTY
    monkeypatch.delenv("SANDBOX_GATEWAY_AUTH_TOKEN")
    assert not os.path.exists(f"{alone}/gateway.token")
    assert error(run("manager", "list_sandboxes"), 1)["kind"] == "unauthorized"
    assert run("manager", "--gateway-auth-token", "of-the-environment", "list_sandboxes").stdout == EMPTY


def test_a_gateway_outlives_the_terminal_of_whoever_started_it(alone: str) -> None:
    """The starter is the leader of a session with a terminal; when that goes, its group gets SIGHUP."""
    import pty

    pid, terminal = pty.fork()
    if pid == 0:
        os.execv(argv("manager")[0], argv("manager", "list_sandboxes"))
    said = b""
    while select.select([terminal], [], [], WAIT_S)[0]:
        try:
            chunk = os.read(terminal, 4096)
        except OSError:
            break
        if not chunk:
            break
        said += chunk
    os.close(terminal)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0 and b"sandboxes" in said
    assert run("eos", "gateway", "status").returncode == 0
    assert len(events(alone, "ready")) == 1
