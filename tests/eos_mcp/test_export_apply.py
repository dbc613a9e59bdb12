"""The host's side of an export: whatever a stream holds and whenever we are killed, nothing but the delta
changes, or nothing at all.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import random
import resource
import shutil
import subprocess
import tarfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
import zstandard

from eos_agent.wire.protocol import OperationError
from eos_mcp.export.apply import ExportLimits, ExportRequest, Guards, apply, check_destination, recover
from eos_mcp.export.receive import folded
from eos_mcp.requests.bounds import Bounds
from layerstack.export import pax
from layerstack.kernel import fsync, syscalls
from tests import in_namespace
from tests.eos_mcp.export_runs import (
    AFTER,
    DELTA,
    STEPS,
    Entries,
    Killer,
    Refusing,
    check_changes,
    failure,
    fill,
    killed_at,
    nowhere,
    run,
    shape,
    stamps,
)
from tests.export_streams import (
    SECOND,
    Stack,
    directory,
    file,
    gone,
    hard_link,
    journals,
    made,
    made_by_digests,
    pack,
    symlink,
    tar_of,
    unpack,
)
from tests.tree_edits import WEIGHTS, Hand, Op
from tests.trees import DIRECTORY, FILE, Entry, Tree, difference, read_tree

# dir


def test_a_directory_gets_the_delta_and_keeps_all_else(tmp_path: Path) -> None:
    fill(tmp_path / "d")
    result = run(made(*DELTA), tmp_path / "d")
    assert shape(tmp_path / "d") == AFTER
    assert os.lstat(tmp_path / "d/linked").st_ino == os.lstat(tmp_path / "d/linked-2").st_ino
    assert os.lstat(tmp_path / "d/src/a").st_mtime_ns == 1_600_000_000 * SECOND + 7
    assert result == {
        "manifest_version": 2,
        "format": "dir",
        "layers_exported": ["L000002-0badcafe"],
        "files_written": 11,
        "symlinks_written": 1,
        "deletes_applied": 2,
        "opaque_clears": 1,
        "skipped_unchanged": 1,
        "bytes_written": sum(len(data) for header, data in DELTA if header.path != b"old/same"),
        "hygiene": [{"path": "linked", "why": "program"}],
        "hygiene_classes": {"program": 1},
        "created": False,
    }
    assert os.listdir(tmp_path) == ["d"]


def test_a_missing_destination_is_made_with_its_parents(tmp_path: Path) -> None:
    run(made(*DELTA), tmp_path / "x/y/d")
    assert shape(tmp_path / "x/y/d") == {path: what for path, what in AFTER.items() if path != b"src/kept"}
    assert os.listdir(tmp_path / "x/y") == ["d"]


def test_a_second_export_writes_no_file(tmp_path: Path) -> None:
    fill(tmp_path / "d")
    run(made(*DELTA), tmp_path / "d")
    before = stamps(tmp_path / "d")
    again = run(made(*DELTA), tmp_path / "d")
    assert stamps(tmp_path / "d") == before
    assert again["bytes_written"] == again["files_written"] == 0 and again["skipped_unchanged"] == 12
    assert shape(tmp_path / "d") == AFTER


def test_a_file_of_equal_size_and_time_is_compared_and_its_mode_corrected(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    big = bytes(range(256)) * 10_000
    for name, data in (("differs-late", big[:-1] + b"!"), ("equal", big)):
        (tmp_path / "d" / name).write_bytes(data)
        os.utime(tmp_path / "d" / name, ns=(0, 1_700_000_000 * SECOND + 5))
    inode = os.lstat(tmp_path / "d/equal").st_ino
    result = run(made(file(b"differs-late", big), file(b"equal", big, 0o755)), tmp_path / "d")
    assert (result["files_written"], result["skipped_unchanged"], result["bytes_written"]) == (1, 1, len(big))
    assert shape(tmp_path / "d") == {b"differs-late": ("f", 0o644, big), b"equal": ("f", 0o755, big)}
    assert os.lstat(tmp_path / "d/equal").st_ino == inode


def test_directory_and_file_take_each_others_place_there_and_back(tmp_path: Path) -> None:
    forth = made(directory(b"a"), file(b"a/f", b"1"), file(b"b", b"2"), symlink(b"c", b"a"))
    back = made(file(b"a", b"1"), directory(b"b"), file(b"b/f", b"2"), directory(b"c"))
    for data, want in ((forth, b"d"), (back, b"f"), (forth, b"d")):
        run(data, tmp_path / "d")
        assert shape(tmp_path / "d")[b"a"][0] == want.decode()


def test_directory_mode_0700_makes_closed_directories_and_leaves_old_ones(tmp_path: Path) -> None:
    fill(tmp_path / "d")
    run(made(directory(b"new", 0o755), directory(b"src", 0o700)), tmp_path / "d", directory_mode="0700")
    found = shape(tmp_path / "d")
    assert found[b"new"][1] == 0o700 and found[b"src"][1] == 0o755


def test_no_symlink_of_the_destination_is_followed(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "f").write_text("outside")
    root = tmp_path / "d"
    root.mkdir()
    (root / "to-dir").symlink_to(outside)
    (root / "to-file").symlink_to(outside / "f")
    (root / "below").mkdir()
    (root / "below" / "up").symlink_to("../../outside")
    run(
        made(
            directory(b"below"),
            gone(b"below/up"),
            directory(b"to-dir"),
            gone(b"to-dir/f"),
            file(b"to-dir/g", b"g"),
            file(b"to-file", b"new"),
        ),
        root,
    )
    assert shape(outside) == {b"f": ("f", 0o644, b"outside")}
    assert shape(root) == {
        b"below": ("d", 0o755, b""),
        b"to-dir": ("d", 0o755, b""),
        b"to-dir/g": ("f", 0o644, b"g"),
        b"to-file": ("f", 0o644, b"new"),
    }


@pytest.mark.needs("overlay")
def test_an_export_onto_a_copy_of_the_base_equals_the_version(
    short_dir: str, in_mount_namespace: Callable[..., Any]
) -> None:
    """Whatever sessions did: random work over a real overlay, three publishes, then the delta onto the base;
    and again, writing nothing.
    """
    namespace = "trusted" if os.geteuid() == 0 else "user"

    def child() -> int:
        whiteouts = 0
        for seed in range(12):
            rng = random.Random(seed)
            folder = os.path.join(short_dir, str(seed))
            os.mkdir(folder)
            owner = (os.geteuid(), os.getegid())
            base: Tree = {
                name: Entry(DIRECTORY, (0o755, *owner)) for name in ("", "a", "a/b", "c", "c/d", "c/d/a")
            }
            base |= {
                f"{d}{n}": Entry(FILE, (0o644, *owner), f"{d}{n}".encode())
                for d in ("", "a/", "a/b/", "c/d/")
                for n in ("x.o", "y", ".wh.x", "z")
            }
            stack = Stack(folder, base, namespace)

            def work(root: str, rng: random.Random = rng) -> None:
                hand = Hand(root)
                for _ in range(8):
                    hand.do(Op(rng.choice(list(WEIGHTS)), rng.randbytes(8)))

            for _ in range(3):
                stack.publish(work)
            dest = os.path.join(folder, "dest")
            shutil.copytree(stack.base, dest, symlinks=True)
            data = stack.export()
            whiteouts += unpack(data).trailer["whiteouts"]
            was = shape(dest)
            foreseen = run(data, dest, dry_run=True, base=stack.base)
            assert shape(dest) == was and foreseen["edited"] == []
            result = run(data, dest)
            assert {key: foreseen[key] for key in result} == result
            check_changes(foreseen["changes"], was, shape(dest))
            want = stack.look()
            want.pop("")
            got = read_tree(dest)
            got.pop("")
            links = [{path: e._replace(xattrs=()) for path, e in tree.items()} for tree in (got, want)]
            assert links[0] == links[1], difference(*links)
            before = stamps(dest)
            again = run(data, dest)
            assert stamps(dest) == before and again["bytes_written"] == 0
            stack.close()
        return whiteouts

    assert in_mount_namespace(child) > 10


# hostile streams

HOSTILE: list[tuple[str, Entries, str]] = [
    ("parent", (file(b"../x", b"1"),), "'..'"),
    ("parent in the middle", (directory(b"a"), file(b"a/../../x", b"1")), "'..'"),
    ("absolute", (file(b"/etc/x", b"1"),), "absolute"),
    ("nul", (file(b"a\0b" + b"c" * 120, b"1"),), "NUL"),
    ("dot", (file(b"./x", b"1"),), "normalised"),
    ("double slash", (directory(b"a"), file(b"a//x", b"1")), "normalised"),
    ("through a symlink", (symlink(b"d", b"/tmp"), file(b"d/f", b"1")), "not in the stream"),
    ("through a file", (file(b"d", b""), file(b"d/f", b"1")), "not in the stream"),
    ("below a deletion", (gone(b"d"), file(b"d/f", b"1")), "not in the stream"),
    ("twice", (file(b"f", b"1"), file(b"f", b"2")), "order"),
    ("out of order", (file(b"g", b"1"), file(b"f", b"2")), "order"),
    ("hard link outside", (hard_link(b"h", b"../../../../etc/passwd"),), "'..'"),
    ("hard link absolute", (hard_link(b"h", b"/etc/passwd"),), "absolute"),
    ("hard link to later", (hard_link(b"h", b"z"), file(b"z", b"1")), "not an earlier file"),
    ("hard link to a symlink", (symlink(b"a", b"/etc/passwd"), hard_link(b"h", b"a")), "not an earlier file"),
    ("hard link to a file of the destination", (hard_link(b"x", b"there"),), "not an earlier file"),
    (
        "our own staging",
        (directory(b".eos-export-1"), file(b".eos-export-1/plan", b"1")),
        "are reserved for exports",
    ),
    ("device", ((pax.Header(b"dev", b"3"), b""),), "unknown type"),
    ("fifo", ((pax.Header(b"fifo", b"6"), b""),), "unknown type"),
    ("unknown kind", ((pax.Header(b"a", pax.FILE, kind=b"bomb"), b""),), "unknown kind"),
    ("opaque file", ((pax.Header(b"a", pax.FILE, kind=pax.OPAQUE), b""),), "unknown kind"),
]


@pytest.mark.parametrize("fmt", ["dir", "tar"])
@pytest.mark.parametrize(
    ("entries", "token"), [case[1:] for case in HOSTILE], ids=[case[0] for case in HOSTILE]
)
def test_a_hostile_entry_refuses_the_whole_export_before_anything_is_written(
    tmp_path: Path, entries: Entries, token: str, fmt: str
) -> None:
    root = tmp_path / "d"
    root.mkdir()
    (root / "there").write_text("there")
    if fmt == "tar" and token == "are reserved for exports":
        return
    error = failure(made(file(b"!first", b"1"), *entries), root if fmt == "dir" else root / "x.tar", fmt)
    assert error.kind == "operation_failed" and token in error.message
    assert shape(root) == {b"there": ("f", 0o644, b"there")} and os.listdir(tmp_path) == ["d"]


def spoilt() -> Iterable[tuple[str, bytes, str]]:
    good = made(file(b"f", b"x" * 5000))
    tar = tar_of([file(b"f", b"x" * 5000)])
    yield "nothing", b"", "export_interrupted"
    yield "no JSON", b"hello\n" + good, "bad_stream"
    yield "another format", made(header={"format": 9}), "bad_stream"
    yield "cut in the frames", good[:3000], "export_interrupted"
    yield "cut before the trailer", good[: good.rindex(b"{")], "export_interrupted"
    yield "a flipped byte", good.replace(b"xxx", b"xyx", 1), "stream_corrupt"
    yield "another digest", made(file(b"f"), trailer={"sha256": "0" * 64}), "stream_corrupt"
    yield "another count", made(file(b"f"), trailer={"entries": 2}), "stream_corrupt"
    by_digests = made_by_digests(file(b"f", b"x" * 5000), file(b"g", b"y" * 300_000))
    yield "a flipped byte of a small file", by_digests.replace(b"xxx", b"xyx", 1), "stream_corrupt"
    yield "a flipped byte of a large file", by_digests.replace(b"yyy", b"yxy", 1), "stream_corrupt"
    yield "another mode", by_digests.replace(b"0000644", b"0000646", 1), "bad_stream"
    yield "no digest", made(file(b"f"), header={"format": 2}), "bad_entry"
    yield (
        "a digest of all, where one of the rest is due",
        made_by_digests(file(b"f", b"x"), trailer={"sha256": "1" * 64}),
        "stream_corrupt",
    )
    yield (
        "a digest of nothing",
        made((pax.Header(b"l", pax.SYMLINK, target=b"t", sha256=b"0" * 64), b"")),
        "bad_stream",
    )
    yield "a damaged header", pack(b"\1" * 512 + tar[512:], count=1), "bad_stream"
    yield "a wrong check sum", pack(b"g" + tar[1:], count=1), "bad_stream"
    yield "no end", pack(tar[:-1024], count=1), "bad_stream"
    yield "more after the end", pack(tar + b"\0" * 512, count=1), "bad_stream"
    yield (
        "a huge frame",
        json.dumps({"format": 1, "manifest_version": 2}).encode() + b"\n\xff\xff\xff\xff",
        "bad_stream",
    )


@pytest.mark.parametrize("fmt", ["dir", "tar", "tar-zst"])
@pytest.mark.parametrize(
    ("data", "reason"), [case[1:] for case in spoilt()], ids=[case[0] for case in spoilt()]
)
def test_a_damaged_or_broken_stream_leaves_nothing_behind(
    tmp_path: Path, data: bytes, reason: str, fmt: str
) -> None:
    error = failure(data, tmp_path / "new", fmt)
    assert error.kind == "operation_failed" and error.details["reason"] == reason
    assert os.listdir(tmp_path) == []


def test_the_refusal_of_the_sandbox_is_passed_on(tmp_path: Path) -> None:
    old = b'{"error":{"kind":"unknown_op","message":"unknown operation: export_stream","details":{}}}\n'
    error = failure(old, tmp_path / "new")
    assert (error.kind, error.details) == ("operation_failed", {"daemon_op": "export_layerstack"})
    late = made(
        file(b"f", b"1"),
        trailer={"error": {"kind": "operation_failed", "message": "export: no", "details": {"errno": "EIO"}}},
    )
    error = failure(late, tmp_path / "new")
    assert (error.message, error.details) == ("export: no", {"errno": "EIO"})
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("fmt", ["dir", "tar"])
@pytest.mark.parametrize(
    ("limits", "token"),
    [
        (ExportLimits(max_stream_bytes=4000), "export stream cap exceeded"),
        (ExportLimits(max_decompressed_bytes=4000), "decompressed"),
        (ExportLimits(max_apply_entries=2), "entry-count cap exceeded"),
    ],
)
def test_a_cap_is_named_and_the_destination_is_not_made(
    tmp_path: Path, limits: ExportLimits, token: str, fmt: str
) -> None:
    data = made(file(b"a", b"x" * 3000), file(b"b", b"x" * 3000), file(b"c"))
    error = failure(data, tmp_path / "new", fmt, limits=limits)
    assert error.kind == "operation_failed" and token in error.message
    assert os.listdir(tmp_path) == []


def test_a_silent_and_a_lost_connection_are_named(tmp_path: Path) -> None:
    class Broken(io.BytesIO):
        error: type[OSError] = TimeoutError

        def read(self, n: int | None = -1, /) -> bytes:
            if self.tell() > 1000:
                raise self.error("gone")
            return super().read(n)

    data = made(file(b"f", b"x" * 5000), frame=500)
    for kind, reason in ((TimeoutError, "export_stalled"), (ConnectionResetError, "export_interrupted")):
        reader = Broken(data)
        reader.error = kind
        with pytest.raises(OperationError) as caught:
            apply(
                reader,
                ExportRequest(str(tmp_path / "new")),
                limits=ExportLimits(),
                places=nowhere(),
                progress=lambda line: None,
            )
        assert caught.value.details["reason"] == reason
    assert os.listdir(tmp_path) == []


# archives


@pytest.mark.parametrize("fmt", ["tar", "tar-zst"])
def test_an_archive_is_what_an_image_layer_is(tmp_path: Path, fmt: str) -> None:
    dest = tmp_path / "x.tar"
    dest.write_bytes(b"\x28\xb5\x2f\xfd an archive of before")
    delta = [entry for entry in DELTA if b".wh." not in entry[0].path]
    result = run(made(*delta), dest, fmt)
    data = dest.read_bytes()
    assert (
        result["bytes_written"] == len(data)
        and result["whiteouts_emitted"] == 2
        and result["files_written"] == 11
    )
    assert set(result) == {
        "manifest_version",
        "format",
        "layers_exported",
        "files_written",
        "symlinks_written",
        "whiteouts_emitted",
        "bytes_written",
        "hygiene",
        "hygiene_classes",
    }
    assert result["hygiene"] == [{"path": "linked", "why": "program"}] and result["hygiene_classes"] == {
        "program": 1
    }
    if fmt == "tar-zst":
        assert data[:4] == b"\x28\xb5\x2f\xfd"
        data = zstandard.ZstdDecompressor().stream_reader(data).read()
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        members = archive.getmembers()
    names = [member.name for member in members]
    assert names[-2:] == [".wh.gone", "src/.wh.gone"]
    assert names.index("old/.wh..wh..opq") == names.index("old") + 1
    assert names.index("src") < names.index("src/a") < names.index("src/.wh.gone")
    assert all(not member.pax_headers.get("EOS.kind") for member in members)
    assert os.listdir(tmp_path) == ["x.tar"]


def test_an_archive_that_would_turn_a_file_into_a_deletion_is_refused_by_name(tmp_path: Path) -> None:
    data = made(directory(b"d"), file(b"d/.wh.x", b"1"), file(b"f", b"1"))
    error = failure(data, tmp_path / "x.tar", "tar")
    assert (
        error.kind == "operation_failed"
        and "whiteout" in error.message
        and error.details["paths"] == ["d/.wh.x"]
    )
    assert os.listdir(tmp_path) == []
    run(data, tmp_path / "d")
    assert shape(tmp_path / "d")[b"d/.wh.x"] == ("f", 0o644, b"1")


def test_an_archive_unpacked_over_the_base_by_hand_gives_the_exported_tree(tmp_path: Path) -> None:
    """GNU tar reads it; deletions are the reader's business, so none are in this delta."""
    fill(tmp_path / "base")
    delta = [
        entry
        for entry in DELTA
        if entry[0].kind != pax.WHITEOUT
        and not entry[0].path.startswith((b"old", b"was", b"src/.wh", b"closed"))
    ]
    run(made(*delta), tmp_path / "x.tar.zst", "tar-zst")
    shutil.copytree(tmp_path / "base", tmp_path / "d", symlinks=True)
    packed = zstandard.ZstdDecompressor().stream_reader((tmp_path / "x.tar.zst").read_bytes()).read()
    subprocess.run(
        ["tar", "-C", str(tmp_path / "d"), "--no-same-owner", "-xpf", "-"], input=packed, check=True
    )
    run(made(*delta), tmp_path / "base")
    assert shape(tmp_path / "d") == shape(tmp_path / "base")


