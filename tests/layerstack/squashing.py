"""Publish small layers, squash them, and compare every tree."""

from __future__ import annotations

import os
from collections.abc import Callable

from layerstack.squash.squash import Squashed
from tests.layerstack.store_fixture import Base, Stack, put
from tests.trees import Tree

BASE: Base = {"d/f": "f\n", "d/g": "g\n", "e/x": "x\n", "top": "1\n2\n3\n4\n5\n6\n7\n8\n"}
FORTY_FILES: Base = {f"d/{n}": "old\n" for n in range(40)}


def publish(s: Stack, **files: str | bytes) -> int:
    """One layer that writes files, `__` in a name stands for `/`; the version it makes."""
    session = s.session()
    for name, text in files.items():
        put(session.at(name.replace("__", "/")), text)
    return session.publish().manifest.version


def counts(number: int) -> Callable[[bytes | None], bytes]:
    """A change of a file: whatever it was, it is that number."""
    return lambda _: b"%d\n" % number


def squash(s: Stack) -> Squashed:
    """Squash, and check what must hold for every squash: all trees and openable versions are unchanged, and
    the store opens again.
    """
    before = s.tree()
    trees = {version: s.tree(version) for version in openable(s)}
    done = s.store.squash()
    assert s.tree() == before
    assert s.store.head == done.manifest
    check_versions(s, trees)
    return done


def openable(s: Stack) -> list[int]:
    return sorted(int(name.partition(".")[0]) for name in os.listdir(f"{s.root}/manifests"))


def check_versions(s: Stack, trees: dict[int, Tree]) -> None:
    for version in openable(s):
        if version in trees:
            assert s.tree(version) == trees[version], version
            assert all(os.path.isdir(lower) for lower in s.store.snapshot(version).lowerdirs)


def ids(s: Stack) -> str:
    """The head's layers by their first letter, newest first."""
    return "".join(layer_id[0] for layer_id in s.store.head.layer_ids)


def in_layer(s: Stack, layer_id: str) -> list[str]:
    """Return every path in a layer's folder."""
    root = f"{s.root}/layers/{layer_id}"
    return sorted(
        os.path.relpath(os.path.join(at, n), root)
        for at, folders, files in os.walk(root)
        for n in folders + files
    )


def make_a_directory_again_and_squash(s: Stack) -> None:
    """Replace a directory of forty files and squash: it stays opaque and has no whiteout below it, since that
    is a name that is listed and cannot be opened.
    """
    one = s.session()
    for n in range(40):
        os.unlink(one.at(f"d/{n}"))
    os.rmdir(one.at("d"))
    os.mkdir(one.at("d"))
    put(one.at("d/new"))
    put(one.at("d/other"))
    one.publish()
    two = s.session()
    os.unlink(two.at("d/new"))
    put(two.at("d/more"))
    two.publish()
    (block,) = squash(s).blocks
    assert in_layer(s, block.squashed_layer_id) == ["d", "d/more", "d/other"]
    assert s.shows() == {"d": "/", "d/more": "x\n", "d/other": "x\n"}
    record = s.store.layers.get(block.squashed_layer_id).get("d")
    assert record is not None and record.opaque
