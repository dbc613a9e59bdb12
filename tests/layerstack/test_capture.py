"""Capturing an upperdir: the layer on disk is plain and says only what changed."""

from __future__ import annotations

import os
import shutil

from layerstack.kernel import tempnames
from layerstack.kernel.whiteout import is_opaque, is_whiteout
from layerstack.layers.capture import capture_tree
from layerstack.layers.index_file import build
from layerstack.tree.disk import DiskTree
from layerstack.tree.memory import MemoryTree
from tests.layerstack.store_fixture import Session, Stack, on_a_stack, put


def captured(session: Session) -> dict[str, str]:
    """Capture, once more to see that nothing happens then, and say what the upperdir holds: kinds as in the
    index, `o` for opaque.
    """
    session.umount()
    upper, stack = session.upper, session.upper.snapshot.chain
    steps: list[str] = []
    tree = DiskTree(
        upper.upperdir, stack.xattr_namespace, aside=os.path.dirname(upper.workdir), step=steps.append
    )
    in_memory = MemoryTree.load(tree)
    capture_tree(in_memory, stack)
    capture_tree(tree, stack)
    steps.clear()
    capture_tree(tree, stack)
    assert steps == [], "capturing what is captured does nothing"
    index = build(tree, stack).records
    assert build(in_memory, stack).records == index, "a preview sees the same layer"
    return {
        path: "o" if rec.opaque else "q" if rec.quiet else rec.kind for path, rec in index.items() if path
    }


@on_a_stack({"d/f": "f\n"})
def test_trap_1_a_new_directory_is_not_opaque_in_the_layer(stack: Stack) -> None:
    a = stack.session()
    put(a.at("n/x"))
    put(a.at("d/m/y"))
    assert captured(a) == {"n": "d", "n/x": "f", "d": "q", "d/m": "d", "d/m/y": "f"}
    assert not is_opaque(f"{a.upper.upperdir}/n", stack.xattr_namespace) and not is_opaque(
        f"{a.upper.upperdir}/d/m", stack.xattr_namespace
    )


@on_a_stack({f"d/{i}": "f\n" for i in range(30)})
def test_a_directory_that_was_emptied_and_made_again_stays_opaque_when_whiteouts_would_be_many(
    stack: Stack,
) -> None:
    a = stack.session()
    shutil.rmtree(a.at("d"))
    put(a.at("d/x"))
    assert captured(a) == {"d": "o", "d/x": "f"}


@on_a_stack({"d/a": "a\n", "d/b": "b\n", "d/e/c": "c\n"})
def test_a_directory_that_was_made_again_with_most_of_its_content_becomes_a_plain_one(stack: Stack) -> None:
    a = stack.session()
    shutil.rmtree(a.at("d"))
    put(a.at("d/a"), "a\n")
    put(a.at("d/new"))
    assert captured(a) == {"d": "q", "d/b": "w", "d/e": "w", "d/new": "f"}


@on_a_stack({"d/a": "a\n", "d/e/c": "c\n", "d/e/g": "g\n"}, namespaces=("trusted",))
def test_a_renamed_directory_becomes_an_opaque_one_or_a_new_one_with_all_it_held(stack: Stack) -> None:
    a = stack.session()
    os.rename(a.at("d"), a.at("e"))
    os.rename(a.at("e/e"), a.at("deep"))
    os.unlink(a.at("deep/g"))
    assert captured(a) == {"d": "w", "e": "d", "e/a": "f", "deep": "d", "deep/c": "f"}


@on_a_stack({"d/a": "a\n"}, namespaces=("trusted",))
def test_a_directory_renamed_away_and_back_is_nothing(stack: Stack) -> None:
    a = stack.session()
    os.rename(a.at("d"), a.at("e"))
    os.rename(a.at("e"), a.at("d"))
    assert captured(a) == {}


@on_a_stack({"a/x": "x\n", "b/y": "y\n"}, namespaces=("trusted",))
def test_directories_that_changed_places_are_opaque_with_each_others_content(stack: Stack) -> None:
    a = stack.session()
    os.rename(a.at("a"), a.at("t"))
    os.rename(a.at("b"), a.at("a"))
    os.rename(a.at("t"), a.at("b"))
    assert captured(a) == {"a": "q", "a/x": "w", "a/y": "f", "b": "q", "b/x": "f", "b/y": "w"}


