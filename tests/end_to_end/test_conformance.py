"""The official conformance suite against our dispatch and HTTP stack, both revisions.

The fixtures are those that the suite calls by name (`tests/eos_mcp/conformance_server.py`). Each scenario
that a revision requires must pass; of the others those that need what the server does not announce may fail.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Generator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests import conformance_suite
from tests.eos_mcp.mcp_wire import Wire

pytestmark = [pytest.mark.needs("conformance"), pytest.mark.timeout(300)]

SERVER = os.path.join(
    os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "eos_mcp", "conformance_server.py"
)
REQUIRED = {"2025-11-25": 30, "2026-07-28": 37}
NOT_ANNOUNCED = re.compile(r"server-sse-polling|tasks-.*")
"""Scenarios of features that the server does not have: resumable streams, tasks (the SDK has none)."""
NO_FIXTURE = {
    "2025-11-25": {
        "server-initialize",
        "logging-set-level",
        "ping",
        "tools-list",
        "server-session-lifecycle",
        "server-sse-multiple-streams",
        "resources-list",
        "prompts-list",
        "dns-rebinding-protection",
    },
    "2026-07-28": {
        "tools-list",
        "server-sse-multiple-streams",
        "resources-list",
        "sep-2164-resource-not-found",
        "prompts-list",
        "dns-rebinding-protection",
        "http-header-validation",
    },
}
"""Scenarios that need none of the suite's own tools, resources and prompts."""


class Outcome(NamedTuple):
    """Result of one scenario."""

    passed: int
    failed: int


class Report(NamedTuple):
    """Outcomes by scenario; `not_scored`: those that do not count for the revision."""

    outcomes: dict[str, Outcome]
    not_scored: set[str]
    text: str


def ran(url: str, folder: Path) -> dict[str, Report]:
    """Run both revisions at once; the suite waits for most of the time."""
    node, script = conformance_suite.command()
    running = {
        revision: subprocess.Popen(
            [node, script, "server", "--url", url, "--requirements", revision, "-o", str(folder / revision)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for revision in REQUIRED
    }
    reports: dict[str, Report] = {}
    for revision, process in running.items():
        with process:
            try:
                text, _ = process.communicate(timeout=240)
            finally:
                process.kill()
        summary = text.partition("=== SUMMARY ===")[2]
        rows = re.findall(r"^[✓✗] ([\w.-]+): (\d+) passed, (\d+) failed", summary, re.MULTILINE)
        outcomes = {name: Outcome(int(passed), int(failed)) for name, passed, failed in rows}
        not_scored = set(re.findall(r"^  [✓✗] ([\w.-]+) \(", summary, re.MULTILINE))
        reports[revision] = Report(outcomes, not_scored, text)
    return reports


def reports_of(folder: Path, *words: str) -> Generator[dict[str, Report]]:
    with Wire([sys.executable, SERVER, *words]) as wire:
        wire.says("listening on ")
        url = re.findall(r"http://\S+/mcp", " ".join(wire.stderr))[0]
        yield ran(url, folder)


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> Generator[dict[str, Report]]:
    yield from reports_of(tmp_path_factory.mktemp("conformance"))


@pytest.mark.parametrize("revision", REQUIRED)
def test_each_required_scenario_passes_and_each_other_one_of_what_is_announced(
    reports: dict[str, Report], revision: str
) -> None:
    found = reports[revision]
    required = found.outcomes.keys() - found.not_scored
    failed = {name for name, outcome in found.outcomes.items() if outcome.failed}
    assert len(required) == REQUIRED[revision], found.text
    assert not failed & required, found.text
    assert all(found.outcomes[name].passed for name in required), found.text
    assert not {name for name in failed if NOT_ANNOUNCED.fullmatch(name) is None}, found.text


@pytest.mark.soak
def test_the_server_itself_passes_what_needs_no_fixture(tmp_path: Path) -> None:
    for found in reports_of(tmp_path, "bare"):
        for revision, names in NO_FIXTURE.items():
            outcomes = found[revision].outcomes
            assert names <= outcomes.keys()
            assert not {name for name in names if outcomes[name].failed}, found[revision].text
