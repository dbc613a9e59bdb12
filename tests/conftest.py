"""Hooks and fixtures: powers, required powers, soak tests, short directories, children in namespaces."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Generator, Sequence
from typing import Any

import pytest

from layerstack.kernel import fsync
from tests import images, in_namespace, leaks, probes, schedule

REQUIRED = frozenset(name for name in os.environ.get("EOS_REQUIRE", "").replace(" ", ",").split(",") if name)
"""Powers that this run requires. If it is not empty, a skip, an xfail or a deselected test is a failure."""

ELSEWHERE = frozenset({"cgroups2"})
"""Powers of other kernels than the gate's: a machine without them does not collect the tests that need one
(`make vm` runs these).
"""

_left_out: list[str] = []
_left_behind: list[str] = []
_soak_off = 0
_elsewhere_off = 0


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--soak",
        action="store_true",
        help="run what is marked soak, and thousands of examples instead of dozens",
    )
    parser.addoption(
        "--clients",
        action="store_true",
        help="run what is marked clients: other people's MCP clients, fetched from their registries",
    )


def soaking(config: pytest.Config) -> bool:
    """Return True with --soak or EOS_SOAK=1."""
    return bool(config.getoption("--soak")) or os.environ.get("EOS_SOAK", "") not in ("", "0")


def pytest_configure(config: pytest.Config) -> None:
    unknown = REQUIRED - probes.PROBES.keys()
    if unknown:
        raise pytest.UsageError(
            f"EOS_REQUIRE names no power: {', '.join(sorted(unknown))}; there are {', '.join(probes.PROBES)}"
        )
    if soaking(config):
        os.environ["EOS_SOAK"] = "1"
    if not hasattr(config, "workerinput"):
        leaks.begin(probes.scratch_root())


def pytest_report_header(config: pytest.Config) -> list[str]:
    required = (
        [f"required: {','.join(sorted(REQUIRED))}; whatever is left out is a failure"] if REQUIRED else []
    )
    return [
        *probes.describe(),
        *required,
        f"soak: {'on' if soaking(config) else 'off'}; scratch: {probes.scratch_root()}",
    ]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect soak tests in an ordinary run, and tests that need another kernel. An unknown power is an
    error of the test.
    """
    global _soak_off, _elsewhere_off
    for item in items:
        for marker in item.iter_markers("needs"):
            unknown = set(marker.args) - probes.PROBES.keys()
            if unknown or not marker.args:
                raise pytest.UsageError(f"{item.nodeid}: needs names no power: {sorted(map(str, unknown))}")
    if not soaking(config):
        kept = [item for item in items if item.get_closest_marker("soak") is None]
        _soak_off = len(items) - len(kept)
        items[:] = kept
    if not config.getoption("--clients"):
        items[:] = [item for item in items if item.get_closest_marker("clients") is None]
    order = schedule.places(schedule.file_of(item.nodeid) for item in items)
    items.sort(key=lambda item: order[schedule.file_of(item.nodeid)])
    kept = [item for item in items if not _belongs_elsewhere(item)]
    _elsewhere_off = len(items) - len(kept)
    items[:] = kept


def _belongs_elsewhere(item: pytest.Item) -> bool:
    asked = {name for marker in item.iter_markers("needs") for name in marker.args}
    return any(not probes.power(name).on for name in sorted((asked & ELSEWHERE) - REQUIRED))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> schedule.FileScheduling | None:
    """Return the scheduler of --dist=loadfile; None for the other values, which xdist knows."""
    return schedule.FileScheduling(config, log) if config.getoption("dist") == "loadfile" else None


def pytest_deselected(items: Sequence[pytest.Item]) -> None:
    _left_out.extend(f"deselected: {item.nodeid}" for item in items)


def pytest_runtest_setup(item: pytest.Item) -> None:
    for marker in item.iter_markers("needs"):
        for name in marker.args:
            found = probes.power(name)
            if not found.on:
                pytest.skip(f"needs {name}: {found.reason}")


def _reason(report: pytest.TestReport | pytest.CollectReport) -> str:
    return str(report.longrepr[2]) if isinstance(report.longrepr, tuple) else str(report.longrepr)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if REQUIRED and report.skipped:
        what = "xfailed" if hasattr(report, "wasxfail") else "skipped"
        report.outcome, report.longrepr = (
            "failed",
            f"{what}, but EOS_REQUIRE lets nothing be left out: {_reason(report)}",
        )
        if hasattr(report, "wasxfail"):
            del report.wasxfail
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    report = yield
    if REQUIRED and report.skipped:
        _left_out.append(f"skipped while collecting: {collector.nodeid}: {_reason(report)}")
    return report


