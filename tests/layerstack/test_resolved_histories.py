"""Two sessions meet everywhere on a crowded tree, and one comes to the version of the other with conflicts
resolved at random: no line of either is lost, and what is published is what the session shows.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections import Counter
from random import Random

import pytest

from layerstack.kernel.xattrs import XATTR_NAMESPACES
from layerstack.layers import capture
from layerstack.model.resolution import MARKERS, OURS, THEIRS, Choice
from layerstack.publish import decide
from layerstack.tree import scanned
from tests import crowd, in_namespace, model
from tests.layerstack.state_machine import StackMatchesModel, in_memory
from tests.layerstack.store_fixture import NAMESPACE_PARAMS
from tests.trees import FILE, LINK, Tree, read_tree

IN_THE_GATE, IN_A_SOAK = 25, 600
FIRST = int(os.environ.get("EOS_SOAK_SEED", "0")) or time.time_ns() // 1_000_000


def lines_of(tree: Tree) -> set[bytes]:
    """Every line of every file, and the target of every link."""
    return {line for entry in tree.values() if entry.kind in (FILE, LINK) for line in entry.body.split(b"\n")}


def new_lines(base: Tree, tree: Tree) -> set[bytes]:
    """Lines of files that are not ignored, derived or a helper's, and that the base does not have there."""
    found: set[bytes] = set()
    for path, entry in tree.items():
        if entry.kind not in (FILE, LINK) or "ig/" in path or path.endswith((".o", "-shm", "-wal", ".pyc")):
            continue
        if "cache/" in path or "ig" in path.split("/")[-1]:
            continue
        before = base.get(path)
        had = set(before.body.split(b"\n")) if before is not None else set[bytes]()
        found |= set(entry.body.split(b"\n")) - had
    return found


def edit(root: str, random: Random, text: bytes) -> None:
    """Change lines in the middle of a few files, as editors do."""
    for path in random.sample(crowd.FILES, 4):
        if not os.path.isfile(f"{root}/{path}"):
            continue
        with contextlib.suppress(OSError), open(f"{root}/{path}", "rb") as file:
            lines = file.read().splitlines(keepends=True)
            at = random.choice((3, 3, 7))
            lines[at : at + 1] = [text]
            with open(f"{root}/{path}.new", "wb") as new:
                new.write(b"".join(lines))
            os.rename(f"{root}/{path}.new", f"{root}/{path}")


class ResolvedMeeting(StackMatchesModel):
    """One history; `number` draws it."""

    def meet(self, number: int) -> None:
        random = Random(number)
        self.begin(
            crowd.crowded(random),
            random.choice((capture.SLACK, capture.SLACK, -1000)),
            random.choice((scanned.SEEN_MAX, 5)),
        )
        focus = random.choice([folder for folder in crowd.FOCUS if folder not in ("", "ig")])
        ours, theirs = self.add_session(), self.add_session()
        for session in (ours, theirs):
            crowd.Crowd(session.mount, random, focus).work(random.choice((4, 15, 30)))
            edit(session.mount, random, b"by %s\n" % session.upper.session_id.encode())
        base, mine, other = (
            read_tree(root) for root in (f"{self.root}/base/B000001-base", ours.mount, theirs.mount)
        )
        theirs.hide()
        self.store.publish(theirs.upper, owner="theirs", request_id="r", agent="bob")
        self.sessions.remove(theirs)
        sides = {
            path: random.choice((MARKERS, OURS, THEIRS)) for path in (*mine, *other) if random.random() < 0.3
        }
        ours.hide()
        done = ours.upper.rebase(Choice(random.choice((MARKERS, OURS, THEIRS)), sides, "alice"))
        ours.show()
        shown = read_tree(ours.mount)
        for name, side in (("ours", mine), ("theirs", other)):
            lost = new_lines(base, side) - lines_of(shown)
            assert not lost, f"{name} lost {sorted(lost)[:3]}: {done.resolved}"
        for one in done.resolved:
            assert one.kept_as is None or one.kept_as in shown, one
            if one.resolution in (OURS, THEIRS) and one.cls in ("content", "binary", "add_add"):
                want = (mine if one.resolution == OURS else other)[one.path]
                assert shown[one.path].body == want.body, one
        self.tally["conflicts"] += len(done.resolved)
        self.tally["marked"] += len(ours.upper.unresolved)
        self.tally["kept"] += sum(one.kept_as is not None for one in done.resolved)
        ours.hide()
        self.store.publish(ours.upper, owner="ours", request_id="r", allow_unresolved=True)
        self.sessions.remove(ours)
        published = self.look(self.store.snapshot())
        differ = {path for path in shown.keys() | published.keys() if shown.get(path) != published.get(path)}
        assert not differ, f"published otherwise than shown: {sorted(differ)[:5]}"


def run(namespace: str, folder: str, first: int, meetings: int) -> Counter[str]:
    """So many of them, from number `first` on; what happened, counted. A failure names its number."""
    decide.TEXT_MAX = model.TEXT_MAX = crowd.LIMIT
    ResolvedMeeting.xattr_namespace, ResolvedMeeting.parent, ResolvedMeeting.tally = (
        XATTR_NAMESPACES[namespace],
        in_memory(folder),
        Counter(),
    )
    for number in range(first, first + meetings):
        meeting = ResolvedMeeting()
        try:
            meeting.meet(number)
        except BaseException as error:
            error.add_note(f"meeting {number}")
            raise
        finally:
            with contextlib.suppress(Exception):
                meeting.teardown()
    return ResolvedMeeting.tally


@pytest.mark.needs("overlay")
@pytest.mark.parametrize("namespace", NAMESPACE_PARAMS)
def test_no_line_of_either_side_is_lost(short_dir: str, namespace: str) -> None:
    os.chmod(short_dir, 0o777)
    seen = in_namespace.call(namespace, run, namespace, short_dir, 0, IN_THE_GATE)
    assert all(seen[what] for what in ("conflicts", "marked", "kept")), seen


@pytest.mark.soak
@pytest.mark.needs("overlay")
@pytest.mark.parametrize("namespace", NAMESPACE_PARAMS)
def test_no_line_of_either_side_is_lost_in_hundreds_of_meetings(short_dir: str, namespace: str) -> None:
    os.chmod(short_dir, 0o777)
    seen = in_namespace.call(namespace, run, namespace, short_dir, FIRST, IN_A_SOAK)
    assert all(seen[what] for what in ("conflicts", "marked", "kept")), seen
