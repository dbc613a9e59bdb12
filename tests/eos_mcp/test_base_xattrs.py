"""Attributes and access control lists of a workspace in the copy that its sandboxes start from, and what it
says of mounts (N14, N11).
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from eos_mcp.workspace import base, tree_index
from layerstack.fsck import base_hash
from layerstack.kernel import syscalls
from layerstack.kernel.base_xattrs import Keeping
from tests import acls, in_namespace
from tests.export_streams import Stack
from tests.trees import DIRECTORY, Entry

ROOT = os.geteuid() == 0
MINE, THEIRS = Keeping(escape=True, acls=False), Keeping()


def fill(workspace: Path) -> None:
    (workspace / "d").mkdir(parents=True)
    for name in ("plain", "noted", "listed", "marked", "d/f"):
        (workspace / name).write_text(name)
    os.setxattr(workspace / "noted", "user.note", b"1\0\xff")
    os.setxattr(workspace / "listed", acls.ACL, acls.for_user(1234, 6, group=4, mask=6))
    os.setxattr(workspace / "marked", "user.overlay.redirect", b"/elsewhere")
    os.setxattr(workspace / "d", "user.overlay.opaque", b"y")
    os.setxattr(workspace / "d", acls.DEFAULT, acls.for_user(1234, 7))
    os.setxattr(workspace, "user.of the root", b"r")
    os.link(workspace / "noted", workspace / "z-noted")


def copied(workspace: Path, cache: Path, keeping: Keeping) -> tuple[Path, base.BaseTree]:
    made = base.prepare(str(workspace), str(cache), keeping=keeping)
    assert tree_index.tree_hash(made.source) == made.root_hash
    looking = base_hash.tree_hash(made.source, lambda error: pytest.fail(str(error)))
    try:
        while True:
            next(looking)
    except StopIteration as end:
        assert end.value == made.root_hash, "the agent's check knows the same hash"
    return Path(made.source), made


def test_attributes_and_lists_are_in_the_copy_and_in_its_hash(tmp_path: Path) -> None:
    workspace, cache = tmp_path / "w", tmp_path / "cache"
    fill(workspace)
    copy, made = copied(workspace, cache, THEIRS)
    for name in ("", "plain", "noted", "z-noted", "listed", "marked", "d", "d/f"):
        here, there = workspace / name, copy / name
        assert {key: os.getxattr(there, key) for key in os.listxattr(there)} == {
            key: os.getxattr(here, key) for key in os.listxattr(here)
        }
        assert (
            os.lstat(there).st_mode == os.lstat(here).st_mode
            and os.lstat(there).st_mtime_ns == os.lstat(here).st_mtime_ns
        )
    assert not acls.named(copy / "d/f") and made.warnings == ()
    assert copied(workspace, cache, THEIRS)[1] == made._replace(reused=True)
    os.setxattr(workspace / "plain", "user.more", b"2")
    again, other = copied(workspace, cache, THEIRS)
    assert other.root_hash != made.root_hash and os.getxattr(again / "plain", "user.more") == b"2"
    for turn in range(200):  # until the files are old enough for their looks to be believed
        (workspace / "plain").write_text(str(turn))
        before, (again, _) = again, copied(workspace, cache, THEIRS)
        if os.lstat(again / "listed").st_ino == os.lstat(before / "listed").st_ino:
            break
    else:
        pytest.fail("nothing is linked")
    assert os.getxattr(again / "noted", "user.note") == b"1\0\xff" and acls.named(again / "listed") == {
        1234: 6
    }


def test_a_tree_without_attributes_has_the_hash_that_it_always_had(tmp_path: Path) -> None:
    (tmp_path / "w").mkdir(mode=0o755)
    (tmp_path / "w/f").write_text("f")
    os.chmod(tmp_path / "w/f", 0o644)
    os.chmod(tmp_path / "w", 0o755)
    hashes = {
        base.prepare(str(tmp_path / "w"), str(tmp_path / f"c{n}"), keeping=how).root_hash
        for n, how in enumerate((MINE, THEIRS))
    }
    assert hashes == {"549ce94ae6ba54d2fbcbf37fb54fd00e16be0035edf0ed835012944a65ce811d"}


def test_a_store_of_an_ordinary_user_has_them_as_its_overlays_want_them(tmp_path: Path) -> None:
    """And one cache serves both kinds of store."""
    workspace, cache = tmp_path / "w", tmp_path / "cache"
    fill(workspace)
    theirs, first = copied(workspace, cache, THEIRS)
    mine, second = copied(workspace, cache, MINE)
    assert first.root_hash != second.root_hash
    assert os.listxattr(mine / "marked") == ["user.overlay.overlay.redirect"] and os.listxattr(
        theirs / "marked"
    ) == ["user.overlay.redirect"]
    assert os.listxattr(mine / "d") == ["user.overlay.overlay.opaque"] and os.listxattr(mine / "listed") == []
    assert second.warnings == (
        "left out, the access control list of d and 1 more: the copy cannot have it here",
    )
    assert copied(workspace, cache, MINE)[1].warnings == second.warnings
    (workspace / "plain").write_text("changed")
    assert copied(workspace, cache, MINE)[1].warnings == second.warnings, "also of files that did not change"
    assert copied(workspace, cache, THEIRS)[1].warnings == ()


@pytest.mark.needs("overlay")
@pytest.mark.parametrize("namespace", ["trusted", "user"] if ROOT else ["user"])
def test_a_session_sees_the_attributes_that_the_workspace_has(short_dir: str, namespace: str) -> None:
    root = Path(short_dir)
    if ROOT and namespace == "user":
        os.chown(root, in_namespace.ORDINARY_UID, in_namespace.ORDINARY_UID)
    keeping = THEIRS if namespace == "trusted" else MINE

    def make() -> str:
        fill(root / "w")
        return base.prepare(str(root / "w"), str(root / "cache"), keeping=keeping).source

    source = in_namespace.call(None if namespace == "trusted" or not ROOT else "uid", make)

    def child() -> None:
        owner = (os.geteuid(), os.getegid())
        os.mkdir(root / "s")
        stack = Stack(str(root / "s"), {"": Entry(DIRECTORY, (0o755, *owner))}, namespace)
        os.rename(source, root / "s/base")
        os.rmdir(stack.base)
        os.rename(root / "s/base", stack.base)
        seen: dict[str, Any] = {}

        def edit(at: str) -> None:
            for name in ("noted", "marked", "d", ""):
                path = os.path.join(at, name)
                seen[name] = {
                    key: os.getxattr(path, key) for key in os.listxattr(path) if key.startswith("user.")
                }
            assert sorted(os.listdir(f"{at}/d")) == ["f"], "opaque is the user's word here, and hides nothing"
            seen["list"] = acls.named(f"{at}/listed")
            for name in ("noted", "marked", "listed", "d/f"):
                with open(f"{at}/{name}", "a") as file:
                    file.write("edited")

        stack.publish(edit)
        assert seen["noted"] == {"user.note": b"1\0\xff"} and seen[""] == {"user.of the root": b"r"}
        assert seen["marked"] == {"user.overlay.redirect": b"/elsewhere"} and seen["d"] == {
            "user.overlay.opaque": b"y"
        }
        assert seen["list"] == ({1234: 6} if namespace == "trusted" else {})
        stack.close()

    in_namespace.call(namespace, child)


def test_a_file_system_without_room_for_an_attribute_leaves_it_out_by_name(
    short_dir: str, in_mount_namespace: Callable[..., Any]
) -> None:
    def child() -> None:
        root = Path(short_dir)
        for name in ("w", "cache"):
            (root / name).mkdir()
        syscalls.mount("ramfs", str(root / "cache"), "ramfs", 0)  # has no attributes at all
        os.chmod(root / "cache", 0o700)
        (root / "w/f").write_text("f")
        os.setxattr(root / "w/f", "user.note", b"1")
        made = base.prepare(str(root / "w"), str(root / "cache"))
        assert made.warnings == ("left out, user.note of f: the copy cannot have it here",)
        assert (
            tree_index.tree_hash(made.source) == made.root_hash
            and (Path(made.source) / "f").read_text() == "f"
        )

    if not ROOT:
        return
    in_mount_namespace(child)


def test_what_is_mounted_in_a_workspace_is_copied_and_said(
    short_dir: str, in_mount_namespace: Callable[..., Any]
) -> None:
    def child() -> None:
        root = Path(short_dir)
        (root / "w/mnt").mkdir(parents=True)
        syscalls.mount("tmpfs", str(root / "w/mnt"), "tmpfs", 0)
        (root / "w/mnt/f").write_text("f")
        said = ("mounted there, and copied with the rest: mnt",)
        for reused in (False, True):
            made = base.prepare(str(root / "w"), str(root / "cache"))
            assert (made.warnings, made.reused) == (said, reused) and (
                Path(made.source) / "mnt/f"
            ).read_text() == "f"

    in_mount_namespace(child)
