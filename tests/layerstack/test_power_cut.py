"""The power fails at every named step, and right after every acknowledgment: what was acknowledged is on the
disk.

The store lies on ext4 in a file on a loop mount. The file, copied at the step, is the disk as a power cut
leaves it: what nobody synced is not in it. The copy is mounted, its journal replayed, the store opened.
(Killing a process shows nothing about fsync: the page cache survives.)
"""

from __future__ import annotations

import pytest

from layerstack.kernel import fsync, syscalls
from tests import in_namespace
from tests.layerstack.power_cut import (
    ACKNOWLEDGED,
    cut_everywhere,
    make_disk,
    mount_disk,
)


@pytest.mark.needs("loopfs", "overlay")
def test_a_power_cut_at_any_step_keeps_what_was_acknowledged(short_dir: str) -> None:
    where = in_namespace.call("trusted", cut_everywhere, short_dir)
    assert sum(name.startswith(ACKNOWLEDGED) for name in where) >= 10, where


def orders(folder: str, *how: str) -> bool:
    make_disk(f"{folder}/disk", *how)
    mount_disk(f"{folder}/disk", f"{folder}/mounted", "nodiratime")
    try:
        return fsync.keeps_order(f"{folder}/mounted")
    finally:
        syscalls.umount(f"{folder}/mounted")


@pytest.mark.needs("loopfs")
def test_only_an_ext4_with_a_journal_is_trusted_to_keep_names_in_order(short_dir: str) -> None:
    assert in_namespace.call("trusted", orders, short_dir)
    assert not in_namespace.call("trusted", orders, short_dir, "-O", "^has_journal")
