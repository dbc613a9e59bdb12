"""The rules of each version, when the content of a `.gitignore` is remembered across versions."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from contextlib import AbstractContextManager

from layerstack.core.ignore_cache import IgnoreCache
from layerstack.layers.snapshot import Snapshot
from tests.layerstack.store_fixture import Stack, on_a_stack, put

PATHS = ("f", "a.o", "d/f", "d/a.o", "d/e/f", "d/e/a.o", "n/a.o")


def _remove_directory(at: Callable[[str], str]) -> None:
    shutil.rmtree(at("d"))


def _file_in_its_place(at: Callable[[str], str]) -> None:
    put(at("d"), "a file\n")


def _directory_again(at: Callable[[str], str]) -> None:
    os.unlink(at("d"))
    put(at("d/e/f"))


def _renamed(at: Callable[[str], str]) -> None:
    shutil.move(at("n"), at("d/n"))
    shutil.move(at("d"), at("n"))


CHANGES: tuple[Callable[[Callable[[str], str]], None], ...] = (
    lambda at: put(at("d/f"), "of no concern\n"),
    lambda at: put(at("d/.gitignore"), "!a.o\n"),
    lambda at: put(at(".gitignore"), "f\n"),
    _remove_directory,
    _file_in_its_place,
    _directory_again,
    lambda at: put(at("d/e/.gitignore"), "*\n"),
    lambda at: os.unlink(at(".gitignore")),
    _renamed,
)


@on_a_stack({".gitignore": "*.o\n", "d/f": "f\n", "d/e/.gitignore": "f\n", "n/x": "x\n"})
def test_each_version_has_the_rules_of_its_own_files_also_after_a_squash(s: Stack) -> None:
    store = s.store
    kept = IgnoreCache(store.reading, store.layers.path_index.untouched)

    def verdicts(cache: IgnoreCache, version: int) -> list[bool]:
        ignored = cache.ignored(version)
        return [ignored(path, False) for path in PATHS]

    seen: dict[int, list[bool]] = {}
    for change in CHANGES:
        session = s.session()
        change(session.at)
        session.publish()
        for version in range(1, store.head.version + 1):
            fresh = IgnoreCache(store.reading, lambda path, version: False)
            found = verdicts(fresh, version)
            assert seen.setdefault(version, found) == found, version
            other = IgnoreCache(store.reading, store.layers.path_index.untouched)
            other.contents = kept.contents  # the rules are parsed again, from what is remembered
            assert verdicts(other, version) == found, version
    assert len({tuple(each) for each in seen.values()}) >= 6, "the changes matter"
    store.squash()
    for version in (1, store.head.version):
        assert verdicts(kept, version) == seen[min(version, max(seen))]


@on_a_stack({".gitignore": "*.o\n", "d/f": "f\n"})
def test_a_version_whose_files_did_not_change_reads_none_of_them(s: Stack) -> None:
    reads: list[None] = []
    store = s.store

    def reading() -> AbstractContextManager[Snapshot]:
        reads.append(None)
        return store.reading()

    cache = IgnoreCache(reading, store.layers.path_index.untouched)
    assert cache.ignored(1)("d/a.o", False) and len(reads) == 2
    session = s.session()
    put(session.at("d/f"), "changed\n")
    session.publish()
    assert cache.ignored(2)("d/a.o", False) and len(reads) == 2
