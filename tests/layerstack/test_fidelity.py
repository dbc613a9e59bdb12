"""What a session made comes out as it was, by whatever way it becomes a version: the menagerie through every
route, in both xattr namespaces.
"""

from __future__ import annotations

import os
import shutil
import socket
import stat

from tests.layerstack.store_fixture import Session, Stack, on_a_stack, put
from tests.sample_tree import Facts, acl, difference, look, make

TEXT = "".join(f"line {n}\n" for n in range(1, 21))
BASE: dict[str, str | bytes | None] = {"here/before": "before\n", "edited": TEXT}


def at_work(stack: Stack, **how: str) -> tuple[Session, Facts]:
    """A session that made the menagerie and edited line 3 of `edited`, and how it saw the menagerie."""
    session = stack.session(**how)
    os.mkdir(session.at("m"))
    make(session.at("m"), as_root=stack.xattr_namespace.name == "trusted")
    put(session.at("edited"), TEXT.replace("line 3\n", "three\n"))
    return session, look(session.at("m"))


def published(stack: Stack) -> Facts:
    session, want = at_work(stack)
    session.publish()
    return want


def head_moves(stack: Stack, line: str = "line 15\n") -> None:
    """Somebody else edits a line of the same file: whoever publishes then is rewritten, not renamed."""
    stack.store.update_file(
        "edited", lambda text: (text or b"").replace(line.encode(), b"moved\n"), owner="o", request_id="r"
    )


def changes(got: Facts, want: Facts, *, moved: bool) -> list[str]:
    """On a head that moved, files and directories have times from the publication on (ADR 0048)."""
    return [each for each in difference(got, want) if not (moved and ": mtime_ns: " in each)]


def check(stack: Stack, want: Facts, *, moved: bool = False) -> None:
    """The head shows it, also to the next process."""
    for _ in range(2):
        with stack.mounted() as view:
            assert changes(look(f"{view}/m"), want, moved=moved) == []
        stack.reopen()
    assert os.listdir(f"{stack.root}/staging") == []


@on_a_stack(BASE)
def test_a_publish_by_rename_keeps_every_attribute_link_hole_time_and_name(stack: Stack) -> None:
    check(stack, published(stack))


@on_a_stack(BASE)
def test_a_publish_that_is_rewritten_for_a_moved_head_keeps_them_too(stack: Stack) -> None:
    session, want = at_work(stack)
    head_moves(stack)
    session.publish()
    check(stack, want, moved=True)


@on_a_stack(BASE)
def test_a_squash_keeps_them_too(stack: Stack) -> None:
    want = published(stack)
    head_moves(stack)
    assert len(stack.store.squash().blocks) == 1
    check(stack, want)


@on_a_stack(BASE)
def test_a_draft_keeps_them_over_a_restart_until_it_is_published(stack: Stack) -> None:
    session, want = at_work(stack)
    draft = session.keep().draft_id
    stack.reopen()
    again = stack.session(draft_id=draft)
    assert difference(look(again.at("m")), want) == []
    again.publish()
    check(stack, want)


@on_a_stack(BASE)
def test_a_draft_that_is_carried_over_to_the_head_keeps_them_too(stack: Stack) -> None:
    session, want = at_work(stack)
    draft = session.keep().draft_id
    head_moves(stack)
    again = stack.session(draft_id=draft, draft_base="head")
    assert changes(look(again.at("m")), want, moved=True) == []
    put(again.at("late"))
    again.publish()
    check(stack, want, moved=True)


@on_a_stack(BASE)
def test_work_that_was_refused_and_goes_on_keeps_them_too(stack: Stack) -> None:
    session, want = at_work(stack)
    head_moves(stack, "line 3\n")
    assert session.rejected() == {"edited": "content"}
    session.mount()
    assert difference(look(session.at("m")), want) == []
    put(session.at("edited"), TEXT)
    session.publish()
    check(stack, want, moved=True)


@on_a_stack(BASE)
def test_a_rollback_brings_them_back(stack: Stack) -> None:
    want = published(stack)
    other = stack.session()
    shutil.rmtree(other.at("m"))
    other.publish()
    assert not stack.store.rollback(2, owner="o", request_id="r").no_op
    check(stack, want)


