"""One history of a store that passes every durable step once or more, and the checks that must hold wherever
it is cut off.

`play` writes each act to a journal before and after it. `check` opens the remains and compares them with the
journal: the head is the last acknowledged one or the one in progress, work is in a draft or published, and gc
leaves no garbage.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
from collections.abc import Callable, Generator
from typing import NamedTuple

from layerstack.errors import PublishRejected
from layerstack.kernel import overlay, syscalls
from layerstack.kernel.fsync import Step
from layerstack.kernel.xattrs import XATTR_NAMESPACES, XattrNamespace
from layerstack.layers.snapshot import Snapshot
from layerstack.model.resolution import MARKERS, Choice
from layerstack.publish.drafts import Draft
from layerstack.recovery.dead_sessions import DIED
from layerstack.session.upper import Upper
from layerstack.store import Store
from tests.trees import DIRECTORY, FILE, Entry, Tree, read_tree, write_tree

TEXT = b"".join(b"line %d\n" % n for n in range(1, 21))


def base_tree() -> Tree:
    owner = (os.geteuid(), os.getegid())
    folder, file = (0o755, *owner), (0o644, *owner)
    files = {
        "shared.txt": TEXT,
        "notes.txt": TEXT,
        "gone.txt": b"gone\n",
        "d/f": b"f\n",
        "d/g": b"g\n",
        "moved/x": b"x\n",
        "moved/y/z": b"z\n",
    }
    tree: Tree = {"": Entry(DIRECTORY, folder), ".gitignore": Entry(FILE, file, b"*.o\n")}
    tree.update({name: Entry(DIRECTORY, folder) for name in ("d", "moved", "moved/y")})
    tree.update({name: Entry(FILE, file, data) for name, data in files.items()})
    return tree


class Places(NamedTuple):
    """Paths of the history: the store, and mount points outside of it."""

    root: str
    mounts: str
    xattr_namespace: XattrNamespace


def prepare(folder: str, mounts: str, namespace: str) -> Places:
    """Make the base in `folder`, where a provider would mount it, and the mount points."""
    places = Places(os.path.join(folder, "store"), mounts, XATTR_NAMESPACES[namespace])
    for name in ("a", "b", "c", "d", "e", "f", "g", "h", "k", "w", "look", "empty"):
        os.makedirs(os.path.join(mounts, name), exist_ok=True)
    base = os.path.join(places.root, "base", "B000001-base")
    os.makedirs(base)
    write_tree(base, base_tree())
    return places


class Journal:
    """Journal of acts in progress and acknowledged ones, on another file system than the store: one JSON line
    each, written at once.
    """

    def __init__(self, path: str) -> None:
        self.path = path

    def note(self, what: str, value: str = "") -> None:
        with open(self.path, "a") as file:
            file.write(json.dumps([what, value]) + "\n")

    def read(self) -> list[tuple[str, str]]:
        if not os.path.exists(self.path):
            return []
        with open(self.path) as file:
            return [(what, value) for what, value in map(json.loads, file)]


@contextlib.contextmanager
def shown(upper: Upper, mount: str) -> Generator[str]:
    """Mount the session's view for the length of the block; afterwards the upper is unmounted."""
    fd = upper.mount()
    syscalls.move_mount(fd, mount)
    os.close(fd)
    try:
        yield mount
    finally:
        syscalls.umount(mount)


def put(folder: str, name: str, data: bytes) -> None:
    path = os.path.join(folder, name)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "wb") as file:
        file.write(data)


def get(folder: str, name: str) -> bytes:
    with open(os.path.join(folder, name), "rb") as file:
        return file.read()


def replace(folder: str, name: str, old: bytes, new: bytes) -> None:
    """Replace `old` by `new` in a text that has `old` once."""
    text = get(folder, name)
    assert text.count(old) == 1
    put(folder, name, text.replace(old, new))


def line(number: int, text: bytes) -> bytes:
    lines = TEXT.splitlines(keepends=True)
    lines[number] = text
    return b"".join(lines)


