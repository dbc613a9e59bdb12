"""A plain directory for the operations on files, without an agent."""

from __future__ import annotations

import os


class Folder:
    """A directory; paths are below it."""

    def __init__(self, root: str) -> None:
        self.root = root

    def at(self, path: str) -> str:
        return os.path.join(self.root, path)

    def put(self, path: str, content: bytes = b"", mode: int = 0o644) -> None:
        """Write a file; its parents are made."""
        os.makedirs(os.path.dirname(self.at(path)), exist_ok=True)
        with open(self.at(path), "wb") as file:
            file.write(content)
        os.chmod(self.at(path), mode)

    def get(self, path: str) -> bytes:
        with open(self.at(path), "rb") as file:
            return file.read()
