"""Other names of the destination's files, and the bits that let a file act as its owner: an export touches
neither, unless it is asked to.
"""

from __future__ import annotations

import os
import random
import shutil
import stat
import subprocess
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from eos_agent.wire.protocol import OperationError
from eos_mcp.export.rules import REFERENCE
from layerstack.export import pax
from layerstack.kernel import overlay, syscalls
from tests import in_namespace
from tests.conftest import soaking
from tests.eos_mcp.export_runs import STEPS, Refusing, run, shape, stamps
from tests.export_streams import SECOND, Stack, directory, file, hard_link, made
from tests.trees import DIRECTORY, FILE, Entry, Tree, difference, read_tree

TIME = 1_700_000_000 * SECOND


def written(path: Path, data: bytes = b"x", mode: int = 0o644) -> Path:
    path.write_bytes(data)
    path.chmod(mode)
    os.utime(path, ns=(TIME, TIME))
    return path


def looks(path: Path) -> tuple[int, ...]:
    """All that a write through another name would change, but for the number of names."""
    found = os.lstat(path)
    return found.st_ino, found.st_mode, found.st_uid, found.st_gid, found.st_size, found.st_mtime_ns


@pytest.mark.parametrize("name", [b"a.o", b"z.o"])
def test_an_output_that_is_another_name_of_an_input_has_the_inputs_time(tmp_path: Path, name: bytes) -> None:
    """An input of the destination that the sandbox has not makes outputs older than it."""
    dest = tmp_path / "d"
    dest.mkdir()
    written(dest / "theirs")
    first, second = sorted((b"m", name))
    pair = [file(first, b"m", mtime_ns=TIME + SECOND), hard_link(second, first)]
    entries = [
        (header._replace(mtime_ns=TIME + SECOND, output=header.path == name), data) for header, data in pair
    ]
    run(made(*entries), dest, rules=REFERENCE._replace(times="fresh"))
    assert os.path.samefile(dest / "m", dest / os.fsdecode(name))
    assert os.lstat(dest / "m").st_mtime_ns > TIME + SECOND


@pytest.mark.parametrize("outside", [True, False], ids=["outside", "inside"])
@pytest.mark.parametrize(
    "entry",
    [
        file(b"run.sh", b"x", 0o777),
        file(b"run.sh", b"x", 0o644),
        file(b"run.sh", b"y", 0o644),
        file(b"run.sh", b"x", 0o644, TIME + 5),
        file(b"run.sh", b"x", 0o600, TIME + 5 * SECOND),
    ],
    ids=["mode", "nothing", "content", "nanoseconds", "mode and time"],
)
def test_another_name_of_a_file_keeps_its_content_mode_and_time(
    tmp_path: Path, entry: tuple[pax.Header, bytes], outside: bool
) -> None:
    dest = tmp_path / "d"
    dest.mkdir()
    other = tmp_path / "store" if outside else dest / "other"
    os.link(written(dest / "run.sh"), other)
    os.setxattr(other, "user.kept", b"1")
    before = looks(other)
    foreseen = run(made(entry), dest, dry_run=True)
    result = run(made(entry), dest)
    assert looks(other) == before and os.lstat(other).st_nlink == 1
    assert (dest / "run.sh").read_bytes() == entry[1] and stat.S_IMODE(
        os.lstat(dest / "run.sh").st_mode
    ) == entry[0].mode
    assert {key: foreseen[key] for key in result} == result and result["files_written"] == 1
    again = stamps(dest)
    assert run(made(entry), dest)["files_written"] == 0 and stamps(dest) == again


def test_a_copy_that_takes_a_names_place_has_the_owner_and_the_attributes_that_were_there(
    tmp_path: Path,
) -> None:
    dest = tmp_path / "d"
    dest.mkdir()
    os.link(written(dest / "f"), tmp_path / "other")
    os.setxattr(dest / "f", "user.kept", b"1")
    owner = (1234, 4321) if os.geteuid() == 0 else (os.geteuid(), os.getegid())
    os.chown(dest / "f", *owner)
    run(made(file(b"f", b"x", 0o755)), dest)
    found = os.lstat(dest / "f")
    assert (found.st_uid, found.st_gid, stat.S_IMODE(found.st_mode)) == (*owner, 0o755) and os.getxattr(
        dest / "f", "user.kept"
    ) == b"1"