@pytest.hookimpl(trylast=True)  # when the other processes have ended
def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    output = getattr(session.config, "workeroutput", None)
    if output is not None:  # one of several processes: the first one reports
        output["left_out"], output["soak_off"], output["elsewhere_off"] = _left_out, _soak_off, _elsewhere_off
    else:
        if REQUIRED:
            leaks.remove_shared_volumes()
        _left_behind.extend(leaks.found())
    if ((REQUIRED and _left_out) or _left_behind) and exitstatus == 0:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_unconfigure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):
        leaks.end()


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: object) -> None:
    """Receive, in the first process, what the others left out. Each has collected the same tests."""
    global _soak_off, _elsewhere_off
    output: dict[str, Any] = getattr(node, "workeroutput", {})
    _left_out.extend(line for line in output.get("left_out", ()) if line not in _left_out)
    _soak_off = max(_soak_off, output.get("soak_off", 0))
    _elsewhere_off = max(_elsewhere_off, output.get("elsewhere_off", 0))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if _soak_off:
        terminalreporter.write_line(f"{_soak_off} soak tests belong to `make soak`")
    if _elsewhere_off:
        terminalreporter.write_line(f"{_elsewhere_off} tests of another kernel belong to `make vm`")
    for line in _left_behind:
        terminalreporter.write_line(f"LEFT BEHIND: {line}", red=True)
    if REQUIRED:
        for line in _left_out:
            terminalreporter.write_line(f"EOS_REQUIRE: {line}", red=True)


# Fixtures


def make_short_dir(prefix: str = "eos-") -> str:
    """Make a directory, mode 0755, with a name short enough for a unix socket, on a file system that can have
    an upperdir.
    """
    path = tempfile.mkdtemp(prefix=prefix, dir=probes.scratch_root())
    os.chmod(path, 0o755)
    leaks.note("directory", path)
    return path


def drop_dir(path: str) -> None:
    """Delete the directory; a mount that a test left below it is a failure."""
    with open("/proc/self/mountinfo", "rb") as file:
        mounted = [
            line.split()[4].decode() for line in file if line.split()[4].startswith(os.fsencode(path) + b"/")
        ]
    assert not mounted, f"the test left mounts: {mounted}"
    leaks.note_instances_in(path)
    fsync.remove_tree(path)


@pytest.fixture
def short_dir() -> Generator[str]:
    """An empty directory with a short absolute path; deleted afterwards."""
    path = make_short_dir()
    yield path
    drop_dir(path)


@pytest.fixture
def state_dir(monkeypatch: pytest.MonkeyPatch) -> Generator[str]:
    """A state directory for this test only: EOS_STATE_DIR names it, so gateway, token and instance id of the
    test are in it.
    """
    path = make_short_dir("eos-s-")
    os.chmod(path, 0o700)  # tests put files into it: with wider modes it would be refused
    monkeypatch.setenv("EOS_STATE_DIR", path)
    yield path
    drop_dir(path)


@pytest.fixture(autouse=True)
def _nobodys_state(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep every test away from the gateway and the sandboxes of the person who runs the tests."""
    for name in [n for n in os.environ if n.startswith("SANDBOX_")]:
        monkeypatch.delenv(name)
    if "EOS_STATE_DIR" not in os.environ:
        monkeypatch.setenv("EOS_STATE_DIR", "/nonexistent/eos-tests-use-the-state_dir-fixture")


@pytest.fixture
def in_mount_namespace() -> Callable[..., Any]:
    """call(function, *args): runs it in a child with a mount namespace of its own: as root, or as an ordinary
    user in a user namespace.
    """
    namespace = "trusted" if os.geteuid() == 0 else "user"

    def call(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        return in_namespace.call(namespace, function, *args, **kwargs)

    return call


@pytest.fixture(scope="session")
def image() -> Callable[[str], str]:
    """image("busybox") -> the reference of an image that the engine has; made when missing. The test needs
    dockerd.
    """

    def made(name: str) -> str:
        try:
            return images.ensure(name)
        except images.ImageUnavailable as error:
            pytest.skip(f"image {name}: {error}")

    return made
