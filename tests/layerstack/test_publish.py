"""Publishing onto a head that moved: the decision table and the pitfalls, each history in both xattr
namespaces. The base is the dict, A publishes before B.
"""

from __future__ import annotations

import os
import shutil
import threading
import tracemalloc

from layerstack.errors import LayerLimit
from layerstack.kernel.xattrs import TRUSTED
from layerstack.model.conflict import Hunk, Notice
from layerstack.publish.outcome import Published
from layerstack.squash import squash
from tests.layerstack.exported_names import names_in_export
from tests.layerstack.store_fixture import Session, Stack, get, on_a_stack, put

TEXT = "1\n2\n3\n4\n5\n"


def two(stack: Stack) -> tuple[Session, Session]:
    return stack.session(), stack.session()


# ---- one session


@on_a_stack({"f": "old\n", "d/g": "g\n"})
def test_a_published_layer_holds_the_changes_and_nothing_else(stack: Stack) -> None:
    a = stack.session()
    put(a.at("f"), "new\n")
    put(a.at("n/x"), "x\n")
    os.unlink(a.at("d/g"))
    done = a.publish()
    assert (done.no_op, done.manifest.version, done.source_count, done.ignored_count) == (False, 2, 4, 0)
    assert done.layer_id == done.manifest.layers[0].layer_id == stack.layer_dirs()[0]
    assert stack.shows() == {"d": "/", "f": "new\n", "n": "/", "n/x": "x\n"}
    assert stack.shows(1) == {"d": "/", "d/g": "g\n", "f": "old\n"}
    assert os.listdir(f"{stack.root}/staging") == os.listdir(f"{stack.root}/sessions") == []


@on_a_stack({"f": "f\n", "d/g": "g\n", "l": "-> f"})
def test_touch_rewrite_of_equal_bytes_chmod_and_back_and_create_and_delete_are_no_change(
    stack: Stack,
) -> None:
    a = stack.session()
    os.utime(a.at("f"))
    put(a.at("d/g"), "g\n")
    os.chmod(a.at("d"), 0o700)
    os.chmod(a.at("d"), 0o755)
    put(a.at("d/new"))
    os.unlink(a.at("d/new"))
    os.unlink(a.at("l"))
    os.symlink("f", a.at("l"))
    assert a.publish().no_op and stack.store.head.version == 1 and stack.layer_dirs() == []


@on_a_stack({"d/a": "a\n", "d/b": "b\n", "d/e/c": "c\n"})
def test_a_directory_that_was_removed_and_restored_is_no_change(stack: Stack) -> None:
    a = stack.session()
    shutil.copytree(a.at("d"), f"{stack.folder}/aside")
    shutil.rmtree(a.at("d"))
    shutil.copytree(f"{stack.folder}/aside", a.at("d"))
    assert a.publish().no_op


@on_a_stack({"f": "f\n"})
def test_a_fifo_is_left_out_and_named_and_what_it_replaced_is_deleted(stack: Stack) -> None:
    a = stack.session()
    os.unlink(a.at("f"))
    os.mkfifo(a.at("f"))
    os.mkfifo(a.at("g"))
    put(a.at("h"))
    assert sorted(a.publish().dropped) == ["f", "g"]
    assert stack.shows() == {"h": "x\n"}


@on_a_stack({"f": "f\n"})
def test_any_name_can_be_published(stack: Stack) -> None:
    names = [
        ".wh.x",
        ".wh..wh..opq",
        "manifest.json",
        "layers",
        "staging",
        "-v",
        " s ",
        "n\nl",
        "back\\slash",
        "tab\t",
        os.fsdecode(b"\xff\xfe"),
        "x" * 255,
    ]
    a = stack.session()
    for name in names:
        put(a.at(name), "x")
    assert a.publish().source_count == len(names)
    assert set(stack.shows()) == {"f", *names}
    stack.reopen()
    assert set(stack.shows()) == {"f", *names}
    assert all(stack.store.snapshot().read_bytes(name) == b"x" for name in names)


