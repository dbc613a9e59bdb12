"""Rules of our own library taken away, one at a time: what the tests must notice. Each is a function that
breaks the library in its process.
"""

# pyright: reportPrivateUsage=false, reportUnknownLambdaType=false, reportUnknownArgumentType=false,
# reportUnknownMemberType=false
from __future__ import annotations

import os
import stat
import sys
from collections.abc import Callable
from typing import Any

from layerstack import store
from layerstack.history import pins
from layerstack.kernel import fsync, syscalls
from layerstack.layers import capture, index
from layerstack.model import lease
from layerstack.publish import decide, draft_refs, drafts, edits, resolve
from layerstack.recovery import gc, opening
from layerstack.session import rollback, upper
from layerstack.squash import finish, squash
from layerstack.text import merge
from layerstack.tree import disk, memory, state


def replace(owner: Any, name: str, new: object) -> None:
    """Put `new` in the place of what the library has there. A fault that breaks nothing since its place is
    gone is no fault.
    """
    assert hasattr(owner, name), f"{owner} has no {name} any more"
    setattr(owner, name, new)


def nothing(*args: Any, **kwargs: Any) -> None:
    """Stands in for what is left out."""


TOO_LATE = "commit.synced_too_late"

# The ten that every change of the library is measured by


def conflict_check_off() -> None:
    """Nothing conflicts: ours wins."""
    replace(resolve._Merge, "conflict", nothing)


def ancestors_ignored() -> None:
    """A directory that one side removed or replaced is not held against what the other side did in it."""
    real = index.PathIndex.add

    def add(self: index.PathIndex, layer: index.Layer) -> None:
        real(self, layer)
        self.mask.clear()

    replace(index.PathIndex, "add", add)
    replace(resolve._Merge, "hidden", nothing)


def squash_ignores_leases() -> None:
    """Layers are folded over the base of a session or a draft."""
    replace(lease.Leases, "boundaries", lambda self: ())


def opaque_dropped() -> None:
    """A directory that was removed and made again merges with the one that it replaced: what was in that is
    back.
    """
    real = capture._TreeCapture.prune

    def prune(self: Any, path: str, *, inside: bool) -> bool:
        if self.tree.opaque(path):
            self.tree.clear_opaque(path)
        kept: bool = real(self, path, inside=inside)
        return kept

    replace(capture._TreeCapture, "prune", prune)


def whiteout_dropped() -> None:
    """A file that was removed is back after the publish."""
    real = capture._TreeCapture.prune

    def prune(self: Any, path: str, *, inside: bool) -> bool:
        for name, kind in self.tree.scan(path):
            if kind == state.WHITEOUT:
                self.tree.unlink(f"{path}/{name}" if path else name)
        kept: bool = real(self, path, inside=inside)
        return kept

    replace(capture._TreeCapture, "prune", prune)


def mode_dropped() -> None:
    """A chmod alone is no change."""

    def equal(x: state.State | None, y: state.State | None) -> bool:
        if x is None or y is None:
            return x is y
        return x.xattrs == y.xattrs and state.same(x, y)

    replace(capture, "equal", equal)


def rename_before_sync() -> None:
    """The head names a layer whose bytes are not on the disk yet: they are synced when the publish is
    otherwise done.
    """
    sync_head = store.Store.sync_head
    late: list[bool] = []

    def settle(self: store.Store) -> None:
        sync_head(self)
        if late:
            late.clear()
            self.step(TOO_LATE)
            fsync.sync_tree_of(self.root)

    replace(fsync, "sync_files", lambda *args, **kwargs: late.append(True))
    replace(store.Store, "sync_head", settle)


def gc_ignores_drafts() -> None:
    """Layers that only a draft stands on are garbage, to a gc and to an open."""
    collect, give_back, all_of = gc.collect, gc.give_back, draft_refs.all_of

    def without(opened: store.Store) -> None:
        leases = tuple(one for one in opened.leases.all() if one.kind != "draft")
        replace(draft_refs, "all_of", lambda stack: [])
        replace(opened.leases, "all", lambda: leases)
        try:
            collect(opened)
        finally:
            draft_refs.all_of = all_of
            del opened.leases.all

    def given(opened: store.Store) -> None:
        replace(draft_refs, "all_of", lambda stack: [])
        try:
            give_back(opened)
        finally:
            draft_refs.all_of = all_of

    replace(gc, "collect", without)
    replace(gc, "give_back", given)


