"""Squash before a publish that would be rejected: the head is as long as the kernel mounts, or a quota is
used up.

With `squash_at` a publish squashes a long head first; between `squash_at` and the limit only where that
removes enough layers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from layerstack.core.stack import Stack
from layerstack.errors import LayerLimit, LayerStackError, QuotaExceeded, SquashInFlight
from layerstack.model.manifest import LOWER_LIMIT
from layerstack.squash import plan, squash
from layerstack.squash.squash import Squashed

SQUASH_AT = 450
"""Layers of a head, the base included, at which a publish squashes first where a policy asks for it."""
WORTH_SQUASHING = 10
"""Layers that such a squash must remove while the limit is not reached."""
TRIES = 3
"""Squashes for one publish, in case other publishes use the room first."""

T = TypeVar("T")


class AutoSquash:
    """The policy of one open store; its fields may be set at any time."""

    def __init__(self, stack: Stack) -> None:
        self._stack = stack
        self.squash_at: int | None = None
        """Number of layers from which on a publish squashes first; it also does when a limit is reached.
        None: no automatic squash.
        """
        self.on_squash: Callable[[str, Squashed | Exception | None], object] | None = None
        """Called in the publisher's thread with the reason: with None before a squash, then with its
        result.
        """

    def with_room(self, attempt: Callable[[], T]) -> T:
        """Run a publish; squash first if the policy requires it. After a rejection for lack of room, squash
        and run the publish again.

        Args:
            attempt: publishes; it holds neither a reader's lease nor the lock of the stack when it is called.
        """
        self._squash_if_long()
        for _ in range(TRIES):
            try:
                return attempt()
            except (QuotaExceeded, LayerLimit) as error:
                if not self.squash_for(error.reason):
                    raise
        return attempt()

    def squash_for(self, why: str) -> bool:
        """Squash, if the policy allows it, and wait for a squash that runs already.

        False when the head is as before.
        """
        if self.squash_at is None:
            return False
        before = self._stack.head
        self._squash(why, wait=True)
        return self._stack.head is not before

    def _squash_if_long(self) -> None:
        """Squash before the limit is reached; a publish does not wait for a squash that runs already."""
        if self.squash_at is None or not self.squash_at <= len(self._stack.head.layers) < LOWER_LIMIT:
            return
        if plan.gain(self._stack) >= WORTH_SQUASHING:
            self._squash("fold_at", wait=False)

    def _squash(self, why: str, *, wait: bool) -> None:
        locked = self._stack.squash_lock.locked()
        if (locked and not wait) or (not locked and not plan.gain(self._stack)):
            return
        self._report(why, None)
        try:
            self._report(why, squash.squash(self._stack, wait=wait))
        except SquashInFlight:
            return
        except (
            OSError,
            LayerStackError,
        ) as error:  # also a squash whose last sync failed: the head shows its result
            self._report(why, error)

    def _report(self, why: str, done: Squashed | Exception | None) -> None:
        if self.on_squash is not None:
            self.on_squash(why, done)
