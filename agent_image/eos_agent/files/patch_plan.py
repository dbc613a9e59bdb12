"""Plan the effect of a patch on a tree: compute the new content of each file, without writing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from eos_agent.files.dirfd import already_exists, not_found
from eos_agent.files.patch_hunks import Applied, Effort, apply_hunks
from eos_agent.files.patch_text import ADD, COPY, DELETE, UPDATE, FilePatch, parse
from eos_agent.wire.protocol import INVALID_REQUEST, OperationError
from eos_agent.wire.workspace_path import resolve, shown
from layerstack.model.conflict import path_json
from layerstack.model.file_change import FileChange
from layerstack.model.paths import ancestors

MAX_TOTAL_BYTES = 64 << 20

Read = Callable[[str], bytes | None]
"""Path -> the bytes of the regular file, at most one more than can be edited; None for a missing file. Raises
OperationError for another kind of file, and for a parent that is not a directory."""


class Plan(NamedTuple):
    changes: list[FileChange]
    """One change for each path that differs, deletions last, so that a file that moves is never at neither
    path; no path is above another one."""
    files: list[dict[str, Any]]
    """Rows of the answer, in the order of the patch."""

    def to_json(self) -> dict[str, Any]:
        return {
            "type": "patch",
            "files": self.files,
            "lines_added": sum(row["lines_added"] for row in self.files),
            "lines_removed": sum(row["lines_removed"] for row in self.files),
        }


def plan_patch(text: str, root: str, read: Read, exists: Callable[[str], bool], max_bytes: int) -> Plan:
    """Apply a patch to the files that `read` returns; each part is applied to the result of the parts before
    it.

    Raises:
        OperationError: invalid_request, not_found; the error names the file, and the hunk if a hunk failed.
    """
    return _Planner(root, read, exists, max_bytes).plan(parse(text))


class _File(NamedTuple):
    data: bytes
    like: str | None
    executable: bool | None = None


class _Planner:
    def __init__(self, root: str, read: Read, exists: Callable[[str], bool], max_bytes: int) -> None:
        self._root, self._read, self._exists, self._max_bytes = root, read, exists, max_bytes
        self._before: dict[str, _File | None] = {}
        self._now: dict[str, _File | None] = {}
        self._leaving: set[str] = set()
        """Paths that a part of a diff of git renames or deletes: another part may make a file there."""
        self._made: set[str] = set()
        """Paths at which a part of a diff of git has made a file."""
        self._total = 0
        self._effort = Effort()

    def plan(self, patches: list[FilePatch]) -> Plan:
        for patch in patches:
            if patch.of_git and (patch.kind == DELETE or (patch.kind == UPDATE and patch.to is not None)):
                self._leaving.add(self._path(patch.path))
        files = [self._one(patch) for patch in patches]
        changes: list[FileChange] = []
        for path, now in self._now.items():
            if now is None and self._before[path] is not None:
                changes.append(FileChange(path, None, None))
            elif now is not None and now != self._before[path]:
                changes.append(FileChange(path, *now))
        if not changes:
            raise OperationError(
                INVALID_REQUEST,
                "the patch changes nothing: its files already have this content",
                {"argument": "patch"},
                reason="edit_no_change",
            )
        changes.sort(key=lambda change: change.data is None)
        written = {change.path for change in changes if change.data is not None}
        for change in changes:
            for above in ancestors(change.path):
                if above in written:
                    message = (
                        f"the patch makes {shown(above)} a file and changes {shown(change.path)} below it"
                    )
                    raise OperationError(
                        INVALID_REQUEST,
                        message,
                        {"argument": "patch", **path_json(above)},
                        reason="invalid_patch",
                    )
        return Plan(changes, files)

    def _one(self, patch: FilePatch) -> dict[str, Any]:
        path = self._path(patch.path)
        if patch.prefixed is not None and self._find(path) is None:
            literal = self._path(patch.prefixed)
            if self._find(literal) is not None:
                path = literal  # a directory named a or b, and a patch without prefixes
        file = self._find(path)
        if patch.kind == ADD:
            if self._is_taken(path, patch):
                raise _there(path, "to change a file, use `*** Update File` or a diff of its lines")
            done = self._apply(b"", patch, path)
            self._make(path, _File(done.content, None, patch.executable), patch)
            return _row("create", path, done)
        if patch.of_git and patch.to is not None and (patch.kind == COPY or path in self._made):
            file = self._before[path] or file
        if file is None:
            raise not_found(path)
        if patch.kind == DELETE:
            return self._delete(patch, path, file)
        done = self._apply(file.data, patch, path)
        executable = file.executable if patch.executable is None else patch.executable
        changed = _File(done.content, file.like, executable)
        if patch.to is None or (to := self._path(patch.to)) == path:
            self._set(path, changed)
            return _row("edit", path, done)
        if self._is_taken(to, patch):
            raise _there(to, "delete it in the same patch, before this part, to replace it")
        self._make(to, changed, patch)
        if patch.kind == COPY:
            return {**_row("copy", to, done), **_from(path)}
        if path not in self._made:
            self._set(path, None)
        return {**_row("move", to, done), **_from(path)}

    def _apply(self, raw: bytes, patch: FilePatch, path: str) -> Applied:
        return apply_hunks(raw, patch.hunks, path, self._effort)

    def _is_taken(self, path: str, patch: FilePatch) -> bool:
        """Check whether a file is where the part makes one. The parts of a diff of git do not depend on their
        order: git-apply(1) renames and copies what was there before the patch, so that two files can change
        places.
        """
        if self._find(path) is None:
            return False
        return not patch.of_git or path not in self._leaving or path in self._made

    def _make(self, path: str, file: _File, patch: FilePatch) -> None:
        self._set(path, file)
        if patch.of_git:
            self._made.add(path)

    def _delete(self, patch: FilePatch, path: str, file: _File) -> dict[str, Any]:
        if patch.checked:
            done = self._apply(file.data, patch, path)
            if done.content:
                rest = done.content.count(b"\n") + (not done.content.endswith(b"\n"))
                message = (
                    f"the patch deletes {shown(path)}, which has {rest} lines that the patch does not show"
                )
                details = {
                    "path": shown(path),
                    "hint": "delete it with `*** Delete File`, or read it again",
                }
                raise OperationError(INVALID_REQUEST, message, details, reason="hunk_not_found")
        lines = file.data.count(b"\n") + (file.data != b"" and not file.data.endswith(b"\n"))
        self._set(path, None)
        return _row("delete", path, Applied(b"", 0, lines, 0))

    def _path(self, given: str) -> str:
        try:
            return resolve({"path": given}, self._root, self._exists)
        except OperationError as error:
            details = {**error.details, "argument": "patch"}
            raise OperationError(error.kind, f"patch: {error.message}", details) from None

    def _find(self, path: str) -> _File | None:
        if path not in self._now:
            data = self._read(path)
            if data is not None:
                self._check(path, len(data))
            self._before[path] = self._now[path] = None if data is None else _File(data, path)
        return self._now[path]

    def _set(self, path: str, file: _File | None) -> None:
        if file is not None:
            self._check(path, len(file.data))
        self._now[path] = file

    def _check(self, path: str, size: int) -> None:
        self._total += size
        if size <= self._max_bytes and self._total <= MAX_TOTAL_BYTES:
            return
        what = (
            f"{shown(path)} has {size} bytes, at most {self._max_bytes} can be edited"
            if size > self._max_bytes
            else f"its files have {self._total} bytes before and after it, at most {MAX_TOTAL_BYTES} are read"
        )
        details = {"path": shown(path), "size_bytes": size, "max_edit_bytes": self._max_bytes}
        raise OperationError(INVALID_REQUEST, f"patch: {what}", details, reason="edit_too_large")


def _there(path: str, hint: str) -> OperationError:
    error = already_exists(path)
    return OperationError(error.kind, error.message, {**error.details, "hint": hint})


def _from(path: str) -> dict[str, str]:
    return {"from" + key.removeprefix("path"): value for key, value in path_json(path).items()}


def _row(kind: str, path: str, done: Applied) -> dict[str, Any]:
    row: dict[str, Any] = {"type": kind, **path_json(path)}
    row |= {"lines_added": done.added, "lines_removed": done.removed}
    return {**row, "hunks_moved": done.moved} if done.moved else row