# destinations


def test_dangerous_destinations_are_refused_by_text_and_by_what_they_resolve_to(tmp_path: Path) -> None:
    home = tmp_path / "home"
    state = home / ".local/state/eos"
    state.mkdir(parents=True)
    (tmp_path / "link-home").symlink_to(home)
    (tmp_path / "link-state").symlink_to(state)
    (tmp_path / "file").write_text("file")
    (tmp_path / "link-dir").symlink_to(tmp_path)
    guards = Guards(
        home=str(home), own=(str(state),), journals=journals(), registry=str(tmp_path / "r/registry.json")
    )
    wrong = [
        "",
        "relative",
        "/",
        "/tmp/..",
        "//",
        str(home),
        f"{home}/",
        f"{home}/x/..",
        f"{tmp_path}/a/.export/b",
        f"{tmp_path}/.export",
    ]
    wrong += [
        str(state),
        f"{state}/sandboxes/x",
        f"{tmp_path}/link-state/x",
        f"{tmp_path}/link-dir/home",
        f"{tmp_path}/r",
        f"{tmp_path}/r/registry.json",
    ]
    for fmt in ("dir", "tar"):
        for dest in wrong:
            with pytest.raises(OperationError) as caught:
                check_destination(dest, fmt, guards)
            assert (caught.value.kind, caught.value.details["argument"]) == ("invalid_request", "dest"), dest
    for place, fmt in (
        (tmp_path / "file", "dir"),
        (tmp_path / "link-home", "dir"),
        (home, "tar"),
        (tmp_path / "no/x.tar", "tar"),
    ):
        with pytest.raises(OperationError) as caught:
            check_destination(str(place), fmt, guards)
        assert caught.value.kind == "invalid_request"
    with pytest.raises(OperationError) as caught:
        check_destination(str(tmp_path / "x"), "zip", guards)
    assert (caught.value.kind, caught.value.details["argument"]) == ("invalid_request", "format")
    for place, fmt in (
        (home / "project", "dir"),
        (tmp_path / "link-dir/new", "dir"),
        (home / "x.tar", "tar"),
        (tmp_path / "no/such", "dir"),
    ):
        check_destination(str(place), fmt, guards)


