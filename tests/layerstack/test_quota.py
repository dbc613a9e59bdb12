"""Quotas of a store: refused before anything is written, nothing of the refused work is lost, and what is
used is read from metadata alone.
"""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable
from typing import Any

import pytest

from layerstack.core.quota import why_not
from layerstack.errors import LayerStackError, QuotaExceeded
from layerstack.kernel import fsync
from layerstack.publish.outcome import Published
from tests.layerstack.store_fixture import Base, Session, Stack, get, on_a_stack, put

BASE: Base = {"d/f": "f\n", "top": "1\n"}


def write(s: Stack, path: str, size: int) -> Published:
    """One layer by a write without a session."""
    data = b"x" * size
    return s.store.update_file(path, lambda _: data, owner="o", request_id="r")


def refused(attempt: Callable[[], object]) -> dict[str, Any]:
    """What the attempt is refused with: the reason and the numbers."""
    with pytest.raises(QuotaExceeded) as caught:
        attempt()
    error = caught.value
    assert isinstance(error, LayerStackError) and error.kind == "operation_failed"
    found = dict(error.details)
    never = found["wanted"] > found["limit"]
    assert found.pop("retryable", None) == (False if never else None), "no room would be enough for it"
    assert all(str(number) in error.message for number in found.values())
    return {"reason": error.reason, **found}


def on_disk(s: Stack) -> dict[str, list[str]]:
    """Names of everything in the store but what sessions wrote."""
    folders = ("layers", "manifests", ".layer-metadata", "staging", "drafts")
    return {folder: sorted(os.listdir(f"{s.root}/{folder}")) for folder in folders}


@on_a_stack(BASE)
def test_every_way_to_publish_is_refused_before_anything_is_written_and_goes_on_when_there_is_room(
    s: Stack,
) -> None:
    write(s, "a", 600)
    write(s, "a", 10)
    store = s.store
    store.quota.bytes = 1000
    session, drafted = s.session(), s.session()
    put(session.at("mine"), "m" * 500)
    put(drafted.at("kept"), "k" * 400)
    draft = drafted.keep()
    reopened = s.session(draft_id=draft.draft_id)
    before, head = on_disk(s), s.store.head

    expected = {"reason": "quota_bytes", "limit": 1000, "used": 610}
    assert refused(session.publish) == {**expected, "wanted": 500}
    assert refused(reopened.publish) == {**expected, "wanted": 400}
    assert refused(lambda: write(s, "b", 391)) == {**expected, "wanted": 391}
    previewed = session.upper.preview()
    assert (previewed.would_publish, previewed.no_op, previewed.conflicts) == (False, False, ())
    assert isinstance(previewed.refused, QuotaExceeded) and previewed.refused.details["wanted"] == 500
    assert on_disk(s) == before and store.head is head

    session.mount()  # the session goes on on the same upperdir: nothing was captured
    assert get(session.at("mine")) == "m" * 500 and not os.path.exists(f"{session.upper.directory}/private")
    os.truncate(session.at("mine"), 390)
    assert session.publish().manifest.version == 4
    assert store.quota.used_bytes() == 1000
    store.quota.bytes = 1400
    assert reopened.publish().manifest.version == 5
    assert s.shows()["kept"] == "k" * 400 and store.drafts() == []


@on_a_stack(BASE)
def test_work_that_was_refused_can_become_a_draft_however_full_the_store_is(s: Stack) -> None:
    s.store.quota.bytes, s.store.quota.layers = 1, 1
    session = s.session()
    put(session.at("mine"), "mine\n")
    assert refused(session.publish) == {"reason": "quota_bytes", "limit": 1, "used": 0, "wanted": 5}
    draft = session.keep(reason="publish_error")
    assert draft.paths == 1
    assert s.store.quota.used_bytes() == 0
    s.reopen()
    again = s.session(draft_id=draft.draft_id)
    assert get(again.at("mine")) == "mine\n"


@on_a_stack(BASE)
def test_what_takes_no_bytes_is_never_refused_for_them(s: Stack) -> None:
    write(s, "big", 5000)
    s.store.quota.bytes = 100
    session = s.session()
    os.unlink(session.at("big"))
    os.symlink("f", session.at("d/link"))
    os.chmod(session.at("top"), 0o600)
    assert refused(session.publish)["wanted"] == 2  # a chmod copies the file up
    session.mount()
    os.chmod(session.at("top"), 0o644)
    put(session.at("none"), "")
    assert not session.publish().no_op
    assert "big" not in s.shows() and s.shows()["d/link"] == "-> f"
    idle = s.session()
    assert idle.publish().no_op


