"""Many small files: the memory of a capture does not grow with their number."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest

from layerstack.export import stream
from layerstack.index_cursor import Digests
from layerstack.packed_index import SMALL, PackedIndex
from tests.exporting import Stack, unpack
from tests.trees import DIRECTORY, Entry

Call = Callable[..., Any]
COUNT = 10_000
BASE = {"": Entry(DIRECTORY, (0o755, 0, 0)), "keep": Entry(DIRECTORY, (0o755, 0, 0))}
MOST_KIB = 5 << 10
"""Before, each of these steps took 6 to 11 MB for so many files, and 300 to 660 for 600,000."""


def fill(root: str, *, flat: bool) -> None:
    for number in range(COUNT):
        folder = root if flat else f"{root}/dir-{number // 500:03d}"
        if not flat and number % 500 == 0:
            os.mkdir(folder)
        os.close(os.open(f"{folder}/file-number-{number:06d}", os.O_CREAT | os.O_WRONLY, 0o644))


def growth_kib(work: Callable[[], Any]) -> tuple[Any, int]:
    """What it returns, and by how much the peak of this process was above what it has now."""

    def read(key: str) -> int:
        with open("/proc/self/status") as status:
            return next(int(line.split()[1]) for line in status if line.startswith(key))

    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")  # the peak is what is there now
    before = read("VmRSS")
    answer = work()
    return answer, read("VmHWM") - before


@pytest.mark.needs("overlay")
@pytest.mark.parametrize("flat", [False, True])
def test_preview_publish_reopening_export_and_draft_of_many_files_take_little_memory(
    short_dir: str, in_mount_namespace: Call, flat: bool
) -> None:
    """Finding 7: the agent was killed for memory by a preview of 600,000 empty files, and by each start after it."""

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
            return sum(len(piece) if isinstance(piece, bytes) else piece.size for piece in stream(stack.snapshot(), digests=digests))

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
            monkeypatch.setattr("layerstack.index_file.SMALL", small)
            folder = f"{short_dir}/{n}"
            os.mkdir(folder)
            stack = Stack(folder, BASE)
            stack.publish(edit)
            stack.publish(lambda root: os.unlink(f"{root}/a/x"))
            for version in (2, 3):
                packed = [layer.index for layer in stack.store.snapshot(version).chain.layers[:-1] if isinstance(layer.index, PackedIndex)]
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
        return [f"{at} {member.name!r} {member.type!r} {member.mode} {member.size}".encode() for at, member in enumerate(archive)]
