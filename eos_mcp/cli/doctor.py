"""`eos doctor`: check this machine, and name the next step for each check that fails."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import textwrap
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from eos_agent.wire.protocol import OperationError
from eos_mcp import __version__
from eos_mcp.cli import output
from eos_mcp.config import paths, token_file
from eos_mcp.gateway_client import sync

TRIAL_S = 30


class Finding(NamedTuple):
    """Result of one check; `ok` None: a remark. `step` is the next step for the user."""

    name: str
    ok: bool | None
    said: str
    step: str = ""


def main(words: Sequence[str]) -> int:
    """Run `eos doctor`; return exit status 0 when at least one provider works."""
    if words:
        output.write_error(b"usage: eos doctor\n")
        return output.USAGE
    findings: dict[str, Finding] = {}
    for check in CHECKS:
        found = check()
        findings[found.name] = found
        mark = {True: "ok  ", False: "FAIL", None: "    "}[found.ok]
        lines = [f"{mark} {found.name:<16}{found.said}"] + (
            [f"     {'':<16}-> {found.step}"] if found.step else []
        )
        output.write(b"".join(output.shown(line) for line in "\n".join(lines).split("\n")))
    backend = os.environ.get("EOS_GATEWAY_BACKEND") or "auto"
    forced = "" if backend == "auto" else f" (EOS_GATEWAY_BACKEND={backend})"
    ways = [
        shown
        for name, shown in (
            ("docker", "Docker"),
            ("local", "this machine without a container (--image host)"),
        )
        if findings[name].ok and backend in ("auto", name)
    ]
    if not all(findings[place].ok for place in ("state", "cache")):  # every sandbox needs both
        ways = []
    output.write(
        f"\nsandboxes can be made on: {', '.join(ways) or 'nothing yet; see FAIL above'}{forced}\n".encode()
    )
    return output.OK if ways else output.FAILED


def check_platform() -> Finding:
    said = (
        f"{platform.system()} {platform.release()} {platform.machine()}, Python "
        f"{platform.python_version()}, uid {os.geteuid()}"
    )
    if platform.system() != "Linux":
        return Finding("platform", None, said, "sandboxes run in Docker here; the local provider needs Linux")
    return Finding("platform", True, said)


def check_local() -> Finding:
    """Try, as the local provider does, a mount namespace and an overlay below the state directory."""
    from eos_mcp.providers import local_probe

    folder, state = paths.existing_parent(paths.state_dir()), check_state()
    if not state.ok:
        return Finding("local", False, state.said, state.step)
    try:
        problem = local_probe.problem(folder, [sys.executable, "-P"])
    except (OSError, subprocess.SubprocessError) as error:
        return Finding("local", False, f"the trial failed: {error}")
    if problem is None:
        return Finding(
            "local",
            True,
            f"an overlay was mounted below {folder}{'' if os.geteuid() == 0 else ' in a user namespace'}",
        )
    said = problem.message.removesuffix("; " + str(problem.details.get("hint")))
    return Finding("local", False, said, str(problem.details.get("hint", "")))


def check_userns() -> Finding:
    """Check that an ordinary user can create user namespaces."""
    code = "from layerstack.kernel import syscalls as s; s.unshare(s.CLONE_NEWUSER | s.CLONE_NEWNS)"
    done = subprocess.run(
        [sys.executable, "-P", "-c", code],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=TRIAL_S,
    )
    if done.returncode == 0:
        return Finding("user namespaces", True, "work: no root needed")
    said = (done.stderr.strip().splitlines() or ["refused"])[-1]
    step = (
        "allow them (sysctl user.max_user_namespaces, kernel.apparmor_restrict_unprivileged_userns), or "
        "use Docker"
    )
    return Finding(
        "user namespaces", None if os.geteuid() == 0 else False, said, "" if os.geteuid() == 0 else step
    )


def check_docker() -> Finding:
    """Report the engine that a gateway would use, where that choice comes from, and its version."""
    from eos_mcp.providers import engine

    try:
        docker, choice = engine.connect(None, timeout_s=5)
        found: dict[str, Any] = docker.version()
        docker.close()
    except OperationError as error:
        step = str(error.details.get("hint") or "")
        return Finding(
            "docker",
            False,
            error.message.removesuffix(f"; {step}"),
            step or "install eos-mcp with its dependencies",
        )
    except Exception as error:  # the library raises its own errors, those of requests, and OSError
        return Finding(
            "docker",
            False,
            " ".join(str(error).split())[:200],
            "check with `docker version`; --image host works without Docker",
        )
    what = (
        f"engine {found.get('Version')}, API {found.get('ApiVersion')}, {found.get('Os')}/{found.get('Arch')}"
    )
    return Finding("docker", True, f"{choice.endpoint} (from {choice.source}): {what}")


def check_versions() -> Finding:
    from importlib import metadata

    found: list[str] = [f"eos-mcp {__version__}"]
    missing: list[str] = []
    for name in ("mcp", "anyio", "pydantic", "docker", "zstandard", "PyYAML"):
        try:
            found.append(f"{name} {metadata.version(name)}")
        except metadata.PackageNotFoundError:
            missing.append(name)
    if missing:
        return Finding(
            "versions",
            False,
            f"missing: {', '.join(missing)}",
            "pip install eos-mcp into this Python: " + sys.executable,
        )
    return Finding("versions", True, ", ".join(found))


def check_state() -> Finding:
    return _directory("state", paths.state_dir(), "set EOS_STATE_DIR to a directory of your own")


def check_cache() -> Finding:
    """Check the directory for copies of workspaces and the runtime, which every sandbox needs."""
    return _directory("cache", paths.cache_dir(), "set XDG_CACHE_HOME to a directory of your own")


def check_hidden() -> Finding:
    """List paths that local sessions do not see, from the gateway's configuration and this user's homes."""
    if platform.system() != "Linux":
        return Finding("hidden", None, "nothing: no local sessions here")
    from eos_agent.machine import neighbours, secret_paths
    from eos_mcp.config.load import ConfigError, load

    try:
        added = load(os.environ.get("SANDBOX_GATEWAY_CONFIG_YAML")).manager.local_daemon.hidden_paths
    except ConfigError as error:
        return Finding("hidden", False, error.message, "correct the file that the message names")
    own = [
        paths.state_dir(),
        paths.cache_dir(),
        paths.token_file(),
    ]  # the paths that a gateway of this environment hides
    hidden = list(dict.fromkeys([*own, *neighbours.folders(), *added, *secret_paths.hidden_here()]))
    there = [path for path in hidden if os.path.lexists(path)]
    lines = [
        f"from local sessions, {len(there)} paths that are there:",
        *there,
        f"in {', '.join(secret_paths.homes())}, now or when it is made:",
    ]
    lines += textwrap.wrap(
        "  ".join(name.replace(" ", "\0") for name in secret_paths.SECRET_NAMES), 100, break_on_hyphens=False
    )
    return Finding("hidden", None, f"\n{'':<21}".join(lines).replace("\0", " "))


def check_token() -> Finding:
    if os.environ.get(sync.TOKEN_ENV):
        return Finding("token", None, f"from {sync.TOKEN_ENV}")
    try:
        token = token_file.read()
    except OperationError as error:
        return Finding("token", False, error.message, "correct the file, or remove it to have a new one made")
    return Finding("token", True, f"{paths.token_file()}{'' if token else ' (made when needed)'}")


def check_socket() -> Finding:
    try:
        endpoint = sync.discover().endpoint
    except OperationError as error:
        return Finding(
            "endpoint", False, error.message, "a shorter EOS_STATE_DIR, or another SANDBOX_GATEWAY_SOCKET"
        )
    return Finding(
        "endpoint",
        True,
        f"{endpoint}" + (f" (from {sync.SOCKET_ENV})" if os.environ.get(sync.SOCKET_ENV) else ""),
    )


def check_gateway() -> Finding:
    from eos_mcp.cli.gateway_control import info

    try:
        found = info()
    except OperationError as error:
        return Finding("gateway", False, error.message, "eos gateway stop, then repeat the call that failed")
    if found is None:
        return Finding("gateway", None, "not running; it starts on demand")
    warnings: list[str] = found.get("warnings") or []
    if warnings:
        return Finding(
            "gateway",
            False,
            f"runs (pid {found.get('pid')}), {warnings[0]}",
            "correct the file that the warning names",
        )
    return Finding(
        "gateway",
        True,
        f"runs (pid {found.get('pid')}), version {found.get('version')}, {found.get('sandboxes')} sandboxes",
    )


CHECKS: tuple[Callable[[], Finding], ...] = (
    check_platform,
    check_versions,
    check_local,
    check_userns,
    check_docker,
    check_state,
    check_cache,
    check_hidden,
    check_token,
    check_socket,
    check_gateway,
)


def _directory(name: str, path: str, step: str) -> Finding:
    problem = paths.unusable(path)
    if problem is not None:
        return Finding(name, False, problem, step)
    return Finding(name, True, f"{path}{'' if os.path.isdir(path) else ' (made when needed)'}")