@on_a_stack(BASE)
def test_the_work_of_a_process_that_died_keeps_them(stack: Stack) -> None:
    _, want = at_work(stack)
    stack.reopen()
    (draft,) = stack.store.recovered
    stack.session(draft_id=draft.draft_id).publish()
    check(stack, want)


@on_a_stack(BASE)
def test_one_of_everything_that_is_rewritten_as_it_was_is_no_change(stack: Stack) -> None:
    """Made again from nothing: other inodes, other times, the same states."""
    want = published(stack)
    session = stack.session()
    shutil.rmtree(session.at("m"))
    os.mkdir(session.at("m"))
    make(session.at("m"), as_root=stack.xattr_namespace.name == "trusted")
    assert session.publish().no_op
    check(stack, want)


@on_a_stack(BASE)
def test_one_of_everything_that_was_only_copied_up_is_no_change(stack: Stack) -> None:
    """Each path gets a chmod, an attribute or a time and back, so that overlayfs copies it up."""
    want = published(stack)
    session = stack.session()
    for folder, names, files in os.walk(session.at("m")):
        for path in (os.path.join(folder, name) for name in [*names, *files]):
            s = os.lstat(path)
            if not os.path.islink(path):
                os.chmod(path, s.st_mode ^ 0o200)
                os.chmod(path, s.st_mode)
            os.utime(path, ns=(1, 1), follow_symlinks=False)
    copied = sum(len(names) + len(files) for _, names, files in os.walk(session.upper.upperdir))
    assert copied > 70
    assert session.publish().no_op
    check(stack, want)


@on_a_stack(BASE, namespaces=("trusted",))
def test_a_directory_of_the_base_that_is_renamed_brings_along_one_of_everything(stack: Stack) -> None:
    """The base is linked to by nobody: what was renamed with its directory is copied, holes and names of one
    file included.
    """
    os.mkdir(f"{stack.base}/d")
    os.mkdir(f"{stack.base}/d/old")
    make(f"{stack.base}/d/old", as_root=True)
    session = stack.session()
    want = look(session.at("d/old"))
    os.rename(session.at("d"), session.at("m"))
    os.rename(session.at("m/old"), session.at("m/new"))
    want = {
        f"new/{path}": {k: f"new/{v}" if k == "same" else v for k, v in facts.items()}
        for path, facts in want.items()
    }
    session.publish()
    with stack.mounted() as view:
        found = look(f"{view}/m")
        del found["new"]
        assert difference(found, want) == []


@on_a_stack({"gone/x": "x\n"})
def test_names_of_one_file_of_the_base_are_names_of_one_file_after_a_rollback(stack: Stack) -> None:
    for folder in ("d", "d/e"):
        os.mkdir(f"{stack.base}/{folder}")
    put(f"{stack.base}/d/one", "shared\n")
    os.link(f"{stack.base}/d/one", f"{stack.base}/d/e/two")
    put(f"{stack.base}/d/alone", "shared\n")
    session = stack.session()
    shutil.rmtree(session.at("d"))
    session.publish()
    stack.store.rollback(1, owner="o", request_id="r")
    with stack.mounted() as view:
        one, two, alone = (os.stat(f"{view}/d/{name}") for name in ("one", "e/two", "alone"))
    assert one.st_ino == two.st_ino != alone.st_ino and (one.st_nlink, alone.st_nlink) == (2, 1)


@on_a_stack({"b": "base\n"})
def test_an_edit_of_one_name_of_a_file_is_an_edit_of_all_its_names_in_the_session_and_in_the_layer(
    stack: Stack,
) -> None:
    """Ours linked three names; the head edited one of them under the same name: that one leaves the group,
    the others stay together.
    """
    first = stack.session()
    put(first.at("n/x"), "1\n2\n3\n4\n5\n")
    first.publish()
    ours = stack.session()
    os.unlink(ours.at("n/x"))
    put(ours.at("n/y"), "1\n2\n3\n4\nfive\n")
    os.link(ours.at("n/y"), ours.at("n/x"))
    os.link(ours.at("n/y"), ours.at("n/z"))
    stack.store.update_file("n/x", lambda _: b"one\n2\n3\n4\n5\n", owner="o", request_id="r")
    ours.publish()
    assert stack.shows() == {
        "b": "base\n",
        "n": "/",
        "n/x": "one\n2\n3\n4\nfive\n",
        "n/y": "1\n2\n3\n4\nfive\n",
        "n/z": "1\n2\n3\n4\nfive\n",
    }
    with stack.mounted() as view:
        x, y, z = (os.stat(f"{view}/n/{name}").st_ino for name in "xyz")
        assert y == z != x


