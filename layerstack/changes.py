"""What a publish says about single paths: fingerprints, conflicts, notices. Pure values in the shapes of the wire contract."""

from __future__ import annotations

import base64
import os
from typing import Any, NamedTuple


def path_json(path: str) -> dict[str, str]:
    """`{"path": ...}`, with `path_b64` of the true bytes beside it when they are not UTF-8."""
    try:
        path.encode()
    except UnicodeEncodeError:
        raw = os.fsencode(path)
        return {"path": raw.decode("utf-8", "replace"), "path_b64": base64.b64encode(raw).decode()}
    return {"path": path}


class Fingerprint(NamedTuple):
    """What a path was in one of the three trees, small enough to send."""

    kind: str
    """`absent`, `file`, `symlink` or `directory`."""
    digest: str | None = None
    """SHA-256 in hex of a file's bytes."""
    size: int | None = None
    mode: int | None = None
    """Permission bits of a file or a directory."""
    target: str | None = None

    @property
    def executable(self) -> bool | None:
        """Is any execute bit set? None for what is no file."""
        return None if self.kind != "file" or self.mode is None else bool(self.mode & 0o111)

    def to_json(self) -> dict[str, Any]:
        mode = f"{self.mode or 0:04o}"
        if self.kind == "file":
            return {"kind": "file", "digest": self.digest, "size": self.size, "mode": mode, "executable": bool(self.executable)}
        if self.kind == "symlink":
            return {"kind": "symlink", "target": os.fsencode(self.target or "").decode("utf-8", "replace")}
        if self.kind == "directory":
            return {"kind": "directory", "mode": mode}
        return {"kind": "absent"}


ABSENT = Fingerprint("absent")


class Hunk(NamedTuple):
    """A region that both sides changed: (first line, count of lines) in each text. Lines count from 1; with count 0 the region lies before that line."""

    base: tuple[int, int]
    ours: tuple[int, int]
    theirs: tuple[int, int]

    def to_json(self) -> dict[str, list[int]]:
        return {"base": list(self.base), "ours": list(self.ours), "theirs": list(self.theirs)}


class TheirsLayer(NamedTuple):
    """The published layer that changed a path after our base."""

    layer_id: str
    manifest_version: int
    owner: str | None
    agent: str | None

    def to_json(self) -> dict[str, Any]:
        return {"layer_id": self.layer_id, "manifest_version": self.manifest_version, "owner": self.owner, "agent": self.agent}


class Conflict(NamedTuple):
    """One path that cannot be decided: ours is the session, theirs the head."""

    path: str
    cls: str
    """delete_modify, modify_delete, type, symlink, content, binary, add_add, mode, xattr, parent; several joined by `+`."""
    base: Fingerprint
    ours: Fingerprint
    theirs: Fingerprint
    theirs_layer: TheirsLayer | None = None
    hunks: tuple[Hunk, ...] = ()
    hunks_truncated: bool = False

    def to_json(self) -> dict[str, Any]:
        out: dict[str, Any] = {
            **path_json(self.path),
            "class": self.cls,
            "base": self.base.to_json(),
            "ours": self.ours.to_json(),
            "theirs": self.theirs.to_json(),
            "theirs_layer": None if self.theirs_layer is None else self.theirs_layer.to_json(),
        }
        if self.hunks:
            out["hunks"] = [hunk.to_json() for hunk in self.hunks]
        if self.hunks_truncated:
            out["hunks_truncated"] = True
        return out


class Notice(NamedTuple):
    """A decision of a publish about one path: `kept` (the head's, in a directory that ours made again), `dropped` with such a directory, or
    `rules_refused` (a `.gitignore` of the base version beyond the limits: its paths count as source)."""

    kind: str
    path: str

    def to_json(self) -> dict[str, Any]:
        return {"kind": self.kind, **path_json(self.path)}
