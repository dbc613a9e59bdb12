"""The line merge: git's rules, bounded work, and nothing lost. Compared with `git merge-file` on generated
triples.
"""

from __future__ import annotations

import random
import re
import subprocess
from array import array
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from layerstack.model.conflict import Hunk
from layerstack.text.lines import diff, is_text, numbering, scan_lines
from layerstack.text.merge import merge
from layerstack.text.myers import BUDGET, Budget

Triple = tuple[bytes, bytes, bytes]


def edited(rng: random.Random, lines: list[bytes], pool: list[bytes], edits: int) -> list[bytes]:
    """`lines` after some insertions, deletions, replacements and moved blocks."""
    out = list(lines)
    for _ in range(edits):
        at, kind = rng.randrange(len(out) + 1), rng.random()
        if kind < 0.35:
            out[at:at] = [rng.choice(pool) for _ in range(rng.randint(1, 3))]
        elif kind < 0.6:
            del out[at : at + rng.randint(1, 3)]
        elif kind < 0.9:
            out[at : at + rng.randint(1, 2)] = [rng.choice(pool) for _ in range(rng.randint(1, 2))]
        elif len(out) > 6:
            block = out[at : at + 3]
            del out[at : at + 3]
            to = rng.randrange(len(out) + 1)
            out[to:to] = block
    return out


def triple(rng: random.Random, pool: list[bytes]) -> Triple:
    base = [rng.choice(pool) for _ in range(rng.choice((0, 1, 3, 8, 20, 60)))]
    ours = edited(rng, base, pool, rng.choice((0, 1, 1, 2, 4)))
    theirs = edited(rng, base, pool, rng.choice((0, 1, 1, 2, 4)))
    if rng.random() < 0.15:
        theirs = edited(rng, ours, pool, 1)  # share a change
    texts = [b"".join(side) for side in (base, ours, theirs)]
    texts = [text.rstrip(b"\n") if rng.random() < 0.1 else text for text in texts]
    if rng.random() < 0.05:
        texts[rng.randrange(3)] = texts[0].replace(b"\n", b"\r\n")
    return texts[0], texts[1], texts[2]


def git_merge_file(folder: Path, texts: Triple) -> bytes | None:
    for name, text in zip(("base", "ours", "theirs"), texts, strict=True):
        (folder / name).write_bytes(text)
    done = subprocess.run(
        ["git", "merge-file", "-p", "ours", "base", "theirs"], cwd=folder, capture_output=True, check=False
    )
    assert done.returncode < 128, done.stderr
    return None if done.returncode else done.stdout


UNIQUE = [b"%d\n" % number for number in range(4000)]
CODE_LIKE = [b"x%d\n" % number for number in range(15)] + [b"\n", b"}\n", b"\n"]
FOUR = [b"a\n", b"b\n", b"c\n", b"d\n"]


def our_regions(old: bytes, new: bytes) -> list[tuple[int, ...]]:
    ids = numbering()
    return [tuple(region) for region in diff(scan_lines(old, ids)[0], scan_lines(new, ids)[0])]


def git_regions(folder: Path, old: bytes, new: bytes) -> list[tuple[int, ...]]:
    """What git takes for changed, by the algorithm of git merge-file: half-open, from 0, as ours."""
    (folder / "old").write_bytes(old)
    (folder / "new").write_bytes(new)
    options = ["--no-index", "-U0", "--no-color", "--no-indent-heuristic", "--diff-algorithm=myers", "--text"]
    done = subprocess.run(
        ["git", "-c", "core.autocrlf=false", "diff", *options, "old", "new"],
        cwd=folder,
        capture_output=True,
        check=False,
    )
    assert done.returncode in (0, 1), done.stderr
    found: list[tuple[int, ...]] = []
    for match in re.finditer(rb"^@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@", done.stdout, re.MULTILINE):
        a, a_count, b, b_count = (1 if number is None else int(number) for number in match.groups())
        alo, blo = a - (a_count > 0), b - (b_count > 0)
        found.append((alo, alo + a_count, blo, blo + b_count))
    return found


def compare(folder: Path, pool: list[bytes], count: int, seed: int) -> Counter[str]:
    """How often a merge says what git merge-file says. Where it does not, one of the two diffs must pair
    other lines than git's: the rules are the same, and no difference has any other reason.
    """
    rng, tally = random.Random(seed), Counter[str]()
    for _ in range(count):
        texts = triple(rng, pool)
        ours, gits = merge(*texts).content, git_merge_file(folder, texts)
        if ours == gits:
            tally["agree"] += 1
            continue
        tally[
            "we conflict" if ours is None else "git conflicts" if gits is None else "both clean, other text"
        ] += 1
        assert any(
            our_regions(texts[0], side) != git_regions(folder, texts[0], side) for side in texts[1:]
        ), texts
    return tally


