"""Exported files that the host may run: all are listed, and those that would run by themselves are refused
unless allowed.

`RULES` is the whole table, in the order in which it is asked; docs/export.md shows it
(tests/eos_mcp/test_hygiene.py compares). See ADR 0037.
"""

from __future__ import annotations

import os
import posixpath
import re
from collections.abc import Callable, Iterator
from typing import NamedTuple

from eos_mcp.export.hygiene_git import gitdir_is_plain, plain_common_directory, plain_git_config
from eos_mcp.export.stream import shown
from layerstack.export import pax

REPORT_MAX = 100
CLASS_MAX = 25
"""Listed files per class."""
JUDGED_MAX = 1 << 18
"""Size in bytes of the longest file that is judged by its content; a longer file counts as one that runs."""

NAMED, REFUSED, HOME = "named", "refused", "refused in a home directory"


class HygieneRule(NamedTuple):
    """`treatment`: NAMED, REFUSED or HOME. With `plain`, a file whose content that function finds harmless is
    not refused; `unless` describes such content.
    """

    why: str
    files: str
    """The reason, for people."""
    pattern: re.Pattern[bytes]
    treatment: str = NAMED
    plain: Callable[[bytes], bool] | None = None
    unless: str = ""


def _rule(
    why: str,
    files: str,
    pattern: bytes,
    treatment: str = NAMED,
    plain: Callable[[bytes], bool] | None = None,
    unless: str = "",
) -> HygieneRule:
    return HygieneRule(
        why,
        files,
        re.compile(rb"(?:.*/)?(?:" + pattern + rb")", re.DOTALL | re.IGNORECASE),
        treatment,
        plain,
        unless,
    )


def _no_automatic_task(content: bytes) -> bool:
    return not re.search(rb"folderopen|allowautomatictasks|\\u", content, re.IGNORECASE)


def _no_import_line(content: bytes) -> bool:
    return not re.search(
        rb"(?:[\r\n\f\v\x1c-\x1e\x85]|\xe2\x80[\xa8\xa9])[ \t]*import[ \t]",
        b"\n" + content.removeprefix(b"\xef\xbb\xbf"),
    )


_SHELL = rb"\.(?:bashrc|bash_profile|bash_login|bash_logout|bash_aliases|profile|zshrc|zshenv|zprofile|zlogin|zlogout|kshrc|tcshrc|cshrc|login)"  # noqa: E501
_AGENT = rb"\.(?:claude|cursor|codex|gemini|windsurf|roo|continue|opencode|qwen|kiro|amazonq|junie|augment|goose|crush|aider[^/]*)"  # noqa: E501
_TOLD = rb"CLAUDE(?:\.local)?\.md|AGENTS?\.md|GEMINI\.md|QWEN\.md|\.(?:cursor|windsurf|cline|roo)rules|\.github/copilot-instructions\.md"  # noqa: E501