def test_an_export_into_a_symlink_goes_to_the_directory_that_it_leads_to(tmp_path: Path) -> None:
    """N11: a sandbox could be made from a workspace given so, and not exported to it."""
    real, link, other = tmp_path / "real", tmp_path / "link", tmp_path / "other"
    real.mkdir()
    other.mkdir()
    (tmp_path / "half").symlink_to("link")
    link.symlink_to("real")
    data = made(file(b"f", b"1"))
    assert run(data, tmp_path / "half", dry_run=True)["files_written"] == 1
    assert run(data, tmp_path / "half")["files_written"] == 1
    assert os.listdir(real) == ["f"] and link.is_symlink() and run(data, real)["files_written"] == 0
    begun = ExportRequest(check_destination(str(link), "dir", nowhere()), pinned=True)
    real.rename(tmp_path / "away")
    real.symlink_to("other")
    with pytest.raises(OperationError) as caught:  # what it led to when the call began is a link now
        apply(io.BytesIO(data), begun, limits=ExportLimits(), places=nowhere(), progress=lambda line: None)
    assert caught.value.details["reason"] == "bad_destination" and os.listdir(other) == []
    for target in ("nowhere", "loop", "f"):
        (tmp_path / "f").touch()
        (tmp_path / "loop").unlink(missing_ok=True)
        (tmp_path / "loop").symlink_to(target)
        assert failure(data, tmp_path / "loop").details["reason"] == "bad_destination"
    assert not (tmp_path / "nowhere").exists()


