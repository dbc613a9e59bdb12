"""file_stat, file_delete and file_move: inside a mount, on a plain directory, and of the head; and content
that is no UTF-8 text.
"""

from __future__ import annotations

import base64
import errno
import os
import random
import stat
from collections.abc import Callable
from typing import Any

import pytest

from eos_agent.files import mounted as files
from eos_agent.files import move as file_changes
from eos_agent.files import text
from eos_agent.files.mounted import perform_in_mount
from eos_agent.wire.protocol import OperationError

from .agent_process import Agent, Failed, refused
from .plain_directory import Folder


class Tree(Folder):
    """A directory and the operations on it."""

    def do(self, name: str, data: bytes | None = None, **args: Any) -> dict[str, Any]:
        defaults: dict[str, dict[str, Any]] = {
            "read": {"offset": 1, "limit": 2000},
            "delete": {"recursive": False},
            "move": {"overwrite": False},
        }
        return perform_in_mount(name, self.root, {**defaults.get(name, {}), **args}, data)[0]

    def move(self, source: str, target: str, **args: Any) -> dict[str, Any]:
        given: dict[str, Any] = {"from": source, "to": target, **args}
        return self.do("move", **given)

    def refused(self, call: Callable[[], Any]) -> tuple[str, str]:
        with pytest.raises(OperationError) as caught:
            call()
        return caught.value.kind, caught.value.details["reason"]

    def names(self) -> list[str]:
        found: list[str] = []
        for directory, folders, names in os.walk(self.root):
            found += [
                os.path.relpath(os.path.join(directory, name), self.root) for name in (*folders, *names)
            ]
        return sorted(found)


@pytest.fixture
def tree(short_dir: str) -> Tree:
    return Tree(short_dir)


def test_a_stat_tells_of_the_entry_itself(tree: Tree) -> None:
    tree.put("run.sh", b"12345", 0o755)
    os.utime(tree.at("run.sh"), ns=(0, 1_700_000_000_123_456_789))
    os.symlink("run.sh", tree.at("link"))
    found = tree.do("stat", path="run.sh")
    uid, gid = os.getuid(), os.getgid()
    assert found == {
        "path": "run.sh",
        "kind": "file",
        "size": 5,
        "mode": "0755",
        "uid": uid,
        "gid": gid,
        "mtime_unix_ms": 1_700_000_000_123,
        "links": 1,
    }
    link = tree.do("stat", path="link")
    assert (link["kind"], link["size"], link["target"]) == ("symlink", None, "run.sh")
    assert tree.do("stat", path="")["kind"] == "directory"
    assert tree.refused(lambda: tree.do("stat", path="none")) == ("not_found", "file_not_found")
    assert tree.refused(lambda: tree.do("stat", path="link/x")) == ("invalid_request", "not_a_file")


def test_a_delete_takes_files_links_and_empty_directories_and_more_only_when_asked(tree: Tree) -> None:
    for path in ("f", "d/sub/g", "d/h", "keep"):
        tree.put(path)
    os.symlink("keep", tree.at("link"))
    os.symlink("..", tree.at("d/up"))
    os.mkdir(tree.at("empty"))
    assert tree.do("delete", path="f") == {"type": "delete", "path": "f", "kind": "file"}
    assert tree.do("delete", path="link")["kind"] == "symlink"
    assert tree.do("delete", path="empty")["kind"] == "directory"
    assert tree.refused(lambda: tree.do("delete", path="d")) == ("invalid_request", "directory_not_empty")
    assert tree.do("delete", path="d", recursive=True)["kind"] == "directory"
    assert tree.names() == ["keep"]
    assert tree.refused(lambda: tree.do("delete", path="d", recursive=True)) == (
        "not_found",
        "file_not_found",
    )
    for path in ("", ".", tree.root):
        assert (
            tree.refused(lambda path=path: tree.do("delete", path=path, recursive=True))[0]
            == "invalid_request"
        )  # type: ignore[misc]


def test_a_move_keeps_the_inode_and_makes_parents(tree: Tree) -> None:
    tree.put("a", b"x", 0o640)
    before = os.stat(tree.at("a"))
    assert tree.move("a", "new/deep/b") == {"type": "move", "kind": "file", "from": "a", "to": "new/deep/b"}
    after = os.stat(tree.at("new/deep/b"))
    assert (after.st_ino, after.st_mode, after.st_mtime_ns) == (
        before.st_ino,
        before.st_mode,
        before.st_mtime_ns,
    )
    assert tree.names() == ["new", "new/deep", "new/deep/b"]
    encoded = base64.b64encode(b"caf\xe9").decode()
    assert tree.move("new/deep/b", "", to_b64=encoded)["to_b64"] == encoded
    assert os.listdir(os.fsencode(tree.root)).count(b"caf\xe9") == 1


