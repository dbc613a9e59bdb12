"""The product root: its five wrappers, and the program that replaces a gateway."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Generator
from pathlib import Path

import pytest

from tests.eos_mcp.programs import gateways_of, no_gateway_left, run
from tests.processes import WAIT_S, kill

ROOT = Path(__file__).resolve().parents[2]
WRAPPERS = (
    "sandbox-manager-cli",
    "sandbox-runtime-cli",
    "sandbox-observability-cli",
    "sandbox-gateway-token",
    "start-sandbox-docker-gateway",
)


@pytest.fixture
def product(state_dir: str, monkeypatch: pytest.MonkeyPatch) -> Generator[str]:
    """The state directory of gateways that the product root starts. Its Python is the one that runs the
    tests.
    """
    monkeypatch.setenv("EOS_GATEWAY_BACKEND", "none")
    monkeypatch.setenv("VIRTUAL_ENV", os.path.dirname(os.path.dirname(sys.executable)))
    with no_gateway_left(state_dir):
        yield state_dir


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def start(*words: str, **env: str) -> subprocess.CompletedProcess[str]:
    """Its output is a pipe that has to end: a gateway that held it open would never let this return."""
    program = str(ROOT / "bin" / "start-sandbox-docker-gateway")
    return subprocess.run(
        [program, *words],
        env={**os.environ, **env},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=WAIT_S,
    )


def wrapper(name: str, *words: str, cwd: str = "/") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(ROOT / "bin" / name), *words],
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=WAIT_S,
    )


def pid_in(path: str) -> int:
    with open(path) as file:
        return int(file.read())


@pytest.mark.parametrize("name", WRAPPERS)
def test_every_wrapper_is_there_and_explains_itself(product: str, name: str) -> None:
    assert os.access(ROOT / "bin" / name, os.X_OK)
    done = wrapper(name, "--help")
    assert (done.returncode, done.stderr) == (0, "") and name in done.stdout


def test_the_wrappers_work_without_an_installed_package(
    product: str, short_dir: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From a copy of the tree, with a python3 that knows nothing of it."""
    for name in ("bin", "eos_mcp", "agent_image", "layerstack"):
        shutil.copytree(
            ROOT / name, os.path.join(short_dir, name), ignore=shutil.ignore_patterns("__pycache__")
        )
    os.mkdir(os.path.join(short_dir, "path"))
    with open(os.path.join(short_dir, "path", "python3"), "w") as file:
        file.write(f'#!/bin/sh\nexec {os.path.realpath(sys.executable)} -S "$@"\n')
    os.chmod(os.path.join(short_dir, "path", "python3"), 0o755)
    monkeypatch.delenv("VIRTUAL_ENV")
    monkeypatch.setenv("PATH", f"{short_dir}/path:/usr/bin:/bin")
    program = os.path.join(short_dir, "bin", "sandbox-manager-cli")
    done = subprocess.run([program, "--version"], cwd="/", capture_output=True, text=True, timeout=WAIT_S)
    assert (done.returncode, done.stdout) == (0, "sandbox-manager-cli 0.1.0\n")


def test_it_starts_replaces_and_answers_when_it_returns(product: str) -> None:
    port, pid_file = free_port(), f"{product}/the.pid"
    words = ("--gateway-socket", f"127.0.0.1:{port}", "--pid-file", pid_file, "--rebuild-binary")
    done = start(*words)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    first = pid_in(pid_file)
    assert gateways_of(product) == [first]
    assert (
        wrapper("sandbox-manager-cli", "--gateway-socket", f"127.0.0.1:{port}", "list_sandboxes").stdout
        == '{"sandboxes":[]}\n'
    )
    assert wrapper("sandbox-manager-cli", "list_sandboxes").stdout == '{"sandboxes":[]}\n'
    assert start(*words).returncode == 0
    second = pid_in(pid_file)
    assert second != first and gateways_of(product) == [second]
    kill(second)
    assert start(*words).returncode == 0
    assert gateways_of(product) == [pid_in(pid_file)]
    assert oct(os.stat(f"{product}/gateway.token").st_mode & 0o777) == "0o600"


def test_one_that_was_started_on_demand_is_replaced_too(product: str) -> None:
    assert run("manager", "list_sandboxes").returncode == 0
    (on_demand,) = gateways_of(product)
    done = start(SANDBOX_GATEWAY_SOCKET=f"127.0.0.1:{free_port()}", SANDBOX_GATEWAY_PID_FILE=f"{product}/p")
    assert done.returncode == 0
    assert gateways_of(product) == [pid_in(f"{product}/p")] != [on_demand]


def test_a_pid_file_that_names_another_program_harms_nobody(product: str) -> None:
    pid_file = f"{product}/the.pid"
    with subprocess.Popen(["sleep", "1000"]) as bystander:
        with open(pid_file, "w") as file:
            file.write(f"{bystander.pid}\n")
        assert start("--gateway-socket", f"127.0.0.1:{free_port()}", "--pid-file", pid_file).returncode == 0
        assert bystander.poll() is None and pid_in(pid_file) != bystander.pid
        bystander.kill()


def test_an_invalid_configuration_is_a_failure_that_names_the_key(product: str) -> None:
    bad = f"{product}/bad.yml"
    with open(bad, "w") as file:
        file.write("manager: {docker: {nope: 1}}\n")
    port = free_port()
    done = start(
        "--gateway-socket", f"127.0.0.1:{port}", "--pid-file", f"{product}/p", SANDBOX_GATEWAY_CONFIG_YAML=bad
    )
    assert done.returncode == 1 and "manager.docker.nope: unknown field" in done.stderr
    assert gateways_of(product) == [] and not os.path.exists(f"{product}/p")


def test_a_taken_port_is_a_failure_that_names_it(product: str) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = start("--gateway-socket", f"127.0.0.1:{port}", "--pid-file", f"{product}/p")
    assert done.returncode == 1 and f"port {port}" in done.stderr


def test_the_log_and_the_token_may_lie_elsewhere(product: str) -> None:
    log, token = f"{product}/sub/my.log", f"{product}/sub/my.token"
    done = start(
        "--gateway-socket",
        f"127.0.0.1:{free_port()}",
        "--pid-file",
        f"{product}/p",
        SANDBOX_GATEWAY_LOG=log,
        SANDBOX_GATEWAY_TOKEN_FILE=token,
    )
    assert done.returncode == 0, done.stderr
    assert '"ready"' in Path(log).read_text() and Path(token).exists()
    assert os.path.exists(f"{product}/sub/gateway.sock")  # beside the token file


def test_bad_usage_is_exit_status_2(product: str) -> None:
    assert start("--nope").returncode == 2
    assert start("--pid-file").returncode == 2
