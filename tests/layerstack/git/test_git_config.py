"""Configuration: read as git reads it, and merged by key so that git sees the values of both sides."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from layerstack.git.config_merge import merge_configs
from layerstack.git.git_config import ConfigSyntax, GitConfig
from tests.git_trees import QUIET, git, repository

GIT_S = 60


def listed(data: bytes) -> list[bytes] | None:
    """`key LF value`, or `key`, for each variable as git lists them; None where git refuses the file."""
    done = subprocess.run(
        ["git", "config", "--list", "-z", "--file", "-", "--no-includes"],
        input=data,
        env={"PATH": "/usr/bin:/bin", **QUIET},
        capture_output=True,
        check=False,
        timeout=GIT_S,
    )
    return done.stdout.split(b"\0")[:-1] if done.returncode == 0 else None


def plain(rows: list[bytes] | None) -> list[bytes] | None:
    """Blanks as spaces: a git before 2.45 turns each blank inside of a value into one."""
    return rows and [row.replace(b"\t", b" ").replace(b"\r", b" ") for row in rows]


def as_listed(data: bytes) -> list[bytes] | None:
    try:
        found = GitConfig.parse(data)
    except ConfigSyntax:
        return None
    assert found.to_bytes() == data
    rows: list[bytes] = []
    for key, value in found.items():
        middle = b"" if key.subsection is None else key.subsection + b"."
        rows.append(key.section + b"." + middle + key.name + (b"" if value is None else b"\n" + value))
    return rows


PLAIN = b"""\
# first
[core]
\trepositoryformatversion = 0
\tbare = false ; of the repository
\tFileMode
[remote "origin"]
\turl = "https://example.org/a b.git"
\tfetch = +refs/heads/*:refs/remotes/origin/*
\tfetch = +refs/notes/*:refs/notes/*
[branch "a\\"b\\\\c"] remote = origin
[Sect.Sub] x = y
[Sect.sub "Up Per"] x = y\\
  z
[alias] q = !sh -c \\"a b\\" - \\
\tmore ; end
"""


@pytest.mark.parametrize(
    "data",
    [
        PLAIN,
        PLAIN.replace(b"\n", b"\r\n"),
        b"\xef\xbb\xbf[a]\nb\n",
        b"[a]b=c",
        b'[a]\n\tb = "x ; y" # z\n\tc = a  b  \n\td =   \n\te = x\\ty\\\\ \\"\n',
        b'[a]\n\tb = "open\n',
        b"[a\n",
        b"[a]\n\t1b = c\n",
        b'[a "b\n"]\n',
        b"[a]\n\tb = x\\q\n",
        b"[]\n\tb = c\n",
        b'[a"b"]\n\tc = d\n',
        b"",
    ],
)
def test_a_file_is_read_as_git_reads_it(data: bytes) -> None:
    assert plain(as_listed(data)) == plain(listed(data))


pieces = st.sampled_from(
    [
        "[a]",
        '[a "b"]',
        "[a.b]",
        "\n",
        "\n",
        "\t",
        " ",
        "x",
        "y = 1",
        "=",
        "#",
        ";",
        '"',
        "\\",
        "\\n",
        "\\\n",
        "]",
        "[",
        "é",
        "\r",
        "k-1",
    ]
)


def check_random(found: list[str]) -> None:
    data = "".join(found).encode()
    assert plain(as_listed(data)) == plain(listed(data)), data


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(pieces, min_size=2, max_size=14).map(lambda parts: ["[s]\n", *parts]))
def test_random_texts_are_read_as_git_reads_them(found: list[str]) -> None:
    check_random(found)


@pytest.mark.soak
@settings(max_examples=2000, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(pieces, min_size=2, max_size=30).map(lambda parts: ["[s]\n", *parts]))
def test_many_random_texts_are_read_as_git_reads_them(found: list[str]) -> None:
    check_random(found)


def changed(folder: Path, base: bytes, *commands: tuple[str, ...]) -> bytes:
    path = folder / "file"
    path.write_bytes(base)
    for words in commands:
        git(folder, "config", "--file", "file", *words)
    return path.read_bytes()


def test_sections_values_and_deletions_of_both_sides_are_united(tmp_path: Path) -> None:
    base = PLAIN
    ours = changed(
        tmp_path,
        base,
        ("branch.one.remote", "origin"),
        ("branch.one.merge", "refs/heads/one"),
        ("--add", "remote.origin.fetch", "+refs/ours/*:refs/ours/*"),
        ("core.bare", "true"),
        ("--unset", "alias.q"),
    )
    head = changed(
        tmp_path,
        base,
        ("branch.two.remote", "origin"),
        ("branch.two.merge", "refs/heads/two"),
        ("--unset", "remote.origin.fetch", "notes"),
        ("--add", "remote.origin.fetch", "+refs/head/*:refs/head/*"),
        ("core.filemode", "false"),
        ("remote.origin.url", "https://example.org/other;x"),
        ("sect.sub.new", 'a "quoted" # value'),
    )
    merged = merge_configs(base, ours, head)
    assert merged.content is not None and merged.conflicts == () and merged.replaced == ()
    expected = {
        row for row in listed(ours) or [] if row in (listed(head) or []) or row not in (listed(base) or [])
    }
    expected |= {row for row in listed(head) or [] if row not in (listed(base) or [])}
    found = listed(merged.content)
    assert found is not None and set(found) == expected and len(found) == len(expected)
    assert b"# first" in merged.content and b"; of the repository" not in merged.content
    other = merge_configs(base, head, ours)
    assert other.content is not None and set(listed(other.content) or []) == expected


def test_a_key_with_two_new_values_is_a_conflict_by_its_name(tmp_path: Path) -> None:
    base = b"[core]\n\teol = lf\n"
    ours = changed(tmp_path, base, ("core.eol", "crlf"), ("remote.x.url", "a"))
    head = changed(tmp_path, base, ("core.eol", "native"), ("remote.x.url", "b"))
    merged = merge_configs(base, ours, head)
    assert merged.content is None and merged.conflicts == ("config: core.eol",)
    one = merge_configs(base, changed(tmp_path, base, ("--unset", "core.eol")), head)
    assert one.conflicts == ("config: core.eol",)


def test_identities_that_two_agents_set_are_no_conflict(tmp_path: Path) -> None:
    ours = changed(tmp_path, b"", ("user.name", "Ours"), ("user.email", "ours@example.org"))
    head = changed(tmp_path, b"", ("user.name", "Head"))
    merged = merge_configs(None, ours, head)
    assert merged.content == ours and merged.replaced == ("user.name",)


def test_a_branch_that_one_side_deleted_keeps_the_settings_that_the_other_gave_it(tmp_path: Path) -> None:
    base = changed(tmp_path, b"", ("branch.x.remote", "a"), ("branch.x.merge", "refs/heads/x"))
    gone = changed(tmp_path, base, ("--remove-section", "branch.x"))
    used = changed(tmp_path, base, ("branch.x.remote", "b"))
    for sides in ((gone, used), (used, gone)):
        merged = merge_configs(base, *sides)
        assert merged.content is not None
        assert b"branch.x.remote\nb" in (listed(merged.content) or [])


def test_one_changed_side_and_a_side_that_git_could_not_read() -> None:
    assert merge_configs(PLAIN, PLAIN, b"[a]b").content == b"[a]b"
    assert merge_configs(PLAIN, None, PLAIN).content is None
    assert merge_configs(PLAIN, PLAIN + b"[x]y\n", b"[a]\n[b\n").conflicts == ("config: line 2",)


def test_values_are_found_by_key(tmp_path: Path) -> None:
    folder = repository(tmp_path / "r")
    git(folder, "config", "core.autocrlf", "input")
    config = GitConfig.parse((folder / ".git/config").read_bytes())
    assert config.get(b"core", None, b"autocrlf") == b"input"
    assert config.get(b"core", None, b"missing") is None
    assert GitConfig.parse(b"[a]\nb\n").get(b"a", None, b"b") == b"true"
    assert GitConfig.parse(b'[r "X"]\nu=1\nu=2\n').all(b"r", b"X", b"u") == [b"1", b"2"]


def small() -> st.SearchStrategy[list[tuple[str, ...]]]:
    key = st.sampled_from(["a.x", "a.y", "b.s.x", "b.t.y", "c.z"])
    value = st.sampled_from(["1", "2", " s ", "a;b", 'q"q', "\\", "l\nm"])
    change = (
        st.tuples(key, value)
        | st.tuples(st.just("--unset-all"), key)
        | st.tuples(st.just("--add"), key, value)
    )
    return st.lists(change, max_size=4)


@pytest.mark.soak
@settings(
    max_examples=400,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
@given(small(), small(), small())
def test_a_merge_has_each_change_of_one_side(
    tmp_path_factory: pytest.TempPathFactory,
    start: list[tuple[str, ...]],
    one: list[tuple[str, ...]],
    two: list[tuple[str, ...]],
) -> None:
    folder = tmp_path_factory.mktemp("c")

    def after(base: bytes, changes: list[tuple[str, ...]]) -> bytes:
        path = folder / "file"
        path.write_bytes(base)
        for words in changes:
            subprocess.run(["git", "config", "--file", path, *words], check=False, stderr=subprocess.DEVNULL)
        return path.read_bytes()

    base = after(b"[a] ; first\n\tx = 0 # c\n[empty]\n", start)
    ours, head = after(base, one), after(base, two)
    merged = merge_configs(base, ours, head)
    b, o, h = (set(listed(data) or []) for data in (base, ours, head))
    if merged.content is None:
        assert merged.conflicts
        return
    found = listed(merged.content)
    assert found is not None
    assert set(found) == (b & o & h) | (o - b) | (h - b)
