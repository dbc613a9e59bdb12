"""Meetings: short histories on a crowded tree (tests/crowd.py), each drawn from one number, compared with the
model as the state machine's are.

Three sessions on one version change what they meet at; one of them commits while another one's publish stands
at a named step; then the head is folded and swept under a session that lives on, and reshaped without one.
"""

from __future__ import annotations

import contextlib
import os
from collections import Counter
from random import Random

from layerstack.kernel.xattrs import XATTR_NAMESPACES
from layerstack.layers import capture
from layerstack.layers.snapshot import Snapshot
from layerstack.publish import decide
from layerstack.tree import scanned
from tests import crowd, model
from tests.layerstack import kept
from tests.layerstack.state_machine import STANDING, Session, StackMatchesModel, in_memory
from tests.trees import Tree


class Meeting(StackMatchesModel):
    """One history; `number` draws it."""

    looks = 0

    def meet(self, number: int) -> None:
        random = Random(number)
        self.begin(
            crowd.crowded(random),
            random.choice((capture.SLACK, capture.SLACK, -1000)),
            random.choice((scanned.SEEN_MAX, 5)),
        )
        focus, alike = random.choice(crowd.FOCUS), random.getrandbits(32)
        sessions = [self.a_tweaked(random, focus, alike) for _ in range(2)]
        early = random.random() < 0.5
        if early:
            sessions.append(self.a_tweaked(random, focus, alike))
        self.settle(sessions[0], random)
        if not early:
            sessions.append(self.add_session())
            news = sorted(kept.changed(self.model.versions[1], self.model.tree()) - {""}, key=os.fsencode)
            if (
                news and random.random() < 0.7
            ):  # what was just published is undone while the second one publishes it too
                with contextlib.suppress(OSError):
                    crowd.Crowd(sessions[2].mount, random).spoil(random.choice(news))
            else:
                self.tweak(sessions[2], random, focus)
        if random.random() < 0.8:
            at = random.choice(STANDING), lambda: self.settle(sessions[2], random)
            self.finish(sessions[1], previewed=False, to_draft=False, overtaken=at)
        for session in sessions[1:]:
            if session in self.sessions:
                self.settle(session, random)
        self.look_back(random)

    def check_projection(self, snapshot: Snapshot, want: Tree) -> None:
        """Compare in some histories only: most of the time would be spent on reading."""
        self.looks += 1
        if self.looks % 5 == 0:
            super().check_projection(snapshot, want)

    def a_tweaked(self, random: Random, focus: str, alike: int) -> Session:
        """A session on the head; half of them do what others do as well, and all something of their own."""
        session = self.add_session()
        if random.random() < 0.5:
            self.tweak(session, Random(alike), focus)
        self.tweak(session, random, focus)
        return session

    def tweak(self, session: Session, random: Random, focus: str) -> None:
        self.tally["edits"] += crowd.Crowd(session.mount, random, focus).work()

    def settle(self, session: Session, random: Random) -> None:
        """Publish it, perhaps after a rebase to the head; rejected work is rebased to the head and published
        once more if possible, else discarded.
        """
        if random.random() < 0.3:
            self.carry_over(session)
        self.finish(session, previewed=random.random() < 0.3, to_draft=False)
        if session in self.sessions:
            self.drop(session)

    def look_back(self, random: Random) -> None:
        """Squash layers of a live session, and sweep the replaced layers while it is mounted."""
        for n in range(2):
            self.update_file(random.randrange(8), 1 + n)
        late = self.add_session()
        self.tweak(late, random, "")
        self.squash("", swept=True)
        if random.random() < 0.5:
            self.move_path(
                random.randrange(8),
                random.randrange(8),
                random.choice(("m", "a", "d")),
                overwrite=random.random() < 0.5,
            )
        else:
            self.delete_path(random.randrange(8))
        self.tweak(late, random, "")
        self.settle(late, random)
        self.check_versions()
        if random.random() < 0.5:
            self.hold(0)
            self.let_go(0)


def run(namespace: str, folder: str, first: int, meetings: int) -> Counter[str]:
    """Run so many histories, from number `first`, in a child with mount rights; return counts of what
    happened. A failure names its number.
    """
    decide.TEXT_MAX = model.TEXT_MAX = crowd.LIMIT
    Meeting.xattr_namespace, Meeting.parent, Meeting.tally = (
        XATTR_NAMESPACES[namespace],
        in_memory(folder),
        Counter(),
    )
    for number in range(first, first + meetings):
        meeting = Meeting()
        try:
            meeting.meet(number)
        except BaseException as error:
            error.add_note(f"meeting {number}")
            raise
        finally:
            meeting.teardown()
    return Meeting.tally