@on_a_stack(BASE)
def test_layers_are_counted_above_the_base_and_a_rollback_is_one(s: Stack) -> None:
    write(s, "a", 1)
    write(s, "a", 2)
    s.store.quota.layers = 2
    session = s.session()
    put(session.at("mine"), "mine\n")
    expected = {"reason": "quota_layers", "limit": 2, "used": 2, "wanted": 1}
    before = on_disk(s)
    assert refused(session.publish) == refused(lambda: write(s, "b", 1)) == expected
    assert refused(lambda: s.store.rollback(2, owner="o", request_id="r")) == expected
    assert on_disk(s) == before
    assert s.store.rollback(3, owner="o", request_id="r").no_op
    s.store.squash()  # the session keeps only the newest apart: nothing is folded
    assert refused(session.publish) == expected
    s.store.quota.layers = 3
    assert s.store.rollback(2, owner="o", request_id="r").manifest.version == 4


@on_a_stack(BASE)
def test_several_names_of_one_file_count_once_and_a_rollback_links_what_is_there(s: Stack) -> None:
    session = s.session()
    put(session.at("one"), "1" * 700)
    os.link(session.at("one"), session.at("two"))
    session.publish()
    assert s.store.quota.used_bytes() == 700
    other = s.session()
    os.unlink(other.at("one"))
    os.unlink(other.at("two"))
    other.publish()
    s.store.quota.bytes = 800
    s.store.rollback(2, owner="o", request_id="r")
    assert s.shows()["two"] == "1" * 700
    assert s.store.quota.used_bytes() == 700
    s.reopen()
    assert s.store.quota.used_bytes() == 700


@on_a_stack(BASE)
def test_a_rollback_that_would_copy_more_of_the_base_than_fits_is_refused_before_it_copies(s: Stack) -> None:
    session = s.session()
    os.unlink(session.at("top"))
    os.unlink(session.at("d/f"))
    put(session.at("new"), "123")
    session.publish()
    steps: list[str] = []
    s.store.step = steps.append
    s.store.quota.bytes = 6
    expected = refused(lambda: s.store.rollback(1, owner="o", request_id="r"))
    assert expected == {"reason": "quota_bytes", "limit": 6, "used": 3, "wanted": 4}
    assert steps == ["rollback.compare"]
    s.store.quota.bytes = 7
    s.store.rollback(1, owner="o", request_id="r")
    assert s.store.quota.used_bytes() == 7 and s.shows()["top"] == "1\n"


@on_a_stack(BASE)
def test_layers_that_a_lease_keeps_count_until_it_ends_and_a_folded_one_adds_nothing_to_them(
    s: Stack,
) -> None:
    for size in (100, 200, 300):
        write(s, "a", size)
    keeper = s.session()
    write(s, "b", 50)
    for size in (10, 20):
        write(s, "c", size)
    used = s.store.quota.used_bytes
    assert used() == 680
    s.store.squash()  # 100 + 200 and 50 + 10 + 20: the first is kept by the session, the second is not
    assert len(s.store.head.layers) == 4 and used() == 600 + 50 + 20
    keeper.umount()
    keeper.upper.discard()
    assert used() == 200 + 300 + 50 + 20  # of the folded ones that nobody keeps only what they show is left
    s.store.squash()
    assert len(s.store.head.layers) == 2 and used() == 300 + 50 + 20
    s.reopen()
    assert s.store.quota.used_bytes() == 370


@on_a_stack(BASE)
def test_what_only_the_publisher_keeps_does_not_count_against_its_own_work(s: Stack) -> None:
    for path, size in (("big", 900), ("big", 800), ("other", 10)):
        write(s, path, size)
    session = s.session()
    put(session.at("mine"), "m" * 500)
    s.store.squash()
    assert s.store.quota.used_bytes() == 1710  # the session is mounted on both of the layers that were folded
    s.store.quota.bytes = 1311
    assert refused(lambda: write(s, "more", 1)) == {
        "reason": "quota_bytes",
        "limit": 1311,
        "used": 1710,
        "wanted": 1,
    }
    s.store.quota.bytes = 1309
    assert session.upper.preview().refused is not None
    assert refused(session.publish) == {"reason": "quota_bytes", "limit": 1309, "used": 810, "wanted": 500}
    s.store.quota.bytes = 1310
    assert session.publish().manifest.version == 6
    assert s.store.quota.used_bytes() == 1310


