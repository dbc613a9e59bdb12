"""Paths below a directory: openat2(2) and the walk in its place have the same results, and follow no link."""

from __future__ import annotations

import errno
import os
import struct
import threading
from collections.abc import Callable, Generator
from pathlib import Path

import pytest

from eos_agent.files import dirfd
from eos_agent.kernel import harden
from eos_agent.wire.protocol import OperationError
from eos_mcp.export.dirfd import DirTree
from layerstack.kernel import beneath, syscalls
from tests import in_namespace

ROUNDS = 400


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """root/a/b/c/file, beside it what leads out of it, and a secret outside."""
    root = tmp_path / "root"
    (root / "a/b/c").mkdir(parents=True)
    (root / "a/b/c/file").write_text("inside")
    (root / "a/plain").write_text("")
    (tmp_path / "outside/b/c").mkdir(parents=True)
    (tmp_path / "outside/b/c/file").write_text("secret")
    (root / "a/out").symlink_to(tmp_path / "outside")
    (root / "a/up").symlink_to("../../outside")
    (root / "a/in").symlink_to("b")
    (root / "a/proc").symlink_to("/proc/self/root")
    return root


PATHS = {
    "a/b/c/file": None,
    "a/b/absent/file": "file_not_found",
    "absent/b/file": "file_not_found",
    "a/plain/c/file": "not_a_file",
    "a/b/c/file/x": "not_a_file",
    "a/out/b/c/file": "not_a_file",
    "a/up/b/c/file": "not_a_file",
    "a/in/c/file": "not_a_file",
    "a/proc/etc/passwd": "not_a_file",
    "/".join(["a", "b", *["x" * 200] * 25, "file"]): "file_not_found",  # more than PATH_MAX
}


def in_session(root: Path, path: str) -> tuple[str, object]:
    """What a file operation of a session finds: the directory's inode, or reason and details of the error."""
    fd = os.open(root, dirfd.DIR_FLAGS)
    try:
        with dirfd.parent_of(fd, path) as (parent, name):
            return name, os.fstat(parent).st_ino
    except OperationError as error:
        return str(error.details["reason"]), {**error.details, "message": error.message}
    finally:
        os.close(fd)


def on_host(root: Path, path: str) -> object:
    """What an export finds: the directory's inode, or errno and file name of the error."""
    found = DirTree(str(root))
    try:
        return os.fstat(found.parent(os.fsencode(path))).st_ino
    except OSError as error:
        return error.errno, error.filename
    finally:
        found.close()


def everything(root: Path) -> list[object]:
    return [(in_session(root, path), on_host(root, path)) for path in PATHS]


def refuse_openat2(code: int) -> None:
    """Have a filter refuse openat2(2) in this process, as container engines did before they knew it."""
    load, jump, answer = 0x20, 0x15, 0x06  # BPF_LD|W|ABS, BPF_JMP|JEQ|K, BPF_RET|K
    lines = [
        (load, 0, 0, 0),  # seccomp_data.nr
        (jump, 0, 1, syscalls.NR["openat2"]),
        (answer, 0, 0, 0x00050000 | code),  # SECCOMP_RET_ERRNO
        (answer, 0, 0, 0x7FFF0000),  # SECCOMP_RET_ALLOW
    ]
    syscalls.prctl(syscalls.PR_SET_NO_NEW_PRIVS, 1)
    harden.install_seccomp(b"".join(struct.pack("HBBI", *line) for line in lines))


@pytest.mark.parametrize("code", [errno.ENOSYS, errno.EPERM])
def test_a_kernel_without_the_call_finds_the_same_by_walking(tree: Path, code: int) -> None:
    def walked() -> tuple[list[object], bool]:
        refuse_openat2(code)
        beneath._is_there.cache_clear()  # pyright: ignore[reportPrivateUsage]
        return everything(tree), beneath.open_beneath(os.open(tree, os.O_PATH), "a/b", os.O_PATH) is None

    found, refused = in_namespace.call(None, walked)
    assert refused and found == everything(tree)


def test_one_call_opens_a_directory_of_any_depth_and_no_link_is_followed(tree: Path) -> None:
    root = os.open(tree, os.O_PATH)
    flags = os.O_RDONLY | os.O_DIRECTORY
    try:
        fd = beneath.open_beneath(root, "a/b/c", flags)
        assert fd is not None and not os.get_inheritable(fd)
        assert os.fstat(fd).st_ino == (tree / "a/b/c").stat().st_ino
        os.close(fd)
        for path in (
            "a/out/b",
            "a/up/b",
            "a/in/c",
            "a/proc/etc",
            "../outside/b",
            "a/../../outside",
            "/etc/.",
        ):
            assert beneath.open_beneath(root, path, flags) is None, path
    finally:
        os.close(root)


@pytest.mark.parametrize(("path", "reason"), PATHS.items())
def test_errors_name_the_component_at_fault(tree: Path, path: str, reason: str | None) -> None:
    found = in_session(tree, path)
    if reason is None:
        assert found == ("file", (tree / "a/b/c").stat().st_ino)
    else:
        assert found[0] == reason


@pytest.fixture
def swapped(tree: Path) -> Generator[Path]:
    """`a` and a link to the directory outside change places as fast as they can."""
    link, over = tree / "link", threading.Event()
    link.symlink_to(tree.parent / "outside")

    def swap() -> None:
        while not over.is_set():
            syscalls.renameat2(f"{tree}/a", f"{tree}/link", syscalls.RENAME_EXCHANGE)

    thread = threading.Thread(target=swap)
    thread.start()
    try:
        yield tree
    finally:
        over.set()
        thread.join(60)


def read_in_session(fd: int) -> str:
    with (
        dirfd.parent_of(fd, "a/b/c/file") as (parent, name),
        open(dirfd.open_regular("a/b/c/file", name, parent)) as file,
    ):
        return file.read()


def read_on_host(fd: int) -> str:
    found = DirTree(os.dup(fd))
    try:
        opened = found.open_file(b"a/b/c/file")
        if opened is None:
            raise FileNotFoundError
        with open(opened) as file:
            return file.read()
    finally:
        found.close()


@pytest.mark.parametrize("read", [read_in_session, read_on_host])
def test_a_directory_that_becomes_a_link_in_the_middle_of_it_leads_nowhere(
    swapped: Path, read: Callable[[int], str]
) -> None:
    fd = os.open(swapped, dirfd.DIR_FLAGS)
    found: dict[str, int] = {}
    try:
        for done in range(100 * ROUNDS):
            if done >= ROUNDS and "inside" in found:  # the two threads may meet in step for a while
                break
            try:
                content = read(fd)
            except (OperationError, OSError) as error:
                content = type(error).__name__
            found[content] = found.get(content, 0) + 1
    finally:
        os.close(fd)
    assert "secret" not in found and found.get("inside"), found
