"""Attributes and conversions of content, compared with `git check-attr`, `hash-object`, `add`, `checkout`."""

from __future__ import annotations

import hashlib
import itertools
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from layerstack.git import attributes as attributes_module
from layerstack.git import worktree_filter
from layerstack.git.attributes import GitAttributes, merge_driver
from layerstack.git.object_format import SHA1, SHA256, ObjectTooLarge, loose_bytes, loose_path
from layerstack.git.worktree_filter import WorktreeFilter, lfs_pointer, parse_pointer
from tests.git_trees import DiskTree, git, repository

SLOW = [HealthCheck.too_slow, HealthCheck.function_scoped_fixture, HealthCheck.data_too_large]


def _attributes(repo: Path) -> GitAttributes:
    def read(path: str) -> bytes | None:
        file = repo / path
        return file.read_bytes() if file.is_file() and not file.is_symlink() else None

    info = repo / ".git/info/attributes"
    return GitAttributes(read, info.read_bytes() if info.exists() else None)


@pytest.fixture(scope="module")
def repo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    yield repository(tmp_path_factory.mktemp("filter") / "r")


def _emptied(repo: Path) -> None:
    for entry in repo.iterdir():
        if entry.name != ".git":
            shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
    for name in ("info/attributes", "index"):
        (repo / ".git" / name).unlink(missing_ok=True)


PATHS = [
    b"a",
    b"a.c",
    b"b.txt",
    b"d/a",
    b"d/a.c",
    b"d/e/a.c",
    b"d/e/f/a",
    b"e/a",
    b"\xff x",
    b"d/a b",
    b'q"c',
    b"!a",
]
PATTERNS = st.sampled_from(
    """a|*.c|/a|d/a|d/*.c|d/**|**/a|**/e/*|*/a|/d/**/a|e|d/|d|a?|[ab]*|\\!a|!a|#x|\\#x|"a"|"d/a b"|"\\377 x"
    |"q\\"c"|"unclosed|[!a]|d/e/**|*|/*|**|d**|**/|a\\|[a""".replace("\n    ", "").split("|")
)
NAMES = st.sampled_from(["text", "eol", "merge", "binary", "m1", "m2", "x.y", "bad/name", "-", "diff"])
SETTING = st.tuples(
    st.sampled_from(["", "", "-", "!"]), NAMES, st.sampled_from(["", "", "=", "=v", "=union", "=a=b"])
).map("".join)
LINE = st.tuples(
    st.sampled_from(["", "", " ", "[attr]"]),
    st.one_of(PATTERNS, st.sampled_from(["[attr]m1", "[attr]m2", "[attr]text", "[attr]", "m1", "m2"])),
    st.sampled_from([" ", "\t", "  "]),
    st.lists(SETTING, max_size=4).map(" ".join),
    st.sampled_from(["\n", "\n", "\r\n"]),
).map("".join)
FILE = st.lists(LINE, max_size=8).map(lambda lines: "".join(lines).encode())


def _same_attributes(repo: Path, files: dict[str, bytes]) -> None:
    _emptied(repo)
    for name, data in files.items():
        (repo / name).parent.mkdir(parents=True, exist_ok=True)
        (repo / name).write_bytes(data)
    fields = git(repo, "check-attr", "-z", "--all", "--stdin", data=b"\0".join(PATHS) + b"\0").split(b"\0")
    wanted: dict[bytes, dict[str, str]] = {path: {} for path in PATHS}
    for path, name, value in zip(*[iter(fields[:-1])] * 3, strict=True):
        wanted[path][name.decode()] = value.decode()
    mine = _attributes(repo)
    for path in PATHS:
        values = mine.of(path).items()
        found = {k: v if isinstance(v, str) else "set" if v else "unset" for k, v in values}
        assert found == wanted[path], (path, files)


FILES = st.fixed_dictionaries(
    {".gitattributes": FILE},
    optional={"d/.gitattributes": FILE, "d/e/.gitattributes": FILE, ".git/info/attributes": FILE},
)


@given(FILES)
@settings(max_examples=25, deadline=None, suppress_health_check=SLOW)
def test_attributes_are_those_of_check_attr(repo: Path, files: dict[str, bytes]) -> None:
    _same_attributes(repo, files)


@pytest.mark.soak
@given(FILES)
@settings(max_examples=3000, deadline=None, suppress_health_check=SLOW)
def test_attributes_of_many_files_are_those_of_check_attr(repo: Path, files: dict[str, bytes]) -> None:
    _same_attributes(repo, files)