def test_directories_above_a_new_destination_are_not_made_through_a_link_that_came_meanwhile(
    tmp_path: Path,
) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "outside").mkdir()

    class Swapping(Bounds):
        """Is asked last before anything is opened."""

        def check(self, path: str, argument: str) -> None:
            os.rename(tmp_path / "in", tmp_path / "was")
            (tmp_path / "in").symlink_to("outside")

    with pytest.raises(OperationError):
        run(made(file(b"f", b"1")), tmp_path / "in/a/b/dest", bound=Swapping())
    assert os.listdir(tmp_path / "outside") == os.listdir(tmp_path / "was") == []


def test_a_destination_that_turns_bad_while_the_sandbox_prepares_is_refused(tmp_path: Path) -> None:
    (tmp_path / "d").symlink_to("/nonexistent")
    error = failure(made(file(b"f", b"1")), tmp_path / "d")
    assert error.kind == "invalid_request" and (tmp_path / "d").is_symlink()


@pytest.mark.parametrize("fmt", ["dir", "tar"])
def test_both_formats_of_the_stream_make_the_same(tmp_path: Path, fmt: str) -> None:
    delta = [entry for entry in DELTA if fmt == "dir" or b".wh." not in entry[0].path]
    entries = (*delta, file(b"zz-large", os.urandom(2_500_000)), file(b"zz-none"))
    one, other = (
        run(data, tmp_path / name, fmt)
        for data, name in ((made(*entries), "a"), (made_by_digests(*entries), "b"))
    )
    assert one == other
    if fmt == "dir":
        assert shape(tmp_path / "a") == shape(tmp_path / "b")
    else:
        assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


