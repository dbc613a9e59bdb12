"""Rows of a matrix: one repository, what two sessions did to it, and what git's own commands give.

All repositories of a group are in one workspace, each in a directory of its own, so that one publication of
each session decides all rows. The scripts run a second time in plain directories, with the same dates and so
the same ids; there git makes the value that is expected.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import subprocess
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from layerstack.core.publish_rules import PublishRules
from layerstack.errors import PublishRejected
from tests.layerstack.git_sessions import ENVIRONMENT
from tests.layerstack.store_fixture import Stack

PRELUDE = """
ci() { t=$((t+60)); GIT_AUTHOR_DATE="$t +0130" GIT_COMMITTER_DATE="$t +0130" git commit -q "$@"; }
save() { git add -A; ci -m "$1"; }
line() { case $1 in */*) mkdir -p "${1%/*}";; esac; echo "$2" >> "$1"; }
replace() { sed "s/^$2\\$/$3/" "$1" > .new; cat .new > "$1"; rm .new; }
"""
"""Words of the scripts: commit with the next date, add all and commit, append a line, replace a line."""
BASE = """
git init -q; git symbolic-ref HEAD refs/heads/main
line f f; line g g; line d/x x
printf '%02d\\n' 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 > many
save first
line f second
save second
"""
REBASE = "git checkout -q --detach $O; git rebase -q --empty=keep --reapply-cherry-picks --onto $H $B"
MERGE = "git checkout -q --detach $H; git merge -q -m merge $O"
OURS, THEIRS = "git checkout -q --detach $O", "git checkout -q --detach $H"
THEIRS_ONTO_OURS = (
    "git checkout -q --detach $H; git rebase -q --empty=keep --reapply-cherry-picks --onto $O $B"
)
"""How git makes the result: B, H and O are the commits that base, head and ours had checked out."""
SCRIPT_S = 120


class GitRow(NamedTuple):
    """One repository. Scripts of sh; `base` makes it, `theirs` is published first."""

    name: str
    theirs: str
    ours: str
    expected: str
    base: str = BASE
    check: str = ""
    """Further commands in the result, each of which must succeed."""
    status: tuple[str, ...] = ()
    """Lines of `git status --porcelain` in the result."""


def script(folder: str, text: str, *, start: int, **environment: str) -> str:
    """Run a script in a directory and return its output.

    Raises:
        AssertionError: a command failed.
    """
    done = subprocess.run(
        ["sh", "-ec", f"t={start}\n{PRELUDE}\n{text}"],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=SCRIPT_S,
        env={**ENVIRONMENT, **environment},
    )
    assert done.returncode == 0, f"{folder}: {text}\n{done.stdout}{done.stderr}"
    return done.stdout


def _tip(folder: str) -> str:
    return script(folder, "git rev-parse -q --verify HEAD || true", start=0).strip()


class _Plain(NamedTuple):
    """The same history in plain directories: its commits, and the result of git."""

    ids: dict[str, str]
    result: str


def _base(stack: Stack, text: str, **environment: str) -> str:
    """Run the script of a base in a plain directory, once for all rows that have the same one."""
    folder = f"{stack.folder}/bases/{hashlib.sha256(text.encode()).hexdigest()}"
    if not os.path.exists(folder):
        os.makedirs(folder)
        script(folder, text, start=1700000000, **environment)
    return folder


def _copy(source: str, target: str) -> None:
    subprocess.run(["cp", "-a", source, target], check=True, timeout=SCRIPT_S)


def _plain(row: GitRow, base: str, folder: str) -> _Plain:
    os.makedirs(folder)
    for name in ("theirs", "ours"):
        _copy(base, f"{folder}/{name}")
    script(f"{folder}/theirs", row.theirs, start=1700010000)
    script(f"{folder}/ours", row.ours, start=1700020000)
    ids = {"B": _tip(base), "H": _tip(f"{folder}/theirs"), "O": _tip(f"{folder}/ours")}
    result = f"{folder}/result"
    _copy(f"{folder}/ours", result)
    with open(f"{result}/.git/objects/info/alternates", "w") as file:
        file.write(f"{folder}/theirs/.git/objects\n")
    clean = "git config merge.directoryRenames false; git reset -q --hard; git clean -qfd\n"
    script(result, clean + row.expected, start=0, **ids)
    return _Plain(ids, result)


def _history(folder: str) -> list[str]:
    """Every commit of HEAD: tree, author with date, message, number of parents."""
    text = script(
        folder,
        "git -c log.showSignature=false log --topo-order --format='%T %an %ae %ad %P%n%B%x00' --date=raw",
        start=0,
    )
    rows = [row.strip("\n").partition("\n") for row in text.split("\0") if row.strip()]
    width = len(rows[0][0].split(" ")[0]) if rows else 0
    found: list[str] = []
    for head, _, message in rows:
        words = head.split(" ")
        parents = sum(len(word) == width and n > 3 for n, word in enumerate(words))
        shown = " ".join(words[: len(words) - parents])
        found.append(
            f"{shown} parents={parents} {message.strip()!r}" if parents < 2 else f"{words[0]} {words[-2:]}"
        )
    return found


def check_rows(
    stack: Stack,
    rows: Iterable[GitRow],
    *,
    mode: str = "rebase",
    environments: Sequence[dict[str, str]] = ({}, {}, {}),
) -> None:
    """Publish both sessions and compare each row with git.

    Args:
        environments: variables of the three sessions: the one that makes the repositories, theirs, ours.

    Raises:
        AssertionError: rows that differ, all of them.
    """
    rows = list(rows)
    stack.store.rules = PublishRules(git=mode)
    first = stack.session(agent="base")
    for row in rows:
        _copy(_base(stack, row.base, **environments[0]), first.at(row.name))
    first.publish()
    theirs, ours = stack.session(agent="ada"), stack.session(agent="bob")
    for row in rows:
        script(theirs.at(row.name), row.theirs, start=1700010000, **environments[1])
        script(ours.at(row.name), row.ours, start=1700020000, **environments[2])
    theirs.publish()
    wrong: list[str] = []
    try:
        ours.publish()
    except PublishRejected as error:
        raise AssertionError([(c.path, c.cls) for c in error.conflicts]) from error
    with stack.mounted() as view:
        for row in rows:
            try:
                base = _base(stack, row.base, **environments[0])
                _check_row(row, f"{view}/{row.name}", _plain(row, base, f"{stack.folder}/plain/{row.name}"))
            except AssertionError as error:
                wrong.append(f"{row.name}: {error}")
    assert not wrong, "\n\n".join(wrong)


def _check_row(row: GitRow, view: str, plain: _Plain) -> None:
    wanted, found = _history(plain.result), _history(view)
    assert found == wanted, "\n".join(["found", *found, "wanted", *wanted])
    words = "git fsck --full --strict --no-dangling 2>&1; git --no-optional-locks status --porcelain -uall"
    assert tuple(script(view, words, start=0).splitlines()) == row.status
    with contextlib.suppress(FileNotFoundError):
        assert not [name for name in os.listdir(f"{view}/.git") if name.endswith(".lock")]
    script(view, row.check, start=0, **plain.ids, R=plain.result)
