"""Values that the merge of refs reports."""

from __future__ import annotations

from typing import NamedTuple


class RefMeeting(NamedTuple):
    """A ref that both sides moved; ids in hex. `base` is None when both gave a branch its first commit."""

    name: bytes
    base: bytes | None
    ours: bytes
    head: bytes


class RefNotice(NamedTuple):
    """A decision about a ref. Kinds:

    ref_kept             one side deleted it, `detail` says which side moved or needs it: it stays
    ref_renamed          ours has the name `detail` in the result
    branch_not_switched  HEAD (`name`) stays at `detail` of the head; ours had another branch checked out
    """

    kind: str
    name: bytes
    detail: str