def play(
    places: Places,
    journal: Journal,
    step: Step,
    done: Callable[[], None] = lambda: None,
    trees: dict[int, Tree] | None = None,
) -> None:
    """Run the history. `done` is called after each acknowledgment, while no act is in progress; `trees`
    receives the tree of each version.
    """

    def acknowledge(what: str, value: str = "") -> None:
        journal.note(what, value)
        done()

    def published(version: int) -> None:
        acknowledge("head", str(version))
        if trees is not None:
            trees[version] = look(places, store.snapshot())

    def at(name: str) -> str:
        return os.path.join(places.mounts, name)

    hooks: dict[str, Callable[[], object]] = {}

    def hooked(name: str) -> None:
        step(name)
        hooks.pop(name, lambda: None)()

    journal.note("create")
    Store.create(
        places.root,
        workspace_root="/workspace",
        base_root_hash="0" * 64,
        xattr_namespace=places.xattr_namespace,
        step=step,
    )
    acknowledge("head", "1")
    store = Store.open(places.root, step=hooked)
    if trees is not None:
        trees[1] = look(places, store.snapshot())

    a, b, d = (store.open_upper(name, origin=f"workspace_session:{name}") for name in ("a", "b", "d"))
    with shown(a, at("a")) as m:
        put(m, "shared.txt", line(3, b"changed by a\n"))
        put(m, "new/deep/file", b"work of a\n")
        put(m, "out.o", b"ignored work of a\n")
        os.unlink(f"{m}/gone.txt")
        os.chmod(f"{m}/d", 0o700)
        os.mkdir(f"{m}/hollow")
    journal.note("work", "work of a")
    a.publish(owner="a", request_id="1")
    published(2)

    with shown(b, at("b")) as m:
        put(m, "shared.txt", line(3, b"changed by b\n"))
        put(m, "new/deep/b", b"work of b\n")
    journal.note("work", "work of b")
    try:
        b.publish(owner="b", request_id="2")
    except PublishRejected:
        acknowledge("rejected")
    with shown(b, at("b")) as m:
        put(m, "after", b"more work of b\n")
    journal.note("work", "more work of b")
    kept = b.to_draft(reason="source_conflict")
    assert kept is not None
    acknowledge("draft", f"{kept.draft_id}:work of b,more work of b")

    c = store.open_upper("c", origin="workspace_session:c")
    with shown(c, at("c")) as m:
        put(m, "notes.txt", line(2, b"work of c\n"))
        with contextlib.suppress(OSError):  # EXDEV in the user namespace
            os.rename(f"{m}/moved", f"{m}/elsewhere")
        os.unlink(f"{m}/d/f")
        os.unlink(f"{m}/d/g")
        os.rmdir(f"{m}/d")
        put(m, "d/again", b"made again\n")
        os.mkfifo(f"{m}/pipe")
    journal.note("work", "work of c")
    c.publish(owner="c", request_id="3")
    published(3)

    with shown(d, at("d")) as m:  # based on version 1: merged by lines, in a rewritten clone
        put(m, "notes.txt", line(15, b"work of d\n"))
        os.unlink(f"{m}/gone.txt")  # as a did
    journal.note("work", "work of d")
    d.publish(owner="d", request_id="4")
    published(4)

    journal.note("update")
    store.update_file("d/again", lambda old: (old or b"") + b"updated\n", owner="u", request_id="5")
    published(5)

    e = store.open_upper("e", origin="workspace_session:e", draft_id=kept.draft_id)
    with shown(e, at("e")) as m:
        put(m, "resolution", b"work of e\n")
    journal.note("work", "work of e")
    for refused in (e.rebase, lambda: e.publish(owner="e", request_id="6")):
        try:
            refused()
        except PublishRejected:
            acknowledge("rejected")
    second = e.to_draft(reason="source_conflict")
    assert second is not None
    acknowledge("draft", f"{second.draft_id}:work of b,more work of b,work of e")
    journal.note("discarding", kept.draft_id)
    store.discard_draft(kept.draft_id)
    acknowledge("discarded", kept.draft_id)

    g, h = (store.open_upper(name, origin=f"workspace_session:{name}") for name in ("g", "h"))
    with shown(g, at("g")) as m:
        put(m, "kept", b"work of g\n")
        replace(m, "notes.txt", b"line 9\n", b"line 9 by g\n")
        put(m, "new/deep/gone at once", b"")
        os.unlink(f"{m}/new/deep/gone at once")
    with shown(h, at("h")) as m:
        put(m, "d/h", b"work of h\n")
        shutil.rmtree(f"{m}/new")
        put(m, "new/deep/again", b"made again\n")
        put(m, "d/again", b"again by h\n")
    journal.note("work", "work of g")
    third = g.to_draft(reason="put aside")
    assert third is not None
    acknowledge("draft", f"{third.draft_id}:work of g")
    for version in (6, 7):
        journal.note("update")
        store.update_file("d/again", lambda old: (old or b"") + b"once more\n", owner="u", request_id="6")
        published(version)
    journal.note("squash")
    blocks = store.squash().blocks  # above the base of h and of the draft; and below it, what h is mounted on
    assert [(len(block.replaced_layer_ids), block.reclaimed) for block in blocks] == [
        (2, True),
        (3, False),
    ], blocks
    published(8)
    journal.note("work", "work of h")
    (resolved,) = h.rebase(Choice(MARKERS)).resolved
    assert (resolved.path, resolved.resolution) == ("d/again", MARKERS)
    acknowledge("rebased", "work of h")
    with shown(h, at("h")) as m:
        clash = get(m, "d/again")
        assert b"again by h\n|||||||" in clash and b"once more\n>>>>>>>" in clash, clash
        put(m, "d/again", b"updated\nonce more\nonce more\n")
        assert not os.path.exists(f"{m}/new/deep/file")
        put(m, "late", b"late work of h\n")
    journal.note("work", "late work of h")
    h.publish(owner="h", request_id="7")
    published(9)

    for pinned in ("9", "8"):  # with 9 the work of h outlives the rollback and the next squash
        journal.note("pinning", pinned)
        store.pin_version(int(pinned))
        acknowledge("pinned", pinned)
    journal.note("rollback")
    store.rollback(4, owner="r", request_id="8")
    published(10)
    journal.note("unpinning", "8")
    store.unpin_version(8)
    acknowledge("unpinned", "8")

    journal.note("update")
    store.update_file("notes.txt", lambda old: (old or b"") + b"a last line\n", owner="u", request_id="9")
    published(11)
    try:
        store.open_upper("no", origin="workspace_session:no", draft_id=second.draft_id, draft_base="head")
    except PublishRejected:
        acknowledge("rejected")
    k = store.open_upper("k", origin="workspace_session:k", draft_id=third.draft_id, draft_base="head")
    with shown(k, at("k")) as m:
        assert b"line 9 by g\n" in get(m, "notes.txt") and get(m, "notes.txt").endswith(b"a last line\n")
        put(m, "k", b"work of k\n")

    def overtaken() -> None:
        """Publish a file without a session during the publication of k."""
        journal.note("update")
        store.update_file("by the way", lambda old: b"x\n", owner="u", request_id="10")
        published(12)
        journal.note("work", "work of k")

    hooks["publish.sync_layer"] = overtaken
    journal.note("discarding", third.draft_id)
    journal.note("work", "work of k")
    k.publish(owner="k", request_id="11")
    published(13)
    acknowledge("discarded", third.draft_id)

    def refuse() -> None:
        raise OSError(errno.EIO, "the disk lets nothing go")

    hooks["squash.remove_layers"] = refuse  # so that the gc has something to collect
    journal.note("squash")
    folded = store.squash().blocks
    assert folded and not hooks, folded
    published(14)
    os.makedirs(os.path.join(places.root, "staging/left/over"))

    f = store.open_upper("f", origin="workspace_session:f")
    with shown(f, at("f")) as m:
        put(m, "thrown", b"thrown away\n")
    f.discard()
    store.gc()
    gone = {i for block in folded for i in block.replaced_layer_ids}
    assert gone.isdisjoint(os.listdir(os.path.join(places.root, "layers"))) and not os.listdir(
        os.path.join(places.root, "staging")
    )

    w = store.open_upper("w", origin="workspace_session:w")
    with shown(w, at("w")) as m:
        put(m, "w/left", b"work of w\n")
    journal.note("work", "work of w")
    store.close()
    acknowledge("closed")
    os.makedirs(os.path.join(places.root, "staging/left/again"))
    store = Store.open(places.root, step=hooked, recover=False)  # as the agent does: it serves first
    for removal in store.behind:
        removal()
    (dead,) = store.dead.all()
    last = store.dead.attempt(dead.session_id)
    assert last is not None and not store.dead.all()
    acknowledge("draft", f"{last.draft_id}:work of w")
    store.close()
    acknowledge("closed")


