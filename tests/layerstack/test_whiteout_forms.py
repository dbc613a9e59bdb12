"""Whiteouts that are no devices: what the kernel shows of an upperdir that has them is what is published, in
plain form.
"""

from __future__ import annotations

import os
import shutil
import stat

from layerstack.fsck.check import check
from tests.layerstack.exported_names import names_in_export
from tests.layerstack.store_fixture import Session, Stack, on_a_stack, put

BASE: dict[str, str | bytes | None] = {
    "f": "f\n",
    "top": "t\n",
    "d/a": "a\n",
    "d/b": "b\n",
    "d/full": "x\n",
    "e/g": "g\n",
    "e/deep/h": "h\n",
    "m/x": "x\n",
}


def seen(view: str) -> dict[str, str]:
    """{path: text, or its kind} of everything that can be opened: a name that is listed and cannot is a ghost
    of the kernel's.
    """
    found: dict[str, str] = {}
    for folder, folders, files in os.walk(view):
        for name in (*folders, *files):
            full = f"{folder}/{name}"
            try:
                mode = os.lstat(full).st_mode
            except FileNotFoundError:
                continue
            if stat.S_ISREG(mode):
                with open(full) as file:
                    found[os.path.relpath(full, view)] = file.read()
            else:
                found[os.path.relpath(full, view)] = "/"
    return found


def hide(stack: Stack, full: str) -> None:
    """A whiteout that is a plain file."""
    put(full, b"")
    os.setxattr(full, stack.xattr_namespace.whiteout, b"y")


def laid(stack: Stack) -> Session:
    """An offline upperdir as a transport without devices leaves it, mounted again."""
    a = stack.session()
    put(a.at("new/x"), "new\n")
    os.mkdir(a.at("m/made"))
    a.umount()
    upper = a.upper.upperdir
    for name in ("d", "e", "e/deep"):
        os.makedirs(f"{upper}/{name}", exist_ok=True)
        os.chmod(f"{upper}/{name}", stat.S_IMODE(os.stat(f"{stack.base}/{name}").st_mode))
        os.setxattr(f"{upper}/{name}", stack.xattr_namespace.opaque, b"x")
    hide(stack, f"{upper}/d/a")
    hide(stack, f"{upper}/d/nothing")  # over a name that is not there
    hide(stack, f"{upper}/e/deep/h")
    hide(stack, f"{upper}/f")  # in a directory without the mark
    put(f"{upper}/d/full", "not empty, so a file\n")
    os.setxattr(f"{upper}/d/full", stack.xattr_namespace.whiteout, b"y")
    put(f"{upper}/d/mine", b"")
    os.setxattr(f"{upper}/d/mine", stack.xattr_namespace.escaped + "whiteout", b"user's own")
    os.rename(f"{upper}/new", f"{upper}/e/moved")
    a.mount()
    return a


@on_a_stack({**BASE})
def test_what_the_kernel_shows_of_whiteouts_that_are_plain_files_is_what_is_published(stack: Stack) -> None:
    a = laid(stack)
    view = seen(a.view)
    assert "d/a" not in view and "f" not in view and "e/deep/h" not in view and "d/nothing" not in view
    assert (
        view["d/full"] == "not empty, so a file\n"
        and view["d/mine"] == ""
        and view["d/b"] == "b\n"
        and view["e/deep"] == "/"
    )
    assert os.getxattr(a.at("d/mine"), stack.xattr_namespace.whiteout) == b"user's own"
    a.umount()
    foreseen = a.upper.preview()
    done = a.publish()
    assert (foreseen.source_count, foreseen.ignored_count) == (done.source_count, done.ignored_count)
    assert {path: text.removeprefix("/") or text for path, text in stack.shows().items()} == view
    layer = f"{stack.root}/layers/{done.layer_id}"
    for path in ("d/a", "f", "e/deep/h"):
        status = os.lstat(f"{layer}/{path}")
        assert stat.S_ISCHR(status.st_mode) and status.st_rdev == 0, path
    assert not os.path.lexists(f"{layer}/d/nothing")
    with stack.mounted() as mounted:
        assert os.getxattr(f"{mounted}/d/mine", stack.xattr_namespace.whiteout) == b"user's own"
    for session in stack.sessions:
        session.umount()
    stack.store.close()
    assert list(check(stack.root)) == []
    stack.store = type(stack.store).open(stack.root)


@on_a_stack({**BASE})
def test_a_draft_of_whiteouts_that_are_plain_files_shows_the_same_when_it_is_opened_again(
    stack: Stack,
) -> None:
    a = laid(stack)
    view = seen(a.view)
    draft = a.keep()
    again = stack.session(draft_id=draft.draft_id)
    assert seen(again.view) == view
    again.publish()
    assert {path: text.removeprefix("/") or text for path, text in stack.shows().items()} == view


@on_a_stack({**{f"d/{n}": "old\n" for n in range(30)}, "d/e/deep": "old\n"})
def test_a_directory_removed_and_made_again_never_shows_old_children_and_its_mark_is_no_file(
    stack: Stack,
) -> None:
    session = stack.session()
    shutil.rmtree(session.at("d"))
    put(session.at("d/n"), "n\n")
    session.publish()
    for _ in range(2):
        assert stack.shows() == {"d": "/", "d/n": "n\n"}
        assert [entry.path for entry in stack.store.snapshot().list("d")] == ["d/n"]
        assert names_in_export(stack).keys() - {"else"} == {"d/n"}
        assert not [
            name
            for _, folders, files in os.walk(f"{stack.root}/layers")
            for name in folders + files
            if name.startswith(".wh.")
        ]
        other = stack.session()
        put(other.at("d/e/new"), "e\n")
        other.publish()
        assert "d/e/deep" not in stack.shows()
        other = stack.session()
        shutil.rmtree(other.at("d/e"))
        other.publish()
        stack.store.squash()


@on_a_stack({"d/e/f": "f\n", "d/g": "g\n", "keep": "k\n"})
def test_a_deleted_directory_is_absent_and_not_empty(stack: Stack) -> None:
    session = stack.session()
    shutil.rmtree(session.at("d"))
    session.publish()
    for _ in range(2):
        snapshot = stack.store.snapshot()
        assert stack.shows() == {"keep": "k\n"}
        assert [entry.path for entry in snapshot.list("")] == ["keep"] and snapshot.stat(
            "d"
        ) is snapshot.stat("d/e/f") is None
        stack.store.update_file("keep", lambda _: b"k\n", owner="o", request_id="r")
        other = stack.session()
        put(other.at("keep"), "k\n")
        os.chmod(other.at("keep"), 0o600)
        other.publish()
        stack.store.squash()
        stack.reopen()
