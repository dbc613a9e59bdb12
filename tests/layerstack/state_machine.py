"""The state machine: any order of sessions, edits, publishes, drafts and restarts leaves the stack and
ModelStack showing the same tree.

Runs in a child that may mount (tests/in_namespace.py), over real overlay mounts. `run` is the whole of it,
for both xattr namespaces.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import itertools
import os
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Sequence
from random import Random
from typing import ClassVar

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import seed as seeded
from hypothesis import strategies as st
from hypothesis.errors import HypothesisWarning
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from layerstack.core.publish_rules import PublishRules
from layerstack.errors import (
    AlreadyExists,
    Busy,
    LayerStackError,
    NotADirectory,
    NotAFile,
    NotEmpty,
    PublishRejected,
)
from layerstack.export import pax
from layerstack.export.stream import flatten_changes
from layerstack.history import versions as history
from layerstack.kernel import fsync, overlay, syscalls
from layerstack.kernel.xattrs import XATTR_NAMESPACES, XattrNamespace
from layerstack.layers import capture, version_files
from layerstack.layers.delta import delta
from layerstack.layers.snapshot import Snapshot
from layerstack.model.conflict import Conflict, Fingerprint
from layerstack.publish.outcome import Published
from layerstack.publish.publish import Author
from layerstack.session.path_changes import Reshaped
from layerstack.session.upper import Upper
from layerstack.squash.squash import Squashed
from layerstack.store import Store
from layerstack.tree import scanned
from layerstack.units.units import NamedUnits
from tests.layerstack import delivered, kept
from tests.layerstack.kept import Side
from tests.layerstack.memory_and_disk import disagreement
from tests.model import ModelStack, Verdict
from tests.tree_edits import Hand, Op, few_ops
from tests.trees import (
    DIRECTORY,
    FILE,
    LINK,
    Besides,
    Entry,
    Tree,
    ancestors,
    difference,
    names,
    read_tree,
    trees,
    write_tree,
)
from tests.units import BOX

MOST_SESSIONS = 4
MOST_DRAFTS = 4
MOST_HELD = 2
REFUSED = ("squash.close_versions", "squash.rename_version", "squash.drafts", "squash.remove_layers")
"""Steps after the commit of a squash: a disk that refuses one of them leaves it to the next gc, squash or
open to finish.
"""


STANDING = ("publish.clone", "publish.write.index", "publish.write.json", "publish.sync_layer")
"""Steps of a publish between its plan and its commit: somebody else commits there."""


class Session:
    """A live upper, mounted at `mount`, on version `base`."""

    def __init__(self, upper: Upper, mount: str, base: int, draft_id: str | None) -> None:
        self.upper, self.mount, self.base, self.draft_id = upper, mount, base, draft_id
        self.opened: Tree = {}
        """What it showed when it was opened on its draft."""
        self.checkpoints: dict[str, Side] = {}

    def shows(self) -> Side:
        """Read its tree, with times and links."""
        besides = Besides()
        return Side(read_tree(self.mount, besides), besides)

    def remounted(self) -> Side:
        """Read its tree in a new mount: until then an ordinary user's overlay shows a new name of a file as
        another inode.
        """
        self.hide()
        self.show()
        return self.shows()

    def show(self) -> None:
        """Mount it."""
        fd = self.upper.mount()
        syscalls.move_mount(fd, self.mount)
        os.close(fd)

    def hide(self) -> None:
        """Unmount it: the upper is offline afterwards."""
        syscalls.umount(self.mount)


def digest_of(body: bytes) -> bytes:
    """SHA-256 of the bytes; of bytes that have an aligned block of 64 KiB zeros, that of such a block and of
    the runs with and without them.
    """
    block = 1 << 16
    blocks = [body[at : at + block] for at in range(0, len(body), block)]
    runs = [
        (zero, b"".join(run)) for zero, run in itertools.groupby(blocks, lambda part: part == bytes(block))
    ]
    if not any(zero for zero, _ in runs):
        return hashlib.sha256(body).digest()
    parts = [
        b"z%d\n" % len(run) if zero else b"d%d\n%s" % (len(run), hashlib.sha256(run).digest())
        for zero, run in runs
    ]
    return hashlib.sha256(bytes(block) + b"".join(parts)).digest()


def fingerprint(entry: Entry | None) -> Fingerprint:
    """What a conflict shows of a path, from the model's tree."""
    if entry is None:
        return Fingerprint("absent")
    if entry.kind == FILE:
        return Fingerprint("file", digest_of(entry.body).hex(), len(entry.body), entry.meta[0])
    if entry.kind == LINK:
        return Fingerprint("symlink", target=os.fsdecode(entry.body))
    return Fingerprint("directory", mode=entry.meta[0])


def same(what: str, got: Tree, want: Tree) -> None:
    """AssertionError that names the first paths that differ."""
    assert got == want, f"{what}: {difference(got, want)}"


def same_side(what: str, got: Side, want: Side) -> None:
    """Compare trees, times, holes, and which names are names of one file."""
    same(what, got.tree, want.tree)
    for path, beside in want.besides.items():
        found = got.besides[path]
        assert (found.mtime_ns, found.data) == (beside.mtime_ns, beside.data), (
            f"{what}: {path!r} is {found}, was {beside}"
        )
    links = [{side.besides[path].inode: path for path in sorted(side.besides)} for side in (got, want)]
    groups = [
        sorted(inodes[side.besides[path].inode] for path in sorted(side.besides))
        for side, inodes in zip((got, want), links, strict=True)
    ]
    assert groups[0] == groups[1], f"{what}: other names are of one file"


