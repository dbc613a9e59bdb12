"""A tree of git that is changed path by path: only directories on the way to a change are read."""

from __future__ import annotations

from collections.abc import Callable

from layerstack.git.commits import DIRECTORY, TreeEntry, format_tree
from layerstack.git.object_format import ObjectFormat, Oid
from layerstack.git.tree_diff import FileValue

ReadTree = Callable[[Oid], list[TreeEntry]]
Written = Callable[[Oid, bytes], object]


class _TreeFolder:
    """A directory. `files` and `folders` are None until it is read; `oid` is None once it was changed."""

    __slots__ = ("files", "folders", "oid")

    def __init__(self, oid: Oid | None) -> None:
        self.oid = oid
        self.files: dict[bytes, FileValue] | None = None if oid is not None else {}
        self.folders: dict[bytes, _TreeFolder] | None = None if oid is not None else {}

    def parts(self, read: ReadTree) -> tuple[dict[bytes, FileValue], dict[bytes, _TreeFolder]]:
        if self.files is None or self.folders is None:
            assert self.oid is not None
            entries = read(self.oid)
            self.files = {e.name: FileValue(e.mode, e.oid) for e in entries if not e.is_tree}
            self.folders = {e.name: _TreeFolder(e.oid) for e in entries if e.is_tree}
        return self.files, self.folders


class TreeBuilder:
    """The tree `root` (None: empty) with changes.

    Args:
        read: gives the entries of a tree.
    """

    def __init__(self, root: Oid | None, fmt: ObjectFormat, read: ReadTree) -> None:
        self._root, self._fmt, self._read = _TreeFolder(root), fmt, read

    def get(self, path: bytes) -> FileValue | None:
        """Give the file, symlink or gitlink at a path; None for a directory and where there is none."""
        folder = self._root
        *above, name = path.split(b"/")
        for step in above:
            found = folder.parts(self._read)[1].get(step)
            if found is None:
                return None
            folder = found
        return folder.parts(self._read)[0].get(name)

    def set(self, path: bytes, value: FileValue) -> bool:
        """Put a file at a path: it replaces a directory, and a file above it becomes a directory. Return
        True if that changed the tree.
        """
        if self.get(path) == value:
            return False
        folder = self._root
        *above, name = path.split(b"/")
        for step in above:
            files, folders = folder.parts(self._read)
            folder.oid = None
            files.pop(step, None)
            folder = folders.setdefault(step, _TreeFolder(None))
        files, folders = folder.parts(self._read)
        folder.oid = None
        folders.pop(name, None)
        files[name] = FileValue(value.mode, value.oid)
        return True

    def remove(self, path: bytes) -> bool:
        """Remove a file, and return True if there was one; a directory at the path stays."""
        if self.get(path) is None:
            return False
        folder = self._root
        *above, name = path.split(b"/")
        for step in above:
            folders = folder.parts(self._read)[1]
            folder.oid = None
            folder = folders[step]
        folder.parts(self._read)[0].pop(name)
        folder.oid = None
        return True

    def write(self, written: Written) -> Oid:
        """Give the tree's id; `written` is called for each tree that was changed since the last call, one
        inside another first. Directories without a file are left out.
        """
        return self._write(written) or self._empty(written)

    def _empty(self, written: Written) -> Oid:
        written(self._fmt.empty_tree, b"")
        return self._fmt.empty_tree

    def _write(self, written: Written) -> Oid | None:
        order, waiting = list[_TreeFolder](), [self._root]
        while waiting:  # no recursion: depth is that of the workspace
            folder = waiting.pop()
            if folder.oid is None:
                order.append(folder)
                waiting.extend(folder.parts(self._read)[1].values())
        for folder in reversed(order):
            files, folders = folder.parts(self._read)
            for name in [name for name, below in folders.items() if below.oid is None]:
                del folders[name]  # empty
            entries = [TreeEntry(name, value.mode, value.oid) for name, value in files.items()]
            for name, below in folders.items():
                assert below.oid is not None
                entries.append(TreeEntry(name, DIRECTORY, below.oid))
            if entries:
                data = format_tree(entries)
                folder.oid = self._fmt.oid_of("tree", data)
                written(folder.oid, data)
        return self._root.oid
