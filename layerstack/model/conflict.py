"""Results of a publication about single paths: fingerprints, conflicts, notices. Values in the shapes of the
wire contract.
"""

from __future__ import annotations

import base64
import os
from typing import Any, NamedTuple

HUNK_TEXT_MAX = 1000
"""Characters of one side's text in a hunk."""
MEMBERS_SHOWN = 50
"""Members of a unit that one conflict lists."""


def path_json(path: str) -> dict[str, str]:
    """`{"path": ...}`, with `path_b64` of the true bytes beside it when they are not UTF-8."""
    try:
        path.encode()
    except UnicodeEncodeError:
        raw = os.fsencode(path)
        return {"path": raw.decode("utf-8", "replace"), "path_b64": base64.b64encode(raw).decode()}
    return {"path": path}


class Fingerprint(NamedTuple):
    """One path in one of the three trees, small enough to send."""

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
        """True when any execute bit is set; None unless the path is a file."""
        return None if self.kind != "file" or self.mode is None else bool(self.mode & 0o111)

    def to_json(self) -> dict[str, Any]:
        mode = f"{self.mode or 0:04o}"
        if self.kind == "file":
            return {
                "kind": "file",
                "digest": self.digest,
                "size": self.size,
                "mode": mode,
                "executable": bool(self.executable),
            }
        if self.kind == "symlink":
            return {"kind": "symlink", "target": os.fsencode(self.target or "").decode("utf-8", "replace")}
        if self.kind == "directory":
            return {"kind": "directory", "mode": mode}
        return {"kind": "absent"}


ABSENT = Fingerprint("absent")


class Hunk(NamedTuple):
    """A region that both sides changed: (first line, number of lines) in each text. Lines count from 1; an
    empty range is in front of the line with its number.
    """

    base: tuple[int, int]
    ours: tuple[int, int]
    theirs: tuple[int, int]
    texts: tuple[str, str, str] | None = None
    """Texts of base, ours and theirs, of at most HUNK_TEXT_MAX characters each; None beyond a limit for all
    of them.
    """

    def to_json(self) -> dict[str, Any]:
        found: dict[str, Any] = {
            "base": list(self.base),
            "ours": list(self.ours),
            "theirs": list(self.theirs),
        }
        if self.texts is not None:
            found["base_text"], found["ours_text"], found["theirs_text"] = (
                text[:HUNK_TEXT_MAX] for text in self.texts
            )
            if any(len(text) > HUNK_TEXT_MAX for text in self.texts):
                found["text_truncated"] = True
        return found


class TheirsLayer(NamedTuple):
    """The published layer that changed a path after our base."""

    layer_id: str
    manifest_version: int
    owner: str | None
    agent: str | None

    def to_json(self) -> dict[str, Any]:
        return {
            "layer_id": self.layer_id,
            "manifest_version": self.manifest_version,
            "owner": self.owner,
            "agent": self.agent,
        }


class Renamed(NamedTuple):
    """The new path of an entry of the base that one side renamed."""

    to: str
    by: str
    """`ours` or `theirs`."""


class TornUnit(NamedTuple):
    """The unit that a conflict is about: both sides changed it, and no member is merged alone."""

    name: str
    """sqlite, lmdb, leveldb, git, or a name of the configuration."""
    members: tuple[str, ...]
    """Members that one side or both changed, in byte order."""
    base_commit: str | None = None
    """The commit of a git repository that both sides started from, in hex."""

    @property
    def hint(self) -> str:
        """Explain how to resolve the conflict: for the unit as a whole, since its files belong together."""
        if self.name != "git":
            return (
                "rebase with on_conflict: one side's unit is taken as a whole, the other's kept beside it; "
                "then make its changes in the taken one, with the program that wrote them"
            )
        span = "--root HEAD" if self.base_commit is None else f"{self.base_commit}.."
        return (
            f"commit all of yours where it is, then `git format-patch --stdout {span} > mine.mbox`; bring "
            f"that file into a new session (file_read"
            " in yours, file_write there), which has theirs: `git am mine.mbox`, delete the file, publish; "
            "or commit in a `git worktree` of your own"
        )

    def to_json(self) -> dict[str, Any]:
        found: dict[str, Any] = {
            "name": self.name,
            "members": [path_json(path) for path in self.members[:MEMBERS_SHOWN]],
        }
        if len(self.members) > MEMBERS_SHOWN:
            found["member_count"] = len(self.members)
        if self.base_commit is not None:
            found["base_commit"] = self.base_commit
        return found | {"hint": self.hint}