@on_a_stack({"f": "f\n"})
def test_modes_times_hard_links_and_xattrs_are_kept(stack: Stack) -> None:
    a = stack.session()
    put(a.at("d/x"), "x")
    os.link(a.at("d/x"), a.at("d/y"))
    os.chmod(a.at("d/x"), 0o4711)
    os.chmod(a.at("d"), 0o1770)
    os.setxattr(a.at("d/x"), "user.colour", b"blue")
    os.utime(a.at("d/x"), ns=(1, 1234567890123456789))
    os.utime(a.at("d"), ns=(1, 1111111111123456789))
    a.publish()
    with stack.mounted() as view:
        x, y, d = os.stat(f"{view}/d/x"), os.stat(f"{view}/d/y"), os.stat(f"{view}/d")
        assert (x.st_ino, x.st_nlink, x.st_mode & 0o7777, x.st_mtime_ns) == (
            y.st_ino,
            2,
            0o4711,
            1234567890123456789,
        )
        assert (d.st_mode & 0o7777, d.st_mtime_ns) == (0o1770, 1111111111123456789)
        assert os.getxattr(f"{view}/d/x", "user.colour") == b"blue"


@on_a_stack({"d/e/f": "f\n"})
def test_directories_of_mode_000_can_be_made_entered_and_published(stack: Stack) -> None:
    a = stack.session()
    put(a.at("d/e/g"), "g\n")
    put(a.at("n/m/x"), "x\n")
    for path in ("d/e", "d", "n/m", "n"):
        os.chmod(a.at(path), 0)
    a.publish()
    assert stack.mode("d") == stack.mode("d/e") == stack.mode("n") == stack.mode("n/m") == 0
    assert stack.store.snapshot().read_bytes("n/m/x") == b"x\n"


@on_a_stack({"d/f": "f\n"})
def test_a_user_xattr_that_looks_like_an_opaque_mark_is_an_ordinary_one(stack: Stack) -> None:
    a = stack.session()
    os.setxattr(a.at("d"), stack.xattr_namespace.opaque, b"y")
    a.publish()
    assert stack.shows() == {"d": "/", "d/f": "f\n"}
    assert (stack.xattr_namespace.opaque, b"y") in stack.tree()["d"].xattrs


@on_a_stack({"f": "f\n"}, namespaces=("user",))
def test_a_path_deeper_than_pythons_recursion_limit_is_published_and_read(stack: Stack) -> None:
    deep = "/".join(["d"] * 960)
    a = stack.session()
    os.makedirs(a.at(deep))
    put(a.at(deep + "/x"), "x\n")
    assert stack.sessions[0].upper.preview().source_count == 961
    a.publish()
    assert stack.store.snapshot().read_bytes(deep + "/x") == b"x\n"


# ---- the decision table


@on_a_stack({"f": TEXT})
def test_edits_of_different_lines_merge_and_keep_what_each_side_did(stack: Stack) -> None:
    a, b = two(stack)
    put(a.at("f"), "0\n" + TEXT)
    os.chmod(b.at("f"), 0o755)
    put(b.at("f"), TEXT + "6\n")
    a.publish()
    assert b.publish().source_count == 1
    assert stack.shows() == {"f": "0\n" + TEXT + "6\n"} and stack.mode("f") == 0o755


@on_a_stack({"f": TEXT})
def test_edits_of_the_same_line_conflict_with_all_three_sides_and_the_hunk_named(stack: Stack) -> None:
    a, b = two(stack)
    put(a.at("f"), TEXT.replace("3", "three"))
    put(b.at("f"), TEXT.replace("3", "III"))
    done = a.publish()
    (conflict,) = b.conflicts()
    assert conflict.cls == "content" and conflict.path == "f"
    assert [side.kind for side in (conflict.base, conflict.ours, conflict.theirs)] == ["file"] * 3
    assert len({side.digest for side in (conflict.base, conflict.ours, conflict.theirs)}) == 3
    assert conflict.hunks[0].base == (3, 1)
    theirs = conflict.theirs_layer
    assert theirs is not None and (theirs.layer_id, theirs.manifest_version, theirs.owner) == (
        done.layer_id,
        2,
        "s0",
    )
    b.mount()
    assert get(b.at("f")) == TEXT.replace("3", "III")