def test_lines_that_both_sides_have_in_one_order_are_all_paired_however_often_they_repeat() -> None:
    rng = random.Random(5)
    for size in (129, 700, 2000):
        common = [rng.choice(FOUR) for _ in range(size)]
        old, new = list(common), list(common)
        for side, name in ((old, b"old"), (new, b"new")):
            for at in sorted(rng.sample(range(size + 1), size // 6), reverse=True):
                side[at:at] = [b"%s %d\n" % (name, n) for n in range(at, at + rng.randint(1, 3))]
        lost, made = set[int](), set[int]()
        for alo, ahi, blo, bhi in our_regions(b"".join(old), b"".join(new)):
            lost.update(range(alo, ahi))
            made.update(range(blo, bhi))
        assert [old[n] for n in sorted(lost)] == [line for line in old if line not in FOUR]
        assert [new[n] for n in sorted(made)] == [line for line in new if line not in FOUR]


def test_lines_in_another_order_are_not_paired_with_what_they_are_not() -> None:
    """As many lines are in common on both sides, which is not enough."""
    rng = random.Random(6)
    for pool in (UNIQUE, FOUR):
        old = [rng.choice(pool) for _ in range(600)]
        new = [*old[:100], b"new\n", *old[300:400], *old[100:300], *old[400:]]
        kept_old, kept_new, at_a, at_b = list[bytes](), list[bytes](), 0, 0
        for alo, ahi, blo, bhi in our_regions(b"".join(old), b"".join(new)):
            kept_old += old[at_a:alo]
            kept_new += new[at_b:blo]
            at_a, at_b = ahi, bhi
        assert kept_old + old[at_a:] == kept_new + new[at_b:]


POOLS = pytest.mark.parametrize(
    ("pool", "floor", "other_text"),
    [(UNIQUE, 0.9986, 0.0), (CODE_LIKE, 0.9904, 0.0004), (FOUR, 0.9860, 0.0015)],
    ids=["nearly all lines unique", "code like: blank lines and braces repeat", "four different lines only"],
)


@POOLS
def test_a_merge_agrees_with_git_merge_file(
    tmp_path: Path, pool: list[bytes], floor: float, other_text: float
) -> None:
    tally = compare(tmp_path, pool, 300, 20)
    assert tally["agree"] >= floor * 300 - 3, tally
    assert tally["both clean, other text"] <= (1 if other_text else 0), tally


@pytest.mark.soak
@POOLS
def test_thousands_of_merges_agree_with_git_merge_file_as_often_as_is_promised(
    tmp_path: Path, pool: list[bytes], floor: float, other_text: float
) -> None:
    tally = compare(tmp_path, pool, 10_000, 21)
    assert tally["agree"] >= floor * 10_000, tally
    assert tally["both clean, other text"] <= other_text * 10_000, tally


lines = st.lists(st.sampled_from([b"a\n", b"b\n", b"c\n", b"\n", b"d\r\n", b"e"]), max_size=12).map(b"".join)


@settings(max_examples=400, deadline=None)
@given(lines, lines, lines)
def test_swapping_the_sides_swaps_the_answer_and_nothing_else(
    base: bytes, ours: bytes, theirs: bytes
) -> None:
    one, other = merge(base, ours, theirs), merge(base, theirs, ours)
    assert one.content == other.content
    assert one.hunks == tuple(Hunk(h.base, h.theirs, h.ours) for h in other.hunks)


@settings(max_examples=400, deadline=None)
@given(lines, lines, lines)
def test_hunks_rise_stay_in_their_text_and_differ_on_all_sides(
    base: bytes, ours: bytes, theirs: bytes
) -> None:
    merged = merge(base, ours, theirs)
    assert (merged.content is None) == bool(merged.hunks)
    texts = [re.findall(rb"[^\n]*\n|[^\n]+", text) for text in (base, ours, theirs)]
    ends = [1, 1, 1]
    for hunk in merged.hunks:
        for side, (start, count) in enumerate(hunk[:3]):
            assert ends[side] <= start and count >= 0 and start + count <= len(texts[side]) + 1
            ends[side] = start + count


@settings(max_examples=300, deadline=None)
@given(lines, lines)
def test_one_side_alone_is_taken_and_a_diff_rebuilds_the_other(base: bytes, ours: bytes) -> None:
    assert (
        merge(base, ours, base).content
        == ours
        == merge(base, base, ours).content
        == merge(base, ours, ours).content
    )


@pytest.mark.parametrize(
    ("base", "ours", "theirs", "content", "hunks"),
    [
        (b"1\n2\n3\n4\n5\n", b"one\n2\n3\n4\n5\n", b"1\n2\n3\n4\nfive\n", b"one\n2\n3\n4\nfive\n", ()),
        (b"1\n2\n3\n", b"1\nX\n3\n", b"1\nY\n3\n", None, (Hunk((2, 1), (2, 1), (2, 1)),)),
        (b"1\n2\n3\n", b"1\nX\n3\n", b"1\nX\n3\n", b"1\nX\n3\n", ()),
        (b"1\n2\n3\n4\n", b"1\nX\n3\n4\n", b"1\n2\nY\n4\n", None, (Hunk((2, 2), (2, 2), (2, 2)),)),
        (b"a\n", b"a\nours\n", b"a\ntheirs\n", None, (Hunk((2, 0), (2, 1), (2, 1)),)),
        (b"a\n", b"a\nsame\n", b"a\nsame\n", b"a\nsame\n", ()),
        (b"a\nb", b"A\nb", b"a\nb\n", None, (Hunk((1, 2), (1, 2), (1, 2)),)),
        (b"a\r\nb\r\nc\r\n", b"A\r\nb\r\nc\r\n", b"a\r\nb\r\nC\r\n", b"A\r\nb\r\nC\r\n", ()),
        (b"", b"ours\n", b"theirs\n", None, (Hunk((1, 0), (1, 1), (1, 1)),)),
        (
            b"f{\n1\n2\n3\ntail\n",
            b"f{\nX\n3\ntail\n",
            b"f{\n1\nX\ntail\n",
            None,
            (Hunk((2, 3), (2, 2), (2, 2)),),
        ),
    ],
    ids=[
        "apart",
        "same line",
        "same edit",
        "adjacent",
        "both append",
        "append alike",
        "last newline",
        "crlf",
        "both add",
        "partial overlap",
    ],
)
def test_edits_that_touch_or_overlap_conflict_unless_they_are_equal(
    base: bytes, ours: bytes, theirs: bytes, content: bytes | None, hunks: tuple[Hunk, ...]
) -> None:
    assert merge(base, ours, theirs) == (content, hunks)


def test_an_edit_keeps_byte_order_mark_crlf_and_a_bare_lf() -> None:
    base = b"\xef\xbb\xbfone\r\ntwo\nthree\r\nfour\r\nlast"
    ours, theirs = base.replace(b"one", b"1"), base.replace(b"last", b"end")
    assert merge(base, ours, theirs).content == base.replace(b"one", b"1").replace(b"last", b"end")


def test_text_is_what_holds_no_nul_byte() -> None:
    assert is_text(b"caf\xe9 \xff\n") and not is_text(b"a\0b")


def test_a_spent_budget_gives_up_alignment_and_never_the_content() -> None:
    rng = random.Random(3)
    a, b = (array("I", [rng.randrange(4) for _ in range(3000)]) for _ in range(2))
    for budget in (0, 10, 1000, BUDGET):
        rebuilt, at = array("I"), 0
        for alo, ahi, blo, bhi in diff(a, b, Budget(budget)):
            rebuilt += a[at:alo] + b[blo:bhi]
            at = ahi
        assert rebuilt + a[at:] == b
    assert diff(a, b, Budget(0))[0][:2] != diff(a, b)[0][:2]


def rewrites(count: int) -> Triple:
    base, ours, theirs = (
        b"".join(b"%s line %d %d\n" % (word, n, n * 31 % 97) for n in range(count))
        for word in (b"base", b"ours", b"theirs")
    )
    return base, ours, theirs


def repetitive(count: int) -> Triple:
    rng = random.Random(3)
    base, ours, theirs = (
        b"".join(rng.choice((b"a\n", b"b\n", b"c\n", b"d\n")) for _ in range(count)) for _ in range(3)
    )
    return base, ours, theirs


def most_memory(*, afresh: bool = False) -> int:
    """The most bytes that this process had in memory, as the kernel counts them; or, afresh, has now:
    proc_pid_clear_refs(5).
    """
    if afresh:
        Path("/proc/self/clear_refs").write_text("5")
    found = re.search(r"^VmHWM:\s+(\d+) kB$", Path("/proc/self/status").read_text(), re.MULTILINE)
    assert found is not None
    return int(found[1]) << 10


@pytest.mark.parametrize(
    "texts",
    [rewrites(8000), repetitive(20000)],
    ids=["two rewrites of 8,000 lines", "20,000 lines out of four"],
)
def test_the_worst_texts_stay_within_fifty_megabytes_and_the_budget(texts: Triple) -> None:
    """Without the budget these take minutes and gigabytes: the test's own time limit is the bound."""
    before = most_memory(afresh=True)
    merged = merge(*texts)
    assert merged.content is None
    assert most_memory() - before < 50 << 20
