"""Complaints about systems like ours, from public trackers, each as the smallest history that shows it. The
ids at the front are stable.
"""

from __future__ import annotations

import errno
import os
import shutil
import threading
import tracemalloc

import pytest

from layerstack.errors import Invalid
from layerstack.export.stream import fold
from layerstack.kernel.xattrs import FORMS
from layerstack.store import Store
from tests.layerstack.store_fixture import Stack, get, on_a_stack, put

FIFTY = "".join(f"line {n}\n" for n in range(1, 61))


def names_in_export(stack: Stack) -> dict[str, bytes]:
    """Name -> content of the files of the export; deletions and marks are typed, not named, and left out."""
    found: dict[str, bytes] = {}
    for entry in fold(stack.store.snapshot()):
        if entry.real_path is not None and not entry.header.kind:
            with open(entry.real_path, "rb") as file:
                found[os.fsdecode(entry.header.path)] = file.read()
    return found


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


@pytest.mark.parametrize(
    ("store", "workspace"), [("w/.eos", "w"), ("s", "s/w"), ("w", "w"), ("link/.eos", "w"), ("w/../w/x", "w")]
)
def test_a_store_inside_its_workspace_or_around_it_is_refused_and_nothing_is_made(
    short_dir: str, store: str, workspace: str
) -> None:
    os.mkdir(f"{short_dir}/w")
    os.symlink("w", f"{short_dir}/link")
    with pytest.raises(Invalid) as caught:
        Store.create(
            f"{short_dir}/{store}",
            workspace_root=f"{short_dir}/{workspace}",
            base_root_hash="0" * 64,
            form=FORMS["user"],
        )
    assert caught.value.reason == "store_in_workspace"
    assert os.listdir(f"{short_dir}/w") == [] and sorted(os.listdir(short_dir)) == ["link", "w"]
    Store.create(
        f"{short_dir}/w-store", workspace_root=f"{short_dir}/w", base_root_hash="0" * 64, form=FORMS["user"]
    )


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
def test_sessions_see_nothing_of_each_other_and_the_second_to_publish_is_told(stack: Stack) -> None:
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
    assert (conflict.path, conflict.cls, conflict.hunks) == ("f", "content", (((10, 1), (10, 1), (10, 1)),))
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


@on_a_stack({"f": "base\n"}, forms=("trusted",))
def test_on_a_full_disk_nothing_is_half_done_and_all_of_it_works_once_there_is_space(stack: Stack) -> None:
    with stack.on_a_small_disk({"f": "base\n", "d/g": "g\n"}, size_mib=8) as (inner, fill):
        for n in range(3):
            inner.store.update_file(f"n{n}", lambda _: b"n\n", owner="o", request_id="r")
        session = inner.session()
        put(session.at("mine"), "mine\n")
        os.unlink(session.at("d/g"))
        session.umount()
        fill()

        def on_disk() -> dict[str, list[str]]:
            names = ("layers", "manifests", ".layer-metadata", "drafts", "staging")
            return {name: sorted(os.listdir(f"{inner.root}/{name}")) for name in names}

        before, head = on_disk(), inner.store.head
        with open(f"{inner.root}/manifest.json", "rb") as file:
            manifest = file.read()
        for what in (
            session.publish,
            inner.store.squash,
            lambda: inner.store.update_file("x", lambda _: b"x", owner="o", request_id="r"),
        ):
            with pytest.raises(OSError) as caught:
                what()
            assert caught.value.errno == errno.ENOSPC
            assert on_disk() == before and inner.store.head == head
            with open(f"{inner.root}/manifest.json", "rb") as file:
                assert file.read() == manifest
        assert names_in_export(inner) == {f"n{n}": b"n\n" for n in range(3)}, "reading needs no space"
        os.unlink(f"{inner.folder}/filler")
        session.publish()
        assert len(inner.store.squash().blocks) == 1
        inner.reopen()
        assert inner.shows() == {
            "d": "/",
            "f": "base\n",
            "mine": "mine\n",
            **{f"n{n}": "n\n" for n in range(3)},
        }
        assert on_disk()["staging"] == []


@on_a_stack(
    {
        "sub/.git": "gitdir: ../.git/modules/sub\n",
        ".git/HEAD": "ref: refs/heads/main\n",
        ".git/modules/sub/HEAD": "0" * 40 + "\n",
    }
)
def test_git_files_of_submodules_are_plain_files_and_versions_rise_one_by_one_under_concurrent_publishes(
    stack: Stack,
) -> None:
    sessions = [stack.session() for _ in range(10)]
    for n, session in enumerate(sessions):
        put(session.at(f"sub/{n}"), f"{n}\n")
        put(session.at(f".git/refs/heads/b{n}"), f"{n}\n")
        session.umount()
    put_git = stack.session()
    put(put_git.at("sub/.git"), "gitdir: elsewhere\n")
    versions: list[int] = []
    start = threading.Barrier(10)

    def publish(n: int) -> None:
        start.wait()
        versions.append(sessions[n].upper.publish(owner=f"s{n}", request_id="r").manifest.version)

    threads = [threading.Thread(target=publish, args=(n,)) for n in range(10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(versions) == list(range(2, 12))
    put_git.publish()
    shows = stack.shows()
    assert shows["sub/.git"] == "gitdir: elsewhere\n" and [shows[f"sub/{n}"] for n in range(10)] == [
        f"{n}\n" for n in range(10)
    ]
