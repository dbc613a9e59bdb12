"""A repository that only one side changed: its files are published as they are, and published commits that
no ref has any more are kept.
"""

from __future__ import annotations

import os

from layerstack.git.ancestry import missing
from layerstack.git.entry_class import OBJECT, class_of
from layerstack.git.git_index import GitIndex
from layerstack.git.kept_refs import KEPT, add_kept_refs
from layerstack.git.objects import Objects
from layerstack.git.ref_store import read_refs
from layerstack.git.repository_merge import FILE_BITS, RepositoryMerge, RepositoryMerger
from layerstack.model.paths import join
from layerstack.tree.state import DIRECTORY, FILE, State

_REFS = frozenset(("refs", "packed-refs", "HEAD", "worktrees"))


def keep_lost_commits(merger: RepositoryMerger) -> RepositoryMerge:
    """Make refs for commits that the head has and that ours' refs do not reach; bring back their objects."""
    done = RepositoryMerge({}, frozenset())
    if not any(below.partition("/")[0] in _REFS for below in merger.changed[0]):
        return done
    head = read_refs(merger.root, merger.sides.head)
    merger.refs = dict(read_refs(merger.root, merger.sides.ours, head))
    names = add_kept_refs(merger.objects, merger.refs, merger.tips(head), merger.rules.author)
    if merger.rules.restores:
        lost = [name for name in head if name.startswith(KEPT) and name not in merger.refs]
        merger.refs.update((name, head[name]) for name in lost)
        names += lost
    if not names:
        return done
    for name in names:
        merger.put(os.fsdecode(name), merger.refs[name].text, FILE_BITS)
    with Objects(merger.root, (merger.sides.ours,), merger.fmt) as own:
        tips = [
            oid for name in names if (oid := merger.fmt.from_hex(merger.refs[name].oid or b"")) is not None
        ]
        lacking = missing(own, tips, most=1)
    if lacking:
        for below in merger.entries[0]:
            if class_of(below) == OBJECT:
                _bring_back(merger, below)
    return RepositoryMerge(
        merger.states, frozenset(merger.states), kept_refs=tuple(os.fsdecode(name) for name in names)
    )


def _bring_back(merger: RepositoryMerger, below: str) -> None:
    at = merger.at(below)
    b, o = merger.sides.base.find(at), merger.sides.ours.find(at)
    if o is None and b is not None and b.kind != DIRECTORY:
        merger.states[at] = b


def refresh_index(merger: RepositoryMerger) -> RepositoryMerge:
    """Make the stat data of ours' index invalid for the files that differ from those that it was made of:
    files that the head changed, and files of ours, which get new times.
    """
    at = merger.at("index")
    state, worktree = merger.sides.ours.find(at), merger.worktree
    if worktree is None or state is None or state.kind != FILE or "index" not in merger.entries[0]:
        return RepositoryMerge({}, frozenset())
    index = merger.index_of(merger.sides.ours)
    assert index is not None
    filters = merger.configs[1].filters(merger.sides.ours, worktree)
    theirs = {path for path in merger.files[1] if path in index.rows and not _is_same(merger, path)}
    clean: list[str] = []
    doubtful = set(theirs)
    for path in merger.files[0]:
        if (entry := index.entry(path)) is None or path in theirs:
            continue
        file = merger.sides.ours.find(join(worktree, os.fsdecode(path)))
        good = (
            file is not None and file.kind == FILE and bool(file.meta[0] & 0o100) == (entry.mode == 0o100755)
        )
        if good and file is not None and filters.is_clean(path, file, entry.oid):
            clean.append(os.fsdecode(path))
        else:
            doubtful.add(path)
    if not doubtful and not clean:
        return RepositoryMerge({}, frozenset())
    index.smudge_all([*doubtful, *map(os.fsencode, clean)])
    made = _with_content(state, index)
    return RepositoryMerge({at: made}, frozenset((at,)), clean=tuple(sorted(clean)))


def _with_content(state: State, index: GitIndex) -> State:
    new = state.changed(meta=state.meta, xattrs=dict(state.xattrs), content=index.to_bytes())
    new.linkable = False
    return new


def _is_same(merger: RepositoryMerger, path: bytes) -> bool:
    """Check whether the head has the file of the base."""
    at = join(merger.worktree or "", os.fsdecode(path))
    b, h = merger.sides.base.find(at), merger.sides.head.find(at)
    return b is not None and h is not None and b.inode == h.inode
