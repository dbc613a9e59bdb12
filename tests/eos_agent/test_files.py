"""The file operations on a real directory, as the init does them inside the mount."""

from __future__ import annotations

import base64
import os
import signal
import stat
from typing import Any

import pytest

from eos_agent.files.mounted import perform_in_mount
from eos_agent.wire.protocol import OperationError
from layerstack.kernel import tempnames
from tests import in_namespace
from tests.native import both as both

from .plain_directory import Folder


class Tree(Folder):
    """A directory and the operations on it."""

    def do(self, name: str, data: bytes | None = None, **args: Any) -> dict[str, Any]:
        if name == "read":
            args = {"offset": 1, "limit": 2000, **args}
        return perform_in_mount(name, self.root, args, data)[0]

    def refused(self, name: str, data: bytes | None = None, **args: Any) -> OperationError:
        with pytest.raises(OperationError) as caught:
            self.do(name, data, **args)
        return caught.value


@pytest.fixture
def tree(short_dir: str) -> Tree:
    return Tree(short_dir)


def test_paths_are_relative_or_absolute_below_the_root_and_echoed_relative(tree: Tree) -> None:
    tree.put("a/b.txt", b"hi\n")
    for path in ("a/b.txt", "./a//b.txt", tree.at("a/b.txt"), " a/b.txt ", "a\\b.txt"):
        found = tree.do("read", path=path)
        assert (found["path"], found["content"]) == ("a/b.txt", "hi")


@pytest.mark.parametrize("path", ["", ".", "/etc/passwd", "a/../b", "..", "a\0b", "  "])
def test_paths_that_leave_the_root_or_name_nothing_are_refused(tree: Tree, path: str) -> None:
    for name in ("read", "write"):
        assert tree.refused(name, b"", path=path).kind == "invalid_request"


def test_odd_names_that_exist_are_taken_literally(tree: Tree) -> None:
    tree.put(" padded ", b"1")
    tree.put("back\\slash", b"2")
    tree.put("padded", b"3")
    assert tree.do("read", path=" padded ")["content"] == "1"
    assert tree.do("read", path="back\\slash")["content"] == "2"
    assert tree.do("read", path=" padded")["content"] == "3"


def test_a_name_that_is_no_utf8_is_reached_by_its_bytes(tree: Tree) -> None:
    raw = b"caf\xe9.txt"
    encoded = base64.b64encode(raw).decode()
    assert tree.do("write", b"x\n", path="", path_b64=encoded)["path_b64"] == encoded
    assert tree.do("list", path="")["entries"] == [
        {"name": "caf\ufffd.txt", "kind": "file", "size": 2, "path_b64": encoded}
    ]
    assert tree.do("read", path="", path_b64=encoded)["content"] == "x"


def test_a_missing_file_is_not_found(tree: Tree) -> None:
    for path in ("nope", "no/such/dir"):
        for name in ("read", "edit"):
            error = tree.refused(name, path=path, edits=[{"old_string": "a", "new_string": "b"}])
            assert (error.kind, error.details["path"], error.message) == (
                "not_found",
                path,
                f"file not found: {path}",
            )


def test_nothing_but_a_regular_file_is_read_or_replaced(tree: Tree) -> None:
    tree.put("dir/inner", b"")
    tree.put("file", b"")
    os.symlink("dir/inner", tree.at("link"))
    os.symlink("dir", tree.at("dirlink"))
    os.mkfifo(tree.at("pipe"))
    for path, kind in (
        ("dir", "Directory"),
        ("link", "Symlink"),
        ("pipe", "Other"),
        ("dirlink/inner", "Symlink"),
    ):
        for name in ("read", "write", "edit"):
            error = tree.refused(name, b"x", path=path, edits=[{"old_string": "a", "new_string": "b"}])
            assert error.kind == "invalid_request"
            assert f"not a regular file ({kind})" in error.message
    assert "dir/inner" in tree.refused("read", path="link").message
    assert tree.refused("write", b"", path="dirlink/new").details["target"] == "dir"
    assert tree.refused("write", b"", path="file/below").kind == "invalid_request"


def test_a_write_creates_parents_and_leaves_no_passing_name(tree: Tree) -> None:
    assert tree.do("write", b"one", path="a/b/c.txt") == {
        "type": "create",
        "path": "a/b/c.txt",
        "bytes_written": 3,
    }
    assert stat.S_IMODE(os.stat(tree.at("a/b")).st_mode) == 0o755
    assert stat.S_IMODE(os.stat(tree.at("a/b/c.txt")).st_mode) == 0o644
    assert tree.do("write", b"two!", path="a/b/c.txt") == {
        "type": "update",
        "path": "a/b/c.txt",
        "bytes_written": 4,
    }
    assert tree.get("a/b/c.txt") == b"two!"
    assert os.listdir(tree.at("a/b")) == ["c.txt"]


