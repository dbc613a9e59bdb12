"""Many small files: the memory of a capture does not grow with their number."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest

from layerstack.errors import PublishRejected
from layerstack.export.stream import stream
from layerstack.fsck.check import check
from layerstack.kernel import syscalls
from layerstack.layers.index_cursor import Digests
from layerstack.layers.packed_index import SMALL, PackedIndex
from layerstack.session.upper import Upper
from tests.export_streams import Stack, unpack
from tests.layerstack.many_files import BASE, COUNT, fill, growth_kib

Call = Callable[..., Any]
MOST_KIB = 3 << 10
"""Steps that held lists of the paths took 3.6 to 6.6 MB for so many files, and 300 to 660 for 600,000."""


@pytest.mark.needs("overlay")
@pytest.mark.parametrize("flat", [False, True])
def test_preview_publish_reopening_export_and_draft_of_many_files_take_little_memory(
    short_dir: str, in_mount_namespace: Call, flat: bool
) -> None:
    """Finding 7: the agent was killed for memory by a preview of 600,000 empty files, and by each start after
    it.
    """

    def child() -> None:
        stack = Stack(short_dir, BASE)
        store = stack.store
        grown: dict[str, int] = {}
        upper = store.open_upper("one", origin="workspace_session:one")
        fill(upper.upperdir, flat=flat)
        found, grown["preview"] = growth_kib(upper.preview)
        folders = 0 if flat else COUNT // 500
        assert found.would_publish and found.source_count == COUNT + folders
        published, grown["publish"] = growth_kib(lambda: upper.publish(owner="o", request_id="r"))
        assert published.source_count == COUNT + folders and published.manifest.version == 2
        assert isinstance(store.layers.get(published.layer_id).index, PackedIndex)
        store.close()
        stack.store, grown["reopening"] = growth_kib(lambda: type(store).open(store.root))
        digests = Digests(stack.store.root)

        def export() -> int:
            return sum(
                len(piece) if isinstance(piece, bytes) else piece.size
                for piece in stream(stack.snapshot(), digests=digests)
            )

        size, grown["export"] = growth_kib(export)
        digests.close()
        assert size > COUNT * 512
        late = stack.store.open_upper("late", origin="workspace_session:late", version=1)
        fill(late.upperdir, flat=flat)
        with open(f"{late.upperdir}/more", "w") as file:
            file.write("x")
        found, grown["preview on a head that has all of it"] = growth_kib(late.preview)
        assert found.would_publish and found.source_count == 1
        draft, grown["draft"] = growth_kib(lambda: late.to_draft(reason="publish_error"))
        assert draft.paths == COUNT + folders + 1
        again, grown["preview of a draft"] = growth_kib(lambda: stack.store.preview_draft(draft.draft_id))
        assert again.source_count == 1
        stack.close()
        assert max(grown.values()) < MOST_KIB, grown

    in_mount_namespace(child)


@pytest.mark.needs("overlay")
def test_an_export_of_a_packed_layer_is_that_of_an_ordinary_one(
    short_dir: str, in_mount_namespace: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    def edit(root: str) -> None:
        for path in ("a/x", "a-/x", "a.b", "b/c/d", "new/\udcff", "new/é"):
            os.makedirs(os.path.dirname(f"{root}/{path}"), exist_ok=True)
            with open(f"{root}/{path}", "w") as file:
                file.write(path.encode("utf-8", "surrogateescape").hex())
        os.rmdir(f"{root}/keep")

    def child() -> None:
        made: list[bytes] = []
        for n, small in enumerate((SMALL, 2)):
            monkeypatch.setattr("layerstack.layers.index_file.SMALL", small)
            folder = f"{short_dir}/{n}"
            os.mkdir(folder)
            stack = Stack(folder, BASE)
            stack.publish(edit)
            stack.publish(lambda root: os.unlink(f"{root}/a/x"))
            for version in (2, 3):
                packed = [
                    layer.index
                    for layer in stack.store.snapshot(version).chain.layers[:-1]
                    if isinstance(layer.index, PackedIndex)
                ]
                assert bool(packed) == (small == 2)
            tar = unpack(stack.export(earlier=None)).tar
            made.append(b"\n".join(sorted(block for block in _names(tar))))
            stack.close()
        assert made[0] == made[1]

    in_mount_namespace(child)


def _names(tar: bytes) -> list[bytes]:
    import io
    import tarfile

    with tarfile.open(fileobj=io.BytesIO(tar)) as archive:
        return [
            f"{at} {member.name!r} {member.type!r} {member.mode} {member.size}".encode()
            for at, member in enumerate(archive)
        ]


@pytest.mark.needs("overlay")
def test_what_a_publish_leaves_in_a_traceback_keeps_no_file_of_the_store_open(
    short_dir: str, in_mount_namespace: Call
) -> None:
    """The rows of a large index lie in a file without a name: held by an exception that is kept, it made
    `umount` answer EBUSY.
    """

    def child() -> None:
        stack = Stack(short_dir, BASE)
        upper = stack.store.open_upper("one", origin="workspace_session:one")
        stack.publish(lambda root: _put(f"{root}/clash", "head"))
        fill(upper.upperdir, flat=False)
        _put(f"{upper.upperdir}/clash", "ours")
        with pytest.raises(PublishRejected) as kept:
            upper.publish(owner="o", request_id="r")
        here = [
            os.readlink(f"/proc/self/fd/{fd}")
            for fd in os.listdir("/proc/self/fd")
            if os.path.lexists(f"/proc/self/fd/{fd}")
        ]
        assert kept.tb is not None and not [name for name in here if "/staging/" in name]
        stack.close()

    in_mount_namespace(child)


@pytest.mark.needs("overlay")
def test_a_squash_of_many_files_takes_little_memory_and_so_do_the_next_a_rebase_and_a_publish_of_private_layers(  # noqa: E501
    short_dir: str, in_mount_namespace: Call
) -> None:
    """A squash held a state, a record and an owner for each path: 279 MiB for 200,000 files."""

    def child() -> None:
        stack = Stack(short_dir, BASE)
        store = stack.store
        grown: dict[str, int] = {}
        stack.publish(lambda root: fill(root, flat=False))
        for number in range(2):
            stack.publish(lambda root, number=number: _put(f"{root}/more-{number}", "x\n"))
        done, grown["squash"] = growth_kib(store.squash)
        assert len(done.blocks) == 1
        folded = store.layers.get(done.blocks[0].squashed_layer_id)
        assert isinstance(folded.index, PackedIndex)
        with open(f"{store.root}/.layer-metadata/{folded.id}.blame", "rb") as file:
            assert file.readline().startswith(b"eos-blame 2 %d " % (COUNT + 2))
        stack.publish(lambda root: _put(f"{root}/dir-007/file-number-003600", "one\ntwo\n"))
        done, grown["squash of a squashed layer"] = growth_kib(store.squash)
        assert len(done.blocks) == 1
        assert len(store.blame("dir-007/file-number-003600")) == 1 and store.blame("more-1")
        late = store.open_upper("late", origin="workspace_session:late", version=1)
        fill(late.upperdir, flat=False)
        with open(f"{late.upperdir}/dir-007/file-number-003600", "w") as file:
            file.write("one\ntwo\n")
        _put(f"{late.upperdir}/clash", "ours")
        stack.publish(lambda root: _put(f"{root}/clash", "head"))
        _, grown["publish that is refused"] = growth_kib(lambda: _refused(late))
        syscalls.move_mount(fd := late.mount(), stack.mount_point)
        os.close(fd)
        os.mkdir(f"{stack.mount_point}/other")
        os.unlink(f"{stack.mount_point}/clash")
        syscalls.umount(stack.mount_point)
        published, grown["publish of a private layer"] = growth_kib(
            lambda: late.publish(owner="o", request_id="r")
        )
        assert published.source_count == 1
        store.close()
        assert list(check(store.root)) == []
        stack.store, grown["reopening"] = growth_kib(lambda: type(store).open(store.root))
        stack.close()
        assert max(grown.values()) < MOST_KIB, grown

    in_mount_namespace(child)


@pytest.mark.soak
@pytest.mark.timeout(2400)
@pytest.mark.needs("overlay")
def test_six_hundred_thousand_files_take_less_than_100_mib_at_each_step(
    short_dir: str, in_mount_namespace: Call
) -> None:
    def child() -> None:
        stack = Stack(short_dir, BASE)
        store, grown = stack.store, dict[str, int]()
        upper = store.open_upper("one", origin="workspace_session:one")
        fill(upper.upperdir, flat=False, count=600_000)
        _, grown["preview"] = growth_kib(upper.preview)
        _, grown["publish"] = growth_kib(lambda: upper.publish(owner="o", request_id="r"))
        stack.publish(lambda root: _put(f"{root}/more", "x\n"))
        done, grown["squash"] = growth_kib(store.squash)
        assert len(done.blocks) == 1
        store.close()
        stack.store, grown["reopening"] = growth_kib(lambda: type(store).open(store.root))
        stack.close()
        assert max(grown.values()) < 100 << 10, grown

    in_mount_namespace(child)


def _put(path: str, text: str) -> None:
    with open(path, "w") as file:
        file.write(text)


def _refused(upper: Upper) -> None:
    with pytest.raises(PublishRejected):
        upper.publish(owner="o", request_id="r")
