"""The operation fsck: compare the store with its checksums and indexes, a page at a time; and the same check
of a store that no agent serves.

`python -m eos_agent.sessions.check_store [--base] DIR` is the check without an agent. It is a process of its
own, so that it can enter a user namespace like the one in which the store was written: the owners of files
are checked too. It prints one JSON object per line and never writes to the store.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from eos_agent.base.pool import Pool
from eos_agent.wire.protocol import INVALID_REQUEST, SERVER_SHUTTING_DOWN, OperationError
from layerstack.errors import LayerStackError, StoreCorrupt
from layerstack.fsck import check
from layerstack.model.conflict import path_json

if TYPE_CHECKING:
    from layerstack.fsck.check import Damage, Note
    from layerstack.store import Store

PAGE_S = 2.0
"""Seconds after which a page ends once the part in progress is checked; a layer is one part."""
PAGE_LINES = 500
TELL_S = 0.5
"""Seconds between two progress lines of the check without an agent."""


def _file(name: str, key: str = "file") -> dict[str, str]:
    """The key `file`, and `file_b64` if the name is not UTF-8."""
    return {key + field.removeprefix("path"): value for field, value in path_json(name).items()}


def damage_json(damage: Damage) -> dict[str, Any]:
    return {**_file(damage.file), "what": damage.what, "found_by": damage.found_by}


def note_json(note: Note) -> dict[str, Any]:
    return {"kind": note.kind, **_file(note.file), "what": note.what}


class Checks:
    """The operation fsck, a page at a time, in a thread of its own, so that a large layer delays no other
    request."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._pool = Pool(1)
        self._stopped = threading.Event()

    async def page(self, args: dict[str, Any]) -> dict[str, Any]:
        """Perform fsck in the thread; see the function `page`."""
        return await self._pool.run(lambda: page(self._store, args, stopped=self._stopped.is_set))

    def close(self) -> None:
        """End a page in progress, with an error, at its next entry."""
        self._stopped.set()
        self._pool.close()


def page(
    store: Store, args: dict[str, Any], *, stopped: Callable[[], bool] = lambda: False
) -> dict[str, Any]:
    """Perform fsck: check the parts of the store after the cursor, as many as the time of a page allows.

    Args:
        stopped: called after each entry; True ends the page with an error.
    Raises:
        OperationError: invalid_request; the cursor does not come from fsck. server_shutting_down if the page
            was stopped.
    """
    after = args.get("cursor")
    if after is not None and after.partition(" ")[0] not in check.ORDER:
        raise OperationError(
            INVALID_REQUEST,
            "cursor was not returned by fsck",
            {"argument": "cursor"},
            reason="invalid_cursor",
        )
    deadline = time.monotonic() + PAGE_S
    with store.checking(base=args.get("base") is True) as looking:
        parts, found, last = looking.parts(after), list[dict[str, Any]](), after
        left = len(parts)
        for part in parts:
            for damage in looking.of(part):
                if damage is not None:
                    found.append(damage_json(damage))
                elif stopped():
                    raise OperationError(
                        SERVER_SHUTTING_DOWN,
                        "the agent is shutting down",
                        {"retryable": True},
                        reason="draining",
                    )
            last, left = part, left - 1
            if time.monotonic() > deadline or len(found) + len(looking.notes) >= PAGE_LINES:
                break
        return {
            "damage": found,
            "notes": [note_json(note) for note in looking.notes],
            "checked": looking.counts._asdict(),
            "parts_left": left,
            "next": last if left else None,
        }


# ---- the check of a store without an agent


