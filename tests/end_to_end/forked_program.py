"""Run one of the three command-line programs in a fork of this process, which spares the interpreter's start.

A run of the tests calls them two thousand times. The programs as processes of their own are the subject of
tests/eos_mcp/test_cli.py, and of every call by an ordinary user.
"""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests import in_namespace
from tests.users import Person

FORKED = {
    f"eos_mcp.cli.sandbox_{name}": importlib.import_module(f"eos_mcp.cli.sandbox_{name}")
    for name in ("manager", "runtime", "observability")
}
START = ("eos_mcp.cli.sandbox_manager", ("list_sandboxes",))
"""A command that starts a gateway where none runs."""
STOP = ("eos_mcp.cli.eos", ("gateway", "stop"))
"""The command at the end of each gateway of a test."""
FORKED[STOP[0]] = importlib.import_module(STOP[0])
importlib.import_module("eos_mcp.cli.gateway_control")


def _main(module: str, words: Sequence[str], env: Mapping[str, str], cwd: Path, out: int, err: int) -> int:
    """Run the program's own main with its words, environment, directory and streams; in the child."""
    os.environ.clear()
    os.environ.update(env)
    os.chdir(cwd)
    none = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((none, 0), (out, 1), (err, 2)):
        os.dup2(source, target)
    sys.stdin, sys.stdout, sys.stderr = (
        os.fdopen(number, mode, encoding="utf-8", closefd=False)
        for number, mode in ((0, "r"), (1, "w"), (2, "w"))
    )
    try:
        return int(FORKED[module].main(words))
    finally:
        sys.stdout.flush()
        sys.stderr.flush()


def run(
    argv: Sequence[str], words: Sequence[str], module: str, env: Mapping[str, str], cwd: Path
) -> subprocess.CompletedProcess[str]:
    """Run a program; return what it printed and its exit status. `argv`: the command line that would start
    it.
    """
    out, err = os.memfd_create("stdout"), os.memfd_create("stderr")
    try:
        code = in_namespace.call(None, _main, module, words, env, cwd, out, err)
        texts = [os.pread(fd, os.fstat(fd).st_size, 0).decode() for fd in (out, err)]
    finally:
        os.close(out)
        os.close(err)
    return subprocess.CompletedProcess(list(argv), code, *texts)


def run_for(
    person: Person, module: str, words: Sequence[str], env: Mapping[str, str], *, timeout_s: float = 120
) -> subprocess.CompletedProcess[str]:
    """Run a program as the person: in a fork where that is root with this environment, else as a process."""
    argv = [person.python, "-m", module, *words]
    ours = person.uid is None and person.prefix == Path(sys.prefix)
    if ours and module in FORKED and (module != STOP[0] or tuple(words) == STOP[1]):
        return run(argv, words, module, env, person.home)
    code, out, err = person.run(argv, env=dict(env), timeout_s=timeout_s)
    return subprocess.CompletedProcess(argv, code, out, err)
