"""The publications of a sandbox as commits on top of the agents' own.

The branch is `tip`, the commit that HEAD names in the exported version, then one commit for each publication
with changes that no agent committed. The tree of each is the tip's with the uncommitted paths as that
publication left them; the last one is the exported version's work tree. A path counts as committed by every
publication up to the last one in which the tip's value of it changed.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from layerstack.core.stack import Stack
from layerstack.errors import Invalid
from layerstack.export import commit_text, git_pack
from layerstack.export.commit_text import CommitText
from layerstack.export.git_work_tree import GitWorkTree, HeadReader, check_repository, format_of, uncommitted
from layerstack.export.tree_builder import TreeBuilder
from layerstack.git.ancestry import between, is_ancestor, unreached
from layerstack.git.commits import GITLINK, Commit, format_commit
from layerstack.git.kept_refs import KEPT
from layerstack.git.object_format import BLOB_MAX, GitError, ObjectFormat, Oid
from layerstack.git.objects import GitTree, Objects
from layerstack.git.ref_store import read_refs
from layerstack.git.tree_diff import FileValue, tree_changes
from layerstack.git.worktree_filter import lfs_pointer_of_file
from layerstack.layers import delta
from layerstack.layers.chain import Chain
from layerstack.layers.index import Layer
from layerstack.layers.snapshot import Snapshot
from layerstack.model.messages import first_line
from layerstack.tree.state import DIRECTORY, LINK, State

HISTORIES = ("publish", "session", "one")
LARGE_FILE = 100 << 20
"""Bytes of a file that hosting services refuse."""
LISTED_MAX, PATHS_MAX = 1000, 50
"""Commits that a result lists, and paths of each."""
NAMES_MAX = 100


class ExportedRef(NamedTuple):
    """The ref of the destination as an earlier export left it."""

    oid: Oid
    tree: Oid
    version: int | None
    """Version of the newest publication that its trailers name; None without any."""
    contains_tip: bool
    """True if the tip of the agents' commits is `oid` or one of its ancestors."""
    in_tip: bool
    """True if `oid` is the tip or one of its ancestors."""
    history: frozenset[Oid] = frozenset()
    """Commits that the ref reaches and the parent does not: the newest ones."""


class GitExportRequest(NamedTuple):
    """One export. `previous`: the ref in the destination, None for a new one."""

    sandbox_id: str
    history: str = "publish"
    previous: ExportedRef | None = None
    has_tip: bool = False
    """The destination has the agents' tip with all of its history."""
    dry_run: bool = False


class RepositoryHeads(NamedTuple):
    """The repository of a sandbox: HEAD's commit at creation and now; None on an unborn branch or without
    one.
    """

    is_repository: bool
    fmt: ObjectFormat
    parent: Oid | None
    tip: Oid | None


class ExportStep(NamedTuple):
    """The base, or a layer with the version that it made."""

    chain: Chain
    layer: Layer
    version: int


def heads_of(snapshot: Snapshot) -> RepositoryHeads:
    """Read the heads of the repository at the root of the workspace. Raises GitError."""
    chain, heads = snapshot.chain, HeadReader()
    base = Chain([chain.base], chain.path_index, chain.xattr_namespace)
    there = check_repository(chain)
    fmt = format_of(chain)
    parent = heads.tip(base, ".git") if check_repository(base) else None
    tip = heads.tip(chain, ".git") if there else parent
    return RepositoryHeads(there, fmt, fmt.from_hex(parent or b""), fmt.from_hex(tip or b""))


class _Item(NamedTuple):
    """An object to send. `path`: that of a blob, for its conversion from a file."""

    kind: str
    oid: Oid
    source: bytes | State
    path: bytes = b""


def is_in_tip(snapshot: Snapshot, heads: RepositoryHeads, oid: Oid) -> bool:
    """Check whether a commit is the agents' tip or one of its ancestors."""
    if heads.tip is None or len(oid) != heads.fmt.size:
        return False
    with Objects(".git", [snapshot.chain], heads.fmt) as objects:
        return objects.has(oid) and is_ancestor(objects, oid, heads.tip)