@pytest.mark.parametrize(
    "text",
    [
        b"\xef\xbb\xbfa m1\n",
        b"a " + b"x" * 2047 + b"\n",
        b"a " + b"x" * 2045 + b"\nb.txt m1\n",
        b"a m1\0 m2\n",
        b"a m1",
        b"a -m1=v !m2=w m1\n",
        b"[attr]m1 m2 x\n[attr]m2 m1 y\na m1\nb.txt -m1\nd/a !m1\n*.c m1=v\n",
        b"[attr]binary text\na binary\n",
        b'"a"m1\n',
        b'"\\1" m1\n"\\x" m2\n',
    ],
)
def test_odd_lines_are_read_as_git_reads_them(text: bytes, repo: Path) -> None:
    _same_attributes(repo, {".gitattributes": text})


def test_a_file_of_attributes_has_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attributes_module, "RULES_MAX", 3)
    for data in (b"a m1\n" * 4, b"#" * (attributes_module.FILE_MAX + 1)):
        with pytest.raises(ObjectTooLarge, match=r"\.gitattributes"):
            GitAttributes({".gitattributes": data}.get).of(b"a")


def test_the_way_of_merging_is_named() -> None:
    attributes = GitAttributes(
        {".gitattributes": b"a merge=union\nb -merge\nc binary\nd merge=binary\ne merge=ours\nf merge\n"}.get
    )
    found = [merge_driver(attributes.of(name)) for name in (b"a", b"b", b"c", b"d", b"e", b"f", b"g")]
    assert found == ["union", "unset", "unset", "binary", "text", "text", "text"]


IDENTS = [b"$Id$", b"$Id: 1234 $", b"$Id:$", b"$Id: a b $", b"$Id: a\n$", b"$Id:  $", b"$Id", b"$", b"Id$"]
ENDS = [
    b"text\n",
    b"more\r\n",
    b"lone\r",
    b"\r\r\n",
    b"\n",
    b"\0",
    b"\x1a",
    b"\x7f",
    b"\x01" * 3,
    b"word " * 60,
]
PIECES = st.sampled_from([*IDENTS, *ENDS, b"$Id:x y$Id$", b"$Id: a b $Id$", "é".encode(), b"\xff"])
CONTENT = (
    st.lists(PIECES, max_size=7).map(b"".join).filter(lambda data: not re.search(rb"\$Id[^:$]\$Id:", data))
)
"""A checkout of git 2.39 drops bytes of a text such as `$Id` LF `$Id: x$`; ours keeps them."""
KINDS = (
    """
text, -text, text=auto, text=input, text=odd, crlf, ident text=auto, ident text=x crlf=auto,
 -crlf, crlf=input, eol=crlf, eol=lf, text=auto eol=crlf,
text=auto eol=lf, text=input eol=crlf, -text eol=crlf, ident, ident=x, ident eol=crlf, binary, text=odd crlf,
ident text=auto eol=crlf, filter=unknown text, working-tree-encoding=UTF-8 text eol=crlf, -other
""".replace("\n", " ")
    .strip()
    .split(", ")
)
"""What the lines of `.gitattributes` say, one for each name f0, f1 ..."""
CONFIGS = [
    ("false", "native"),
    ("true", "native"),
    ("input", "native"),
    ("false", "crlf"),
    ("false", "lf"),
    ("true", "lf"),
]


def _attribute_lines(kinds: list[str]) -> bytes:
    return "".join(f"f{n} {kind}\n" for n, kind in enumerate(kinds)).encode()


def _config(config: tuple[str, str]) -> list[str]:
    return ["-c", f"core.autocrlf={config[0]}", "-c", f"core.eol={config[1]}", "-c", "core.safecrlf=false"]


def _filter(repo: Path, config: tuple[str, str] = ("false", "native")) -> WorktreeFilter:
    return WorktreeFilter(_attributes(repo), SHA1, autocrlf=config[0], eol=config[1])


