"""The export stream: what it holds, that it is a pure function of the version, that it can be taken up again,
that it never lies about its end.
"""

from __future__ import annotations

import errno
import hashlib
import io
import os
import shutil
import tarfile
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from layerstack.export import pax
from layerstack.export.stream import RANGE_BYTES, RANGE_MAX, FileRange, flatten_changes, stream
from layerstack.layers import index_cursor
from layerstack.layers.index import record
from layerstack.layers.index_cursor import Digests
from layerstack.layers.index_file import Indexed, IndexRow, dump
from tests.export_streams import Stack, file, joined, tar_of, unpack
from tests.layerstack import store_fixture as stacks
from tests.trees import DIRECTORY, FILE, Entry, Tree

Call = Callable[..., Any]


def base() -> Tree:
    owner = (os.geteuid(), os.getegid())
    tree: Tree = {name: Entry(DIRECTORY, (0o755, *owner)) for name in ("", "src", "src/deep", "old", "gone")}
    for name in ("src/a", "src-x", "src/deep/b", "gone/f", "top", *(f"old/{n:02d}" for n in range(20))):
        tree[name] = Entry(FILE, (0o644, *owner), name.encode())
    return tree


ODD = os.fsdecode(b"\xff\xfe odd")
LONG = "n" * 255


def edit(root: str) -> None:
    def put(path: str, data: bytes, mode: int = 0o644) -> None:
        Path(root, path).write_bytes(data)
        os.chmod(os.path.join(root, path), mode)

    put("src/deep/new", b"new", 0o755)
    os.unlink(f"{root}/src/a")
    shutil.rmtree(f"{root}/gone")
    shutil.rmtree(f"{root}/old")
    os.mkdir(f"{root}/old")
    put("old/05", b"made again")
    put(".wh.x", b"an ordinary file")
    put(ODD, b"no utf-8")
    put(LONG, b"long")
    put("first", b"linked")
    os.link(f"{root}/first", f"{root}/second")
    os.symlink("../out of here", f"{root}/link")
    os.mkdir(f"{root}/empty", 0o700)
    put("src-x", b"between src and its content in byte order")
    os.utime(f"{root}/first", ns=(1, 1_234_567_890_123_456_789))


def kinds(stack: Stack) -> dict[str, bytes]:
    return {
        os.fsdecode(entry.header.path): entry.header.kind or entry.header.type
        for entry in flatten_changes(stack.snapshot())
    }


@pytest.fixture
def exported(short_dir: str, in_mount_namespace: Call) -> Callable[[Callable[[Stack], Any]], Any]:
    """Runs a look at the published `edit` of `base` in a child that may mount."""

    namespace = "trusted" if os.geteuid() == 0 else "user"

    def run(look: Callable[[Stack], Any]) -> Any:
        def child() -> Any:
            stack = Stack(short_dir, base(), namespace)
            try:
                stack.publish(edit)
                return look(stack)
            finally:
                stack.close()

        return in_mount_namespace(child)

    return run


@pytest.mark.needs("overlay")
def test_the_delta_holds_each_change_once_and_nothing_of_the_base(exported: Call) -> None:
    found = exported(kinds)
    assert found == {
        ".wh.x": pax.FILE,
        "empty": pax.DIRECTORY,
        "first": pax.FILE,
        "gone": pax.WHITEOUT,
        "link": pax.SYMLINK,
        LONG: pax.FILE,
        "old": pax.OPAQUE,
        "old/05": pax.FILE,
        "second": pax.HARD_LINK,
        "src": pax.DIRECTORY,
        "src-x": pax.FILE,
        "src/a": pax.WHITEOUT,
        "src/deep": pax.DIRECTORY,
        "src/deep/new": pax.FILE,
        ODD: pax.FILE,
    }
    paths = [os.fsencode(path) for path in found]
    assert paths == sorted(paths)
    for path in paths:
        assert b"/" not in path or os.fsdecode(path.rpartition(b"/")[0]) in list(found)[: paths.index(path)]


@pytest.mark.needs("overlay")
def test_any_tar_reads_what_was_exported_with_modes_times_links_and_names(exported: Call) -> None:
    header, tar, trailer = unpack(exported(lambda stack: stack.export(live_workspace_sessions=["s9"])))
    assert (
        header["manifest_version"] == 2
        and len(header["layers_exported"]) == 1
        and header["live_workspace_sessions"] == ["s9"]
    )
    with tarfile.open(fileobj=io.BytesIO(tar)) as archive:
        members = {member.name: member for member in archive}
        odd = archive.extractfile(members[ODD])
        assert odd is not None and odd.read() == b"no utf-8"
    assert members["src/deep/new"].mode == 0o755 and members["empty"].mode == 0o700
    assert members["first"].pax_headers["mtime"] == "1234567890.123456789"
    assert members["second"].islnk() and members["second"].linkname == "first"
    assert members["link"].issym() and members["link"].linkname == "../out of here"
    assert (
        members["old"].pax_headers["EOS.kind"] == "opaque"
        and members["src/a"].pax_headers["EOS.kind"] == "whiteout"
    )
    assert trailer["entries"] == len(members) and trailer["tar_bytes"] == len(tar)
    assert (trailer["whiteouts"], trailer["opaques"], trailer["symlinks"], trailer["hard_links"]) == (
        2,
        1,
        1,
        1,
    )


