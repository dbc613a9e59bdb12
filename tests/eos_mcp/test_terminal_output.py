"""Names that steer a terminal or a shell: what the command-line programs print, and what hints say to be
typed.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
from pathlib import Path

import pytest

from eos_agent.machine import private_dirs
from eos_agent.wire import protocol
from eos_agent.wire.protocol import OperationError
from eos_mcp.cli import doctor, output
from eos_mcp.config import token_file
from eos_mcp.requests.bounds import Bounds

STEERING = "a\x1b]0;title\x07\x1b[2J b\x9b31m c\u202egnp.exe d\x7f e\u2028f g\u2066h \U000e0041"
SHELL = "a b'c;touch pwned;$(touch pwned)`touch pwned`&"


def steers(text: str) -> list[str]:
    return [c for c in text if not c.isprintable() and c != "\n"]


@pytest.mark.parametrize("pretty", [False, True])
def test_a_result_is_the_same_json_and_steers_no_terminal(
    capfdbinary: pytest.CaptureFixture[bytes], pretty: bool
) -> None:
    output.result({"path": STEERING, "plain": "größe 日本 👍"}, pretty=pretty, field=None)
    shown = capfdbinary.readouterr().out.decode()
    assert json.loads(shown) == {"path": STEERING, "plain": "größe 日本 👍"} and "größe 日本 👍" in shown
    assert steers(shown) == []


def test_an_error_and_progress_steer_no_terminal(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    output.own_error(OperationError("not_found", f"no file {STEERING}", {"path": STEERING}), details=True)
    output.progress_printer(0.0)(f"warning: {STEERING}\nand a line of its own")
    envelope, progress = capfdbinary.readouterr().err.decode().splitlines()
    assert json.loads(envelope)["error"]["details"]["path"] == STEERING
    assert (
        steers(envelope + progress) == []
        and "\\x1b[2J" in progress
        and progress.endswith("\\nand a line of its own")
    )


def test_what_other_users_named_does_not_steer_the_terminal_of_who_asks_the_doctor(
    capfdbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        doctor,
        "CHECKS",
        tuple(
            lambda n=n: doctor.Finding(n, True, f"{STEERING}\nmore")
            for n in ("docker", "local", "state", "cache")
        ),
    )
    doctor.main([])
    shown = capfdbinary.readouterr().out.decode()
    assert steers(shown) == [] and shown.count("\nmore\n") == 4


def test_a_field_goes_unchanged_into_a_pipe(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    output.result({"output": STEERING}, pretty=False, field="output")
    assert capfdbinary.readouterr().out == STEERING.encode() + b"\n"
    assert protocol.encode({"output": STEERING}) != output.harmless(protocol.encode({"output": STEERING}))


def test_what_a_hint_says_to_type_names_the_path_and_runs_nothing_else(tmp_path: Path) -> None:
    place = tmp_path / SHELL
    place.mkdir()
    with pytest.raises(OperationError) as caught:
        Bounds((str(tmp_path / "x"),)).check(str(place), "dest")
    words = shlex.split(caught.value.details["hint"].partition("--root ")[2])
    assert words == [str(place)]
    token = place / "token"
    token.write_text("x\n")
    token.chmod(0o644)
    with pytest.raises(OperationError) as caught:
        token_file.read(str(token))
    subprocess.run(["sh", "-c", caught.value.message.rpartition("run: ")[2]], cwd=tmp_path, check=True)
    assert token.stat().st_mode & 0o777 == 0o600 and token_file.read(str(token)) == "x"
    os.chmod(place, 0o777)
    problem = private_dirs._loose(str(place), os.stat(place))  # pyright: ignore[reportPrivateUsage]
    assert problem is not None
    subprocess.run(["sh", "-c", problem.hint.partition(", or")[0]], cwd=tmp_path, check=True)
    assert place.stat().st_mode & 0o777 == 0o775 or place.stat().st_mode & 0o777 == 0o755
    assert sorted(os.listdir(tmp_path)) == [SHELL]


@pytest.mark.parametrize("path", ["", "relative", "./x", "a\0b", "/a\0b", "/\udcff"])
def test_what_is_no_place_is_left_to_those_who_say_so(path: str) -> None:
    Bounds(()).check(path, "dest")
    Bounds(()).check_rootfs(f"rootfs:{path}")