class GitExport:
    """Makes the commits of one version; `pieces` gives the objects, and `result` is complete after it."""

    def __init__(self, stack: Stack, snapshot: Snapshot, request: GitExportRequest) -> None:
        if request.history not in HISTORIES:
            raise Invalid(
                f"history {request.history!r} is not one of {', '.join(HISTORIES)}",
                reason="bad_argument",
                details={"argument": "history"},
            )
        self._request = request
        self._heads = heads_of(snapshot)
        chain = snapshot.chain
        layers = list(reversed(chain.published))
        self._steps = [
            ExportStep(chain if layer is layers[-1] else chain.up_to(layer.version), layer, layer.version)
            for layer in layers
        ]
        fmt, reader = self._heads.fmt, HeadReader()
        self.fmt = fmt
        self._objects = Objects(".git", [chain, self._steps[0].chain], fmt)
        tip = self._heads.tip
        self._tip_tree = self._objects.links(tip).tree if tip is not None else None
        self._committed = TreeBuilder(self._tip_tree, fmt, self._objects.tree)
        rules = stack.routes.rules(snapshot.manifest.version)
        self._work = GitWorkTree(chain, rules, self._committed, fmt, reader)
        self._reader = reader
        self._sent: set[Oid] = set()
        self._listed: list[dict[str, Any]] = []
        self._count = 0
        self._large: dict[str, int] = {}
        self._done = -1
        self.objects = 0
        self.head: Oid | None = None

    # ---- which publication carries which path

    def _tips(self) -> Iterator[Oid | None]:
        """Yield HEAD's commit in each step; where its objects are gone, that of the step before."""
        last: Oid | None = None
        for number, step in enumerate(self._steps):
            touched = number == 0 or any(
                step.layer.get(path) is not None
                for path in (".git", ".git/HEAD", ".git/refs", ".git/packed-refs")
            )
            if touched:
                oid = self.fmt.from_hex(self._reader.tip(step.chain, ".git") or b"")
                if oid is not None and self._objects.has(oid):
                    last = oid
            yield last

    def _carried(self) -> list[dict[str, None]]:
        """Give the paths that each step carries, in order of the steps."""
        last_commit: dict[str, int] = {}
        tips = list(self._tips())
        tips[-1] = self._heads.tip
        for number in range(1, len(tips)):
            one, other = tips[number - 1], tips[number]
            if one != other:
                trees = [None if oid is None else self._objects.links(oid).tree for oid in (one, other)]
                for raw in tree_changes(self._objects, *trees):
                    last_commit[os.fsdecode(raw)] = number
        carried: list[dict[str, None]] = [{} for _ in self._steps]
        first = tips[0]
        first_tree = None if first is None else self._objects.links(first).tree
        for path in uncommitted(self._work, self._steps[0].chain, self._objects, first_tree):
            if path not in last_commit:
                carried[0][path] = None
        for path, number in last_commit.items():
            found = self._work.candidate(path)
            if found is not None:
                carried[number][found] = None
        modules = dict.fromkeys(self._work.nested_paths())
        for number, (before, step) in enumerate(itertools.pairwise(self._steps), 1):
            in_modules = False
            for path in delta.paths(before.chain, step.chain):
                in_modules = in_modules or path.startswith(".git/modules/")
                found = self._work.candidate(path)
                if found is not None and number >= last_commit.get(found, 0):
                    carried[number][found] = None
            if in_modules:
                carried[number].update(modules)
        return carried

    # ---- commits

    def _groups(self) -> list[list[int]]:
        """List the steps of each commit by `history`; step 0 is the base."""
        numbers = range(1, len(self._steps))
        history = self._request.history
        if history == "one":
            return [list(numbers)] if numbers else []
        groups: list[list[int]] = []
        for number in numbers:
            owner = self._steps[number].layer.about.get("owner")
            same = (
                history == "session"
                and groups
                and owner is not None
                and owner == self._steps[groups[-1][-1]].layer.about.get("owner")
            )
            if same:
                groups[-1].append(number)
            else:
                groups.append([number])
        return groups

    def pieces(self) -> Iterator[bytes]:
        """Yield the entries of a pack with all that the destination lacks, in pieces of any size.

        Raises:
            GitError: the repository cannot be read; OSError: the disk.
        """
        for piece in self._pieces():
            if not self._request.dry_run and piece:
                yield piece

    def _pieces(self) -> Iterator[bytes]:
        previous, tip = self._request.previous, self._heads.tip
        if previous is not None and previous.in_tip:
            previous = None
        if tip is not None and not self._request.has_tip:
            yield from self._agents_objects(tip)
        carried = self._carried()
        done = -1 if previous is None or previous.version is None else previous.version
        self._done = done
        tree = TreeBuilder(self._tip_tree, self.fmt, self._objects.tree)
        groups, before = [[0], *self._groups()], list[_Item]()
        for number in itertools.chain.from_iterable(groups):
            if self._steps[number].version <= done:
                before += self._apply(tree, carried[number], number)[0]
        at_done, new = self._write(tree)
        before += new
        self.head, last_tree = tip, at_done
        if previous is not None:
            self.head, last_tree = previous.oid, previous.tree
            if previous.tree == at_done:
                self._sent.update(item.oid for item in before)
        yield from self._send(before)
        if previous is not None and tip is not None and not previous.contains_tip:
            member = {**self._member_at(done), "created_unix_ms": self._newest_ms()}
            text = commit_text.of_merge(self._request.sandbox_id, member)
            yield self._commit(at_done, (previous.oid, tip), text, None, [])
            last_tree = at_done
        for group in groups:
            new_ones = [number for number in group if self._steps[number].version > done]
            changed: dict[str, None] = {}
            for number in new_ones:
                blobs, paths = self._apply(tree, carried[number], number)
                changed.update(dict.fromkeys(paths))
                yield from self._send(blobs)
            oid, new = self._write(tree)
            yield from self._send(new)
            if new_ones and oid != last_tree:
                last_tree = oid
                yield self._commit_of(new_ones, oid, sorted(changed))
        oid, new = self._write(tree)
        if oid != last_tree and self.head is not None:  # the ref says more than it has
            yield from self._send(new)
            yield self._commit_of([len(self._steps) - 1], oid, [])

    def _newest_ms(self) -> int:
        members = [member for step in self._steps[1:] for member in step.layer.members]
        return max((int(member.get("created_unix_ms") or 0) for member in members), default=0)

    def _member_at(self, version: int) -> dict[str, Any]:
        for step in reversed(self._steps):
            for member in step.layer.members:
                if int(member["version"]) <= version:
                    return {**step.layer.about, **member} if step.layer.id == member["layer_id"] else member
        return dict(self._steps[0].layer.members[0])

    def _members(self, group: Sequence[int]) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        for number in group:
            layer = self._steps[number].layer
            for member in reversed(layer.members):
                if int(member["version"]) <= self._done and len(layer.members) > 1:
                    continue  # exported before the squash
                found.append({**layer.about, **member} if layer.id == member["layer_id"] else dict(member))
        return found

    def _commit_of(self, group: Sequence[int], tree: Oid, paths: Sequence[str]) -> bytes:
        parents = () if self.head is None else (self.head,)
        sandbox_id = self._request.sandbox_id
        if group[0] == 0:
            date = 0 if self._heads.parent is None else self._objects.links(self._heads.parent).committed
            layer_id = str(self._steps[0].layer.id)
            text = commit_text.of_creation(sandbox_id, layer_id, date)
            return self._commit(tree, parents, text, layer_id, paths)
        members = self._members(group) or [dict(self._steps[group[-1]].layer.members[0])]
        text = commit_text.of_publications(sandbox_id, members, paths)
        return self._commit(tree, parents, text, str(self._steps[group[-1]].layer.id), paths)

    def _commit(
        self,
        tree: Oid,
        parents: tuple[Oid, ...],
        text: CommitText,
        layer_id: str | None,
        paths: Sequence[str],
    ) -> bytes:
        identity = text.identity
        message = text.message.encode("utf-8", "replace")
        data = format_commit(Commit(tree, parents, identity, identity, (), message))
        self.head = self.fmt.oid_of("commit", data)
        self._list(self.head, layer_id, text.author, text.subject, list(map(os.fsencode, paths)))
        self.objects += 1
        return git_pack.entry("commit", data)

    def _list(
        self, oid: Oid, layer_id: str | None, author: str, subject: str, paths: Sequence[bytes]
    ) -> None:
        self._count += 1
        if len(self._listed) >= LISTED_MAX:
            return
        row: dict[str, Any] = {
            "oid": oid.hex(),
            "layer_id": layer_id,
            "author": author,
            "subject": subject,
            "paths": list(map(_text, paths[:PATHS_MAX])),
        }
        if len(paths) > PATHS_MAX:
            row["path_count"] = len(paths)
        self._listed.append(row)

    # ---- trees and blobs

    def _apply(self, tree: TreeBuilder, paths: dict[str, None], number: int) -> tuple[list[_Item], list[str]]:
        """Change a tree to what a step left at some paths; give the blobs that this needs, and the paths
        that differed.
        """
        chain = self._steps[number].chain
        blobs, values, changed = list[_Item](), list[tuple[str, FileValue]](), list[str]()
        for path in paths:
            raw = os.fsencode(path)
            value, state = self._work.value(chain, path)
            if value is None:
                if tree.remove(raw):
                    changed.append(path)
                continue
            values.append((path, value))
            if state is not None and self._committed.get(raw) != value:
                blobs.append(_Item("blob", value.oid, state, raw))
                if state.kind != LINK and state.size > LARGE_FILE:
                    self._large[path] = state.size
        changed += [path for path, value in values if tree.set(os.fsencode(path), value)]
        return blobs, changed

    def _write(self, tree: TreeBuilder) -> tuple[Oid, list[_Item]]:
        found: list[_Item] = []
        oid = tree.write(lambda oid, data: found.append(_Item("tree", oid, data)))
        return oid, found

    def _send(self, items: Sequence[_Item]) -> Iterator[bytes]:
        for kind, oid, source, raw in items:
            if oid in self._sent:
                continue
            self._sent.add(oid)
            self.objects += 1
            if self._request.dry_run:
                continue
            if isinstance(source, bytes):
                yield git_pack.entry(kind, source)
            elif source.kind == LINK:
                yield git_pack.entry(kind, os.fsencode(source.target))
            elif source.size <= BLOB_MAX:
                yield git_pack.entry(kind, self._work.filter.clean(raw, source.data()))
            elif self._work.filter.conversion(raw).filter == "lfs":
                yield git_pack.entry(kind, lfs_pointer_of_file(source))
            else:
                yield from git_pack.blob_of_file(source)

    # ---- the agents' own commits

    def _agents_objects(self, tip: Oid) -> Iterator[bytes]:
        """Yield the commits that agents made, with what they have and their parents have not."""
        objects, parent = self._objects, self._heads.parent
        try:
            commits = between(objects, parent, tip)
        except GitError as error:
            raise type(error)(
                f"export the agents' commits: {error.message}", reason=error.reason, details=error.details
            ) from None
        for oid in commits:
            if self._request.previous is not None and oid in self._request.previous.history:
                continue
            kind, data = objects.read(oid, "commit")
            links = objects.links(oid)
            olds = [objects.links(p).tree for p in links.parents]
            yield from self._tree_objects(links.tree, olds)
            paths = sorted(tree_changes(objects, olds[0] if olds else None, links.tree))
            commit = objects.commit(oid)
            self._list(
                oid, None, _text(commit.author.partition(b" <")[0]), first_line(_text(commit.message)), paths
            )
            self._sent.add(oid)
            self.objects += 1
            yield git_pack.entry(kind, data)

    def _tree_objects(self, new: Oid, olds: Sequence[Oid]) -> Iterator[bytes]:
        """Yield a tree and all below it that none of the old trees has at the same path."""
        objects = self._objects
        waiting: list[tuple[Oid, list[Oid]]] = [(new, list(olds))]
        while waiting:
            oid, others = waiting.pop()
            if oid in others or oid in self._sent:
                continue
            self._sent.add(oid)
            entries = objects.tree(oid)
            there = [{e.name: e.oid for e in objects.tree(other)} for other in others]
            for item in entries:
                if item.mode == GITLINK or item.oid in self._sent:
                    continue
                was = [old[item.name] for old in there if item.name in old]
                if item.oid in was:
                    continue
                if item.is_tree:
                    trees = [o for o in was if objects.header(o).kind == "tree"]
                    waiting.append((item.oid, trees))
                    continue
                self._sent.add(item.oid)
                self.objects += 1
                if not self._request.dry_run:
                    yield git_pack.entry("blob", objects.read(item.oid, "blob")[1])
            self.objects += 1
            yield git_pack.entry("tree", objects.read(oid, "tree")[1])

    # ---- the result

    def result(self) -> dict[str, Any]:
        """Give the ids that the receiver needs, and the parts of the caller's result."""
        heads = self._heads
        found: dict[str, Any] = {
            "parent": None if heads.parent is None else heads.parent.hex(),
            "head": None if self.head is None else self.head.hex(),
            "objects": self.objects,
            "commits": self._listed,
            "commit_count": self._count,
            "ignored_count": len(self._work.ignored),
        }
        if empty := self._empty_directories():
            found["empty_directories"] = empty
        if other := self._other_refs():
            found["other_refs"] = other
        if self._work.unsafe:
            found["left_out"] = [_shown(path) for path in list(self._work.unsafe)[:NAMES_MAX]]
        if self._large:
            found["large"] = [
                {"path": _shown(path), "bytes": size} for path, size in list(self._large.items())[:NAMES_MAX]
            ]
        return found

    def _other_refs(self) -> list[str]:
        """List branches, tags and the stash whose commits are neither in the exported branch nor in the
        repository as it was at creation; one of several names of a commit, at most NAMES_MAX.
        """
        newest, base = self._steps[-1].chain, self._steps[0].chain
        if not check_repository(newest):
            return []
        known = [oid for _, oid in self._tips_of(base)] if check_repository(base) else []
        tips = {oid: name for name, oid in self._tips_of(newest) if not name.startswith(KEPT)}
        exported = [oid for oid in (self._heads.tip,) if oid is not None]
        lost = unreached(self._objects, tips, [*known, *exported]) - {*known, *exported}
        return sorted(_text(tips[oid]) for oid in lost)[:NAMES_MAX]

    def _tips_of(self, tree: GitTree) -> Iterator[tuple[bytes, Oid]]:
        """Yield the refs that name commits, tags peeled."""
        for name, value in read_refs(".git", tree).items():
            if (oid := self.fmt.from_hex(value.oid or b"")) is None:
                continue
            found, kind = self._objects.peel(oid)
            if kind == "commit":
                yield name, found

    def _empty_directories(self) -> list[str]:
        """List published directories without an entry, which git cannot have; at most NAMES_MAX."""
        newest, found = self._steps[-1].chain, list[str]()
        for path in delta.paths(self._steps[0].chain, newest):
            if len(found) >= NAMES_MAX:
                break
            state = newest.find(path)
            if state is None or state.kind != DIRECTORY or any(True for _ in newest.names(path)):
                continue
            if self._work.candidate(path) == path and not self._work.skips_directory(path):
                found.append(_shown(path))
        return found


def _shown(path: str) -> str:
    return _text(os.fsencode(path))


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "replace")
