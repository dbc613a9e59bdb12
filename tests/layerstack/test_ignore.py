"""`.gitignore` rules decide what git decides: every verdict here is compared with `git check-ignore` on a
real tree.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from layerstack.text import gitignore
from layerstack.text.gitignore import KEPT_BYTES, IgnoreRules, parse

Tree = Mapping[str, bytes | None]  # path -> content, None for a directory


def rules_of(tree: Tree) -> IgnoreRules:
    return IgnoreRules(tree.get)


def ours(tree: Tree) -> set[str]:
    rules = rules_of(tree)
    return {path for path, content in tree.items() if rules.ignored(path, content is None)}


def gits(tree: Tree) -> set[str]:
    with tempfile.TemporaryDirectory(prefix="ig") as root:
        for path, content in sorted(tree.items()):
            where = os.path.join(root, path)
            if content is None:
                os.makedirs(where, exist_ok=True)
            else:
                os.makedirs(os.path.dirname(where), exist_ok=True)
                Path(where).write_bytes(content)
        env = {
            "PATH": os.environ["PATH"],
            "HOME": root,
            "GIT_CONFIG_NOSYSTEM": "1",
            "GIT_DIR": os.path.join(root, ".git"),
            "GIT_WORK_TREE": root,
        }
        git = ["git", "-c", "core.excludesFile=/dev/null"]
        os.makedirs(os.path.join(root, ".git", "objects"))
        os.makedirs(os.path.join(root, ".git", "refs"))
        Path(root, ".git", "HEAD").write_text("ref: refs/heads/main\n")
        asked = b"".join(os.fsencode(path) + b"\0" for path in tree)
        done = subprocess.run(
            [*git, "check-ignore", "--no-index", "-z", "--stdin"],
            input=asked,
            capture_output=True,
            cwd=root,
            env=env,
            check=False,
        )
        assert done.returncode in (0, 1), done.stderr
        return {os.fsdecode(path) for path in done.stdout.split(b"\0") if path}


def whole(paths: Mapping[str, bytes | None]) -> dict[str, bytes | None]:
    """The tree with the directories that its paths need; a path below a file is left out."""
    out: dict[str, bytes | None] = {}
    for path, content in sorted(paths.items()):
        above = [path[:n] for n in range(len(path)) if path[n] == "/"]
        if any(out.get(directory) is not None for directory in above):
            continue
        for directory in above:
            out[directory] = None
        if out.get(path, b"") is not None:
            out[path] = content
    return out


NAMES = [
    "a",
    "b",
    "ab",
    "foo",
    "foo.c",
    "bar",
    "x y",
    "#a",
    "!a",
    "a ",
    "[a]",
    "a\\b",
    "*",
    "é",
    "\udcff",
    "a\nb",
    "-",
    "A",
    "foobar",
]
TOKENS = [
    "a",
    "b",
    "foo",
    "bar",
    ".c",
    "*",
    "*",
    "?",
    "/",
    "/",
    "**",
    "**/",
    "/**",
    "/**/",
    "[ab]",
    "[!a]",
    "[^b]",
    "[a-f]",
    "[]a]",
    "[a",
    "[[:alpha:]]",
]
TOKENS += [
    "[\\]a]",
    "[z-a]",
    "[a-]",
    "[[:nope:]]",
    "[/]",
    "[!/]",
    "\\a",
    "\\*",
    "\\!",
    "\\#",
    "\\",
    "\\ ",
    " ",
    "#",
    "!",
    "é",
    "x y",
    "\t",
    "-",
    "\r",
]

names = st.sampled_from(NAMES)
paths = st.lists(names, min_size=1, max_size=4).map("/".join)
rules = st.builds(
    lambda negated, tokens, tail: ("!" if negated else "") + "".join(tokens) + tail,
    st.booleans(),
    st.lists(st.sampled_from(TOKENS), min_size=1, max_size=5),
    st.sampled_from(["", "", "/", " ", "\r"]),
)


def star_star_after_text(rule: str) -> bool:
    """`text**` as the first special characters: git before 2.41 compared unrelated pointers there and answers
    at random.
    """
    body = rule.removeprefix("!")
    first = next((n for n, c in enumerate(body) if c in "*?[\\"), len(body))
    return first > 0 and body[first : first + 2] == "**" and body[first - 1] != "/"


files_of_rules = st.lists(
    rules.filter(lambda rule: not star_star_after_text(rule)), min_size=1, max_size=5
).map(lambda lines: "\n".join(lines).encode())


@st.composite
def trees(draw: st.DrawFn) -> dict[str, bytes | None]:
    tree: dict[str, bytes | None] = {}
    for path in draw(st.lists(paths, min_size=1, max_size=12)):
        tree[path] = draw(st.sampled_from([b"", b"", None]))
    tree[".gitignore"] = draw(files_of_rules)
    for path in draw(st.lists(paths, max_size=2)):
        tree[f"{path}/.gitignore"] = draw(files_of_rules)
    return whole(tree)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(trees())
@example({".gitignore": b"*.c\n!foo\n", "foo": None, "foo/x.c": b""})
@example({".gitignore": b"build/\n!build/keep\n", "build": None, "build/keep": b""})
@example({".gitignore": b"/a\n", "a": b"", "b": None, "b/a": b""})
@example(
    {
        ".gitignore": b"foo/**/bar\n",
        "foo": None,
        "foo/bar": b"",
        "foo/a": None,
        "foo/a/b": None,
        "foo/a/b/bar": b"",
    }
)
def test_every_verdict_is_that_of_git_check_ignore(tree: dict[str, bytes | None]) -> None:
    assert ours(tree) == gits(tree)


@pytest.mark.parametrize(
    ("rules_text", "path", "is_dir", "ignored"),
    [
        (b"out/\n", "out", False, False),
        (b"out/\n", "out", True, True),
        (b"out/\n", "out/deep/file", False, True),
        (b"*.o\n!keep.o\n", "lib/keep.o", False, False),
        (b"!keep.o\n*.o\n", "lib/keep.o", False, True),
        (b"/root-only\n", "sub/root-only", False, False),
        (b"a/b\n", "x/a/b", False, False),
        (b"**/b\n", "x/a/b", False, True),
        (b"a/**\n", "a", True, False),
        (b"\\#name\n", "#name", False, True),
        (b"\\!name\n", "!name", False, True),
        (b"name \n", "name", False, True),
        (b"name\\ \n", "name ", False, True),
        (b"name\r\n", "name", False, True),
        (b"\xef\xbb\xbfname\n", "name", False, True),
        (b"caf?\n", "caf\u00e9", False, False),
        (b"caf??\n", "caf\u00e9", False, True),
        (b"caf\xe9\n", "caf\udce9", False, False),
        (b"*\xff\n*.o\n", "x.o", False, False),
        (b"[[:digit:]]x\n", "7x", False, True),
        (b"*\n", "", True, False),
    ],
)
def test_a_rule_of_the_manual_page_holds(rules_text: bytes, path: str, is_dir: bool, ignored: bool) -> None:
    assert IgnoreRules({".gitignore": rules_text}.get).ignored(path, is_dir) is ignored


def test_a_deeper_file_beats_a_shallower_one_but_cannot_open_an_excluded_directory() -> None:
    tree: dict[str, bytes | None] = whole(
        {
            ".gitignore": b"*.log\nsealed/\n",
            "open/.gitignore": b"!keep.log\n",
            "open/keep.log": b"",
            "open/other.log": b"",
            "sealed/.gitignore": b"!keep.log\n",
            "sealed/keep.log": b"",
        }
    )
    assert ours(tree) == gits(tree) == {"open/other.log", "sealed", "sealed/.gitignore", "sealed/keep.log"}


def test_a_file_is_read_once_and_equal_contents_are_parsed_once() -> None:
    asked: list[str] = []

    def read(path: str) -> bytes | None:
        asked.append(path)
        return b"*.test-of-the-cache\n" if path in (".gitignore", "a/.gitignore") else None

    rules = IgnoreRules(read)
    for _ in range(3):
        assert rules.ignored("a/b/x.test-of-the-cache", False)
        assert not rules.ignored("a/b/x", False)
    assert sorted(asked) == [".gitignore", "a/.gitignore", "a/b/.gitignore"]
    assert parse(b"*.test-of-the-cache\n") is parse(bytes(bytearray(b"*.test-of-the-cache\n")))


def test_stars_by_the_dozen_take_no_exponential_time() -> None:
    rules = IgnoreRules({".gitignore": b"a*a*a*a*a*a*a*a*a*a*a*a*b\n/**/**/**/**/*a*a*a*a*a*ab\n"}.get)
    assert not rules.ignored("/".join(["a" * 250] * 16), False)


def test_double_stars_by_the_dozen_take_no_exponential_time() -> None:
    """One regular expression for it would try each way of dividing forty names among twelve gaps."""
    rules = IgnoreRules({".gitignore": b"**/a/" * 12 + b"b\n" + b"x/**/" * 12 + b"**\\/" * 12 + b"y\n"}.get)
    deep = "/".join("a" * 40)
    assert not rules.ignored(f"{deep}/f", False)
    assert rules.ignored(f"{deep}/b", False)
    assert rules.ignored("/".join("x" * 40 + "y" * 13), False)
    assert not rules.ignored("/".join("x" * 40 + "z"), False)


HOSTILE = st.lists(
    st.sampled_from(["**/", "a/", "**/a/", "b/", "*/", "**\\/", "?/", "[ab]/", "/**/"]),
    min_size=4,
    max_size=14,
).map("".join)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    pattern=HOSTILE,
    tail=st.sampled_from(["a", "b", "**", "*"]),
    names=st.lists(st.sampled_from("ab"), min_size=1, max_size=9),
)
def test_patterns_of_many_double_stars_decide_as_git_does(pattern: str, tail: str, names: list[str]) -> None:
    tree = whole({".gitignore": (pattern + tail).encode(), "/".join(names): b""})
    assert ours(tree) == gits(tree)


@pytest.mark.parametrize(
    ("rules", "why"),
    [
        (b"\n".join(b"name%d" % n for n in range(40_000)), "262144 bytes"),
        (b"\n".join(b"[[:alpha:]x%d]" % n for n in range(4_000)), "wildcards"),
        (b"\n".join(b"a%d/**/b" % n for n in range(600)), "in the middle"),
    ],
)
def test_a_file_beyond_the_limits_has_no_rules_and_is_named(rules: bytes, why: str) -> None:
    read = {".gitignore": rules + b"\n*.log\n", "sub/.gitignore": b"*.tmp\n"}.get
    found = IgnoreRules(read)
    assert not found.ignored("x.log", False)
    assert found.ignored("sub/x.tmp", False)
    assert list(found.refused) == [".gitignore"]
    assert why in found.refused[".gitignore"]


def test_many_plain_lines_are_looked_up_and_the_last_one_decides() -> None:
    lines = [f"name{n}" for n in range(20_000)] + [
        "!name7",
        "dir/",
        "!sub/name9",
        "*.c",
        "!name10",
        "name10/",
    ]
    rules = IgnoreRules({".gitignore": "\n".join(lines).encode()}.get)
    assert rules.ignored("name8", False)
    assert not rules.ignored("name7", True)
    assert not rules.ignored("dir", False)
    assert rules.ignored("dir", True)
    assert not rules.ignored("sub/name9", False)
    assert rules.ignored("other/name9", False)
    assert rules.ignored("name10", True)
    assert not rules.ignored("name10", False)


def test_what_is_remembered_of_a_tree_has_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gitignore, "KEPT_BYTES", KEPT_BYTES // 10)
    big = b"\n".join(b"name%d" % n for n in range(2_000))
    rules = IgnoreRules(lambda path: big + path.encode())
    for n in range(5):  # two of them are more than is kept
        assert rules.ignored(f"d{n}/name7", False)
        assert rules.weight <= KEPT_BYTES // 10 + 800_000
