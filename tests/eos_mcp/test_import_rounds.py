"""A workspace directory that is read for an import: by lstat alone where nothing changed, again where it
changes at the same time, and as little as the record allows.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from eos_agent.wire.protocol import OperationError
from eos_mcp.config.model import Export
from eos_mcp.export.operation import Exports, guards
from eos_mcp.imports import copied
from eos_mcp.imports.directory_changes import DirectoryChanges
from eos_mcp.imports.importer import ROUNDS, Importer, ImportRequest, checked_paths
from eos_mcp.workspace import base
from eos_mcp.workspace.git_directories import Borrowed
from eos_mcp.workspace.tree_index import look
from layerstack.kernel.base_xattrs import ALL

OLD = (1_600_000_000, 1_600_000_000)


class Copied:
    """A workspace that was copied."""

    def __init__(self, root: Path) -> None:
        self.root, self.workspace, self.cache = root, root / "w", root / "cache"
        for name in ("a", "d/b", "d/c"):
            self.write(name, f"{name}\n")
        self.tree = base.prepare(str(self.workspace), str(self.cache))
        self.records = root / "records"
        index = base.index_of(str(self.workspace), str(self.cache))
        copied.note_copy(str(self.records / "eos-1"), index)

    def write(self, name: str, text: str) -> None:
        path = self.workspace / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        os.utime(path, OLD)

    def record(self) -> copied.CopiedRecord:
        return copied.load(str(self.records / "eos-1"), self.tree.root_hash, self.tree.source)

    def changes(self, *paths: str) -> DirectoryChanges:
        return DirectoryChanges(str(self.workspace), self.record(), ALL, paths, keep=False)

    def round(self, changes: DirectoryChanges) -> list[tuple[str, str]]:
        """Read one round; return path and kind of its rows."""
        rows = [
            row for batch in changes.rows(Borrowed(look(str(self.workspace)), {}, {}, ())) for row in batch
        ]
        return [(base64.b64decode(row["path"]).decode(), row.get("kind", "more")) for row in rows]


@pytest.fixture
def at(tmp_path: Path) -> Copied:
    return Copied(tmp_path)


def test_what_was_not_changed_is_not_read_and_what_was_touched_is_no_change(at: Copied) -> None:
    record = at.record()
    later = record.index._replace(looked_ns=record.index.looked_ns + 10**10)  # the files are old by then
    record.index = later
    changes = DirectoryChanges(str(at.workspace), record, ALL, (), keep=False)
    assert changes.candidates(look(str(at.workspace))) == ([], [])
    os.utime(at.workspace / "a", (0, 0))
    assert changes.candidates(look(str(at.workspace))) == (["a"], [])
    assert at.round(changes) == [] and changes.changes == {} and changes.new["a"] is not None
    assert changes.candidates(look(str(at.workspace))) == ([], [])


def test_a_round_withdraws_what_is_as_before_again(at: Copied) -> None:
    changes = at.changes()
    at.write("a", "edited\n")
    shutil.rmtree(at.workspace / "d")
    at.write("new", "x\n")
    assert sorted(at.round(changes)) == [("a", "f"), ("d", "w"), ("new", "f")]
    assert changes.changes == {
        "a": "modified",
        "d": "deleted",
        "d/b": "deleted",
        "d/c": "deleted",
        "new": "added",
    }
    at.write("a", "a\n")
    at.write("d/b", "d/b\n")
    (at.workspace / "new").unlink()
    again = at.round(changes)
    assert ("a", "n") in again and ("d", "n") in again and ("new", "n") in again and ("d/c", "w") in again
    assert changes.changes == {"d/c": "deleted"}
    assert at.round(changes) == []


def test_only_the_named_paths_are_read(at: Copied) -> None:
    at.write("a", "edited\n")
    at.write("d/b", "edited\n")
    changes = at.changes("d")
    assert ("d/b", "f") in at.round(changes) and "a" not in changes.new
    workspace = str(at.workspace)
    assert checked_paths([f"{workspace}/d", "./a/", "x/../y"], workspace) == ("d", "a", "y")
    assert checked_paths(None, workspace) == checked_paths(["."], workspace) == ()
    for bad in ("", "..", "/etc", "a/../../b", "a\0", 5):
        with pytest.raises(OperationError) as caught:
            checked_paths([bad], workspace)
        assert caught.value.details["reason"] == "bad_argument"


class Recorder:
    """The requests that an import makes, with the answers of an agent that has nothing to say."""

    def __init__(self) -> None:
        self.steps: list[str] = []

    async def request(
        self, sandbox_id: str, op: str, args: Mapping[str, Any], *, request_id: str, timeout_s: float | None
    ) -> dict[str, Any]:
        json.dumps(args)
        self.steps.append(args["step"])
        publish = {"no_op": False}
        answers: dict[str, dict[str, Any]] = {
            "open": {"import_id": "1"},
            "publish": {"publish": publish, "layer_id": "L"},
        }
        return answers.get(args["step"], {})


def import_while(at: Copied, change: Callable[[int], None]) -> tuple[Recorder, dict[str, Any]]:
    """Import; `change(n)` is called after round n was read."""
    agent, read = Recorder(), list[str]()

    def progress(line: str) -> None:
        if line.startswith("read "):
            read.append(line)
            change(len(read))

    async def run(function: Callable[..., Any], *args: Any) -> Any:
        return function(*args)

    importer = Importer(
        agent,  # type: ignore[arg-type]
        run,
        str(at.records),
        str(at.root / "exports"),
        lambda _: None,
    )
    request = ImportRequest("eos-1", str(at.workspace), at.tree.root_hash, at.tree.source, ALL)
    return agent, asyncio.run(importer.run(request, "r", progress))


def test_a_directory_that_changes_is_read_again_and_at_most_five_times(at: Copied) -> None:
    at.write("a", "0\n")

    def settle(n: int) -> None:
        if n < ROUNDS:
            at.write("a", "x" * n + "\n")

    agent, done = import_while(at, settle)
    assert done["rounds"] == ROUNDS and agent.steps == ["open", *["put"] * ROUNDS, "publish", "discard"]
    assert at.record().of("a") == at.record().changed["a"]
    with pytest.raises(OperationError) as caught:
        import_while(at, lambda n: at.write("a", "y" * n + "\n"))
    assert caught.value.details["reason"] == "workspace_changing"
    assert caught.value.details["unstable"] == ["a"] and caught.value.details["retryable"]


def test_a_damaged_record_and_a_later_format_are_named(at: Copied) -> None:
    path = at.records / "eos-1" / "copied.json"
    for text in ("{", json.dumps({"format": 2})):
        path.write_text(text)
        with pytest.raises(OperationError) as caught:
            at.record()
        assert caught.value.details["reason"] == "import_record_unreadable"
        assert caught.value.details["path"] == str(path)
    path.unlink()
    (at.records / "eos-1" / "index").unlink()
    shutil.rmtree(at.tree.path)
    with pytest.raises(OperationError) as caught:
        at.record()
    assert caught.value.details["reason"] == "copy_unknown"


def test_an_import_and_an_export_of_one_sandbox_do_not_run_at_once(tmp_path: Path) -> None:
    async def both() -> str:
        exports = Exports(
            Export(),
            guards((), str(tmp_path / "registry.json"), str(tmp_path)),
            Recorder(),  # type: ignore[arg-type]
            lambda *_: None,
            str(tmp_path / "records"),
        )
        async with exports.alone("eos-1"), exports.alone("eos-2"):
            with pytest.raises(OperationError) as caught:
                async with exports.alone("eos-1"):
                    pass
        async with exports.alone("eos-1"):
            return str(caught.value.details["reason"])

    assert asyncio.run(both()) == "export_in_flight"
