"""Every program of `examples/` runs, and prints what its text promises."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.users import Person

EXAMPLES = Path(__file__).resolve().parent.parent.parent / "examples"
PROMISED = {
    "one_session.py": (
        "the session sees: ['hello', 'world']",
        "the head still has: ['hello']",
        "now the head has: ['hello', 'world']",
        "untouched: ['hello']",
    ),
    "two_writers.py": (
        "red was published",
        "blue was rejected",
        "the head has: red",
        "published first by red",
        "the draft still has: blue",
    ),
    "export.py": ("written: ['src/new.txt'] deleted: 1", "a second export writes 0 files", "src/new.txt"),
    "mcp_client.py": ("the command printed ['1', '2', '3']",),
}


def test_no_example_is_forgotten() -> None:
    assert sorted(PROMISED) == sorted(path.name for path in EXAMPLES.glob("*.py"))


@pytest.mark.needs("overlay")
@pytest.mark.parametrize("name", sorted(PROMISED))
def test_an_example_does_what_it_promises(person: Callable[[str], Person], name: str) -> None:
    someone = person("root")
    code, out, err = someone.run([someone.python, str(EXAMPLES / name)])
    assert code == 0, f"{out}\n{err}"
    for text in PROMISED[name]:
        assert text in out, out
