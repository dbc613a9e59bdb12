"""Histories written by hand, compared with the model: what the state machine and the disk faults met once."""

from __future__ import annotations

import os
import shutil

import pytest

from tests.layerstack.plain_histories import base_text, history, put_aside_squash_and_collect, small_tree
from tests.layerstack.state_machine import REFUSED, Session, StackMatchesModel
from tests.layerstack.store_fixture import NAMESPACE_PARAMS, put
from tests.trees import Tree

COMPARED, UNCHECKED = b"\0\0\r\n" + bytes(4) + b"code", b"\0\0\r\n\1" + bytes(3) + b"code"
"""Byte code by its header: compared with its source by time, or with nothing (PEP 552)."""


def ignored_folders(*names: str) -> Tree:
    """An ignored directory `ig` with empty directories in it."""
    folder, file = small_tree()["d"], small_tree()["d/f"]
    return {".gitignore": file._replace(body=b"ig/\n"), "ig": folder, **{f"ig/{n}": folder for n in names}}


def publish_all(machine: StackMatchesModel, *sessions: Session) -> None:
    for session in sessions:
        machine.finish(session, previewed=True, to_draft=False)


@pytest.mark.needs("overlay", "root")
def test_a_mode_of_the_root_that_the_head_has_already_is_no_publish(short_dir: str) -> None:
    def act(machine: StackMatchesModel) -> None:
        one, two = machine.add_session(), machine.add_session()
        os.chmod(one.mount, 0o700)
        os.unlink(f"{one.mount}/d/f")
        os.chmod(two.mount, 0o700)
        publish_all(machine, one, two)

    assert history("trusted", short_dir, small_tree(), act)["no-op"] == 1


@pytest.mark.needs("overlay", "root")
@pytest.mark.parametrize("refused", REFUSED)
def test_layers_that_a_bad_disk_kept_at_a_squash_go_with_the_session_that_stood_on_them(
    short_dir: str, refused: str
) -> None:
    def act(machine: StackMatchesModel) -> None:
        base_text(machine)
        session = machine.add_session()
        machine.squash_on_a_bad_disk(refused=refused, full=False, by=28)
        machine.drop(session)
        machine.squash(cut="")

    assert history("trusted", short_dir, small_tree(), act)["squashes on a bad disk"] == 1


@pytest.mark.needs("overlay", "root")
def test_versions_that_a_full_disk_cannot_rewrite_after_a_squash_keep_their_layers(short_dir: str) -> None:
    def act(machine: StackMatchesModel) -> None:
        base_text(machine)
        machine.pin(which=3, off=False)
        for n in range(1, 4):
            machine.update_file(which=0, line=n)
        machine.squash_on_a_bad_disk(refused="squash.close_versions", full=True, by=28)

    assert history("trusted", short_dir, small_tree(), act)["squashes on a bad disk"] == 1


@pytest.mark.needs("overlay", "root")
def test_a_gc_on_a_disk_that_refuses_to_rewrite_a_draft_keeps_the_layers_that_it_stands_on(
    short_dir: str,
) -> None:
    assert (
        history("trusted", short_dir, small_tree(), put_aside_squash_and_collect)["squashes on a bad disk"]
        == 1
    )


# What the disk faults found: a disk that refuses to undo as well


@pytest.mark.needs("overlay", "root")
def test_a_file_that_was_only_touched_is_a_directory_where_the_head_made_it_one(short_dir: str) -> None:
    """Found by the state machine: what the head has in that directory was a conflict of class `parent`."""

    def act(machine: StackMatchesModel) -> None:
        one, two, three = (machine.add_session() for _ in range(3))
        os.unlink(f"{one.mount}/d/f")
        os.makedirs(f"{one.mount}/d/f/made")
        with open(f"{one.mount}/d/f/made/g", "wb") as file:
            file.write(b"g\n")
        os.utime(f"{two.mount}/d/f", (1, 1))
        with open(f"{three.mount}/d/f", "wb") as file:
            file.write(b"changed\n")
        publish_all(machine, one, two)
        machine.finish(three, previewed=True, to_draft=False)
        assert machine.sessions == [three], "a change of the file is one conflict"

    assert history("trusted", short_dir, small_tree(), act)["rejected"] == 1


