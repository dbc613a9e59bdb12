"""file_list with a glob: which files, in pages that make up the whole, and what is left out."""

from __future__ import annotations

import os
from typing import Any

import pytest

from eos_agent.files.glob_list import PAGE_BYTES, cursor_at

from .agent_process import Agent, Failed
from .child_calls import FileTree


class GlobTree(FileTree):
    def page(self, glob: str, **args: Any) -> dict[str, Any]:
        reply = self.ask("glob", {"path": "", "glob": glob, "include_ignored": False, **args})
        assert "result" in reply, reply
        found: dict[str, Any] = reply["result"]
        return found

    def paths(self, glob: str, **args: Any) -> list[str]:
        """Every path, over all pages."""
        found: list[str] = []
        cursor: dict[str, str] = {}
        while True:
            page = self.page(glob, **args, **cursor)
            assert page["truncated"] == ("next" in page) == ("stopped" in page)
            found += [entry["path"] for entry in page["entries"]]
            if not page["truncated"]:
                return found
            cursor = {"cursor": page["next"]}

    def refused(self, **args: Any) -> dict[str, Any]:
        error: dict[str, Any] = self.ask("glob", {"path": "", **args})["error"]
        return error


@pytest.fixture
def tree(short_dir: str) -> GlobTree:
    return GlobTree(short_dir)


def test_files_at_any_depth_are_listed_with_kind_and_size_in_byte_order_of_names(tree: GlobTree) -> None:
    for path in ("b.py", "a/z.py", "a/deep/er/x.py", "a-b/y.py", "a/readme", "é.py"):
        tree.put(path, "12345")
    os.symlink("b.py", os.path.join(tree.root, "link.py"))
    os.mkfifo(os.path.join(tree.root, "pipe.py"))
    os.mkdir(os.path.join(tree.root, "empty.py"))
    assert tree.page("**/*.py")["entries"] == [
        {"path": "a/deep/er/x.py", "kind": "file", "size": 5},
        {"path": "a/z.py", "kind": "file", "size": 5},
        {"path": "a-b/y.py", "kind": "file", "size": 5},
        {"path": "b.py", "kind": "file", "size": 5},
        {"path": "link.py", "kind": "symlink", "size": None},
        {"path": "pipe.py", "kind": "other", "size": None},
        {"path": "é.py", "kind": "file", "size": 5},
    ]
    assert tree.paths("*.py", path="a") == ["a/deep/er/x.py", "a/z.py"]
    assert tree.paths("deep/**", path="a") == tree.paths("a/deep/**") == ["a/deep/er/x.py"]
    assert tree.paths("*.{md,rst}") == []
    assert tree.paths("!*.py") == ["a/readme"]


def test_what_gitignore_excludes_is_left_out_and_counted_unless_it_is_asked_for(tree: GlobTree) -> None:
    tree.put(".gitignore", "*.log\n/build/\n")
    tree.put("sub/.gitignore", "!kept.log\n")
    for path in ("x.log", "build/b.log", "build/c.log", "sub/kept.log", "sub/y.log", ".git/z", "a.py"):
        tree.put(path, "")
    page = tree.page("*.log")
    assert [entry["path"] for entry in page["entries"]] == ["sub/kept.log"]
    assert page["ignored_left_out"] == 3  # x.log, sub/y.log, and the directory build
    page = tree.page("*.log", include_ignored=True)
    assert [entry["path"] for entry in page["entries"]] == [
        "build/b.log",
        "build/c.log",
        "sub/kept.log",
        "sub/y.log",
        "x.log",
    ]
    assert page["ignored_left_out"] == 0
    assert tree.paths("*.log", path="build") == ["build/b.log", "build/c.log"]
    assert tree.paths("*", path=".git") == [".git/z"]


@pytest.mark.parametrize("limit", [1, 4])
def test_pages_are_the_whole_in_order_without_doubles(tree: GlobTree, limit: int) -> None:
    names = [f"{a}/{b}.c" for a in ("a", "a.b", "a-b/d") for b in ("x", "y.y")] + ["a.c", "m.c"]
    for name in [*names, "a/x.h", "m.h"]:
        tree.put(name, "")
    assert tree.paths("*.c", limit=limit) == tree.paths("*.c")
    assert sorted(tree.paths("*.c", limit=limit)) == sorted(names)
    assert len(tree.page("*.c", limit=limit)["entries"]) <= limit