def test_a_move_onto_something_follows_rename_and_only_when_asked(tree: Tree) -> None:
    tree.put("f", b"new")
    tree.put("g", b"old")
    tree.put("full/x")
    tree.put("d/inner")
    os.mkdir(tree.at("empty"))
    os.symlink("g", tree.at("link"))
    assert tree.refused(lambda: tree.move("f", "g")) == ("invalid_request", "already_exists")
    assert tree.refused(lambda: tree.move("f", "full", overwrite=True)) == ("invalid_request", "not_a_file")
    assert tree.refused(lambda: tree.move("d", "g", overwrite=True)) == ("invalid_request", "not_a_directory")
    assert tree.refused(lambda: tree.move("d", "full", overwrite=True)) == (
        "invalid_request",
        "directory_not_empty",
    )
    for target in ("d", "d/inside", "./d"):
        assert tree.refused(lambda target=target: tree.move("d", target, overwrite=True)) == (
            "invalid_request",
            "invalid_path",
        )  # type: ignore[misc]
    assert tree.refused(lambda: tree.move("none", "x/y")) == ("not_found", "file_not_found")
    assert not os.path.exists(tree.at("x"))
    assert tree.refused(lambda: tree.move("f", "link/x")) == ("invalid_request", "not_a_file")
    tree.move("f", "link", overwrite=True)  # the link itself is replaced, not what it points to
    assert (tree.get("link"), tree.get("g")) == (b"new", b"old")
    tree.move("d", "empty", overwrite=True)
    assert tree.get("empty/inner") == b"" and not os.path.exists(tree.at("d"))


def test_a_move_of_one_name_of_a_file_onto_another_leaves_one_name(tree: Tree) -> None:
    tree.put("a", b"x")
    os.link(tree.at("a"), tree.at("b"))
    tree.move("a", "b", overwrite=True)
    assert tree.names() == ["b"] and tree.get("b") == b"x"


def test_a_directory_that_the_kernel_does_not_rename_is_copied_whole(
    tree: Tree, monkeypatch: pytest.MonkeyPatch
) -> None:
    """EXDEV is what an ordinary user's overlay answers for a directory of a lower layer."""
    tree.put("d/sub/run.sh", b"#!/bin/sh\n", 0o750)
    tree.put("d/one", b"1" * 3_000_000)
    os.link(tree.at("d/one"), tree.at("d/sub/two"))
    os.symlink("../nowhere", tree.at("d/link"))
    os.mkfifo(tree.at("d/fifo"))
    os.setxattr(tree.at("d/sub"), "user.note", b"kept")
    os.chmod(tree.at("d/sub"), 0o2711)
    os.utime(tree.at("d"), ns=(5, 1_600_000_000_000_000_007))
    kept = {name: os.lstat(tree.at(name)) for name in ("d", "d/sub", "d/sub/run.sh", "d/link", "d/fifo")}
    rename = file_changes._rename  # pyright: ignore[reportPrivateUsage]

    def refuse_old(from_fd: int, old: str, to_fd: int, new: str, *, overwrite: bool) -> None:
        if old == "d":
            raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))
        rename(from_fd, old, to_fd, new, overwrite=overwrite)

    monkeypatch.setattr(file_changes, "_rename", refuse_old)
    assert tree.refused(lambda: tree.move("d", "new/e")) == ("operation_failed", "copy_needed")
    tree.move("d", "new/e", copy=True)
    assert tree.names() == sorted(
        [
            "new",
            *(f"new/e{rest}" for rest in ("", "/sub", "/sub/run.sh", "/sub/two", "/one", "/link", "/fifo")),
        ]
    )
    for name, before in kept.items():
        after = os.lstat(tree.at("new/e" + name[1:]))
        assert (after.st_mode, after.st_mtime_ns, after.st_uid) == (
            before.st_mode,
            before.st_mtime_ns,
            before.st_uid,
        ), name
    one, two = os.stat(tree.at("new/e/one")), os.stat(tree.at("new/e/sub/two"))
    assert (one.st_ino, one.st_nlink, one.st_size) == (two.st_ino, 2, 3_000_000)
    assert os.getxattr(tree.at("new/e/sub"), "user.note") == b"kept"
    assert os.readlink(tree.at("new/e/link")) == "../nowhere"


