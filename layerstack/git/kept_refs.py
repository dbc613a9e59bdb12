"""Refs that keep published commits which no other ref reaches: `refs/eos/kept/<session>`."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import count

from layerstack.git.ancestry import unreached
from layerstack.git.object_format import Oid
from layerstack.git.objects import Objects
from layerstack.git.ref_names import ref_word
from layerstack.git.ref_store import RefValue
from layerstack.git.reflog import STASH

KEPT = b"refs/eos/kept/"


def add_kept_refs(
    objects: Objects, refs: dict[bytes, RefValue], tips: Iterable[Oid], author: str
) -> list[bytes]:
    """Add a ref for each of the tips that no ref of the result reaches, and return the new names.

    Args:
        refs: the refs of the result; refs are added.
        tips: commits, or tags of them. Others, and objects that no tree has, are left out.
    """
    values = {value.oid for name, value in refs.items() if value.oid is not None and name != STASH}
    held = {oid for value in values if (oid := objects.fmt.from_hex(value)) is not None and objects.has(oid)}
    lost = [tip for tip in dict.fromkeys(tips) if tip not in held and objects.has(tip)]
    commits = {tip: _commit_of(objects, tip) for tip in lost}
    alone: set[Oid] = set()
    if lost:
        reached = {commit for oid in held if (commit := _commit_of(objects, oid)) is not None}
        alone = unreached(objects, [tip for tip in lost if commits[tip] == tip], sorted(reached))
    names: list[bytes] = []
    numbers = count(2)
    for tip in lost:
        # a tree or blob that a tag names is of no history; a tag itself is reached by nothing
        if tip not in alone and (commits[tip] == tip or objects.header(tip).kind != "tag"):
            continue
        name = stem = KEPT + ref_word(author)
        while name in refs:
            name = b"%s-%d" % (stem, next(numbers))
        refs[name] = RefValue(tip.hex().encode())
        names.append(name)
    return names


def _commit_of(objects: Objects, oid: Oid) -> Oid | None:
    """Follow tags to a commit."""
    found, kind = objects.peel(oid)
    return found if kind == "commit" else None