@on_a_stack({"f": "f\n", "g": "g\n", "m": "m\n", "k": "k\n", "l": "-> a", "bin": b"\0a"})
def test_every_conflict_is_listed_with_its_class_and_nothing_is_published(stack: Stack) -> None:
    a, b = two(stack)
    put(a.at("f"), "a\n")
    os.unlink(b.at("f"))
    os.unlink(a.at("g"))
    os.chmod(b.at("g"), 0o755)
    os.chmod(a.at("m"), 0o600)
    os.chmod(b.at("m"), 0o755)
    put(a.at("k"), "edited\n")
    os.unlink(b.at("k"))
    os.mkdir(b.at("k"))
    for session, target in ((a, "b"), (b, "c")):
        os.unlink(session.at("l"))
        os.symlink(target, session.at("l"))
        put(session.at("bin"), b"\0" + target.encode())
        put(session.at("new"), target + "\n")
        put(session.at("clean" + target))
    a.publish()
    want = {
        "f": "delete_modify",
        "g": "modify_delete",
        "m": "mode",
        "k": "type",
        "l": "symlink",
        "bin": "binary",
        "new": "add_add",
    }
    head = stack.store.head
    b.umount()
    preview = b.upper.preview()
    assert {c.path: c.cls for c in preview.conflicts} == want and not preview.would_publish
    assert b.rejected() == want and stack.store.head is head


@on_a_stack({"f": "f\n", "g": TEXT})
def test_equal_changes_of_both_sides_are_one_and_a_layer_that_adds_nothing_is_none(stack: Stack) -> None:
    a, b = two(stack)
    for session in (a, b):
        os.unlink(session.at("f"))
        put(session.at("g"), "same\n")
        put(session.at("n/x"), "same\n")
    a.publish()
    assert b.publish().no_op and stack.store.head.version == 2


@on_a_stack({})
def test_a_file_that_one_side_made_empty_takes_the_other_sides_text(stack: Stack) -> None:
    a, b = two(stack)
    put(a.at("x"), "text\n")
    put(b.at("x"), "")
    a.publish()
    assert b.publish().no_op and stack.shows() == {"x": "text\n"}


# ---- the pitfalls


@on_a_stack({"d/f": "1\n"})
def test_an_ancestor_that_ours_did_not_change_keeps_the_heads_mode(stack: Stack) -> None:
    a, b = two(stack)
    os.chmod(a.at("d"), 0o700)
    put(b.at("d/new"))
    a.publish()
    b.publish()
    assert stack.mode("d") == 0o700 and "d/new" in stack.shows()


@on_a_stack({"d/f": "1\n"})
def test_two_sessions_that_make_the_same_directory_both_keep_their_files(stack: Stack) -> None:
    a, b = two(stack)
    put(a.at("n/a"))
    put(b.at("n/b"))
    a.publish()
    b.publish()
    assert {"n/a", "n/b"} <= set(stack.shows())


@on_a_stack({f"d/{i}": "1\n" for i in range(12)})
def test_what_the_head_added_in_a_directory_that_ours_made_again_is_kept_and_noticed(stack: Stack) -> None:
    a, b = two(stack)
    put(a.at("d/new"))
    shutil.rmtree(b.at("d"))
    put(b.at("d/x"))
    a.publish()
    assert Notice("kept", "d/new") in b.publish().notices
    assert stack.shows() == {"d": "/", "d/new": "x\n", "d/x": "x\n"}


@on_a_stack({"d/f": "1\n"})
def test_what_the_head_added_in_a_directory_that_ours_removed_is_a_conflict(stack: Stack) -> None:
    a, b = two(stack)
    put(a.at("d/new"))
    shutil.rmtree(b.at("d"))
    a.publish()
    assert b.rejected() == {"d/new": "parent"}


@on_a_stack({"d/f": "1\n", "d/g": "2\n"})
def test_a_directory_that_the_head_removed_does_not_rise_from_the_dead(stack: Stack) -> None:
    a, b = two(stack)
    shutil.rmtree(a.at("d"))
    os.unlink(b.at("d/f"))
    a.publish()
    assert b.publish().no_op and stack.shows() == {}


@on_a_stack({"d/f": "1\n"})
def test_what_ours_added_in_a_directory_that_the_head_removed_is_a_conflict(stack: Stack) -> None:
    a, b = two(stack)
    shutil.rmtree(a.at("d"))
    put(b.at("d/new"))
    a.publish()
    assert b.rejected() == {"d/new": "parent"}


