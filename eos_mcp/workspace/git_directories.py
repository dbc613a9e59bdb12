"""Git repositories outside of a workspace that belong to it: the copy gets all of them as plain `.git`
directories.

The `.git` of a linked worktree or of a submodule is a file that names a git directory elsewhere
(gitrepository-layout(5)). In the copy a directory `.git` is in its place: objects, refs, configuration of the
common directory, and HEAD, index and so on of this worktree. Objects that a repository borrows
(`objects/info/alternates`) become its own.

A file in a workspace may name any directory. So the git directory must name the workspace too, as git keeps
it (`gitdir` of a worktree, core.worktree of a submodule); borrowed objects need the permission of the caller.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from eos_mcp.workspace.tree_index import Listing, Stat, look

GIT = ".git"
SHARED = frozenset(
    (
        *("branches", "config", "description", "hooks", "info", "lfs", "logs", "objects", "packed-refs"),
        *("refs", "remotes", "rr-cache", "shallow", "svn"),
    )
)
"""Entries of the common directory that all worktrees share."""
OWN = re.compile(r"logs/HEAD|info/sparse-checkout|(logs/)?refs/(bisect|rewritten|worktree)(/.*)?")
"""Paths below SHARED that each worktree has for itself."""
LEFT_OUT = frozenset(("commondir", "gitdir", "locked", "modules", "worktrees", "reftable"))
"""Entries of a worktree's own git directory that lead elsewhere."""
ALTERNATES = "objects/info/alternates"
DERIVED = re.compile(r"objects/info/commit-graphs?(/.*)?")
"""Files that would be incomplete once objects of another repository are beside them."""
OBJECT = re.compile(
    r"[0-9a-f]{2}(/[0-9a-f]{38}([0-9a-f]{24})?)?|pack(/pack-[0-9a-f]+\.(pack|idx|rev|mtimes))?"
)
DEPTH_MAX = 5
"""Alternates of alternates, as in git."""
TEXT_MAX = 64 << 10
Refusal = Callable[[str, bool], str | None]
_WORKTREE = re.compile(r"(?mi)^\s*worktree\s*=\s*(.*?)\s*$")
_BARE = re.compile(r"(?mi)^\s*bare\b(?!\s*=\s*(false|no|off|0)\s*$)")


class GitDirectory(NamedTuple):
    """A git directory outside of the workspace. `own`: of this worktree; `common`: of the repository."""

    own: str
    common: str


class Borrowed(NamedTuple):
    """The entries of a copy with those from outside the workspace.

    sources: path -> the file or directory outside that is copied there. tails: path -> text that is appended
    to a configuration. warnings: what was brought along from where, and what was not, with the reason.
    """

    listing: Listing
    sources: Mapping[str, str]
    tails: Mapping[str, bytes]
    warnings: tuple[str, ...]

    def source(self, workspace: str, path: str) -> str:
        """Return the file or directory from which `path` is copied."""
        return self.sources.get(path) or (os.path.join(workspace, path) if path else workspace)


def complete(workspace: str, listing: Listing, refusal: Refusal) -> Borrowed:
    """Add the repositories outside of `workspace` to a walk over it.

    Args:
        workspace: resolved.
        refusal: called with a directory, and whether it names the workspace; returns the reason why it may
            not be copied from, None: it may.
    Cost: a look at each path of the listing; a walk over each git directory.
    """
    building = _Building(workspace, listing, refusal)
    found = [path for path in listing.entries if path.endswith((GIT, ALTERNATES))]
    for path in found:
        if os.path.basename(path) == GIT and stat.S_ISREG(listing.entries[path][0]):
            building.bring_repository(path)
    for path in [*found, *(f"{git}/{ALTERNATES}" for git in building.brought)]:
        if path.endswith(f"/{ALTERNATES}") and path in building.entries:
            building.bring_objects(path.removesuffix(f"/{ALTERNATES}"))
    if not listing.entries.keys() & {GIT, "HEAD"} and (above := _repository_above(workspace)) is not None:
        building.warnings.append(
            f"git does not work in the sandbox: the git directory lies outside of the workspace at {above}; "
            f"choose {os.path.dirname(above)} as the workspace for git"
        )
    return Borrowed(
        listing._replace(entries=building.entries), building.sources, building.tails, tuple(building.warnings)
    )


