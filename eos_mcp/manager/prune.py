"""Find, and remove on request, what no sandbox uses: shared volumes, copies of workspaces, runtimes.

A cache may serve several gateways. Each gateway notes in `<cache>/<root_hash>/users/` that it uses a base,
and the path of its registry. A base is removable when no noted registry names it, a runtime when no process
runs from it, a volume when the engine reports no container that mounts it.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple, Protocol

from agent_image import build
from eos_agent.machine import private_dirs
from eos_agent.wire.protocol import OperationError
from eos_mcp.workspace.base import BASE_LAYER
from layerstack.kernel import fsync

USERS = "users"
NEW_BASE_S = 3600.0
"""Seconds after another gateway noted its use of a base in which its record may not be written yet."""
SHOWN = 1000
_HASH = re.compile(r"[0-9a-f]{16,64}")
_BUILDING = re.compile(r"\.building-(\d+)-[0-9a-f]+")


class Item(NamedTuple):
    """Unused item. `kind`: volume, base, runtime, or scrap (left by a killed copy); size None: unknown."""

    kind: str
    name: str
    path: str
    size_bytes: int | None

    def to_json(self) -> dict[str, Any]:
        return {"kind": self.kind, "name": self.name, "bytes": self.size_bytes}


class Places(NamedTuple):
    """The caches of bases and runtimes, and this gateway's registry."""

    bases: str
    bundles: str
    registry: str


class Engine(Protocol):
    """Part of the Docker provider that pruning uses."""

    def unused_volumes(self) -> list[str]:
        """List shared volumes that this gateway made and no container mounts."""
        ...

    def remove_volume(self, name: str) -> None:
        """Remove a volume that no container mounts. Raises OperationError, also when a container mounts it
        now.
        """
        ...


def perform(
    places: Places,
    used: Iterable[str],
    engine: Engine | None,
    *,
    dry_run: bool,
    progress: Callable[[str], None],
) -> dict[str, Any]:
    """Return the result of `prune`: the removable items, or the removed items and the failures."""
    found = find(places.bases, places.bundles, places.registry, used)
    warnings: list[str] = []
    if engine is not None:
        try:
            found += [Item("volume", name, "", None) for name in engine.unused_volumes()]
        except OperationError as error:
            warnings.append(error.message)
    gone: list[Item] = []
    for item in found:
        try:
            if not dry_run:
                progress(f"removing {item.kind} {item.name}")
                if engine is not None and item.kind == "volume":
                    engine.remove_volume(item.name)
                else:
                    remove(item)
            gone.append(item)
        except OperationError as error:
            warnings.append(f"{item.kind} {item.name}: {error.message}")
        except OSError as error:
            warnings.append(f"{item.kind} {item.name}: {error}")
    return {
        "dry_run": dry_run,
        "items": [item.to_json() for item in gone[:SHOWN]],
        "count": len(gone),
        "bytes": sum(item.size_bytes or 0 for item in gone),
        "warnings": warnings[:SHOWN],
    }


def note_user(cache: str, root_hash: str, registry_path: str) -> None:
    """Note that this gateway uses a base; the note counts while its registry names the base."""
    folder = os.path.join(cache, root_hash, USERS)
    private_dirs.make(folder)
    path = os.path.join(folder, hashlib.sha256(os.fsencode(registry_path)).hexdigest()[:32])
    with open(path, "w", encoding="utf-8", errors="surrogateescape", opener=_private) as file:
        file.write(registry_path)


def _private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_CLOEXEC, 0o600)


def find(bases: str, bundles: str, registry_path: str, used: Iterable[str]) -> list[Item]:
    """Find removable items of both caches.

    Args:
        used: root hashes that this gateway's own records name. It must not be creating sandboxes.
    Cost: a walk over each removable tree, for its size.
    """
    return [
        *_bases(bases, registry_path, frozenset(used)),
        *_bundles(bundles),
        *_scrap(bases),
        *_scrap(bundles),
    ]


