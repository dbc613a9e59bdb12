"""The command lines of eos-mcp and sandbox-mcp as processes: what is demanded, what is refused, on which
stream, with which exit code.
"""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from eos_mcp import __version__
from eos_mcp.mcp import server_options
from eos_mcp.mcp.server_options import EOS, SANDBOX, ServerOptions, ServerUsageError, parse

ENTRY = {EOS: "main", SANDBOX: "sandbox_mcp"}


def run(program: str, *words: str) -> subprocess.CompletedProcess[str]:
    code = f"from eos_mcp.__main__ import {ENTRY[program]} as main; main()"
    return subprocess.run(
        [sys.executable, "-c", code, *words],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
    )


REFUSED: dict[str, tuple[str, list[str], str]] = {
    "sandbox-mcp without a set": (SANDBOX, [], "--set is required"),
    "an unknown set": (EOS, ["--set", "everything"], "everything"),
    "an unknown set of sandbox-mcp": (SANDBOX, ["--set=some"], "some"),
    "an unknown flag": (EOS, ["--sets", "all"], "--sets"),
    "a flag without its value": (EOS, ["--set"], "--set needs a value"),
    "a word too many": (EOS, ["all"], "all"),
    "an unknown transport": (EOS, ["--transport", "pigeon"], "pigeon"),
    "a port that is none": (EOS, ["--port", "70000"], "70000"),
    "a timeout that is none": (EOS, ["--timeout-s", "never"], "never"),
    "a blank sandbox": (EOS, ["--sandbox-id", " "], "--sandbox-id"),
}


@pytest.mark.parametrize(("program", "words", "expected"), REFUSED.values(), ids=REFUSED.keys())
def test_a_bad_command_line_gets_usage_on_standard_error_and_exit_code_2(
    program: str, words: list[str], expected: str
) -> None:
    done = run(program, *words)
    assert (done.returncode, done.stdout) == (2, "")
    assert expected in done.stderr.splitlines()[0]
    assert f"usage: {program}" in done.stderr


@pytest.mark.parametrize("program", [EOS, SANDBOX])
def test_help_and_version_go_to_standard_output(program: str) -> None:
    for words, expected in ((["--help"], f"usage: {program}"), (["--version"], f"{program} {__version__}")):
        done = run(program, *words)
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.startswith(expected)


def test_the_help_names_every_flag_and_no_other() -> None:
    assert set(re.findall(r"--[a-z][a-z-]+", server_options.usage(EOS))) == {
        *server_options._FLAGS,
        *server_options._GUARDS,
        "--help",
        "--version",
    }  # pyright: ignore[reportPrivateUsage]


@pytest.mark.parametrize("program", [EOS, SANDBOX])
def test_a_gateway_that_makes_no_sense_is_reported_on_standard_error_with_exit_code_2(
    program: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = run(program, "--set", "runtime", "--gateway-endpoint", "nonsense")
    assert (done.returncode, done.stdout) == (2, "")
    assert "nonsense" in done.stderr
    monkeypatch.setenv("SANDBOX_GATEWAY_AUTH_TOKEN", " ")
    assert run(program, "--set", "runtime").returncode == (2 if program == SANDBOX else 0)


def test_the_end_of_input_is_exit_code_0() -> None:
    assert run(SANDBOX, "--set", "runtime").returncode == 0


def test_flags_take_their_value_in_both_forms_and_the_last_one_counts() -> None:
    parsed = parse(
        EOS,
        [
            "--set=all",
            "--gateway-socket",
            "unix:///x",
            "--port",
            "0",
            "--set",
            "runtime",
            "--allow-host",
            "A",
            "--allow-host=b",
        ],
        version="1",
    )
    assert parsed == ServerOptions(
        tool_set="runtime", gateway_endpoint="unix:///x", port=0, allow_hosts=("a", "b")
    )


def test_the_default_set_is_the_one_of_a_coding_agent() -> None:
    assert parse(EOS, [], version="1") == ServerOptions()
    assert ServerOptions().tool_set == "agent"
    with pytest.raises(ServerUsageError):
        parse(SANDBOX, [], version="1")
