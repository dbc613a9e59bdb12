"""Where the reference is wrong or loses something, we are not: W1 to W7 and W11 of what is wrong there, L1 to
L7 of what it loses.

docs/reference-faults.md says which test stands for which row; those about commands are in
tests/eos_agent/test_reference_faults.py.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import stat

import pytest

from layerstack.errors import StoreCorrupt
from layerstack.kernel import records
from layerstack.publish.commit import CommitUnsynced
from layerstack.store import Store
from tests.layerstack.store_fixture import Stack, get, on_a_stack, put, refusing
from tests.trees import Tree

TEXT = "f{\n1\n2\n3\ntail\n"
LONG = "".join(f"line {n}\n" for n in range(1, 41))


def write(stack: Stack, path: str, text: str, owner: str = "operation:1") -> None:
    stack.store.update_file(path, lambda _: text.encode(), owner=owner, request_id="r")


# ---- wrong


@on_a_stack({"touched": TEXT, "rewritten": TEXT, "opened": TEXT, "chmodded": TEXT, "d/x": "x\n"})
def test_a_file_that_was_only_touched_stays_deleted_and_a_chmod_of_it_is_a_conflict_never_an_empty_file(
    stack: Stack,
) -> None:
    theirs, ours, other = stack.session(), stack.session(), stack.session()
    for name in ("touched", "rewritten", "opened", "chmodded"):
        os.unlink(theirs.at(name))
    os.utime(ours.at("touched"))
    put(ours.at("rewritten"), TEXT)
    os.close(os.open(ours.at("opened"), os.O_RDWR))
    put(ours.at("d/y"), "y\n")
    os.chmod(other.at("chmodded"), 0o755)
    theirs.publish()
    ours.publish()
    assert stack.shows() == {"d": "/", "d/x": "x\n", "d/y": "y\n"}
    assert other.rejected() == {"chmodded": "modify_delete"}


@on_a_stack({"partly": TEXT, "adjacent": TEXT, "inserted": TEXT})
def test_edits_that_overlap_in_part_or_only_touch_are_conflicts_even_if_their_text_is_equal(
    stack: Stack,
) -> None:
    theirs, ours = stack.session(), stack.session()
    put(theirs.at("partly"), "f{\nX\n3\ntail\n")
    put(ours.at("partly"), "f{\n1\nX\ntail\n")
    put(theirs.at("adjacent"), TEXT.replace("1\n", "one\n"))
    put(ours.at("adjacent"), TEXT.replace("2\n", "two\n"))
    put(theirs.at("inserted"), TEXT.replace("1\n2\n", ""))
    put(ours.at("inserted"), TEXT.replace("2\n", "2\nnew\n"))
    theirs.publish()
    assert ours.rejected() == {"adjacent": "content", "inserted": "content", "partly": "content"}
    assert stack.shows()["partly"] == "f{\nX\n3\ntail\n"


@on_a_stack({"run": LONG})
def test_the_execute_bit_outlives_writes_merges_and_a_concurrent_chmod(stack: Stack) -> None:
    mode = (
        0o4755 if stack.xattr_namespace.name == "trusted" else 0o755
    )  # a write takes setuid away, but for the machine's root
    chmod, edit = stack.session(), stack.session()
    os.chmod(chmod.at("run"), mode)
    put(edit.at("run"), LONG.replace("line 2\n", "two\n"))
    chmod.publish()
    edit.publish()
    assert (stack.mode("run"), stack.shows()["run"]) == (mode, LONG.replace("line 2\n", "two\n"))
    merged = stack.session()
    put(merged.at("run"), get(merged.at("run")).replace("line 30\n", "thirty\n"))
    write(stack, "run", stack.shows()["run"].replace("line 15\n", "fifteen\n"))
    assert stack.mode("run") == mode, "a write without a session"
    merged.publish()
    assert stack.mode("run") == mode, "a file that is merged by lines"
    assert all(word in stack.shows()["run"] for word in ("two\n", "fifteen\n", "thirty\n"))


@on_a_stack({"d/x": "x\n"})
def test_a_publish_of_nothing_but_a_mode_is_a_version_and_the_mode_is_part_of_the_digest(
    stack: Stack,
) -> None:
    digests: list[str] = []
    write(stack, "f", "same bytes\n")
    for mode in (0o755, 0o644, 0o755):
        session = stack.session()
        os.chmod(session.at("f"), mode)
        done = session.publish()
        assert not done.no_op and done.layer_id is not None and stack.mode("f") == mode
        digests.append(records.read(f"{stack.root}/.layer-metadata/{done.layer_id}.json")["digest"])
    assert digests[0] == digests[2] != digests[1], "equal changes, equal digest; another mode, another one"
    session = stack.session()
    os.chmod(session.at("d"), 0o700)
    assert not session.publish().no_op and stack.mode("d") == 0o700


@on_a_stack({f"d/{n}": "old\n" for n in range(40)})
def test_a_directory_that_was_made_again_lists_what_it_holds_at_every_depth(stack: Stack) -> None:
    session = stack.session()
    shutil.rmtree(session.at("d"))
    put(session.at("d/sub/deep/x"), "new\n")
    session.publish()
    for _ in range(2):
        snapshot = stack.store.snapshot()
        found = {path: [entry.path for entry in snapshot.list(path)] for path in ("d", "d/sub", "d/sub/deep")}
        assert found == {"d": ["d/sub"], "d/sub": ["d/sub/deep"], "d/sub/deep": ["d/sub/deep/x"]}
        write(stack, "else", "x\n")
        stack.store.squash()


@on_a_stack({"gone": "x\n", "gone-dir/x": "x\n", "link": "-> old", "becomes": "x\n"})
def test_what_both_sides_did_alike_is_no_conflict(stack: Stack) -> None:
    sessions = stack.session(), stack.session()
    for session in sessions:
        os.unlink(session.at("gone"))
        shutil.rmtree(session.at("gone-dir"))
        os.unlink(session.at("link"))
        os.symlink("same", session.at("link"))
        os.symlink("there", session.at("new-link"))
        os.unlink(session.at("becomes"))
        put(session.at("becomes/x"), "same\n")
    assert not sessions[0].publish().no_op
    assert sessions[1].publish().no_op


def check_listings(stack: Stack, tree: Tree) -> None:
    """Every name that a directory lists can be looked at (`tree` was read that way), and the store lists the
    same ones.
    """
    snapshot = stack.store.snapshot()
    for path, entry in tree.items():
        if entry.is_dir:
            names = {other for other in tree if other and other.rpartition("/")[0] == path}
            assert {found.path for found in snapshot.list(path)} == names, path


@on_a_stack({f"{d}/{n}": "x\n" for d in ("a", "a/b", "c", "c/d") for n in range(12)})
def test_a_deleted_name_is_never_listed_and_every_deletion_on_disk_is_the_kernels_own_form(
    stack: Stack,
) -> None:
    for round_ in range(3):
        session = stack.session()
        os.unlink(session.at(f"a/{round_}"))
        os.unlink(session.at(f"a/b/{round_}"))
        shutil.rmtree(session.at("c/d"))
        put(session.at(f"c/d/{round_}"), "again\n")
        put(session.at(f"c/d/e/{round_}"), "again\n")
        if round_:
            os.unlink(session.at(f"c/{round_ - 1}"))
        session.publish()
        check_listings(stack, stack.tree())
    stack.store.squash()
    check_listings(stack, stack.tree())
    seen = 0
    for folder, _, files in os.walk(f"{stack.root}/layers"):
        for name in files:
            status = os.lstat(os.path.join(folder, name))
            if not stat.S_ISREG(status.st_mode):
                assert stat.S_ISCHR(status.st_mode) and status.st_rdev == 0
                seen += 1
            else:
                assert not [
                    key for key in os.listxattr(os.path.join(folder, name)) if key.endswith(".whiteout")
                ]
    assert seen


@on_a_stack({"f": "f\n", "empty": ""})
def test_a_file_that_carries_the_mark_of_a_deletion_as_an_attribute_is_an_ordinary_file(stack: Stack) -> None:
    session = stack.session()
    os.setxattr(session.at("empty"), f"{stack.xattr_namespace.prefix}whiteout", b"y")
    put(session.at("new"), "")
    os.setxattr(session.at("new"), f"{stack.xattr_namespace.prefix}whiteout", b"y")
    session.publish()
    for _ in range(2):
        assert stack.shows() == {"f": "f\n", "empty": "", "new": ""}
        assert stack.tree()["new"].xattrs == ((f"{stack.xattr_namespace.prefix}whiteout", b"y"),)
        write(stack, "else", "x\n")
        stack.store.squash()
        session = stack.session()
        os.unlink(session.at("else"))
        session.publish()


@on_a_stack({"f": "old\n"})
def test_a_layer_whose_manifest_was_renamed_in_is_kept_when_the_last_sync_fails(stack: Stack) -> None:
    session = stack.session()
    put(session.at("f"), "new\n")
    session.umount()
    stack.store.step = refusing("commit.fsync_manifest", code=errno.EIO)
    with pytest.raises(CommitUnsynced) as caught:
        session.publish()
    assert caught.value.published.manifest == stack.store.head
    with open(f"{stack.root}/manifest.json", "rb") as file:
        named = [layer["path"] for layer in json.loads(file.read())["layers"]]
    assert len(named) == 2 and all(os.path.isdir(f"{stack.root}/{path}") for path in named)
    stack.store.gc()
    stack.store.step = stack.step
    assert stack.shows() == {"f": "new\n"}
    again = stack.session()
    put(again.at("g"), "g\n")
    again.publish()
    stack.reopen()
    assert stack.shows() == {"f": "new\n", "g": "g\n"}


@on_a_stack({"f": "1\n2\n", "other": "x\n"})
def test_a_squash_whose_last_sync_fails_keeps_the_layer_that_the_manifest_names(stack: Stack) -> None:
    write(stack, "f", "1\n2\n3\n")
    write(stack, "f", "1\n2\n3\n4\n")

    stack.store.step = refusing("commit.fsync_manifest", code=errno.EIO)
    with pytest.raises(CommitUnsynced):
        stack.store.squash()
    stack.store.gc()
    stack.store.step = stack.step
    assert stack.shows() == {"f": "1\n2\n3\n4\n", "other": "x\n"} and len(stack.store.head.layers) == 2
    stack.reopen()
    assert stack.shows() == {"f": "1\n2\n3\n4\n", "other": "x\n"}


@on_a_stack({"f": "1\n2\n3\n"})
def test_blame_follows_a_deletion_a_renaming_and_a_file_made_anew(stack: Stack) -> None:
    def owners(path: str) -> list[str]:
        return [part.owner for part in stack.store.blame(path)]

    write(stack, "f", "1\n2\nthree\n", "operation:edit")
    session = stack.session()
    os.rename(session.at("f"), session.at("g"))
    session.publish()
    assert owners("g") == ["s0"] and owners("f") == ["original", "operation:edit"], (
        "a path that is gone keeps its last answer"
    )
    write(stack, "f", "1\n2\n3\n", "operation:anew")
    assert owners("f") == ["operation:anew"], "and loses it to what is made in its place"
    write(stack, "g", "1\n2\nthree\n4\n", "operation:more")
    session = stack.session()
    os.unlink(session.at("g"))
    put(session.at("g/in"), "x\n")
    session.publish()
    stack.reopen()
    assert owners("g/in") == [session.upper.session_id]


@on_a_stack({"f": "1\n2\n3\n"})
def test_there_is_no_log_to_tear_and_a_torn_or_spoilt_file_of_a_layer_is_named_at_open(stack: Stack) -> None:
    write(stack, "f", "1\n2\nthree\n", "operation:edit")
    (layer,) = stack.layer_dirs()
    stack.store.close()
    for suffix in ("json", "index", "digest"):
        path = f"{stack.root}/.layer-metadata/{layer}.{suffix}"
        with open(path, "rb") as file:
            whole = file.read()
        for spoilt in (whole[:-1], whole + b"\xff\xfe\x00tail", whole + whole, b""):
            with open(path, "wb") as file:
                file.write(spoilt)
            with pytest.raises(StoreCorrupt) as caught:
                Store.open(stack.root)
            assert caught.value.details["file"] == path
        with open(path, "wb") as file:
            file.write(whole)
    stack.store = Store.open(stack.root)
    assert [part.owner for part in stack.store.blame("f")] == ["original", "operation:edit"]


# ---- lossy


@on_a_stack({**{f"f{n}": LONG for n in range(6)}, "d/x": "x\n", "gone": "x\n"})
def test_every_conflict_is_reported_and_the_rest_of_the_work_is_carried_over_to_the_head(
    stack: Stack,
) -> None:
    theirs, ours = stack.session(), stack.session(agent="bob")
    for n in range(3):
        put(theirs.at(f"f{n}"), LONG.replace("line 9\n", "theirs\n"))
        put(ours.at(f"f{n}"), LONG.replace("line 9\n", "ours\n"))
    os.unlink(theirs.at("gone"))
    put(ours.at("gone"), "edited\n")
    put(theirs.at("f3"), LONG.replace("line 9\n", "theirs\n"))
    put(ours.at("f3"), LONG.replace("line 30\n", "ours\n"))
    for n in range(200):
        put(ours.at(f"good/{n}"), f"{n}\n")
    os.mkfifo(ours.at("d/pipe"))
    theirs.publish()
    want = {"f0": "content", "f1": "content", "f2": "content", "gone": "modify_delete"}
    assert ours.rejected() == want
    ours.mount()
    for n in range(3):
        put(ours.at(f"f{n}"), LONG)
    os.unlink(ours.at("gone"))
    draft = ours.keep().draft_id
    again = stack.session(draft_id=draft, draft_base="head")
    assert get(again.at("f0")) == LONG.replace("line 9\n", "theirs\n"), (
        "taken back to the base: the head's is seen"
    )
    done = again.publish()
    shows = stack.shows()
    assert (
        shows["f3"] == LONG.replace("line 9\n", "theirs\n").replace("line 30\n", "ours\n")
        and shows["good/199"] == "199\n"
    )
    assert not done.no_op and "gone" not in shows


@on_a_stack({"d/x": "x\n"})
def test_a_fifo_is_no_reason_to_refuse_a_publish(stack: Stack) -> None:
    session = stack.session()
    os.mkfifo(session.at("d/pipe"))
    put(session.at("d/y"))
    assert session.publish().dropped == ("d/pipe",)
    assert stack.shows() == {"d": "/", "d/x": "x\n", "d/y": "x\n"}


@on_a_stack(
    {
        ".gitignore": "*.o\nbuild/\n",
        "mixed/build/a": "a\n",
        "mixed/src": "s\n",
        **{f"mixed/{n}.o": "o\n" for n in range(30)},
    }
)
def test_a_directory_of_thousands_with_ignored_and_source_files_can_be_replaced(stack: Stack) -> None:
    for n in range(4200):
        put(f"{stack.base}/many/{n % 70}/{n}", "x")
    theirs, session = stack.session(), stack.session()
    put(theirs.at("mixed/late.o"), "o\n")
    shutil.rmtree(session.at("many"))
    put(session.at("many/one"), "1\n")
    shutil.rmtree(session.at("mixed"))
    put(session.at("mixed/build/b"), "b\n")
    put(session.at("mixed/new"), "n\n")
    theirs.publish()
    session.publish()
    assert stack.shows() == {
        ".gitignore": "*.o\nbuild/\n",
        "many": "/",
        "many/one": "1\n",
        "mixed": "/",
        "mixed/build": "/",
        "mixed/build/b": "b\n",
        "mixed/new": "n\n",
        "mixed/late.o": "o\n",  # nobody deleted what was not there yet
    }


@on_a_stack(
    {
        "manifest.json": "{}\n",
        "layers/app.js": "x\n",
        ".wh.old": "not a deletion\n",
        "d/.wh..wh..opq": "nor a mark\n",
        "d/x": "x\n",
    }
)
def test_names_that_a_store_might_want_for_itself_are_ordinary_ones(stack: Stack) -> None:
    assert stack.shows() == {
        "manifest.json": "{}\n", "layers": "/", "layers/app.js": "x\n", ".wh.old": "not a deletion\n", "d": "/", "d/.wh..wh..opq": "nor a mark\n", "d/x": "x\n",  # noqa: E501
    }  # fmt: skip
    session = stack.session()
    for name in (
        "manifest.json",
        "workspace.json",
        "layers/app.js",
        "staging/x",
        ".layer-metadata/x",
        "d/.layer-metadata/x",
        ".wh.new",
    ):
        put(session.at(name), "mine\n")
    os.unlink(session.at(".wh.old"))
    session.publish()
    stack.store.squash()
    stack.reopen()
    shows = stack.shows()
    assert {path for path, text in shows.items() if text == "mine\n"} == {
        "manifest.json", "workspace.json", "layers/app.js", "staging/x", ".layer-metadata/x", "d/.layer-metadata/x", ".wh.new",  # noqa: E501
    }  # fmt: skip
    assert ".wh.old" not in shows and shows["d/x"] == "x\n"


@on_a_stack({"f": "f\n"})
def test_the_bytes_that_nobody_published_outlive_the_process(stack: Stack) -> None:
    sessions = [stack.session() for _ in range(3)]
    for n, session in enumerate(sessions):
        put(session.at("f"), f"{n}\n")
        put(session.at(f"own-{n}"), "x" * 5000)
    stack.reopen()
    assert len(stack.store.recovered) == 3
    for draft in stack.store.recovered:
        again = stack.session(draft_id=draft.draft_id)
        number = draft.origin[-1]
        assert get(again.at("f")) == f"{number}\n" and len(get(again.at(f"own-{number}"))) == 5000


@on_a_stack({".gitignore": "build/\n", "src": "s\n"})
def test_ignored_files_are_the_last_writers_path_by_path_and_cost_nothing_when_unchanged_or_once_folded(
    stack: Stack,
) -> None:
    first = stack.session()
    for n in range(20):
        put(first.at(f"build/{n}.o"), f"{n}" * 2000)
    first.publish()
    theirs, ours = stack.session(), stack.session()
    put(theirs.at("build/1.o"), "theirs\n")
    put(theirs.at("build/2.o"), "theirs\n")
    for n in range(20):  # a build that writes everything anew, most of it as it was
        put(ours.at(f"build/{n}.o"), "ours\n" if n == 1 else f"{n}" * 2000)
    os.unlink(ours.at("build/0.o"))
    theirs.publish()
    done = ours.publish()
    assert (done.source_count, done.ignored_count) == (0, 2)
    shows = stack.shows()
    assert shows["build/1.o"] == "ours\n" and shows["build/2.o"] == "theirs\n" and "build/0.o" not in shows

    def files() -> int:
        return sum(len(names) for _, _, names in os.walk(f"{stack.root}/layers"))

    before = files()
    stack.store.squash()
    assert stack.shows() == shows and files() == 19 < before
