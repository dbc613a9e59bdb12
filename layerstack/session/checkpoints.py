"""Checkpoints of a session: earlier states of its writes, and the saved layers that they consist of.

A saved layer is an earlier upperdir, as it was: it is neither copied nor captured. Each has one parent, the
saved layer that was the topmost one when its writes began; so a session that was restored grows another
branch.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from layerstack.errors import NotFound, StoreCorrupt

CHECKPOINTS_MAX = 32
"""Most checkpoints of one session: one more drops the oldest."""
DEPTH_MAX = 64
"""Most saved layers that a session is mounted on; one more combines them."""
ID = "checkpoint-"


class Checkpoint(NamedTuple):
    """One state of a session."""

    number: int
    label: str | None
    created_unix_ms: int
    layer: int
    """Number of the topmost saved layer of the state; 0: the state at the start of the session."""
    changed_files: int
    """Entries that were written or deleted since the state on which this one was made, directories that
    existed left out.
    """
    undoes: int | None = None
    """Number of the checkpoint whose restore made this one, of the state before."""

    @property
    def checkpoint_id(self) -> str:
        """Id in requests and answers."""
        return f"{ID}{self.number}"

    @property
    def undoes_id(self) -> str | None:
        """Id of the checkpoint `undoes`."""
        return None if self.undoes is None else f"{ID}{self.undoes}"


class SavedLayers(NamedTuple):
    """Saved layers and checkpoints of one session, as session.json has them. Immutable."""

    parents: Mapping[int, int] = MappingProxyType({})
    """Number of each saved layer -> number of its parent; 0: none."""
    top: int = 0
    """The saved layer below the upperdir; 0: none."""
    moving: int = 0
    """The layer that the upperdir becomes after the record is written. While it does not exist, the upperdir
    is this layer, and the change that the record describes has not happened.
    """
    last_layer: int = 0
    last_checkpoint: int = 0
    """Highest numbers ever used; a number names one layer or checkpoint of the session for ever."""
    checkpoints: tuple[Checkpoint, ...] = ()
    """Oldest first."""

    def below(self, top: int) -> tuple[int, ...]:
        """List a layer and its ancestors, the given one first."""
        found: list[int] = []
        while top and len(found) <= len(self.parents):
            found.append(top)
            top = self.parents[top]
        return tuple(found)

    @property
    def present(self) -> tuple[int, ...]:
        """Saved layers below the upperdir, the topmost first."""
        return self.below(self.top)

    @property
    def is_deep(self) -> bool:
        """True when the present saved layers are to be combined."""
        return len(self.present) > DEPTH_MAX

    def find(self, checkpoint_id: str | None) -> Checkpoint:
        """Find a checkpoint; by default the newest that no restore made.

        Raises:
            NotFound: reason checkpoint_not_found, with the ids that exist.
        """
        for found in reversed(self.checkpoints):
            if found.checkpoint_id == checkpoint_id or (checkpoint_id is None and found.undoes is None):
                return found
        ids = [one.checkpoint_id for one in self.checkpoints]
        what = "no checkpoint" if checkpoint_id is None else f"no checkpoint {checkpoint_id!r}"
        details: dict[str, Any] = {"checkpoint_ids": ids}
        if checkpoint_id is not None:
            details["checkpoint_id"] = checkpoint_id
        raise NotFound(
            f"the session has {what}; it has {', '.join(ids) or 'none at all'}",
            reason="checkpoint_not_found",
            details=details,
        )

    def with_checkpoint(
        self, *, moves: bool, label: str | None, changed_files: int, now_ms: int
    ) -> tuple[SavedLayers, Checkpoint]:
        """Add a checkpoint of the present state.

        Args:
            moves: the upperdir has changes and becomes a saved layer.
        """
        after = self._with_layer() if moves else self._replace(moving=0)
        after = after._replace(top=after.moving or self.top)
        return after._with(label, now_ms, after.top, changed_files, None)

    def with_restore(
        self, target: Checkpoint, *, moves: bool, changed_files: int, now_ms: int
    ) -> tuple[SavedLayers, Checkpoint]:
        """Return to a checkpoint; the state before is a checkpoint too, the second value.

        Args:
            moves: the upperdir has changes. It becomes a saved layer in either case, since its own attributes
                may differ from those of the state that is restored.
        """
        after = self._with_layer()
        before = after.moving if moves else self.top
        known = next((one for one in reversed(self.checkpoints) if one.layer == before), None)
        if known is not None:
            return after._replace(top=target.layer)._trimmed({known, target}), known
        after, made = after._replace(top=target.layer)._with(
            None, now_ms, before, changed_files, target.number
        )
        return after, made

    def _with_layer(self) -> SavedLayers:
        number = self.last_layer + 1
        parents = MappingProxyType({**self.parents, number: self.top})
        return self._replace(parents=parents, moving=number, last_layer=number)

    def _with(
        self, label: str | None, now_ms: int, layer: int, changed_files: int, undoes: int | None
    ) -> tuple[SavedLayers, Checkpoint]:
        made = Checkpoint(self.last_checkpoint + 1, label, now_ms, layer, changed_files, undoes)
        after = self._replace(last_checkpoint=made.number, checkpoints=(*self.checkpoints, made))
        keep = (
            {made} if undoes is None else {made, *(one for one in after.checkpoints if one.number == undoes)}
        )
        return after._trimmed(keep), made

    def _trimmed(self, keep: Collection[Checkpoint]) -> SavedLayers:
        """Drop the oldest checkpoints beyond the limit, but none of `keep`, and the layers of none."""
        some = list(self.checkpoints)
        while len(some) > CHECKPOINTS_MAX:
            some.remove(next(one for one in some if one not in keep))
        used = {self.moving, *self.below(self.moving), *self.present}
        for one in some:
            used.update(self.below(one.layer))
        parents = MappingProxyType(
            {number: self.parents[number] for number in self.parents if number in used}
        )
        return self._replace(parents=parents, checkpoints=tuple(some))

    def combined(self, top: int) -> SavedLayers:
        """Give the same checkpoints with a new layer, number `top`, that shows what all present ones show."""
        parents = MappingProxyType({**self.parents, top: 0})
        points = tuple(one._replace(layer=top) if one.layer == self.top else one for one in self.checkpoints)
        after = self._replace(parents=parents, top=top, moving=0, last_layer=top, checkpoints=points)
        return after._trimmed(())

    def without_moving(self) -> SavedLayers:
        """Give the state before the change that did not happen: the upperdir is still the layer `moving`."""
        parent = self.parents[self.moving]
        parents = MappingProxyType({n: above for n, above in self.parents.items() if n != self.moving})
        kept = tuple(one for one in self.checkpoints if one.layer != self.moving)
        return self._replace(parents=parents, top=parent, moving=0, checkpoints=kept)

    def to_json(self) -> dict[str, Any]:
        """Value of `checkpoints` in session.json."""
        return {
            "layers": [[number, parent] for number, parent in sorted(self.parents.items())],
            "top": self.top,
            "moving": self.moving,
            "last": [self.last_layer, self.last_checkpoint],
            "checkpoints": [one._asdict() for one in self.checkpoints],
        }


NO_SAVED_LAYERS = SavedLayers()


def from_json(body: Any, path: str) -> SavedLayers:
    """Read what `SavedLayers.to_json` made; None: no checkpoints. Raises StoreCorrupt, naming `path`."""
    if body is None:
        return NO_SAVED_LAYERS
    try:
        parents = {int(number): int(parent) for number, parent in body["layers"]}
        found = SavedLayers(
            MappingProxyType(parents),
            int(body["top"]),
            int(body["moving"]),
            int(body["last"][0]),
            int(body["last"][1]),
            tuple(Checkpoint(**one) for one in body["checkpoints"]),
        )
        for top in (found.top, found.moving, *parents, *(one.layer for one in found.checkpoints)):
            found.below(top)
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise StoreCorrupt(f"{path}: checkpoints: {error!r}", details={"file": path}) from None
    return found


class Checkpointed(NamedTuple):
    """Result of `Upper.checkpoint`."""

    checkpoint: Checkpoint
    dropped: tuple[Checkpoint, ...]
    """Oldest checkpoints, dropped since the session had the most that it may have."""


class Restored(NamedTuple):
    """Result of `Upper.restore`."""

    checkpoint: Checkpoint
    undo: Checkpoint | None
    """Checkpoint of the state before; None when the session had this state already."""
    dropped: tuple[Checkpoint, ...] = ()
