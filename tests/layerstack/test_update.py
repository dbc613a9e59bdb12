"""Writes without a session beside publishes, failing syncs and attributes that a write must not lose."""

from __future__ import annotations

import errno
import os
import struct

import pytest

from layerstack.kernel import fsync
from layerstack.kernel.fsync import no_step
from layerstack.publish.commit import CommitUnsynced
from tests.layerstack.store_fixture import Stack, get, on_a_stack, put, refusing

TEXT = "".join(f"line {n}\n" for n in range(20))


@on_a_stack({"f": TEXT})
def test_a_write_whose_file_another_session_publishes_meanwhile_is_done_again_on_the_new_text(
    stack: Stack,
) -> None:
    """The two changes would merge by lines; but a write promises that nothing comes between its reading and
    its publication.
    """
    a = stack.session()
    put(a.at("f"), TEXT.replace("line 3\n", "line three\n"))
    a.umount()
    seen: list[bytes | None] = []

    def change(old: bytes | None) -> bytes:
        seen.append(old)
        if len(seen) == 1:
            a.publish()
        return (
            b"%d lines\n" % (old or b"").count(b"\n")
            if len(seen) > 2
            else (old or b"").replace(b"line 15\n", b"")
        )

    done = stack.store.update_file("f", change, owner="o", request_id="r")
    assert seen[1] == TEXT.replace("line 3\n", "line three\n").encode() and len(seen) == 2
    assert done.manifest.version == 3
    assert stack.shows()["f"] == TEXT.replace("line 3\n", "line three\n").replace("line 15\n", "")


@on_a_stack({"f": TEXT}, namespaces=("trusted",))
def test_a_write_keeps_setuid_and_file_capabilities(stack: Stack) -> None:
    a = stack.session()
    put(a.at("tool"), "old\n")
    os.chown(a.at("tool"), 5, 6)
    os.chmod(a.at("tool"), 0o6755)
    capability = struct.pack("<IIIII", 0x02000001, 1 << 10, 0, 0, 0)
    os.setxattr(a.at("tool"), "security.capability", capability)
    a.publish()
    stack.store.update_file("tool", lambda old: b"new\n", owner="o", request_id="r")
    with stack.mounted() as view:
        status = os.stat(f"{view}/tool")
        assert get(f"{view}/tool") == "new\n"
        assert (status.st_mode & 0o7777, status.st_uid, status.st_gid) == (0o6755, 5, 6)
        assert os.getxattr(f"{view}/tool", "security.capability") == capability


@on_a_stack({"f": TEXT})
def test_work_written_after_a_publish_that_was_not_synced_is_not_lost(stack: Stack) -> None:
    a = stack.session()
    put(a.at("x"), "1\n")
    a.umount()

    stack.store.step = refusing("commit.fsync_manifest", code=errno.EIO)
    with pytest.raises(CommitUnsynced):
        a.publish()
    stack.store.step = no_step
    with pytest.raises(CommitUnsynced):
        a.mount()
    assert a.upper.publish(owner="o", request_id="r").manifest.version == 2
    assert stack.shows()["x"] == "1\n" and os.listdir(f"{stack.root}/sessions") == []


@on_a_stack({"f": TEXT}, namespaces=("trusted",))
def test_writing_over_a_huge_file_reads_no_more_of_it_than_asked(stack: Stack) -> None:
    os.truncate(f"{stack.base}/f", 1 << 40)
    seen: list[bytes | None] = []

    def change(old: bytes | None) -> bytes:
        seen.append(old)
        return b"small\n"

    stack.store.update_file("f", change, owner="o", request_id="r", limit=5)
    assert seen == [b"line "] and stack.shows()["f"] == "small\n"


@on_a_stack({"f": TEXT})
def test_what_is_published_already_is_synced_before_it_is_reported(stack: Stack) -> None:
    a = stack.session()
    put(a.at("f"), "new\n")
    stack.store.step = refusing("commit.fsync_manifest", code=errno.EIO)
    with pytest.raises(CommitUnsynced):
        stack.store.update_file("f", lambda old: b"new\n", owner="o", request_id="r")
    stack.store.step = no_step
    synced: list[str] = []
    real = fsync.fsync_dir
    fsync.fsync_dir = synced.append  # type: ignore[assignment]
    try:
        assert a.publish().no_op and synced == [stack.root]
        assert (
            stack.store.update_file("f", lambda old: b"new\n", owner="o", request_id="r").no_op
            and len(synced) == 1
        )
    finally:
        fsync.fsync_dir = real