def remove(item: Item) -> None:
    """Rename an item away, then delete it, so that no reader sees a part under its name.

    Raises:
        OSError: the item, or a part of it renamed as scrap, is left for the next `prune`.
    """
    aside = item.path
    if item.kind != "scrap":
        aside = os.path.join(os.path.dirname(item.path), f".pruned-{os.urandom(6).hex()}")
        os.rename(item.path, aside)
    fsync.remove_tree(aside)


def _bases(cache: str, registry_path: str, used: frozenset[str]) -> Iterator[Item]:
    for name in _names(cache):
        path = os.path.join(cache, name)
        if (
            _HASH.fullmatch(name)
            and name not in used
            and os.path.isdir(os.path.join(path, "base", BASE_LAYER))
        ):
            users = list(_users(path))
            if users and not any(
                other != registry_path and _may_use(file, other, name) for file, other in users
            ):
                yield Item("base", name, path, _size(path))


def _users(path: str) -> Iterator[tuple[str, str]]:
    folder = os.path.join(path, USERS)
    for name in _names(folder):
        with (
            contextlib.suppress(OSError),
            open(os.path.join(folder, name), encoding="utf-8", errors="surrogateescape") as file,
        ):
            yield file.name, file.read()


def _may_use(file: str, registry_path: str, root_hash: str) -> bool:
    """Return True when a gateway uses a base or may soon; an unreadable registry counts as use."""
    with contextlib.suppress(OSError):
        if time.time() - os.stat(file).st_mtime < NEW_BASE_S:
            return True
    try:
        with open(registry_path, encoding="utf-8") as registry:
            records: list[dict[str, Any]] = json.load(registry)["sandboxes"]
        bases: list[dict[str, Any] | None] = [record.get("shared_base") for record in records]
        return any(base is not None and base.get("root_hash") == root_hash for base in bases)
    except FileNotFoundError:
        return False
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return True


def _bundles(folder: str) -> Iterator[Item]:
    """Yield unused runtimes, without the one that the next creation would use."""
    try:
        newest = build.known(folder)
    except build.BuildError:
        newest = None
    running = _running_below(folder)
    for name in _names(folder):
        path = os.path.join(folder, name)
        if (
            _HASH.fullmatch(name)
            and os.path.isdir(path)
            and name not in running
            and (newest is None or newest.sha != name)
        ):
            yield Item("runtime", name, path, _size(path))


def _running_below(folder: str) -> set[str]:
    """Return the names below `folder` from which a process runs."""
    found: set[str] = set()
    mark = os.fsencode(os.path.join(folder, ""))
    for pid in filter(str.isdecimal, _names("/proc")):
        with contextlib.suppress(OSError), open(f"/proc/{pid}/cmdline", "rb") as file:
            for word in file.read().split(b"\0"):
                if mark in word:
                    found.add(os.fsdecode(word.split(mark, 1)[1].split(b"/", 1)[0]))
    return found


def _scrap(folder: str) -> Iterator[Item]:
    for name in _names(folder):
        building = _BUILDING.fullmatch(name)
        dead = building is not None and not os.path.exists(f"/proc/{building[1]}")
        if dead or name.startswith((".torn-", ".pruned-")):
            path = os.path.join(folder, name)
            yield Item("scrap", name, path, _size(path))


def _names(folder: str) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except (FileNotFoundError, NotADirectoryError):
        return []


def _size(path: str) -> int:
    """Return the bytes of the regular files below `path`; a file with several names there counts once."""
    total, seen, stack = 0, set[int](), [path]
    while stack:
        with contextlib.suppress(OSError), os.scandir(stack.pop()) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    stack.append(entry.path)
                elif entry.is_file(follow_symlinks=False):
                    status = entry.stat(follow_symlinks=False)
                    if status.st_ino not in seen:
                        seen.add(status.st_ino)
                        total += status.st_size
    return total