class _Building:
    def __init__(self, workspace: str, listing: Listing, refusal: Refusal) -> None:
        self._workspace, self._refusal = workspace, refusal
        self.entries = dict(listing.entries)
        self.sources: dict[str, str] = {}
        self.tails: dict[str, bytes] = {}
        self.warnings: list[str] = []
        self.brought: list[str] = []

    def bring_repository(self, path: str) -> None:
        """Put a directory in place of the file `path`, if its git directory is outside and names it."""
        file = os.path.join(self._workspace, path)
        text = _text(file)
        if text is None or not text.startswith("gitdir:"):
            return
        target = os.path.realpath(
            os.path.join(os.path.dirname(file), text.removeprefix("gitdir:").strip("\n "))
        )
        if os.path.commonpath([target, self._workspace]) == self._workspace:
            return
        git = _git_directory(target)
        if isinstance(git, GitDirectory) and not _names(git, file):
            git = f"it does not name {os.path.dirname(file)} in return: git worktree repair in it may help"
        why = git if isinstance(git, str) else self._refusal(git.common, True)
        if why is not None:
            self.warnings.append(
                f"git does not work in the sandbox: {path} names a git directory outside of the workspace at "
                f"{target}; {why}"
            )
            return
        assert isinstance(git, GitDirectory)
        self.brought.append(path)
        del self.entries[path]
        self._add(path, git.own)
        for below, entry, source in _files(git.common):
            if below.partition("/")[0] in SHARED and (git.own == git.common or not OWN.fullmatch(below)):
                self._add(f"{path}/{below}", source, entry)
        for below, entry, source in _files(git.own):
            top = below.partition("/")[0]
            if top not in LEFT_OUT and (git.own != git.common or top not in SHARED):
                self._add(f"{path}/{below}", source, entry)
        config = _text(f"{git.common}/config") or ""
        tail = ("\tbare = false\n" if _BARE.search(config) else "") + (
            "\tworktree = ..\n" if _WORKTREE.search(config) else ""
        )
        if tail and f"{path}/config" in self.entries:
            self.tails[f"{path}/config"] = b"\n[core]\n" + tail.encode()
        self.warnings.append(f"copied with the workspace, the git directory of {path} from {git.common}")

    def bring_objects(self, git: str) -> None:
        """Make the objects that the repository at `git` borrows its own."""
        alternates = f"{git}/{ALTERNATES}"
        file = self.sources.get(alternates) or os.path.join(self._workspace, alternates)
        folders, refused = self._alternates(file)
        for why in refused:
            self.warnings.append(f"objects that {git} borrows are missing in the sandbox: {why}")
        if not folders:
            return
        for path in [p for p in self.entries if p.startswith(f"{git}/objects/")]:
            if path == alternates or DERIVED.fullmatch(path.removeprefix(f"{git}/")):
                del self.entries[path]
                self.sources.pop(path, None)
        for folder in folders:
            for below, entry, source in _files(folder):
                if OBJECT.fullmatch(below) and f"{git}/objects/{below}" not in self.entries:
                    self._add(f"{git}/objects/{below}", source, entry)
            self.warnings.append(f"copied with the workspace, the objects that {git} borrows from {folder}")

    def _alternates(self, file: str) -> tuple[list[str], list[str]]:
        """List the directories of objects that a file names, and theirs, and what refused others."""
        folders: dict[str, None] = {}
        refused: list[str] = []
        level, below = [file], 0
        while level and below < DEPTH_MAX:
            following: list[str] = []
            for one in level:
                here = os.path.dirname(os.path.dirname(one))
                for line in (_text(one) or "").splitlines():
                    if not line or line.startswith("#"):
                        continue
                    folder = os.path.realpath(os.path.join(here, line))
                    why = self._refusal(folder, False)
                    if (
                        why is None
                        and not os.path.isdir(f"{folder}/pack")
                        and not os.path.isdir(f"{folder}/info")
                    ):
                        why = f"{folder} is not a directory of objects"
                    if why is not None:
                        refused.append(why)
                    elif folder not in folders:
                        folders[folder] = None
                        following.append(f"{folder}/info/alternates")
            level, below = following, below + 1
        return list(folders), refused

    def _add(self, path: str, source: str, entry: Stat | None = None) -> None:
        if entry is None:
            found = os.stat(source)
            entry = (found.st_mode, 0, found.st_mtime_ns, found.st_ctime_ns, found.st_ino, 0)
        one_name = min(entry[5], 1)  # another file system has inodes of the same number
        mode, size, mtime, ctime, inode, _ = entry
        self.entries[path] = (mode, size, mtime, ctime, inode, one_name)
        self.sources[path] = source


def _files(folder: str) -> Iterator[tuple[str, Stat, str]]:
    """Yield path, lstat and source of everything below a directory, directories first; without what git has
    half done.
    """
    for path, entry in look(folder, git=True).entries.items():
        if path:
            yield path, entry, os.path.join(folder, path)


def _git_directory(target: str) -> GitDirectory | str:
    """Return the git directory at `target`, or the reason why it is none that can be copied."""
    common = _text(f"{target}/commondir")
    where = target if common is None else os.path.realpath(os.path.join(target, common.strip()))
    if not os.path.isfile(f"{target}/HEAD") or not os.path.isdir(f"{where}/objects"):
        return "there is no git directory"
    if os.path.isdir(f"{where}/reftable"):
        return "refs in the format reftable cannot be copied from there"
    return GitDirectory(target, where)


def _names(git: GitDirectory, file: str) -> bool:
    """Tell whether the git directory names the worktree whose `.git` is `file`."""
    back = _text(f"{git.own}/gitdir")
    if back is not None:
        return os.path.realpath(os.path.join(git.own, back.strip("\n"))) == file
    for name in ("config.worktree", "config"):
        found = _WORKTREE.findall(_text(f"{git.own}/{name}") or "")
        if found:
            return os.path.realpath(os.path.join(git.own, found[-1].strip('"'))) == os.path.dirname(file)
    return False


def _repository_above(workspace: str) -> str | None:
    """Return the `.git` of the nearest directory above that has one."""
    at = os.path.dirname(workspace)
    while True:
        if os.path.exists(f"{at}/{GIT}/HEAD") or os.path.isfile(f"{at}/{GIT}"):
            return f"{at}/{GIT}"
        if at == os.path.dirname(at):
            return None
        at = os.path.dirname(at)


def _text(path: str) -> str | None:
    """Read a small text file; None: there is none."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return None
    with open(fd, "rb") as file:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            return None
        return os.fsdecode(file.read(TEXT_MAX))