def test_a_page_goes_on_after_its_last_file_was_deleted_or_became_a_directory(tree: GlobTree) -> None:
    for name in ("a", "b", "c", "d"):
        tree.put(name, "")
    cursor = tree.page("*", limit=1)["next"]
    os.unlink(os.path.join(tree.root, "b"))
    assert [entry["path"] for entry in tree.page("*", cursor=cursor)["entries"]] == ["c", "d"]
    tree.put("b/inner", "")
    assert [entry["path"] for entry in tree.page("*", cursor=cursor)["entries"]] == ["b/inner", "c", "d"]


def test_a_page_is_bounded_in_bytes(tree: GlobTree) -> None:
    for n in range(600):
        tree.put(f"{n:03}-" + "p" * 240, "")
    page = tree.page("*")
    assert page["stopped"] == "bytes"
    assert sum(len(entry["path"]) for entry in page["entries"]) < PAGE_BYTES
    assert len(tree.paths("*")) == 600


def test_a_name_that_is_not_utf8_comes_with_its_bytes_and_can_begin_a_page(tree: GlobTree) -> None:
    for name in (b"a", b"caf\xe9/x", b"caf\xe9/y"):
        tree.put(os.fsdecode(name), "")
    page = tree.page("*", limit=2)
    assert (page["entries"][1]["path"], page["entries"][1]["path_b64"]) == ("caf\ufffd/x", "Y2Fm6S94")
    (entry,) = tree.page("*", cursor=page["next"])["entries"]
    assert entry["path_b64"] == "Y2Fm6S95"


def test_a_walk_that_runs_out_of_time_keeps_what_it_found_and_goes_on_there(tree: GlobTree) -> None:
    for n in range(300):
        tree.put(f"{n % 10}/{n:04}", "")
    whole, found, pages = tree.paths("*"), list[str](), 0
    cursor: dict[str, str] = {}
    while pages < 10_000:
        reply = tree.ask("glob", {"path": "", "glob": "*", "limit_s": 0.004, **cursor})
        pages += 1
        if "error" in reply:  # not one step in this time
            assert reply["error"]["details"]["reason"] == "search_too_slow"
            continue
        found += [entry["path"] for entry in reply["result"]["entries"]]
        if not reply["result"]["truncated"]:
            break
        assert reply["result"]["stopped"] == "time"
        cursor = {"cursor": reply["result"]["next"]}
    assert found == whole


def test_a_bad_glob_cursor_or_path_is_refused_by_name(tree: GlobTree) -> None:
    tree.put("a", "")
    for glob in ("[", "*.{py,[}", "a\nb", "x" * 2000, "{a,b}" * 20):
        details = tree.refused(glob=glob)["details"]
        assert (details["argument"], details["reason"]) == ("glob", "invalid_pattern")
    for cursor in ("zzz", "YQ==", "\u00e9", cursor_at("a\0b")):
        details = tree.refused(glob="*", cursor=cursor)["details"]
        assert (details["argument"], details["reason"]) == ("cursor", "invalid_cursor")
    assert tree.refused(glob="*", path="a")["details"]["reason"] == "not_a_directory"
    assert tree.refused(glob="*", path="none")["kind"] == "not_found"
    assert tree.refused(glob="*", path="..")["details"]["reason"] == "invalid_path"


@pytest.mark.needs("overlay")
def test_the_head_and_a_session_are_listed_alike_and_apart(shared_agent: Agent) -> None:
    before, session = shared_agent.version(), shared_agent.session()
    try:
        shared_agent.run("mkdir -p new/deep && echo x > new/deep/glob.py", session)

        def listed(**args: Any) -> list[str]:
            answer = shared_agent.call("file_list", glob="**/*.py", **args)
            return [entry["path"] for entry in answer["entries"]]

        head = listed()
        assert "src/app.py" in head and "new/deep/glob.py" not in head
        assert listed(workspace_session_id=session) == sorted([*head, "new/deep/glob.py"])
        assert shared_agent.call("file_list", glob="")["entries"] == shared_agent.call("file_list")["entries"]
        assert len(shared_agent.call("file_list", glob="*", limit=1)["entries"]) == 1
        old = shared_agent.call("file_list", glob="**/*.py", version=before)
        assert ([entry["path"] for entry in old["entries"]], old["version"]) == (head, before)
        with pytest.raises(Failed) as caught:
            listed(workspace_session_id=session, version=before)
        assert caught.value.details["reason"] == "one_of_two"
        with pytest.raises(Failed) as caught:
            shared_agent.call("file_list", glob="*", workspace_session_id="none")
        assert caught.value.kind == "not_found"
    finally:
        shared_agent.call("destroy_workspace_session", workspace_session_id=session)
    assert shared_agent.version() == before