def test_a_group_of_the_delta_keeps_its_links_and_loses_strangers(tmp_path: Path) -> None:
    """a, b and c are one file in the destination; in the delta a and b are, and c is none of them."""
    dest = tmp_path / "d"
    dest.mkdir()
    written(dest / "a")
    for name in ("b", "c"):
        os.link(dest / "a", dest / name)
    group = made(file(b"a", b"x"), hard_link(b"b", b"a"))
    foreseen = run(group, dest, dry_run=True)
    result = run(group, dest)
    a, b, c = (os.lstat(dest / name) for name in "abc")
    assert a.st_ino == b.st_ino != c.st_ino and (a.st_nlink, c.st_nlink) == (2, 1)
    assert {key: foreseen[key] for key in result} == result and result["files_written"] == 2
    before = stamps(dest)
    assert run(group, dest)["skipped_unchanged"] == 2 and stamps(dest) == before
    run(made(file(b"a", b"x", 0o755), hard_link(b"b", b"a", 0o755)), dest)
    assert {name: what[1] for name, what in shape(dest).items()} == {b"a": 0o755, b"b": 0o755, b"c": 0o644}
    assert os.lstat(dest / "a").st_ino == os.lstat(dest / "b").st_ino


def test_an_error_at_any_step_of_that_leaves_the_links_as_they_were(tmp_path: Path) -> None:
    data, failed = made(file(b"a", b"x", 0o755), hard_link(b"b", b"a", 0o755), file(b"e")), 0
    for name in STEPS:
        for count in range(1, 5):
            dest = tmp_path / f"{name}-{count}"
            dest.mkdir()
            written(dest / "a")
            for other in ("b", "c"):
                os.link(dest / "a", dest / other)
            before = looks(dest / "a")
            try:
                run(data, dest, step=Refusing(name, count))
            except OperationError:
                failed += 1
                assert (
                    all(looks(dest / name) == before for name in "abc") and os.lstat(dest / "a").st_nlink == 3
                )
            else:
                assert (
                    os.lstat(dest / "a").st_ino == os.lstat(dest / "b").st_ino != os.lstat(dest / "c").st_ino
                )
                assert looks(dest / "c") == before
    assert failed > 5


def test_a_file_that_gets_another_name_during_the_export_is_not_changed_through_it(tmp_path: Path) -> None:
    dest = tmp_path / "d"
    dest.mkdir()
    written(dest / "f")

    def link(step: str) -> None:
        if step == "export.ready":
            os.link(dest / "f", tmp_path / "other")

    with pytest.raises(OperationError) as caught:
        run(made(file(b"f", b"x", 0o777)), dest, step=link)
    assert (
        caught.value.details["errno"] == "EMLINK"
        and stat.S_IMODE(os.lstat(tmp_path / "other").st_mode) == 0o644
    )


def _links(root: str) -> list[list[str]]:
    """Groups of paths that are one file."""
    found: dict[int, list[str]] = {}
    for folder, _, names in os.walk(root):
        for name in names:
            path = os.path.join(folder, name)
            if stat.S_ISREG(os.lstat(path).st_mode):
                found.setdefault(os.lstat(path).st_ino, []).append(os.path.relpath(path, root))
    return sorted(sorted(group) for group in found.values() if len(group) > 1)