@on_a_stack({"d/f": "f\n", "d/g": "g\n"})
def test_a_chmod_beside_an_access_list_of_another_session_keeps_the_list_and_says_what_conflicts(
    stack: Stack,
) -> None:
    """An access list has the group bits of the mode as its mask, so chmod changes both: what the kernel keeps
    as two is merged as two.
    """
    theirs, ours, other = stack.session(), stack.session(), stack.session()
    os.setxattr(theirs.at("d/f"), "system.posix_acl_access", acl(mask=6))
    os.setxattr(theirs.at("d"), "system.posix_acl_default", acl(mask=5))
    put(ours.at("d/f"), "ours\n")
    put(ours.at("d/new"), "new\n")
    os.chmod(other.at("d/f"), 0o600)
    theirs.publish()
    ours.publish()
    assert other.rejected() == {"d/f": "mode"}
    with stack.mounted() as view:
        assert os.getxattr(f"{view}/d/f", "system.posix_acl_access") == acl(mask=6)
        assert os.getxattr(f"{view}/d", "system.posix_acl_default") == acl(mask=5)
        assert os.stat(f"{view}/d/f").st_mode & 0o777 == 0o760
        assert os.listxattr(f"{view}/d/new") == [], (
            "it was made where no list was: it does not inherit one from where it lies now"
        )
    assert stack.shows()["d/f"] == "ours\n"


@on_a_stack({"d/f": "f\n"})
def test_what_lies_in_a_directory_with_a_default_access_list_keeps_its_own_through_every_rewriting(
    stack: Stack,
) -> None:
    """Whatever is made anew inside such a directory would inherit the list, were it not taken off."""
    first = stack.session()
    os.setxattr(first.at("d"), "system.posix_acl_default", acl(mask=5))
    put(first.at("d/text"), "".join(f"{n}\n" for n in range(20)))
    put(first.at("d/sub/inside"))
    for name in (
        "text",
        "sub",
        "sub/inside",
    ):  # made before the list would be another thing: made inside, they inherited it
        for attribute in os.listxattr(first.at(f"d/{name}")):
            os.removexattr(first.at(f"d/{name}"), attribute)
        os.chmod(first.at(f"d/{name}"), 0o750)
    first.publish()
    a, b = stack.session(), stack.session()
    put(a.at("d/text"), "".join(f"{n}\n" for n in range(19)) + "ours\n")
    shutil.rmtree(a.at("d/sub"))
    os.mkdir(a.at("d/sub"))
    os.removexattr(a.at("d/sub"), "system.posix_acl_default")
    os.removexattr(a.at("d/sub"), "system.posix_acl_access")
    os.chmod(a.at("d/sub"), 0o750)
    put(a.at("d/sub/mine"))
    put(b.at("d/text"), "theirs\n" + "".join(f"{n}\n" for n in range(1, 20)))
    put(b.at("d/sub/theirs"))
    b.publish()
    a.publish()
    stack.store.update_file("d/sub/theirs", lambda _: b"again\n", owner="o", request_id="r")
    stack.store.squash()
    with stack.mounted() as view:
        assert os.getxattr(f"{view}/d", "system.posix_acl_default") == acl(mask=5)
        for name in ("text", "sub", "sub/mine", "sub/theirs"):
            assert os.listxattr(f"{view}/d/{name}") == [], name
        assert os.stat(f"{view}/d/sub").st_mode & 0o7777 == 0o750
    assert stack.shows()["d/text"] == "theirs\n" + "".join(f"{n}\n" for n in range(1, 19)) + "ours\n"


