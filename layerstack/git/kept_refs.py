"""Refs that keep published commits which no other ref reaches: `refs/eos/kept/<session>`."""

from __future__ import annotations

from collections.abc import Iterable

from layerstack.git.ancestry import is_ancestor
from layerstack.git.commits import tag_target
from layerstack.git.object_format import Oid
from layerstack.git.objects import Objects
from layerstack.git.ref_names import ref_word
from layerstack.git.ref_store import RefValue

KEPT = b"refs/eos/kept/"
TAGS_MAX = 10


def add_kept_refs(
    objects: Objects, refs: dict[bytes, RefValue], tips: Iterable[Oid], author: str
) -> list[bytes]:
    """Add a ref for each of the tips that no ref of the result reaches, and return the new names.

    Args:
        refs: the refs of the result; refs are added.
        tips: commits, or tags of them. Others, and objects that no tree has, are left out.
    """
    names: list[bytes] = []
    for tip in dict.fromkeys(tips):
        if _is_reached(objects, refs, tip):
            continue
        stem, number = KEPT + ref_word(author), 1
        name = stem
        while name in refs:
            number += 1
            name = b"%s-%d" % (stem, number)
        refs[name] = RefValue(tip.hex().encode())
        names.append(name)
    return names


def _is_reached(objects: Objects, refs: dict[bytes, RefValue], tip: Oid) -> bool:
    values = {value.oid for name, value in refs.items() if value.oid is not None and name != b"refs/stash"}
    if tip.hex().encode() in values or not objects.has(tip):
        return True
    commit = _commit_of(objects, tip)
    if commit is None:
        return objects.header(tip).kind != "tag"  # a tree or blob that a tag names: of no history
    if commit != tip:
        return False  # the tag itself is lost
    for value in sorted(values):
        other = objects.fmt.from_hex(value)
        if other is None or not objects.has(other) or (other := _commit_of(objects, other)) is None:
            continue
        if is_ancestor(objects, commit, other):
            return True
    return False


def _commit_of(objects: Objects, oid: Oid) -> Oid | None:
    """Follow tags to a commit."""
    for _ in range(TAGS_MAX):
        kind = objects.header(oid).kind
        if kind == "commit":
            return oid
        if kind != "tag":
            return None
        oid = tag_target(objects.read(oid, "tag")[1], objects.fmt)[0]
        if not objects.has(oid):
            return None
    return None
