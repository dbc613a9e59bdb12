"""Decide whether the changes of both sides to one git repository can be united into a repository.

Loose objects and packs are only added. Each ref with its log, each worktree with its own files, and the main
worktree's files (HEAD, index, packed-refs and the like) are *cells*. Two sides can be united when

- no cell was changed by both in different ways,
- no object was deleted while the other side changed the repository (it may need that object),
- the refs of the result are the merge of both sides' refs, loose and packed together, and
- each HEAD still shows the commit that its worktree's index belongs to.

Git guarantees no more than this. ADR 0046.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Collection

from layerstack.tree.state import DIRECTORY, FILE, State

Find = Callable[[str], State | None]

NEEDLES = (".git/", ".git\n", "objects/", "refs/", "HEAD\n", "packed-refs\n")
"""Substrings, one of which is in `<path>LF` of each path for which `roots_of` gives a root."""
_OWN = frozenset(
    (
        "objects",
        "refs",
        "logs",
        "info",
        "hooks",
        "worktrees",
        "HEAD",
        "index",
        "packed-refs",
        "config",
        "COMMIT_EDITMSG",
        "ORIG_HEAD",
        "FETCH_HEAD",
    )
)
"""Names in a repository, which distinguish a submodule's repository from the directories that lead to it."""
_HAND = frozenset(("config", "description", "info/exclude", "info/attributes"))
"""Texts that people write: the decision table decides them as any text."""
_ALONE = frozenset(
    (
        "FETCH_HEAD",
        "gitk.cache",
        "gc.log",
        "objects/info/packs",
        "objects/info/commit-graph",
        "objects/pack/multi-pack-index",
    )
)
"""Files on which no other file depends."""
_OF_MAIN = frozenset(("bisect", "worktree", "rewritten"))
PACKED_MAX = 32 << 20
"""Bytes of packed-refs that are read."""

_HEAD = re.compile(rb"ref:\s*refs/|[0-9a-f]{40}")

OBJECTS, MAIN = ("objects", ""), ("main", "")
Cell = tuple[str, str]


_BARE = frozenset(("objects", "refs"))
_BARE_FILES = frozenset(("HEAD", "packed-refs"))
_BESIDE = _OWN - _BARE - _BARE_FILES - {"hooks", "config", "info"}
"""Names in a bare repository outside of objects and refs: its worktrees, indexes and logs."""


def roots_of(path: str) -> tuple[str, ...]:
    """List the repositories that a path of such a name may belong to, outermost first: the last `.git`; a
    submodule in it; else every candidate for a bare one.

    A bare repository may be below a directory called `objects`, and a submodule may be called `lib/refs`:
    names alone do not decide, so each possible root is listed.
    """
    above, _, name = path.rpartition("/")
    if name == ".git":
        return (path,)
    root, places = _places(above)
    if root is None:
        last = bool(above) and (name in _BARE or name in _BARE_FILES)
    else:
        last = name in _OWN and above.startswith(f"{root}/modules/")
    if last and above not in places:
        places = (*places, above)
    return places or (() if root is None else (root,))


@functools.lru_cache(maxsize=8)
def _places(folder: str) -> tuple[str | None, tuple[str, ...]]:
    """Read the names down to a directory: the last `.git`, and the possible roots of a submodule of it or of
    a bare repository.
    """
    names = folder.split("/")
    at = next((n for n in reversed(range(len(names))) if names[n] == ".git"), None)
    if at is None:
        ends = [n for n in range(1, len(names)) if names[n] in _BARE]
        return None, tuple("/".join(names[:n]) for n in ends)
    root = "/".join(names[: at + 1])
    ends = (
        [n for n in range(at + 3, len(names)) if names[n] in _OWN]
        if names[at + 1 : at + 2] == ["modules"]
        else []
    )
    return root, tuple("/".join(names[:n]) for n in ends)


def holds(root: str, path: str) -> bool:
    """Check whether the path is a member of a repository at `root`, if there is one."""
    if path == root:
        return True
    if not path.startswith(root + "/") or cell(below := path[len(root) + 1 :]) is None:
        return False
    if root in roots_of(path):
        return True
    return below.partition("/")[0] in _BESIDE and _places(path)[0] is None


def cell(below: str) -> Cell | None:
    """Give the cell of a path below the repository's root; None: it is not a member."""
    names = below.split("/")
    if below in _HAND or names[0] in ("hooks", "lfs", "rr-cache"):
        return None
    if below in _ALONE or below.startswith("objects/info/commit-graphs/"):
        return "file", below
    if names[0] == "objects":
        return OBJECTS
    ref = below.removeprefix("logs/") if names[0] == "logs" else below
    if ref.startswith("refs/"):
        place = ref.split("/")
        if place[1] not in _OF_MAIN and (len(place) > 2 or place[1] == "stash"):
            return "ref", ref
        return MAIN
    if names[0] == "worktrees" and len(names) > 1:
        return "worktree", names[1]
    return MAIN