def look(places: Places, snapshot: Snapshot) -> Tree:
    """Return a version as a mount shows it."""
    fd = overlay.create(
        [*snapshot.lowerdirs, os.path.join(places.mounts, "empty")], xattr_namespace=places.xattr_namespace
    )
    target = os.path.join(places.mounts, "look")
    syscalls.move_mount(fd, target)
    os.close(fd)
    try:
        return read_tree(target)
    finally:
        syscalls.umount(target)


class Expected(NamedTuple):
    """The trees of an undisturbed run by version, including versions that the squash closed."""

    versions: dict[int, Tree]


class Violated(AssertionError):
    """A promise of the store does not hold after the cut."""


def demand(holds: bool, text: str) -> None:
    if not holds:
        raise Violated(text)


def check(places: Places, notes: list[tuple[str, str]], wanted: Expected, *, power_cut: bool = False) -> None:
    """Open the remains of a cut and compare them. With `power_cut`, only work that was not acknowledged may
    be gone.

    Raises:
        Violated: which promise does not hold.
    """
    heads = [int(value) for what, value in notes if what == "head"]
    if not heads:  # creation was cut off: it is done again
        Store.create(
            places.root,
            workspace_root="/workspace",
            base_root_hash="0" * 64,
            xattr_namespace=places.xattr_namespace,
        )
        heads = [1]
    acknowledged = heads[-1]
    store = Store.open(places.root)
    try:
        recovered = (*store.recovered, *_asked_for(store))
        now = store.head.version
        under_way = notes[-1][0] in ("work", "update", "squash", "rollback") if notes else False
        possible = (
            {acknowledged, acknowledged + 1}
            if under_way and acknowledged < len(wanted.versions)
            else {acknowledged}
        )
        demand(
            now in possible, f"the head is {now}, acknowledged is {acknowledged}, possible {sorted(possible)}"
        )
        head = look(places, store.snapshot())
        demand(head == wanted.versions[now], f"version {now} shows another tree than it did")
        _check_versions(places, store, wanted)
        _check_pins(store, notes)
        kept = store.drafts()
        _check_work(places, store, notes, head, kept, power_cut=power_cut)
        demand(set(recovered) <= set(kept), "a recovered draft is not listed")
        store.gc()
        _check_nothing_left(places.root, store)
        _check_usable(places, store)
    finally:
        store.close()
    again = Store.open(places.root)
    try:
        demand(not again.recovered, f"opened twice, recovered twice: {again.recovered}")
        _check_nothing_left(places.root, again)
    finally:
        again.close()