@on_a_stack({"f": "f\n"})
def test_a_whiteout_over_nothing_goes_and_one_over_the_base_stays(stack: Stack) -> None:
    a = stack.session()
    put(a.at("g"))
    os.unlink(a.at("g"))
    os.unlink(a.at("f"))
    assert captured(a) == {"f": "w"}
    assert is_whiteout(os.lstat(f"{a.upper.upperdir}/f"))


@on_a_stack({"d/f": "f\n"})
def test_a_file_in_the_place_of_a_directory_and_the_other_way_round_are_plain_entries(stack: Stack) -> None:
    a = stack.session()
    shutil.rmtree(a.at("d"))
    put(a.at("d"))
    assert captured(a) == {"d": "f"}
    b = stack.session()
    os.unlink(b.at("d/f"))
    put(b.at("d/f/x"))
    assert captured(b) == {"d": "q", "d/f": "d", "d/f/x": "f"}


@on_a_stack({"f": "f\n", "d/g": "g\n"})
def test_capturing_can_be_cut_off_at_any_step_and_done_again(stack: Stack) -> None:
    class Cut(Exception):
        pass

    for stop in range(1, 12):
        a = stack.session()
        shutil.rmtree(a.at("d"))
        os.mkdir(a.at("d"))
        os.mkfifo(a.at("d/g"))
        os.utime(a.at("f"))
        put(a.at("n/x"))
        if stack.xattr_namespace.name == "trusted":
            os.mkdir(a.at("d/t"))
            os.rename(a.at("n"), a.at("d/t/n"))
        a.umount()
        left = stop

        def step(_: str) -> None:
            nonlocal left
            left -= 1
            if left == 0:
                raise Cut

        chain = a.upper.snapshot.chain
        try:
            capture_tree(
                DiskTree(a.upper.upperdir, stack.xattr_namespace, aside=f"{stack.root}/staging", step=step),
                chain,
            )
        except Cut:
            pass
        want = {"d": "q", "d/g": "w", "d/t": "d", "d/t/n": "d", "d/t/n/x": "f"}
        if stack.xattr_namespace.name == "user":
            want = {"d": "q", "d/g": "w", "n": "d", "n/x": "f"}
        assert captured(a) == want


@on_a_stack({"d/f": "f\n", "base/.eos-0123456789abcdef/f": "meant\n"})
def test_what_a_killed_process_left_half_made_is_no_work_of_the_session(stack: Stack) -> None:
    """A place where something was being completed is recognised by its name and mode together; what the base
    has of that name was meant.
    """
    a = stack.session()
    for place in ("d", "new", "base"):
        put(a.at(f"{place}/{tempnames.place_name()}/entry/half"))
        (name,) = [
            name
            for name in os.listdir(a.at(place))
            if name.startswith(".eos-") and name != ".eos-0123456789abcdef"
        ]
        os.chmod(
            a.at(f"{place}/{name}"), tempnames.PLACE_MODE | 0o2000 if place == "new" else tempnames.PLACE_MODE
        )
    os.chmod(a.at("base/.eos-0123456789abcdef"), tempnames.PLACE_MODE)
    put(a.at("d/.eos-00000000000000000/f"))
    os.chmod(a.at("d/.eos-00000000000000000"), tempnames.PLACE_MODE)
    put(a.at("d/.eos-0000000000000000/f"))
    put(a.at("d/.eos-1111111111111111"))
    for place, late in (("files", 0), ("d", 1)):
        put(a.at(f"{place}/written"))
        os.rename(
            a.at(f"{place}/written"),
            a.at(f"{place}/{tempnames.file_name(os.stat(a.at(f'{place}/written')).st_mtime_ns + late)}"),
        )
    a.umount()
    assert [os.path.dirname(path) for path in sorted(a.upper.preview().dropped)] == [
        "base",
        "d",
        "files",
        "new",
    ]
    assert [os.path.dirname(path) for path in sorted(a.publish().dropped)] == ["base", "d", "files", "new"]
    files = {path for path, text in stack.shows().items() if text != "/" and len(path) < len("d/.eos-") + 32}
    kept = {
        "base/.eos-0123456789abcdef/f",
        *(f"d/.eos-{name}" for name in ("00000000000000000/f", "0000000000000000/f", "1111111111111111")),
    }
    assert files == {"d/f", *kept} and "new" in stack.shows() and "files" in stack.shows()
    assert len([path for path in stack.shows() if len(path) == len("d/.eos-") + 32]) == 1, (
        "the one of another time is a file as any"
    )
