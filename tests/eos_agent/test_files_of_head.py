"""File operations without a session: reads of the published head, writes and edits that publish at once."""

from __future__ import annotations

import base64
import concurrent.futures
import hashlib
import io
import json
import os
import stat
import struct
import tarfile

import pytest

from .agent_process import Agent, refused

pytestmark = pytest.mark.needs("overlay")


def test_a_read_answers_the_contracts_object(shared_agent: Agent) -> None:
    assert shared_agent.call("file_read", path=shared_agent.workspace + "/src/app.py", offset=2, limit=3) == {
        "path": "src/app.py",
        "content": "two\nthree\nfour",
        "start_line": 2,
        "num_lines": 3,
        "total_lines": 7,
        "bytes_read": 14,
        "total_bytes": 34,
        "next_offset": 5,
        "truncated": True,
    }
    assert shared_agent.read("crlf.txt") == "a\nb\nc"
    for limit in (0, 2001):
        assert (
            refused(lambda limit=limit: shared_agent.read("README.md", limit=limit)).kind == "invalid_request"
        )  # type: ignore[misc]


def test_what_is_not_there_or_no_regular_file_is_distinguished(agent: Agent) -> None:
    agent.run("ln -s src/app.py link; ln -s src dirlink; mkdir empty")
    missing = refused(lambda: agent.read("none/such"))
    assert (missing.kind, missing.details["path"], missing.reason) == (
        "not_found",
        "none/such",
        "file_not_found",
    )
    for path in ("src", "link", "dirlink/app.py", "empty"):
        for op, args in (
            ("file_read", {}),
            ("file_write", {"content": "x"}),
            ("file_edit", {"edits": [{"old_string": "a", "new_string": "b"}]}),
        ):
            error = refused(lambda op=op, path=path, args=args: agent.call(op, path=path, **args))  # type: ignore[misc]
            assert error.kind == "invalid_request" and "not a regular file" in error.message, (op, path)
    assert refused(lambda: agent.read("link")).details["target"] == "src/app.py"
    assert (
        refused(lambda: agent.call("file_write", path="dirlink/new", content="")).details["target"] == "src"
    )
    for path in ("/etc/passwd", "a/../b", "", "a\0b"):
        assert refused(lambda path=path: agent.read(path)).kind == "invalid_request"  # type: ignore[misc]
    assert refused(lambda: agent.call("file_list", path="README.md")).kind == "invalid_request"
    assert refused(lambda: agent.call("file_list", path="none")).kind == "not_found"
    assert refused(lambda: agent.call("file_list", path="dirlink")).kind == "invalid_request"
    assert agent.call("file_list", path="empty")["entries"] == []


def test_a_write_publishes_one_layer_and_the_same_bytes_again_none(agent: Agent) -> None:
    assert agent.call("file_write", path="d/e/new", content="x\n") == {
        "type": "create",
        "path": "d/e/new",
        "bytes_written": 2,
    }
    assert agent.version() == 2
    assert agent.call("file_write", path="d/e/new", content="x\n")["type"] == "update"
    assert agent.version() == 2
    assert agent.call("file_write", path="d/e/new")["bytes_written"] == 0  # a raw request without content
    assert agent.version() == 3


def test_modes_boms_and_line_ends_survive_sessionless_changes(agent: Agent) -> None:
    agent.call("file_edit", path="run.sh", edits=[{"old_string": "echo run", "new_string": "echo ran"}])
    agent.call("file_edit", path="crlf.txt", edits='[{"old_string":"b","new_string":"B"}]')
    found = agent.run("./run.sh; od -An -c crlf.txt | tr -d ' \\n'")
    assert found["output"] == "ran\n357273277a\\r\\nB\\nc\\r\\n"
    agent.call("file_write", path="run.sh", content="#!/bin/sh\necho whole\n", agent="alice")
    assert agent.run("./run.sh")["output"] == "whole"


def test_twenty_edits_of_one_file_at_once_all_survive(agent: Agent) -> None:
    agent.call("file_write", path="many", content="".join(f"line {n} .\n" for n in range(20)))

    def one(n: int) -> None:
        agent.call(
            "file_edit", path="many", edits=[{"old_string": f"line {n} .", "new_string": f"line {n} done"}]
        )

    with concurrent.futures.ThreadPoolExecutor(20) as pool:
        list(pool.map(one, range(20)))
    assert agent.read("many") == "\n".join(f"line {n} done" for n in range(20))
    assert agent.version() == 22


def test_a_bad_edit_changes_nothing(agent: Agent) -> None:
    error = refused(
        lambda: agent.call("file_edit", path="README.md", edits=[{"old_string": "nope", "new_string": ""}])
    )
    assert error.kind == "invalid_request" and "not found" in error.message
    assert (
        refused(
            lambda: agent.call("file_edit", path="none", edits=[{"old_string": "a", "new_string": "b"}])
        ).kind
        == "not_found"
    )
    assert (
        refused(lambda: agent.call("file_edit", path="README.md", edits=[])).message
        == "edits must not be empty"
    )
    assert agent.version() == 1