def _asked_for(store: Store) -> list[Draft]:
    """Check that a session whose recovery was cut off twice is quarantined, and that a request recovers all
    of its work.
    """
    found: list[Draft] = []
    for session in store.dead.all():
        demand(session.quarantined and session.why == DIED, f"{session} was not recovered")
        store.dead.again(session.session_id)
        draft = store.dead.attempt(session.session_id)
        found += [] if draft is None else [draft]
    return found


def _check_versions(places: Places, store: Store, wanted: Expected) -> None:
    """Check that every openable version shows its old tree, and that no openable version is inside a squashed
    block.
    """
    versions = {int(name.partition(".")[0]) for name in os.listdir(os.path.join(places.root, "manifests"))}
    demand(
        store.head.version in versions,
        f"the head {store.head.version} is not among the versions {sorted(versions)}",
    )
    for version in versions:
        demand(
            look(places, store.snapshot(version)) == wanted.versions[version],
            f"version {version} shows another tree than it did",
        )
    for layer in store.layers.of(store.head):
        inside = versions & set(range(layer.first_version, layer.version))
        demand(not inside, f"versions {inside} lie inside {layer.id} and can be opened")


def _check_pins(store: Store, notes: list[tuple[str, str]]) -> None:
    """Check acknowledged pins: each is pinned and openable, or unpinned."""
    said = [
        (what, int(value)) for what, value in notes if what in ("pinning", "pinned", "unpinning", "unpinned")
    ]
    pins = store.pinned()
    demand(set(pins) <= {version for _, version in said}, f"pins that nobody made: {pins}")
    if said and said[-1][0] in ("pinned", "unpinned"):
        what, version = said[-1]
        demand(
            (version in pins) == (what == "pinned"),
            f"version {version} was acknowledged as {what}, pins are {sorted(pins)}",
        )
    for version in pins:
        demand(
            store.snapshot(version).version == version, f"version {version} is pinned and cannot be opened"
        )


