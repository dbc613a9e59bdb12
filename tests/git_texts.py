"""Random texts and edits on which line algorithms differ: repeated lines, blanks, braces, moved blocks, CR LF
and a missing last newline.
"""

from __future__ import annotations

import random

WORDS = [b"alpha", b"beta", b"gamma", b"delta", b"eps", b"zeta", b"eta", b"theta"]


def small_text(rng: random.Random) -> bytes:
    """Make a short text of few distinct lines."""
    end = rng.choice([b"\n", b"\n", b"\n", b"\r\n"])
    alphabet = WORDS[: rng.randint(1, 8)]
    text = b"".join(rng.choice(alphabet) + end for _ in range(rng.randint(0, 30)))
    return text[: -len(end)] if rng.random() < 0.2 else text


def source_text(rng: random.Random, functions: int = 12) -> bytes:
    """Make a text that looks like source code: functions with shared lines, blank lines and braces."""
    out: list[bytes] = []
    for n in range(rng.randint(1, functions)):
        out.append(b"int f%d(int x)" % rng.randint(0, 30))
        out.append(b"{")
        for _ in range(rng.randint(1, 8)):
            out.append(
                rng.choice(
                    [
                        b"    x += %d;" % rng.randint(0, 9),
                        b"    if (x)",
                        b"    {",
                        b"    }",
                        b"",
                        b"    log(x, %d);" % rng.randint(0, 200),
                        b"    return x;",
                    ]
                )
            )
        out.append(b"}")
        out.append(b"")
        if n % 4 == 3:
            out.append(b"/* part %d */" % n)
    return b"\n".join(out) + (b"" if rng.random() < 0.1 else b"\n")


def repeated_text(rng: random.Random) -> bytes:
    """Make a text in which each line is there more often than the histogram takes."""
    lines = [rng.choice([b"a", b"b", b"{", b"}", b""]) for _ in range(rng.randint(340, 700))]
    for _ in range(rng.randint(0, 6)):
        lines.insert(rng.randrange(len(lines)), b"only %d" % rng.randint(0, 99))
    return b"\n".join(lines) + b"\n"


def edited(rng: random.Random, text: bytes, edits: int) -> bytes:
    """Change a text by edits of runs of lines: replaced, removed, added, doubled, moved."""
    lines = text.split(b"\n")
    for _ in range(edits):
        at = rng.randrange(len(lines) + 1)
        size = rng.choice([0, 1, 1, 1, 2, 3, 5, 8])
        kind = rng.choice(["replace", "remove", "add", "double", "move", "blank"])
        part = lines[at : at + size]
        if kind == "replace":
            lines[at : at + size] = [_line(rng, lines) for _ in part]
        elif kind == "remove":
            del lines[at : at + size]
        elif kind == "add":
            lines[at:at] = [_line(rng, lines) for _ in range(size)]
        elif kind == "double":
            lines[at:at] = part
        elif kind == "blank":
            lines[at:at] = [b""]
        else:
            del lines[at : at + size]
            to = rng.randrange(len(lines) + 1)
            lines[to:to] = part
        if not lines:
            lines = [b""]
    return b"\n".join(lines)


def _line(rng: random.Random, lines: list[bytes]) -> bytes:
    if lines and rng.random() < 0.5:
        return rng.choice(lines)
    return rng.choice(WORDS) if rng.random() < 0.3 else b"new %d" % rng.randint(0, 50)


def three_texts(rng: random.Random) -> tuple[bytes, bytes, bytes]:
    """Make base, ours and theirs; sometimes both sides made one edit alike."""
    make = rng.choice([small_text, small_text, source_text, source_text, source_text, repeated_text])
    base = make(rng)
    both = edited(rng, base, rng.choice([0, 0, 1, 2]))
    return base, edited(rng, both, rng.randint(0, 5)), edited(rng, both, rng.randint(0, 5))


def hard_texts(rng: random.Random, size: int) -> tuple[bytes, bytes, bytes]:
    """Make three texts of so many lines, few of them distinct. Ours has long runs of base between other
    lines, so that the classic search becomes long and git ends it early.
    """
    few = rng.choice([6, 9, 12])
    base = [b"%d" % rng.randint(0, few) for _ in range(size)]
    ours: list[bytes] = []
    at = 0
    while at < size:
        other, kept = rng.choice([3, 10, 30]), rng.choice([0, 2, 25, 40])
        ours += [b"%d" % rng.randint(0, few) for _ in range(other)]
        ours += base[at + other : at + other + kept]
        at += other + kept
    theirs = list(base)
    for _ in range(12):
        n = rng.randrange(size)
        theirs[n : n + 1] = rng.choice([[], [b"new"], [b"new", b"x"]])
    found = [b"\n".join(lines) + b"\n" for lines in (base, ours, theirs)]
    return found[0], found[1], found[2]
