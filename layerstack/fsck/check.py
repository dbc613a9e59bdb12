"""Check a store: every layer against its digest, every record against its checksum and against the others.

    for damage in check("/var/lib/stack"):    # a store that no process has open
        print(damage.file, damage.what, damage.found_by)

Nothing is repaired and nothing is written, not even the lock file. An open store is checked by the process
that has it open: `Store.checking`. Leftovers that the next open removes, and parts that could not be read,
are not damage: they are `Check.notes`.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Generator, Iterator

from layerstack.errors import StoreBusy, StoreCorrupt
from layerstack.fsck import documents, trees
from layerstack.fsck.parts import CheckContext, Counts, Damage, Note

__all__ = ["ORDER", "Check", "Counts", "Damage", "Note", "check", "offline"]

ORDER = ("store", "base", "pins", "layer", "draft", "session", "leases", "staging")
"""Parts of a check, in their order. A part is one word; for layers, drafts and sessions the name follows
after a space.
"""


class Check(CheckContext):
    """One check of a store, part by part; made by `check`, `offline` and `Store.checking`.

    Damage is reported as it is found; `notes` and `counts` grow during the check.
    """

    def __iter__(self) -> Iterator[Damage]:
        for part in self.parts():
            for found in self.of(part):
                if found is not None:
                    yield found

    def parts(self, after: str | None = None) -> list[str]:
        """List the parts to check, or those after a part that was checked."""
        found = ["store", "base", "pins", *(f"layer {name}" for name in self.layers())]
        found += [f"draft {name}" for name in self.names("drafts")] + [
            f"session {name}" for name in self.names("sessions")
        ]
        found += ["leases"] if self.store is not None else ["staging"]
        found.sort(key=_place)
        return found if after is None else [part for part in found if _place(part) > _place(after)]

    def of(self, part: str) -> Iterator[Damage | None]:
        """Check one part. Yields None at intervals, so that the caller can measure time."""
        what, _, name = part.partition(" ")
        try:
            if what == "layer":
                yield from trees.layer(self, name)
            elif what == "draft":
                yield from trees.draft(self, name)
            elif what == "base":
                yield from trees.base(self)
            else:
                checks: dict[str, Callable[[], Iterator[Damage]]] = {
                    "store": lambda: documents.top(self),
                    "pins": lambda: documents.pins(self),
                    "session": lambda: documents.session(self, name),
                    "leases": lambda: documents.leases(self),
                    "staging": lambda: documents.staging(self),
                }
                yield from self.confirmed(checks[what])
        # the checksum matches, but a value has the wrong type
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            yield Damage(
                _FOLDERS.get(what, "{0}").format(name),
                f"has a record with a value of the wrong type ({error!r})",
                "its content",
            )


_FOLDERS = {
    "layer": "layers/{0}",
    "draft": "drafts/{0}",
    "session": "sessions/{0}",
    "store": ".",
    "pins": "pins",
    "base": "base",
}


def _place(part: str) -> tuple[int, str]:
    what, _, name = part.partition(" ")
    return (ORDER.index(what) if what in ORDER else -1, name)


@contextlib.contextmanager
def offline(root: str, *, base: bool = False, base_dir: str | None = None) -> Generator[Check]:
    """Check a store that no process has open; no process can open it until the end of the block.

    Raises:
        StoreCorrupt: the directory is not a store.
        StoreBusy: a process has it open.
        OSError: this user may not read it.
    """
    import fcntl

    os.stat(root)
    if not os.path.lexists(f"{root}/workspace.json") and not os.path.lexists(f"{root}/manifest.json"):
        raise StoreCorrupt(
            f"{root}: not a store: it has neither workspace.json nor manifest.json",
            details={"file": f"{root}/workspace.json"},
        )
    with contextlib.ExitStack() as stack:
        try:
            fd = os.open(f"{root}/.storage-writer.lock", os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            pass  # never opened
        else:
            stack.callback(os.close, fd)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise StoreBusy(
                    f"{root}: another process has this store open", details={"store": root}
                ) from None
        yield Check(root, base=base, base_dir=base_dir)


def check(root: str, *, base: bool = False) -> Iterator[Damage]:
    """Report all damage of a store that no process has open; nothing is changed.

    Args:
        base: read the base too.
    Raises:
        StoreCorrupt: the directory is not a store.
        StoreBusy: a process has it open.
    Cost: every byte of every layer is read once; memory is that of the widest directory.
    """
    with offline(root, base=base) as running:
        yield from running
