"""Choose the pid 1 of a test's sessions: the native one (init.c) if there is a compiler, as in a bundle, or
Python's.

A module whose tests shall pass with both says `from tests.native import both as both`.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import shutil
import tempfile
from collections.abc import Generator
from pathlib import Path

import pytest

from agent_image import native_init
from eos_agent.init import native
from tests import probes

SOURCE = Path(native.__file__).with_name(native_init.SOURCE)
TEXT = SOURCE.read_text()
"""Source of init.c, read at import: the users that tests become may not be able to read the checkout."""
STARTER = (
    "import sys; from eos_agent.init import native as init_program; path = sys.argv.pop(1); "
    "init_program.find = lambda: path or None; "
    "from eos_agent.__main__ import main; sys.exit(main(sys.argv[1:]))"
)
"""Python code of an agent whose sessions get `program()`, which is its first argument."""

_chosen = ["native"]
_left_out = [""]


def program() -> str | None:
    """Return the chosen native program; None for Python's, and without a compiler."""
    return compiled(_left_out[-1]) if _chosen[-1] == "native" else None


@functools.cache
def compiled(left_out: str = "") -> str | None:
    """Compile init.c, once in each process, to a program that every user may execute. left_out: text that is
    removed from the source.
    """
    folder = tempfile.mkdtemp(prefix="native-", dir=probes.scratch_root())
    atexit.register(_remove, folder, os.getpid())
    os.chmod(folder, 0o755)
    assert left_out in TEXT, left_out
    source = Path(folder, SOURCE.name)
    source.write_text(TEXT.replace(left_out, "") if left_out else TEXT)
    target = os.path.join(folder, native_init.NAME)
    return target if native_init.make(str(source), target) else None


def _remove(folder: str, pid: int) -> None:
    if os.getpid() == pid:
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def chosen(kind: str, left_out: str = "") -> Generator[str]:
    """Use pid 1 of this kind in the block. left_out: text of init.c without which its program is compiled."""
    _chosen.append(kind)
    _left_out.append(left_out)
    try:
        yield kind
    finally:
        _chosen.pop()
        _left_out.pop()


@pytest.fixture(
    scope="module",
    autouse=True,
    name="init",
    params=[pytest.param("native", marks=pytest.mark.needs("cc")), "python"],
)
def both(request: pytest.FixtureRequest) -> Generator[str]:
    """Run each test of the module with both."""
    with chosen(str(request.param)):
        yield str(request.param)
