"""Many at once on one store: nobody loses a byte, readers wait for nobody, and the lock is held for
bookkeeping alone.

Every race is set up at a named step: somebody stands still inside an operation while the other one runs to
its end. Each wait is bounded.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any, TypeVar

import pytest

from layerstack.errors import PublishRejected, SquashInFlight, StoreBusy
from layerstack.history import versions
from layerstack.kernel import fsync, syscalls
from layerstack.layers import index_file
from layerstack.publish import decide, publish
from layerstack.publish.drafts import Draft
from layerstack.publish.outcome import Published
from layerstack.session import upper
from layerstack.squash.squash import Squashed
from layerstack.store import Store
from layerstack.tree import disk, state
from tests import in_namespace
from tests.layerstack.memory_and_disk import disagreement
from tests.layerstack.store_fixture import Session, Stack, get, on_a_stack, put

T = TypeVar("T")

WAIT_S = 60.0
"""How long somebody may be kept from what he does, before that is a deadlock."""


def lines(*changed: tuple[int, str], count: int = 40) -> str:
    new = dict(changed)
    return "".join(f"{new.get(n, f'line {n}')}\n" for n in range(count))


BASE: dict[str, str | bytes | None] = {"f": lines(), "d/g": "g\n", "d/h": "h\n", ".gitignore": "*.o\n"}


class Crowd:
    """Threads of which each must come to its end; what one of them raises is raised by `join`."""

    def __init__(self) -> None:
        self.threads: list[threading.Thread] = []
        self.failures: list[BaseException] = []

    def start(self, work: Callable[[], object]) -> None:
        def run() -> None:
            try:
                work()
            except BaseException as error:
                self.failures.append(error)

        self.threads.append(threading.Thread(target=run, daemon=True))
        self.threads[-1].start()

    def join(self) -> None:
        for thread in self.threads:
            thread.join(WAIT_S)
        assert not any(thread.is_alive() for thread in self.threads), "somebody waits for ever"
        if self.failures:
            raise self.failures[0]


def meanwhile(work: Callable[[], T]) -> T:
    """In another thread, while this one stands where it is; AssertionError when it had to wait for this
    one.
    """
    crowd, found = Crowd(), list[T]()
    crowd.start(lambda: found.append(work()))
    crowd.join()
    return found[0]


# Writers


def publish_at_once(s: Stack, sessions: list[Session]) -> tuple[list[Published], list[Draft]]:
    """All of them leave a barrier together; a rejected one becomes a draft."""
    for session in sessions:
        session.umount()
    barrier, crowd = threading.Barrier(len(sessions)), Crowd()
    published: list[Published] = []
    drafts: list[Draft] = []

    def one(session: Session) -> None:
        barrier.wait(WAIT_S)
        try:
            published.append(session.upper.publish(owner=session.upper.session_id, request_id="r"))
        except PublishRejected as rejected:
            assert [(c.path, c.cls) for c in rejected.conflicts] == [("f", "content")]
            draft = session.upper.to_draft(reason="source_conflict")
            assert draft is not None
            drafts.append(draft)

    for session in sessions:
        crowd.start(lambda session=session: one(session))  # type: ignore[misc]
    crowd.join()
    assert disagreement(s.store) == "" and os.listdir(f"{s.root}/staging") == []
    return published, drafts


def a_file_each(s: Stack, count: int) -> None:
    sessions = [s.session() for _ in range(count)]
    for n, session in enumerate(sessions):
        put(session.at(f"made/by-{n}"), f"work of {n}\n")
        put(session.at(f"ignored-{n}.o"), f"object of {n}\n")
    published, drafts = publish_at_once(s, sessions)
    assert not drafts and [p.no_op for p in published] == [False] * count
    assert sorted(p.manifest.version for p in published) == list(range(2, count + 2)), (
        "each its own version, none twice, none left out"
    )
    assert len({p.layer_id for p in published}) == count == len(s.store.head.layers) - 1
    wanted = {f"made/by-{n}": f"work of {n}\n" for n in range(count)} | {
        f"ignored-{n}.o": f"object of {n}\n" for n in range(count)
    }
    s.reopen()
    assert wanted.items() <= s.shows().items() and s.store.recovered == ()


def one_file(s: Stack, count: int) -> None:
    """All change the same line, and write a file of their own beside it."""
    sessions = [s.session() for _ in range(count)]
    for n, session in enumerate(sessions):
        put(session.at("f"), lines((7, f"line 7 by {n}")))
        put(session.at(f"beside-{n}"), f"work of {n}\n" * 1000)
    published, drafts = publish_at_once(s, sessions)
    assert len(published) == 1 and len(drafts) == count - 1 and s.store.head.version == 2
    s.reopen()
    views = [s.shows()]
    for draft in drafts:
        session = s.session(draft_id=draft.draft_id)
        views.append(
            {
                name: get(session.at(name))
                for name in os.listdir(session.view)
                if name == "f" or name.startswith("beside-")
            }
        )
        session.umount()
        session.upper.discard()
    for n in range(count):
        holders = [view for view in views if view["f"] == lines((7, f"line 7 by {n}"))]
        assert len(holders) == 1 and holders[0][f"beside-{n}"] == f"work of {n}\n" * 1000, f"work of {n}"


@on_a_stack(BASE)
def test_thirteen_sessions_that_publish_a_file_each_at_once_make_thirteen_layers(s: Stack) -> None:
    a_file_each(s, 13)


@on_a_stack(BASE)
def test_of_thirteen_sessions_that_publish_one_file_at_once_one_is_a_layer_and_twelve_are_drafts(
    s: Stack,
) -> None:
    one_file(s, 13)


@on_a_stack(BASE)
def test_thirty_two_sessions_that_publish_a_file_each_at_once_make_thirty_two_layers(s: Stack) -> None:
    a_file_each(s, 32)


@on_a_stack(BASE)
def test_of_thirty_two_sessions_that_publish_one_file_at_once_one_is_a_layer_and_no_byte_of_the_others_is_lost(  # noqa: E501
    s: Stack,
) -> None:
    one_file(s, 32)


# The lock


@on_a_stack(BASE)
def test_readers_wait_for_no_publish_at_any_step_of_its_commit(s: Stack) -> None:
    """The publisher stands still inside the lock; meanwhile somebody else reads the head, lists, looks back
    and previews, and is done.
    """
    idle, writer = s.session(), s.session()
    put(idle.at("idle"), "idle\n")
    idle.umount()
    kept = s.session()
    put(kept.at("kept"), "kept\n")
    kept.umount()
    assert kept.upper.to_draft(reason="put aside") is not None
    put(writer.at("f"), lines((3, "by the writer")))
    seen: dict[str, bytes] = {}

    def read() -> bytes:
        with s.store.reading() as snapshot:
            assert [entry.path for entry in snapshot.list("d")] == ["d/g", "d/h"]
            text = snapshot.read_bytes("f")
        assert s.store.snapshot(1).read_bytes("f") == lines().encode()
        assert idle.upper.preview().would_publish
        assert len(s.store.drafts()) == 1 and versions.versions(s.store)[0][-1].version == 1
        assert s.store.layer_stats()
        return text

    def step(name: str) -> None:
        if name.startswith("commit."):
            seen[name] = meanwhile(read)

    s.store.step = step
    published = writer.publish()
    s.store.step = fsync.no_step
    assert published.manifest.version == 2
    old, new = lines().encode(), lines((3, "by the writer")).encode()
    last = seen.pop("commit.fsync_manifest")
    assert len(seen) >= 5 and set(seen.values()) == {old}, (
        "before the rename of the manifest the head is the old one"
    )
    assert last == new


@on_a_stack(BASE)
def test_another_publish_completes_at_every_step_before_the_commit(s: Stack) -> None:
    """Capturing, planning, cloning, merging, hashing, writing the index and syncing it: the lock is free
    meanwhile.
    """
    slow, other = s.session(), s.session()
    put(slow.at("f"), lines((3, "by the slow one")))
    os.unlink(slow.at("d/g"))
    put(slow.at("new/deep/x"), "x\n")
    put(other.at("f"), lines((30, "by the other")))
    os.chmod(other.at("d"), 0o711)
    other.publish()
    passed: dict[str, int] = {}

    def step(name: str) -> None:
        if (
            not name.startswith("commit.")
            and name not in passed
            and threading.current_thread() is threading.main_thread()
        ):
            done = meanwhile(
                lambda: s.store.update_file(f"by-the-way/{name}", lambda _: b"x\n", owner="o", request_id="r")
            )
            passed[name] = done.manifest.version

    s.store.step = step
    published = slow.publish()
    s.store.step = fsync.no_step
    assert {
        "publish.plan",
        "publish.clone",
        "publish.write.json",
        "publish.write.index",
        "publish.sync_layer",
    } <= passed.keys()
    assert (
        list(passed.values()) == sorted(set(passed.values()))
        and published.manifest.version > passed["publish.sync_layer"]
    )
    shows = s.shows()
    assert (
        shows["f"] == lines((3, "by the slow one"), (30, "by the other"))
        and "d/g" not in shows
        and shows["new/deep/x"] == "x\n"
    )
    assert s.mode("d") == 0o711
    assert {f"by-the-way/{name}" for name in passed if not name.startswith("session.")} <= shows.keys()


COSTLY: tuple[tuple[Any, str], ...] = (
    (state.State, "digest"),
    (decide, "merge"),
    (publish, "_plan"),
    (publish, "clone"),
    (publish, "write_index"),
    (publish, "build"),
    (upper, "build"),
    (upper, "capture_tree"),
    (fsync, "sync_files"),
    (index_file, "equal"),
    (disk.DiskTree, "replace"),
)
"""What costs by the size of the work, or waits for its data."""


@on_a_stack(BASE)
def test_what_costs_by_the_size_of_the_work_is_done_without_the_lock(s: Stack) -> None:
    held: dict[str, bool] = {}

    def watch(owner: Any, name: str) -> None:
        real = getattr(owner, name)

        def watched(*args: Any, **kwargs: Any) -> Any:
            key = f"{owner.__name__}.{name}"
            held[key] = held.get(key, False) or s.store.lock._is_owned()  # type: ignore[attr-defined]
            return real(*args, **kwargs)

        setattr(owner, name, watched)

    one, two = s.session(), s.session()
    put(one.at("f"), lines((3, "by one")))
    put(two.at("f"), lines((30, "by two")))
    for n in range(100):
        put(two.at(f"new/{n}"), f"{n}\n")
    one.publish()
    for owner, name in COSTLY:
        watch(owner, name)
    two.publish()
    assert held == {f"{owner.__name__}.{name}": False for owner, name in COSTLY}


# Squashes


@on_a_stack(BASE)
def test_what_is_published_at_any_step_of_a_squash_stays_a_layer_of_its_own(s: Stack) -> None:
    """A publish completes while the squash plans, folds, writes and syncs; and so does a session that was
    open before it.
    """
    for n in range(4):
        s.store.update_file(f"n{n}", lambda _: b"n\n", owner="o", request_id="r")
    before = s.store.head.layer_ids
    late: list[Published] = []

    def step(name: str) -> None:
        if name in ("squash.plan", "squash.fold", "squash.write", "squash.sync"):
            path = f"during/{name}"
            late.append(
                meanwhile(lambda: s.store.update_file(path, lambda _: b"x\n", owner="o", request_id="r"))
            )
            with pytest.raises(SquashInFlight):
                s.store.squash()

    s.store.step = step
    done = s.store.squash()
    s.store.step = fsync.no_step
    assert len(late) == 4
    layers = s.store.head.layer_ids
    assert layers[:4] == tuple(p.layer_id for p in reversed(late)), (
        "each is where it was, and is no part of the block"
    )
    assert [
        (layer[0], set(block.replaced_layer_ids))
        for layer, block in zip(layers[4:5], done.blocks, strict=True)
    ] == [("S", set(before[:-1]))]
    assert {f"n{n}" for n in range(4)} | {
        f"during/squash.{w}" for w in ("plan", "fold", "write", "sync")
    } <= s.shows().keys()


@on_a_stack(BASE)
def test_of_squashes_that_start_at_once_one_folds_and_the_others_do_nothing(s: Stack) -> None:
    for n in range(6):
        s.store.update_file(f"n{n}", lambda _: b"n\n", owner="o", request_id="r")
    shows, barrier, crowd = s.shows(), threading.Barrier(4), Crowd()
    done: list[Squashed] = []

    def squash() -> None:
        barrier.wait(WAIT_S)
        try:
            done.append(s.store.squash())
        except SquashInFlight as refused:
            assert refused.reason == "squash_in_flight"

    for _ in range(4):
        crowd.start(squash)
    crowd.join()
    blocks = [block for one in done for block in one.blocks]
    assert len(blocks) == 1 and len(blocks[0].replaced_layer_ids) == 6 and s.store.head.version == 8
    assert (
        s.shows() == shows and s.layer_dirs() == [blocks[0].squashed_layer_id] and disagreement(s.store) == ""
    )


@on_a_stack(BASE)
def test_sessions_that_publish_draft_and_leave_beside_squashes_and_collections_lose_nothing(s: Stack) -> None:
    """Eight writers of five sessions each: published, put aside, discarded; somebody squashes and collects
    whenever a writer is at its commit.
    """
    crowd, lock = Crowd(), threading.Lock()
    kept: list[tuple[Draft, str]] = []
    wanted: dict[str, str] = {}
    folded: list[str] = []
    go = threading.Semaphore(0)
    over = threading.Event()

    def write(who: int) -> None:
        for n in range(5):
            name = f"w{who}-{n}"
            opened = s.store.open_upper(name, origin="test")
            put(f"{opened.upperdir}/{who}/{n}", f"work of {name}\n")
            go.release()
            if n == 2:
                draft = opened.to_draft(reason="put aside")
                assert draft is not None
                with lock:
                    kept.append((draft, f"work of {name}\n"))
            elif n == 3:
                assert opened.discard() > 0
            else:
                opened.publish(owner=name, request_id="r")
                with lock:
                    wanted[f"{who}/{n}"] = f"work of {name}\n"

    def tidy() -> None:
        while not over.is_set():
            assert go.acquire(timeout=WAIT_S)
            folded.extend(block.squashed_layer_id for block in s.store.squash().blocks)
            s.store.gc()

    tidier = Crowd()
    tidier.start(tidy)
    for who in range(8):
        crowd.start(lambda who=who: write(who))  # type: ignore[misc]
    crowd.join()
    over.set()
    go.release()
    tidier.join()
    assert folded and disagreement(s.store) == "" and os.listdir(f"{s.root}/staging") == []
    s.reopen()
    shows = s.shows()
    assert (
        s.store.recovered == ()
        and wanted.items() <= shows.items()
        and len([p for p in shows if "/" in p and p[0].isdigit()]) == 24
    )
    for draft, text in kept:
        page = versions.diff_draft(s.store, draft.draft_id)
        assert any(change.patch is not None and text.encode() in change.patch.data for change in page.changes)


# Processes


@on_a_stack(BASE)
def test_a_second_process_is_refused_until_the_first_one_is_gone_however_it_went(s: Stack) -> None:
    def attempt() -> str:
        try:
            Store.open(s.root).close()
        except StoreBusy as busy:
            return busy.reason
        return "opened"

    assert in_namespace.call(None, attempt) == "store_busy"
    assert attempt() == "store_busy", "nor a second time in the same process"
    s.store.close()
    assert in_namespace.call(None, attempt) == "opened"

    says, hears = os.pipe()
    holder = in_namespace.fork()
    if holder == 0:
        syscalls.prctl(syscalls.PR_SET_PDEATHSIG, 9)
        Store.open(s.root)
        os.write(hears, b"open")
        threading.Event().wait()
    assert os.read(says, 4) == b"open"
    assert attempt() == "store_busy"
    os.kill(holder, 9)
    os.waitpid(holder, 0)
    assert attempt() == "opened", "the kernel let go of the lock with the process"


@on_a_stack(
    {
        "sub/.git": "gitdir: ../.git/modules/sub\n",
        ".git/HEAD": "ref: refs/heads/main\n",
        ".git/modules/sub/HEAD": "0" * 40 + "\n",
    }
)
def test_git_files_of_submodules_are_plain_files_and_versions_rise_one_by_one_under_concurrent_publishes(
    stack: Stack,
) -> None:
    sessions = [stack.session() for _ in range(10)]
    for n, session in enumerate(sessions):
        put(session.at(f"sub/{n}"), f"{n}\n")
        put(session.at(f".git/refs/heads/b{n}"), f"{n}\n")
        session.umount()
    put_git = stack.session()
    put(put_git.at("sub/.git"), "gitdir: elsewhere\n")
    versions: list[int] = []
    start = threading.Barrier(10)

    def publish(n: int) -> None:
        start.wait()
        versions.append(sessions[n].upper.publish(owner=f"s{n}", request_id="r").manifest.version)

    threads = [threading.Thread(target=publish, args=(n,)) for n in range(10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(versions) == list(range(2, 12))
    put_git.publish()
    shows = stack.shows()
    assert shows["sub/.git"] == "gitdir: elsewhere\n" and [shows[f"sub/{n}"] for n in range(10)] == [
        f"{n}\n" for n in range(10)
    ]
