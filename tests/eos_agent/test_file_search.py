"""file_search: what is found, in which files, page by page, and what an expression without end costs."""

from __future__ import annotations

import json
import os
import select
from collections.abc import Generator
from typing import Any

import pytest

from eos_agent.files.globs import compile_glob
from eos_agent.files.search import KILL_S, PAGE_BYTES, PAGE_MATCHES, Place, Tell, place_of
from eos_agent.init.loop import MAX_WORKERS
from eos_agent.wire.protocol import OperationError

from .agent_process import Agent, Failed
from .child_calls import FileTree, aside


class Tree(FileTree):
    def reply(self, pattern: str, kill_s: float = 30.0, **args: Any) -> dict[str, Any]:
        given = {"pattern": pattern, "regex": False, "path": "", "include_ignored": False, **args}
        return self.ask("search", given, kill_s)

    def search(self, pattern: str, **args: Any) -> dict[str, Any]:
        reply = self.reply(pattern, **args)
        assert "result" in reply, reply
        found: dict[str, Any] = reply["result"]
        return found

    def lines(self, pattern: str, **args: Any) -> list[tuple[str, int]]:
        """Path and line of every match, over all pages."""
        found: list[tuple[str, int]] = []
        cursor: str | None = ""
        while cursor is not None:
            page = self.search(pattern, **args, **({"cursor": cursor} if cursor else {}))
            assert len(page["matches"]) <= PAGE_MATCHES and (page["next"] is None) == ("stopped" not in page)
            found += [(match["path"], match["line"]) for match in page["matches"]]
            cursor = page["next"]
        return found

    def refused(self, pattern: str, **args: Any) -> dict[str, Any]:
        error: dict[str, Any] = self.reply(pattern, **args)["error"]
        return error


@pytest.fixture
def tree(short_dir: str) -> Tree:
    return Tree(short_dir)


def test_a_literal_is_found_as_it_stands_and_an_expression_by_lines(tree: Tree) -> None:
    tree.put("a.py", "def f(x):\r\n    return x[0]*2\n\ndef g(): pass")
    tree.put("b/c.txt", "x[0]\n")
    assert tree.search("x[0]")["matches"] == [
        {"path": "a.py", "line": 2, "column": 12, "text": "    return x[0]*2"},
        {"path": "b/c.txt", "line": 1, "column": 1, "text": "x[0]"},
    ]
    assert tree.lines(r"^def \w+\(.*:$", regex=True) == [("a.py", 1)]  # the line's end is before the CR
    assert tree.lines(r"pass$", regex=True) == [("a.py", 4)]
    assert tree.lines("(?i)DEF F", regex=True) == [("a.py", 1)]
    assert tree.lines(r"\s+def", regex=True) == []  # white space does not reach over a line's end
    assert tree.lines("none of it") == []


def test_text_that_is_no_utf8_is_searched_and_columns_count_characters(tree: Tree) -> None:
    tree.put("latin", b"caf\xe9 au lait\n")
    tree.put("utf8", "d\u00e9j\u00e0 vu\n")
    (match,) = tree.search("lait")["matches"]
    assert (match["text"], match["column"]) == ("caf\ufffd au lait", 9)
    (match,) = tree.search("\u00e0 vu")["matches"]
    assert (match["path"], match["column"]) == ("utf8", 4)


def test_ignored_files_git_and_binaries_are_left_out_unless_they_are_named(tree: Tree) -> None:
    tree.put(".gitignore", "*.log\n/build/\n")
    for path in ("src/a.py", "x.log", "build/b.py", ".git/config", "sub/.git/config", ".hidden"):
        tree.put(path, "needle\n")
    tree.put("sub/.gitignore", "gen*\n!general\n")
    tree.put("sub/generated", "needle")
    tree.put("sub/general", "needle")
    tree.put("image", b"needle\0")
    found = tree.search("needle")
    assert [match["path"] for match in found["matches"]] == [".hidden", "src/a.py", "sub/general"]
    assert found["skipped"] == {"binary": 1, "unreadable": 0}
    assert tree.lines("needle", path="build") == [("build/b.py", 1)]
    assert tree.lines("needle", path=".git") == [(".git/config", 1)]
    assert tree.lines("needle", path="x.log") == [("x.log", 1)]
    assert tree.lines("needle", glob="*.log") == [("x.log", 1)]
    everything = [path for path, _ in tree.lines("needle", include_ignored=True)]
    assert everything == [".hidden", "build/b.py", "src/a.py", "sub/general", "sub/generated", "x.log"]