@on_a_stack(BASE)
def test_of_two_publishes_at_once_with_room_for_one_the_other_is_refused_and_keeps_its_work(s: Stack) -> None:
    for quota, expected in (
        ("bytes", {"limit": 1500, "used": 1000, "wanted": 1000}),
        ("layers", {"limit": 3, "used": 3, "wanted": 1}),
    ):
        s.store.quota.bytes = s.store.quota.layers = None
        if quota == "bytes":
            s.store.quota.bytes = 1500
        else:
            s.store.quota.layers = 3
        sessions = [s.session(), s.session()]
        for session in sessions:
            put(session.at(f"{quota}-{session.upper.session_id}"), "x" * (1000 if quota == "bytes" else 0))
            session.umount()
        both = threading.Barrier(2, timeout=60)
        prepared = set[int]()

        def step(name: str, both: threading.Barrier = both, prepared: set[int] = prepared) -> None:
            if name == "publish.sync_layer" and threading.get_ident() not in prepared:
                prepared.add(threading.get_ident())
                both.wait()

        s.store.step = step
        outcomes: dict[str, Published | Exception] = {}

        def publish(session: Session, outcomes: dict[str, Published | Exception] = outcomes) -> None:
            try:
                outcomes[session.upper.session_id] = session.publish()
            except Exception as failed:
                outcomes[session.upper.session_id] = failed

        threads = [threading.Thread(target=publish, args=(session,)) for session in sessions]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(120)
        s.store.step = fsync.no_step
        assert len(prepared) == 2
        (loser,) = [
            session for session in sessions if isinstance(outcomes[session.upper.session_id], Exception)
        ]
        error = outcomes[loser.upper.session_id]
        assert isinstance(error, QuotaExceeded) and (error.reason, error.details) == (
            f"quota_{quota}",
            expected,
        )
        assert os.listdir(f"{s.root}/staging") == [] and len(s.layer_dirs()) == len(s.store.head.layers) - 1
        loser.mount()
        assert len(get(loser.at(f"{quota}-{loser.upper.session_id}"))) == (1000 if quota == "bytes" else 0)
        s.store.quota.bytes = s.store.quota.layers = None
        assert not loser.publish().no_op


@on_a_stack(BASE)
def test_a_full_disk_uses_nothing_of_the_quota_and_the_same_publish_fits_after_it(s: Stack) -> None:
    s.store.quota.bytes = 1000
    session = s.session()
    put(session.at("mine"), "m" * 1000)
    for where in (
        "publish.write.json",
        "publish.sync_layer",
        "commit.rename_layer",
        "commit.rename_manifest",
    ):

        def step(name: str, where: str = where) -> None:
            if name == where:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        s.store.step = step
        with pytest.raises(OSError, match=os.strerror(errno.ENOSPC)):
            session.publish()
        assert s.store.quota.used_bytes() == 0
    s.store.step = fsync.no_step
    assert session.publish().manifest.version == 2
    assert s.store.quota.used_bytes() == 1000
    assert refused(lambda: write(s, "more", 1))["used"] == 1000


@on_a_stack(BASE)
def test_where_a_policy_folds_a_quota_is_met_by_folding_first_and_refuses_only_what_no_fold_makes_room_for(
    s: Stack,
) -> None:
    store = s.store
    store.quota.layers, store.auto_squash.squash_at = 3, 450
    expected: list[str] = []
    store.auto_squash.on_squash = lambda why, done: expected.append(
        f"{why} {'begins' if done is None else 'ends'}"
    )
    for size in range(1, 12):
        write(s, "a", size)
        assert len(store.head.layers) <= 4
    assert expected[:2] == ["quota_layers begins", "quota_layers ends"] and len(expected) == 8
    store.quota.layers, store.quota.bytes = None, 500
    for size in range(200, 230):
        write(s, "a", size)
    assert store.quota.used_bytes() <= 500 and s.shows()["a"] == "x" * 229
    keepers = [s.session()]
    assert refused(lambda: write(s, "a", 300))["reason"] == "quota_bytes"
    store.auto_squash.squash_at = None
    keepers[0].umount()
    keepers[0].upper.discard()
    assert refused(lambda: write(s, "a", 300))["reason"] == "quota_bytes"


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("30 1 {} / / rw - ext4 /dev/x rw,relatime", "this ext4 is mounted without project quotas"),
        (
            "30 1 {} / / rw shared:1 - xfs /dev/x rw,attr2,prjquota",
            "this xfs has project quotas, which are not used",
        ),
        ("30 1 999999:1 / / rw - ext4 /dev/x rw", "its file system is not known"),
    ],
)
def test_what_the_file_system_could_do_is_read_from_its_mount(line: str, said: str, tmp_path: Any) -> None:
    device = os.stat(tmp_path).st_dev
    (tmp_path / "mountinfo").write_text(line.format(f"{os.major(device)}:{os.minor(device)}") + "\n")
    assert why_not(str(tmp_path), str(tmp_path / "mountinfo")) == said


def test_a_store_without_limits_says_nothing_of_a_quota_and_one_with_them_what_it_does_not_enforce() -> None:
    @on_a_stack(BASE, namespaces=("user",))
    def body(s: Stack) -> None:
        assert s.store.layer_stats()["quota"] is None
        s.store.quota.bytes = 10
        expected = s.store.layer_stats()["quota"]
        sessions = expected.pop("sessions")
        assert expected == {
            "bytes": 10,
            "layers": None,
            "used_bytes": 0,
            "used_layers": 0,
            "published": "enforced",
        }
        assert sessions.startswith("unsupported: ")

    body("user")