# size


@pytest.mark.parametrize("fmt", ["dir", "tar-zst"])
def test_a_large_export_is_never_held_in_memory(tmp_path: Path, fmt: str) -> None:
    """8,000 entries and 128 MiB of content: the stream is made while it is read, and the process grows by
    less than 40 MiB.
    """

    def large() -> Iterable[bytes]:
        digest, size, count = hashlib.sha256(), 0, 0
        yield b'{"format":1,"manifest_version":2}\n'
        block = os.urandom(1 << 20)
        for n in range(8_000):
            header = pax.Header(b"%06d" % n, pax.FILE, 0o644, 32 << 20 if n % 2000 == 0 else 5, 7)
            pieces = [block] * 32 if header.size > 5 else [b"small"]
            for piece in (pax.encode(header), *pieces, pax.padding(header.size)):
                if piece:
                    digest.update(piece)
                    size += len(piece)
                    yield len(piece).to_bytes(4, "big")
                    yield piece
            count += 1
        digest.update(pax.END)
        yield (1024).to_bytes(4, "big") + pax.END + bytes(4)
        yield (
            json.dumps({"entries": count, "tar_bytes": size + 1024, "sha256": digest.hexdigest()}).encode()
            + b"\n"
        )

    class Lazy:
        def __init__(self) -> None:
            self.pieces, self.rest = iter(large()), b""

        def read(self, n: int, /) -> bytes:
            self.rest = self.rest or next(self.pieces, b"")
            out, self.rest = self.rest[:n], self.rest[n:]
            return out

        def readline(self, limit: int, /) -> bytes:
            out = self.rest or next(self.pieces, b"")
            self.rest = b""
            return out

    def child() -> tuple[int, int]:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        result = apply(
            Lazy(),
            ExportRequest(str(tmp_path / "x"), fmt),
            limits=ExportLimits(),
            places=nowhere(),
            progress=lambda line: None,
        )
        return result["files_written"], (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) >> 10

    files, grown_mib = in_namespace.call(None, child)
    assert files == 8_000 and grown_mib < 40