def within(path: str, top: str) -> bool:
    """Is it `top`, or below?"""
    return path == top or path.startswith(top + "/")


class StackMatchesModel(RuleBasedStateMachine):
    """Any order of sessions leaves the stack and ModelStack showing the same tree."""

    xattr_namespace: ClassVar[XattrNamespace]
    parent: ClassVar[str]
    """Each example makes a directory of its own in it."""
    tally: ClassVar[Counter[str]]
    """What happened, over all examples: a machine that never meets a conflict proves nothing."""

    @initialize(
        tree=trees(),
        slack=st.sampled_from((capture.SLACK, 0, -1000)),
        seen=st.sampled_from((scanned.SEEN_MAX, 5)),
    )
    def begin(self, tree: Tree, slack: int, seen: int) -> None:
        scanned.SEEN_MAX = seen  # a part of what was looked at is remembered, as in large trees
        (capture.capture_tree.__kwdefaults__ or {})["slack"] = (
            slack  # with little slack, opaque marks stay, as they do in large directories
        )
        self.folder = tempfile.mkdtemp(dir=self.parent)
        self.root, self.look_at, self.empty = (
            os.path.join(self.folder, n) for n in ("store", "look", "empty")
        )
        os.mkdir(self.look_at)
        os.mkdir(self.empty)
        base = os.path.join(self.root, "base", "B000001-base")
        os.makedirs(base)
        write_tree(base, tree)
        Store.create(
            self.root,
            workspace_root="/workspace",
            base_root_hash="0" * 64,
            xattr_namespace=self.xattr_namespace,
        )
        self.open_store()
        self.model = ModelStack(tree, boxes=True)
        self.sessions: list[Session] = []
        self.drafts: dict[str, tuple[int, Tree]] = {}
        self.consumed: dict[str, tuple[int, Tree]] = {}
        self.held: list[tuple[contextlib.ExitStack, Snapshot]] = []
        self.count = 0
        self.besides: dict[int, Besides] = {}
        self.committed: dict[int, int] = {}
        self.standing_still = 0
        """Publishes that wait at a step for another one."""
        self.check_head()
        self.tally["examples"] += 1

    def open_store(self) -> None:
        self.store = Store.open(self.root)
        self.store.rules = PublishRules(units=(NamedUnits(BOX, f"**/{BOX}"),))

    def teardown(self) -> None:
        if not hasattr(self, "store"):
            return
        for session in self.sessions:
            with contextlib.suppress(OSError):
                session.hide()
        self.let_all_go()
        self.store.close()
        fsync.remove_tree(self.folder)

    # What is compared

    def look(self, snapshot: Snapshot, besides: Besides | None = None) -> Tree:
        """A version as the kernel shows it, without a session."""
        fd = overlay.create([*snapshot.lowerdirs, self.empty], xattr_namespace=self.xattr_namespace)
        syscalls.move_mount(fd, self.look_at)
        os.close(fd)
        try:
            return read_tree(self.look_at, besides)
        finally:
            syscalls.umount(self.look_at)

    def check_projection(self, snapshot: Snapshot, want: Tree) -> None:
        """The same version, read without a mount."""
        kinds = {"file": FILE, "symlink": LINK, "directory": DIRECTORY}
        bare = {path: entry._replace(xattrs=()) for path, entry in want.items()}
        got: Tree = {}

        def visit(path: str) -> None:
            entry = snapshot.stat(path)
            assert entry is not None, f"{path!r} is listed, but stat says absent"
            body = b""
            if entry.kind == "file":
                body = snapshot.read_bytes(path)
            elif entry.kind == "symlink":
                body = os.fsencode(os.readlink(entry.real_path))
            got[path] = Entry(kinds[entry.kind], (entry.mode & 0o7777, entry.uid, entry.gid), body)
            if entry.kind == "directory":
                for child in snapshot.list(path):
                    visit(child.path)

        visit("")
        same("projection of the head", got, bare)

    def check_conflicts(
        self, what: str, conflicts: Sequence[Conflict], want: Verdict, base: int, ours: Tree
    ) -> None:
        got = {c.path: c.cls for c in conflicts}
        differ = [
            path for path in got.keys() | want.conflicts.keys() if got.get(path) != want.conflicts.get(path)
        ]
        assert not differ, (
            f"{what}: {got} != {want.conflicts}: {self.three(base, ours, self.model.head, differ)}"
        )
        for c in conflicts:
            three = tuple(
                fingerprint(tree.get(c.path)) for tree in (self.model.versions[base], ours, self.model.tree())
            )
            assert (c.base, c.ours, c.theirs) == three, f"{what}: {c} should show {three}"

    def three(self, base: int, ours: Tree, head: int, paths: Iterable[str]) -> str:
        """What base, session and head have at and below some paths, for a message."""
        trees = (self.model.versions[base], ours, self.model.versions[head])
        some = sorted({p for tree in trees for p in tree for path in paths if within(p, path)})
        return "; ".join(f"{p!r}: {[tree.get(p) for tree in trees]}" for p in some[:8])

    @invariant()
    def same_version(self) -> None:
        if hasattr(self, "store"):
            assert self.store.head.version == self.model.head
            assert set(self.store.pinned()) <= set(self.openable())
            assert sorted(d.draft_id for d in self.store.drafts()) == sorted(self.drafts)
            assert not disagreement(self.store)

    def check_head(self) -> None:
        snapshot, besides = self.store.snapshot(), Besides()
        same(f"head {self.model.head}", self.look(snapshot, besides), self.model.tree())
        self.check_projection(snapshot, self.model.tree())
        self.besides[self.model.head] = besides
        self.committed.setdefault(self.model.head, time.time_ns())

    def side(self, version: int) -> Side:
        """A version with what stands beside it, as it was last looked at."""
        return Side(self.model.versions[version], self.besides[version])

    # Steps shared by rules

    def add_session(
        self, draft_id: str | None = None, version: int | None = None, draft_base: str = "own"
    ) -> Session:
        self.count += 1
        mount = os.path.join(self.folder, f"m{self.count}")
        os.mkdir(mount)
        taken = {session.upper.session_id for session in self.sessions}
        name = next(
            name for name in (f"session-{n}" for n in itertools.count(1)) if name not in taken
        )  # those of ended ones come again
        upper = self.store.open_upper(
            name,
            origin=f"workspace_session:{name}",
            draft_id=draft_id,
            version=version,
            draft_base=draft_base,
        )
        session = Session(upper, mount, upper.snapshot.version, draft_id)
        session.show()
        session.opened = read_tree(mount) if draft_id is not None else {}
        self.sessions.append(session)
        return session

    def stays_its_draft(self, session: Session, ours: Tree) -> bool:
        """Is nothing in it that the draft has not which it stands on? (Times may differ: that is work
        too.)
        """
        return session.draft_id in self.drafts and ours == session.opened

    def preview_of(self, session: Session) -> tuple[Tree, Verdict]:
        """Looks at the session and at what its publish would say; neither changes it."""
        ours = read_tree(session.mount)
        want = self.model.preview(session.base, ours)
        got = session.upper.preview()
        self.check_conflicts("preview", got.conflicts, want, session.base, ours)
        would = not want.conflicts and want.tree != self.model.tree()
        assert got.would_publish == would, f"would publish: got {got.would_publish}, want {would}"
        same("session after a preview", read_tree(session.mount), ours)
        return ours, want

    def finish(
        self,
        session: Session,
        *,
        previewed: bool,
        to_draft: bool,
        overtaken: tuple[str, Callable[[], object]] | None = None,
    ) -> None:
        """Publishes; rejected work is still in the session, or goes on as a draft.

        `overtaken`: the name of a step between its plan and its commit, and what somebody else does there.
        """
        if previewed:
            self.preview_of(session)
        besides = Besides()
        ours = read_tree(session.mount, besides)
        found = self.model.head
        session.hide()
        try:
            with self.standing(*overtaken) if overtaken else contextlib.nullcontext():
                published: Published = self.store.publish(
                    session.upper, owner=session.upper.session_id, request_id=f"request-{self.count}"
                )
        except PublishRejected as rejected:
            head, want = self.model.head, self.model.preview(session.base, ours)
            self.tally["rejected"] += 1
            assert want.conflicts, (
                f"rejected for {[(c.path, c.cls) for c in rejected.conflicts]}, the model publishes"
            )
            self.check_conflicts("rejection", rejected.conflicts, want, session.base, ours)
            assert (rejected.base, rejected.head) == (session.base, head)
            self.check_head()
            session.show()
            same("session after its rejection", read_tree(session.mount), ours)
            if to_draft:
                self.make_draft(session, ours, reason="source_conflict")
            return
        self.sessions.remove(session)
        head = (
            published.manifest.version if published.no_op else self.model.head
        )  # a no-op says which head has it all
        want = self.model.publish(session.base, ours, on=head)
        assert not want.conflicts, (
            f"published, the model rejects {want.conflicts}: "
            f"{self.three(session.base, ours, head, want.conflicts)}"
        )
        self.tally[
            "no-op"
            if published.no_op
            else "published on a moved head"
            if session.base < head
            else "published"
        ] += 1
        self.tally["notices"] += bool(published.notices)
        assert published.no_op == (want.tree == self.model.versions[head]), (
            f"no-op: got {published.no_op}, the model went from {head}"
        )
        assert published.no_op or published.manifest == self.store.head
        assert found <= head <= self.store.head.version
        if session.draft_id in self.drafts and not published.no_op:
            self.consumed[session.draft_id] = self.drafts.pop(session.draft_id)
        try:
            self.check_head()
        except AssertionError as error:
            paths = [path for path in list(want.tree) if path and repr(path) in str(error)]
            error.add_note(
                f"published from {session.base} onto {head}: {self.three(session.base, ours, head, paths)}"
            )
            raise
        if not published.no_op:
            sides = self.side(session.base), Side(ours, besides), self.side(head), self.side(self.model.head)
            between = tuple(
                self.besides[version] for version in range(session.base + 1, head) if version in self.besides
            )
            lost = kept.broken(kept.Act(*sides, session.base != head, self.committed[session.base], between))
            assert not lost, f"published from {session.base} onto {head}: {lost}"

    @contextlib.contextmanager
    def standing(self, at: str, act: Callable[[], object]) -> Generator[None]:
        """When the block comes to step `at` for the first time it stands still until `act` is done."""

        def step(name: str) -> None:
            if name == at:
                self.store.step = fsync.no_step
                self.tally["overtaken"] += 1
                self.standing_still += 1
                act()
                self.standing_still -= 1

        self.store.step = step
        try:
            yield
        finally:
            self.store.step = fsync.no_step

    def make_draft(self, session: Session, ours: Tree, *, reason: str) -> None:
        session.hide()
        self.sessions.remove(session)
        draft = session.upper.to_draft(reason=reason)
        if ours == self.model.versions[session.base]:
            assert draft is None, f"nothing was changed, yet there is the draft {draft}"
            return
        assert draft is not None, "the work is in no draft"
        if draft.draft_id in self.drafts:
            assert draft.draft_id == session.draft_id and self.stays_its_draft(session, ours)
            self.tally["stayed one draft"] += 1
            return
        assert (draft.base_version, draft.reason) == (session.base, reason)
        self.drafts[draft.draft_id] = (session.base, ours)

    def a_session(self, which: int) -> Session:
        return self.sessions[which % len(self.sessions)]

    def a_draft(self, which: int) -> str:
        return sorted(self.drafts, key=list(self.drafts).index)[which % len(self.drafts)]

    # Rules

    which = st.integers(0, 7)

    @precondition(lambda self: len(self.sessions) < MOST_SESSIONS)
    @rule(edits=few_ops, back=st.just(0) | st.integers(0, 5))
    def open(self, edits: list[Op], back: int) -> None:
        """On the head, or that many openable versions before it."""
        versions = self.openable()
        session = self.add_session(version=versions[-1 - back % len(versions)])
        self.work(session, edits)

    def openable(self) -> list[int]:
        return sorted(int(name.partition(".")[0]) for name in os.listdir(f"{self.root}/manifests"))

    def work(self, session: Session, edits: list[Op], within: str = "") -> None:
        hand = Hand(session.mount)
        for op in edits:
            self.tally["edits"] += hand.do(op, within)

    @precondition(lambda self: self.sessions)
    @rule(which=which, edits=few_ops)
    def edit(self, which: int, edits: list[Op]) -> None:
        self.work(self.a_session(which), edits)

    @precondition(lambda self: self.sessions)
    @rule(which=which)
    def preview(self, which: int) -> None:
        self.preview_of(self.a_session(which))

    @precondition(lambda self: self.sessions)
    @rule(which=which, previewed=st.booleans(), to_draft=st.booleans())
    def publish(self, which: int, previewed: bool, to_draft: bool) -> None:
        self.finish(
            self.a_session(which), previewed=previewed, to_draft=to_draft and len(self.drafts) < MOST_DRAFTS
        )

    @precondition(lambda self: len(self.sessions) <= 2)
    @rule(
        one=few_ops,
        two=few_ops,
        three=st.lists(few_ops, max_size=1),
        turned=st.booleans(),
        aim=st.none() | st.integers(0, 15),
        inside=st.none() | st.integers(0, 15),
        carried=st.booleans(),
        between=st.none() | st.sampled_from(STANDING),
    )
    def at_once(
        self,
        one: list[Op],
        two: list[Op],
        three: list[list[Op]],
        turned: bool,
        aim: int | None,
        inside: int | None,
        carried: bool,
        between: str | None,
    ) -> None:
        """Two or three sessions on one version, published one after the other; what is rejected becomes a
        draft or is thrown away. `carried`: each goes over to the head first. `between`: each but the first
        commits while the publish before it stands at that step.

        With an `aim` all of them choose the same path, as far as their trees let them; with `inside` all work
        in one directory.
        """
        folders = sorted((p for p, e in self.model.tree().items() if e.is_dir and p), key=os.fsencode)
        within = folders[inside % len(folders)] if inside is not None and folders else ""
        sessions: list[Session] = []
        for edits in (one, two, *three):
            sessions.append(self.add_session())
            self.work(sessions[-1], edits if aim is None else [op.aimed(aim) for op in edits], within)
        waiting = list(reversed(sessions) if turned else sessions)

        def settle() -> None:
            session = waiting.pop(0)
            if carried:
                self.carry_over(session)
            overtaken = (between, settle) if between is not None and waiting else None
            self.finish(
                session, previewed=False, to_draft=len(self.drafts) < MOST_DRAFTS, overtaken=overtaken
            )
            if session in self.sessions:
                self.drop(session)

        while waiting:
            settle()

    def drop(self, session: Session) -> None:
        session.hide()
        self.sessions.remove(session)
        assert session.upper.discard() >= 0

    @precondition(lambda self: self.sessions)
    @rule(which=which)
    def discard(self, which: int) -> None:
        self.drop(self.a_session(which))

    @precondition(lambda self: self.sessions and len(self.drafts) < MOST_DRAFTS)
    @rule(which=which)
    def put_aside(self, which: int) -> None:
        session = self.a_session(which)
        self.make_draft(session, read_tree(session.mount), reason="put aside")

    @precondition(lambda self: self.drafts and len(self.sessions) < MOST_SESSIONS)
    @rule(which=which, edits=few_ops)
    def reopen_draft(self, which: int, edits: list[Op]) -> None:
        """A session on a draft shows the draft's own bytes; what it does leaves the draft whole."""
        draft_id = self.a_draft(which)
        base, ours = self.drafts[draft_id]
        session = self.add_session(draft_id=draft_id)
        assert session.base == base
        self.tally["drafts reopened"] += 1
        same("reopened draft", read_tree(session.mount), ours)
        self.work(session, edits)

    @precondition(lambda self: self.drafts and len(self.sessions) < MOST_SESSIONS)
    @rule(which=which, edits=few_ops)
    def rebase_draft(self, which: int, edits: list[Op]) -> None:
        """A session on a draft that is carried over to the head shows the merge, or is refused with what a
        publish would say.
        """
        draft_id = self.a_draft(which)
        base, ours = self.drafts[draft_id]
        want = self.model.preview(base, ours)
        try:
            session = self.add_session(draft_id=draft_id, draft_base="head")
        except PublishRejected as rejected:
            self.check_conflicts("rebase", rejected.conflicts, want, base, ours)
            assert want.conflicts
            return
        assert not want.conflicts, f"rebased, the model finds {want.conflicts}"
        assert session.base == self.model.head
        self.tally["drafts rebased"] += 1
        same("rebased draft", read_tree(session.mount), want.tree)
        self.work(session, edits)

    @precondition(lambda self: self.sessions)
    @rule(which=which, edits=few_ops)
    def rebase_session(self, which: int, edits: list[Op]) -> None:
        session = self.a_session(which)
        if self.carry_over(session):
            self.work(session, edits)

    @precondition(lambda self: self.sessions)
    @rule(which=which, edits=few_ops)
    def checkpoint(self, which: int, edits: list[Op]) -> None:
        """It shows the same afterwards, with the same times and links."""
        session = self.a_session(which)
        before = session.remounted()
        session.hide()
        made = session.upper.checkpoint()
        session.show()
        same_side("session after a checkpoint", session.shows(), before)
        session.checkpoints[made.checkpoint.checkpoint_id] = before
        for one in made.dropped:
            del session.checkpoints[one.checkpoint_id]
        self.tally["checkpoints"] += 1
        self.work(session, edits)

    @precondition(lambda self: any(session.checkpoints for session in self.sessions))
    @rule(which=which, back=st.integers(0, 5), edits=few_ops)
    def restore(self, which: int, back: int, edits: list[Op]) -> None:
        """Any checkpoint shows what it showed; the state before can be restored too."""
        some = [session for session in self.sessions if session.checkpoints]
        session = some[which % len(some)]
        ids = list(session.checkpoints)
        wanted = ids[-1 - back % len(ids)]
        before = session.remounted()
        session.hide()
        done = session.upper.restore(wanted)
        session.show()
        same_side(f"session after a restore of {wanted}", session.shows(), session.checkpoints[wanted])
        if done.undo is not None:
            undo = done.undo.checkpoint_id
            if undo in session.checkpoints:
                same_side("checkpoint of the state before", session.checkpoints[undo], before)
            session.checkpoints[undo] = before
        for one in done.dropped:
            del session.checkpoints[one.checkpoint_id]
        assert [one.checkpoint_id for one in session.upper.saved.checkpoints] == list(session.checkpoints)
        self.tally["restores"] += 1
        self.work(session, edits)

    def carry_over(self, session: Session) -> bool:
        """The session goes on with the merge on the head; or False: it is refused with what a publish would
        say, and shows what it showed.
        """
        ours = read_tree(session.mount)
        want, behind = self.model.preview(session.base, ours), session.base < self.model.head
        session.hide()
        try:
            done = session.upper.rebase()
        except PublishRejected as rejected:
            assert want.conflicts, (
                f"refused for {[(c.path, c.cls) for c in rejected.conflicts]}, the model merges"
            )
            self.check_conflicts("rebase of a session", rejected.conflicts, want, session.base, ours)
            self.tally["rebases refused"] += 1
            session.show()
            same("session after a refused rebase", read_tree(session.mount), ours)
            return False
        assert not want.conflicts, f"carried over, the model finds {want.conflicts}"
        assert (done.from_version, done.to_version) == (session.base, self.model.head)
        session.base = session.upper.snapshot.version
        if behind:
            assert [one.checkpoint_id for one in done.checkpoints] == list(session.checkpoints)
            session.checkpoints.clear()
        assert session.base == self.model.head and (
            self.standing_still or not os.listdir(f"{self.root}/staging")
        )
        session.show()
        shown = read_tree(session.mount)
        same("session on the head", shown, want.tree)
        differ = sum(ours.get(path) != shown.get(path) for path in ours.keys() | shown.keys())
        assert done.updated + done.merged == differ and min(done.updated, done.merged) >= 0, (
            f"{done}, {differ} paths look different"
        )
        self.tally["sessions rebased"] += behind
        self.tally["rebases that merged"] += bool(done.merged)
        return True

    @precondition(lambda self: self.drafts)
    @rule(which=which)
    def preview_draft(self, which: int) -> None:
        draft_id = self.a_draft(which)
        base, ours = self.drafts[draft_id]
        got = self.store.preview_draft(draft_id)
        self.check_conflicts("preview of a draft", got.conflicts, self.model.preview(base, ours), base, ours)

    @precondition(lambda self: self.drafts)
    @rule(which=which)
    def discard_draft(self, which: int) -> None:
        draft_id = self.a_draft(which)
        if any(session.draft_id == draft_id for session in self.sessions):
            with pytest.raises(Busy):
                self.store.discard_draft(draft_id)
            return
        assert self.store.discard_draft(draft_id) >= 0
        del self.drafts[draft_id]

    @rule(which=which, line=st.integers(0, 3))
    def update_file(self, which: int, line: int) -> None:
        """A file of the head, read, changed and published without a session."""
        tree = self.model.tree()
        files = sorted((p for p, e in tree.items() if e.kind == FILE), key=os.fsencode)
        if not files:
            return
        path = files[which % len(files)]
        added = b"updated %d\n" % line if line else b""
        before, began = self.side(self.model.head), time.time_ns()
        published = self.store.update_file(
            path, lambda old: (old or b"") + added, owner="update", request_id=f"update-{self.count}"
        )
        assert published.no_op == (not added)
        if added:
            entry = tree[path]
            self.model.versions[self.model.head + 1] = {**tree, path: entry._replace(body=entry.body + added)}
        self.check_head()
        self.check_reshaped(before, began, written=path if added else None)

    @rule(which=which)
    def delete_path(self, which: int) -> None:
        """Something of the head, with all that is in it, deleted without a session."""
        tree = self.model.tree()
        paths = sorted((path for path in tree if path), key=os.fsencode)
        if not paths:
            return
        path = paths[which * 7 % len(paths)]
        before, began = self.side(self.model.head), time.time_ns()
        done = self.store.delete_path(path, Author("delete", f"delete-{self.count}", None), recursive=True)
        assert not done.published.no_op and done.kind == tree[path].kind
        self.model.versions[self.model.head + 1] = {p: e for p, e in tree.items() if not within(p, path)}
        self.tally["deleted"] += 1
        self.check_head()
        self.check_reshaped(before, began)

    def check_reshaped(
        self, before: Side, began_ns: int, written: str | None = None, moved: tuple[str, str] | None = None
    ) -> None:
        lost = kept.reshaped(before, self.side(self.model.head), began_ns, written, moved)
        assert not lost, f"without a session: {lost}"

    @rule(which=which, where=which, name=names, overwrite=st.booleans())
    def move_path(self, which: int, where: int, name: str, overwrite: bool) -> None:
        """Something of the head moved without a session, as rename(2) does, or refused as rename(2) refuses
        it.
        """
        tree = self.model.tree()
        paths = sorted((path for path in tree if path), key=os.fsencode)
        folders = sorted((path for path, entry in tree.items() if entry.is_dir), key=os.fsencode)
        if not paths:
            return
        source, folder = paths[which * 7 % len(paths)], folders[where * 7 % len(folders)]
        target = f"{folder}/{name}" if folder else name
        if within(target, source):
            return
        over, directory = tree.get(target), tree[source].is_dir
        refused: type[LayerStackError] | None = None
        if over is not None:
            full = over.is_dir and any(within(p, target) and p != target for p in tree)
            refused = (
                AlreadyExists
                if not overwrite
                else NotAFile
                if over.is_dir and not directory
                else NotEmpty
                if full
                else None
            )
            if refused is None and directory and not over.is_dir:
                refused = NotADirectory

        def move() -> Reshaped:
            return self.store.move_path(
                source, target, Author("move", f"move-{self.count}", None), overwrite=overwrite
            )

        if refused is not None:
            with pytest.raises(refused):
                move()
            return
        before, began = self.side(self.model.head), time.time_ns()
        assert not move().published.no_op
        rest = {p: e for p, e in tree.items() if not within(p, source) and not within(p, target)}
        moved = {target + p[len(source) :]: e for p, e in tree.items() if within(p, source)}
        self.model.versions[self.model.head + 1] = {**rest, **moved}
        self.tally["moved"] += 1
        self.check_head()
        self.check_reshaped(before, began, moved=(source, target))

    @rule()
    def reopen(self) -> None:
        """The process that had the store is gone: what its sessions had written is in drafts."""
        lost: list[tuple[int, Tree]] = []
        stay: list[tuple[int, Tree]] = []
        for session in self.sessions:
            lost.append((session.base, ours := read_tree(session.mount)))
            if self.stays_its_draft(session, ours):
                stay.append(lost[-1])
            session.hide()
        self.sessions.clear()
        self.let_all_go()
        self.store.close()
        self.open_store()
        self.drafts.update(
            {i: self.consumed[i] for i in self.consumed if i in {d.draft_id for d in self.store.drafts()}}
        )
        work = [(base, tree) for base, tree in lost if tree != self.model.versions[base]]
        count = len(self.store.recovered)
        assert len(work) - len(stay) <= count <= len(work), (
            f"{len(work)} sessions held work, {count} drafts were recovered"
        )
        for draft in self.store.recovered:
            session = self.add_session(draft_id=draft.draft_id)
            shown = read_tree(session.mount)
            assert (session.base, shown) in work, f"the recovered {draft} is no session's work"
            work.remove((session.base, shown))
            self.tally["recovered"] += 1
            self.drafts[draft.draft_id] = (session.base, shown)
            self.drop(session)
        while len(self.drafts) > MOST_DRAFTS:
            self.discard_draft(0)
        self.check_head()

    @rule(
        cut=st.sampled_from(("", "", "", "squash.close_versions", "squash.drafts", "squash.remove_layers")),
        swept=st.booleans(),
    )
    def squash(self, cut: str, swept: bool = False) -> None:
        """No tree shows it: not the head's, not an earlier version's, not a session's, not a draft's. With a
        `cut` it is left there for the next open; `swept`: what was folded is collected at once.
        """
        views = [(session, read_tree(session.mount)) for session in self.sessions]
        done = self.squash_until(cut)
        before = self.besides[self.model.head]
        if done is None or done.blocks:
            self.model.versions[self.model.head + 1] = self.model.tree()
            self.tally["squashes"] += 1
        if swept and done is not None:
            self.gc()
        for session, tree in views:
            same("session after a squash", read_tree(session.mount), tree)
        if done is None:
            self.reopen()
        self.check_head()
        self.same_times("the head after a squash", self.besides[self.model.head], before)
        self.check_versions()

    @staticmethod
    def same_times(what: str, got: Besides, want: Besides) -> None:
        """A squash gives nothing another time."""
        differ = [path for path in want if got[path].mtime_ns != want[path].mtime_ns]
        assert not differ, (
            f"{what}: {[(path, got[path].mtime_ns, want[path].mtime_ns) for path in differ[:4]]}"
        )

    def squash_until(self, cut: str) -> Squashed | None:
        """None: it was cut off at that step, with its new head on disk."""

        class Cut(BaseException):
            pass

        def step(name: str) -> None:
            if name == cut:
                raise Cut

        self.store.step = step
        try:
            return self.store.squash()
        except Cut:
            return None
        finally:
            self.store.step = fsync.no_step

    def check_versions(self) -> None:
        """Every version that can be opened shows what it did, times and all; what no lease keeps is gone."""
        for version in self.openable():
            besides = Besides()
            same(
                f"version {version}",
                self.look(self.store.snapshot(version), besides),
                self.model.versions[version],
            )
            self.same_times(f"version {version}", besides, self.besides[version])
        needed = {layer_id for lease in self.store.leases.all() for layer_id in lease.layer_ids} | set(
            self.store.head.layer_ids
        )
        left = set(os.listdir(f"{self.root}/layers")) - needed
        assert not left, f"layers that nobody needs are left: {left}"

    @rule(refused=st.sampled_from(REFUSED), full=st.booleans(), by=st.sampled_from((errno.ENOSPC, errno.EIO)))
    def squash_on_a_bad_disk(self, refused: str, full: bool, by: int) -> None:
        """The disk refuses what comes after the commit. Nothing is lost, not even to a gc on that disk, which
        by then may be so `full` that it can delete but not write; a gc on a sound one finishes.
        """
        done = False

        def step(name: str) -> None:
            if name == ("squash.rewrite_version" if done and full else refused):
                raise OSError(by, os.strerror(by), name)

        self.store.step = step
        try:
            if self.store.squash().blocks:
                self.model.versions[self.model.head + 1] = self.model.tree()
                self.tally["squashes on a bad disk"] += 1
            done = True
            self.store.gc()
            self.check_drafts()
            newest_first = self.store.layers.of(self.store.manifest(None))
            for version in (v for v in self.openable() if version_files.place(newest_first, v) is not None):
                same(
                    f"version {version}",
                    self.look(self.store.snapshot(version)),
                    self.model.versions[version],
                )
        finally:
            self.store.step = fsync.no_step
        self.store.gc()
        self.check_head()
        self.check_versions()

    def check_drafts(self) -> None:
        """Every draft can be read, and says what it changed: on its base, and beside the head."""
        for draft_id, (base, ours) in self.drafts.items():
            for against in ("base", "head"):
                self.compare_draft(draft_id, against, base, ours)

    def compare_draft(self, draft_id: str, against: str, base: int, ours: Tree) -> None:
        before, head = self.model.versions[base], self.model.tree()
        want = {path for path in before.keys() | ours.keys() if before.get(path) != ours.get(path)}
        if against == "head":
            want = {path for path in want if head.get(path) != ours.get(path)}
        other = before if against == "base" else head
        at, got = 0, list[str]()
        while True:
            page = history.diff_draft(self.store, draft_id, against=against, start=at)
            for change in page.changes:
                got.append(change.path)
                three = tuple(fingerprint(tree.get(change.path)) for tree in (before, other, ours))
                assert (change.base, change.old, change.new) == three, (
                    f"{draft_id} against its {against}: {change}, not {three}"
                )
            if page.next is None:
                break
            at = page.next
        assert got == sorted(want, key=os.fsencode), (
            f"{draft_id} against its {against}: got {got}, want {sorted(want)}"
        )

    @precondition(lambda self: self.drafts)
    @rule(which=which, against=st.sampled_from(("base", "head")))
    def look_at_a_draft(self, which: int, against: str) -> None:
        """What a draft changed, without a session: no path more and none fewer, with its three states."""
        draft_id = self.a_draft(which)
        self.compare_draft(draft_id, against, *self.drafts[draft_id])

    @precondition(lambda self: len(self.held) < MOST_HELD)
    @rule(which=which)
    def hold(self, which: int) -> None:
        """Somebody exports a version: for as long as that takes it stays whole, whatever is published,
        squashed and swept meanwhile.
        """
        versions = self.openable()
        stack = contextlib.ExitStack()
        self.held.append((stack, stack.enter_context(self.store.lease(versions[which % len(versions)]))))
        self.tally["held"] += 1

    @precondition(lambda self: self.held)
    @rule(which=which)
    def let_go(self, which: int) -> None:
        """What it showed in the end is what it showed at first, and the stream of it leads from the base
        there.
        """
        stack, snapshot = self.held.pop(which % len(self.held))
        with stack:
            want = self.model.versions[snapshot.version]
            besides = Besides()
            same(f"held version {snapshot.version}", self.look(snapshot, besides), want)
            self.check_export(snapshot, want)
            self.check_delivery(snapshot, Side(want, besides))

    def let_all_go(self) -> None:
        while self.held:
            self.held.pop()[0].close()

    def check_export(self, snapshot: Snapshot, want: Tree) -> None:
        """The delta of a version, applied to the base by whoever reads the stream. Owners and the root are no
        part of it.
        """
        got = dict(self.model.versions[1])

        def remove(path: str) -> None:
            for gone in [p for p in got if p == path or p.startswith(path + "/")]:
                del got[gone]

        for entry in flatten_changes(snapshot, xattrs=True):
            header, real = entry.header, entry.real_path
            path, there = os.fsdecode(header.path), got.get(os.fsdecode(header.path))
            assert path and all(a in got and got[a].is_dir for a in ancestors(path)), (
                f"{path!r} comes before its directory"
            )
            if header.kind or header.type != pax.DIRECTORY or (there is not None and not there.is_dir):
                remove(path)
            if header.kind == pax.WHITEOUT:
                assert there is not None, f"the stream deletes {path!r}, which is not there"
                continue
            body = header.target if header.type == pax.SYMLINK else b""
            xattrs = tuple(sorted((os.fsdecode(name), value) for name, value in header.xattrs.items()))
            if header.type == pax.HARD_LINK:
                first = got[os.fsdecode(header.target)]
                body, xattrs = first.body, first.xattrs
            elif real is not None:
                with open(real, "rb") as file:
                    body = file.read()
            kind = {pax.DIRECTORY: DIRECTORY, pax.SYMLINK: LINK}.get(header.type, FILE)
            got[path] = Entry(kind, (0o777 if kind == LINK else header.mode, 0, 0), body, xattrs)
        bare = [{p: e._replace(meta=(e.meta[0], 0, 0)) for p, e in tree.items() if p} for tree in (got, want)]
        same(f"the stream of version {snapshot.version}", bare[0], bare[1])
        self.tally["exported"] += 1

    def check_delivery(self, snapshot: Snapshot, version: Side) -> None:
        """The same, written to a person's directory."""
        self.count += 1
        folder = os.path.join(self.folder, f"delivered-{self.count}")
        os.mkdir(folder)
        wrong = delivered.delivery(
            snapshot, self.root, folder, self.model.versions[1], version, Random(self.count)
        )
        assert not wrong, f"version {snapshot.version} in a person's directory: {wrong}"
        fsync.remove_tree(folder)
        self.tally["delivered"] += 1

    @rule(which=which)
    def rollback(self, which: int) -> None:
        """The head shows an earlier version, by one layer; every version in between stays as it is."""
        versions = sorted(self.openable())
        version = versions[which % len(versions)]
        wanted, head = self.model.versions[version], self.model.head
        done = self.store.rollback(version, owner="rollback", request_id=f"rollback-{self.count}")
        assert done.no_op == (wanted == self.model.tree())
        if not done.no_op:
            assert done.manifest.version == head + 1
            self.model.versions[head + 1] = wanted
            self.tally["rollbacks"] += 1
        self.check_head()

    @rule(which=which, other=which)
    def compare(self, which: int, other: int) -> None:
        """The difference of two versions is the paths that differ, no more and no fewer."""
        versions = sorted(self.openable())
        old, new = versions[which % len(versions)], versions[other % len(versions)]
        one, two = self.model.versions[old], self.model.versions[new]
        want = sorted(
            (path for path in one.keys() | two.keys() if one.get(path) != two.get(path)), key=os.fsencode
        )
        got = delta(self.store.snapshot(old).chain, self.store.snapshot(new).chain)
        assert got == want, f"from {old} to {new}: got {got}, want {want}"
        listed, _ = history.versions(self.store)
        assert [version.version for version in listed] == versions[::-1]
        assert {version.version for version in listed if version.pinned} == self.store.pinned().keys()

    @rule(which=which, off=st.booleans())
    def pin(self, which: int, off: bool) -> None:
        """A pinned version stays openable, whatever is squashed; no more than two at a time, or nothing
        is.
        """
        versions = sorted(self.openable())
        version = versions[which % len(versions)]
        if off or len(self.store.pinned()) >= 2:
            for pinned in self.store.pinned():
                assert self.store.unpin_version(pinned)
            return
        self.store.pin_version(version)
        self.tally["pins"] += 1

    @rule()
    def gc(self) -> None:
        self.store.gc()
        left = os.listdir(os.path.join(self.root, "staging"))
        assert not left, f"gc left {left} in staging"
        assert not disagreement(self.store)
        self.check_head()


