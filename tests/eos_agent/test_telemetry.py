"""Spans and events in memory and on disk: how they nest, what bounds them, what a kill and a full disk
leave.
"""

from __future__ import annotations

import asyncio
import json
import os
import resource
import signal
from pathlib import Path
from typing import Any

import pytest

from eos_agent.base import telemetry
from eos_agent.base.rotating_log import Segments, decode
from eos_agent.base.telemetry import Phases, Telemetry, event, span, trace_id, within
from eos_agent.observe.trace import tree
from eos_agent.wire.protocol import OperationError
from tests import in_namespace


def records(recorder: Telemetry) -> list[dict[str, Any]]:
    return [value for value in map(decode, recorder.read()) if value is not None]


def names_of(nodes: list[dict[str, Any]]) -> list[Any]:
    """The tree as names: [name, [children]]."""
    return [[node["span"]["name"], names_of(node["children"])] for node in nodes]


def test_what_runs_inside_of_a_span_is_its_child_across_tasks_and_threads(tmp_path: Path) -> None:
    recorder = Telemetry(str(tmp_path / "o" / "t"))

    async def work() -> None:
        with recorder.request("r", op="x"):
            with span("outer"):
                event("moment", n=1)

                async def task() -> None:
                    with span("in a task"):
                        pass

                await asyncio.get_running_loop().create_task(task())
            with span("beside"):
                pass

    asyncio.run(work())
    found = records(recorder)
    recorder.close()
    assert names_of(tree(found, {})) == [
        ["daemon.dispatch", [["outer", [["in a task", []]]], ["beside", []]]]
    ]
    (moment,) = [one for one in found if one["kind"] == "event"]
    assert moment["attrs"] == {"n": 1} and moment["parent"] == next(
        one["span"] for one in found if one["name"] == "outer"
    )


def test_outside_of_a_request_nothing_is_traced(tmp_path: Path) -> None:
    recorder = Telemetry(str(tmp_path / "t"))
    with span("nobody asked") as one:
        one.attrs["n"] = 1
        event("moment")
    assert records(recorder) == [] and telemetry.current() is None
    recorder.close()
    off = Telemetry(None)
    with off.request("r"), span("off"):
        event("moment")
    off.happened("moment", {})
    assert off.read() == [] and off.lost["dropped_storage"] == 0
    off.close()


def test_a_status_says_how_a_span_was_left(tmp_path: Path) -> None:
    recorder = Telemetry(str(tmp_path / "t"))
    with recorder.request("r"):
        for name, error in (
            ("refused", OperationError("invalid_request", "secret text", {"path": "/secret"}, reason="why")),
            ("bug", KeyError("secret")),
            ("cancelled", asyncio.CancelledError()),
        ):
            with pytest.raises(type(error)), span(name):
                raise error
        with span("timed out") as one:
            one.status = telemetry.TIMED_OUT
    found = {one["name"]: (one["status"], one["attrs"]) for one in records(recorder)}
    recorder.close()
    assert found["refused"] == ("error", {"error": "invalid_request", "reason": "why"})
    assert found["bug"] == ("error", {"error": "KeyError", "reason": ""})
    assert (
        found["cancelled"][0] == "cancelled"
        and found["timed out"][0] == "timed_out"
        and found["daemon.dispatch"][0] == "completed"
    )
    assert "secret" not in (tmp_path / "t").read_text()


def test_named_steps_end_one_phase_and_begin_the_next(tmp_path: Path) -> None:
    recorder = Telemetry(str(tmp_path / "t"))
    with recorder.request("r"), Phases({"b": "second", "c": "third"}, "first") as phases:
        for step in ("a", "b", "b", "c"):
            telemetry.on_step(step)
        phases.note(n=3)
    telemetry.on_step("b")
    found = records(recorder)
    recorder.close()
    assert [one["name"] for one in found] == ["first", "second", "third", "daemon.dispatch"]
    assert found[2]["attrs"] == {"n": 3}


def test_work_that_others_call_can_be_given_to_a_request(tmp_path: Path) -> None:
    recorder = Telemetry(str(tmp_path / "t"))
    with recorder.request("first"):
        mine = span("mine")
    with recorder.request("second"), within(mine), span("below"):
        pass
    shown = tree(records(recorder), dict(recorder.open))
    mine.end()
    mine.end()
    ended = [one for one in records(recorder) if one["trace"] == "first"]
    recorder.close()
    assert ["below", []] in names_of(shown)[0][1]  # its parent has not ended: it hangs on the one above
    assert names_of(tree(ended, {})) == [["daemon.dispatch", [["mine", [["below", []]]]]]]


def test_two_segments_together_stay_below_the_bound_and_keep_the_newest(tmp_path: Path) -> None:
    bound = 1 << 20
    recorder = Telemetry(str(tmp_path / "t"), max_bytes=bound)
    for number in range(12_000):
        with recorder.request(f"r{number}", filling="x" * 40):
            pass
        if number % 1000 == 0:
            recorder.flush()
            assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= bound
    found = records(recorder)
    assert {path.name for path in tmp_path.iterdir()} == {"t", "t.1"}
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= bound
    assert found[-1]["trace"] == "r11999" and 2000 < len(found) < 12_000 and recorder.kept == len(found)
    assert recorder.lost == {"dropped_storage": 0, "dropped_oversized": 0, "truncated_records": 0}
    recorder.close()


