"""A process is killed at every durable act of a store's life; what it leaves must hold every promise.

The acts are not written down: a recording run finds them. Named steps come from the store itself; beside them
every system call that changes a name or syncs is one, seen by wrapping it in the child, so that a rename
nobody named is found too.
"""

from __future__ import annotations

import ast
import os
from pathlib import Path

import pytest

import layerstack
from tests import in_namespace
from tests.layerstack.kill_harness import (
    CUT_TWICE,
    SOAK,
    STRIDE,
    kill_everywhere,
    kill_the_open,
)


@pytest.mark.needs("overlay", "root")
def test_a_process_killed_while_it_opens_what_a_killed_one_left_loses_nothing(short_dir: str) -> None:
    assert in_namespace.call("trusted", kill_the_open, short_dir, 1 if SOAK else 12) > len(CUT_TWICE)


LAYERSTACK = layerstack.__path__[0]
DOCUMENT_STEPS = ("write", "fsync", "rename", "fsync_dir")
"""Of a file that `fsync.replacing` writes under a name."""
_OF_CHECKPOINTS = {
    *(f"checkpoint.{step}" for step in ("record", "move", "sync", "remove", "combine", "combined")),
    *(f"checkpoint.session.json.{step}" for step in DOCUMENT_STEPS),
}
"""`test_checkpoints` kills at each of these, and `test_checkpoint_power_cut` cuts the power."""
NOT_PASSED = {"trusted": _OF_CHECKPOINTS, "user": {"seal.unredirect", *_OF_CHECKPOINTS}}
"""Named steps that the history does not pass: a directory is renamed by a redirect only where trusted xattrs
are, and checkpoints have histories of their own.
"""


def named_steps() -> set[str]:
    """Every name that the sources give to a step; one that is made up at run time as far as it is written,
    with a `*` behind.
    """
    found: set[str] = set()
    for path in sorted(Path(LAYERSTACK).rglob("*.py")):
        with open(path, encoding="utf-8") as source:
            calls = [node for node in ast.walk(ast.parse(source.read())) if isinstance(node, ast.Call)]
        for call in calls:
            name = (
                call.func.attr
                if isinstance(call.func, ast.Attribute)
                else call.func.id
                if isinstance(call.func, ast.Name)
                else ""
            )
            given = next((word.value for word in call.keywords if word.arg == "name"), None)
            if name == "step" and path.name != "fsync.py" and call.args:
                step = call.args[0]
                start = step.values[0] if isinstance(step, ast.JoinedStr) else step
                if isinstance(start, ast.Constant):
                    found.add(str(start.value) + ("*" if start is not step else ""))
            elif name in ("write", "write_file") and isinstance(given, ast.Constant):
                found.update(f"{given.value!s}.{step}" for step in DOCUMENT_STEPS)
    return found


def _check_names(namespace: str, acts: list[str]) -> None:
    """The history passes every step that the library names: one that nobody passes is a step that nobody
    tests.
    """
    passed = set(acts)
    missing = {
        s
        for s in named_steps()
        if not (any(a.startswith(s[:-1]) for a in passed) if s.endswith("*") else s in passed)
    }
    assert missing == NOT_PASSED[namespace], f"{sorted(missing ^ NOT_PASSED[namespace])}"
    assert len(named_steps()) > 60, "the names are not found any more"


@pytest.mark.timeout(7200 if SOAK else 180)
@pytest.mark.needs("overlay", "root")
def test_a_process_killed_at_any_durable_act_loses_nothing_as_root(short_dir: str) -> None:
    _check_names(
        "trusted", in_namespace.call("trusted", kill_everywhere, "trusted", short_dir, STRIDE, which="last")
    )


@pytest.mark.timeout(7200 if SOAK else 180)
@pytest.mark.needs("userns")
def test_a_process_killed_at_any_durable_act_loses_nothing_in_a_user_namespace(short_dir: str) -> None:
    os.chmod(short_dir, 0o777)

    def kill() -> list[str]:
        return kill_everywhere(
            "user", short_dir, STRIDE if SOAK else 2 * STRIDE, which="first", every=1 if SOAK else 5
        )

    _check_names("user", in_namespace.call("user", kill))
