"""Text merge: the same conflicts and the same bytes as the real git, on random and on chosen texts."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from layerstack.git.text_merge import NUL_BEFORE, TextMerge, is_binary, merge_texts
from layerstack.model.conflict import Hunk
from tests.git_merges import commit_cases, files_of, merge_by_git
from tests.git_texts import hard_texts, three_texts
from tests.git_trees import repository

Texts = tuple[bytes, bytes, bytes]


def compare(folder: Path, cases: dict[str, Texts]) -> int:
    """Merge all cases by one git and by ours; names in `u` with the driver `union`. Return the number of
    conflicts.
    """
    where = repository(folder)
    (where / ".gitattributes").write_text("u* merge=union\n")
    base, ours, theirs = ({name: texts[side] for name, texts in cases.items()} for side in range(3))
    commit_cases(where, {"all": (base, ours, theirs)})
    expected = merge_by_git(where, "all")
    merged = files_of(where, expected.tree)
    for name, texts in cases.items():
        found = merge_texts(*texts, union=name.startswith("u"))
        assert (found.content is None) == (name.encode() in expected.conflicts), (name, texts)
        assert found.content in (None, merged[name]), (name, texts)
        assert bool(found.hunks) == (found.content is None)
    return len(expected.conflicts)


def test_random_texts_merge_as_git_merges_them(tmp_path: Path) -> None:
    rng = random.Random(13)
    cases = {f"{'u' if n % 5 == 0 else 't'}{n}": three_texts(rng) for n in range(200)}
    assert 30 < compare(tmp_path / "r", cases) < 100


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(10))
def test_thousands_of_random_texts_merge_as_git_merges_them(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    cases = {f"{'u' if n % 5 == 0 else 't'}{n}": three_texts(rng) for n in range(4000)}
    assert compare(tmp_path / "r", cases)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(5))
def test_long_texts_of_few_lines_merge_as_git_merges_them(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    cases = {f"{'u' if n % 2 else 't'}{n}": hard_texts(rng, rng.choice([1500, 4000])) for n in range(30)}
    compare(tmp_path / "r", cases)


def test_searches_that_git_ends_early_end_at_the_same_place(tmp_path: Path) -> None:
    compare(tmp_path / "r", {f"u{seed}": hard_texts(random.Random(seed), 1500) for seed in (0, 10)})


CHOSEN: dict[str, Texts] = {
    "edits that touch": (b"a\nb\nc\n", b"A\nb\nc\n", b"a\nB\nc\n"),
    "edits with a line between": (b"a\nb\nc\n", b"A\nb\nc\n", b"a\nb\nC\n"),
    "one edit alike on both sides": (b"a\nb\nc\nd\n", b"A\nb\nc\nd\n", b"A\nb\nc\nD\n"),
    "alike in part of a conflict": (b"a\nb\n", b"x\ny\nz\n", b"x\nq\nz\n"),
    "no last newline in ours": (b"a\nb\nc", b"A\nb\nc", b"a\nb\nc\n"),
    "a last newline in both": (b"a\nb\nc", b"a\nb\nc\n", b"a\nb\nc\nd\n"),
    "an empty base": (b"", b"a\n", b"b\n"),
    "emptied by one": (b"a\nb\n", b"", b"a\nb\n"),
    "emptied by one, edited by the other": (b"a\nb\n", b"", b"a\nB\n"),
    "CR LF": (b"a\r\nb\r\nc\r\n", b"A\r\nb\r\nc\r\n", b"a\r\nb\r\nC\r\n"),
    "line ends changed by one": (b"a\nb\nc\nd\n", b"a\r\nb\r\nc\r\nd\r\n", b"a\nb\nc\nD\n"),
    "union of last lines without newline": (b"a\nb", b"a\nc", b"a\nd"),
    "union with CR LF": (b"a\r\nb", b"a\r\nc", b"a\r\nd"),
    "union of two ends with and without newline": (b"a\r\n", b"a\r\nc", b"a\r\nd\r\n"),
    "functions with shared braces": (
        b"int a()\n{\n  x;\n}\n\nint b()\n{\n  y;\n}\n",
        b"int a()\n{\n  x;\n}\n\nint n()\n{\n  z;\n}\n\nint b()\n{\n  y;\n}\n",
        b"int a()\n{\n  x;\n}\n\nint b()\n{\n  y1;\n}\n",
    ),
    "only carriage returns": (b"a\rb\rc", b"a\rB\rc", b"a\rb\rc\n"),
    "a NUL behind the first 8000 bytes": (
        b"a\n" * NUL_BEFORE + b"\0\n",
        b"A\n" + b"a\n" * (NUL_BEFORE - 1) + b"\0\n",
        b"a\n" * NUL_BEFORE + b"\0z\n",
    ),
}


def test_chosen_texts_merge_as_git_merges_them(tmp_path: Path) -> None:
    cases = {f"{kind}{n}": texts for n, texts in enumerate(CHOSEN.values()) for kind in "tu"}
    assert compare(tmp_path / "r", cases)


def test_a_conflict_names_its_regions_in_all_three_texts() -> None:
    base = b"1\n2\n3\n4\n5\n6\n7\n8\n"
    ours = b"0\n1\n2\n3\nour\n5\n6\n7\n8\n"
    theirs = b"1\n2\n3\ntheir\nlines\n5\n6\n7\n"
    assert merge_texts(base, ours, theirs) == TextMerge(None, (Hunk((4, 1), (5, 1), (4, 2)),))


def test_a_side_that_changed_nothing_takes_the_other(tmp_path: Path) -> None:
    assert merge_texts(b"a\n", b"a\n", b"b") == TextMerge(b"b")
    assert merge_texts(b"a\n", b"b", b"a\n") == TextMerge(b"b")
    assert merge_texts(b"a\n", b"b", b"b") == TextMerge(b"b")


def test_a_nul_among_the_first_bytes_makes_a_content_binary() -> None:
    assert is_binary(b"a" * (NUL_BEFORE - 1) + b"\0")
    assert not is_binary(b"a" * NUL_BEFORE + b"\0")
