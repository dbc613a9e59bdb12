"""Facts that an export gathers: few in memory, many in a file, with the same answers."""

from __future__ import annotations

import random

import pytest

from eos_mcp.export import gathered
from eos_mcp.export.facts import DIRECTORY, FILE, Fact, Facts
from eos_mcp.export.gathered import GatheredFacts


@pytest.mark.parametrize("few", [5, 10_000])
@pytest.mark.parametrize("size", [60, 1 << 20])
def test_few_and_many_gathered_facts_answer_as_the_file_does(
    few: int, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gathered, "FEW", few)
    monkeypatch.setattr(gathered, "BYTES", size)
    random_ = random.Random(few + size)
    ours, file = GatheredFacts(), Facts()
    paths = [b"d/%02x\xff" % n for n in range(40)] + [b"a", b"d"]
    for _ in range(30):
        for facts in (
            [(random_.choice(paths), Fact(FILE, random_.randrange(9), 1 << 65, b"x" * 32))],
            [(path, Fact(DIRECTORY)) for path in random_.sample(paths, 3)],
        ):
            ours.put_all(facts)
            file.put_all(facts)
        path, fact, slot = random_.choice(paths), Fact(FILE, 7, random_.randrange(9)), random_.randrange(2)
        ours.put(path, fact, slot)
        file.put(path, fact, slot)
        for path in paths:
            assert [one[:2] for one in ours.get(path)] == [one[:2] for one in file.get(path)]
        assert list(ours.rows()) == list(file.rows())
    ours.close()
    file.close()
