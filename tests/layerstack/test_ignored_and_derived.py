"""Ignored files that both sides changed, and what tools derive: what merges, what is replaced or dropped, and
that it is reported.
"""

from __future__ import annotations

import importlib.util
import os
import py_compile
import shutil

from layerstack.model.conflict import Notice
from tests.layerstack.store_fixture import Session, Stack, on_a_stack, put

TEN = "".join(f"line {n}\n" for n in range(10))


def published_notices(session: Session) -> list[tuple[str, str]]:
    """Publish; the notices, which a preview shows alike."""
    before = session.upper.preview()
    assert before.would_publish and not before.conflicts
    done = session.publish()
    assert done.notices == before.notices
    return [(notice.kind, notice.path) for notice in done.notices if notice.kind != "built_on"]


@on_a_stack({".gitignore": ".env\n", ".env": TEN})
def test_ignored_text_merges_by_lines(stack: Stack) -> None:
    a, b = stack.session(), stack.session()
    put(a.at(".env"), "ALICE=1\n" + TEN)
    put(b.at(".env"), TEN + "BOB=1\n")
    a.publish()
    assert published_notices(b) == []
    assert stack.shows()[".env"] == "ALICE=1\n" + TEN + "BOB=1\n"


@on_a_stack({".gitignore": ".env\n*.bin\n", ".env": "X=1\n", "o.bin": b"\0one", "gone.bin": b"\0"})
def test_what_does_not_merge_is_the_last_writers_and_whose_was_replaced_is_reported(stack: Stack) -> None:
    a, b = stack.session(agent="alice"), stack.session()
    for session, name in ((a, "ALICE"), (b, "BOB")):
        put(session.at(".env"), f"X=1\n{name}=1\n")
        put(session.at("o.bin"), b"\0" + name.encode())
        put(session.at("new.bin"), b"\0" + name.encode())
    put(a.at("gone.bin"), b"\0alice")
    os.unlink(b.at("gone.bin"))
    a.publish()
    preview = b.upper.preview().notices
    assert published_notices(b) == [("replaced", path) for path in (".env", "gone.bin", "new.bin", "o.bin")]
    assert all(
        notice.theirs is not None and notice.theirs.agent == "alice" and notice.theirs.manifest_version == 2
        for notice in preview
    )
    shows = stack.shows()
    assert shows[".env"] == "X=1\nBOB=1\n" and shows["o.bin"] == "\0BOB" and "gone.bin" not in shows
    assert stack.store.snapshot(2).read_bytes(".env") == b"X=1\nALICE=1\n", "an earlier version has it"


@on_a_stack({".gitignore": "*.bin\n"})
def test_of_many_replaced_files_a_hundred_are_named_and_the_rest_counted(stack: Stack) -> None:
    a, b = stack.session(), stack.session()
    for n in range(130):
        put(a.at(f"{n:03}.bin"), b"\0a")
        put(b.at(f"{n:03}.bin"), b"\0b")
    a.publish()
    notices = b.publish().notices
    assert len(notices) == 100 and [notice.more for notice in notices if notice.more is not None] == [30]
    assert notices[-1].to_json() | {"theirs_layer": None} == {
        "kind": "replaced",
        "path": "099.bin",
        "more": 30,
        "theirs_layer": None,
    }


@on_a_stack({".gitignore": "f\n", "f": "f\n", "g": "g\n"})
def test_what_the_head_has_taken_out_of_gitignore_is_a_source_file(stack: Stack) -> None:
    a, b = stack.session(), stack.session()
    put(a.at(".gitignore"), "")
    put(a.at("f"), "unignored by A\n")
    put(b.at("f"), "B\n")
    a.publish()
    assert b.rejected() == {"f": "content"}


@on_a_stack({".gitignore": "f\nd/\n", "f": "f\n", "d/x": "x\n"})
def test_and_so_is_what_the_session_itself_took_out(stack: Stack) -> None:
    a, b = stack.session(), stack.session()
    put(a.at("f"), "A\n")
    put(a.at("d/x"), "A\n")
    put(b.at(".gitignore"), "d/\n")
    put(b.at("f"), "unignored by B\n")
    put(b.at("d/x"), "B\n")
    a.publish()
    assert b.rejected() == {"f": "content"}


