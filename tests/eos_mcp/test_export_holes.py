"""Files with holes from a session to the host: published, compared, exported, imported as a base, at the
price of their data.
"""

from __future__ import annotations

import io
import os
import resource
import subprocess
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import zstandard

from eos_agent.wire.protocol import OperationError
from eos_mcp.export.apply import ExportLimits
from eos_mcp.workspace import base, tree_index
from layerstack.errors import PublishRejected
from layerstack.export import pax
from layerstack.fsck import check
from layerstack.kernel.content import BLOCK, ContentHash, digest_at
from tests.eos_mcp.export_runs import run
from tests.export_streams import Stack, file, made_by_digests
from tests.sparse_files import TIB, hole, largest
from tests.trees import DIRECTORY, Entry

Call = Callable[..., Any]
BASE = {"": Entry(DIRECTORY, (0o755, 0, 0)), "d": Entry(DIRECTORY, (0o755, 0, 0))}


def cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


@pytest.mark.needs("overlay")
def test_a_file_of_terabytes_is_published_compared_merged_checked_and_exported_for_its_data(
    short_dir: str, in_mount_namespace: Call
) -> None:
    """Finding 6: `truncate -s 8T f` and a publish. Each step below read or hashed every byte before."""

    def child() -> None:
        stack = Stack(short_dir, BASE)
        size = largest(Path(short_dir))
        os.unlink(f"{short_dir}/probe")
        before = cpu_s()

        def edit(root: str) -> None:
            hole(Path(root, "d", "huge"), size, {size // 2: b"in the middle"})
            hole(Path(root, "d", "nothing"), size)

        def real(path: str) -> str:
            found = stack.snapshot().stat(path)
            assert found is not None
            return found.real_path

        stack.publish(edit)
        mine = stack.store.open_upper("mine", origin="workspace_session:mine")
        for name in ("one", "two"):
            stack.publish(lambda root, name=name: hole(Path(root, "d", name), size, {5: name.encode()}))
        other = stack.store.open_upper("other", origin="workspace_session:other")
        hole(Path(mine.upperdir, "same"), size, {7: b"x"})
        hole(Path(other.upperdir, "same"), size, {7: b"x"})
        for upper in (mine, other):
            found = upper.preview()
            assert found.would_publish and not found.conflicts
        mine.publish(owner="a", request_id="a")
        assert other.publish(owner="b", request_id="b").no_op, "the same content is no conflict and no change"
        late = stack.store.open_upper("late", origin="workspace_session:late", version=2)
        hole(Path(late.upperdir, "same"), size, {7: b"y"})
        conflict = late.preview().conflicts[0]
        assert (conflict.path, conflict.cls, conflict.ours.size, conflict.theirs.size) == (
            "same",
            "binary",
            size,
            size,
        )
        with pytest.raises(PublishRejected):
            late.publish(owner="c", request_id="c")
        draft = late.to_draft(reason="publish_error")
        assert draft is not None
        stack.store.squash()
        data = stack.export_by_digests(holes=True)
        assert len(data) < 1 << 20
        target = Path(short_dir, "out")
        run(data, target)
        assert sorted(os.listdir(target / "d")) == ["huge", "nothing", "one", "two"]
        for path in (target / "d" / "huge", target / "d" / "nothing", target / "same"):
            status = os.stat(path)
            assert status.st_size == size and status.st_blocks * 512 < 1 << 20
        assert digest_at(str(target / "d" / "huge")) == digest_at(real("d/huge"))
        again = run(data, target)
        assert again["files_written"] == 0 and again["skipped_unchanged"] == 5
        with open(target / "d" / "nothing", "r+b") as there:
            there.seek(size // 3)
            there.write(b"of the person")
        os.utime(target / "d" / "nothing", ns=(0, os.stat(real("d/nothing")).st_mtime_ns))
        again = run(data, target)
        assert again["files_written"] == 1 and os.stat(target / "d" / "nothing").st_blocks * 512 < 1 << 20
        made = base.prepare(
            str(target), str(Path(short_dir, "cache")), special_files="skip", progress=lambda line: None
        )
        copied = Path(made.path, base.BASE_LAYER, "d", "huge")
        assert os.stat(copied).st_size == size and os.stat(copied).st_blocks * 512 < 1 << 20
        assert tree_index.tree_hash(str(copied.parent.parent)) == made.root_hash
        assert cpu_s() - before < 20, "CPU seconds: holes were read"
        stack.close()
        assert not list(check.check(stack.store.root))

    in_mount_namespace(child)


def test_archives_keep_holes_for_every_tar(tmp_path: Path) -> None:
    size = 40 * BLOCK + 17
    source = Path(
        hole(tmp_path / "f", size, {3 * BLOCK + 5: b"one", 20 * BLOCK: b"two" * BLOCK, size - 4: b"end\n"})
    )
    whole = source.read_bytes()
    content_hash, ranges = ContentHash(), [(3 * BLOCK, BLOCK), (20 * BLOCK, 3 * BLOCK), (40 * BLOCK, 17)]
    content_hash.update(whole)
    data = made_by_digests_with_holes(b"d/f", whole, ranges, content_hash.digest())
    for fmt in ("tar", "tar-zst"):
        dest = tmp_path / f"out.{fmt}"
        run(data, dest, fmt)
        packed = (
            dest.read_bytes()
            if fmt == "tar"
            else zstandard.ZstdDecompressor().decompressobj().decompress(dest.read_bytes())
        )
        assert len(packed) < 8 * BLOCK
        with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
            member = archive.getmember("d/f")
            content = archive.extractfile(member)
            assert member.issparse() and content is not None and content.read() == whole
        folder = tmp_path / f"by-tar-{fmt}"
        folder.mkdir()
        subprocess.run(["tar", "-xf", "-", "-C", folder], input=packed, check=True)
        assert (folder / "d" / "f").read_bytes() == whole
        assert os.stat(folder / "d" / "f").st_blocks * 512 < size


def made_by_digests_with_holes(
    path: bytes, whole: bytes, ranges: list[tuple[int, int]], digest: bytes, **more: Any
) -> bytes:
    """A stream of format 3 that holds one file with holes."""
    content = pax.sparse_map(ranges, len(whole)) + b"".join(whole[at : at + size] for at, size in ranges)
    header = pax.Header(
        path, pax.FILE, 0o644, len(content), 10**18, sha256=digest.hex().encode(), sparse=len(whole)
    )
    folder = (pax.Header(path.rpartition(b"/")[0], pax.DIRECTORY, 0o755, 0, 10**18), b"")
    return made_by_digests(folder, (header, content), given=True, header={"format": 3}, **more)


HOSTILE = {
    "behind the end": (b"1\n%d\n10\n" % TIB, b"x" * 10),
    "over one another": (b"3\n0\n600\n100\n10\n%d\n0\n", b"x" * 610),
    "backwards": (b"3\n600\n10\n0\n10\n%d\n0\n", b"x" * 20),
    "fewer than said": (b"9\n0\n10\n", b"x" * 10),
    "no number": (b"1\nx\n10\n", b"x" * 10),
    "negative": (b"1\n-1\n10\n", b"x" * 10),
    "too many": (b"99999999\n0\n1\n", b"x"),
    "more bytes than named": (b"2\n0\n5\n%d\n0\n", b"x" * 10),
    "no end": (b"1\n0\n10\n", b"x" * 10),
    "nothing": (b"0\n", b""),
}


@pytest.mark.parametrize("fmt", ["dir", "tar"])
@pytest.mark.parametrize("why", HOSTILE)
def test_a_map_that_is_none_of_ours_is_refused_before_anything_is_written(
    tmp_path: Path, why: str, fmt: str
) -> None:
    size = 4 * BLOCK
    lines, content = HOSTILE[why]
    lines = lines % size if b"%d" in lines else lines
    body = lines + pax.padding(len(lines)) + content
    header = pax.Header(b"f", pax.FILE, 0o644, len(body), 0, sha256=b"0" * 64, sparse=size)
    with pytest.raises(OperationError) as caught:
        run(made_by_digests((header, body), given=True, header={"format": 3}), tmp_path / "new", fmt)
    assert caught.value.details["reason"] == "bad_stream" and os.listdir(tmp_path) == []


def test_holes_that_hide_a_change_are_found_by_the_digest(tmp_path: Path) -> None:
    whole = bytes(BLOCK) + b"x" * 10 + bytes(2 * BLOCK)
    content_hash = ContentHash()
    content_hash.update(whole[:-1] + b"y")
    data = made_by_digests_with_holes(b"d/f", whole, [(BLOCK, 10)], content_hash.digest())
    with pytest.raises(OperationError) as caught:
        run(data, tmp_path / "new")
    assert caught.value.details["reason"] == "stream_corrupt" and os.listdir(tmp_path) == []


def test_in_a_format_without_holes_they_are_refused(tmp_path: Path) -> None:
    header = pax.Header(b"f", pax.FILE, 0o644, pax.BLOCK, 0, sha256=b"0" * 64, sparse=BLOCK)
    with pytest.raises(OperationError) as caught:
        run(made_by_digests((header, bytes(pax.BLOCK)), given=True), tmp_path / "new")
    assert caught.value.details["reason"] == "bad_entry"


def test_holes_do_not_count_against_the_cap_and_its_error_names_the_files_and_the_setting(
    tmp_path: Path,
) -> None:
    """N10: one file of 20 GiB of holes made every export fail, without a path and without the setting."""
    size = 20 << 30
    content_hash = ContentHash()
    content_hash.skip(size)
    content = pax.sparse_map([], size)
    sparse = (
        pax.Header(
            b"disk.img",
            pax.FILE,
            0o644,
            len(content),
            0,
            sha256=content_hash.digest().hex().encode(),
            sparse=size,
        ),
        content,
    )
    assert (
        run(made_by_digests(sparse, given=True, header={"format": 3}), tmp_path / "out")["files_written"] == 1
    )
    assert (
        os.stat(tmp_path / "out" / "disk.img").st_size == size
        and os.stat(tmp_path / "out" / "disk.img").st_blocks * 512 < BLOCK
    )
    few = ExportLimits(max_decompressed_bytes=300_000)
    for fmt in ("dir", "tar"):
        with pytest.raises(OperationError) as caught:
            run(
                made_by_digests(file(b"large", b"x" * 200_000), file(b"less", b"x" * 150_000)),
                tmp_path / "no",
                fmt,
                limits=few,
            )
        details = caught.value.details
        assert details["reason"] == "decompressed_cap" and details["limit"] == 300_000
        assert (
            details["setting"] == "manager.export.max_decompressed_bytes"
            and details["setting"] in details["hint"]
        )
        assert [found["path"] for found in details["paths"]] == [
            "large",
            "less",
        ] and "large (200000 bytes)" in caught.value.message


def test_a_base_keeps_holes_and_its_hash_does_not_know_of_them(tmp_path: Path) -> None:
    roots = list[str]()
    for name, dense in (("holed", False), ("dense", True)):
        folder = tmp_path / name
        folder.mkdir()
        path = hole(folder / "f", 50 * BLOCK, {9 * BLOCK: b"data"})
        if dense:
            body = Path(path).read_bytes()
            Path(path).write_bytes(body)
        os.chmod(path, 0o644)
        made = base.prepare(
            str(folder), str(tmp_path / f"cache-{name}"), special_files="skip", progress=lambda line: None
        )
        copied = os.stat(Path(made.path, base.BASE_LAYER, "f"))
        assert copied.st_size == 50 * BLOCK and (copied.st_blocks * 512 < 50 * BLOCK) is not dense
        roots.append(made.root_hash)
    assert roots[0] == roots[1]
