"""The token file: validation, creation by many at once, and the helper program."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from eos_agent.wire.protocol import OperationError
from eos_mcp.config import paths, token_file


def helper(*words: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "eos_mcp.cli.gateway_token", *words],
        input=stdin,
        capture_output=True,
        text=True,
        timeout=60,
    )


def put(content: bytes, mode: int = 0o600) -> str:
    path = paths.token_file()
    with open(path, "wb") as file:
        file.write(content)
    os.chmod(path, mode)
    return path


def test_no_file_is_no_token(state_dir: str) -> None:
    assert paths.token_file() == f"{state_dir}/gateway.token"
    assert token_file.read() is None


def test_a_token_is_minted_once_with_mode_0600_whoever_asks_first(state_dir: str) -> None:
    with ThreadPoolExecutor(16) as pool:
        found = set(pool.map(lambda _: token_file.ensure(), range(64)))
    assert len(found) == 1 and re.fullmatch("[0-9a-f]{64}", found.pop())
    assert os.stat(paths.token_file()).st_mode & 0o7777 == 0o600
    assert os.listdir(state_dir) == ["gateway.token"]


@pytest.mark.parametrize(
    ("content", "mode", "said"),
    [
        (b"t\n", 0o644, "chmod 600"),
        (b"t\n", 0o620, "chmod 600"),
        (b"", 0o600, "one non-blank line"),
        (b" \n", 0o600, "one non-blank line"),
        (b"secret-one\nsecret-two\n", 0o600, "one non-blank line"),
        (b"\xff\n", 0o600, "not text"),
    ],
)
def test_a_file_that_is_not_as_it_should_be_is_an_error_that_does_not_show_it(
    state_dir: str, content: bytes, mode: int, said: str
) -> None:
    path = put(content, mode)
    with pytest.raises(OperationError, match=said) as caught:
        token_file.read()
    assert (
        caught.value.kind == "config_error"
        and path in caught.value.message
        and "secret" not in caught.value.message
    )


def test_a_directory_or_a_fifo_is_no_token_file(state_dir: str) -> None:
    os.mkdir(paths.token_file())
    with pytest.raises(OperationError, match="regular file"):
        token_file.read()
    os.rmdir(paths.token_file())
    os.mkfifo(paths.token_file(), 0o600)
    with pytest.raises(OperationError, match="regular file"):
        token_file.read()


def test_the_helper_prints_places_and_tokens(state_dir: str) -> None:
    assert helper("path").stdout == f"{state_dir}/gateway.token\n"
    assert helper("read").returncode == 1
    minted = helper("ensure").stdout
    assert re.fullmatch("[0-9a-f]{64}\n", minted)
    assert helper("read").stdout == helper("ensure").stdout == minted
    assert helper("write", stdin="another\n").returncode == 0
    assert helper("read").stdout == "another\n"
    assert os.stat(paths.token_file()).st_mode & 0o7777 == 0o600
    assert helper("write", stdin="one\ntwo\n").returncode == 1


def test_a_file_that_was_named_on_purpose_is_not_overwritten(
    state_dir: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SANDBOX_GATEWAY_TOKEN_FILE", f"{state_dir}/mine")
    assert helper("write", stdin="first\n").returncode == 0
    assert helper("write", stdin="first\n").returncode == 0
    refused = helper("write", stdin="second\n")
    assert refused.returncode == 1 and "first" not in refused.stderr
    assert helper("read").stdout == "first\n"
    assert paths.socket_path() == f"{state_dir}/gateway.sock"


def test_bad_usage_of_the_helper_is_exit_status_2() -> None:
    for words in ((), ("nope",), ("path", "x")):
        done = helper(*words)
        assert (done.returncode, done.stdout) == (2, "")
