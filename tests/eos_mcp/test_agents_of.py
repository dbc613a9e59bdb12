"""Which processes are taken for the agent of a local sandbox: an argument list alone makes none."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

from eos_mcp.providers.host_processes import agents_of, is_agent, is_ours
from tests.in_namespace import ORDINARY_UID

WAIT = "import sys; print('up', flush=True); sys.stdin.read()"


@contextmanager
def pretending(program: str, settings: str, uid: int | None = None) -> Generator[int]:
    """A process whose arguments are those of an agent."""
    words = [program, "-c", WAIT, "serve", "--settings", settings]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, user=uid) as process:
        assert process.stdout is not None and process.stdin is not None
        assert process.stdout.readline() == b"up\n"
        yield process.pid
        process.stdin.close()
        process.wait(30)


def test_a_program_that_is_no_bundles_is_no_agent_whatever_its_arguments_say(tmp_path: Path) -> None:
    settings = str(tmp_path / "agent.json")
    with pretending(sys.executable, settings) as pid:
        assert is_ours(pid) and not is_agent(pid, settings, str(tmp_path / "bundles"))
        assert agents_of(settings, str(tmp_path / "bundles")) == []
        real = os.path.dirname(os.path.realpath(f"/proc/{pid}/exe"))
        assert [one.pid for one in agents_of(settings, real)] == [
            pid
        ]  # the same one, were that a place of bundles
        assert agents_of(str(tmp_path / "other.json"), real) == []


@pytest.mark.needs("root", "uid")
def test_a_process_of_another_user_is_no_agent(tmp_path: Path) -> None:
    program = shutil.which("python3", path="/usr/bin:/bin")
    if program is None:
        program = os.path.realpath(sys.executable)
    settings = str(tmp_path / "agent.json")
    real = os.path.dirname(os.path.realpath(program))
    with pretending(program, settings) as pid:
        assert is_agent(pid, settings, real)
    with pretending(program, settings, ORDINARY_UID) as pid:
        assert not is_ours(pid) and not is_agent(pid, settings, real) and agents_of(settings, real) == []