@pytest.mark.needs("overlay")
def test_two_streams_of_one_version_are_equal_and_go_on_at_any_offset(exported: Call) -> None:
    def look(stack: Stack) -> None:
        whole = unpack(stack.export())
        assert unpack(stack.export()) == whole
        for offset in (1, 511, 512, 5000, len(whole.tar) - 1, len(whole.tar)):
            rest = unpack(stack.export(offset=offset))
            assert rest.tar == whole.tar[offset:]
            assert rest.trailer == whole.trailer
        assert unpack(stack.export(offset=len(whole.tar) + 1)).trailer["error"]["kind"] == "invalid_request"

    exported(look)


def no_digest(layer_id: str, path: str) -> None:
    """The layer's index knows none: the file is read."""


@pytest.mark.needs("overlay")
@pytest.mark.parametrize("size", [10, RANGE_BYTES + 1])
@pytest.mark.parametrize("digests", [None, no_digest])
def test_a_file_that_lost_bytes_ends_the_stream_with_an_error_and_no_digest(
    exported: Call, digests: Any, size: int
) -> None:
    def look(stack: Stack) -> dict[str, Any]:
        stack.publish(lambda root: Path(root, "first").write_bytes(bytes(size)))
        entry = stack.snapshot().stat("first")
        assert entry is not None
        os.truncate(entry.real_path, 2)

        class Shrunk:
            """The version as it was when it was looked at."""

            manifest, xattr_namespace = stack.snapshot().manifest, stack.snapshot().xattr_namespace
            stat = staticmethod(stack.snapshot().stat)

            def changed(self) -> Any:
                yield "first", entry, False

        return unpack(joined(stream(Shrunk(), digests=digests))).trailer

    trailer = exported(look)
    assert "sha256" not in trailer and trailer["error"]["details"]["reason"] == "store_corrupt"


@stacks.on_a_stack({"f": "f\n", "d/x": "x\n"})
def test_attributes_that_are_named_like_marks_of_overlays_are_exported_as_the_session_sees_them(
    stack: stacks.Stack,
) -> None:
    session = stack.session()
    own = stack.store.xattr_namespace.prefix.startswith("user.")
    wanted: dict[str, dict[str, bytes]] = {"f": {}, "d": {}}
    for path, found in wanted.items():
        for name in ("user.overlay.opaque", "user.overlay.overlay.opaque", "user.overlaid", "user.note"):
            try:
                os.setxattr(session.at(path), name, name.encode())
            except (
                OSError
            ) as error:  # an older kernel keeps no xattr of the namespace that its own marks are in
                assert (
                    own
                    and name.startswith("user.overlay.")
                    and error.errno in (errno.EPERM, errno.EOPNOTSUPP)
                ), name
                continue
            found[name] = os.getxattr(session.at(path), name)
    session.publish()
    assert len(wanted["f"]) == 4 or own
    for entry in flatten_changes(stack.store.snapshot(), xattrs=True):
        found = {os.fsdecode(name): value for name, value in entry.header.xattrs.items()}
        assert found == wanted[os.fsdecode(entry.header.path)]


@pytest.mark.needs("overlay")
def test_in_format_2_each_file_has_the_digest_of_its_index_and_the_rest_is_what_the_trailer_vouches_for(
    exported: Call,
) -> None:
    def look(stack: Stack) -> None:
        stack.publish(lambda root: Path(root, "src", "big").write_bytes(os.urandom(RANGE_MAX + RANGE_BYTES)))
        plain, whole = unpack(stack.export()), unpack(stack.export_by_digests())
        assert (plain.header["format"], whole.header["format"]) == (1, 2)
        digest, members = hashlib.sha256(), dict[str, tuple[str, dict[str, str]]]()
        with tarfile.open(fileobj=io.BytesIO(whole.tar)) as archive:
            at = 0
            for member in archive:
                digest.update(whole.tar[at : member.offset_data])
                at = member.offset_data + member.size
                content = archive.extractfile(member) if member.isreg() else None
                found = (
                    hashlib.sha256(content.read()).hexdigest()
                    if content is not None and "EOS.kind" not in member.pax_headers
                    else None
                )
                assert member.pax_headers.get("EOS.sha256") == found, member.name
                members[member.name] = (str(member.type), {**member.pax_headers, "EOS.sha256": ""})
            digest.update(whole.tar[at:])
        assert whole.trailer["sha256"] == digest.hexdigest()
        with tarfile.open(fileobj=io.BytesIO(plain.tar)) as archive:
            assert members == {
                member.name: (str(member.type), {**member.pax_headers, "EOS.sha256": ""})
                for member in archive
            }
        for offset in (
            1,
            700,
            len(whole.tar) - RANGE_BYTES - 3000,
            len(whole.tar) - RANGE_MAX,
            len(whole.tar),
        ):
            rest = unpack(stack.export_by_digests(offset=offset))
            assert rest.tar == whole.tar[offset:] and rest.trailer == whole.trailer

    exported(look)