def test_what_is_left_of_a_write_that_was_killed_before_its_last_step_is_not_taken_for_a_file_of_the_user(
    tree: Tree,
) -> None:
    """The child dies at the rename: capturing leaves out what it leaves."""
    tree.put("f", b"old", 0o640)

    def die(*_args: Any, **_more: Any) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def write() -> None:
        os.rename = die
        tree.do("write", b"new", path="f")

    with pytest.raises(in_namespace.ChildDied) as died:
        in_namespace.call(None, write)
    assert died.value.signal == signal.SIGKILL
    (left,) = [name for name in os.listdir(tree.root) if name != "f"]
    assert tempnames.is_file(left, os.stat(tree.at(left)).st_mtime_ns) and not tempnames.is_file(
        left, os.stat(tree.at("f")).st_mtime_ns
    )
    assert tree.get("f") == b"old" and tree.get(left) == b"new"


def test_a_small_file_takes_the_place_of_a_big_one_whole(tree: Tree) -> None:
    tree.do("write", b"x" * 10_000_000, path="big")
    tree.do("write", b"y" * 1000, path="big")
    assert tree.get("big") == b"y" * 1000


@pytest.mark.needs("root")
def test_owners_and_modes_are_kept_and_new_files_belong_to_their_folder(tree: Tree) -> None:
    tree.put("theirs/run.sh", b"#!/bin/sh\n", 0o755)
    os.chown(tree.at("theirs"), 1001, 1002)
    os.chown(tree.at("theirs/run.sh"), 1003, 1004)
    tree.do("edit", path="theirs/run.sh", edits=[{"old_string": "sh\n", "new_string": "sh -e\n"}])
    found = os.stat(tree.at("theirs/run.sh"))
    assert (stat.S_IMODE(found.st_mode), found.st_uid, found.st_gid) == (0o755, 1003, 1004)
    tree.do("write", b"", path="theirs/new/file")
    for path in ("theirs/new", "theirs/new/file"):
        assert (os.stat(tree.at(path)).st_uid, os.stat(tree.at(path)).st_gid) == (1001, 1002)


def test_an_edit_keeps_bom_line_ends_and_mode(tree: Tree) -> None:
    tree.put("f", b"\xef\xbb\xbfone\r\ntwo\nthree\r\n", 0o755)
    found = tree.do("edit", path="f", edits=[{"old_string": "one", "new_string": "1"}])
    assert found == {"type": "edit", "path": "f", "edits_applied": 1, "replacements": 1, "bytes_written": 17}
    assert tree.get("f") == b"\xef\xbb\xbf1\r\ntwo\nthree\r\n"
    assert stat.S_IMODE(os.stat(tree.at("f")).st_mode) == 0o755


def test_a_bad_edit_leaves_the_file_untouched(tree: Tree) -> None:
    tree.put("f", b"abc")
    before = os.stat(tree.at("f"))
    edits = [{"old_string": "a", "new_string": "x"}, {"old_string": "nope", "new_string": ""}]
    assert tree.refused("edit", path="f", edits=edits).details["index"] == 1
    assert os.stat(tree.at("f")).st_ino == before.st_ino and tree.get("f") == b"abc"


def test_an_edit_of_4_mib_works_and_more_is_too_large(tree: Tree) -> None:
    tree.put("f", b"a" * (4 << 20))
    error = tree.refused(
        "edit", path="f", edits=[{"old_string": "a" * (4 << 20), "new_string": "b" * ((4 << 20) + 1)}]
    )
    assert "too large" in error.message
    tree.do("edit", path="f", edits=[{"old_string": "a", "new_string": "b", "replace_all": True}])
    assert tree.get("f") == b"b" * (4 << 20)
    tree.put("f", b"a" * ((4 << 20) + 1))
    assert (
        "too large" in tree.refused("edit", path="f", edits=[{"old_string": "a", "new_string": "b"}]).message
    )


def test_a_listing_is_one_level_by_name_bytes_and_cut_after_sorting(tree: Tree) -> None:
    for name in ("b", "a", "Z", "\u00e9"):
        tree.put(f"d/{name}", b"12")
    os.mkdir(tree.at("d/sub"))
    os.symlink("nowhere", tree.at("d/link"))
    os.mkfifo(tree.at("d/pipe"))
    found = tree.do("list", path="d")
    assert [entry["name"] for entry in found["entries"]] == ["Z", "a", "b", "link", "pipe", "sub", "\u00e9"]
    kinds = {entry["name"]: (entry["kind"], entry["size"]) for entry in found["entries"]}
    assert kinds["a"] == ("file", 2) and kinds["sub"] == ("directory", None)
    assert kinds["link"] == ("symlink", None) and kinds["pipe"] == ("other", None)
    cut = tree.do("list", path="d", limit=2)
    assert ([entry["name"] for entry in cut["entries"]], cut["truncated"]) == (["Z", "a"], True)
    assert tree.do("list", path="")["path"] == ""
    assert tree.refused("list", path="d/a").kind == "invalid_request"
    assert tree.refused("list", path="d/link").kind == "invalid_request"
    assert tree.refused("list", path="nope").kind == "not_found"
