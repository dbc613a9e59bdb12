"""Units: what a program keeps in several files is one side's as a whole, or one conflict. With SQLite's own
library and git.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import sqlite3
import subprocess

import pytest

from layerstack.core.publish_rules import OFF, PublishRules
from layerstack.errors import PublishRejected
from layerstack.kernel.fsync import no_step
from layerstack.model.conflict import Conflict
from layerstack.publish.outcome import Published
from layerstack.units.units import BUILT_IN, SQLITE, NamedUnits, Unit, held_by
from tests import in_namespace
from tests.layerstack.store_fixture import Base, Session, Stack, get, on_a_stack, put


def make(path: str, *statements: str) -> None:
    db = sqlite3.connect(path, isolation_level=None)
    for statement in statements:
        db.execute(statement)
    db.close()


def leave_open(path: str, *statements: str) -> None:
    """A process writes to the database and dies without closing it: what it committed lies in the -wal."""
    pid = in_namespace.fork()
    if pid == 0:
        signal.alarm(60)
        db = sqlite3.connect(path, isolation_level=None)
        for statement in statements:
            db.execute(statement)
        os.kill(os.getpid(), signal.SIGKILL)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL


def ask(path: str, question: str) -> list[tuple[object, ...]]:
    db = sqlite3.connect(path)
    try:
        assert db.execute("pragma integrity_check").fetchall() == [("ok",)]
        return db.execute(question).fetchall()
    finally:
        db.close()


def with_database(stack: Stack) -> None:
    session = stack.session()
    make(session.at("app.db"), "pragma journal_mode=wal", "create table t (n)", "insert into t values (1)")
    session.publish()


MANY = (
    "with recursive n(i) as (select 1 union all select i + 1 from n where i < 5000) insert into t select "
    "i from n"
)
COUNT = "select count(*) from t"


def the_conflict(session: Session) -> Conflict:
    """The only one, as a preview, a rebase and a publication tell it alike."""
    previewed = session.upper.preview().conflicts
    for attempt in (session.upper.rebase, session.publish):
        session.umount()
        with pytest.raises(PublishRejected) as caught:
            attempt()
        assert caught.value.conflicts == previewed and len(previewed) == 1
    session.mount()
    return previewed[0]


@on_a_stack({"x": "x\n"})
def test_a_database_that_one_side_wrote_and_the_other_has_in_its_wal_is_one_conflict(stack: Stack) -> None:
    with_database(stack)
    a, b = stack.session(), stack.session()
    make(a.at("app.db"), MANY)
    leave_open(b.at("app.db"), "update t set n = 7")
    assert os.path.getsize(b.at("app.db-wal")) > 0, "it is there that b's work lies"
    a.publish()
    conflict = the_conflict(b)
    assert (conflict.path, conflict.cls) == ("app.db", "unit") and conflict.unit is not None
    assert conflict.unit.name == "sqlite" and conflict.unit.members == ("app.db", "app.db-wal")
    assert conflict.theirs_layer is not None and conflict.theirs_layer.owner == "s1"
    assert ask(b.at("app.db"), "select n from t") == [(7,)], "nothing of it is lost"
    with stack.mounted() as view:
        shutil.copytree(view, f"{stack.folder}/copy")
    assert ask(f"{stack.folder}/copy/app.db", COUNT) == [(5001,)]


@on_a_stack({"x": "x\n"})
def test_it_is_the_other_way_round_as_well_and_so_it_is_for_a_draft(stack: Stack) -> None:
    with_database(stack)
    a, b = stack.session(), stack.session()
    make(a.at("app.db"), MANY)
    leave_open(b.at("app.db"), "update t set n = 7")
    b.publish()
    draft = a.keep()
    previewed = stack.store.preview_draft(draft.draft_id).conflicts
    assert [(conflict.path, conflict.cls) for conflict in previewed] == [("app.db", "unit")]
    with pytest.raises(PublishRejected) as caught:
        stack.session(draft_id=draft.draft_id, draft_base="head")
    assert caught.value.conflicts == previewed
    os.rmdir(f"{stack.folder}/s{len(stack.sessions)}")
    again = stack.session(draft_id=draft.draft_id)
    assert again.rejected() == {"app.db": "unit"}


@on_a_stack({"x": "x\n"})
def test_an_open_wal_is_carried_whole_where_the_other_side_wrote_elsewhere(stack: Stack) -> None:
    with_database(stack)
    a, b = stack.session(), stack.session()
    put(a.at("x"), "y\n")
    leave_open(b.at("app.db"), "update t set n = 7")
    a.publish()
    b.publish()
    c = stack.session()
    assert sorted(name for name in os.listdir(c.view) if name != "x") == [
        "app.db",
        "app.db-shm",
        "app.db-wal",
    ]
    assert ask(c.at("app.db"), "select n from t") == [(7,)]


@on_a_stack({"x": "x\n", ".gitignore": "app.db*\n"})
def test_an_ignored_database_is_the_last_writers_as_a_whole_and_that_is_reported(stack: Stack) -> None:
    with_database(stack)
    a, b = stack.session(), stack.session()
    make(a.at("app.db"), MANY)
    leave_open(b.at("app.db"), "update t set n = 7")
    a.publish()
    previewed = b.upper.preview().notices
    done = b.publish()
    assert done.notices == previewed and [
        (notice.kind, notice.path, notice.unit) for notice in previewed
    ] == [("replaced", "app.db", "sqlite")]
    assert previewed[0].theirs is not None and previewed[0].theirs.owner == "s1"
    c = stack.session()
    assert ask(c.at("app.db"), "select n from t") == [(7,)], (
        "the whole of b's, though b's app.db is the base's"
    )


@on_a_stack({"x": "x\n", ".gitignore": "app.db*\n"})
def test_an_ignored_database_whose_last_writer_wrote_the_file_has_no_wal_of_the_other(stack: Stack) -> None:
    with_database(stack)
    a, b = stack.session(), stack.session()
    make(a.at("app.db"), MANY)
    leave_open(b.at("app.db"), "update t set n = 7")
    b.publish()
    done: Published = a.publish()
    assert [(notice.kind, notice.path) for notice in done.notices] == [("replaced", "app.db")]
    assert sorted(name for name in stack.shows() if name.startswith("app")) == ["app.db"]
    c = stack.session()
    assert ask(c.at("app.db"), COUNT) == [(5001,)]


@on_a_stack({"x": "x\n"})
def test_who_only_read_a_database_takes_the_others(stack: Stack) -> None:
    with_database(stack)
    for first in (0, 1):
        sides = stack.session(), stack.session()
        before = ask(sides[0].at("app.db"), COUNT)[0][0]
        assert isinstance(before, int)
        put(sides[0].at(f"mine-{first}"), "x\n")
        put(sides[0].at("app.db-shm"), bytes(1 << 15))  # what a killed reader leaves
        make(sides[1].at("app.db"), MANY)
        for n in (first, 1 - first):
            sides[n].publish()
        c = stack.session()
        assert ask(c.at("app.db"), COUNT) == [(before + 5000,)]


@on_a_stack({"x": "x\n"})
def test_a_database_changed_by_both_is_named_as_such_also_without_a_wal(stack: Stack) -> None:
    with_database(stack)
    a, b, c = stack.session(), stack.session(), stack.session()
    make(a.at("app.db"), MANY)
    make(b.at("app.db"), "delete from t")
    os.unlink(c.at("app.db"))
    a.publish()
    assert b.rejected() == {"app.db": "unit"} and c.rejected() == {"app.db": "unit"}


@on_a_stack({"x": "x\n", "d/app.db-wal": b"left", "d/x": "x\n"})
def test_a_database_that_came_beside_a_wal_whose_directory_the_other_side_removed_is_a_unit_too(
    stack: Stack,
) -> None:
    a, b = stack.session(), stack.session()
    put(a.at("d/app.db"), b"SQLite format 3\0page")
    shutil.rmtree(b.at("d"))
    a.publish()
    (torn,) = b.conflicts()
    assert (torn.path, torn.cls) == ("d/app.db", "unit") and torn.unit is not None
    assert torn.unit.members == ("d/app.db", "d/app.db-wal")


@on_a_stack({"x": "x\n", "d/app.db": b"SQLite format 3\0page", "d/app.db-wal": b"log", "d/x": "x\n"})
def test_a_database_whose_file_both_removed_and_only_one_its_wal_is_one_conflict(stack: Stack) -> None:
    """Found by the state machine: nothing that a layer lists has the name of a log."""
    for n in range(2):
        sides = stack.session(), stack.session()
        os.unlink(sides[0].at("d/app.db"))
        shutil.rmtree(sides[1].at("d"))
        sides[n].publish()
        (torn,) = sides[1 - n].conflicts()
        assert (torn.path, torn.cls) == ("d/app.db", "unit") and torn.unit is not None
        assert torn.unit.members == ("d/app.db", "d/app.db-wal")
        stack.store.rollback(1, owner="o", request_id="r")


@on_a_stack({"x": "x\n", "d/app.db": b"", "d/x": "x\n"})
def test_a_hot_journal_goes_with_its_database(stack: Stack) -> None:
    a, b = stack.session(), stack.session()
    make(a.at("d/app.db"), "create table t (n)", MANY)
    a.publish()
    put(b.at("d/app.db-journal"), b"\xd9\xd5\x05\xf9\x20\xa1\x63\xd7" + bytes(504))
    assert b.rejected() == {"d/app.db": "unit"}


@on_a_stack({".gitignore": "*-wal\n", "app.db": b"SQLite format 3\0page"})
def test_a_database_of_which_only_the_log_is_ignored_is_no_last_writers(stack: Stack) -> None:
    a, b = stack.session(), stack.session()
    put(a.at("app.db-wal"), b"log of a")
    put(b.at("app.db-wal"), b"log of b")
    a.publish()
    assert b.rejected() == {"app.db": "unit"}


@on_a_stack({"x": "x\n", "app.db": b"SQLite format 3\0page"})
def test_a_unit_that_another_publication_changes_between_plan_and_commit_is_one_conflict(
    stack: Stack,
) -> None:
    a, b = stack.session(), stack.session()
    put(a.at("app.db"), b"SQLite format 3\0mine")
    put(b.at("app.db-wal"), b"log")

    def step(name: str) -> None:
        if name == "publish.sync_layer":
            stack.store.step = no_step
            b.publish()

    stack.store.step = step
    assert a.rejected() == {"app.db": "unit"}


LEVEL: Base = {
    "db/CURRENT": "MANIFEST-000002\n",
    "db/MANIFEST-000002": b"m\0",
    "db/000003.log": b"l\0",
    "db/LOCK": "",
    "db/LOG": "opened\n",
}


@on_a_stack(LEVEL)
def test_a_leveldb_is_one_value_and_its_log_of_what_it_did_is_none_of_it(stack: Stack) -> None:
    a, b, reader = stack.session(), stack.session(), stack.session()
    put(a.at("db/000003.log"), b"l\0put a")
    put(b.at("db/MANIFEST-000004"), b"m\0")
    put(b.at("db/CURRENT"), "MANIFEST-000004\n")
    os.unlink(b.at("db/MANIFEST-000002"))
    put(reader.at("db/LOG"), "opened to read\n")
    put(a.at("db/LOG"), "opened by a\n")
    a.publish()
    conflict = the_conflict(b)
    assert (
        (conflict.path, conflict.cls) == ("db", "unit")
        and conflict.unit is not None
        and conflict.unit.name == "leveldb"
    )
    assert reader.publish().no_op, "a's database, with a's log"
    assert stack.shows()["db/LOG"] == "opened by a\n"


@on_a_stack({"index/a": "a\n", "index/b": "b\n", "index/notes.txt": "n\n", "else": "e\n"})
def test_units_of_the_configuration_are_kept_whole_too(stack: Stack) -> None:
    stack.store.rules = PublishRules(units=(NamedUnits("search", "index", ["?"]),))
    a, b, c = stack.session(), stack.session(), stack.session()
    put(a.at("index/a"), "A\n")
    put(b.at("index/b"), "B\n")
    put(c.at("index/notes.txt"), "N\n")
    a.publish()
    conflict = the_conflict(b)
    assert conflict.unit is not None and (conflict.path, conflict.unit.name, conflict.unit.members) == (
        "index",
        "search",
        ("index/a", "index/b"),
    )
    c.publish()
    deep = NamedUnits("search", "**/index")
    assert [deep.roots_of(path) for path in ("x/y/index/a", "index/a", "index", "indexes/a")] == [
        ("x/y/index",),
        ("index",),
        (),
        (),
    ]


@on_a_stack({".gitignore": "cache/\n", "cache/index/a": "a\n"})
def test_a_unit_of_ours_hides_what_the_head_added_to_it_in_directories_that_ours_lacks(stack: Stack) -> None:
    """Seen before: FileNotFoundError, by publish and by rebase."""
    stack.store.rules = PublishRules(units=(NamedUnits("search", "**/index"),))
    a, b, c = stack.session(), stack.session(), stack.session()
    put(a.at("cache/index/deep/er/new"), "A\n")
    put(b.at("cache/index/a"), "B\n")
    put(c.at("cache/index/a"), "C\n")
    a.publish()
    c.umount()
    c.upper.rebase()
    c.mount()
    assert not os.path.exists(c.at("cache/index/deep/er/new"))
    assert [(notice.kind, notice.path) for notice in b.publish().notices] == [("replaced", "cache/index")]
    files = {
        path: text for path, text in stack.shows().items() if path.startswith("cache/index/") and text != "/"
    }
    assert files == {"cache/index/a": "B\n"}, "the head's empty directories stay"


AS_UNITS = PublishRules(git=OFF)


def git(where: str, *words: str) -> str:
    identity = ["-c", "user.name=A", "-c", "user.email=a@x", "-c", "gc.auto=0", "-c", "safe.directory=*"]
    done = subprocess.run(
        ["git", "-C", where, *identity, *words], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, (words, done.stdout, done.stderr)
    return done.stdout


def with_repository(stack: Stack) -> str:
    """Make a repository, which is a unit where `runtime.layerstack.git` is `off`: -> its first commit."""
    stack.store.rules = AS_UNITS
    session = stack.session()
    git(session.view, "init", "-q", "-b", "main")
    git(session.view, "add", ".")
    git(session.view, "commit", "-q", "-m", "first")
    session.publish()
    return git(session_view(stack), "rev-parse", "HEAD").strip()


def session_view(stack: Stack) -> str:
    return stack.session().view


def commit(session: Session, path: str, text: str) -> None:
    put(session.at(path), text)
    git(session.view, "add", path)
    git(session.view, "commit", "-q", "-m", f"write {path}")


def whole(view: str) -> None:
    assert git(view, "fsck", "--full", "--strict") == ""
    assert git(view, "status", "--porcelain") == ""


@on_a_stack({"f": "f\n", "g": "g\n"})
def test_commits_of_two_sessions_are_one_conflict_and_what_it_advises_brings_both_together(
    stack: Stack,
) -> None:
    first = with_repository(stack)
    a, b = stack.session(), stack.session()
    commit(a, "f", "A\n")
    commit(b, "g", "B\n")
    commit(b, "new", "new\n")
    a.publish()
    conflict = the_conflict(b)
    assert (conflict.path, conflict.cls) == (".git", "unit") and conflict.unit is not None
    assert conflict.unit.base_commit == first and ".git/index" in conflict.unit.members
    patches = git(b.view, "format-patch", "--stdout", f"{first}..")
    c = stack.session()
    put(f"{stack.folder}/patches", patches)
    git(c.view, "am", "-q", f"{stack.folder}/patches")
    c.publish()
    d = stack.session()
    whole(d.view)
    assert git(d.view, "log", "--format=%s").split("\n")[:3] == ["write new", "write g", "write f"]
    assert [get(d.at(path)) for path in ("f", "g", "new")] == ["A\n", "B\n", "new\n"]


@on_a_stack({"f": "f\n", "g": "g\n"})
def test_worktrees_of_one_repository_are_published_side_by_side_and_beside_commits(stack: Stack) -> None:
    with_repository(stack)
    sessions = [stack.session() for _ in range(3)]
    for n, session in enumerate(sessions[:2], 1):
        git(session.view, "worktree", "add", "-q", f"wt{n}", "-b", f"w{n}")
        put(session.at(f"wt{n}/f"), f"by {n}\n")
        git(session.at(f"wt{n}"), "commit", "-q", "-a", "-m", f"by {n}")
    commit(sessions[2], "g", "main\n")
    for session in sessions:
        session.publish()
    view = session_view(stack)
    assert git(view, "fsck", "--full", "--strict") == ""
    assert [git(view, "log", "-1", "--format=%s", branch).strip() for branch in ("w1", "w2", "main")] == [
        "by 1",
        "by 2",
        "write g",
    ]


@on_a_stack({"f": "f\n"})
def test_an_object_that_one_side_counts_on_is_not_taken_away_by_the_other(stack: Stack) -> None:
    with_repository(stack)
    session = stack.session()
    put(f"{stack.folder}/blob", "unreachable\n")
    git(session.view, "hash-object", "-w", f"{stack.folder}/blob")
    session.publish()
    a, b = stack.session(), stack.session()
    commit(a, "h", "unreachable\n")
    git(b.view, "prune", "--expire=now")
    a.publish()
    assert b.rejected() == {".git": "unit"}
    whole(session_view(stack))


@on_a_stack({"f": "f\n"})
def test_a_branch_that_one_side_checked_out_is_not_taken_away_or_moved_by_the_other(stack: Stack) -> None:
    with_repository(stack)
    session = stack.session()
    git(session.view, "branch", "other")
    git(session.view, "pack-refs", "--all")
    session.publish()
    a, b, c = stack.session(), stack.session(), stack.session()
    git(a.view, "checkout", "-q", "other")
    git(b.view, "branch", "-q", "-D", "other")
    git(c.view, "worktree", "add", "-q", "wt", "other")
    put(c.at("wt/f"), "moved\n")
    git(c.at("wt"), "commit", "-q", "-a", "-m", "moved")
    a.publish()
    assert b.rejected() == {".git": "unit"} and c.rejected() == {".git": "unit"}
    whole(session_view(stack))


@on_a_stack({".gitignore": ".*\n", "f": "f\n", "g": "g\n"})
def test_a_repository_that_is_ignored_is_no_last_writers(stack: Stack) -> None:
    stack.store.rules = AS_UNITS
    session = stack.session()
    git(session.view, "init", "-q", "-b", "main")
    git(session.view, "add", "f", "g")
    git(session.view, "commit", "-q", "-m", "first")
    session.publish()
    a, b = stack.session(), stack.session()
    commit(a, "f", "A\n")
    commit(b, "g", "B\n")
    a.publish()
    assert b.rejected() == {".git": "unit"}


LEVELDB: Base = {
    "db/CURRENT": "MANIFEST-000001\n",
    "db/MANIFEST-000001": "m\n",
    "db/LOCK": "",
    "db/LOG": "log\n",
    "db/000003.log": "3\n",
}


@pytest.mark.parametrize("whose", ["ours", "theirs"])
def test_a_directory_in_the_place_of_a_helper_is_not_lost_with_the_helper(whose: str) -> None:
    @on_a_stack(LEVELDB, namespaces=("trusted",))
    def body(stack: Stack) -> None:
        writer, other = stack.session(), stack.session()
        put(writer.at("db/000003.log"), "3 and more\n")
        put(writer.at("db/LOCK"), "held\n")
        os.unlink(other.at("db/LOCK"))
        put(other.at("db/LOCK/keys.py"), "by hand\n")
        first, last = (writer, other) if whose == "ours" else (other, writer)
        first.publish()
        assert last.rejected() == {"db": "unit"}

    body("trusted")


@pytest.mark.parametrize("above", ["db", "cache"])
def test_an_ignored_unit_whose_directory_the_head_removed_comes_back_whole(above: str) -> None:
    place = "db" if above == "db" else "cache/deep/db"

    @on_a_stack(
        {
            ".gitignore": f"{above}/\n",
            **{path.replace("db", place, 1): text for path, text in LEVELDB.items()},
        },
        namespaces=("trusted",),
    )
    def body(stack: Stack) -> None:
        a, b = stack.session(), stack.session()
        shutil.rmtree(a.at(above))
        put(b.at(f"{place}/000003.log"), "3 and more\n")
        a.publish()
        previewed = b.upper.preview()
        assert [(notice.kind, notice.path) for notice in b.publish().notices] == [("replaced", place)]
        assert [(notice.kind, notice.path) for notice in previewed.notices] == [("replaced", place)]
        shown = stack.shows()
        assert {path.rpartition("/")[2] for path in shown if path.startswith(place + "/")} == {
            path[3:] for path in LEVELDB
        }
        assert (
            shown[f"{place}/000003.log"] == "3 and more\n"
            and shown[f"{place}/CURRENT"] == "MANIFEST-000001\n"
        )

    body("trusted")


@on_a_stack(
    {
        "r/.git/HEAD": "ref: refs/heads/main\n",
        "r/.git/objects": None,
        "r/.git/refs/heads/main": "0" * 40 + "\n",
    },
    namespaces=("trusted",),
)
def test_a_repository_that_the_head_renamed_and_ours_added_to_is_one_conflict(stack: Stack) -> None:
    stack.store.rules = AS_UNITS
    a, b = stack.session(), stack.session()
    os.rename(a.at("r"), a.at("s"))
    put(b.at("r/.git/objects/ab/cd"), "an object")
    put(b.at("r/.git/refs/heads/new"), "1" * 40 + "\n")
    a.publish()
    assert b.rejected() == {"r/.git": "unit"}


BARE: Base = {
    "HEAD": "ref: refs/heads/main\n",
    "objects": None,
    "refs/heads/main": "0" * 40 + "\n",
    "config": "[core]\n\tbare = true\n",
}


@pytest.mark.parametrize(
    "place", ["objects/r", "refs/r", "data/objects/refs/objects/r.git", ".git/modules/lib/objects"]
)
@pytest.mark.parametrize("theirs", ["refs/heads/main", "logs/HEAD", "worktrees/w/HEAD"])
def test_a_repository_below_a_directory_that_is_called_objects_or_refs_is_a_unit(
    place: str, theirs: str
) -> None:
    """Its root was looked for above the outermost `objects` or `refs`: two sides moved its branches and took
    each other's objects away.
    """

    @on_a_stack({f"{place}/{path}": text for path, text in BARE.items()}, namespaces=("trusted",))
    def body(stack: Stack) -> None:
        stack.store.rules = AS_UNITS
        a, b = stack.session(), stack.session()
        put(a.at(f"{place}/{theirs}"), "1" * 40 + "\n")
        put(b.at(f"{place}/{theirs}"), "2" * 40 + "\n")
        put(b.at(f"{place}/refs/heads/new"), "2" * 40 + "\n")
        a.publish()
        assert b.rejected() == {place: "unit"}

    body("trusted")


@on_a_stack(
    {
        "data/HEAD": "the head of our family\n",
        "data/objects/a": "a\nb\nc\nd\n",
        "data/refs/b": "b\n",
        "data/index": "a\n",
    },
    namespaces=("trusted",),
)
def test_directories_that_are_called_as_in_a_repository_are_none(stack: Stack) -> None:
    a, b = stack.session(), stack.session()
    put(a.at("data/refs/b"), "B\n")
    put(a.at("data/objects/a"), "A\nb\nc\nd\n")
    put(b.at("data/objects/a"), "a\nb\nc\nD\n")
    put(b.at("data/index"), "A\n")
    a.publish()
    b.publish()
    assert stack.shows()["data/objects/a"] == "A\nb\nc\nD\n"


def test_a_unit_of_the_configuration_costs_a_path_no_more_than_its_matching_directories() -> None:
    """Each of the directories above each path was compared with `root` again, and with each member below it:
    minutes for 500 files 600 deep.
    """
    compared = [0]

    class Counting(NamedUnits):
        def holds(self, root: str, path: str) -> bool:
            compared[0] += 1
            return super().holds(root, path)

    unit, folder = Counting("u", "**", ["nothing"]), "/".join("a" * 1_000)
    assert not any(unit.roots_of(f"{folder}/{n}") for n in range(20))
    assert compared[0] == 20 * 2 * NamedUnits.ROOTS_MAX
    assert unit.roots_of(f"{folder}/nothing") == (folder,), "the innermost too"
    assert unit.roots_of("nothing") == ("",) and unit.roots_of("") == ()


def test_the_matching_directories_of_a_path_are_those_of_a_unit_that_saw_no_other_path() -> None:
    names = ("a", "ab", "b")
    folders = [
        "",
        *names,
        *(f"{x}/{y}" for x in names for y in names),
        *(f"{x}/{y}/{z}" for x in names for y in names for z in names),
    ]
    dice = random.Random(7)
    for root in ("**", ".", "a*", "**/a", "a/**", "a/*/b"):
        unit = NamedUnits("u", root, ["f"])
        for folder in dice.choices(folders, k=200):
            path = f"{folder}/f".lstrip("/")
            assert unit.roots_of(path) == NamedUnits("u", root, ["f"]).roots_of(path), (root, path)


def test_the_members_of_many_units_are_listed_without_asking_each_of_them() -> None:
    """Each conflict asked each torn unit: a preview of 600 databases that both sides changed asked 720,000
    times, one of 3,000 took minutes.
    """
    asked = [0]

    class Counting(NamedUnits):
        def holds(self, root: str, path: str) -> bool:
            asked[0] += 1
            return super().holds(root, path)

    kinds = {kind.name: kind for kind in BUILT_IN}
    units = [Unit(SQLITE, f"d/{n}.db") for n in range(50)] + [
        Unit(Counting("u", "*", ["x*"]), f"u{n}") for n in range(50)
    ]
    units += [Unit(kinds["git"], "r/.git"), Unit(kinds["lmdb"], "m"), Unit(kinds["leveldb"], "l")]
    paths = [
        "d/7.db",
        "d/7.db-shm",
        "d/7.dbx",
        "u3/x",
        "u3/y",
        "u3",
        "u33/x",
        "r/.git",
        "r/.git/HEAD",
        "r/f",
        "m/data.mdb",
        "l/CURRENT",
        "l/k",
        "",
    ]
    held = held_by(units)
    found = [held(path) for path in paths]
    assert asked[0] == 4, "u3/x, u3/y, u3 and u33/x, each by one unit"
    assert found == [any(unit.holds(path) for unit in units) for path in paths]
