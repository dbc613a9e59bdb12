"""The command blocks of the README, run as they stand there."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.users import Person

ROOT = Path(__file__).resolve().parent.parent.parent
BLOCKS = re.findall(r"^```sh\n(.*?)^```$", (ROOT / "README.md").read_text(), re.M | re.S)


def run_blocks(someone: Person, image: str) -> str:
    """Every block but the two commands, in one shell, in a directory that has `.venv`; the standard
    output.
    """
    checkout = someone.home / "eos"
    checkout.mkdir()
    (checkout / ".venv").symlink_to(someone.prefix)
    script = "set -eu\n" + "\n".join(BLOCKS[1:])
    code, out, err = someone.run(
        ["/bin/sh", "-c", script], cwd=checkout, env=someone.environment(IMAGE=image)
    )
    assert code == 0, f"{out}\n{err}"
    return out


def check(out: str) -> None:
    assert '"content":"hello\\nworld"' in out
    assert "\nhello\nworld\nmore\n" in out
    assert '"state":"stopped"' in out


def test_the_two_commands_are_targets_of_the_makefile() -> None:
    assert BLOCKS[0].split() == ["make", "demo", "make", "test"]
    makefile = (ROOT / "Makefile").read_text()
    assert re.search(r"^demo:", makefile, re.M)
    assert re.search(r"^test:", makefile, re.M)


@pytest.mark.needs("overlay")
def test_the_blocks_run_on_the_machine_itself(person: Callable[[str], Person]) -> None:
    check(run_blocks(person("root"), "host"))


@pytest.mark.needs("uid", "userns")
def test_the_blocks_run_as_an_ordinary_user(person: Callable[[str], Person]) -> None:
    check(run_blocks(person("ordinary"), "host"))


@pytest.mark.needs("dockerd")
@pytest.mark.parametrize("name", ["debian", pytest.param("busybox", marks=pytest.mark.soak)])
def test_the_blocks_run_in_docker(
    person: Callable[[str], Person], image: Callable[[str], str], name: str
) -> None:
    check(run_blocks(person("root"), image(name)))
