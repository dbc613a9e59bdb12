"""Give git's index the stat data of the files that are published, so that the next `git status` opens few of
them. Until then the entries are marked as unknown, which costs time but hides no edit.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable

from layerstack.git.git_index import GitIndex
from layerstack.git.index_rows import IndexStat
from layerstack.git.object_format import FORMATS
from layerstack.layers.chain import Chain
from layerstack.layers.index_file import Indexed, build, known_digests
from layerstack.model.paths import join
from layerstack.model.spread_times import SECOND
from layerstack.publish.git_outcome import IndexRefresh
from layerstack.tree.disk import DiskTree
from layerstack.tree.state import FILE, LINK, State


def refresh_indexes(tree: DiskTree, indexed: Indexed, over: Chain, wanted: Iterable[IndexRefresh]) -> Indexed:
    """Refresh the indexes of git that the layer contains; its files have their final times.

    Returns:
        The layer's index, made again where files were replaced: their digests changed.
    """
    done: set[str] = set()
    for one in wanted:
        rec = indexed.records.get(one.path)
        if rec is None or rec.kind != FILE:
            continue
        state = tree.state(one.path)
        index = GitIndex.parse(state.data(), FORMATS[one.object_format])
        for below in one.clean:
            at = join(one.worktree, below)
            own = indexed.records.get(at)
            file = tree.state(at) if own is not None and own.kind in (FILE, LINK) else over.find(at)
            if file is not None and file.kind in (FILE, LINK):
                index.restat(os.fsencode(below), _stat_of(file))
        new = state.changed(meta=state.meta, xattrs=dict(state.xattrs), content=index.to_bytes())
        new.linkable = False
        above = one.path.rpartition("/")[0]
        times = tree.state(above).times
        tree.replace(one.path, new)
        tree.set_times(above, times)
        done.add(one.path)
    return _indexed_again(tree, indexed, over, done) if done else indexed


def _stat_of(file: State) -> IndexStat:
    return IndexStat(
        mtime=file.times[1] // SECOND,
        mtime_ns=file.times[1] % SECOND,
        uid=file.meta[1],
        gid=file.meta[2],
        size=file.size,
    )


def _indexed_again(tree: DiskTree, indexed: Indexed, over: Chain, changed: Collection[str]) -> Indexed:
    """Make the layer's index again after `changed` files were replaced; others are not read."""
    known, records = known_digests(tree, indexed), indexed.records
    return build(
        tree,
        over,
        known=lambda path, state: None if path in changed else known(path, state),
        touched=lambda path: (rec := records.get(path)) is not None and rec.quiet,
    )