LAST: Counter[str] = Counter()
"""What happened in the last run of this process, also when it failed."""


def in_memory(folder: str) -> str:
    """A tmpfs in it, which waits for no disk; the folder itself where tmpfs holds no user xattrs (before
    Linux 6.6).
    """
    memory = os.path.join(folder, "memory")
    os.mkdir(memory)
    try:
        syscalls.mount("tmpfs", memory, "tmpfs", 0, "mode=755")
        os.setxattr(memory, "user.probe", b"")
        os.removexattr(memory, "user.probe")
    except OSError:
        return folder
    return memory


def run(
    namespace: str,
    parent: str,
    *,
    examples: int,
    steps: int = 20,
    seed: int | None = None,
    shrink: bool = True,
) -> Counter[str]:
    """The machine, `examples` times; in a child that may mount. `parent` is a directory that this process may
    write to.

    Returns what happened, counted. Raises whatever the first failing example raises, after hypothesis has
    printed the shortest one that it found.
    """
    parent = in_memory(parent)

    class Machine(StackMatchesModel):
        pass

    LAST.clear()
    warnings.filterwarnings(
        "ignore", "The recursion limit will not be reset", HypothesisWarning
    )  # the store raises it
    Machine.xattr_namespace, Machine.parent, Machine.tally = XATTR_NAMESPACES[namespace], parent, LAST
    phases = (Phase.generate, Phase.shrink) if shrink else (Phase.generate,)
    how = settings(
        max_examples=examples,
        stateful_step_count=steps,
        deadline=None,
        database=None,
        derandomize=seed is None,
        phases=phases,
        suppress_health_check=(HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much),
        print_blob=False,
        report_multiple_bugs=False,
    )
    if seed is not None:
        seeded(seed)(Machine)
    run_state_machine_as_test(Machine, settings=how)
    return LAST
