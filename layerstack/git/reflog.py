"""Logs of refs, merged by lines: what one side removed stays removed, and ours follow the head's.

A line is `<old id> <new id> <name> <<address>> <seconds> <zone>TAB<message>LF`. Deleting a line (`git stash
drop`, `git reflog expire --rewrite`) changes the old id of the next one, so a line is known by all but its
old id. Source: refs/files-backend.c, builtin/reflog.c of git.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from layerstack.git.object_format import GitRefused
from layerstack.git.objects import GitTree
from layerstack.git.ref_names import above
from layerstack.tree.state import FILE

STASH = b"refs/stash"
LOG_MAX = 64 << 20
"""Bytes of one log that is merged."""
MESSAGE_MAX = 1000

_LINE = re.compile(rb"([0-9a-f]{40}|[0-9a-f]{64}) ([0-9a-f]{40}|[0-9a-f]{64}) ")
_WORKTREE_LOG = re.compile(r"(worktrees/[^/]+/)logs/(.+)", re.DOTALL)
_BLANKS = re.compile(rb"\s+")


def lines_of(log: bytes | None) -> list[bytes]:
    """Split a log into its lines, each with its LF; lines that git could not read are left out.

    Raises:
        GitRefused: the log is larger than LOG_MAX.
    """
    if not log:
        return []
    if len(log) > LOG_MAX:
        raise GitRefused(
            f"merge a log of refs: it has {len(log):,} bytes, at most {LOG_MAX:,} are read;"
            " `git reflog expire --expire=90.days --all` makes it shorter"
        )
    whole = log if log.endswith(b"\n") else log[: log.rfind(b"\n") + 1]
    return [line for line in whole.splitlines(keepends=True) if _LINE.match(line) is not None]


def new_id(line: bytes) -> bytes:
    """Give the id, in hex, that a line says the ref has since."""
    found = _LINE.match(line)
    assert found is not None
    return found[2]


def ids_of(log: bytes | None) -> set[bytes]:
    """List all ids, in hex, that a log names; the null id is left out."""
    found = {
        oid for line in lines_of(log) for match in [_LINE.match(line)] if match for oid in match.groups()
    }
    return {oid for oid in found if oid.strip(b"0")}


def _key(line: bytes) -> bytes:
    return line[line.index(b" ") + 1 :]


def merge_log(base: bytes | None, ours: bytes | None, head: bytes | None, *, chain: bool = False) -> bytes:
    """Merge a log of three states; None is a log that does not exist.

    Args:
        chain: write the old id of each line as the new id of the line before it, as `git stash drop` does.
    Returns:
        The lines of the base that both sides have, then those that the head added, then those that ours
        added. A line that both added is there once.
    """
    if ours == head or base == head:
        found = lines_of(ours)
    elif base == ours:
        found = lines_of(head)
    else:
        found = _merged(lines_of(base), lines_of(ours), lines_of(head))
    return b"".join(_chained(found) if chain else found)


def _merged(base: list[bytes], ours: list[bytes], head: list[bytes]) -> list[bytes]:
    counts = [Counter(map(_key, side)) for side in (base, ours, head)]
    kept = {key: min(counts[1][key], counts[2][key], number) for key, number in counts[0].items()}
    common: list[bytes] = []
    added: list[bytes] = []
    seen: Counter[bytes] = Counter()
    for line in head:
        key = _key(line)
        seen[key] += 1
        if seen[key] <= kept.get(key, 0):
            common.append(line)
        elif seen[key] > counts[0][key]:
            added.append(line)
    by_head = seen - counts[0]
    seen = Counter[bytes]()
    for line in ours:
        key = _key(line)
        seen[key] += 1
        if seen[key] > counts[0][key] + by_head[key]:
            added.append(line)
    return common + added


def _chained(lines: list[bytes]) -> list[bytes]:
    """Make each line begin with the id at which the line before it ended, and the first with no id."""
    found: list[bytes] = []
    for line in lines:
        before = new_id(found[-1]) if found else b"0" * line.index(b" ")
        found.append(before + line[line.index(b" ") :])
    return found


def log_line(old: bytes | None, new: bytes, identity: bytes, message: str) -> bytes:
    """Make one line.

    Args:
        old: id in hex; None: the ref is new.
        identity: `Name <address> <seconds> <zone>`.
    """
    text = _BLANKS.sub(b" ", message.encode("utf-8", "replace")[:MESSAGE_MAX]).strip()
    return b"%s %s %s\t%s\n" % (old or b"0" * len(new), new, identity, text)


class LogMove(NamedTuple):
    """A ref that the merge itself moved: its old and new id in hex."""

    old: bytes | None
    new: bytes


class LogSides(NamedTuple):
    """The trees of a merge, and the refs that it gave."""

    base: GitTree
    ours: GitTree
    head: GitTree
    refs: Collection[bytes]
    renamed: Mapping[bytes, bytes]
    """Names of ours that another name replaces in the result."""


def log_path(name: bytes) -> str:
    """Give the path of a ref's log below the repository; a linked worktree's is in its own directory."""
    text = os.fsdecode(name)
    if text.startswith("worktrees/") and text.count("/") > 1:
        _, worktree, rest = text.split("/", 2)
        return f"worktrees/{worktree}/logs/{rest}"
    return f"logs/{text}"


def ref_of_log(below: str) -> bytes | None:
    """Give the ref whose log has this path below the repository; None for any other path."""
    if below.startswith("logs/"):
        return os.fsencode(below[len("logs/") :])
    found = _WORKTREE_LOG.fullmatch(below)
    return None if found is None else os.fsencode(found[1] + found[2])


def merge_logs(
    root: str,
    sides: LogSides,
    changed: Iterable[bytes],
    moves: Mapping[bytes, LogMove],
    identity: bytes,
    message: str = "publish: rebase",
) -> dict[str, bytes | None]:
    """Merge the logs of the refs that either side changed.

    Args:
        changed: names of refs whose log differs between the base and either side, or that the result lacks.
        moves: refs that got a new value by the merge; their logs get one line more.
        identity: `Name <address> <seconds> <zone>` of that line.
    Returns:
        Path below the repository -> content, which replaces a directory too, or None: remove the path.
        Removals come first. Nothing for a log that stays as the head has it. No log is without its ref: as a
        file it would block the log of a ref `x/y`, as a directory that of `x`.
    """
    gone: dict[str, bytes | None] = {}
    written: dict[str, bytes] = {}
    for name in sorted({*changed, *moves}):
        here = log_path(name)
        in_head = _read(root, here, sides.head)
        result = sides.renamed.get(name, name)
        own = _read(root, here, sides.ours)
        if result != name and result in sides.refs and own is not None:
            written[log_path(result)] = own
        if name not in sides.refs:
            if in_head is not None:
                gone[here] = None
            continue
        ours = in_head if result != name else own
        base = _read(root, here, sides.base)
        if ours is None and in_head is None:
            continue
        stash = name == STASH
        if not stash and (ours is None or in_head is None):
            base = None  # a log that one side removed with its ref follows that ref, which is back
        log = merge_log(base, ours, in_head, chain=stash)
        if (move := moves.get(name)) is not None and move.old != move.new:
            log += log_line(move.old, move.new, identity, message)
        if log != in_head:
            written[here] = log
    for path in written:
        for folder in above(ref_of_log(path) or b""):
            stale = log_path(folder)
            state = sides.head.find(f"{root}/{stale}") if folder not in sides.refs else None
            if state is not None and state.kind == FILE:
                gone[stale] = None
    gone.update(sorted(written.items()))
    return gone


def _read(root: str, path: str, tree: GitTree) -> bytes | None:
    state = tree.find(f"{root}/{path}")
    if state is None or state.kind != FILE:
        return None
    if state.size > LOG_MAX:
        raise GitRefused(
            f"merge {root}/{path}: it has {state.size:,} bytes, at most {LOG_MAX:,} are read;"
            " `git reflog expire --expire=90.days --all` makes it shorter",
            details={"repository": root},
        )
    return state.data(LOG_MAX)