def _same_content(repo: Path, contents: list[bytes], kinds: list[str], config: tuple[str, str]) -> None:
    """Compare clean with `hash-object`, and with `add` on an index that has other content; smudge with a
    checkout.
    """
    _emptied(repo)
    names = [f"f{n}".encode() for n in range(len(kinds))]
    (repo / ".gitattributes").write_bytes(_attribute_lines(kinds))
    bodies = list(itertools.islice(itertools.cycle(contents), len(kinds)))
    for name, body in zip(names, bodies, strict=True):
        (repo / os.fsdecode(name)).write_bytes(body)
    how, tree = _filter(repo, config), DiskTree(repo)
    hashed = git(
        repo, *_config(config), "hash-object", "--stdin-paths", data=b"\n".join(names) + b"\n"
    ).split()
    for name, body, oid in zip(names, bodies, hashed, strict=True):
        assert SHA1.oid_of("blob", how.clean(name, body)).hex() == oid.decode(), (name, body, config)
        state = tree.find(os.fsdecode(name))
        assert state is not None and how.oid_of(name, state).hex() == oid.decode()
    blobs = bodies[1:] + bodies[:1]
    stdin = b""
    for name, blob in zip(names, blobs, strict=True):
        oid = SHA1.oid_of("blob", blob)
        file = repo / ".git" / loose_path(oid)
        file.parent.mkdir(exist_ok=True)
        if not file.exists():
            file.write_bytes(loose_bytes("blob", blob))
        stdin += b"100644 %s\t%s\n" % (oid.hex().encode(), name)
    git(repo, "update-index", "--index-info", data=stdin)
    git(repo, *_config(config), "add", "--", *map(os.fsdecode, names))
    rows = git(repo, "ls-files", "-s", "-z", "--", *map(os.fsdecode, names)).split(b"\0")[:-1]
    added = {row.partition(b"\t")[2]: row.split()[1].decode() for row in rows}
    for name, body, blob in zip(names, bodies, blobs, strict=True):
        found = SHA1.oid_of("blob", how.clean(name, body, lambda blob=blob: blob))  # type: ignore[misc]
        assert found.hex() == added[name], (name, body, blob, config)
    git(repo, "update-index", "--index-info", data=stdin)
    git(repo, *_config(config), "checkout-index", "-q", "-f", "--", *map(os.fsdecode, names))
    for name, blob in zip(names, blobs, strict=True):
        assert how.smudge(name, blob) == (repo / os.fsdecode(name)).read_bytes(), (name, blob, config)


CASES = st.tuples(
    st.lists(CONTENT, min_size=2, max_size=12), st.permutations(KINDS), st.sampled_from(CONFIGS)
)


@given(CASES)
@settings(max_examples=12, deadline=None, suppress_health_check=SLOW)
def test_content_is_converted_as_git_converts_it(
    repo: Path, case: tuple[list[bytes], list[str], tuple[str, str]]
) -> None:
    _same_content(repo, *case)


@pytest.mark.soak
@given(CASES)
@settings(max_examples=1500, deadline=None, suppress_health_check=SLOW)
def test_many_contents_are_converted_as_git_converts_them(
    repo: Path, case: tuple[list[bytes], list[str], tuple[str, str]]
) -> None:
    _same_content(repo, *case)


ENCODINGS = "UTF-16 UTF-16LE utf-16be UTF-16LE-BOM UTF16LE UTF-32 UTF-32LE UTF-32BE ISO-8859-1 latin1"


def test_a_text_of_which_the_stream_of_git_drops_bytes_is_kept_whole(repo: Path) -> None:
    _emptied(repo)
    (repo / ".gitattributes").write_text("* ident\n")
    assert _filter(repo).smudge(b"a", b"$Id\n$Id: x$").startswith(b"$Id\n$Id: ")


def test_encodings_of_the_work_tree_are_converted_as_git_converts_them(repo: Path) -> None:
    text = "# ünï\r\nplain\n"
    bodies = [
        text.encode(c)
        for c in ("utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-32-le", "latin-1", "utf-8")
    ]
    bodies += [
        b"\xff\xfe",
        b"",
        b"\xfe\xff\0a\0\n",
        b"\x00\xd8",
        "\ufeffa".encode("utf-16-be"),
        "𝄞€".encode("utf-16"),
    ]
    kinds = [
        f"{mode} working-tree-encoding={name}" for name in ENCODINGS.split() for mode in ("text", "eol=crlf")
    ]
    names = [f"f{n}" for n in range(len(kinds))]
    for body in bodies:
        _emptied(repo)
        (repo / ".gitattributes").write_bytes(_attribute_lines(kinds))
        for name in names:
            (repo / name).write_bytes(body)
        hashed = git(repo, "hash-object", "--stdin-paths", data="\n".join(names).encode() + b"\n").split()
        how = _filter(repo)
        for name, kind, oid in zip(names, kinds, hashed, strict=True):
            assert not how.unknown_filter(name.encode())
            assert SHA1.oid_of("blob", how.clean(name.encode(), body)).hex() == oid.decode(), (kind, body)
    blobs = [text.encode(), b"", "𝄞€".encode(), b"\xff", b"ascii\n"]
    for blob in blobs:
        oid = git(repo, "hash-object", "-w", "--no-filters", "--stdin", data=blob).strip()
        git(
            repo,
            "update-index",
            "--index-info",
            data=b"".join(b"100644 %s\tf%d\n" % (oid, n) for n in range(len(kinds))),
        )
        git(repo, "checkout-index", "-q", "-f", "--", *names)
        how = _filter(repo)
        for name, kind in zip(names, kinds, strict=True):
            assert how.smudge(name.encode(), blob) == (repo / name).read_bytes(), (kind, blob)