def test_symlinks_and_special_files_are_not_followed_or_opened(tree: Tree) -> None:
    tree.put("real/f", "needle\n")
    os.symlink("real", os.path.join(tree.root, "dir"))
    os.symlink("real/f", os.path.join(tree.root, "file"))
    os.mkfifo(os.path.join(tree.root, "fifo"))
    assert tree.lines("needle") == [("real/f", 1)]
    assert tree.refused("needle", path="file")["details"]["target"] == "real/f"
    assert tree.refused("needle", path="dir/f")["kind"] == "invalid_request"
    assert tree.refused("needle", path="none")["kind"] == "not_found"


@pytest.mark.parametrize(
    ("glob", "chosen"),
    [
        ("*.py", {"a.py", "src/b.py", "src/deep/c.py"}),
        ("src/*.py", {"src/b.py"}),
        ("src/**/*.py", {"src/b.py", "src/deep/c.py"}),
        ("src/", {"src/b.py", "src/deep/c.py", "src/x.min.js"}),
        ("*.{ts,js}", {"src/x.min.js", "t.ts"}),
        ("!*.min.js", {"a.py", "src/b.py", "src/deep/c.py", "t.ts", "#x"}),
        ("{a,t}.{py,ts}", {"a.py", "t.ts"}),
        ("#x", {"#x"}),
        ("{}", set[str]()),
        (None, {"a.py", "src/b.py", "src/deep/c.py", "src/x.min.js", "t.ts", "#x"}),
    ],
)
def test_a_glob_chooses_files_as_a_line_of_gitignore_would(glob: str | None, chosen: set[str]) -> None:
    paths = ("a.py", "src/b.py", "src/deep/c.py", "src/x.min.js", "t.ts", "#x")
    test = compile_glob(glob, "")
    assert {path for path in paths if test(path)} == chosen


def test_a_glob_also_counts_from_the_directory_that_is_searched() -> None:
    assert compile_glob("deep/*.py", "src")("src/deep/c.py")
    assert compile_glob("src/deep/*.py", "src")("src/deep/c.py")
    assert not compile_glob("deep/*.py", "")("src/deep/c.py")
    for glob in ("{a,b}" * 20, "x" * 2000, "\ud800", "a\nb"):
        with pytest.raises(OperationError):
            compile_glob(glob, "")


def test_pages_of_any_tree_are_the_whole_in_order_without_doubles(tree: Tree) -> None:
    expected: list[tuple[str, int]] = []
    for name in sorted(["a", "a.b/x", "a-b", "b/\u00e9", "b/c/d", "z"]):
        tree.put(name, "".join(f"{'needle' if n % 3 else 'hay'} {n}\n" for n in range(1, 200)))
    order = ["a", "a-b", "a.b/x", "b/c/d", "b/\u00e9", "z"]
    for name in order:
        expected += [(name, n) for n in range(1, 200) if n % 3]
    assert tree.lines("needle") == expected
    assert tree.lines("^needle", regex=True) == expected


def test_a_page_is_bounded_in_bytes_and_a_long_line_is_cut_around_its_match(tree: Tree) -> None:
    tree.put("min.js", "x" * 100_000 + "needle" + "y" * 100_000 + "\n")
    tree.put("many", ("needle " + "z" * 230 + "\n") * 300)
    page = tree.search("needle")
    assert page["stopped"] == "bytes" and sum(len(match["text"]) for match in page["matches"]) < PAGE_BYTES
    assert len(tree.lines("needle")) == 301
    (match,) = tree.search("needle", path="min.js")["matches"]
    assert match["cut"] is True and match["column"] == 100_001 and len(match["text"]) < 300
    assert (
        match["text"].startswith("\u2026xxx")
        and "needle" in match["text"]
        and match["text"].endswith(" more characters]")
    )


def test_a_match_in_a_file_of_many_blocks_has_its_line(tree: Tree) -> None:
    line = "0123456789" * 10 + "\n"
    tree.put("big", line * 100_000 + "needle\n" + line * 10_000 + "needle")
    assert tree.lines("needle") == [("big", 100_001), ("big", 110_002)]
    assert tree.lines("^needle$", regex=True) == [("big", 100_001), ("big", 110_002)]


def test_a_cursor_goes_on_in_a_tree_that_changed_and_a_foreign_one_is_refused(tree: Tree) -> None:
    for name in ("a", "b", "c"):
        tree.put(name, "needle\n" * 150)
    first = tree.search("needle")
    place = place_of(first["next"])
    assert place == Place("b", 50 * 7, 51)
    os.unlink(os.path.join(tree.root, "b"))
    rest = tree.search("needle", cursor=first["next"])
    assert {match["path"] for match in rest["matches"]} == {"c"} and rest["next"] is None
    for cursor in ("zzz", "AAAA", "\u00e9", Place("x", 1, 1).cursor()[:-4], Place("a", 1 << 63, 1).cursor()):
        assert tree.refused("needle", cursor=cursor)["details"]["reason"] == "invalid_cursor"