# hygiene


def test_files_that_the_machine_may_run_are_named(tmp_path: Path) -> None:
    result = run(
        made(
            directory(b".git"),
            directory(b".git/hooks"),
            file(b".git/hooks/post-checkout", b"#!/bin/sh\n", 0o755),
            file(b".git/hooks/pre-push.sample", b""),
            directory(b".github"),
            directory(b".github/workflows"),
            file(b".github/workflows/ci.yml", b""),
            directory(b".vscode"),
            file(b".vscode/tasks.json", b"{}"),
            file(b"plain.py", b""),
            file(b"sitecustomize.py", b""),
            file(b"su", b"", 0o4755),
            symlink(b"up", b"../../etc/passwd"),
            symlink(b"within", b"plain.py"),
        ),
        tmp_path / "d",
        keep_setuid=True,
    )
    assert [(found["path"], found["why"]) for found in result["hygiene"]] == [
        (".git/hooks/post-checkout", "git_hook"),
        (".github/workflows/ci.yml", "ci"),
        (".vscode/tasks.json", "editor_task"),
        ("sitecustomize.py", "interpreter_startup"),
        ("su", "setuid"),
        ("up", "outward_symlink"),
    ]


def test_names_that_a_folding_file_system_takes_for_one_have_one_key() -> None:
    assert folded(b"d/README") == folded(b"D/readme")
    assert folded("caf\u00e9".encode()) == folded("cafe\u0301".encode()) == folded("CAFE\u0301".encode())
    assert folded(b"\xff") != folded(b"\xfe")


