"""Children of a test are forks: what the parent holds must not come to life in them."""

from __future__ import annotations

import gc
import os

from tests import in_namespace

HERE = os.getpid()


class Garbage:
    """Part of a cycle that only the collector takes apart; where it does so it dies loudly."""

    def __init__(self) -> None:
        self.itself = self

    def __del__(self) -> None:
        if os.getpid() != HERE:
            os._exit(9)


def test_a_child_does_not_collect_the_garbage_of_its_parent() -> None:
    gc.collect()
    Garbage()
    in_namespace.call(None, gc.collect)
    gc.collect()
