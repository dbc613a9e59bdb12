"""Exported files that the human's machine may run by itself: named in the result, written like any other."""

from __future__ import annotations

import posixpath
import re

from layerstack import pax

REPORT_MAX = 100

_RULES: tuple[tuple[str, re.Pattern[bytes]], ...] = tuple(
    (why, re.compile(rb"(?:.*/)?(?:" + pattern + rb")", re.DOTALL | re.IGNORECASE))
    for why, pattern in (
        ("git_hook", rb"\.git/hooks/(?!.*\.sample$).*|\.husky/.*|\.githooks/.*"),
        ("git_config", rb"\.git/(?:.*/)?config(?:\.worktree)?|\.gitmodules|\.gitattributes"),
        (
            "interpreter_startup",
            rb"(?:sitecustomize|usercustomize)\.py|[^/]*\.pth|\.pythonrc\.py|pyvenv\.cfg|\.npmrc|\.yarnrc(?:\.yml)?|\.pnpmfile\.cjs|\.Rprofile",
        ),
        (
            "shell_startup",
            rb"\.(?:bashrc|bash_profile|bash_login|bash_logout|profile|zshrc|zshenv|zprofile|zlogin|envrc|gdbinit|lldbinit|vimrc|nvimrc|exrc)",
        ),
        (
            "ci",
            rb"\.github/(?:workflows|actions)/.*|\.gitlab-ci\.ya?ml|\.circleci/.*|\.buildkite/.*|\.woodpecker(?:/.*|\.ya?ml)|Jenkinsfile"
            rb"|azure-pipelines\.ya?ml|\.travis\.yml|\.drone\.ya?ml|bitbucket-pipelines\.yml|\.pre-commit-config\.yaml",
        ),
        (
            "editor_task",
            rb"\.vscode/(?:tasks|launch|settings|mcp)\.json|[^/]*\.code-workspace|\.idea/.*|\.devcontainer(?:/.*|\.json)|\.zed/.*|\.cursor/.*"
            rb"|\.claude/.*|\.mcp\.json|\.dir-locals\.el",
        ),
    )
)


class Hygiene:
    """What was found, at most REPORT_MAX of it."""

    def __init__(self) -> None:
        self.found: list[dict[str, str]] = []
        self.count = 0

    def look(self, header: pax.Header) -> None:
        """Take note of an entry that is written."""
        if header.kind == pax.WHITEOUT or header.type == pax.DIRECTORY:
            return
        if header.type == pax.FILE and header.mode & 0o6000:
            self._add(header.path, "setuid")
        if header.type == pax.SYMLINK and _outward(header.path, header.target):
            self._add(header.path, "outward_symlink")
        for why, pattern in _RULES:
            if pattern.fullmatch(header.path):
                self._add(header.path, why)
                return

    def _add(self, path: bytes, why: str) -> None:
        self.count += 1
        if len(self.found) < REPORT_MAX:
            self.found.append({"path": path.decode("utf-8", "replace"), "why": why})

    def to_json(self) -> dict[str, object]:
        """Nothing when nothing was found."""
        if not self.count:
            return {}
        return {"hygiene": self.found, **({"hygiene_count": self.count} if self.count > len(self.found) else {})}


def _outward(path: bytes, target: bytes) -> bool:
    """Whether a link leaves the exported tree by its text alone."""
    if target.startswith(b"/"):
        return True
    return posixpath.normpath(posixpath.join(posixpath.dirname(path), target)).split(b"/")[0] == b".."