def test_a_record_that_is_too_long_is_replaced_by_its_skeleton_and_counted(tmp_path: Path) -> None:
    recorder = Telemetry(str(tmp_path / "t"), max_line=1024)
    with recorder.request("r", filling="x" * 5000):
        pass
    (found,) = records(recorder)
    assert (
        found["attrs"] == {} and found["_truncated"] > 5000 and found["_counters"]["truncated_records"] == 1
    )
    assert len((tmp_path / "t").read_bytes()) <= 1024
    with recorder.request("y" * 150, "n" * 2000):
        pass
    assert len(records(recorder)) == 1
    assert recorder.lost == {"dropped_storage": 0, "dropped_oversized": 1, "truncated_records": 2}
    recorder.close()


@pytest.mark.parametrize(
    "request_id", ["", "\ud800\n\0", '","trace":"other","x":"', "é" * 4000, "last", "x" * 100_000]
)
def test_any_request_id_can_be_found_again(tmp_path: Path, request_id: str) -> None:
    recorder = Telemetry(str(tmp_path / "t"))
    with recorder.request("other"):
        pass
    with recorder.request(request_id):
        pass
    found = [one for one in records(recorder) if one["trace"] == trace_id(request_id)]
    recorder.close()
    assert len(found) == 1 and len(found[0]["trace"]) <= 200
    assert trace_id("x" * 300) != trace_id("x" * 301)


def test_a_torn_last_line_is_closed_and_left_out_after_a_restart(tmp_path: Path) -> None:
    path = tmp_path / "t"
    recorder = Telemetry(str(path))
    with recorder.request("first"):
        pass
    recorder.close()
    path.write_bytes(path.read_bytes() + path.read_bytes()[:-20])
    again = Telemetry(str(path))
    with again.request("second"):
        pass
    found = records(again)
    again.close()
    assert [one["trace"] for one in found] == ["first", "second"]
    assert found[0]["span"] != found[1]["span"]  # numbers go on where the files end


def test_counters_of_losses_go_on_after_a_restart(tmp_path: Path) -> None:
    recorder = Telemetry(str(tmp_path / "t"), max_line=256)
    with recorder.request("r", filling="x" * 300):
        pass
    with recorder.request("s"):
        pass
    recorder.close()
    assert recorder.lost["truncated_records"] == 1
    again = Telemetry(str(tmp_path / "t"), max_line=256)
    assert again.lost == recorder.lost
    again.close()


def test_what_the_disk_refuses_is_counted_and_nobody_fails(tmp_path: Path) -> None:
    def refused() -> tuple[dict[str, int], list[str]]:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (400, resource.RLIM_INFINITY))
        recorder = Telemetry(str(tmp_path / "t"))
        for number in range(20):
            with recorder.request(f"r{number}"):
                pass
        recorder.flush()
        lost = recorder.lost
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        with recorder.request("after"):
            pass
        found = [one["trace"] for one in records(recorder)]
        recorder.close()
        return lost, found

    lost, found = in_namespace.call(None, refused)
    assert lost["dropped_storage"] > 0 and found[-1] == "after"


def test_a_deleted_file_is_made_anew_and_a_symlink_is_not_followed(tmp_path: Path) -> None:
    segments = Segments(str(tmp_path / "t"), 1 << 20)
    assert segments.write([b"1\n"]) == 1
    os.unlink(tmp_path / "t")
    assert segments.write([b"2\n"]) == 1 and segments.read() == [b"", b"2\n"]
    segments.close()
    (tmp_path / "target").write_bytes(b"keep\n")
    os.unlink(tmp_path / "t")
    os.symlink(tmp_path / "target", tmp_path / "t")
    assert segments.write([b"3\n"]) == 0 and (tmp_path / "target").read_bytes() == b"keep\n"


def test_lines_of_no_record_of_ours_are_left_out() -> None:
    assert [decode(line) for line in (b"", b"{", b"[]", b"1", b'{"a":1}', b"[" * 100_000)] == [
        None,
        None,
        None,
        None,
        {"a": 1},
        None,
    ]


def test_a_tree_can_be_made_of_records_whose_parents_were_dropped() -> None:
    lost: dict[str, Any] = {
        "kind": "span",
        "ts": 5,
        "trace": "t",
        "span": "d-2",
        "parent": "d-1",
        "name": "n",
        "dur_ms": 1,
        "status": "completed",
    }
    itself = {**lost, "span": "d-3", "parent": "d-3"}
    assert [
        node["span"]["span"]
        for node in tree([lost, itself, {"kind": "event", "ts": 1, "parent": "d-9"}], {"d-1": "d-1"})
    ] == [
        "d-2",
        "d-3",
    ]
    assert json.dumps(tree([], {})) == "[]"