def is_repository(root: str, tree: Find) -> bool:
    """Check whether the tree has a repository at `root`. Without a `.git` in the path, HEAD must contain what
    git would write.
    """
    head = tree(f"{root}/HEAD")
    if head is None or head.kind != FILE:
        return False
    if any(
        (state := tree(f"{root}/{name}")) is None or state.kind != DIRECTORY for name in ("objects", "refs")
    ):
        return False
    return _places(root)[0] is not None or _HEAD.match(head.data(64)) is not None


def is_usable(root: str, tree: Find) -> bool:
    """Check whether git accepts the repository's HEAD: with another one it sees no repository at all."""
    head = tree(f"{root}/HEAD")
    return is_repository(root, tree) and head is not None and _HEAD.match(head.data(64)) is not None


def commit_of(root: str, tree: Find) -> str | None:
    """Give the commit that is checked out, in hex; None before the first."""
    head = _text(tree(f"{root}/HEAD"))
    if head is not None and head.startswith(b"ref: "):
        head = _Refs(root, tree).get(head[5:].decode(errors="surrogateescape"))
    return head.decode() if head and head.isalnum() else None


def united(
    root: str,
    ours: Collection[str],
    theirs: Collection[str],
    unlike: Collection[str],
    base: Find,
    own: Find,
    head: Find,
) -> bool:
    """Check whether the union of both sides' changes is a repository.

    Args:
        ours, theirs: members that each side changed.
        unlike: paths that differ between the two.
    """
    sides = ({path: _cell(root, path) for path in ours}, {path: _cell(root, path) for path in theirs})
    if any(found is None for side in sides for found in side.values()):
        return False  # the directory of the repository itself changed
    both = set(sides[0].values()) & set(sides[1].values()) - {OBJECTS}
    if any(
        path in unlike and (found in both or path in sides[1 - n])
        for n, side in enumerate(sides)
        for path, found in side.items()
    ):
        return False
    for side in sides:
        if any(found == OBJECTS and base(path) is not None for path, found in side.items()):
            return False

    def result(path: str) -> State | None:
        return own(path) if path in sides[0] else head(path)

    trees = [_Refs(root, tree) for tree in (base, own, head, result)]
    if any(refs.too_large for refs in trees):
        return False
    if f"{root}/packed-refs" in {*ours, *theirs}:
        for name in {
            found[1] for side in sides for found in side.values() if found is not None and found[0] == "ref"
        }:
            b, o, h, merged = (refs.get(name) for refs in trees)
            wanted = o if o == h or b == h else h
            if merged != wanted or (b not in (o, h) and o != h):
                return False
    for side, refs in zip(sides, trees[1:3], strict=True):
        for what, name in set(filter(None, side.values())):
            if what not in ("main", "worktree"):
                continue
            shown = _text(result(f"{root}/HEAD" if what == "main" else f"{root}/worktrees/{name}/HEAD"))
            if shown is not None and shown.startswith(b"ref: "):
                branch = shown[5:].decode(errors="surrogateescape")
                if refs.get(branch) != trees[3].get(branch):
                    return False
    return True


def _cell(root: str, path: str) -> Cell | None:
    return None if path == root else cell(path[len(root) + 1 :])


def _text(state: State | None) -> bytes | None:
    return state.data(4096).strip() if state is not None and state.kind == FILE else None


class _Refs:
    """The refs of one tree: a loose file, else its line in packed-refs."""

    def __init__(self, root: str, tree: Find) -> None:
        self._root, self._tree = root, tree
        self._packed: dict[bytes, bytes] | None = None
        packed = tree(f"{root}/packed-refs")
        self._file = packed if packed is not None and packed.kind == FILE else None
        self.too_large = self._file is not None and self._file.size > PACKED_MAX

    def get(self, name: str) -> bytes | None:
        """Read a ref: an id in hex, or `ref: ` and another name."""
        loose = _text(self._tree(f"{self._root}/{name}"))
        if loose is not None:
            return loose
        if self._packed is None:
            lines = self._file.data().splitlines() if self._file is not None else []
            rows = [line.split(b" ", 1) for line in lines if line[:1] not in (b"#", b"^") and b" " in line]
            self._packed = {row[1]: row[0] for row in rows}
        return self._packed.get(name.encode(errors="surrogateescape"))