def merge_takes_ours() -> None:
    """Where both sides changed a text, ours is the merge."""
    replace(decide, "merge", lambda base, ours, head: merge.Merged(ours, ()))


def index_stale() -> None:
    """What a layer touched is not entered in the maps of versions: later publishes take it for untouched."""
    real = index.PathIndex.add

    def add(self: index.PathIndex, layer: index.Layer) -> None:
        before = dict(self.touch), dict(self.sub), dict(self.mask)
        real(self, layer)
        self.touch, self.sub, self.mask = before

    replace(index.PathIndex, "add", add)


# Single rules of capturing, merging and folding


def marks_stay_on_new_directories() -> None:
    """Trap 1: overlayfs marks every directory made inside a merged one opaque, and the layer keeps the mark
    and hides what others made there.
    """

    def spare(kind: Any) -> None:
        real = kind.clear_opaque

        def unmark(self: Any, path: str) -> None:
            if sys._getframe(1).f_code.co_name != "prune":
                real(self, path)

        replace(kind, "clear_opaque", unmark)

    spare(disk.DiskTree)
    spare(memory.MemoryTree)
    replace(resolve._Merge, "bring_below", nothing)


def containers_keep_their_attributes() -> None:
    """Trap 2: a directory that ours only passed through keeps the base's mode, and hides what the head made
    of it.
    """
    replace(edits.Attributes, "apply", nothing)


def empty_containers_stay() -> None:
    """A directory that the head removed rises from the dead, since ours had something in it."""
    real = resolve._Merge.visit_taken

    def kept(self: Any, path: str, *args: Any, **kwargs: Any) -> bool:
        real(self, path, *args, **kwargs)
        return True

    replace(resolve._Merge, "visit_taken", kept)


def additions_below_a_recreated_directory_are_lost() -> None:
    """rm -r, mkdir again: what the head added there meanwhile is hidden by the mark."""
    replace(resolve._Merge, "bring_below", nothing)


def changes_below_a_removed_directory_are_lost() -> None:
    """rm -r d is not held against what the head changed or added in d."""
    replace(resolve._Merge, "hidden", nothing)


def a_touch_is_a_change() -> None:
    """A file that equals the base is published as if it were changed."""
    replace(capture, "equal", lambda x, y: (y is None or y.kind == state.DIRECTORY) and state.equal(x, y))


def a_fifo_gives_its_place_back() -> None:
    """rm f, mkfifo f: the FIFO is left out, and the base's f comes back."""
    real = capture._TreeCapture._special
    replace(capture._TreeCapture, "_special", lambda self, path, over: real(self, path, over=False))


def renamed_directories_are_not_filled() -> None:
    """mv d e: e holds only what the session itself wrote."""
    replace(capture._TreeCapture, "fill", nothing)


def rejected_work_stays_an_upper() -> None:
    """Captured work is mounted as an upperdir again: it writes into what other layers share."""
    real = upper.Upper._set_aside

    def keep(self: Any) -> None:
        if self._state is upper.UpperState.CAPTURED and os.path.isdir(self.upperdir):
            self._state = upper.UpperState.LIVE
        real(self)

    replace(upper.Upper, "_set_aside", keep)


def xattrs_are_not_compared() -> None:
    """A change of an xattr alone is no change."""
    replace(state.State, "xattrs", property(lambda self: {}))


def squash_drops_whiteouts() -> None:
    """A deletion that is folded is forgotten: what is below comes back."""
    replace(squash._SquashTree, "whiteout", nothing)


def squash_drops_opaque_marks() -> None:
    """A directory that hid what is below merges with it after folding."""
    replace(squash._SquashTree, "set_opaque", nothing)


def squash_leaves_versions_inside_a_block_open() -> None:
    """A version whose layers were folded with newer ones can still be asked for."""
    replace(finish, "_is_inside", lambda version, squashed: False)


