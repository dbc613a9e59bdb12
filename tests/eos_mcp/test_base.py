"""The base: a copy of a workspace, made once per content, found again by lstat alone."""

from __future__ import annotations

import os
import socket
import stat
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from eos_agent.wire.protocol import OperationError
from eos_mcp.workspace import base, git_directories, tree_index
from layerstack.kernel import fsync
from tests import in_namespace
from tests.eos_mcp.base_cache import cache as cache

OLD_NS = 1_600_000_000_123_456_789


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    root = tmp_path / "ws"
    (root / "src/deep").mkdir(parents=True)
    (root / "empty").mkdir()
    (root / "src/main.py").write_text("print()\n")
    (root / "src/deep/run").write_bytes(b"#!/bin/sh\n")
    (root / "src/deep/run").chmod(0o750)
    (root / "link").symlink_to("src/main.py")
    (root / "dangling").symlink_to("/nowhere")
    os.link(root / "src/main.py", root / "same.py")
    with open(os.fsencode(root) + b"/not-utf8-\xff", "wb") as file:
        file.write(b"x" * 300_000)
    (root / "src/deep").chmod(0o711)
    settle(root)
    return root


def settle(root: Path) -> None:
    """Times far in the past, so that nothing counts as changed a moment ago."""
    for folder, folders, files in os.walk(root, topdown=False):
        for name in [*folders, *files]:
            os.utime(os.path.join(folder, name), ns=(OLD_NS, OLD_NS), follow_symlinks=False)
    os.utime(root, ns=(OLD_NS, OLD_NS))


def shown(root: Path | str) -> dict[str, tuple[object, ...]]:
    """Everything that a base keeps, by path."""
    found: dict[str, tuple[object, ...]] = {}
    inodes: dict[int, str] = {}
    for path, entry in sorted(tree_index.look(str(root)).entries.items()):
        where = os.path.join(root, path) if path else str(root)
        content: object = None
        if stat.S_ISLNK(entry[0]):
            content = os.readlink(where)
        elif stat.S_ISREG(entry[0]):
            with open(where, "rb") as file:
                content = file.read()
            content = (content, inodes.setdefault(entry[4], path) if entry[5] > 1 else path)
        found[path] = (entry[0], entry[2], content)
    return found


def test_the_copy_holds_bytes_modes_times_symlinks_and_hard_links(workspace: Path, cache: Path) -> None:
    made = base.prepare(str(workspace), str(cache))
    assert shown(made.source) == shown(workspace)
    assert not made.reused
    assert made.path == os.path.join(str(cache), made.root_hash, "base")
    assert made.size_bytes == sum(len(v[2][0]) for v in shown(workspace).values() if isinstance(v[2], tuple))
    assert tree_index.tree_hash(made.source) == made.root_hash