def test_a_filter_that_is_a_program_is_named_and_not_run(repo: Path) -> None:
    _emptied(repo)
    (repo / ".gitattributes").write_text(
        "a filter=x\nb working-tree-encoding=SHIFT-JIS\nc filter=lfs\nd -filter\n"
    )
    how = _filter(repo)
    assert [how.unknown_filter(name) for name in (b"a", b"b", b"c", b"d", b"e")] == [
        True,
        True,
        False,
        False,
        False,
    ]
    assert how.clean(b"a", b"x") == how.smudge(b"a", b"x") == b"x"
    (repo / "a").write_bytes(b"content")
    state = DiskTree(repo).find("a")
    assert state is not None
    assert how.is_clean(b"a", state, SHA1.oid_of("blob", b"content"))
    assert not how.is_clean(b"a", state, SHA1.oid_of("blob", b"other"))


def test_files_of_git_lfs_are_pointers_in_the_repository(repo: Path) -> None:
    _emptied(repo)
    (repo / ".gitattributes").write_text("*.bin filter=lfs diff=lfs merge=lfs -text\n")
    content = b"\0large\r\n" * 100
    digest = hashlib.sha256(content).hexdigest()
    pointer = (
        f"version https://git-lfs.github.com/spec/v1\noid sha256:{digest}\nsize {len(content)}\n".encode()
    )
    how = WorktreeFilter(_attributes(repo), SHA1, lfs_content={digest: content}.get)
    assert how.clean(b"d/x.bin", content) == pointer == lfs_pointer(pointer)
    assert how.smudge(b"d/x.bin", pointer) == content
    assert _filter(repo).smudge(b"d/x.bin", pointer) == pointer
    assert how.clean(b"x", content) == content and how.clean(b"x.bin", b"") == b""
    assert parse_pointer(pointer) == (digest, len(content))
    assert parse_pointer(pointer + b"x") is None and parse_pointer(content) is None
    (repo / "x.bin").write_bytes(content)
    state = DiskTree(repo).find("x.bin")
    assert state is not None
    for blob in (pointer, content):  # committed with Git LFS, and without
        assert how.is_clean(b"x.bin", state, SHA1.oid_of("blob", blob))
    assert not how.is_clean(b"x.bin", state, SHA1.oid_of("blob", b"other"))


def test_a_large_file_is_read_in_parts_unless_it_is_converted(
    repo: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worktree_filter, "BLOB_MAX", 1000)
    monkeypatch.setattr(worktree_filter, "CHUNK", 333)
    _emptied(repo)
    kinds = ["", "text=auto", "text", "filter=lfs", "ident", "text=auto", "text=auto"]
    bodies = [
        b"x\r\n" * 500,
        b"\0" + b"x\r\n" * 500,
        b"x\n" * 800,
        b"x" * 1500,
        b"x" * 1500,
        b"x\r\n" * 500,
        b"x\n" * 800,
    ]
    bodies[1] = b"y" * 331 + b"\r\n" * 400 + b"\0"
    (repo / ".gitattributes").write_bytes(_attribute_lines(kinds))
    for fmt in (SHA1, SHA256):
        how = WorktreeFilter(_attributes(repo), fmt)
        for n, body in enumerate(bodies):
            (repo / f"f{n}").write_bytes(body)
            state = DiskTree(repo).find(f"f{n}")
            assert state is not None
            if n in (4, 5):
                with pytest.raises(ObjectTooLarge, match=f"f{n}"):
                    how.oid_of(b"f%d" % n, state)
            else:
                assert how.oid_of(b"f%d" % n, state) == fmt.oid_of("blob", how.clean(b"f%d" % n, body))
            assert not how.is_clean(b"f0", state, bytes(20))