def compiled(session: Session, name: str) -> str:
    """Byte code of a module beside it, as an import makes it. -> its path"""
    cache = importlib.util.cache_from_source(name)
    py_compile.compile(session.at(name), cfile=session.at(cache), doraise=True)
    return cache


@on_a_stack({"app.py": "import other\n", "other.py": "x = 1\n"})
def test_byte_code_never_conflicts_and_what_is_dropped_is_counted(stack: Stack) -> None:
    first = stack.session()
    compiled(first, "app.py")
    compiled(first, "other.py")
    first.publish()
    a, b, c = stack.session(), stack.session(), stack.session()
    put(a.at("app.py"), "import other\nprint(1)\n")
    put(b.at("other.py"), "x = 22\n")
    cache = ""
    for session in (a, b):
        os.utime(session.at("app.py"), (1, 1) if session is a else (2, 2))
        cache = compiled(session, "app.py")
    compiled(b, "other.py")
    a.publish()
    theirs = stack.store.snapshot().read_bytes(cache)
    put(c.at("new"), "c\n")
    os.unlink(c.at(cache))
    for session in (b, c):
        assert published_notices(session) == [("derived", cache)]
        assert stack.store.snapshot().read_bytes(cache) == theirs, "the head's"


@on_a_stack({"d/m.py": "x = 1\n", "d/keep": "k\n", "else": "e\n"})
def test_byte_code_neither_brings_a_package_back_nor_keeps_it_from_going(stack: Stack) -> None:
    a, b = stack.session(), stack.session()
    shutil.rmtree(a.at("d"))
    compiled(b, "d/m.py")
    put(b.at("else"), "b\n")
    a.publish()
    assert [kind for kind, _ in published_notices(b)] == ["derived"]
    assert not [path for path in stack.shows() if path.startswith("d")]
    stack.store.rollback(1, owner="o", request_id="r")
    d, e = stack.session(), stack.session()
    compiled(d, "d/m.py")
    shutil.rmtree(e.at("d"))
    d.publish()
    assert [kind for kind, _ in published_notices(e)] == ["derived"]
    assert not [path for path in stack.shows() if path.startswith("d")]


@on_a_stack({"app.py": "x = 1\n"})
def test_byte_code_that_is_not_compared_with_its_source_is_a_file_as_any_other(stack: Stack) -> None:
    a, b = stack.session(), stack.session()
    cache = importlib.util.cache_from_source("app.py")
    for session, text in ((a, "x = 2\n"), (b, "x = 1\ny = 2\n")):
        put(f"{stack.folder}/m.py", text)
        os.makedirs(session.at("__pycache__"))
        py_compile.compile(
            f"{stack.folder}/m.py",
            cfile=session.at(cache),
            doraise=True,
            invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH,
        )
    a.publish()
    assert b.rejected() == {cache: "binary"}


TAG = "Signature: 8a477f597d28d172789f06886806bc55\n# a cache\n"


@on_a_stack(
    {
        ".gitignore": "target/\n",
        "target/CACHEDIR.TAG": TAG,
        "target/app": b"\0",
        "own/CACHEDIR.TAG": "Signature: something else\n",
        "own/f": b"\0",
    }
)
def test_caches_are_recognised_by_name_or_by_their_tag_and_never_conflict(stack: Stack) -> None:
    a, b = stack.session(), stack.session()
    for session, name in ((a, b"\0a"), (b, b"\0b")):
        for path in ("target/app", ".mypy_cache/3.11/x.json", "w/node_modules/.cache/y", "t.tsbuildinfo"):
            put(session.at(path), name)
    put(b.at("f"), "f\n")
    a.publish()
    assert published_notices(b) == [("derived", ".mypy_cache/3.11/x.json")]
    assert stack.shows()["target/app"] == "\0a"
    c, d = stack.session(), stack.session()
    put(c.at("own/f"), b"\0c")
    put(d.at("own/f"), b"\0d")
    c.publish()
    assert d.rejected() == {"own/f": "binary"}


