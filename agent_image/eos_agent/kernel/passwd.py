"""Users of a session, from its own /etc/passwd."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any, NamedTuple

from eos_agent.machine.plain_file import read_lines
from eos_agent.wire.protocol import INVALID_REQUEST, OPERATION_FAILED, OperationError

UID_MAX = 2**32 - 2  # the last number means "no change" to setresuid(2)


class Account(NamedTuple):
    name: str
    uid: int
    gid: int
    home: str


def accounts() -> Iterator[Account]:
    """Read the valid entries of /etc/passwd; a missing file has no entries. In a container every session may
    replace the file."""
    for line in read_lines("/etc/passwd"):
        fields = line.split(":")
        if len(fields) > 5 and fields[2].isdigit() and fields[3].isdigit():
            yield Account(fields[0], int(fields[2]), int(fields[3]), fields[5])


def primary_group(uid: int) -> int:
    """The primary group of `uid`, or the same number if unknown."""
    return next((account.gid for account in accounts() if account.uid == uid), uid)


def find_account(user: str) -> dict[str, Any]:
    """Look up the `user` of a command, a name or a number: uid (null: the default of commands), name, home.

    Raises:
        OperationError: invalid_request, reason user_not_found; operation_failed, reason user_not_mapped, for
            a uid that the user namespace of this sandbox does not map.
    """
    named = next((account for account in accounts() if account.name == user), None)
    if named is None and user.isascii() and user.isdecimal() and len(user) <= 10 and int(user) <= UID_MAX:
        uid = int(user)
        named = next((account for account in accounts() if account.uid == uid), Account(user, uid, uid, "/"))
    if named is None:
        raise OperationError(
            INVALID_REQUEST,
            f"user not found: {user!r} is neither in /etc/passwd of the session nor a number up to {UID_MAX}",
            {"argument": "user", "value": user},
            reason="user_not_found",
        )
    same = named.uid == os.getuid()
    if not same and not (os.getuid() == 0 and _mapped("uid", named.uid) and _mapped("gid", named.gid)):
        raise OperationError(
            OPERATION_FAILED,
            f"commands cannot run as {user!r} (uid {named.uid}): its user namespace maps uid "
            f"{os.getuid()} only",
            {
                "argument": "user",
                "value": user,
                "uid": named.uid,
                "hint": "leave user out, or use a sandbox that root or the engine made",
            },
            reason="user_not_mapped",
        )
    return {"uid": None if same else named.uid, "name": named.name, "home": named.home}


def _mapped(kind: str, number: int) -> bool:
    """Test that the session's user namespace maps that uid or gid; user_namespaces(7)."""
    with open(f"/proc/self/{kind}_map", encoding="utf-8") as file:
        return any(int(first) <= number < int(first) + int(count) for first, _, count in map(str.split, file))