@on_a_stack({"d/f": "1\n", "d/g": "2\n"}, namespaces=("trusted",))
def test_a_renamed_directory_conflicts_with_an_edit_of_what_was_in_it(stack: Stack) -> None:
    a, b = two(stack)
    put(a.at("d/f"), "2\n")
    os.rename(b.at("d"), b.at("e"))
    a.publish()
    assert b.rejected() == {"d/f": "delete_modify"}


@on_a_stack({"d/f": "1\n", "d/e/g": "2\n"}, namespaces=("trusted",))
def test_a_renamed_directory_is_published_as_a_plain_layer_without_redirects(stack: Stack) -> None:
    a = stack.session()
    os.rename(a.at("d"), a.at("moved"))
    put(a.at("moved/new"))
    a.publish()
    assert stack.shows() == {
        "moved": "/",
        "moved/f": "1\n",
        "moved/e": "/",
        "moved/e/g": "2\n",
        "moved/new": "x\n",
    }
    for folder, _, _ in os.walk(f"{stack.root}/layers"):
        assert "trusted.overlay.redirect" not in os.listxattr(folder)
    base = os.stat(f"{stack.base}/d/f")
    assert base.st_nlink == 1, "the base's files are copied, never linked"


@on_a_stack({"d/f": "1\n"})
def test_a_directory_copied_away_and_back_leaves_the_heads_edit_alone(stack: Stack) -> None:
    a, b = two(stack)
    put(a.at("d/f"), "2\n")
    shutil.copytree(b.at("d"), b.at("t"))
    shutil.rmtree(b.at("d"))
    shutil.copytree(b.at("t"), b.at("d"))
    shutil.rmtree(b.at("t"))
    a.publish()
    assert b.publish().no_op and stack.shows()["d/f"] == "2\n"


@on_a_stack({"d/f": "1\n"})
def test_an_edit_below_a_directory_that_became_a_file_is_a_conflict(stack: Stack) -> None:
    a, b = two(stack)
    shutil.rmtree(a.at("d"))
    put(a.at("d"), "now a file\n")
    put(b.at("d/f"), "2\n")
    a.publish()
    assert b.rejected() == {"d/f": "modify_delete"}


@on_a_stack({"d/f": "1\n"})
def test_a_directory_of_ours_that_became_a_file_conflicts_with_an_edit_below_and_with_an_addition(
    stack: Stack,
) -> None:
    a, b = two(stack)
    put(a.at("d/f"), "2\n")
    put(a.at("d/n"))
    shutil.rmtree(b.at("d"))
    put(b.at("d"), "now a file\n")
    a.publish()
    assert b.rejected() == {"d/f": "delete_modify", "d/n": "parent"}


@on_a_stack({f"d/{i}": "1\n" for i in range(12)})
def test_an_edit_in_a_directory_that_the_head_made_again_without_the_file_is_a_conflict(stack: Stack) -> None:
    a, b = two(stack)
    shutil.rmtree(a.at("d"))
    put(a.at("d/x"))
    put(b.at("d/3"), "2\n")
    a.publish()
    assert b.rejected() == {"d/3": "modify_delete"}


@on_a_stack({"l": "1\n"})
def test_the_root_directory_keeps_the_mode_that_the_head_gave_it(stack: Stack) -> None:
    a, b = two(stack)
    os.chmod(a.view, 0o711)
    put(b.at("x"))
    a.publish()
    b.publish()
    assert stack.mode("") == 0o711
    c = stack.session()
    assert os.stat(c.view).st_mode & 0o777 == 0o711


@on_a_stack({"f": "1\n", "g": "1\n"})
def test_a_fifo_in_the_place_of_a_file_deletes_it_although_the_fifo_is_left_out(stack: Stack) -> None:
    a, b = two(stack)
    put(a.at("g"), "2\n")
    os.unlink(b.at("f"))
    os.mkfifo(b.at("f"))
    a.publish()
    assert b.publish().dropped == ("f",) and stack.shows() == {"g": "2\n"}


@on_a_stack({"b/real/f": "1\n", "b/link": "-> real"})
def test_a_symlink_of_the_base_is_never_walked_through(stack: Stack) -> None:
    b = stack.session()
    os.unlink(b.at("b/link"))
    put(b.at("b/link/f"), "1\n")
    b.publish()
    assert stack.shows() == {"b": "/", "b/link": "/", "b/link/f": "1\n", "b/real": "/", "b/real/f": "1\n"}