COMMITS_SHOWN = 20
"""Commits of one side that a conflict lists."""


class GitCommits(NamedTuple):
    """The commits of a branch that each side added, in hex, oldest first."""

    ours: tuple[str, ...]
    theirs: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for side, commits in (("ours", self.ours), ("theirs", self.theirs)):
            found[side] = list(commits[-COMMITS_SHOWN:])
            if len(commits) > COMMITS_SHOWN:
                found[f"{side}_count"] = len(commits)
        return found


class Conflict(NamedTuple):
    """A path that a publication could not decide. Ours is the session's side, theirs the head's."""

    path: str
    cls: str
    """delete_modify, modify_delete, type, symlink, content, binary, add_add, mode, xattr, parent; several
    joined by `+`; or unit.
    """
    base: Fingerprint
    ours: Fingerprint
    theirs: Fingerprint
    theirs_layer: TheirsLayer | None = None
    hunks: tuple[Hunk, ...] = ()
    hunks_truncated: bool = False
    unit: TornUnit | None = None
    """The unit of a conflict of class `unit`; its root is `path`."""
    renamed: Renamed | None = None
    """The new path of the entry, when one side only renamed it."""
    ref: str | None = None
    """The branch, or HEAD, whose commits do not merge."""
    commits: GitCommits | None = None
    hint: str | None = None
    """Next step, for a class that is about a whole repository."""

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
        if self.unit is not None:
            out["unit"] = self.unit.to_json()
        if self.renamed is not None:
            out["renamed_to"], out["renamed_by"] = path_json(self.renamed.to), self.renamed.by
        if self.ref is not None:
            out["ref"] = self.ref
        if self.commits is not None:
            out["commits"] = self.commits.to_json()
        if self.hint is not None:
            out["hint"] = self.hint
        return out


class Notice(NamedTuple):
    """A decision of a publication that is not a conflict. Kinds:

    kept            the head's entry, in a directory that ours deleted and made again
    dropped         the head's entry, with a directory that ours deleted
    replaced        an ignored path, or unit, that both sides changed: ours stays; `theirs` is in earlier
                    versions only
    derived         byte code or a tool's cache that both sides changed: the head's stays; `number` of such
                    paths, the first is named
    rename_rename   both sides renamed one entry of the base, `renamed` says to what: the head has both
    split_link      one name of a hard link got a content of its own; `others` have the old one
    built_on        about the whole publication: ours was made on `version`; the head has other content in
                    `unseen`, inputs of builds
    branch_not_switched  HEAD stays at the head's branch (`detail`); ours had another one checked out
    ref_kept        one side deleted the ref `path`, the other moved or needs it: it stays
    ref_renamed     the ref `path` of ours has the name `detail`, since the head has another value there
    kept_commits    commits that no ref had any more are kept as the ref `detail`
    unstaged        `path` was staged, and is not any more: what was staged does not fit the head
    unsigned        replayed commits lost their signatures; `number` of them, on the ref `path`
    tag_not_moved   the tag `path` names a commit that was replayed; it stays where it is
    rules_refused   a `.gitignore` of the base version is beyond the limits: its paths count as source
    """

    kind: str
    path: str
    theirs: TheirsLayer | None = None
    unit: str | None = None
    """The name of the unit whose root the path is."""
    number: int | None = None
    """Number of paths that the notice is about; `count` on the wire."""
    more: int | None = None
    """Number of further notices of the kind that are not listed; set on the last one."""
    renamed: tuple[Renamed, ...] = ()
    others: tuple[str, ...] = ()
    version: int | None = None
    unseen: tuple[str, ...] = ()
    """Set on `built_on`, which is not about a single path: the version that the session saw, and the build
    inputs whose content differs in the head.
    """
    detail: str | None = None
    """The other name, in a notice about a ref."""

    def to_json(self) -> dict[str, Any]:
        out: dict[str, Any] = {
            "kind": self.kind,
            **(path_json(self.path) if self.version is None else {"version": self.version}),
        }
        if self.theirs is not None:
            out["theirs_layer"] = self.theirs.to_json()
        for key, value in (("unit", self.unit), ("count", self.number), ("more", self.more)):
            if value is not None:
                out[key] = value
        if self.detail is not None:
            out["detail"] = self.detail
        if self.unseen:
            out["unseen"] = [path_json(path)["path"] for path in self.unseen]
        for renamed in self.renamed:
            out[renamed.by] = path_json(renamed.to)
        if self.others:
            out["others"] = [path_json(path) for path in self.others]
        return out