@pytest.mark.needs("overlay")
def test_large_files_are_given_as_ranges_and_nobody_reads_them(exported: Call) -> None:
    def look(stack: Stack) -> None:
        sizes = {"below": RANGE_BYTES - 1, "at": RANGE_BYTES, "long": 2 * RANGE_MAX + 5}
        stack.publish(
            lambda root: [Path(root, name).write_bytes(bytes(size)) for name, size in sizes.items()]
        )
        digests = Digests(stack.store.root)
        pieces = [
            piece for piece in stream(stack.snapshot(), digests=digests) if isinstance(piece, FileRange)
        ]
        digests.close()
        assert [(piece.offset, piece.size) for piece in pieces] == [
            (0, RANGE_BYTES),
            (0, RANGE_MAX),
            (RANGE_MAX, RANGE_MAX),
            (2 * RANGE_MAX, 5),
        ]

    exported(look)


@settings(deadline=None, max_examples=40)
@given(
    st.lists(
        st.lists(
            st.binary(min_size=1, max_size=6).filter(lambda name: b"\0" not in name and b"/" not in name),
            unique=True,
        ),
        min_size=1,
    )
)
def test_every_digest_of_many_index_files_is_found_in_one_pass(layers: list[list[bytes]]) -> None:
    at_once = 6  # 64 of them are the same rule, at ten times the cost
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(index_cursor, "OPEN_AT_ONCE", at_once)
        os.mkdir(f"{folder}/.layer-metadata")
        wanted: dict[tuple[bytes, str], bytes | None] = {}
        for n, names in enumerate(layers * (at_once // len(layers) + 2)):
            rows: list[IndexRow] = []
            for at, name in enumerate(sorted(names)):
                digest = hashlib.sha256(b"%d %s" % (n, name)).digest() if at % 3 else None
                rows.append(IndexRow(os.fsdecode(name), record("f" if at % 3 else "d"), 0o644, 1, digest))
                wanted[name, f"L{n}"] = digest
            Path(folder, ".layer-metadata", f"L{n}.index").write_bytes(
                dump(Indexed({}, tuple(rows), "", 0, 0))
            )
            wanted[b"between", f"L{n}"] = wanted.get((b"between", f"L{n}"))
        digests = Digests(folder)
        before = len(os.listdir("/proc/self/fd"))
        try:
            for name, layer_id in sorted(wanted):
                assert digests(layer_id, os.fsdecode(name)) == wanted[name, layer_id]
                assert len(os.listdir("/proc/self/fd")) <= before + at_once
        finally:
            digests.close()


def test_a_header_that_was_encoded_is_decoded_to_itself() -> None:
    cases = [
        pax.Header(b"a", pax.FILE, 0o644, 5, 1_500_000_000),
        pax.Header(b"x" * 100, pax.DIRECTORY, 0o1777, 0, -1),
        pax.Header(b"d/" + b"\xff" * 300, pax.FILE, 0o4755, 1 << 40, -1_500_000_000_000_000_001),
        pax.Header("é".encode() * 80, pax.SYMLINK, 0o777, 0, 0, b"t" * 400),
        pax.Header(b"h", pax.HARD_LINK, 0o600, 0, 1 << 62, b"\xfe"),
        pax.Header(b"w", pax.FILE, 0, 0, 0, kind=pax.WHITEOUT),
        pax.Header(b"s", pax.FILE, 0o644, 9, 5, sha256=b"0123456789abcdef" * 4),
        pax.Header(
            b"o",
            pax.DIRECTORY,
            0o755,
            0,
            123,
            kind=pax.OPAQUE,
            xattrs={b"user.a": b"\0=\n\xff", b"user.b": b""},
        ),
    ]
    for header in cases:
        decoder, data, at = pax.PaxDecoder(), pax.encode(header), 0
        assert len(data) % pax.BLOCK == 0
        found = None
        while at < len(data):
            found = decoder.block(data[at : at + pax.BLOCK])
            at += pax.BLOCK
            if decoder.needs:
                size = decoder.needs
                decoder.records(data[at : at + size])
                at += size
        assert found == header


def test_our_tar_is_one_that_gnu_tar_and_python_read(tmp_path: Path) -> None:
    data = tar_of(
        [
            file(b"a\xffb", b"1"),
            file(b"d" * 99, b"2"),
            file(b"e" * 150, b"3"),
            file("\u00e9".encode() * 60, b"4"),
        ]
    )
    (tmp_path / "x.tar").write_bytes(data)
    (tmp_path / "out").mkdir()
    assert os.system(f"tar -C {tmp_path}/out -xf {tmp_path}/x.tar") == 0
    got = {
        name: Path(os.fsdecode(os.path.join(os.fsencode(tmp_path / "out"), name))).read_bytes()
        for name in os.listdir(os.fsencode(tmp_path / "out"))
    }
    assert got == {b"a\xffb": b"1", b"d" * 99: b"2", b"e" * 150: b"3", "\u00e9".encode() * 60: b"4"}
