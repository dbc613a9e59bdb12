"""Overlay mounts on the real kernel: the new API, the old one, the limits, the probe."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest

from layerstack.errors import LayerLimit, OverlayUnsupported
from layerstack.kernel import overlay, syscalls
from layerstack.kernel.xattrs import TRUSTED, USER
from tests import in_namespace
from tests.layerstack.store_fixture import Stack, get, on_a_stack, put


@on_a_stack({"f": "base\n"})
def test_a_mount_is_detached_until_it_is_moved_and_its_upperdir_is_in_use_meanwhile(stack: Stack) -> None:
    upper = stack.store.open_upper("a", origin="test")
    assert not overlay.in_use(upper.upperdir, "/proc")
    fd = upper.mount()
    assert overlay.in_use(upper.upperdir, "/proc") and overlay.is_mounted(upper.upperdir)
    os.close(fd)
    assert not overlay.in_use(upper.upperdir, "/proc"), "the mount goes with its descriptor"


@on_a_stack({"f": "base\n", "d/g": "g\n"})
def test_the_legacy_mount_shows_and_takes_the_same(stack: Stack) -> None:
    upper = stack.store.open_upper("a", origin="test")
    fd = overlay.create_legacy(
        upper.snapshot.lowerdirs, upper.upperdir, upper.workdir, xattr_namespace=stack.xattr_namespace
    )
    target = f"{stack.folder}/t"
    os.mkdir(target)
    syscalls.move_mount(fd, target)
    os.close(fd)
    assert get(f"{target}/f") == "base\n"
    put(f"{target}/d/new", "new\n")
    syscalls.umount(target)
    assert upper.publish(owner="o", request_id="r").source_count == 1
    assert stack.shows()["d/new"] == "new\n"


@on_a_stack({"f": "base\n"}, namespaces=("trusted",))
def test_the_legacy_mount_takes_as_many_lowers_as_the_new_one(stack: Stack) -> None:
    lowers = []
    for i in range(500):
        os.mkdir(f"{stack.folder}/l{i}")
        put(f"{stack.folder}/l{i}/{i}")
        lowers.append(f"{stack.folder}/l{i}")
    os.mkdir(f"{stack.folder}/t")
    for create in (overlay.create, overlay.create_legacy):
        fd = create(lowers, xattr_namespace=stack.xattr_namespace)
        syscalls.move_mount(fd, f"{stack.folder}/t")
        os.close(fd)
        assert len(os.listdir(f"{stack.folder}/t")) == 500
        syscalls.umount(f"{stack.folder}/t")
        with pytest.raises(LayerLimit):
            create([*lowers, lowers[0]], xattr_namespace=stack.xattr_namespace)


@on_a_stack({"f": "base\n"})
def test_paths_longer_than_the_kernels_option_strings_can_be_mounted(stack: Stack) -> None:
    mount_at(stack, "/".join([stack.folder, *["x" * 200] * 3]))


def mount_at(stack: Stack, folder: str, create: Callable[..., int] = overlay.create) -> None:
    """An overlay whose directories lie in `folder` takes a write, and its upperdir is in use until it is
    gone.
    """
    upper, target = f"{folder}/upper", f"{stack.folder}/t"
    for path in (upper, f"{folder}/work", f"{folder}/lower", target):
        os.makedirs(path)
    put(f"{folder}/lower/f")
    fd = create([f"{folder}/lower"], upper, f"{folder}/work", xattr_namespace=stack.xattr_namespace)
    syscalls.move_mount(fd, target)
    os.close(fd)
    put(f"{target}/g")
    assert sorted(os.listdir(target)) == ["f", "g"] and overlay.is_mounted(upper)
    syscalls.umount(target)
    assert os.listdir(upper) == ["g"] and not overlay.is_mounted(upper)
    os.rmdir(target)


@on_a_stack({"f": "base\n"})
def test_a_store_lies_at_a_path_of_any_bytes(stack: Stack) -> None:
    for name in (
        "a,b",
        "c:d",
        "e\\f",
        "g\\:h\\",
        'q"u',
        "new\nline",
        " sp ",
        os.fsdecode(b"\xff\xfe"),
        "lowerdir=",
        "%s",
    ):
        mount_at(stack, f"{stack.folder}/{name}")
        mount_at(stack, f"{stack.folder}/old/{name}", overlay.create_legacy)


@on_a_stack({"f": "base\n"}, namespaces=("trusted",))
def test_an_upperdir_on_an_overlay_is_refused_in_the_kernels_own_words(stack: Stack) -> None:
    session = stack.session()
    for name in ("upper", "work"):
        os.mkdir(session.at(name))
    with pytest.raises(OverlayUnsupported) as caught:
        overlay.create(
            [stack.base], session.at("upper"), session.at("work"), xattr_namespace=stack.xattr_namespace
        )
    assert "not supported as upperdir" in str(caught.value)


@on_a_stack({"f": "base\n"}, namespaces=("trusted",))
def test_a_missing_lower_is_named(stack: Stack) -> None:
    with pytest.raises(FileNotFoundError) as caught:
        overlay.create([stack.base, f"{stack.folder}/absent"], xattr_namespace=stack.xattr_namespace)
    assert caught.value.filename == f"{stack.folder}/absent"


@pytest.mark.needs("uid")
def test_without_the_power_to_mount_the_error_says_what_is_needed() -> None:
    def attempt() -> str:
        try:
            overlay.create(["/etc", "/usr"], xattr_namespace=USER)
        except OverlayUnsupported as error:
            return str(error)
        return ""

    assert "CAP_SYS_ADMIN" in in_namespace.call("uid", attempt)


def test_both_namespaces_never_copy_metadata_alone_nor_index_inodes() -> None:
    assert (
        "metacopy=off" in TRUSTED.options
        and "index=off" in TRUSTED.options
        and USER.options == ("userxattr",)
    )