@on_a_stack({"d/f": "1\n"}, namespaces=("trusted",))
def test_work_that_was_captured_is_never_written_to_again(stack: Stack) -> None:
    first = stack.session()
    put(first.at("d/f"), "2\n")
    first.publish()  # now d/f lives in a layer, which capturing may link from
    a, b = two(stack)
    put(a.at("q"), "a\n")
    put(b.at("q"), "b\n")
    os.rename(b.at("d"), b.at("e"))
    a.publish()
    assert b.rejected() == {"q": "add_add"}
    b.mount()
    put(b.at("e/f"), "written later\n")
    b.umount()
    assert stack.shows()["d/f"] == "2\n" and stack.shows(2)["d/f"] == "2\n"


@on_a_stack({f"d/{i}": "1\n" for i in range(12)})
def test_two_sessions_that_replace_a_directory_alike_make_one_layer(stack: Stack) -> None:
    a, b = two(stack)
    for session in (a, b):
        shutil.rmtree(session.at("d"))
        put(session.at("d/x"), "same\n")
    a.publish()
    assert b.publish().no_op and stack.shows() == {"d": "/", "d/x": "same\n"}


# ---- ignored paths

IGNORES = {".gitignore": "ig/\n*.o\n", "s/c.py": "1\n", "s/ig/o": "1\n", "d/f": "1\n"}


@on_a_stack({**IGNORES})
def test_an_ignored_file_goes_to_the_last_writer_and_is_counted_apart(stack: Stack) -> None:
    a, b = two(stack)
    put(a.at("s/ig/o"), "a\n")
    put(b.at("s/ig/o"), "b\n")
    put(b.at("s/new.py"))
    a.publish()
    done = b.publish()
    assert (done.source_count, done.ignored_count) == (1, 1) and stack.shows()["s/ig/o"] == "b\n"


@on_a_stack({**IGNORES})
def test_an_ignored_path_does_not_shield_a_source_conflict(stack: Stack) -> None:
    a, b = two(stack)
    for session, text in ((a, "a\n"), (b, "b\n")):
        put(session.at("s/ig/o"), text)
        put(session.at("s/c.py"), text)
    a.publish()
    assert b.rejected() == {"s/c.py": "content"} and stack.shows()["s/ig/o"] == "a\n"


@on_a_stack({**IGNORES})
def test_an_ignored_file_brings_back_the_source_directory_that_the_head_removed(stack: Stack) -> None:
    a, b = two(stack)
    shutil.rmtree(a.at("s"))
    put(b.at("s/ig/o"), "2\n")
    a.publish()
    b.publish()
    shown = stack.shows()
    assert shown["s/ig/o"] == "2\n" and "s/c.py" not in shown


@on_a_stack({**IGNORES})
def test_ignored_files_of_the_head_go_with_a_directory_that_ours_removed(stack: Stack) -> None:
    a, b = two(stack)
    put(a.at("s/ig/o"), "2\n")
    shutil.rmtree(b.at("s"))
    a.publish()
    assert Notice("dropped", "s/ig/o") in b.publish().notices
    assert not any(path.startswith("s") for path in stack.shows())


@on_a_stack({".gitignore": "d\n", "d/x": "1\n", "d/e/y": "1\n"})
def test_an_ignored_directory_that_one_side_made_a_file_blocks_what_the_other_wrote_below(
    stack: Stack,
) -> None:
    a, b = two(stack)
    shutil.rmtree(a.at("d"))
    put(a.at("d"), "file\n")
    os.chmod(b.at("d"), 0o700)
    put(b.at("d/x"), "2\n")
    a.publish()
    b.publish()
    assert stack.shows()["d/x"] == "2\n"


@on_a_stack({".gitignore": "ig\n", "ig/d/c/a/f": "1\n"})
def test_what_ours_wrote_in_an_ignored_directory_that_won_over_the_heads_file_is_not_blocked_by_that_file(
    stack: Stack,
) -> None:
    a, b = two(stack)
    shutil.rmtree(a.at("ig/d"))
    put(a.at("ig/d"), "file\n")
    os.chmod(b.at("ig/d"), 0o700)
    shutil.rmtree(b.at("ig/d/c/a"))
    put(b.at("ig/d/c/a"), "2\n")
    a.publish()
    b.publish()
    assert stack.shows()["ig/d/c/a"] == "2\n" and stack.mode("ig/d") == 0o700


