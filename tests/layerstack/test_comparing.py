"""Comparisons are found as they are asked for: a page costs about the page, and a rollback holds no list of
paths.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from typing import Any

import pytest

from layerstack.history import versions
from layerstack.layers.packed_index import PackedIndex
from tests.export_streams import Stack as Exported
from tests.layerstack.counted_calls import calls_of
from tests.layerstack.many_files import BASE, fill, growth_kib
from tests.layerstack.store_fixture import Stack, get, on_a_stack, put

COUNT = 4_000
MOST_KIB = 1 << 10
"""Steps that held lists of the paths took 0.6 to 1.1 KiB for each: twice as much as this, and more."""


def half_flat(root: str) -> None:
    """COUNT files: as many in one directory as in those of five hundred."""
    fill(root, flat=True, count=COUNT // 2)
    fill(root, flat=False, count=COUNT // 2)


@pytest.mark.needs("overlay")
def test_a_first_page_a_rollback_and_a_preview_of_private_layers_do_not_grow_with_the_paths(
    short_dir: str, in_mount_namespace: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("layerstack.layers.index_file.SMALL", 256)  # so many paths make a packed index

    def child() -> None:
        stack = Exported(short_dir, BASE)
        store, grown = stack.store, dict[str, int]()

        stack.publish(half_flat)
        assert isinstance(store.snapshot().chain.layers[0].index, PackedIndex)
        assert calls_of(lambda: versions.diff_versions(store, 1, 2)) < 20 * COUNT, (
            "two hundred changes are looked at, not all"
        )
        last = store.head.version
        at, pages = 0, 0
        while True:
            page = versions.diff_versions(store, 1, last, start=at)
            assert [change.path for change in page.changes] == sorted(change.path for change in page.changes)
            pages, at = pages + 1, page.next or 0
            if page.next is None:
                break
        assert pages == -(-(COUNT + COUNT // 2 // 500) // versions.PAGE)
        _, grown["rollback"] = growth_kib(lambda: store.rollback(1, owner="o", request_id="r"))
        _, grown["rollback of that"] = growth_kib(lambda: store.rollback(last, owner="o", request_id="r"))
        upper = store.open_upper("late", origin="workspace_session:late", version=1)
        half_flat(upper.upperdir)
        draft = upper.to_draft(reason="publish_error")
        assert draft is not None
        on_it = store.open_upper("on-it", origin="workspace_session:on-it", draft_id=draft.draft_id)
        with open(f"{on_it.upperdir}/more", "w") as file:
            file.write("x")
        found, grown["preview of private layers"] = growth_kib(on_it.preview)
        assert found.source_count == 1 and found.would_publish
        on_it.discard()
        stack.close()
        assert max(grown.values()) < MOST_KIB, grown

    in_mount_namespace(child)


@on_a_stack({"f": "base\n"}, namespaces=("trusted",))
def test_a_rollback_takes_back_a_directory_whose_neighbour_sorts_into_it(stack: Stack) -> None:
    """`d-x` lies between `d` and `d/y`: what is below `d` was taken for something that still has to be
    deleted by itself.
    """
    before = stack.tree()
    session = stack.session()
    for path in ("d/y", "d-x", "d.z/a", "d/sub/z", "d0"):
        put(session.at(path))
    session.publish()
    after = stack.tree()
    stack.store.rollback(1, owner="o", request_id="r")
    assert stack.tree() == before
    stack.store.rollback(2, owner="o", request_id="r")
    assert stack.tree() == after


@on_a_stack({"f": "base\n", "d/keep": "k\n", "d/gone": "g\n"})
def test_a_preview_of_private_layers_says_what_their_publication_does(stack: Stack) -> None:
    """The fold that a preview looks up is the one that a publish makes: opaque directories, deletions over
    deletions, files for directories.
    """
    session = stack.session()
    for n, edit in enumerate(
        (
            ("rm -r d && mkdir d && echo 1 > d/new", "echo 1 > clash"),
            ("rm -r d", "mkdir -p e/f && echo 2 > e/f/g && echo 2 > clash"),
            ("echo 3 > d", "rm -r e && mkdir e && chmod 700 e", "echo 3 > clash"),
            ("rm d && mkdir d && echo 4 > d/keep", "rm f", "echo 4 > clash"),
        )
    ):
        stack.store.update_file("clash", lambda old, n=n: f"head {n}\n".encode(), owner="o", request_id="r")
        for command in edit:
            subprocess.run(["sh", "-c", command], cwd=session.at(""), check=True)
        assert list(session.rejected()) == ["clash"]
        session.mount()
    put(session.at("clash"), "head 3\n")
    wanted = {
        path: get(session.at(path)) for path in ("d/keep", "e", "clash") if os.path.isfile(session.at(path))
    }
    assert sorted(os.listdir(session.at(""))) == ["clash", "d", "e"] and os.listdir(session.at("d")) == [
        "keep"
    ]
    session.umount()
    seen = session.upper.preview()
    done = session.publish()
    assert (seen.would_publish, seen.source_count, seen.ignored_count) == (
        True,
        done.source_count,
        done.ignored_count,
    )
    assert (
        stack.shows().keys() >= wanted.keys() and not {"f", "d/new", "d/gone", "e/f/g"} & stack.shows().keys()
    )