@on_a_stack({"a/b/c/f": "f\n", "a/b/g": "g\n"})
def test_no_ancestor_of_a_change_undoes_another_sessions_chmod_at_any_depth(stack: Stack) -> None:
    sessions = [stack.session() for _ in range(4)]
    os.chmod(sessions[0].at("a"), 0o711)
    os.chmod(sessions[0].at("a/b/c"), 0o3770)
    os.chmod(sessions[0].at(""), 0o751)
    os.setxattr(sessions[0].at("a/b"), "user.note", b"theirs")
    put(sessions[1].at("a/b/c/f"), "edited\n")
    put(sessions[2].at("a/b/c/n/m"), "new\n")
    os.unlink(sessions[3].at("a/b/g"))
    for session in sessions:
        session.publish()
    tree = stack.tree()
    assert [tree[path].meta[0] for path in ("", "a", "a/b", "a/b/c")] == [0o751, 0o711, 0o755, 0o3770]
    assert tree["a/b"].xattrs == (("user.note", b"theirs"),)
    stack.store.squash()
    assert stack.tree() == tree


@on_a_stack({"d/e/f": "f\n", "d/g": "g\n", "x": "x\n"})
def test_a_path_changes_its_kind_there_and_back_over_versions_and_each_shows_its_own(stack: Stack) -> None:
    def to(kind: str) -> int:
        session = stack.session()
        where = session.at("d")
        shutil.rmtree(where) if os.path.isdir(where) and not os.path.islink(where) else os.unlink(where)
        if kind == "file":
            put(where, "a file\n")
        elif kind == "link":
            os.symlink("x", where)
        else:
            put(f"{where}/{kind}/inside", "in\n")
        return session.publish().manifest.version

    versions = {to(kind): kind for kind in ("file", "again", "link", "e", "file", "link", "last")}
    want = {"file": {"d": "a file\n"}, "link": {"d": "-> x"}}
    for version, kind in versions.items():
        assert stack.shows(version) == {
            "x": "x\n",
            **want.get(kind, {"d": "/", f"d/{kind}": "/", f"d/{kind}/inside": "in\n"}),
        }, kind
    stack.store.squash()
    assert stack.shows() == {"x": "x\n", "d": "/", "d/last": "/", "d/last/inside": "in\n"}


@on_a_stack({f"d/{a}/{b}/f{n}": "f\n" for a in "ab" for b in "cd" for n in range(12)})
def test_directories_made_again_inside_directories_made_again_show_nothing_old_at_any_level(
    stack: Stack,
) -> None:
    session = stack.session()
    shutil.rmtree(session.at("d/a"))
    put(session.at("d/a/c/new"), "1\n")
    session.publish()
    session = stack.session()
    shutil.rmtree(session.at("d"))
    put(session.at("d/a/c/newer"), "2\n")
    put(session.at("d/b/d/f3"), "f\n")
    session.publish()
    want = {
        "d": "/",
        "d/a": "/",
        "d/a/c": "/",
        "d/a/c/newer": "2\n",
        "d/b": "/",
        "d/b/d": "/",
        "d/b/d/f3": "f\n",
    }
    for _ in range(2):
        assert stack.shows() == want
        snapshot = stack.store.snapshot()
        assert [entry.path for entry in snapshot.list("d/a")] == ["d/a/c"] and [
            e.path for e in snapshot.list("d/a/c")
        ] == ["d/a/c/newer"]
        assert snapshot.stat("d/a/c/new") is None and snapshot.stat("d/b/c") is None
        stack.store.squash()


@on_a_stack({"keep": "k\n"})
def test_sockets_devices_and_fifos_are_named_and_left_out_and_all_beside_them_is_kept(stack: Stack) -> None:
    session = stack.session()
    put(session.at("d/x"))
    os.mkfifo(session.at("d/pipe"))
    os.mkfifo(session.at("keep.pipe"))
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(session.at("d/sock"))
    listener.close()
    dropped = {"d/pipe", "d/sock", "keep.pipe"}
    if stack.xattr_namespace.name == "trusted":
        os.mknod(session.at("d/null"), stat.S_IFCHR | 0o666, os.makedev(1, 3))
        dropped.add("d/null")
    os.mkdir(session.at("only"))
    os.mkfifo(session.at("only/pipe"))
    done = session.publish()
    assert set(done.dropped) == {*dropped, "only/pipe"}
    assert stack.shows() == {"keep": "k\n", "d": "/", "d/x": "x\n", "only": "/"}
