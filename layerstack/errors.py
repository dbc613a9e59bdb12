"""Every error that the store raises on purpose.

Each family says who could do something about it; `reason` is the stable machine code that goes to `details.reason` on the wire, and
`details` are its values. The wording of a message is not a contract, `reason` and the keys of `details` are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from layerstack.model.conflict import Conflict


class LayerStackError(Exception):
    """What the store refuses on purpose; `kind` is the error kind on the wire unless the operation's own table says otherwise."""

    kind = "operation_failed"
    reason = "failed"

    def __init__(self, message: str, *, reason: str | None = None, details: Mapping[str, Any] | None = None) -> None:
        super().__init__(message)
        if reason is not None:
            self.reason = reason
        self.details: dict[str, Any] = dict(details or {})

    @property
    def message(self) -> str:
        """What was tried, on what, and what was found; for people, its wording may change."""
        return str(self.args[0]) if self.args else type(self).__name__


class Invalid(LayerStackError):
    """The request makes no sense as given: no caller would succeed with it."""

    kind = "invalid_request"
    reason = "invalid"


class InvalidPath(Invalid):
    """A path that is absolute outside the workspace, holds `..` or NUL, or is empty."""

    reason = "invalid_path"


class NotFound(Invalid):
    """The file, version, draft or layer that was asked for is not there."""

    kind = "not_found"
    reason = "not_found"


class NotAFile(Invalid):
    """The path is a directory, a symlink or a special file where a regular file is needed; links are never followed."""

    reason = "not_a_file"


class NotADirectory(Invalid):
    """The path is a file or a symlink where only a directory will do."""

    reason = "not_a_directory"


class NotEmpty(Invalid):
    """The directory has something in it, and the caller did not say that all of it may go."""

    reason = "directory_not_empty"


class AlreadyExists(Invalid):
    """Something is at the path already, and the caller did not say that it may go."""

    reason = "already_exists"


class Rejected(LayerStackError):
    """A better-informed caller would succeed."""

    reason = "rejected"


class PublishRejected(Rejected):
    """Paths of the change set were changed after `base` and do not merge. Nothing was published; every one of them is listed."""

    reason = "source_conflict"

    def __init__(self, conflicts: Sequence[Conflict], *, base: int, head: int) -> None:
        first, more = conflicts[0], len(conflicts) - 1
        super().__init__(
            f"publish from version {base}: {first.path} changed since (head is {head})" + (f", and {more} more" if more else "")
        )
        self.conflicts, self.base, self.head = tuple(conflicts), base, head


class Busy(LayerStackError):
    """A limit is reached, or somebody else is at it; the same call may pass later."""

    kind = "server_busy"
    reason = "busy"


class Stopped(LayerStackError):
    """The caller wanted it no more, or the agent ends: nothing was published, and nothing is lost."""

    reason = "cancelled"


class StoreBusy(Busy):
    """Another process has this store open."""

    kind = "operation_failed"
    reason = "store_busy"


class SquashInFlight(Busy):
    """Another squash of this store is under way."""

    kind = "operation_failed"
    reason = "squash_in_flight"


class LayerLimit(Busy):
    """The chain of the head is as long as the kernel can mount."""

    kind = "operation_failed"
    reason = "layer_limit"


class QuotaExceeded(Busy):
    """The publish would exceed a quota of this store. Nothing was written; `details` has limit, used and wanted, in the quota's unit, and
    `retryable` false for work that is larger than all of the quota."""

    kind = "operation_failed"
    reason = "quota_bytes"

    def __init__(self, quota: str, *, limit: int, used: int, wanted: int) -> None:
        super().__init__(
            f"quota of {limit} {quota}: {used} are used, this publish needs {wanted}",
            reason=f"quota_{quota}",
            details={"limit": limit, "used": used, "wanted": wanted, **({} if wanted <= limit else {"retryable": False})},
        )


class Unsupported(LayerStackError):
    """This kernel or this file system cannot do it; the message names what is missing and what to do."""

    reason = "unsupported"


class OverlayUnsupported(Unsupported):
    """overlayfs cannot be mounted here: no privilege, no support, or a file system that cannot be an upperdir."""

    reason = "overlay_unsupported"


class Corrupt(LayerStackError):
    """What is on disk is not what was written. Nothing is repaired and nothing is guessed."""

    reason = "corrupt"


class StoreCorrupt(Corrupt):
    """A file of the store is damaged, missing or of an unknown format; `details` names it."""

    reason = "store_corrupt"
