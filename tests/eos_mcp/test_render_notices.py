"""Texts of notices: a line for each kind that a publication has."""

from __future__ import annotations

import re

from eos_mcp.mcp.render_notices import SHOWN, notice_lines
from layerstack.model.conflict import Notice, Renamed, TheirsLayer

NAMES = re.findall(r"^    (\w+)  +\S", (Notice.__doc__ or "").partition("Kinds:")[2], re.M)
OURS, THEIRS = Renamed("b", "ours"), Renamed("c", "theirs")


def test_each_kind_has_a_sentence_that_names_what_it_is_about() -> None:
    assert len(NAMES) > 10
    for kind in NAMES:
        version = 3 if kind == "built_on" else None
        notice = Notice(
            kind,
            "refs/heads/x",
            TheirsLayer("L1", 4, None, "ada"),
            number=2,
            renamed=(OURS, THEIRS),
            version=version,
            unseen=("u.c",) if version else (),
            detail="refs/heads/eos/ada",
        )
        (line,) = notice_lines([notice.to_json()])
        assert line.startswith("note: ") and "{" not in line and "None" not in line, line
        assert re.search(r"\bx\b|eos/ada|u\.c", line), line


def test_an_unknown_kind_is_shown_as_it_is_and_a_long_list_is_cut() -> None:
    assert notice_lines([{"kind": "new", "path": "p"}]) == ['note: {"kind":"new","path":"p"}']
    lines = notice_lines([Notice("kept", f"f{n}").to_json() for n in range(SHOWN + 5)])
    assert len(lines) == SHOWN + 1 and lines[-1] == "note: and 5 more"
    assert notice_lines(None) == []
    (line,) = notice_lines([{"kind": "kept", "path": "a\nb", "more": 7}])
    assert line.startswith('note: "a\\nb" of the newest version') and line.endswith("and 7 more of the kind")
