"""Trees deeper than PATH_MAX and than Python recurses, as a command makes them that goes down by `cd`."""

from __future__ import annotations

import errno
import os

import pytest

from layerstack.kernel import fsync
from layerstack.session.upper import LONGEST_PLACE
from layerstack.tree.disk import PATH_MAX
from tests import in_namespace
from tests.layerstack.store_fixture import Session, Stack, get, on_a_stack, put


def go_down(folder: str, name: str, depth: int) -> None:
    """`depth` directories in one another below `folder`, with a file in the last; the process is left down
    there.
    """
    os.chdir(folder)
    for _ in range(depth):
        os.mkdir(name)
        os.chdir(name)
    with open("bottom", "w") as file:
        file.write("x")


@pytest.mark.parametrize(
    "namespace",
    [pytest.param(None, id="whoever"), pytest.param("uid", id="ordinary", marks=pytest.mark.needs("uid"))],
)
@pytest.mark.parametrize(("name", "depth"), [("n" * 200, 30), ("d", 1900)], ids=["long-names", "many-levels"])
def test_a_tree_of_any_depth_is_removed_and_nothing_beside_it(
    short_dir: str, namespace: str | None, name: str, depth: int
) -> None:
    os.chmod(short_dir, 0o777)

    def in_child() -> list[str]:
        for folder in ("gone", "beside"):
            os.mkdir(f"{short_dir}/{folder}")
        os.symlink(f"{short_dir}/beside", f"{short_dir}/gone/link")
        go_down(f"{short_dir}/gone", name, depth)
        os.chmod(".", 0)
        os.chdir("/")
        fsync.remove_tree(f"{short_dir}/gone")
        return os.listdir(short_dir)

    assert in_namespace.call(namespace, in_child) == ["beside"]


@on_a_stack({"f": "base\n"})
def test_a_path_that_cannot_be_captured_stops_the_publish_and_the_session_goes_on_and_removes_it(
    stack: Stack,
) -> None:
    session = stack.session()
    put(session.at("a"), "before\n")
    go_down(session.view, "n" * 200, 25)
    os.chdir("/")
    session.umount()
    for attempt in (
        session.upper.preview,
        session.publish,
        lambda: session.upper.to_draft(reason="r"),
        session.publish,
    ):
        with pytest.raises(OSError) as caught:
            attempt()
        assert caught.value.errno == errno.ENAMETOOLONG
        session.mount()
        assert get(session.at("a")) == "before\n" and os.path.exists(session.at("n" * 200))
        session.umount()
    session.mount()
    fsync.remove_tree(session.at("n" * 200))
    session.publish()
    assert stack.shows() == {"a": "before\n", "f": "base\n"}


def of_length(length: int) -> str:
    """A path of so many bytes, of names of 200."""
    whole, rest = divmod(length - 1, 201)
    return "/".join([*["n" * 200] * whole, "n" * (rest + 1)])


def put_deep(session: Session, length: int) -> str:
    """Its path of that length."""
    path = of_length(length)
    assert len(path) == length and len(f"{session.upper.upperdir}/{path}") < PATH_MAX
    os.chdir(session.view)
    for name in path.split("/")[:-1]:
        os.mkdir(name)
        os.chdir(name)
    put(os.path.join(".", path.rpartition("/")[2]), "deep\n")
    os.chdir("/")
    return path


@on_a_stack({"f": "base\n"})
def test_what_a_session_with_a_long_id_could_not_read_as_captured_work_stops_it_as_it_is(
    stack: Stack,
) -> None:
    """A private layer lies deeper than the upperdir, and than a layer where the id is long: a refused publish
    must not capture what it cannot read.
    """
    os.mkdir(f"{stack.folder}/view")
    session = Session(
        stack.store, stack.store.open_upper("n" * 100, origin="workspace_session:n"), f"{stack.folder}/view"
    )
    stack.sessions.append(session)
    put(session.at("f"), "ours\n")
    path = put_deep(session, PATH_MAX - 2 - len(session.upper.upperdir))
    stack.store.update_file("f", lambda old: b"theirs\n", owner="o", request_id="r")
    session.umount()
    for attempt in (session.publish, session.upper.rebase):
        with pytest.raises(OSError) as caught:
            attempt()
        assert caught.value.errno == errno.ENAMETOOLONG
    session.mount()
    fsync.remove_tree(session.at(path.partition("/")[0]))
    assert session.rejected() == {"f": "content"}
    session.keep()


@on_a_stack({"f": "base\n"})
def test_whatever_is_published_can_be_read_and_folded_where_it_lies_then(stack: Stack) -> None:
    """A layer lies deeper in the store than the upperdir of a session with a short name."""
    longest = PATH_MAX - 1 - len(stack.root) - LONGEST_PLACE
    fits, too_long = stack.session(), stack.session()
    for session, length in ((fits, longest), (too_long, PATH_MAX - 2 - len(too_long.upper.upperdir))):
        put_deep(session, length)
    with pytest.raises(OSError) as caught:
        too_long.publish()
    assert caught.value.errno == errno.ENAMETOOLONG
    too_long.upper.discard()
    fits.publish()
    stack.store.update_file("g", lambda old: b"g", owner="o", request_id="r")
    assert stack.store.squash().blocks and stack.store.snapshot().read_bytes(of_length(longest)) == b"deep\n"
    stack.store.rollback(1, owner="o", request_id="r")
    draft = stack.session()
    put(draft.at("x"))
    draft.umount()
    draft.upper.to_draft(reason="r")
    with stack.store.checking() as looking:
        assert list(looking) == []