@on_a_stack({**IGNORES})
def test_source_and_ignored_work_below_a_removed_directory_conflicts_whatever_the_names(stack: Stack) -> None:
    a, b = two(stack)
    shutil.rmtree(a.at("d"))
    put(b.at("d/new"))
    put(b.at("d/ig/o"))
    a.publish()
    assert b.rejected() == {"d/new": "parent"}


@on_a_stack({".gitignore": "*.o\n" + "".join(f"a{n}/**/b\n" for n in range(600)), "x.o": "1\n"})
def test_rules_beyond_the_limits_protect_paths_as_source_and_are_named(stack: Stack) -> None:
    a, b = two(stack)
    put(a.at("x.o"), "a\n")
    put(b.at("x.o"), "b\n")
    assert a.publish().notices == (Notice("rules_refused", ".gitignore"),)
    assert Notice("rules_refused", ".gitignore") in b.upper.preview().notices
    assert b.rejected() == {"x.o": "content"}


# ---- preview, rounds, limits


@on_a_stack({"d/x": "x\n", "d/y": "y\n"})
def test_a_preview_counts_a_directory_that_the_head_has_made_meanwhile_as_the_publish_does(
    stack: Stack,
) -> None:
    ours, theirs = stack.session(), stack.session()
    put(theirs.at("d/x"), "changed\n")
    put(theirs.at("new/theirs"))
    theirs.publish()
    os.unlink(ours.at("d/y"))
    put(ours.at("new/ours"))
    previewed, done = ours.upper.preview(), ours.publish()
    assert (previewed.source_count, done.source_count) == (2, 2)  # `new` is the head's by now


@on_a_stack({"f": TEXT, "d/g": "g\n"})
def test_a_preview_of_a_live_session_touches_nothing_and_says_what_the_publish_says(stack: Stack) -> None:
    a, b = two(stack)
    put(a.at("f"), "0\n" + TEXT)
    a.publish()
    put(b.at("f"), TEXT + "6\n")
    put(b.at("n/x"))
    before = {
        path: (s.st_nlink, s.st_ctime_ns, s.st_mtime_ns)
        for path in ("f", "n", "n/x", "")
        for s in [os.lstat(f"{b.upper.upperdir}/{path}")]
    }
    preview = b.upper.preview()
    after = {
        path: (s.st_nlink, s.st_ctime_ns, s.st_mtime_ns)
        for path in ("f", "n", "n/x", "")
        for s in [os.lstat(f"{b.upper.upperdir}/{path}")]
    }
    assert before == after and os.listdir(f"{stack.root}/staging") == []
    done = b.publish()
    assert (preview.would_publish, preview.source_count, preview.notices) == (
        True,
        done.source_count,
        done.notices,
    )


@on_a_stack({"f": TEXT, "d/g": "g\n"})
def test_a_publish_whose_head_moved_elsewhere_is_not_planned_again(stack: Stack) -> None:
    """The second publishes while the first, planned and written, is about to sync; in the same directory, of
    which neither made anything.
    """
    a, b = two(stack)
    put(a.at("d/a"))
    put(b.at("d/b"))
    b.umount()
    steps: list[str] = []

    def step(name: str) -> None:
        steps.append(name)
        if name == "publish.sync_layer" and steps.count(name) == 1:
            b.publish()

    stack.store.step = step
    assert a.publish().manifest.version == 3
    assert steps.count("publish.plan") == 2, "one each"
    assert {"d/a", "d/b", "d/g"} <= set(stack.shows())
    stack.reopen()
    assert stack.store.head.version == 3 and {"d/a", "d/b"} <= set(stack.shows())


@on_a_stack({"f": TEXT}, namespaces=("trusted",))
def test_a_publish_that_was_planned_on_a_version_which_is_squashed_away_meanwhile_is_planned_again(
    stack: Stack,
) -> None:
    """Ours and the head added x alike, so ours was left out; then x was deleted, and the squash of both
    leaves no trace of it.
    """
    a = stack.session()
    put(a.at("x"), "x\n")
    put(a.at("y"), "y\n")
    a.umount()
    stack.store.update_file("x", lambda old: b"x\n", owner="o", request_id="r")
    b = stack.session()
    os.unlink(b.at("x"))
    b.umount()
    steps: list[str] = []

    def step(name: str) -> None:
        steps.append(name)
        if name == "publish.sync_layer" and steps.count(name) == 1:
            b.publish()
            (block,) = stack.store.squash().blocks
            assert len(block.replaced_layer_ids) == 2

    stack.store.step = step
    real, squash.READERS_WAIT_S = squash.READERS_WAIT_S, 0.0
    try:
        a.publish()
    finally:
        squash.READERS_WAIT_S = real
    assert (stack.shows().get("x"), stack.shows()["y"]) == ("x\n", "y\n")


