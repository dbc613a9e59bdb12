"""What a publish decides where it is configured to do as the reference system does: edits of neighbouring
lines."""

from __future__ import annotations

import pytest

from layerstack.core.publish_rules import PublishRules
from layerstack.text.merge import merge
from tests.layerstack.store_fixture import Stack, get, on_a_stack, put

TEXT = "0\n1\n2\n3\n4\n"

TABLE = {
    "neighbouring lines": ("0\nX\n2\n3\n4\n", "0\n1\nY\n3\n4\n", "0\nX\nY\n3\n4\n"),
    "an insertion right after lines that the other deleted": (
        "0\n3\n4\n",
        "0\n1\n2\nnew\n3\n4\n",
        "0\nnew\n3\n4\n",
    ),
    "an insertion right before them": ("0\n3\n4\n", "0\nnew\n1\n2\n3\n4\n", None),
    "an insertion between them": ("0\n3\n4\n", "0\n1\nnew\n2\n3\n4\n", None),
    "two insertions at one place": ("0\na\n1\n2\n3\n4\n", "0\nb\n1\n2\n3\n4\n", None),
    "two at the end": (TEXT + "a\n", TEXT + "b\n", None),
    "the same insertion at one place": ("0\na\n1\n2\n3\n4\n", "0\na\n1\n2\n3\n4\n", "0\na\n1\n2\n3\n4\n"),
    "edits that overlap in part": ("0\nX\n3\n4\n", "0\n1\nX\n4\n", None),
    "three in a row": ("0\nX\n2\nX\n4\n", "0\n1\nY\n3\n4\n", "0\nX\nY\nX\n4\n"),
}


@pytest.mark.parametrize(("ours", "theirs", "merged"), TABLE.values(), ids=TABLE.keys())
def test_with_adjacent_what_only_touches_merges_whichever_side_is_ours_and_what_begins_at_one_line_does_not(
    ours: str, theirs: str, merged: str | None
) -> None:
    wanted = None if merged is None else merged.encode()
    for one, other in ((ours, theirs), (theirs, ours)):
        found = merge(TEXT.encode(), one.encode(), other.encode(), adjacent=True)
        assert found.content == wanted and bool(found.hunks) is (wanted is None)
        if ours != theirs:
            assert merge(TEXT.encode(), one.encode(), other.encode()).content is None


@on_a_stack({"text": TEXT})
def test_with_merge_adjacent_neighbouring_edits_of_two_sessions_are_published_and_previewed_so(
    stack: Stack,
) -> None:
    theirs, ours, draft = stack.session(), stack.session(), stack.session()
    put(theirs.at("text"), "0\nX\n2\n3\n4\n")
    put(ours.at("text"), "0\n1\nY\n3\n4\n")
    put(draft.at("text"), "0\n1\n2\n3\nZ\n")
    theirs.publish()
    assert [conflict.cls for conflict in ours.upper.preview().conflicts] == ["content"]
    stack.store.rules = PublishRules(merge_adjacent=True)
    assert ours.upper.preview().conflicts == ()
    ours.publish()
    assert stack.shows() == {"text": "0\nX\nY\n3\n4\n"}
    kept = draft.keep()
    put((third := stack.session()).at("text"), "0\nX\nY\nV\n4\n")
    third.publish()
    assert get(stack.session(draft_id=kept.draft_id, draft_base="head").at("text")) == "0\nX\nY\nV\nZ\n"