def test_an_edit_meets_what_was_written_since_it_read_the_file(
    tree: Tree, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other writer comes between the read and the rename, once in place and once by a rename of its
    own.
    """
    tree.put("f", b"one\ntwo\nthree\n", 0o755)
    apply, writes = text.apply_edits, [b"ONE\ntwo\nthree\n", b"ONE\ntwo\nTHREE!\n"]

    def meanwhile(raw: bytes, *args: Any) -> text.Edited:
        edited = apply(raw, *args)
        if len(writes) == 2:
            with open(tree.at("f"), "r+b") as file:
                file.write(writes.pop(0))
            os.utime(tree.at("f"), ns=(0, 1))
        elif writes:
            with open(tree.at("g"), "wb") as file:
                file.write(writes.pop(0))
            os.replace(tree.at("g"), tree.at("f"))
        return edited

    monkeypatch.setattr(text, "apply_edits", meanwhile)
    tree.do("edit", path="f", edits=[{"old_string": "two", "new_string": "2"}])
    assert tree.get("f") == b"ONE\n2\nTHREE!\n" and not writes
    assert tree.names() == ["f"]


def test_an_edit_gives_up_by_name_when_others_never_stop(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    tree.put("f", b"two\n")
    apply, count = text.apply_edits, 0

    def meanwhile(raw: bytes, *args: Any) -> text.Edited:
        nonlocal count
        count += 1
        tree.put("f", b"two\n" + b"more\n" * count)
        return apply(raw, *args)

    monkeypatch.setattr(text, "apply_edits", meanwhile)
    refused = tree.refused(
        lambda: tree.do("edit", path="f", edits=[{"old_string": "two", "new_string": "2"}])
    )
    assert refused == ("operation_failed", "file_changed") and count == files.EDIT_ROUNDS
    assert tree.names() == ["f"] and tree.get("f").startswith(b"two\n")


# Encodings

BINARY = bytes(range(256)) * 3


def test_base64_reads_any_window_of_bytes(tree: Tree) -> None:
    tree.put("bin", BINARY)
    found = tree.do("read", path="bin", encoding="base64")
    assert base64.b64decode(found.pop("content")) == BINARY
    assert found == {
        "path": "bin",
        "encoding": "base64",
        "offset": 1,
        "bytes_read": 768,
        "total_bytes": 768,
        "next_offset": None,
        "truncated": False,
    }
    pieces, offset = b"", 1
    while offset is not None:
        page = tree.do("read", path="bin", encoding="base64", offset=offset, limit=100)
        pieces += base64.b64decode(page["content"])
        assert page["truncated"] is (page["next_offset"] is not None)
        offset = page["next_offset"]
    assert pieces == BINARY
    for beyond in (769, 2**64 - 1):
        assert tree.do("read", path="bin", encoding="base64", offset=beyond)["bytes_read"] == 0
    assert tree.do("read", path="bin", encoding="base64", limit=262144)["bytes_read"] == 768
    assert tree.refused(lambda: tree.do("read", path="bin", encoding="base64", limit=262145)) == (
        "invalid_request",
        "out_of_bounds",
    )
    assert tree.refused(lambda: tree.do("read", path="bin", limit=2001)) == (
        "invalid_request",
        "out_of_bounds",
    )
    assert tree.refused(lambda: tree.do("read", path="bin", encoding="utf-16")) == (
        "invalid_request",
        "bad_choice",
    )


def test_latin_1_reads_and_edits_bytewise(tree: Tree) -> None:
    raw = b"\xef\xbb\xbfcaf\xe9\r\nd\xe9j\xe0\nvu\x85\x00\r\n"
    tree.put("f", raw, 0o750)
    assert tree.refused(lambda: tree.do("read", path="f")) == ("invalid_request", "not_utf8")
    found = tree.do("read", path="f", encoding="latin-1")
    assert (
        found["content"] == "\xef\xbb\xbfcaf\xe9\nd\xe9j\xe0\nvu\x85\x00" and found["encoding"] == "latin-1"
    )
    tree.do(
        "edit", path="f", encoding="latin1", edits=[{"old_string": "d\xe9j\xe0\n", "new_string": "\xff\n"}]
    )
    assert tree.get("f") == b"\xef\xbb\xbfcaf\xe9\r\n\xff\nvu\x85\x00\r\n"
    assert stat.S_IMODE(os.stat(tree.at("f")).st_mode) == 0o750
    for edits, reason in (
        ([{"old_string": "vu", "new_string": "\u20ac"}], "invalid_edits"),
        ([{"old_string": "x", "new_string": "y"}], "edit_not_found"),
    ):
        assert tree.refused(
            lambda edits=edits: tree.do("edit", path="f", encoding="latin-1", edits=edits)
        ) == ("invalid_request", reason)  # type: ignore[misc]
    assert (
        tree.refused(
            lambda: tree.do(
                "edit", path="f", encoding="base64", edits=[{"old_string": "a", "new_string": "b"}]
            )
        )[1]
        == "bad_choice"
    )


# Of the head, and beside it in a session


def move(agent: Agent, source: str, target: str, /, **more: Any) -> dict[str, Any]:
    paths: dict[str, Any] = {"from": source, "to": target}
    return agent.call("file_move", **paths, **more)  # pyright: ignore[reportArgumentType]


@pytest.mark.needs("overlay")
@pytest.mark.parametrize("private", [False, True])
def test_the_head_and_a_session_answer_alike(agent: Agent, private: bool) -> None:
    at: dict[str, Any] = {"workspace_session_id": agent.session()} if private else {}
    agent.call("file_write", path="pkg/run.sh", content="x\n", **at)
    for call, reason in (
        (lambda: agent.call("file_delete", path="pkg", **at), "directory_not_empty"),
        (lambda: agent.call("file_delete", path="none", **at), "file_not_found"),
        (lambda: agent.call("file_delete", path="", recursive=True, **at), "invalid_path"),
        (lambda: move(agent, "run.sh", "pkg/run.sh", **at), "already_exists"),
        (lambda: move(agent, "run.sh", "pkg", overwrite=True, **at), "not_a_file"),
        (lambda: move(agent, "pkg", "run.sh", overwrite=True, **at), "not_a_directory"),
        (lambda: move(agent, "src", "pkg", overwrite=True, **at), "directory_not_empty"),
        (lambda: move(agent, "src", "src/in", **at), "invalid_path"),
        (lambda: move(agent, "none", "x", **at), "file_not_found"),
        (lambda: move(agent, "run.sh", "crlf.txt/x", **at), "not_a_file"),
        (lambda: agent.call("file_stat", path="none", **at), "file_not_found"),
        (lambda: agent.call("file_write", path="x", content="%", encoding="base64", **at), "invalid_content"),
        (
            lambda: agent.call("file_write", path="x", content="\u20ac", encoding="latin-1", **at),
            "invalid_content",
        ),
    ):
        assert refused(call).reason == reason
    before = agent.call("file_stat", path="run.sh", **at)
    assert move(agent, "run.sh", "pkg/run.sh", overwrite=True, **at)["kind"] == "file"
    moved, time = agent.call("file_stat", path="pkg/run.sh", **at), "mtime_unix_ms"
    assert moved == {**before, "path": "pkg/run.sh", time: moved[time]}
    assert moved[time] == before[time] or (not private and moved[time] > before[time]), (
        "what was made from the file of before is stale"
    )
    assert move(agent, "src", "lib/src", **at)["kind"] == "directory"
    assert agent.call("file_delete", path="pkg", recursive=True, **at) == {
        "type": "delete",
        "path": "pkg",
        "kind": "directory",
    }
    agent.call("file_write", path="bin", content=base64.b64encode(BINARY).decode(), encoding="base64", **at)
    assert base64.b64decode(agent.call("file_read", path="bin", encoding="base64", **at)["content"]) == BINARY
    names = [entry["name"] for entry in agent.call("file_list", path="", **at)["entries"]]
    assert names == [".gitignore", "README.md", "bin", "crlf.txt", "lib"]
    assert agent.read("lib/src/app.py", **at).startswith("one\n")
    assert (agent.version() == 1) is private


@pytest.mark.needs("overlay")
def test_each_change_of_the_head_is_one_layer_of_its_request(agent: Agent) -> None:
    agent.run(
        "mkdir -p d/sub; echo 1 > d/one; ln d/one d/sub/two; echo 3 > d/three; chmod 750 d/sub; ln -s "
        "one d/link"
    )
    agent.run("rm d/three; echo up > d/upper")
    version = agent.version()
    move(agent, "d", "deep/e", request_id="r-move", agent="alice")
    assert agent.version() == version + 1
    found = agent.run(
        "find deep -printf '%p %y %m %l\\n' | sort; ls -d d 2>/dev/null; test deep/e/one -ef deep/e/sub/two "
        "&& echo same"
    )
    lines = str(found["output"]).split("\n")
    assert [line.split(" ")[0] for line in lines[:-1]] == [
        "deep",
        "deep/e",
        "deep/e/link",
        "deep/e/one",
        "deep/e/sub",
        "deep/e/sub/two",
        "deep/e/upper",
    ]
    assert "deep/e/sub d 750 " in lines and "deep/e/link l 777 one" in lines and lines[-1] == "same"
    assert agent.call("file_blame", path="deep/e/upper")["ranges"] == [
        {"start_line": 1, "line_count": 1, "owner": "operation:r-move"}
    ]
    newest = agent.call("list_versions", limit=1)["versions"][0]
    assert (newest["owner"], newest["agent"]) == ("operation:r-move", "alice")
    agent.call("file_delete", request_id="r-delete", path="deep", recursive=True)
    assert agent.version() == version + 2
    assert agent.call("list_versions", limit=1)["versions"][0]["owner"] == "operation:r-delete"
    span: dict[str, Any] = {"from": version + 1, "to": version + 2}
    (entry,) = (e for e in agent.call("diff_versions", **span)["entries"] if e["path"] == "deep")
    assert entry["change"] == "deleted"
    agent.call("rollback_to", version=version)
    assert agent.read("d/upper") == "up"


@pytest.mark.needs("overlay")
def test_moved_directories_of_the_base_and_of_layers_merge_and_hide_as_before(agent: Agent) -> None:
    """Into the place of a deleted directory, out of one that was made again, and back: the head and a mount
    of it agree each time.
    """

    def both() -> tuple[list[str], list[str]]:
        session = agent.session()
        mounted = agent.run("find . -mindepth 1 -printf '%P\\n' | LC_ALL=C sort", session)["output"].split(
            "\n"
        )
        agent.call("destroy_workspace_session", workspace_session_id=session)
        seen: list[str] = []

        def walk(path: str) -> None:
            for entry in agent.call("file_list", path=path)["entries"]:
                child = f"{path}/{entry['name']}" if path else entry["name"]
                seen.append(child)
                if entry["kind"] == "directory":
                    walk(child)

        walk("")
        return sorted(seen), sorted(mounted)

    agent.run("mkdir other; echo o > other/o; rm -r src; mkdir src; echo again > src/again")
    for source, target in (
        ("src", "moved"),
        ("other", "src"),
        ("moved", "src/in"),
        ("src/in", "moved"),
        ("src", "other"),
    ):
        move(agent, source, target)
        seen, mounted = both()
        assert seen == mounted and not any("app.py" in path for path in seen), (source, target, seen)
    agent.call("file_delete", path="moved", recursive=True)
    seen, mounted = both()
    assert seen == mounted and "other/o" in seen and "moved" not in seen


@pytest.mark.needs("overlay")
def test_a_session_that_changed_what_the_head_deleted_or_moved_is_rejected_at_its_publish(
    agent: Agent,
) -> None:
    session = agent.session()
    agent.run("echo eight >> src/app.py", session)
    move(agent, "src", "lib")
    error = refused(lambda: agent.call("publish_workspace_session", workspace_session_id=session))
    (conflict,) = error.details["publish_rejection"]["conflicts"]
    assert (conflict["path"], conflict["class"]) == ("src/app.py", "modify_delete")
    agent.call("destroy_workspace_session", workspace_session_id=session)


@pytest.mark.needs("overlay", "userns")
def test_a_directory_of_the_base_moves_in_an_ordinary_users_session(
    start_agent: Callable[..., Agent],
) -> None:
    from tests.in_namespace import ORDINARY_UID

    agent = start_agent(uid=ORDINARY_UID)
    session = agent.session()
    move(agent, "src", "lib/src", workspace_session_id=session)
    assert agent.read("lib/src/app.py", workspace_session_id=session).startswith("one\n")
    assert (
        refused(lambda: agent.call("file_stat", path="src", workspace_session_id=session)).kind == "not_found"
    )
    agent.call("publish_workspace_session", workspace_session_id=session)
    assert [e["name"] for e in agent.call("file_list", path="lib/src")["entries"]] == ["app.py"]
    for at in ({}, {"workspace_session_id": agent.session()}):
        found = agent.call("file_search", pattern="f(i|ou)", regex=True, **at)["matches"]
        assert [(match["path"], match["text"]) for match in found] == [
            ("lib/src/app.py", "four"),
            ("lib/src/app.py", "five"),
        ]


@pytest.mark.needs("overlay")
def test_any_order_of_changes_leaves_the_head_and_a_session_alike(agent: Agent) -> None:
    """The kernel's own rename(2) and unlink(2) on an overlay mount, beside layers that are written without
    one.
    """
    chance = random.Random(4)
    names = ["a", "b", "src", "README.md", "run.sh", "a/b", "src/app.py", "src/a", "a/b/src", "b/a"]
    session = agent.session()

    def outcome(op: str, args: dict[str, Any], **where: Any) -> tuple[Any, ...]:
        try:
            answer = agent.call(op, **args, **where)
        except Failed as error:
            return error.kind, error.reason, error.details.get("path"), error.details.get("kind")
        return tuple(
            sorted(
                (key, str(value)) for key, value in answer.items() if key not in ("mtime_unix_ms", "links")
            )
        )

    def tree(**where: Any) -> list[tuple[str, str, str, Any]]:
        found: list[tuple[str, str, str, Any]] = []
        pending = [""]
        while pending:
            folder = pending.pop()
            for entry in agent.call("file_list", path=folder, **where)["entries"]:
                path = f"{folder}/{entry['name']}" if folder else entry["name"]
                about = agent.call("file_stat", path=path, **where)
                content = agent.read(path, **where) if entry["kind"] == "file" else ""
                found.append((path, about["kind"], about["mode"], content))
                if entry["kind"] == "directory":
                    pending.append(path)
        return sorted(found)

    refused_by: set[str] = set()
    done = 0
    for n in range(200):
        op = chance.choice(
            [
                "file_write",
                "file_move",
                "file_move",
                "file_move",
                "file_delete",
                "file_stat",
                "file_read",
                "file_list",
            ]
        )
        args: dict[str, Any]
        if op == "file_write":
            args = {"path": chance.choice(names), "content": f"{n}\n"}
        elif op == "file_delete":
            args = {"path": chance.choice(names), "recursive": chance.random() < 0.5}
        elif op != "file_move":
            args = {"path": chance.choice(names)}
        else:
            args = {
                "from": chance.choice(names),
                "to": chance.choice(names),
                "overwrite": chance.random() < 0.5,
            }
        head, private = outcome(op, args), outcome(op, args, workspace_session_id=session)
        assert head == private, (n, op, args)
        if head[0] in ("invalid_request", "not_found"):
            refused_by.add(str(head[1]))
        else:
            done += 1
        if n % 40 == 39:
            assert tree() == tree(workspace_session_id=session), n
    assert done > 30 and refused_by >= {
        "already_exists",
        "directory_not_empty",
        "file_not_found",
        "invalid_path",
        "not_a_file",
    }


@pytest.mark.needs("overlay")
@pytest.mark.parametrize("private", [False, True])
def test_a_listing_goes_on_from_its_cursor_and_a_blame_from_a_line(agent: Agent, private: bool) -> None:
    agent.run(
        "mkdir many; cd many; touch $(seq 1 25); touch \"$(printf 'caf\\351')\"; echo x > '+/=' "
        "2>/dev/null; echo x > ' a'"
    )
    at: dict[str, Any] = {"workspace_session_id": agent.session()} if private else {}
    whole = agent.call("file_list", path="many", **at)["entries"]
    seen: list[Any] = []
    more: dict[str, Any] = {}
    while True:
        page = agent.call("file_list", path="many", limit=4, **more, **at)
        seen += page["entries"]
        assert ("next" in page) is page["truncated"]
        if not page["truncated"]:
            break
        more = {"cursor": page["next"]}
    assert seen == whole and len(seen) == 27
    assert (
        refused(lambda: agent.call("file_list", path="many", cursor="\u00e9", **at)).reason
        == "invalid_cursor"
    )
    agent.call(
        "file_edit", request_id="r", path="src/app.py", edits=[{"old_string": "three", "new_string": "3"}]
    )
    ranges = [(1, 2, "original"), (3, 1, "operation:r"), (4, 4, "original")]
    for offset, expected in (
        (1, ranges),
        (2, [(2, 1, "original"), *ranges[1:]]),
        (3, ranges[1:]),
        (7, [(7, 1, "original")]),
        (8, []),
    ):
        found = agent.call("file_blame", path="src/app.py", offset=offset)["ranges"]
        assert [(part["start_line"], part["line_count"], part["owner"]) for part in found] == expected
