"""Random histories of a project that is really built: whatever was published in whatever order, `make` and
`make -B` agree afterwards.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import subprocess
import time

import pytest

from layerstack.errors import NotFound, PublishRejected
from tests.layerstack.builds import age, run
from tests.layerstack.store_fixture import Base, Session, Stack, get, on_a_stack, put

SOURCES = ("a", "b", "c", "g", "src/x", "src/y")
OUTPUTS = ("gen.h", "lib.o", "app", "conf", "out/all", "out/stamp")
PROJECT: Base = {
    **{name: f"{name} 0\n" for name in SOURCES},
    ".env": "env 0\n",
    ".gitignore": "*.h\n*.o\napp\nconf\nout\n.env\n",
    "out/here": "",
    "Makefile": "everything: app conf out/all\n"
    "gen.h: g\n\t$(file >$@,$(file <g))\n"
    "lib.o: a gen.h\n\t$(file >$@,$(file <a)$(file <gen.h))\n"
    "app: lib.o b\n\t$(file >$@,$(file <lib.o)$(file <b))\n"
    "conf: .env c\n\t$(file >$@,$(file <.env)$(file <c))\n"
    "out/stamp: src/x\n\t$(file >$@,$(file <src/x))\n"
    "out/all: $(wildcard src/*) out/stamp\n\t$(file >$@,$(foreach each,$(sort $(wildcard src/*)),$(file "
    "<$(each)))$(file <out/stamp))\n",
}


class History:
    """One of them: up to three sessions on one head."""

    def __init__(self, stack: Stack, seed: int) -> None:
        self.stack, self.random = stack, random.Random(seed)
        self.sessions: list[Session] = []
        self.log: list[str] = [f"seed {seed}"]
        self.steps = 0

    def step(self) -> None:
        self.steps += 1
        if len(self.sessions) < 2 or (len(self.sessions) < 3 and self.random.random() < 0.2):
            self.sessions.append(self.stack.session())
            self.log.append(f"{self.sessions[-1].view[-2:]} opens")
            return
        session = self.random.choice(self.sessions)
        what = self.random.choices(
            (self.edit, self.build, self.restore, self.add, self.rebase, self.publish, self.rollback),
            (8, 6, 2, 1, 2, 5, 1),
        )[0]
        self.log.append(f"{session.view[-2:]} {what.__name__}")
        what(session)

    def edit(self, session: Session) -> None:
        path = self.random.choice((*SOURCES, ".env"))
        text = f"{path} {self.steps}\n"
        if self.random.random() < 0.5:
            put(session.at(path), text)
        else:
            put(session.at("new"), text)
            os.rename(session.at("new"), session.at(path))
        self.log[-1] += f" {path}"

    def build(self, session: Session) -> None:
        target = self.random.choice(("everything", *OUTPUTS))
        self.log[-1] += f" {target}"
        run(session, "make", "-s", target)

    def restore(self, session: Session) -> None:
        """As `git checkout`: the text of the session's base, written now."""
        path = self.random.choice(SOURCES)
        state = self.stack.store.snapshot(session.upper.snapshot.version).chain.find(path)
        if state is not None:
            put(session.at(path), state.data())

    def add(self, session: Session) -> None:
        put(session.at(f"src/n{self.steps}"), f"new {self.steps}\n")

    def rebase(self, session: Session) -> None:
        session.umount()
        try:
            session.upper.rebase()
        except PublishRejected:
            self.log[-1] += " refused"
        session.mount()
        self.check(session.view)

    def publish(self, session: Session) -> None:
        try:
            session.publish()
        except PublishRejected:
            self.log[-1] += " refused"
            session.upper.discard()
        self.sessions.remove(session)

    def rollback(self, session: Session) -> None:
        head = self.stack.store.head.version
        wanted = self.random.randint(max(1, head - 2), head)
        self.log[-1] = f"rollback to {wanted}"
        with contextlib.suppress(NotFound):  # a squash has folded it
            self.stack.store.rollback(wanted, owner="o", request_id="r")

    def check(self, view: str) -> None:
        """What `make` leaves in a copy is what `make -B` does."""
        copy = f"{self.stack.folder}/copy"
        subprocess.run(["cp", "-a", view, copy], check=True, timeout=60)
        try:
            found = []
            for words in (("make", "-s"), ("make", "-s", "-B")):
                subprocess.run([*words, "everything"], cwd=copy, check=True, timeout=60)
                found.append({path: get(f"{copy}/{path}") for path in OUTPUTS})
        finally:
            shutil.rmtree(copy)
        stale = [path for path in OUTPUTS if found[0][path] != found[1][path]]
        assert not stale, f"{stale} after\n" + "\n".join(self.log)


def play(stack: Stack, seeds: range, steps: int) -> None:
    age(stack)
    for seed in seeds:
        history = History(stack, seed)
        while history.steps < steps:
            version = stack.store.head.version
            history.step()
            if stack.store.head.version != version:
                with stack.mounted() as view:
                    history.check(view)
            time.sleep(0.01)  # the clock of files has a grain of some milliseconds
        for session in history.sessions:
            session.umount()
            session.upper.discard()
        stack.store.rollback(1, owner="o", request_id="r")
        if seed % 5 == 4:
            stack.store.squash()


@on_a_stack(PROJECT)
def test_make_and_make_all_agree_after_any_history(stack: Stack) -> None:
    play(stack, range(2), 16)


@pytest.mark.soak
@pytest.mark.timeout(7200)
@on_a_stack(PROJECT, namespaces=("trusted",))
def test_make_and_make_all_agree_after_five_hundred_histories(stack: Stack) -> None:
    play(stack, range(1000, 1500), 24)
