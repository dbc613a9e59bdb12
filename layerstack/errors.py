"""Errors that the store raises on purpose.

Each family names who can act on it. `reason` is the stable code that becomes `details.reason` on the wire,
and `details` are its values. Both are contract; the wording of a message is not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from layerstack.model.conflict import Conflict


class LayerStackError(Exception):
    """An error raised on purpose. `kind` is its kind on the wire, unless the operation's own table says
    otherwise.
    """

    kind = "operation_failed"
    reason = "failed"

    def __init__(
        self, message: str, *, reason: str | None = None, details: Mapping[str, Any] | None = None
    ) -> None:
        super().__init__(message)
        if reason is not None:
            self.reason = reason
        self.details: dict[str, Any] = dict(details or {})

    @property
    def message(self) -> str:
        """The text for people: what was tried, on what, and what was found. Its wording may change."""
        return str(self.args[0]) if self.args else type(self).__name__


class Invalid(LayerStackError):
    """The request makes no sense as given: no caller would succeed with it."""

    kind = "invalid_request"
    reason = "invalid"


class InvalidPath(Invalid):
    """A path that is absolute and outside the workspace, contains `..` or NUL, or is empty."""

    reason = "invalid_path"


class NotFound(Invalid):
    """The requested file, version, draft or layer does not exist."""

    kind = "not_found"
    reason = "not_found"


class NotAFile(Invalid):
    """The path is a directory, a symlink or a special file; a regular file is needed. Links are never
    followed.
    """

    reason = "not_a_file"


class NotADirectory(Invalid):
    """The path is a file or a symlink; a directory is needed."""

    reason = "not_a_directory"


class NotEmpty(Invalid):
    """The directory has entries, and the caller did not ask to remove them."""

    reason = "directory_not_empty"


class AlreadyExists(Invalid):
    """The path exists, and the caller did not ask to replace it."""

    reason = "already_exists"


class Rejected(LayerStackError):
    """The request fails in the present state, which the error describes; a caller that acts on it would
    succeed.
    """

    reason = "rejected"


WHOLE_REPOSITORY = frozenset(
    (
        "git_operation_in_progress",
        "git_unsupported",
        "git_damaged",
        "git_limit",
        "git_config",
        "ref_rewritten",
    )
)
"""Classes of conflicts that are about a whole repository or branch; they are the reason of the rejection."""


class PublishRejected(Rejected):
    """Paths of the changeset were changed after `base` and do not merge. Nothing was published; `conflicts`
    lists every one of them.
    """

    reason = "source_conflict"

    def __init__(self, conflicts: Sequence[Conflict], *, base: int, head: int) -> None:
        first, more = conflicts[0], len(conflicts) - 1
        super().__init__(
            f"publish from version {base}: {first.path} changed since (head is {head})"
            + (f", and {more} more" if more else "")
        )
        self.conflicts, self.base, self.head = tuple(conflicts), base, head
        about = next((one.cls for one in conflicts if one.cls in WHOLE_REPOSITORY), None)
        if about is not None:
            self.reason = about


class UnresolvedConflicts(Rejected):
    """The work contains conflict markers that a rebase wrote. Nothing was published; `details` has `paths`,
    each with the `lines` of markers, and their number.
    """

    reason = "unresolved_conflicts"


class Busy(LayerStackError):
    """A limit is reached, or another caller holds the resource; the same call may succeed later."""

    kind = "server_busy"
    reason = "busy"


class Stopped(LayerStackError):
    """The caller cancelled the work, or the agent ends: nothing was published, and nothing is lost."""

    reason = "cancelled"


class StoreBusy(Busy):
    """Another process has this store open."""

    kind = "operation_failed"
    reason = "store_busy"


class SquashInFlight(Busy):
    """Another squash of this store is running."""

    kind = "operation_failed"
    reason = "squash_in_flight"


class LayerLimit(Busy):
    """The layer stack of the head has as many layers as the kernel can mount."""

    kind = "operation_failed"
    reason = "layer_limit"


class QuotaExceeded(Busy):
    """The publication would exceed a quota of this store. Nothing was written.

    `details` has `limit`, `used` and `wanted`, in the quota's unit, and `retryable` = false for work that is
    larger than the whole quota.
    """

    kind = "operation_failed"
    reason = "quota_bytes"

    def __init__(self, quota: str, *, limit: int, used: int, wanted: int) -> None:
        super().__init__(
            f"quota of {limit} {quota}: {used} are used, this publish needs {wanted}",
            reason=f"quota_{quota}",
            details={
                "limit": limit,
                "used": used,
                "wanted": wanted,
                **({} if wanted <= limit else {"retryable": False}),
            },
        )


class Unsupported(LayerStackError):
    """This kernel or file system lacks a feature; the message names it and says what to do."""

    reason = "unsupported"


class OverlayUnsupported(Unsupported):
    """overlayfs cannot be mounted: no privilege, no support, or a file system that cannot hold an
    upperdir.
    """

    reason = "overlay_unsupported"


class Corrupt(LayerStackError):
    """The bytes on disk are not those that were written. Nothing is repaired or guessed."""

    reason = "corrupt"


class StoreCorrupt(Corrupt):
    """A file of the store is damaged, missing or of an unknown format; `details` names it."""

    reason = "store_corrupt"