@pytest.mark.parametrize("glob", ["[", "src/[a", "*.{py,[}", "!["])
def test_a_glob_that_can_match_nothing_is_an_error_that_names_it_and_not_an_empty_answer(
    tree: Tree, glob: str
) -> None:
    error = tree.refused("x", glob=glob)
    assert (error["kind"], error["details"]["argument"], error["details"]["reason"]) == (
        "invalid_request",
        "glob",
        "invalid_pattern",
    )
    assert error["details"]["value"] == glob and repr(glob) in error["message"]
    assert tree.search("x", glob=r"\[")["matches"] == []


@pytest.mark.parametrize(
    ("pattern", "regex"),
    [("", False), ("a\nb", False), ("(", True), ("a" * 9000, False), ("*", True), ("\ud800", False)],
)
def test_a_pattern_that_cannot_be_looked_for_is_refused_by_name(
    tree: Tree, pattern: str, regex: bool
) -> None:
    error = tree.refused(pattern, regex=regex)
    assert (error["kind"], error["details"]["argument"], error["details"]["reason"]) == (
        "invalid_request",
        "pattern",
        "invalid_pattern",
    )


def test_an_expression_without_end_is_an_error_that_names_the_line_and_what_was_found_before_is_kept(
    tree: Tree,
) -> None:
    tree.put("a", "aaab\n")
    tree.put("b", "ok\nok\n" + "a" * 40 + "c\n")
    first = tree.search("(a+)+b|ok", regex=True, limit_s=0.3)
    assert [(match["path"], match["line"]) for match in first["matches"]] == [("a", 1), ("b", 1), ("b", 2)]
    assert first["stopped"] == "time"
    error = tree.refused("(a+)+b|ok", regex=True, limit_s=0.3, cursor=first["next"])
    assert (error["kind"], error["details"]["reason"]) == ("invalid_request", "search_too_slow")
    assert (error["details"]["path"], error["details"]["line"]) == ("b", 3)
    error = tree.refused("(a+)+b|ok", regex=True, limit_s=0.3, path="b", cursor=first["next"])
    assert error["details"]["line"] == 3


def test_an_expression_that_wants_all_memory_is_an_error_that_names_the_line(tree: Tree) -> None:
    tree.put("long", "ab" * 2_000_000 + "\n")
    error = tree.refused("(a|b|c)+d$", regex=True)
    assert (error["details"]["reason"], error["details"]["line"]) == ("search_too_large", 1)


def test_a_search_that_has_to_be_killed_answers_with_what_it_had_found(tree: Tree) -> None:
    """`re` takes a run over a whole line for one step, and looks for no signal in it."""
    tree.put("long", "ab" * 2_000_000 + "\n")
    error = tree.refused("(?:a|b)*c", regex=True, limit_s=0.2, kill_s=0.4)
    assert (error["details"]["reason"], error["details"]["path"], error["details"]["line"]) == (
        "search_too_slow",
        "long",
        1,
    )
    tree.put("a", "abc\n")
    page = tree.search("(?:a|b)*c", regex=True, limit_s=0.2, kill_s=0.4)
    assert [match["path"] for match in page["matches"]] == ["a"]
    assert (page["stopped"], place_of(page["next"])) == ("time", Place("long", 0, 1))


def test_a_child_that_does_not_come_to_its_end_is_killed_and_one_that_was_killed_is_distinguished() -> None:
    def never(_tell: Tell) -> dict[str, Any]:
        while True:
            select.select([], [], [])

    def die(_tell: Tell) -> dict[str, Any]:
        os._exit(9)

    assert aside(never, 0.1)["error"]["details"]["reason"] == "operation_too_slow"
    assert aside(die, None)["error"]["details"]["reason"] == "operation_killed"
    assert aside(lambda _tell: {"result": "x" * 2_000_000}, None)["result"] == "x" * 2_000_000
    assert KILL_S > 1


# In a sandbox

BESIDE_THE_RUNNER = "until [ $(cat /proc/[0-9]*/comm | grep -c ^python) -gt 1 ]; do :; done"
"""Until two processes of the session are the agent's: what serves its files (Python's pid 1, or the helper
beside the native one), and a search under way.
"""


@pytest.fixture(scope="module")
def searched(shared_agent: Agent) -> Generator[tuple[Agent, str]]:
    """The shared agent, and a session in which other things stand."""
    session = shared_agent.session()
    shared_agent.run("mkdir -p new; echo 'only needle here' > new/f; echo needle >> src/app.py", session)
    yield shared_agent, session
    shared_agent.call("destroy_workspace_session", workspace_session_id=session)


def found(answer: dict[str, Any]) -> list[tuple[str, int]]:
    return [(match["path"], match["line"]) for match in answer["matches"]]