@on_a_stack({"s/f": "f\n"})
def test_a_tag_that_one_side_makes_takes_no_work_of_the_other(stack: Stack) -> None:
    a, b = stack.session(), stack.session()
    put(a.at("s/CACHEDIR.TAG"), TAG)
    put(a.at("s/f"), "A\n")
    put(b.at("s/f"), "B\n")
    a.publish()
    assert b.rejected() == {"s/f": "content"}


@on_a_stack(
    {
        ".gitignore": "*.o\n",
        "c/CACHEDIR.TAG": TAG,
        "c/text": TEN,
        "c/both": "b\n",
        "c/gone": "g\n",
        "c/also": "g\n",
        "c/m.o": b"\0",
        "c/sub/deep": "d\n",
        "o": "o\n",
    }
)
def test_what_is_not_ignored_beside_a_tag_is_judged_as_source(stack: Stack) -> None:
    a, b, c = stack.session(), stack.session(), stack.session()
    put(a.at("c/text"), "A\n" + TEN)
    put(c.at("c/text"), TEN + "C\n")
    put(c.at("c/m.o"), b"\0C")
    for session, name in ((a, "A"), (b, "B")):
        put(session.at("c/both"), name)
        put(session.at("c/new"), name)
        put(session.at("c/m.o"), "\0" + name)
    os.unlink(a.at("c/gone"))
    put(b.at("c/gone"), "B")
    put(a.at("c/also"), "A")
    os.unlink(b.at("c/also"))
    a.publish()
    assert b.rejected() == {
        "c/also": "delete_modify",
        "c/both": "content",
        "c/gone": "modify_delete",
        "c/new": "add_add",
    }
    assert published_notices(c) == [("derived", "c/m.o")], "what is ignored there still is a cache"
    shows = stack.shows()
    assert shows["c/text"] == "A\n" + TEN + "C\n" and shows["c/m.o"] == "\0A"


@on_a_stack({".gitignore": "*.o\n", "c/CACHEDIR.TAG": TAG, "c/f": "f\n", "c/m.o": b"\0", "o": "o\n"})
def test_a_directory_with_a_tag_that_one_side_removed_keeps_the_others_sources(stack: Stack) -> None:
    a, b, c = stack.session(), stack.session(), stack.session()
    shutil.rmtree(a.at("c"))
    put(b.at("c/f"), "B\n")
    put(b.at("c/new"), "B\n")
    put(b.at("c/m.o"), b"\0B")
    put(c.at("c/m.o"), b"\0C")
    put(c.at("o"), "C\n")
    a.publish()
    assert b.rejected() == {"c/f": "modify_delete", "c/new": "parent"}
    assert published_notices(c) == [("derived", "c/m.o")]
    stack.store.rollback(1, owner="o", request_id="r")
    d, e = stack.session(), stack.session()
    put(d.at("c/f"), "D\n")
    put(d.at("c/new"), "D\n")
    put(d.at("c/m.o"), b"\0D")
    shutil.rmtree(e.at("c"))
    d.publish()
    assert e.rejected() == {"c/f": "delete_modify", "c/new": "parent"}


HEADER = b"SQLite format 3\0"


@on_a_stack(
    {
        ".gitignore": "i.db*\n",
        "c/CACHEDIR.TAG": TAG,
        "c/f.db": HEADER,
        "c/f.db-wal": b"",
        "c/i.db": HEADER,
        "c/i.db-wal": b"",
    }
)
def test_a_database_beside_a_tag_is_a_cache_only_where_it_is_ignored(stack: Stack) -> None:
    a, b, c = stack.session(), stack.session(), stack.session()
    for session, name in ((a, b"a"), (b, b"b"), (c, b"c")):
        put(session.at("c/i.db-wal"), name)
        put(session.at("c/i.db"), HEADER + name)
    put(a.at("c/f.db"), HEADER + b"a")
    put(c.at("o"), "C\n")
    put(b.at("c/f.db-wal"), b"b")
    a.publish()
    assert b.rejected() == {"c/f.db": "unit"}
    assert published_notices(c) == [("derived", "c/i.db")]


def test_a_notice_says_on_the_wire_what_it_is_about() -> None:
    assert Notice("derived", "a.pyc", number=3).to_json() == {"kind": "derived", "path": "a.pyc", "count": 3}
