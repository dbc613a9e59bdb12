"""File operations in a child process, as an init performs them, on a tree of files."""

from __future__ import annotations

import os
import select
import time
import warnings
from typing import Any

from eos_agent.files.mounted import perform_in_mount
from eos_agent.files.search import Tell
from eos_agent.init.worker import Work, Worker
from eos_agent.wire.protocol import OperationError


def aside(work: Work, limit_s: float | None = 30.0) -> dict[str, Any]:
    """The reply of work(), made in a child as an init makes it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # the child has one thread, and ends by os._exit
        child = Worker(1, work, limit_s)
    try:
        while True:
            left = None if child.due is None else max(0.0, child.due - time.monotonic())
            if not select.select([child.fd], [], [], left)[0]:
                child.expire(time.monotonic())
                continue
            reply = child.read()
            if reply is not None:
                return reply
    finally:
        child.close()
        os.waitpid(child.pid, 0)


class FileTree:
    def __init__(self, root: str) -> None:
        self.root = root

    def put(self, path: str, content: bytes | str) -> None:
        full = os.path.join(self.root, path)
        os.makedirs(os.path.dirname(full), exist_ok=True)
        with open(full, "wb") as file:
            file.write(content.encode() if isinstance(content, str) else content)

    def ask(self, name: str, args: dict[str, Any], kill_s: float = 30.0) -> dict[str, Any]:
        """The reply of the file operation `name`: `result` or `error`."""

        def work(tell: Tell) -> dict[str, Any]:
            try:
                return {"result": perform_in_mount(name, self.root, args, None, tell)[0]}
            except OperationError as error:
                return error.envelope()

        return aside(work, kill_s)