@pytest.mark.needs("overlay")
def test_the_head_and_a_session_are_searched_alike_and_apart(searched: tuple[Agent, str]) -> None:
    agent, session = searched
    before = agent.version()
    assert found(agent.call("file_search", pattern="needle")) == []
    assert found(agent.call("file_search", pattern="t[wh]", regex=True)) == [
        ("src/app.py", 2),
        ("src/app.py", 3),
    ]
    assert found(agent.call("file_search", pattern="needle", workspace_session_id=session)) == [
        ("new/f", 1),
        ("src/app.py", 8),
    ]
    assert (agent.version(), len(agent.call("list_workspace_sessions")["sessions"])) == (before, 1)
    with pytest.raises(Failed) as caught:
        agent.call("file_search", pattern="x", workspace_session_id="none")
    assert caught.value.kind == "not_found"


@pytest.mark.needs("overlay")
def test_a_search_holds_up_neither_commands_nor_files_of_its_session(searched: tuple[Agent, str]) -> None:
    """A FIFO in the place of a directory would be the simplest brake; a search opens none. So it runs beside
    a loop of commands.
    """
    agent, session = searched
    agent.run(
        "seq 1 60000 > new/numbers; for i in 1 2; do cat new/numbers new/numbers > new/n$i; done", session
    )
    connection = agent.connect()
    try:
        line = agent.line("file_search", pattern="(?:[0-9]+)+x", regex=True, workspace_session_id=session)
        connection.socket.sendall(line)
        answered = 0
        while not select.select([connection.socket], [], [], 0)[0]:
            result = agent.run("echo beside", session)
            assert result["output"] == "beside" and "left_behind" not in result
            assert agent.read("README.md", workspace_session_id=session) == "hello"
            answered += 1
        assert connection.file.readline()
        assert answered > 0
    finally:
        connection.close()


@pytest.mark.needs("overlay")
def test_a_search_that_starts_beside_a_command_is_none_of_its_processes(searched: tuple[Agent, str]) -> None:
    agent, session = searched
    agent.run("printf %040d 0 | tr 0 a > new/line", session)
    command = agent.run("read x; exit 7", session, yield_time_ms=0)["command_session_id"]
    connection = agent.connect()
    try:
        args = {"pattern": "(a+)+b", "regex": True, "path": "new/line", "workspace_session_id": session}
        connection.socket.sendall(agent.line("file_search", **args))
        assert agent.run(BESIDE_THE_RUNNER, session, tty=False)["status"] == "ok"
        ended = agent.call(
            "write_command_stdin", command_session_id=command, stdin="\n", yield_time_ms=20_000
        )
        assert (ended["status"], ended["exit_code"]) == ("error", 7) and "left_behind" not in ended
        assert not select.select([connection.socket], [], [], 0)[0]  # it still looks
    finally:
        connection.close()


@pytest.mark.needs("overlay")
def test_a_search_whose_session_ends_meanwhile_says_what_became_of_it(shared_agent: Agent) -> None:
    session = shared_agent.session()
    shared_agent.run("printf %040d 0 | tr 0 a > line", session)
    connection = shared_agent.connect()
    try:
        connection.socket.sendall(
            shared_agent.line("file_search", pattern="(a+)+b", regex=True, workspace_session_id=session)
        )
        assert shared_agent.run(BESIDE_THE_RUNNER, session, tty=False)["status"] == "ok"
        shared_agent.call("destroy_workspace_session", workspace_session_id=session)
        error = json.loads(connection.file.readline())["error"]
        assert (error["kind"], error["details"]["reason"]) == ("not_found", "session_not_found")
    finally:
        connection.close()


@pytest.mark.needs("overlay")
def test_searches_of_one_session_at_once_have_a_limit_that_the_refusal_names(shared_agent: Agent) -> None:
    session = shared_agent.session()
    shared_agent.run("printf %040d 0 | tr 0 a > line", session)
    args = {"pattern": "(a+)+b", "regex": True, "workspace_session_id": session}
    connections = [shared_agent.connect() for _ in range(MAX_WORKERS + 1)]
    try:
        for connection in connections:
            connection.socket.sendall(shared_agent.line("file_search", **args))
        (first, *_), _, _ = select.select([connection.socket for connection in connections], [], [])
        refused = next(connection for connection in connections if connection.socket is first)
        error = json.loads(refused.file.readline())["error"]
        assert (error["kind"], error["details"]["limit"], error["details"]["retryable"]) == (
            "server_busy",
            MAX_WORKERS,
            True,
        )
        assert shared_agent.run("echo others go on", session)["output"] == "others go on"
        shared_agent.call("destroy_workspace_session", workspace_session_id=session)
    finally:
        for connection in connections:
            connection.close()