# kills and full disks


@pytest.mark.parametrize("exists", [True, False], ids=["into a directory", "into nothing"])
@pytest.mark.parametrize("name", STEPS)
def test_an_export_killed_at_any_step_is_taken_back_and_then_repeated(
    tmp_path: Path, name: str, exists: bool
) -> None:
    dest, done, count = tmp_path / "d", False, 0
    while not done:
        count += 1 if count < 4 else 3
        if exists:
            fill(dest)
        before = shape(dest) if exists else None
        done = not killed_at(name, count, dest)
        if not done:
            assert recover(str(dest), journals()) in (["rolled_back"], ["swept"])
            assert (shape(dest) if dest.exists() else None) == before
            assert recover(str(dest), journals()) == []
            assert killed_at(name, count, dest)
            run(made(*DELTA), dest)
        assert shape(dest) == {path: what for path, what in AFTER.items() if exists or path != b"src/kept"}
        assert os.listdir(tmp_path) == ["d"]
        fsync.remove_tree(str(dest))
    assert count > 1 or (not exists and name in ("export.clear", "export.delete", "export.out"))


@pytest.mark.parametrize("name", ["export.take_back", "export.back"])
def test_a_recovery_killed_at_any_step_is_done_by_the_next(tmp_path: Path, name: str) -> None:
    dest, count, done = tmp_path / "d", 0, False
    while not done:
        count += 1
        fill(dest)
        before = shape(dest)
        assert killed_at("export.sync_names", 1, dest)
        try:
            in_namespace.call(None, recover, str(dest), journals(), step=Killer(name, count))
            done = True
        except in_namespace.ChildDied:
            assert recover(str(dest), journals()) == ["rolled_back"]
        assert shape(dest) == before and os.listdir(tmp_path) == ["d"]
        fsync.remove_tree(str(dest))
    assert count > 5


@pytest.mark.parametrize("name", STEPS)
def test_an_error_at_any_step_leaves_the_destination_as_it_was(tmp_path: Path, name: str) -> None:
    fill(tmp_path / "d")
    before, times = shape(tmp_path / "d"), {p: s[:2] for p, s in stamps(tmp_path / "d").items()}
    for count in range(1, 30):
        try:
            run(made(*DELTA), tmp_path / "d", step=Refusing(name, count))
        except OperationError as error:
            assert error.details["errno"] == "EIO"
            assert shape(tmp_path / "d") == before
            assert {p: s[:2] for p, s in stamps(tmp_path / "d").items()} == times
        else:
            assert count > 1 and shape(tmp_path / "d") == AFTER
            return
    raise AssertionError("the step never ends")