@on_a_stack({"f": TEXT})
def test_thirty_two_publishers_of_different_files_all_get_their_own_version(stack: Stack) -> None:
    uppers = [stack.store.open_upper(f"p{i}", origin="test") for i in range(32)]
    for i, upper in enumerate(uppers):
        put(f"{upper.upperdir}/new/{i}", f"{i}\n")
    barrier, done, failures = threading.Barrier(32), list[Published](), list[BaseException]()

    def publish(i: int) -> None:
        try:
            barrier.wait()
            done.append(uppers[i].publish(owner=f"p{i}", request_id="r"))
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=publish, args=(i,)) for i in range(32)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert sorted(p.manifest.version for p in done) == list(range(2, 34))
    assert {f"new/{i}" for i in range(32)} <= set(stack.shows())
    stack.reopen()
    assert stack.store.head.version == 33 and stack.store.recovered == ()


@on_a_stack({"f": "".join(f"line {i}\n" for i in range(200))})
def test_publishers_that_edit_one_file_at_once_lose_no_line_of_anyone(stack: Stack) -> None:
    base = get(f"{stack.base}/f")
    uppers = [stack.store.open_upper(f"p{i}", origin="test") for i in range(8)]
    for i, upper in enumerate(uppers):
        put(f"{upper.upperdir}/f", base.replace(f"line {i * 20}\n", f"line {i * 20}\nby {i}\n"))
    failures: list[BaseException] = []

    def publish(upper: object) -> None:
        try:
            upper.publish(owner="o", request_id="r")  # type: ignore[attr-defined]
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=publish, args=(upper,)) for upper in uppers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert stack.shows()["f"] == "".join(
        f"line {i}\n" + (f"by {i // 20}\n" if i % 20 == 0 and i < 160 else "") for i in range(200)
    )


@on_a_stack({"f": "f\n"}, namespaces=("trusted",))
def test_a_publish_beyond_five_hundred_lowers_is_refused_by_name_and_the_session_goes_on(
    stack: Stack,
) -> None:
    assert stack.xattr_namespace is TRUSTED or stack.xattr_namespace == TRUSTED
    for i in range(499):
        stack.store.update_file("f", lambda old, i=i: b"%d\n" % i, owner="o", request_id="r")  # type: ignore[misc]
    assert len(stack.store.head.layers) == 500
    a, idle = two(stack)
    put(a.at("g"))
    a.umount()
    try:
        a.upper.publish(owner="o", request_id="r")
    except LayerLimit as error:
        assert error.details["limit"] == 500
    else:
        raise AssertionError("published")
    assert idle.publish().no_op
    a.mount()
    assert get(a.at("g")) == "x\n" and get(a.at("f")) == "498\n"


FIFTY = "".join(f"line {n}\n" for n in range(1, 61))


@on_a_stack({"f": b"\xef\xbb\xbfone\r\ntwo\r\nbare\nfour\r\nfive\r\nsix\r\nseven\r\nlast"})
def test_a_merge_keeps_execute_bit_byte_order_mark_and_every_line_end(stack: Stack) -> None:
    os.chmod(f"{stack.base}/f", 0o755)
    a, b = stack.session(), stack.session()
    with open(a.at("f"), "rb") as file:
        before = file.read()
    put(a.at("f"), before.replace(b"one", b"1"))
    put(b.at("f"), before.replace(b"last", b"end"))
    a.publish()
    b.publish()
    assert (
        stack.store.snapshot().read_bytes("f") == before.replace(b"one", b"1").replace(b"last", b"end")
        and stack.mode("f") == 0o755
    )