def test_an_unchanged_workspace_is_found_without_reading_a_file(
    workspace: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = base.prepare(str(workspace), str(cache))
    monkeypatch.setattr(tree_index, "RACY_NS", 0)  # the files were made a moment ago
    monkeypatch.setattr(base, "_BaseCopy", lambda *_: pytest.fail("a copy was begun"))
    again = base.prepare(str(workspace), str(cache))
    assert again == first._replace(reused=True)


def test_a_file_that_changed_a_moment_before_the_look_is_read_again(workspace: Path, cache: Path) -> None:
    base.prepare(str(workspace), str(cache))
    value = tree_index.load_index(str(next((cache / "index").iterdir())))
    assert value is not None
    assert not tree_index.unchanged(value, tree_index.look(str(workspace)))


def test_equal_content_has_one_base_whatever_the_directory_and_the_times(
    workspace: Path, cache: Path, tmp_path: Path
) -> None:
    first = base.prepare(str(workspace), str(cache))
    twin = tmp_path / "twin"
    subprocess.run(["cp", "-a", str(workspace), str(twin)], check=True)
    os.utime(twin / "src/main.py")
    second = base.prepare(str(twin), str(cache))
    assert (second.root_hash, second.path, second.reused) == (first.root_hash, first.path, True)


@pytest.mark.parametrize(
    "change",
    [
        lambda root: (root / "src/main.py").write_text("print(1)\n"),
        lambda root: (root / "src/deep/run").chmod(0o644),
        lambda root: (root / "src").chmod(0o700),
        lambda root: (root / "new").mkdir(),
        lambda root: (root / "link").unlink(),
        lambda root: ((root / "link").unlink(), (root / "link").symlink_to("elsewhere")),
        lambda root: ((root / "empty").rmdir(), (root / "empty").write_text("")),
        lambda root: os.rename(root / "src/deep", root / "moved"),
    ],
    ids=[
        "content",
        "mode",
        "directory mode",
        "new directory",
        "removed",
        "target",
        "kind",
        "renamed directory",
    ],
)
def test_each_change_makes_another_base_and_the_first_stays_as_it_was(
    workspace: Path, cache: Path, change: Callable[[Path], object]
) -> None:
    first = base.prepare(str(workspace), str(cache))
    before = shown(first.source)
    change(workspace)
    second = base.prepare(str(workspace), str(cache))
    assert second.root_hash != first.root_hash
    assert shown(second.source) == shown(workspace)
    assert shown(first.source) == before


def test_sockets_and_fifos_are_left_out_with_a_warning_or_refused(
    workspace: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.mkfifo(workspace / "pipe")
    with socket.socket(socket.AF_UNIX) as listener:
        monkeypatch.chdir(workspace)  # the whole name may be too long for a socket
        listener.bind("sock")
        made = base.prepare(str(workspace), str(cache))
        assert [warning.rpartition(" ")[2] for warning in made.warnings] == ["pipe", "sock"]
        assert not os.path.lexists(os.path.join(made.source, "pipe"))
        again = base.prepare(str(workspace), str(cache))
        assert again.warnings == made.warnings
        with pytest.raises(OperationError) as caught:
            base.prepare(str(workspace), str(cache), special_files="abort")
    assert caught.value.kind == "operation_failed"
    assert caught.value.details == {"special": ["pipe", "sock"], "reason": "special_files"}


def test_a_file_that_changes_once_under_the_copy_is_copied_as_it_is_afterwards(
    workspace: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = base._BaseCopy._read
    changed: list[str] = []

    def read(self: base._BaseCopy, path: str, where: str, entry: tree_index.Stat) -> str | None:
        if path == "src/deep/run" and not changed:
            changed.append(path)
            with open(workspace / path, "a") as file:
                file.write("echo more\n")
            (workspace / "src/late").write_text("late")
        return real(self, path, where, entry)

    monkeypatch.setattr(base._BaseCopy, "_read", read)
    made = base.prepare(str(workspace), str(cache))
    assert changed
    assert shown(made.source) == shown(workspace)


def test_a_file_that_keeps_changing_is_named_and_nothing_is_left(
    workspace: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = base._BaseCopy._read

    def read(self: base._BaseCopy, path: str, where: str, entry: tree_index.Stat) -> str | None:
        if path == "src/deep/run":
            with open(workspace / path, "a") as file:
                file.write("again\n")
        return real(self, path, where, entry)

    monkeypatch.setattr(base._BaseCopy, "_read", read)
    with pytest.raises(OperationError) as caught:
        base.prepare(str(workspace), str(cache))
    assert caught.value.kind == "operation_failed"
    assert caught.value.details["reason"] == "workspace_changing"
    assert caught.value.details["unstable"] == ["src/deep/run"]
    assert list(cache.iterdir()) == []


def test_a_torn_copy_of_an_earlier_boot_is_made_anew(workspace: Path, cache: Path) -> None:
    first = base.prepare(str(workspace), str(cache))
    for thread in threading.enumerate():
        if thread.name == "base-durable":
            thread.join(60)
    folder = cache / first.root_hash
    (folder / "durable").unlink()
    (folder / "boot").write_text("another boot")
    assert base.usable(str(cache), first.root_hash)
    assert (folder / "durable").exists()
    (folder / "durable").unlink()
    with open(os.path.join(first.source, "src/main.py"), "w"):
        pass
    again = base.prepare(str(workspace), str(cache))
    assert again.root_hash == first.root_hash
    assert shown(again.source) == shown(workspace)


@pytest.mark.needs("uid")
def test_an_unreadable_file_is_named(short_dir: str) -> None:
    def in_child() -> tuple[str, dict[str, object]]:
        os.mkdir(f"{short_dir}/o/ws")
        with open(f"{short_dir}/o/ws/secret", "w") as file:
            file.write("x")
        os.chmod(f"{short_dir}/o/ws/secret", 0)
        with pytest.raises(OperationError) as caught:
            base.prepare(f"{short_dir}/o/ws", f"{short_dir}/o/cache")
        return caught.value.kind, caught.value.details

    os.mkdir(f"{short_dir}/o")
    os.chown(f"{short_dir}/o", in_namespace.ORDINARY_UID, in_namespace.ORDINARY_UID)
    kind, details = in_namespace.call("uid", in_child)
    assert kind == "operation_failed"
    assert (details["reason"], details["errno"], details["path"]) == (
        "workspace_unreadable",
        "EACCES",
        f"{short_dir}/o/ws/secret",
    )
    assert "readable" in str(details["hint"])
    assert os.listdir(f"{short_dir}/o/cache") == []


@pytest.mark.parametrize("path", ["relative", "/nonexistent/ws", "/etc/hostname", "/"])
def test_what_is_no_workspace_is_an_invalid_request(path: str) -> None:
    with pytest.raises(OperationError) as caught:
        base.check_workspace(path, ())
    assert caught.value.kind == "invalid_request"
    assert caught.value.details["argument"] == "workspace_root"


def test_a_cache_that_cannot_be_written_is_named_with_the_variable_that_moves_it(workspace: Path) -> None:
    with pytest.raises(OperationError) as caught:
        base.prepare(str(workspace), "/sys/eos-cache")
    assert "/sys/eos-cache" in caught.value.message and "XDG_CACHE_HOME" in caught.value.details["hint"]


def test_a_workspace_that_holds_our_own_state_or_lies_in_it_is_refused(tmp_path: Path) -> None:
    (tmp_path / "home/.local/state/eos/sandboxes").mkdir(parents=True)
    (tmp_path / "home/project").mkdir()
    own = (str(tmp_path / "home/.local/state/eos"),)
    base.check_workspace(str(tmp_path / "home/project"), own)
    for refused in ("home", "home/.local/state/eos/sandboxes"):
        with pytest.raises(OperationError) as caught:
            base.check_workspace(str(tmp_path / refused), own)
        assert caught.value.details["reason"] == "workspace_holds_own_directory"
        assert "EOS_STATE_DIR" in str(caught.value.details["hint"])


def test_a_directory_with_much_in_it_that_goes_during_the_copy_is_taken_out_again(
    workspace: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(3000):
        (workspace / f"src/deep/loose-{number}").touch()
    real = base._BaseCopy.bring_to
    gone: list[bool] = []

    def bring_to(self: base._BaseCopy, listing: git_directories.Borrowed) -> None:
        real(self, listing)
        if not gone:
            gone.append(True)
            fsync.remove_tree(str(workspace / "src/deep"))
            (workspace / "src/deep").write_text("a file now")

    monkeypatch.setattr(base._BaseCopy, "bring_to", bring_to)
    made = base.prepare(str(workspace), str(cache))
    assert shown(made.source) == shown(workspace)