def test_readers_see_old_or_new_bytes_and_nothing_else(agent: Agent) -> None:
    contents = ["a" * 50_000, "b" * 60_000]
    agent.call("file_write", path="swap", content=contents[0])

    def write() -> None:
        for n in range(20):
            agent.call("file_write", path="swap", content=contents[(n + 1) % 2])

    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        writing = pool.submit(write)
        while not writing.done():
            assert agent.read("swap") in contents
        writing.result()


def test_names_that_are_no_utf8_are_reached_by_their_bytes(agent: Agent) -> None:
    encoded = base64.b64encode(b"d/caf\xe9").decode()
    assert agent.call("file_write", path_b64=encoded, content="x")["path_b64"] == encoded
    (entry,) = agent.call("file_list", path="d")["entries"]
    assert entry == {"name": "caf\ufffd", "kind": "file", "size": 1, "path_b64": encoded}
    assert agent.call("file_read", path_b64=encoded)["content"] == "x"


def test_a_listing_is_the_same_with_and_without_a_session(agent: Agent) -> None:
    agent.run("mkdir -p l/sub; ln -s nowhere l/link; printf 123 > l/file; touch 'l/ sp ace'")
    head = agent.call("file_list", path="l")
    session = agent.session()
    assert head == agent.call("file_list", path="l", workspace_session_id=session)
    assert [(e["name"], e["kind"], e["size"]) for e in head["entries"]] == [
        (" sp ace", "file", 0),
        ("file", "file", 3),
        ("link", "symlink", None),
        ("sub", "directory", None),
    ]
    cut = agent.call("file_list", path="l", limit=1)
    assert ([e["name"] for e in cut["entries"]], cut["truncated"]) == ([" sp ace"], True)
    assert refused(lambda: agent.call("file_list", path="l", limit=0)).kind == "invalid_request"


def test_the_export_stream_is_the_folded_delta_under_a_lease(agent: Agent) -> None:
    agent.run("echo new > new; rm README.md; chmod 700 run.sh")
    agent.run("echo newer > new; mkdir e")
    connection = agent.connect()
    connection.socket.sendall(agent.line("export_stream"))
    header = json.loads(connection.file.readline())
    assert header["manifest_version"] == 3
    tar = b""
    while size := struct.unpack(">I", connection.file.read(4))[0]:
        tar += connection.file.read(size)
    trailer = json.loads(connection.file.readline())
    assert connection.file.read() == b""
    connection.close()
    with tarfile.open(fileobj=io.BytesIO(tar)) as archive:
        members = {member.name: member for member in archive}
        new = archive.extractfile("new")
        assert new is not None and new.read() == b"newer\n"
    assert set(members) == {"README.md", "e", "new", "run.sh"}
    assert members["README.md"].pax_headers["EOS.kind"] == "whiteout"
    assert members["e"].isdir() and stat.S_IMODE(members["run.sh"].mode) == 0o700
    assert trailer["sha256"]
    assert agent.call("layerstack")["active_lease_count"] == 0


def test_a_large_file_goes_from_its_layer_to_the_connection_with_the_digest_of_its_index(
    agent: Agent,
) -> None:
    digest = str(agent.run("head -c 20000003 /dev/urandom > big; sha256sum < big")["output"]).split()[0]
    connection = agent.connect()
    connection.socket.sendall(agent.line("export_stream", digests=True))
    assert json.loads(connection.file.readline())["format"] == 2
    tar = bytearray()
    while size := struct.unpack(">I", connection.file.read(4))[0]:
        tar += connection.file.read(size)
    trailer = json.loads(connection.file.readline())
    assert (
        connection.file.read() == b""
        and trailer["content_bytes"] == 20_000_003
        and trailer["tar_bytes"] == len(tar)
    )
    connection.close()
    with tarfile.open(fileobj=io.BytesIO(tar)) as archive:
        member = archive.getmember("big")
        big = archive.extractfile(member)
        assert (
            big is not None
            and hashlib.sha256(big.read()).hexdigest() == digest == member.pax_headers["EOS.sha256"]
        )
    assert agent.call("layerstack")["active_lease_count"] == 0


@pytest.mark.parametrize("digests", [False, True])
def test_an_export_that_its_reader_leaves_gives_its_lease_back(agent: Agent, digests: bool) -> None:
    agent.run("head -c 20000000 /dev/urandom > big")
    connection = agent.connect()
    connection.socket.sendall(agent.line("export_stream", digests=digests))
    assert connection.file.readline()
    assert agent.call("layerstack")["active_lease_count"] == 1
    connection.close()
    while agent.call("layerstack")["active_lease_count"]:
        pass
    assert len(os.listdir(f"/proc/{agent.pid}/fd")) < 40