def find_store(folder: str) -> tuple[str, str | None]:
    """Find the store in `folder`, a store or the state directory of a local sandbox. Returns the store and
    the path of its base, or None if the base is in the store.

    Raises:
        OperationError: invalid_request, reason not_a_store: `folder` has neither a store nor a part of one.
        StoreCorrupt: directories of a store exist, but its records are missing.
    """
    for root in (folder, f"{folder}/layer-stack"):
        if os.path.lexists(f"{root}/workspace.json") or os.path.lexists(f"{root}/manifest.json"):
            return root, _base_of(os.path.dirname(os.path.realpath(root)))
    os.stat(folder)
    for root in (folder, f"{folder}/layer-stack"):
        if os.path.isdir(f"{root}/layers") and os.path.isdir(f"{root}/.layer-metadata"):
            raise StoreCorrupt(
                f"{root}: a store without manifest.json and workspace.json", details={"file": root}
            )
    hint = (
        "name the store's directory (with manifest.json), the state directory of a stopped local "
        "sandbox, or the id of a sandbox"
    )
    raise OperationError(
        INVALID_REQUEST,
        f"{folder} is not a store; {hint}",
        {"store": folder, "hint": hint},
        reason="not_a_store",
    )


def _base_of(state: str) -> str | None:
    try:
        with open(f"{state}/agent.json", encoding="utf-8") as file:
            base = json.load(file)["base_dir"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return base if isinstance(base, str) and os.path.isdir(base) else None


def enter(root: str) -> str | None:
    """Enter the uid and user namespace of the process that wrote the store, in which files of an ordinary
    user's sandbox belong to uid 0. Returns None, or the reason why that is impossible.
    """
    from eos_agent.kernel import namespaces
    from layerstack.kernel import records

    try:
        namespace = records.read(f"{root}/workspace.json").get("form")
    except (LayerStackError, OSError):
        return None
    if namespace != "user" or os.geteuid() == 0 == os.stat(f"{root}/workspace.json").st_uid:
        return None
    owner = os.stat(f"{root}/workspace.json")
    try:
        if os.geteuid() == 0:
            os.setgroups([])
            os.setresgid(owner.st_gid, owner.st_gid, owner.st_gid)
            os.setresuid(owner.st_uid, owner.st_uid, owner.st_uid)
        elif os.geteuid() != owner.st_uid:
            return f"the store belongs to uid {owner.st_uid}: run fsck as that user"
        namespaces.enter_user_namespace()
    except OSError as error:
        return f"cannot enter a user namespace like that of the store's writer: {error.strerror}"
    return None


def look(folder: str, *, base: bool, tell: Callable[[dict[str, Any]], None]) -> None:
    """Check the store in `folder`; `tell` is called with `{"damage"}`, `{"note"}`, `{"progress"}`, and last
    `{"end"}` with the counts.

    Raises:
        LayerStackError, OSError: the store cannot be read.
    """
    root, base_dir = find_store(folder)
    why = enter(root)
    if why is not None:
        raise OperationError(INVALID_REQUEST, f"{root}: {why}", {"store": root}, reason="store_form")
    with check.offline(root, base=base, base_dir=base_dir) as looking:
        reported, last = 0, time.monotonic()

        def beat(part: str) -> None:
            nonlocal last
            if time.monotonic() - last > TELL_S:
                last = time.monotonic()
                tell({"progress": part, **looking.counts._asdict()})

        for part in looking.parts():
            for damage in looking.of(part):
                if damage is not None:
                    tell({"damage": damage_json(damage)})
                beat(part)
            for note in looking.notes[reported:]:
                tell({"note": note_json(note)})
            reported = len(looking.notes)
        tell({"end": looking.counts._asdict(), "store": root})


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line `[--base] DIR`. Exit status 0 after a complete check, with or without damage; 2
    after an error, with `{"error"}` as the last line.
    """
    from eos_agent.base.errors import operation_error

    words = list(sys.argv[1:] if argv is None else argv)
    base = "--base" in words
    folders = [word for word in words if word != "--base"]

    def tell(value: dict[str, Any]) -> None:
        sys.stdout.write(json.dumps(value) + "\n")
        sys.stdout.flush()

    try:
        (folder,) = folders
        look(folder, base=base, tell=tell)
    except BrokenPipeError:
        return 2
    except (LayerStackError, OperationError, OSError) as error:
        tell(operation_error(error).envelope())
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
