"""Run the tests that should notice a mutant, against a copy of the packages that has it. The checkout itself
is never changed.

The tests of a mutant must pass on the unchanged copy, else there is no verdict; then they must fail on the
copy with the one change.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator, Iterable
from typing import NamedTuple

from tests.mutants.table import Mutant

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
COPIED = (
    "layerstack",
    "agent_image",
    "eos_mcp",
    "tests",
    "config",
    "docs",
    "bin",
    "pyproject.toml",
    "README.md",
)
TIMEOUT_S = 1800
PASSED, FAILED = 0, 1
"""Exit codes of pytest: all passed, some failed. Any other code gives no verdict."""


class Outcome(NamedTuple):
    """The result of one mutant."""

    mutant: Mutant
    noticed: bool
    seconds: float
    output: str
    """The end of pytest's output."""


class NoVerdict(Exception):
    """Error: the tests could not be run, or fail on the unchanged library."""


class Copy:
    """Copy of the packages and the tests at `folder`, for runs with one mutant at a time."""

    def __init__(self, folder: str) -> None:
        self.folder, self.root = folder, os.path.join(folder, "copy")
        self._sound: set[tuple[str, ...]] = set()
        ignored = shutil.ignore_patterns("__pycache__", "*.egg-info", ".hypothesis")
        for name in COPIED:
            source, target = os.path.join(ROOT, name), os.path.join(self.root, name)
            if os.path.isdir(source):
                shutil.copytree(source, target, symlinks=True, ignore=ignored)
            elif os.path.exists(source):
                os.makedirs(self.root, exist_ok=True)
                shutil.copy2(source, target)

    def pytest(self, tests: Iterable[str], *, soak: bool = False) -> tuple[int, str]:
        """(exit code, what was printed) of the tests in the copy, with no compiled byte code of another
        state.
        """
        scratch = tempfile.mkdtemp(prefix="t", dir=self.folder)
        os.chmod(scratch, 0o1777)  # some of the tests become an ordinary user
        env = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "EOS_"))}
        env |= {
            "PYTHONPATH": os.pathsep.join((self.root, os.path.join(self.root, "agent_image"))),
            "PYTHONDONTWRITEBYTECODE": "1",
            "EOS_TEST_DIR": scratch,
        }
        options = [
            "-x",
            "-q",
            "-p",
            "no:cacheprovider",
            "-p",
            "no:xdist",
            f"--timeout={TIMEOUT_S}",
            "-o",
            "faulthandler_timeout=0",
        ]
        argv = [sys.executable, "-m", "pytest", *options, *(["--soak"] if soak else []), *tests]
        running = subprocess.Popen(
            argv,
            cwd=self.root,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            printed, _ = running.communicate(timeout=TIMEOUT_S)
        except BaseException:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(running.pid, signal.SIGKILL)
            running.wait()
            raise
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
        return running.returncode, printed.decode(errors="replace")

    def check_sound(self, tests: tuple[str, ...], *, soak: bool) -> None:
        """Check that the tests pass against this copy without a mutant. Raises NoVerdict."""
        if tests in self._sound:
            return
        code, printed = self.pytest(tests, soak=soak)
        if code != PASSED or " passed" not in printed or " skipped" in printed:
            raise NoVerdict(f"{' '.join(tests)} without a mutant: exit code {code}\n{printed[-4000:]}")
        self._sound.add(tests)

    @contextlib.contextmanager
    def with_mutant(self, mutant: Mutant) -> Generator[None]:
        """Apply the one change for the length of the block."""
        path = os.path.join(self.root, mutant.file)
        with open(path, encoding="utf-8") as file:
            text = file.read()
        with open(path, "w", encoding="utf-8") as file:
            file.write(mutant.applied(text))
        try:
            yield
        finally:
            with open(path, "w", encoding="utf-8") as file:
                file.write(text)

    def run(self, mutant: Mutant) -> Outcome:
        """Raises NoVerdict: the tests fail without it, or end otherwise than by passing or failing."""
        self.check_sound(mutant.noticed_by, soak=mutant.soak)
        began = time.monotonic()
        with self.with_mutant(mutant):
            code, printed = self.pytest(mutant.noticed_by, soak=mutant.soak)
        if code not in (PASSED, FAILED):
            raise NoVerdict(f"{mutant.name}: exit code {code} of pytest\n{printed[-4000:]}")
        return Outcome(mutant, code == FAILED, time.monotonic() - began, printed[-4000:])


@contextlib.contextmanager
def copied() -> Generator[Copy]:
    """Make a copy that is removed afterwards. Its path is short, for unix sockets of tests below it."""
    folder = tempfile.mkdtemp(prefix="eos-mutant-", dir=os.environ.get("EOS_TEST_DIR") or None)
    os.chmod(folder, 0o755)
    try:
        yield Copy(folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
