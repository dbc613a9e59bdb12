"""The linters and type checkers are tests: one command is the gate."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def check(*argv: str, env: dict[str, str] | None = None) -> None:
    done = subprocess.run(
        [sys.executable, "-m", *argv],
        cwd=ROOT,
        env={**os.environ, **(env or {})},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, f"{' '.join(argv)}:\n{done.stdout[-6000:]}{done.stderr[-2000:]}"


def test_ruff_finds_nothing() -> None:
    check("ruff", "check", ".")


def test_ruff_would_reformat_nothing() -> None:
    check("ruff", "format", "--check", ".")


@pytest.mark.timeout(400)
def test_mypy_strict_finds_nothing() -> None:
    check("mypy")


@pytest.mark.timeout(400)
def test_pyright_strict_finds_nothing() -> None:
    check("pyright", "--pythonpath", sys.executable, env={"PYRIGHT_PYTHON_IGNORE_WARNINGS": "1"})