RULES: tuple[HygieneRule, ...] = (
    _rule(
        "git_hook",
        ".git/hooks/*, also of bare repositories; not *.sample",
        rb"[^/]*\.git/(?:.*/)?hooks/(?!.*\.sample$).*",
        REFUSED,
    ),
    _rule(
        "git_config",
        ".git/**/config, config.worktree, also of bare repositories",
        rb"[^/]*\.git/(?:.*/)?config(?:\.worktree)?",
        REFUSED,
        plain_git_config,
        "it has nothing but identity, remotes, branches and the like",
    ),
    _rule(
        "git_config",
        ".git as a file",
        rb"\.git",
        REFUSED,
        gitdir_is_plain,
        "it names a place in a .git of the same tree",
    ),
    _rule(
        "git_config",
        ".git/**/commondir",
        rb"[^/]*\.git/(?:.*/)?commondir",
        REFUSED,
        plain_common_directory,
        "it is that of a linked worktree",
    ),
    _rule(
        "git_config",
        ".gitattributes, .gitmodules, .git/info/attributes, .git/objects/info/alternates",
        rb"\.gitmodules|\.gitattributes|[^/]*\.git/(?:.*/)?(?:info/attributes|objects/info/(?:http-)?alternates)",
    ),
    _rule(
        "git_hook",
        ".husky/*, .githooks/*, where core.hooksPath of the destination is elsewhere",
        rb"\.husky/.*|\.githooks/.*",
    ),
    _rule(
        "interpreter_startup",
        "sitecustomize, usercustomize",
        rb"(?:site|user)customize(?:\.py[co]?|/__init__\.py[co]?|\.[^/]*(?:so|pyd))",
        REFUSED,
    ),
    _rule(
        "interpreter_startup",
        "*.pth in a directory that the destination has already",
        rb"[^/]*\.pth",
        REFUSED,
        _no_import_line,
        "no line of it begins with import",
    ),
    _rule("interpreter_startup", ".Rprofile", rb"\.Rprofile", REFUSED),
    _rule("interpreter_startup", ".pythonrc.py", rb"\.pythonrc\.py", HOME),
    _rule("tool_config", "pyvenv.cfg", rb"pyvenv\.cfg"),
    _rule(
        "home_startup",
        "of a home directory: .ssh/*, .gitconfig, .config/{fish,git,autostart,systemd,environment.d,nvim}/*",
        rb"\.ssh/[^/]*|\.gitconfig|\.config/(?:fish|git|autostart|systemd|environment\.d|nvim)/.*",
        HOME,
    ),
    _rule("shell_startup", ".envrc", rb"\.envrc", REFUSED),
    _rule(
        "shell_startup",
        ".bashrc, .profile, .zshrc, .zshenv and the like, compiled (.zwc) too",
        _SHELL + rb"(?:\.zwc)?",
        HOME,
    ),
    _rule(
        "editor_startup",
        ".exrc, .nvimrc, .nvim.lua, .lvimrc, .helix/*",
        rb"\.exrc|\.nvimrc|\.nvim\.lua|\.lvimrc|\.helix/.*",
        REFUSED,
    ),
    _rule(
        "editor_startup",
        ".vimrc, .gdbinit, .lldbinit, .emacs",
        rb"\.vimrc|\.gdbinit|\.lldbinit|\.emacs|\.emacs\.d/.*",
        HOME,
    ),
    _rule(
        "editor_task",
        ".vscode/tasks.json, .vscode/settings.json, *.code-workspace",
        rb"\.vscode/(?:tasks|settings)\.json|[^/]*\.code-workspace",
        REFUSED,
        _no_automatic_task,
        "no task in it runs when the folder is opened",
    ),
    _rule("editor_task", ".idea/startup.xml", rb"\.idea/startup\.xml", REFUSED),
    _rule(
        "editor_task",
        "all else in .vscode, .idea, .run, .zed, .fleet; .devcontainer, .dir-locals.el, .ycm_extra_conf.py, "
        ".vimspector.json, *.sublime-project",
        rb"\.(?:idea|run|zed|fleet)/.*|\.vscode/(?!mcp\.json$).*|\.devcontainer(?:/.*|\.json)|\.dir-locals(?:-2)?\.el|\.ycm_extra_conf\.py"
        rb"|\.vimspector\.json|[^/]*\.sublime-project",
    ),
    _rule(
        "agent_config",
        ".mcp.json, .vscode/mcp.json, and of .claude, .cursor, .codex, .gemini and others: settings*.json, "
        "config.toml, mcp.json, hooks.json, hooks/*",
        rb"\.mcp\.json|\.vscode/mcp\.json|"
        + _AGENT
        + rb"/(?:settings[^/]*\.json|config\.(?:toml|json|ya?ml)|mcp\.json|hooks\.json|hooks/.*)",
        REFUSED,
    ),
    _rule(
        "agent_config",
        "all else in .claude, .cursor, .codex, .gemini and others; CLAUDE.md, AGENTS.md, .cursorrules and "
        "the like",
        _AGENT + rb"(?:/.*)?|" + _TOLD,
    ),
    _rule(
        "ci",
        ".github/workflows/*, .github/actions/*, .gitlab-ci.yml, Jenkinsfile, .pre-commit-config.yaml and "
        "the like",
        rb"\.github/(?:workflows|actions)/.*|\.gitlab-ci\.ya?ml|\.circleci/.*|\.buildkite/.*|\.woodpecker(?:/.*|\.ya?ml)|Jenkinsfile"
        rb"|azure-pipelines\.ya?ml|\.travis\.yml|\.drone\.ya?ml|bitbucket-pipelines\.yml|\.pre-commit-config\.yaml",
    ),
    _rule(
        "program",
        "programs of environments: .venv/bin/*, node_modules/.bin/*",
        rb"\.?v?env/(?:bin|Scripts)/[^/]*|node_modules/\.bin/.*",
    ),
    _rule(
        "byte_code",
        "*.pyc, *.pyo",
        rb"[^/]*\.py[co]",
        REFUSED,
        unless="it is in a __pycache__, or its source is beside it",
    ),
    _rule("byte_code", "*.elc, *.zwc, *.luac", rb"[^/]*\.(?:elc|zwc|luac)"),
    _rule(
        "tool_config",
        ".npmrc, .yarnrc*, .pnpmfile.cjs, .cargo/config*, mise.toml, .mise/*, .tool-versions, conftest.py, "
        "package.json, setup.py, build.rs, "
        "Makefile, justfile, Taskfile",
        rb"\.npmrc|\.yarnrc(?:\.yml)?|\.pnpmfile\.cjs|\.cargo/config(?:\.toml)?|\.?mise(?:\.[^/]*)?\.toml|\.mise/.*|\.?mise/config\.toml|\.tool-versions|conftest\.py"
        rb"|\.?Taskfile(?:\.dist)?\.ya?ml"
        rb"|(?<!node_modules/)package\.json|setup\.py|build\.rs|(?:GNU)?makefile|justfile",
    ),
)
_OTHER_GIT = next(rule for rule in RULES if rule.why == "git_config" and rule.treatment == NAMED)
_BEGIN = b"(?:.*/)?"
_ANY = re.compile(
    _BEGIN + b"(?:" + b"|".join(rule.pattern.pattern.removeprefix(_BEGIN) for rule in RULES) + b")",
    re.DOTALL | re.IGNORECASE,
)
"""Expression that matches every path of any rule: most paths need no other comparison."""
_BARE = re.compile(rb"(?:\A|/)(?:config|config\.worktree|info/attributes|hooks/[^/]*)\Z")
"""Names in a git directory of any name."""
_OF_OTHERS = re.compile(rb"(?:^|/)(?:node_modules|site-packages|vendor)/")
"""Directories of packages; scripts in them are not listed as the project's own."""
_PLACES = re.compile(
    rb"(?:.*/)?(?:[^/]*\.git(?:/(?:.*/)?hooks)?|\.vscode|\.idea|\.mcp\.json|" + _AGENT + rb")",
    re.DOTALL | re.IGNORECASE,
)
"""Paths at which a symlink leads a program to files of any name."""


