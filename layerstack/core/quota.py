"""The quota of a store: limits for the bytes and layers of published work, and the kernel's limit for the
layers of a mount. A publication is checked before anything is written.

Used bytes are those of the published layers above the base that the head and leases (sessions, drafts, pins,
exports) keep: the sizes of regular files in the layers' metadata, where several names of one file count once.
No tree is walked. The count may be too high: the earlier layer of a moved file is not known, so such a file
counts twice until a squash contains both layers. Drafts, captured trees and live sessions are not counted,
and work that a quota refuses stays unpublished in its session or draft.
"""

from __future__ import annotations

import os
from array import array
from collections.abc import Callable, Collection, Container, Iterable, Mapping
from typing import Any

from layerstack.errors import LayerLimit, LayerStackError, QuotaExceeded
from layerstack.kernel.overlay import check_count
from layerstack.layers.cache import Layers
from layerstack.layers.index import Layer
from layerstack.layers.index_file import Indexed
from layerstack.model.lease import Leases
from layerstack.model.manifest import Manifest
from layerstack.tree.disk import Tree
from layerstack.tree.state import State

SESSIONS_UNLIMITED = "unsupported: what live sessions and drafts write is limited by the disk alone"
_PROJECT_QUOTAS = {"prjquota", "pquota"}


class Quota:
    """The limits of one open store, and the bytes and layers in use. Limits may be set at any time; published
    work above a new limit stays.
    """

    def __init__(self, root: str, layers: Layers, leases: Leases, head: Callable[[], Manifest]) -> None:
        self._root, self._layers, self._leases, self._head = root, layers, leases, head
        self.bytes: int | None = None
        """Bytes of published layers above the base; None: no limit but the disk's."""
        self.layers: int | None = None
        """Layers of the head above the base; None: as many as the kernel mounts."""
        self._counted: tuple[Manifest | None, int] = (None, 0)

    def used_bytes(self, leaving: Collection[str] = ()) -> int:
        """The bytes that count against `bytes`. Cost: O(layers that are new in the head); O(all layers) after
        a squash, while replaced ones are kept.

        Args:
            leaving: names of leases that end with the calling publish, and are not counted.
        """
        head, loaded = self._head(), self._layers.all()
        if len(loaded) == len(head.layers):
            return self._of_head(head)
        ids = set(head.layer_ids).union(
            *(lease.layer_ids for lease in self._leases.boundaries() if lease.name not in leaving)
        )
        return _sum(layer for layer in loaded if layer.id in ids)

    def _of_head(self, head: Manifest) -> int:
        """Count the bytes of the head, when no lease keeps other layers. The last head and its sum are
        remembered.
        """
        last, total = self._counted
        if last is not head:
            if last is not None and last.layers == head.layers[1:]:
                newest = self._layers.get(head.layers[0].layer_id)
                total += _adds(newest, head.layer_ids if "linked" in newest.about else ())
            else:
                total = _sum(self._layers.of(head))
            self._counted = (head, total)
        return total

    def used_layers(self) -> int:
        """The layers that count against `layers`."""
        return len(self._head().layers) - 1

    def refusal(self, size: Callable[[], int], leaving: Collection[str] = ()) -> LayerStackError | None:
        """Give the error with which one more layer of `size` bytes would be refused now, or None; `size` is
        called only when the result depends on it.
        """
        try:
            self.admit(self._head(), size, leaving)
        except (QuotaExceeded, LayerLimit) as error:
            return error
        return None

    def admit(self, head: Manifest, size: Callable[[], int], leaving: Collection[str] = ()) -> None:
        """Check that one layer of that size may be added on top of `head`.

        Args:
            leaving: names of leases that end with the publish.
        Raises:
            LayerLimit: the kernel could not mount it. QuotaExceeded: reason quota_layers or quota_bytes.
        """
        check_count(len(head.layers) + 1)
        if self.layers is not None and len(head.layers) > self.layers:
            raise QuotaExceeded("layers", limit=self.layers, used=len(head.layers) - 1, wanted=1)
        if self.bytes is not None:
            used, wanted = self.used_bytes(leaving), size()
            if wanted and used + wanted > self.bytes:
                raise QuotaExceeded("bytes", limit=self.bytes, used=used, wanted=wanted)

    def to_json(self) -> dict[str, Any] | None:
        """The limits, the bytes and layers in use, and what is not enforced and why; None without limits."""
        if self.bytes is None and self.layers is None:
            return None
        used = {"used_bytes": self.used_bytes(), "used_layers": self.used_layers()}
        sessions = f"{SESSIONS_UNLIMITED}; {why_not(self._root)}"
        return {
            "bytes": self.bytes,
            "layers": self.layers,
            **used,
            "published": "enforced",
            "sessions": sessions,
        }


def why_not(root: str, mountinfo: str = "/proc/self/mountinfo") -> str:
    """Explain why the file system does not keep sessions within a quota. Source: proc_pid_mountinfo(5); mount
    options of ext4(5) and xfs(5).
    """
    device = os.stat(root).st_dev
    number = f"{os.major(device)}:{os.minor(device)}"
    with open(mountinfo, encoding="utf-8", errors="surrogateescape") as file:
        for line in file:
            before, _, after = line.partition(" - ")
            if before.split(" ")[2] == number:
                kind, _, options = after.split()[:3]
                if _PROJECT_QUOTAS.isdisjoint(options.split(",")):
                    return f"this {kind} is mounted without project quotas"
                return f"this {kind} has project quotas, which are not used"
    return "its file system is not known"


class Sizes:
    """Bytes of files, several names of one file once. Memory: 16 bytes for each name of a file that has
    several.
    """

    def __init__(self) -> None:
        self._total = 0
        self._inodes, self._sizes = array("Q"), array("Q")

    def add(self, state: State) -> None:
        if state.links <= 1:
            self._total += state.size
        else:
            self._inodes.append(state.inode[1])
            self._sizes.append(state.size)

    def total(self) -> int:
        last, total = -1, self._total
        for at in sorted(range(len(self._inodes)), key=self._inodes.__getitem__):
            total += self._sizes[at] if self._inodes[at] != last else 0
            last = self._inodes[at]
        return total


def size_of(tree: Tree, indexed: Indexed) -> int:
    """Bytes of the regular files of a captured tree, several names of one file once."""
    sizes = Sizes()
    for state in map(tree.state, indexed.files()):
        sizes.add(state)
    return sizes.total()


def _sum(layers: Iterable[Layer]) -> int:
    """Sum the bytes of layers that the head or a lease keeps. The layers of one version contain each
    publication once. An older lease may also keep layers that a squash has replaced: the squashed layer
    consists of their files, and adds nothing while all of them are kept.
    """
    kept = {layer.id: layer for layer in layers if not layer.is_base}
    total, seen = 0, set[int]()
    for layer in sorted(kept.values(), key=lambda layer: len(layer.about.get("members", ()))):
        versions = {int(member["version"]) for member in layer.about.get("members", ())} or {layer.version}
        if layer.about.get("members") and versions <= seen:
            continue
        seen |= versions
        total += _adds(layer, kept)
    return total


def _adds(layer: Layer, kept: Container[str]) -> int:
    """Bytes of a layer that are not in files of other kept layers."""
    linked: Mapping[str, Any] = layer.about.get("linked") or {}
    return int(layer.about.get("bytes") or 0) - sum(
        int(linked[layer_id]) for layer_id in linked if layer_id in kept
    )