def _edit(rng: random.Random) -> Callable[[str], None]:
    def work(root: str) -> None:
        for _ in range(rng.randrange(1, 7)):
            paths = sorted(os.path.join(folder, name) for folder, _, names in os.walk(root) for name in names)
            if not paths:
                return
            path, other = (
                rng.choice(paths),
                os.path.join(root, rng.choice(("", "d/")) + rng.choice("abcdefg")),
            )
            act = rng.randrange(6)
            if act == 0:
                os.chmod(path, rng.choice((0o600, 0o644, 0o755)))
            elif act == 1:
                with open(path, "ab") as out:
                    out.write(b"more")
            elif act == 2:
                os.utime(path, ns=(TIME, TIME + rng.randrange(3) * SECOND))
            elif act == 3 and not os.path.lexists(other):
                os.link(path, other)
            elif act == 4:
                os.unlink(path)
            elif act == 5 and not os.path.isdir(other):
                os.replace(path, other)

    return work


@pytest.mark.needs("overlay")
def test_an_export_onto_a_copy_with_hard_links_equals_the_version_links_included(
    short_dir: str, in_mount_namespace: Callable[..., Any], pytestconfig: pytest.Config
) -> None:
    """Bases whose files have several names, in the copy too; random work on them over a real overlay, two
    publishes, an export after each.
    """
    namespace = "trusted" if os.geteuid() == 0 else "user"
    rounds = 400 if soaking(pytestconfig) else 12

    def child() -> int:
        groups = 0
        owner = (os.geteuid(), os.getegid())
        for seed in range(rounds):
            rng = random.Random(seed)
            folder = os.path.join(short_dir, str(seed))
            os.mkdir(folder)
            base: Tree = {name: Entry(DIRECTORY, (0o755, *owner)) for name in ("", "d")}
            base |= {name: Entry(FILE, (0o644, *owner), b"x") for name in ("a", "b", "d/c")}
            stack = Stack(folder, base, namespace)
            for path in sorted(base):
                if base[path].kind == FILE:
                    os.utime(f"{stack.base}/{path}", ns=(TIME, TIME))
            for name in rng.sample(["d/a", "d/b", "e", "f"], 3):
                os.link(
                    os.path.join(stack.base, rng.choice(["a", "b", "d/c"])), os.path.join(stack.base, name)
                )
            for turn in "12":
                stack.publish(_edit(rng))
                dest, outside = os.path.join(folder, "dest" + turn), os.path.join(folder, "outside" + turn)
                subprocess.run(["cp", "-a", stack.base, dest], check=True)
                os.mkdir(outside)
                for name in ("a", "b"):
                    os.link(os.path.join(dest, name), os.path.join(outside, name))
                before = [looks(Path(outside, name)) for name in ("a", "b")]
                run(stack.export(), dest)
                want, got = stack.look(), read_tree(dest)
                trees = [
                    {path: e._replace(xattrs=()) for path, e in tree.items() if path} for tree in (got, want)
                ]
                assert trees[0] == trees[1], (seed, difference(*trees))
                assert [looks(Path(outside, name)) for name in ("a", "b")] == before, seed
                linked = _links_of(stack)
                assert _links(dest) == linked, (seed, linked)
                groups += len(linked)
                stays = stamps(dest)
                assert run(stack.export(), dest)["bytes_written"] == 0 and stamps(dest) == stays, seed
            stack.close()
            shutil.rmtree(folder)
        return groups

    assert in_mount_namespace(child) > rounds / 2


def _links_of(stack: Stack) -> list[list[str]]:
    """The groups of the head as overlayfs has them."""
    fd = overlay.create(
        [*stack.snapshot().lowerdirs, os.path.join(stack.folder, "empty")],
        xattr_namespace=stack.xattr_namespace,
    )
    syscalls.move_mount(fd, stack.mount_point)
    os.close(fd)
    try:
        return _links(stack.mount_point)
    finally:
        syscalls.umount(stack.mount_point)


# bits


SPECIAL = (
    directory(b"shared", 0o2775),
    file(b"shared/sg", b"g", 0o2755),
    file(b"sticky", b"s", 0o1644),
    file(b"su", b"u", 0o4755),
    hard_link(b"su-2", b"su", 0o4755),
)
STRIPPED = [{"path": "shared/sg", "what": "setgid"}, {"path": "su", "what": "setuid"}]


