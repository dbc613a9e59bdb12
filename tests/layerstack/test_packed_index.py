"""The index of a large layer: the same answers as a dict, from a fraction of the memory."""

from __future__ import annotations

import os
from bisect import bisect_left

from hypothesis import given, settings
from hypothesis import strategies as st

from layerstack.layers import index_file, packed_index
from layerstack.layers.index_record import NUMBERED, IndexRecord, record
from layerstack.layers.packed_index import GROUP, PackedIndex

name = st.sampled_from(("a", "b", "a-", "a.", "a0", "ab", "\udcff", "é", "nnnnnnnnnnnnnnn"))
path = st.lists(name, min_size=1, max_size=4).map("/".join)


def packed(found: dict[str, IndexRecord]) -> PackedIndex:
    index = PackedIndex()
    for each in sorted(found, key=os.fsencode):
        index.add(os.fsencode(each), found[each])
    return index


@settings(max_examples=150, deadline=None)
@given(st.dictionaries(path, st.sampled_from(NUMBERED), max_size=6 * GROUP), st.lists(path, max_size=30))
def test_it_answers_as_a_dict_does(found: dict[str, IndexRecord], asked: list[str]) -> None:
    for each in list(found):
        while "/" in each:
            each = each.rpartition("/")[0]
            found.setdefault(each, record("d"))
    found[""] = record("d", quiet=True)
    index = packed(found)
    order = sorted(found, key=os.fsencode)
    assert list(index) == order and len(index) == len(found) and index == found
    assert list(index.items()) == [(each, found[each]) for each in order]
    for each in [*asked, *found, "", "zz", "a/zz"]:
        assert index.get(each) is found.get(each)
        assert (each in index) == (each in found)
        assert index.place(os.fsencode(each)) == bisect_left(
            [os.fsencode(one) for one in order], os.fsencode(each)
        )
        below = [one for one in order if one and (not each or one.startswith(each + "/"))]
        assert [one for one, _ in index.below(each)] == below
        assert list(index.children(each)) == [
            one for one in below if "/" not in one[len(each) + 1 if each else 0 :]
        ]
    for start in range(len(order) + 2):
        assert [os.fsdecode(raw) for raw, _ in index.walk(start)] == order[start:]


def test_both_forms_are_one_index_to_a_store() -> None:
    assert packed_index.SMALL == index_file.SMALL >= GROUP