class Ground(NamedTuple):
    """Facts about the destination that the rules need."""

    dest: str
    """Resolved, absolute."""
    there: Callable[[bytes], bool]
    """Predicate: the destination, or the delta read so far, has the path."""
    existed: Callable[[bytes], bool]
    """Predicate: the destination has the path."""
    homes: frozenset[str]
    hooks: bytes = b""
    """The directory of `core.hooksPath` of the destination's repository, as a path in the destination; or
    empty.
    """


class Hygiene:
    """The files found: at most REPORT_MAX, CLASS_MAX per class, are listed, all are counted.

    Args:
        ground: None for an archive: nothing in an archive runs, so files are only named.
    """

    def __init__(self, ground: Ground | None = None) -> None:
        self.ground = ground
        self.found: list[dict[str, str]] = []
        self.unsafe: list[dict[str, str]] = []
        self.count = self.unsafe_count = 0
        self._listed: dict[str, int] = {}
        self._classes: dict[str, int] = {}

    def judges(self, header: pax.Header) -> bool:
        """Tell whether `look` needs the content of this file."""
        if self.ground is None or header.type != pax.FILE:
            return False
        rule = self._rule_of(header.path)
        return rule is not None and rule.plain is not None

    def look(self, header: pax.Header, content: bytes | None = None, *, writes: bool = False) -> None:
        """Note an entry.

        Args:
            content: up to JUDGED_MAX + 1 bytes of the file, if `judges` returned True.
            writes: the destination does not have the entry yet.
        """
        for why, runs in self._found(header, content):
            self._add(header.path, why, runs=writes and runs)

    def would_run(self, header: pax.Header, content: bytes | None = None) -> bool:
        """Tell whether the entry, if it is written, runs by itself; note nothing."""
        return any(runs for _, runs in self._found(header, content))

    def _found(self, header: pax.Header, content: bytes | None) -> Iterator[tuple[str, bool]]:
        """Yield the classes of an entry, each with True if the entry would run by itself."""
        if header.kind == pax.WHITEOUT or header.type == pax.DIRECTORY:
            return
        if header.type == pax.FILE and header.mode & 0o6000:
            yield "setuid", False
        if header.type == pax.SYMLINK:
            if _outward(header.path, header.target):
                yield "outward_symlink", False
            if _PLACES.fullmatch(header.path):
                yield "link_for_settings", self.ground is not None
                return
        rule = self._rule_of(header.path)
        if rule is not None:
            yield rule.why, self._runs(rule, header, content)
        elif header.type == pax.FILE and header.mode & 0o111 and not header.mode & 0o6000:
            yield "program", False

    def odd(self, path: bytes, mode: int) -> bool:
        """Tell whether `look` may note a plain file; False is certain."""
        if mode & 0o6111 or _ANY.fullmatch(path) is not None:
            return True
        ground = self.ground
        if ground is None:
            return False
        return _BARE.search(path) is not None or (bool(ground.hooks) and path.startswith(ground.hooks + b"/"))

    def to_json(self) -> dict[str, object]:
        """Return the result's fields; empty when no file was found."""
        if not self.count:
            return {}
        more = {"hygiene_count": self.count} if self.count > len(self.found) else {}
        return {"hygiene": self.found, "hygiene_classes": self._classes, **more}

    def _add(self, path: bytes, why: str, *, runs: bool = False) -> None:
        row = {"path": path.decode("utf-8", "replace"), "why": why}
        if runs:
            self.unsafe_count += 1
            if len(self.unsafe) < REPORT_MAX:
                self.unsafe.append({**row, "path": shown(path)})
        self.count += 1
        self._classes[why] = self._classes.get(why, 0) + 1
        if len(self.found) < REPORT_MAX and self._listed.get(why, 0) < CLASS_MAX:
            self._listed[why] = self._listed.get(why, 0) + 1
            self.found.append(row)

    def _rule_of(self, path: bytes) -> HygieneRule | None:
        if self.ground is not None:
            if self.ground.hooks and path.startswith(self.ground.hooks + b"/"):
                return RULES[0]
            if (bare := self._bare(path)) is not None:
                return bare
        if _ANY.fullmatch(path) is None:
            return None
        for rule in RULES:
            if rule.pattern.fullmatch(path):
                return None if rule.why == "tool_config" and _OF_OTHERS.search(path) else rule
        return None

    def _bare(self, path: bytes) -> HygieneRule | None:
        """Return the rule for a hook or the configuration of a bare repository, which git reads in any
        directory.
        """
        assert self.ground is not None
        above, _, name = path.rpartition(b"/")
        if name in (b"config", b"config.worktree") and self.ground.there(_in(above, b"HEAD")):
            return RULES[1]
        if (
            above.rpartition(b"/")[2] == b"info"
            and name == b"attributes"
            and self.ground.there(_in(above.rpartition(b"/")[0], b"HEAD"))
        ):
            return _OTHER_GIT
        if (
            above.rpartition(b"/")[2] == b"hooks"
            and not name.endswith(b".sample")
            and self.ground.there(_in(above.rpartition(b"/")[0], b"HEAD"))
        ):
            return RULES[0]
        return None

    def _runs(self, rule: HygieneRule, header: pax.Header, content: bytes | None) -> bool:
        if self.ground is None or rule.treatment == NAMED:
            return False
        if rule.treatment == HOME:
            return self._in_a_home(rule, header.path)
        if header.path.lower().endswith(b".pth") and not self.ground.existed(header.path.rpartition(b"/")[0]):
            return False  # the environment is part of this export: no interpreter of the host uses it yet
        if rule.why == "byte_code":
            above, _, name = header.path.rpartition(b"/")
            cached = above.rpartition(b"/")[2] == b"__pycache__"
            return not cached and not self.ground.there(_in(above, name[:-1]))
        if rule.plain is None or header.type != pax.FILE:
            return True
        return content is None or len(content) > JUDGED_MAX or not rule.plain(content)

    def _in_a_home(self, rule: HygieneRule, path: bytes) -> bool:
        assert self.ground is not None
        lands = os.path.join(os.fsencode(self.ground.dest), path)
        for home in self.ground.homes:
            prefix = os.fsencode(home) + b"/"
            if (
                lands.startswith(prefix)
                and rule.pattern.fullmatch(lands[len(prefix) :])
                and _at_its_top(rule, lands[len(prefix) :])
            ):
                return True
        return False


def _at_its_top(rule: HygieneRule, path: bytes) -> bool:
    """Tell whether programs read the file from a home directory: `.ssh/config`, not `project/.ssh/config`."""
    return path.count(b"/") == 0 or (
        path.startswith((b".ssh/", b".config/", b".emacs.d/")) and rule.treatment == HOME
    )


def _in(directory: bytes, name: bytes) -> bytes:
    return directory + b"/" + name if directory else name


def homes() -> frozenset[str]:
    """List the home directories of this machine's users, and the caller's own."""
    found = {os.path.realpath(os.path.expanduser("~"))}
    try:
        import pwd
    except ImportError:
        return frozenset(found)
    found |= {os.path.realpath(one.pw_dir) for one in pwd.getpwall() if one.pw_dir.startswith("/")}
    return frozenset(found - {"/", "/nonexistent"})


def _outward(path: bytes, target: bytes) -> bool:
    """Tell whether a symlink leaves the exported tree, by its text alone."""
    if target.startswith(b"/"):
        return True
    return posixpath.normpath(posixpath.join(posixpath.dirname(path), target)).split(b"/")[0] == b".."
