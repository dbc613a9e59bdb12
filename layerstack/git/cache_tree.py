"""The extension TREE of git's index: the ids of trees that the index already agrees with.

    <name> NUL <entries> SP <subtrees> LF [<id>]

The root first, each directory before its subdirectories. An id is there unless the number of entries is -1,
which says that something below has changed. Source: cache-tree.c of git.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from layerstack.git.object_format import CorruptObject, Oid

DEPTH_MAX = 4096
"""Directories in one another."""

_NODE = re.compile(rb"([^\0]*)\0(-?\d{1,10}) (\d{1,10})\n")


class CacheTree:
    """One directory. `oid` is None when it is not known that the index agrees with a tree here."""

    __slots__ = ("children", "count", "oid")

    def __init__(self, count: int = -1, oid: Oid | None = None) -> None:
        self.count, self.oid = count, oid
        """Number of index entries below; -1 without an id."""
        self.children: dict[bytes, CacheTree] = {}

    @classmethod
    def parse(cls, data: bytes, size: int) -> CacheTree:
        """Parse the extension; `size` is that of an id."""
        root = cls()
        open_: list[tuple[CacheTree, int]] = []
        at = 0
        while at < len(data):
            found = _NODE.match(data, at)
            if found is None:
                raise CorruptObject(f"read an index: the extension TREE is damaged at {at}")
            at = found.end()
            count, children = int(found[2]), int(found[3])
            oid = data[at : at + size] if count >= 0 else None
            if oid is not None:
                at += size
                if len(oid) < size:
                    raise CorruptObject("read an index: the extension TREE is cut short")
            node = cls(count if count >= 0 else -1, oid)
            if not open_ and root.children == {} and found.start() == 0:
                root = node
            elif open_:
                above, left = open_[-1]
                above.children[found[1]] = node
                open_[-1] = above, left - 1
            else:
                raise CorruptObject("read an index: the extension TREE has two roots")
            open_.append((node, children))
            if len(open_) > DEPTH_MAX:
                raise CorruptObject(f"read an index: the extension TREE is deeper than {DEPTH_MAX}")
            while open_ and open_[-1][1] == 0:
                open_.pop()
        if open_:
            raise CorruptObject("read an index: the extension TREE is cut short")
        return root

    def invalidate(self, path: bytes) -> None:
        """Forget the trees that contain an entry of that path, and the subtree of that name."""
        node = self
        node.count, node.oid = -1, None
        steps = path.split(b"/")
        for step in steps[:-1]:
            child = node.children.get(step)
            if child is None:
                return
            node = child
            node.count, node.oid = -1, None
        node.children.pop(steps[-1], None)

    def below(self, path: bytes) -> CacheTree | None:
        """Find the node of a directory."""
        node: CacheTree | None = self
        for step in path.split(b"/") if path else ():
            if node is None:
                return None
            node = node.children.get(step)
        return node

    def to_bytes(self, size: int) -> bytes:
        """Write the extension; nothing when no tree is known."""
        if self.oid is None and not self.children:
            return b""
        return b"".join(self._parts(size))

    def _parts(self, size: int) -> Iterator[bytes]:
        left: list[tuple[bytes, CacheTree]] = [(b"", self)]
        while left:
            name, node = left.pop()
            yield b"%s\0%d %d\n" % (name, node.count if node.oid is not None else -1, len(node.children))
            if node.oid is not None:
                assert len(node.oid) == size
                yield node.oid
            order = sorted(node.children.items(), key=lambda pair: (len(pair[0]), pair[0]), reverse=True)
            left.extend(order)