def _holds(tree: Tree, text: bytes) -> bool:
    return any(text in entry.body for entry in tree.values() if entry.kind == FILE)


def _check_work(
    places: Places,
    store: Store,
    notes: list[tuple[str, str]],
    head: Tree,
    kept: list[Draft],
    *,
    power_cut: bool,
) -> None:
    """Check that all work of each session is published or in a draft, byte for byte, and that each
    acknowledged draft has all of its work.
    """
    shown_by: dict[str, Tree] = {"": head}
    for n, draft in enumerate(kept):
        upper = store.open_upper(f"check-{n}", origin="workspace_session:check", draft_id=draft.draft_id)
        with shown(upper, os.path.join(places.mounts, "f")) as m:
            shown_by[draft.draft_id] = read_tree(m)
        upper.discard()
    discarded = {value for what, value in notes if what in ("discarding", "discarded")}
    for what, value in notes:
        if what == "draft":
            draft_id, _, texts = value.partition(":")
            if draft_id in discarded:
                continue
            demand(draft_id in shown_by, f"{draft_id} was acknowledged and is gone")
            for piece in texts.split(","):
                demand(
                    _holds(shown_by[draft_id], piece.encode() + b"\n"), f"{piece!r} is gone from its draft"
                )
        elif what == "discarded":
            demand(value not in shown_by, f"{value} was discarded and is back")
        elif what == "work" and not power_cut:
            text = value.encode() + b"\n"
            kept_in = any(_holds(tree, text) for tree in shown_by.values()) or _in_a_version(
                places, store, text
            )
            demand(kept_in, f"{value!r} is neither published nor in a draft")


def _in_a_version(places: Places, store: Store, text: bytes) -> bool:
    """Is it in a version from before a rollback?"""
    names = os.listdir(os.path.join(places.root, "manifests"))
    return any(_holds(look(places, store.snapshot(int(name.partition(".")[0]))), text) for name in names)


def _check_nothing_left(root: str, store: Store) -> None:
    for name in ("staging", "sessions"):
        left = os.listdir(os.path.join(root, name))
        demand(not left, f"left over in {name}: {left}")
    needed = set(store.head.layer_ids) | {i for d in store.drafts() for i in d.layer_ids}
    needed |= {i for version in store.pinned() for i in store.snapshot(version).manifest.layer_ids}
    layers = set(os.listdir(os.path.join(root, "layers")))
    demand(layers <= needed, f"layers that nothing names: {sorted(layers - needed)}")
    metadata = {name.partition(".")[0] for name in os.listdir(os.path.join(root, ".layer-metadata"))}
    demand(metadata <= needed, f"metadata of layers that are gone: {sorted(metadata - needed)}")
    listed = {d.draft_id for d in store.drafts()}
    drafts = set(os.listdir(os.path.join(root, "drafts")))
    demand(drafts == listed, f"half drafts: {sorted(drafts - listed)}")
    folders = [
        folder
        for folder in (root, os.path.join(root, "manifests"), os.path.join(root, "pins"))
        if os.path.isdir(folder)
    ]
    stray = [name for folder in folders for name in os.listdir(folder) if name.endswith(".tmp")]
    demand(not stray, f"temporary files: {stray}")


def _check_usable(places: Places, store: Store) -> None:
    """Check that a new session can publish on the remains."""
    before = store.head.version
    upper = store.open_upper("after", origin="workspace_session:after")
    with shown(upper, os.path.join(places.mounts, "f")) as m:
        put(m, "afterwards", b"%d\n" % before)
    upper.publish(owner="after", request_id="after")
    demand(store.head.version == before + 1, "nothing can be published any more")
    demand(
        _holds(look(places, store.snapshot()), b"%d\n" % before),
        "what was published afterwards does not show",
    )