@pytest.mark.needs("uid")
def test_an_ordinary_user_may_export_into_closed_directories_and_gets_all_or_nothing(short_dir: str) -> None:
    """Modes bind an ordinary user: the delta writes below 0555 and makes 0500, and what fails in the middle
    is still taken back.
    """
    if os.geteuid() == 0:
        os.chown(short_dir, in_namespace.ORDINARY_UID, in_namespace.ORDINARY_UID)

    def child() -> None:
        dest = Path(short_dir, "d")
        fill(dest)
        before = shape(dest)
        for name in STEPS:
            for count in (1, 2, 5):
                with contextlib.suppress(OperationError):
                    run(made(*DELTA), dest, step=Refusing(name, count))
                    break
                assert shape(dest) == before and os.listdir(short_dir) == ["d"]
            else:
                continue
            assert shape(dest) == AFTER
            fsync.remove_tree(str(dest))
            fill(dest)
        run(made(*DELTA), dest)
        assert shape(dest) == AFTER
        assert run(made(*DELTA), dest)["bytes_written"] == 0

    in_namespace.call("uid" if os.geteuid() == 0 else None, child)


@pytest.mark.parametrize("fmt", ["dir", "tar"])
@pytest.mark.needs("overlay")
def test_a_full_disk_is_named_and_leaves_the_destination_as_it_was(
    short_dir: str, in_mount_namespace: Callable[..., Any], fmt: str
) -> None:
    def child() -> None:
        syscalls.mount("none", short_dir, "tmpfs", 0, "size=2m")
        root = Path(short_dir, "d")
        fill(root)
        before = shape(root)
        rest = os.urandom(3 << 20)
        error = failure(
            made(file(b"a", b"fits"), file(b"b", rest), directory(b"src")),
            root if fmt == "dir" else root / "x.tar",
            fmt,
        )
        assert (error.kind, error.details["reason"], error.details["errno"]) == (
            "operation_failed",
            "disk_full",
            "ENOSPC",
        )
        assert shape(root) == before and os.listdir(short_dir) == ["d"]

    in_mount_namespace(child)


def test_a_second_export_to_a_destination_that_is_being_written_is_refused(tmp_path: Path) -> None:
    fill(tmp_path / "d")
    seen: list[str] = []

    def step(name: str) -> None:
        if name == "export.ready":
            seen.append(failure(made(file(b"f", b"1")), tmp_path / "d").message)

    run(made(*DELTA), tmp_path / "d", step=step)
    assert len(seen) == 1 and "in flight" in seen[0]
    assert shape(tmp_path / "d") == AFTER


def test_a_killed_archive_is_swept_by_the_next_export(tmp_path: Path) -> None:
    run(made(file(b"f", b"0")), tmp_path / "x.tar", "tar")
    before = (tmp_path / "x.tar").read_bytes()
    for name in ("export.sync", "export.rename"):
        with pytest.raises(in_namespace.ChildDied):
            in_namespace.call(
                None, run, made(file(b"f", b"1")), str(tmp_path / "x.tar"), "tar", step=Killer(name, 1)
            )
        assert len(os.listdir(tmp_path)) == 2 and (tmp_path / "x.tar").read_bytes() == before
    run(made(file(b"f", b"1")), tmp_path / "x.tar", "tar")
    assert os.listdir(tmp_path) == ["x.tar"]


@pytest.mark.parametrize("fmt", ["dir", "tar"])
def test_a_destination_that_leads_out_of_the_bounds_by_now_is_refused_before_it_is_opened(
    tmp_path: Path, fmt: str
) -> None:
    """A parent became a link after the request was checked."""
    (tmp_path / "outside").mkdir()
    (tmp_path / "in").mkdir()
    (tmp_path / "in/deep").symlink_to(tmp_path / "outside")
    bound = Bounds((str(tmp_path / "in"),))
    error = failure(made(file(b"f", b"1")), tmp_path / "in/deep/d", fmt, bound=bound)
    assert error.details["reason"] == "outside_roots" and os.listdir(tmp_path / "outside") == []
    run(made(file(b"f", b"1")), tmp_path / "in/d", fmt, bound=bound)
    assert (tmp_path / "in/d").exists()