@on_a_stack({"f": "f\n"})
def test_a_small_file_in_the_place_of_a_big_one_has_no_old_tail_and_costs_no_memory(stack: Stack) -> None:
    session = stack.session()
    put(session.at("big"), b"x" * (10 << 20))
    put(session.at("other"), b"y" * (10 << 20))
    session.publish()
    session = stack.session()
    with open(session.at("big"), "r+b") as file:  # in place, as a careless writer: shorter, not new
        file.write(b"z" * 1024)
        file.truncate()
    session.publish()
    tracemalloc.start()
    stack.store.update_file("other", lambda _: b"z" * 1024, owner="o", request_id="r", limit=1 << 16)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    for _ in range(2):
        assert names_in_export(stack) == {"big": b"z" * 1024, "other": b"z" * 1024}
        assert stack.store.snapshot().read_bytes("other") == b"z" * 1024
        stack.store.squash()
    assert peak < 4 << 20


PAIRS = (
    "caf\u00e9",
    "cafe\u0301",
    "A.txt",
    "a.txt",
    "\u212a",
    "K",
    "k",
    "\u1e9e",
    "\u00df",
    "ss",
    "n\nl",
    "-rf",
    "x" * 255,
    os.fsdecode(b"\xff"),
)
"""Names that some file systems take for one: composed and not, in two cases, the Kelvin sign; and those that
programs trip over.
"""


@on_a_stack({f"base/{name}": name.encode("utf-8", "surrogateescape") for name in PAIRS})
def test_names_that_others_take_for_one_stay_apart_in_every_layer_squash_and_export(stack: Stack) -> None:
    session = stack.session()
    for number, name in enumerate(PAIRS):
        put(session.at(f"new/{name}"), f"{number}\n")
    for name in PAIRS[::2]:
        os.unlink(session.at(f"base/{name}"))
    session.publish()
    other = stack.session()
    put(other.at(f"new/{PAIRS[0]}"), "edited\n")
    other.publish()
    for _ in range(2):
        shows = stack.shows()
        assert {path.removeprefix("new/") for path in shows if path.startswith("new/")} == set(PAIRS)
        assert {path.removeprefix("base/") for path in shows if path.startswith("base/")} == set(PAIRS[1::2])
        found = names_in_export(stack)
        assert found == {
            f"new/{name}": b"edited\n" if not number else b"%d\n" % number
            for number, name in enumerate(PAIRS)
        }
        stack.store.squash()


@on_a_stack({"scratch": "base\n"})
def test_sessions_see_nothing_of_each_other_and_the_second_to_publish_is_rejected(stack: Stack) -> None:
    a, b = stack.session(), stack.session()
    put(a.at("scratch"), "a\n")
    os.unlink(b.at("scratch"))
    assert get(a.at("scratch")) == "a\n" and not os.path.exists(b.at("scratch"))
    a.publish()
    assert b.rejected() == {"scratch": "delete_modify"}
    b.mount()
    assert not os.path.exists(b.at("scratch")) and stack.shows() == {"scratch": "a\n"}


@on_a_stack({"f": FIFTY})
def test_a_rejection_names_path_hunk_all_three_sides_and_the_winner_and_leaves_out_what_is_alike(
    stack: Stack,
) -> None:
    a, b = stack.session(agent="alice"), stack.session(agent="bob")
    for session, text in ((a, "ten of a\n"), (b, "ten of b\n")):
        put(session.at("f"), FIFTY.replace("line 10\n", text).replace("line 50\n", "fifty\n"))
    a.publish()
    (conflict,) = b.conflicts()
    assert (conflict.path, conflict.cls) == ("f", "content")
    assert conflict.hunks == (Hunk((10, 1), (10, 1), (10, 1), ("line 10\n", "ten of b\n", "ten of a\n")),)
    assert len({side.digest for side in (conflict.base, conflict.ours, conflict.theirs)}) == 3
    assert conflict.theirs_layer is not None and (
        conflict.theirs_layer.owner,
        conflict.theirs_layer.agent,
    ) == ("s0", "alice")
    b.mount()
    put(
        b.at("f"),
        FIFTY.replace("line 10\n", "ten of a\n")
        .replace("line 50\n", "fifty\n")
        .replace("line 30\n", "thirty\n"),
    )
    b.publish()
    assert stack.shows()["f"] == FIFTY.replace("line 10\n", "ten of a\n").replace(
        "line 50\n", "fifty\n"
    ).replace("line 30\n", "thirty\n")
