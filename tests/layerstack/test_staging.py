"""What is thrown away goes behind the caller's back, and whoever needs its space can wait for it."""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Callable
from pathlib import Path

from layerstack.tree.staging import Staging


def test_settle_returns_when_what_was_thrown_away_before_it_is_gone(tmp_path: Path) -> None:
    (tmp_path / "staging").mkdir()
    (tmp_path / "session" / "upper").mkdir(parents=True)
    (tmp_path / "session" / "upper" / "big").write_bytes(b"x" * 4096)
    calls: queue.Queue[Callable[[], object]] = queue.Queue()
    staging = Staging(str(tmp_path / "staging"))
    staging.later = calls.put

    staging.discard_directory(str(tmp_path / "session"))
    assert not (tmp_path / "session").exists()
    assert (staging.count(), len(os.listdir(staging.path))) == (0, 1), "renamed away, not removed yet"
    assert staging.wait_removed(timeout_s=0) is False, "nobody has removed it"

    seen: list[tuple[bool, int]] = []
    waiting = threading.Thread(
        target=lambda: seen.append((staging.wait_removed(), len(os.listdir(staging.path))))
    )
    waiting.start()
    for _ in range(3):  # the removal, the settle that gave up, the settle that waits
        calls.get(timeout=30)()
    waiting.join(timeout=30)
    assert seen == [(True, 0)]


def test_settle_has_nothing_to_wait_for_when_removal_is_at_once(tmp_path: Path) -> None:
    (tmp_path / "gone").mkdir()
    (tmp_path / "staging").mkdir()
    staging = Staging(str(tmp_path / "staging"))
    staging.discard_directory(str(tmp_path / "gone"))
    assert staging.wait_removed() is True
    assert os.listdir(staging.path) == []


def test_the_end_of_a_block_removes_the_names_that_it_still_holds_and_no_others(tmp_path: Path) -> None:
    staging = Staging(str(tmp_path))
    with staging.temporary_names() as new_name:
        kept, removed, stem = new_name("kept"), new_name("removed"), new_name("stem", ".a", ".b")
        for path in (kept, removed, f"{stem}.a", f"{stem}.b"):
            Path(path).write_bytes(b"x")
        staging.forget(kept, f"{stem}.b")
    assert sorted(os.listdir(tmp_path)) == sorted(map(os.path.basename, (kept, f"{stem}.b")))
    assert not any(map(staging.holds, (kept, removed, f"{stem}.a", f"{stem}.b")))