FOR_THE_MACHINE: dict[str, Callable[[], None]] = {
    fault.__name__: fault
    for fault in (
        conflict_check_off,
        ancestors_ignored,
        squash_ignores_leases,
        opaque_dropped,
        whiteout_dropped,
        mode_dropped,
        gc_ignores_drafts,
        merge_takes_ours,
        index_stale,
        squash_drops_whiteouts,
        squash_drops_opaque_marks,
        squash_leaves_versions_inside_a_block_open,
        marks_stay_on_new_directories,
        containers_keep_their_attributes,
        empty_containers_stay,
        additions_below_a_recreated_directory_are_lost,
        changes_below_a_removed_directory_are_lost,
        a_touch_is_a_change,
        a_fifo_gives_its_place_back,
        renamed_directories_are_not_filled,
        rejected_work_stays_an_upper,
        xattrs_are_not_compared,
    )
}


# For the kill harness and the power cut: acts left out


def _without(module: Any, name: str, skip: Callable[..., bool]) -> None:
    real = getattr(module, name)
    replace(module, name, lambda *args, **kwargs: None if skip(*args, **kwargs) else real(*args, **kwargs))


def no_rename_of_the_manifest() -> None:
    """A publish does not replace manifest.json: the head on disk stays the old one."""
    _without(os, "rename", lambda old, new: new.endswith("/" + opening.MANIFEST) and os.path.exists(new))


def no_rename_of_a_draft() -> None:
    """The work of a draft stays where it was, and goes with its session."""
    _without(fsync, "rename_new", lambda old, new: "/drafts/" in new)


def no_rename_of_metadata() -> None:
    """A layer without its index."""
    _without(os, "rename", lambda old, new: "/.layer-metadata/" in new)


FOR_THE_KILL_HARNESS: dict[str, Callable[[], None]] = {
    f.__name__: f for f in (no_rename_of_the_manifest, no_rename_of_a_draft, no_rename_of_metadata)
}


def no_sync_of_the_layer() -> None:
    """The files of a layer are not synced before it is named."""
    replace(fsync, "sync_files", nothing)


def no_sync_of_the_directory_of_the_manifest() -> None:
    """The rename that makes the head is not synced."""
    _without(fsync, "fsync_dir", lambda path: os.path.exists(os.path.join(path, opening.MANIFEST)))


def no_sync_of_metadata() -> None:
    """The index and the description of a layer are written, but not synced."""

    def is_metadata(fd: int, *args: Any) -> bool:
        return "/metadata-" in os.readlink(f"/proc/self/fd/{fd}")

    _without(os, "fsync", is_metadata)
    _without(syscalls, "sync_file_range", is_metadata)


def no_sync_at_all() -> None:
    """fsync, syncfs and sync_file_range do nothing."""
    replace(os, "fsync", nothing)
    replace(syscalls, "syncfs", nothing)
    replace(syscalls, "sync_file_range", nothing)


def _no_sync_of_data_by(module: Any) -> None:
    """What a function of the module, or one that it calls, writes into files is not synced; names are."""

    def skip(fd: int, *args: Any) -> bool:
        frame = sys._getframe(1)
        while frame is not None and frame.f_code.co_filename != module.__file__:
            frame = frame.f_back  # type: ignore[assignment]
        return frame is not None and not stat.S_ISDIR(os.fstat(fd).st_mode)

    for owner, name in ((os, "fsync"), (syscalls, "sync_file_range")):
        _without(owner, name, skip)


def no_sync_of_a_draft() -> None:
    """The bytes of a draft's files and of draft.json are not synced."""
    _no_sync_of_data_by(drafts)


def no_sync_of_a_pin() -> None:
    """The bytes of a pin's file are not synced."""
    _no_sync_of_data_by(pins)


def no_sync_of_a_squash() -> None:
    """The metadata of a folded layer and the manifests that name it are not synced."""
    _no_sync_of_data_by(squash)


def no_sync_of_a_rollback() -> None:
    """The files and the metadata of the layer that a rollback makes are not synced."""
    _no_sync_of_data_by(rollback)


FOR_THE_POWER_CUT: dict[str, Callable[[], None]] = {
    f.__name__: f
    for f in (
        no_sync_of_the_layer,
        no_sync_of_the_directory_of_the_manifest,
        no_sync_of_metadata,
        no_sync_of_a_draft,
        no_sync_of_a_pin,
        no_sync_of_a_squash,
        no_sync_of_a_rollback,
        no_sync_at_all,
    )
}