@pytest.mark.needs("overlay")
@pytest.mark.parametrize("namespace", NAMESPACE_PARAMS)
def test_ignored_work_comes_back_with_its_directories_and_without_what_is_derived(
    short_dir: str, namespace: str
) -> None:
    """The head has removed an ignored directory in which ours made and changed others. A directory of byte
    code is derived, but not what is unchecked in it.
    """
    os.chmod(short_dir, 0o777)

    def act(machine: StackMatchesModel) -> None:
        one, two = machine.add_session(), machine.add_session()
        shutil.rmtree(f"{one.mount}/ig")
        for folder in ("ig/__pycache__", "ig/n/__pycache__"):
            os.makedirs(f"{two.mount}/{folder}")
        put(f"{two.mount}/ig/__pycache__/u.pyc", UNCHECKED)
        put(f"{two.mount}/ig/__pycache__/c.pyc", COMPARED)
        put(f"{two.mount}/ig/n/__pycache__/c.pyc", COMPARED)
        put(f"{two.mount}/ig/n/x", "x\n")
        os.chmod(f"{two.mount}/ig/m", 0o700)
        put(f"{two.mount}/ig/m/c.tsbuildinfo", "made\n")
        publish_all(machine, one, two)
        assert {path for path in machine.model.tree() if path.startswith("ig")} == {
            "ig",
            "ig/__pycache__",
            "ig/__pycache__/u.pyc",
            "ig/m",
            "ig/n",
            "ig/n/x",
        }

    tree = {**small_tree(), **ignored_folders("m"), "ig/b": small_tree()["d/f"]}
    seen = history(namespace, short_dir, tree, act)
    assert seen["published on a moved head"] == 1


@pytest.mark.needs("overlay")
@pytest.mark.parametrize("namespace", NAMESPACE_PARAMS)
def test_an_ignored_database_is_the_last_writers_without_the_members_that_the_head_alone_has(
    short_dir: str, namespace: str
) -> None:
    os.chmod(short_dir, 0o777)

    def act(machine: StackMatchesModel) -> None:
        one, two = machine.add_session(), machine.add_session()
        for folder in ("n", "m"):
            for end in ("", "-wal"):
                put(f"{one.mount}/ig/{folder}/u.db{end}", b"SQLite format 3\0 one")
        put(f"{two.mount}/ig/n/u.db", b"SQLite format 3\0 two")
        put(f"{two.mount}/ig/m/u.db-wal", b"two")
        publish_all(machine, one, two)
        found = {path: entry.body for path, entry in machine.model.tree().items() if "u.db" in path}
        assert found == {"ig/n/u.db": b"SQLite format 3\0 two", "ig/m/u.db-wal": b"two"}

    seen = history(namespace, short_dir, {**small_tree(), **ignored_folders("n", "m")}, act)
    assert seen["published on a moved head"] == 1


@pytest.mark.needs("overlay")
@pytest.mark.parametrize("namespace", NAMESPACE_PARAMS)
def test_an_output_that_is_another_name_of_an_input_has_the_inputs_time_on_a_moved_head(
    short_dir: str, namespace: str
) -> None:
    """Found by the state machine. The name that came last in the order of paths decided: where that was the
    output, the input went below the head's.
    """
    os.chmod(short_dir, 0o777)

    def act(machine: StackMatchesModel) -> None:
        one, two = machine.add_session(), machine.add_session()
        put(f"{one.mount}/d/f", "changed\n")
        for source, output in (("m", "z.o"), ("n", "a.o")):
            put(f"{two.mount}/{source}", f"{source}\n")
            os.link(f"{two.mount}/{source}", f"{two.mount}/{output}")
        publish_all(machine, one, two)

    tree = {**small_tree(), ".gitignore": small_tree()["d/f"]._replace(body=b"*.o\n")}
    assert history(namespace, short_dir, tree, act)["published on a moved head"] == 1


@pytest.mark.needs("overlay")
@pytest.mark.parametrize("namespace", NAMESPACE_PARAMS)
def test_of_directories_in_each_other_that_match_a_unit_the_outermost_is_the_unit(
    short_dir: str, namespace: str
) -> None:
    os.chmod(short_dir, 0o777)

    def act(machine: StackMatchesModel) -> None:
        one, two = machine.add_session(), machine.add_session()
        shutil.rmtree(f"{one.mount}/box/box")
        put(f"{two.mount}/box/box/new", "new\n")
        publish_all(machine, one, two)

    tree = small_tree()
    boxes = {"box": tree["d"], "box/box": tree["d"], "box/box/f": tree["d/f"]}
    assert history(namespace, short_dir, {**tree, **boxes}, act)["rejected"] == 1