@pytest.mark.parametrize("who", ["own", "ordinary"])
def test_files_lose_setuid_and_setgid_and_are_named_and_directories_keep_theirs(
    short_dir: str, who: str
) -> None:
    if who == "ordinary" and os.geteuid() == 0:
        os.chown(short_dir, in_namespace.ORDINARY_UID, in_namespace.ORDINARY_UID)

    def child() -> None:
        dest = Path(short_dir, "d")
        for dry_run in (True, False):
            result = run(made(*SPECIAL), dest, dry_run=dry_run)
            assert (result["stripped"], result["stripped_count"]) == (STRIPPED, 2) and set(
                result["hygiene_classes"]
            ) == {"program"}
        modes = {path: what[1] for path, what in shape(dest).items()}
        assert modes == {
            b"shared": 0o2775,
            b"shared/sg": 0o755,
            b"su": 0o755,
            b"su-2": 0o755,
            b"sticky": 0o1644,
        }
        again = run(made(*SPECIAL), dest)
        assert again["files_written"] == 0 and "stripped" not in again
        kept = run(made(*SPECIAL), dest, keep_setuid=True)
        assert "stripped" not in kept and set(kept["hygiene_classes"]) == {"setuid"}
        modes = {path: what[1] for path, what in shape(dest).items()}
        assert modes == {
            b"shared": 0o2775,
            b"shared/sg": 0o2755,
            b"su": 0o4755,
            b"su-2": 0o4755,
            b"sticky": 0o1644,
        }
        same = run(made(*SPECIAL), dest)
        assert "stripped" not in same and shape(dest)[b"su"][1] == 0o4755, (
            "what the person has there is not taken away"
        )

    in_namespace.call("uid" if who == "ordinary" and os.geteuid() == 0 else None, child)


def test_an_archive_has_no_such_bits_either(tmp_path: Path) -> None:
    for keep, want in ((False, 0o755), (True, 0o4755)):
        for dry_run in (True, False):
            result = run(made(*SPECIAL), tmp_path / "x.tar", "tar", keep_setuid=keep, dry_run=dry_run)
            assert result.get("stripped") == (None if keep else STRIPPED)
        with tarfile.open(tmp_path / "x.tar") as archive:
            modes = {member.name: member.mode for member in archive.getmembers()}
        assert (modes["su"], modes["su-2"], modes["shared"]) == (want, want, 0o2775)


@pytest.mark.parametrize("keep", [False, True])
def test_no_capability_of_a_file_crosses(tmp_path: Path, keep: bool) -> None:
    """What gives cap_setuid to whoever runs it; our agent sends no such record, a hostile one may."""
    capability = bytes.fromhex("0100000280000000000000000000000000000000")
    header, data = file(b"cap", b"c", 0o755)
    entry = (header._replace(xattrs={b"security.capability": capability, b"user.x": b"1"}), data)
    result = run(made(entry), tmp_path / "d", keep_setuid=keep)
    assert os.listxattr(tmp_path / "d/cap") == []
    assert result["stripped"] == [{"path": "cap", "what": "capabilities"}]
    run(made(entry), tmp_path / "x.tar", "tar", keep_setuid=keep)
    with tarfile.open(tmp_path / "x.tar") as archive:
        assert not any("security" in key for member in archive.getmembers() for key in member.pax_headers)


@pytest.mark.needs("root")
def test_a_mode_that_changes_on_a_file_with_other_names_gives_it_no_capability(tmp_path: Path) -> None:
    dest = tmp_path / "d"
    dest.mkdir()
    capability = bytes.fromhex("0100000280000000000000000000000000000000")
    os.link(written(dest / "f"), tmp_path / "other")
    os.setxattr(dest / "f", "security.capability", capability)
    run(made(file(b"f", b"x", 0o755)), dest)
    assert (
        os.listxattr(dest / "f") == []
        and os.getxattr(tmp_path / "other", "security.capability") == capability
    )
