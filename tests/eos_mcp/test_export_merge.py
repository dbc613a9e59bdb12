"""`on_conflict: merge` of a dir export: edited texts are merged with the sandbox's, the rest is refused."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from eos_agent.wire.protocol import OperationError
from eos_mcp.export import facts
from eos_mcp.export.rules import ExportRules
from tests.eos_mcp.export_runs import run, shape
from tests.export_streams import directory, file, gone, made_by_digests, symlink

SIXTY = b"".join(b"line %d\n" % n for n in range(1, 61))


def edited(**lines: str) -> bytes:
    """SIXTY with other lines: edited(line5="...")."""
    text = SIXTY
    for line, new in lines.items():
        text = text.replace(line.replace("line", "line ").encode() + b"\n", new.encode() + b"\n")
    return text


class Workspace:
    """A workspace, and the copy that a sandbox was made from."""

    def __init__(self, root: Path) -> None:
        self.root, self.path, self.base = root, root / "w", root / "base"
        self.path.mkdir()
        for name in ("text", "other", "d/in"):
            self.write(name, SIXTY)
        self.write("binary", b"\0\1\2")
        (self.path / "link").symlink_to("text")
        shutil.copytree(self.path, self.base, symlinks=True)

    def write(self, name: str, data: bytes) -> None:
        (self.path / name).parent.mkdir(exist_ok=True)
        (self.path / name).write_bytes(data)

    def export(self, *entries: Any, dry_run: bool = False, content_of: Any = None) -> dict[str, Any]:
        record = facts.place_of(str(self.root / "records"), "eos-1", str(self.path))
        rules = ExportRules("auto", "merge", False, str(self.path), "fresh", record)
        stream = made_by_digests(*entries)
        return run(
            stream, self.path, base=str(self.base), rules=rules, dry_run=dry_run, content_of=content_of
        )

    def refused(self, *entries: Any) -> dict[str, str]:
        """Return the conflicts of an export, which a dry run foretells; nothing is written."""
        before = shape(self.path)
        foretold = self.export(*entries, dry_run=True)
        with pytest.raises(OperationError) as caught:
            self.export(*entries)
        assert caught.value.details["reason"] == "export_conflict" and shape(self.path) == before
        assert foretold["would_conflict"] == caught.value.details["conflicts"]
        return {row["path"]: row["differs"] for row in caught.value.details["conflicts"]}


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    return Workspace(tmp_path)


def test_texts_that_both_edited_are_merged_and_the_dry_run_says_so(workspace: Workspace) -> None:
    workspace.write("text", edited(line40="of the person"))
    workspace.write("d/in", edited(line5="of both"))
    entries = (
        directory(b"d"),
        file(b"d/in", edited(line5="of both")),
        file(b"other", edited(line5="of the sandbox")),
        file(b"text", edited(line5="of the sandbox"), 0o755),
    )
    before = shape(workspace.path)
    dry = workspace.export(*entries, dry_run=True)
    assert dry["merged"] == ["text"] and dry["would_conflict"] == [] and shape(workspace.path) == before
    done = workspace.export(*entries)
    assert (done["merged"], done["merged_count"], done["files_written"]) == (["text"], 1, 2)
    both = edited(line5="of the sandbox", line40="of the person")
    after = shape(workspace.path)
    assert after[b"text"] == ("f", 0o755, both) and after[b"other"][2] == edited(line5="of the sandbox")
    again = workspace.export(*entries)  # it has the sandbox's changes already
    assert "merged" not in again and shape(workspace.path) == after


@pytest.mark.parametrize("name", ["text", "binary", "link", "deleted", "gone", "kind"])
def test_what_does_not_merge_is_refused_with_all_else(workspace: Workspace, name: str) -> None:
    workspace.write("other", edited(line40="of the person"))
    mergeable = file(b"other", edited(line5="of the sandbox"))
    if name == "text":
        workspace.write("text", edited(line5="of the person"))
        entry, differs = file(b"text", edited(line5="of the sandbox")), {"text": "edited"}
    elif name == "binary":
        workspace.write("binary", b"\0\1\2\3")
        entry, differs = file(b"binary", b"\0\1"), {"binary": "edited"}
    elif name == "link":
        (workspace.path / "link").unlink()
        (workspace.path / "link").symlink_to("other")
        entry, differs = symlink(b"link", b"binary"), {"link": "edited"}
    elif name == "deleted":
        (workspace.path / "text").unlink()
        entry, differs = file(b"text", edited(line5="of the sandbox")), {"text": "deleted"}
    elif name == "gone":
        workspace.write("text", edited(line5="of the person"))
        entry, differs = gone(b"text"), {"text": "edited"}
    else:
        workspace.write("text", edited(line5="of the person"))
        entry, differs = directory(b"text"), {"text": "edited"}
    entries = sorted((mergeable, entry), key=lambda one: one[0].path)
    assert workspace.refused(*entries) == differs


def test_modes_are_merged_with_those_of_the_copy(workspace: Workspace) -> None:
    os.chmod(workspace.path / "text", 0o744)
    os.chmod(workspace.path / "d", 0o775)
    os.chmod(workspace.path / "other", 0o744)
    workspace.export(
        directory(b"d"), file(b"other", SIXTY, 0o744), file(b"text", edited(line5="of the sandbox"))
    )
    after = shape(workspace.path)
    assert after[b"text"] == ("f", 0o744, edited(line5="of the sandbox")) and after[b"d"][1] == 0o775
    assert after[b"other"][1] == 0o744
    os.chmod(workspace.path / "binary", 0o744)
    assert workspace.refused(file(b"binary", b"\0\1\2", 0o755)) == {"binary": "mode"}


def test_the_base_of_a_file_that_an_export_wrote_is_what_it_wrote(workspace: Workspace) -> None:
    first = edited(line5="of the sandbox")
    workspace.export(file(b"text", first))
    workspace.write("text", edited(line5="of the sandbox", line40="of the person"))
    later = file(b"text", edited(line5="again", line20="later"))
    assert workspace.refused(later) == {"text": "edited"}  # the store has lost it
    asked: list[bytes] = []

    def content(path: bytes, _digest: bytes) -> bytes:
        asked.append(path)
        return first

    done = workspace.export(later, content_of=content)
    assert done["merged"] == ["text"] and asked == [b"text"]
    both = edited(line5="again", line20="later", line40="of the person")
    assert (workspace.path / "text").read_bytes() == both
    # the merge is the user's still, not what the export wrote: with fail it is in the way
    assert workspace.refused(file(b"text", SIXTY + b"x\n")) == {"text": "edited"}


def test_a_file_that_changes_while_it_is_merged_is_put_back(workspace: Workspace) -> None:
    workspace.write("text", edited(line40="of the person"))
    record = facts.place_of(str(workspace.root / "records"), "eos-1", str(workspace.path))
    rules = ExportRules("auto", "merge", False, str(workspace.path), "fresh", record)
    latest = edited(line50="at the last moment")

    def step(name: str) -> None:
        if name == "export.ready":
            workspace.write("text", latest)

    stream = made_by_digests(file(b"text", edited(line5="of the sandbox")))

    with pytest.raises(OperationError) as caught:
        run(stream, workspace.path, base=str(workspace.base), rules=rules, step=step)
    assert caught.value.details["reason"] == "export_conflict"
    assert (workspace.path / "text").read_bytes() == latest
