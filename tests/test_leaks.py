"""What a run leaves behind is found, with the test that made it, and nothing of anybody else's is."""

from __future__ import annotations

import subprocess

import pytest

from tests import leaks
from tests.conftest import drop_dir, make_short_dir


def test_a_directory_and_a_process_are_found_until_they_are_gone_and_those_of_another_run_never(
    short_dir: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs = make_short_dir("eos-x-")  # of the run that this test is part of
    monkeypatch.setenv(leaks.FOLDER, "")
    monkeypatch.setattr(leaks, "ROUNDS", 0)
    leaks.begin(short_dir)
    ours = make_short_dir("eos-x-")
    argv = ["sh", "-c", "read end", ours, theirs]
    with subprocess.Popen(argv, stdin=subprocess.PIPE) as process:
        left = leaks.found()
        assert [line for line in left if line.startswith(f"{ours} (tests/test_leaks.py::test_a_directory")], (
            left
        )
        assert [line for line in left if line.startswith(f"process {process.pid}: sh -c read end {ours}")], (
            left
        )
        assert len(left) == 2, left
        process.communicate(b"\n")
    drop_dir(ours)
    assert leaks.found() == []
    drop_dir(theirs)
    leaks.end()
