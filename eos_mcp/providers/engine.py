"""Choose the Docker engine and connect to it. docker-py is imported when it is first needed."""

from __future__ import annotations

import logging
import os
import socket
import sys
from typing import Any, NamedTuple, NoReturn

from eos_agent.wire.protocol import INTERNAL_ERROR, OperationError

POOL = 64


class EngineChoice(NamedTuple):
    """An engine's address and where it was found. `context` is the name of a docker context, for its TLS
    files.
    """

    endpoint: str
    source: str
    context: str | None = None


def choose(configured: str | None) -> EngineChoice:
    """Choose the engine: configuration, DOCKER_HOST, DOCKER_CONTEXT, the current context, then the first
    known socket that exists.

    Raises:
        OperationError: internal_error, reason docker_context_missing, when a context is named that does not
            exist.
    """
    if configured:
        return EngineChoice(configured, "manager.docker.docker_endpoint")
    host = os.environ.get("DOCKER_HOST")
    if host:
        return EngineChoice(host, "DOCKER_HOST")
    named = os.environ.get("DOCKER_CONTEXT")
    current = named or _current_context()
    if current and current != "default":
        source = "DOCKER_CONTEXT" if named else "the current docker context"
        return EngineChoice(_context_endpoint(current, source), f"{source} {current}", current)
    sockets = known_sockets()
    for path in sockets:
        if sys.platform == "win32" or os.path.exists(path):
            return EngineChoice(
                f"npipe://{path}" if sys.platform == "win32" else f"unix://{path}", "a known socket"
            )
    return EngineChoice(f"unix://{sockets[0]}", "the default socket")


def known_sockets() -> list[str]:
    """Default sockets of engines, the system's first, then rootless Docker, Desktop, Colima, OrbStack,
    Rancher, Podman.
    """
    if sys.platform == "win32":
        return ["//./pipe/docker_engine"]
    home, run = os.path.expanduser("~"), os.environ.get("XDG_RUNTIME_DIR")
    below_home = [
        f"{home}/.docker/run/docker.sock",
        f"{home}/.colima/default/docker.sock",
        f"{home}/.orbstack/run/docker.sock",
        f"{home}/.rd/docker.sock",
    ]
    first = ["/var/run/docker.sock", *([f"{run}/docker.sock"] if run else [])]
    return [*first, *below_home, *([f"{run}/podman/podman.sock"] if run else []), "/run/podman/podman.sock"]


def connect(configured: str | None, *, timeout_s: float) -> tuple[Any, EngineChoice]:
    """Connect to the engine and wait for an answer. One client serves all threads.

    Raises:
        OperationError: internal_error, reason docker_unreachable: names the endpoint, the source of its
            address and the next step.
    """
    choice = choose(configured)
    try:
        import docker
        from docker.tls import TLSConfig
    except ImportError as error:
        raise OperationError(
            INTERNAL_ERROR, f"the docker package is not installed: {error}", reason="docker_unreachable"
        ) from error
    _reach(choice)
    logging.getLogger("urllib3.connectionpool").setLevel(logging.ERROR)
    try:
        tls: TLSConfig | bool = False
        if choice.context is not None:
            from docker.context import ContextAPI

            context = ContextAPI.get_context(choice.context)
            tls = (context.TLSConfig if context else None) or False
        elif choice.source == "DOCKER_HOST" and os.environ.get("DOCKER_TLS_VERIFY"):
            folder = os.environ.get("DOCKER_CERT_PATH") or os.path.expanduser("~/.docker")
            names = [os.path.join(folder, name) for name in ("cert.pem", "key.pem", "ca.pem")]
            tls = TLSConfig(client_cert=(names[0], names[1]), ca_cert=names[2], verify=True)
        client = docker.DockerClient(
            base_url=choice.endpoint,
            version="auto",
            timeout=int(timeout_s),
            tls=tls,
            max_pool_size=POOL,
            use_ssh_client=choice.endpoint.startswith("ssh://"),
        )
        client.ping()
    except Exception as error:  # docker-py raises its own, requests', urllib3's and OSError alike
        unreachable(choice, error)
    return client, choice


def _reach(choice: EngineChoice) -> None:
    """Connect to a unix socket once: the kernel's error is clearer than docker-py's, which also leaves its
    socket open.
    """
    if not choice.endpoint.startswith("unix://") or not hasattr(socket, "AF_UNIX"):
        return
    with socket.socket(socket.AF_UNIX) as trial:
        trial.settimeout(10)
        try:
            trial.connect(choice.endpoint.removeprefix("unix://"))
        except OSError as error:
            unreachable(choice, error)


def unreachable(choice: EngineChoice, error: BaseException) -> NoReturn:
    text = _last_reason(error)
    if "FileNotFoundError" in text or "No such file" in text:
        step = (
            "start Docker, or name another engine with DOCKER_HOST, or use the image `host` (no "
            "Docker needed)"
        )
        text = "nothing listens there"
    elif "PermissionError" in text or "Permission denied" in text:
        step = (
            "join the group that owns the socket (often `docker`), or use rootless Docker, or use the "
            "image `host` (no Docker needed)"
        )
        text = "permission denied"
    else:
        step = "check with `docker version`, or use the image `host` (no Docker needed)"
    details = {
        "endpoint": choice.endpoint,
        "source": choice.source,
        "hint": step,
        "retryable": text != "permission denied",
    }
    message = f"Docker does not answer at {choice.endpoint} (from {choice.source}): {text}; {step}"
    raise OperationError(INTERNAL_ERROR, message, details, reason="docker_unreachable") from error


def refused(what: str, said: str) -> OperationError:
    """Convert an error of the engine. `said`: its text; `what`: the step that was tried."""
    details: dict[str, Any] = {"engine": said}
    if said.startswith("No such image"):  # removed since check_image
        return OperationError(
            INTERNAL_ERROR,
            f"{what}: {said}",
            {**details, "hint": "docker pull it, and repeat the call"},
            reason="image_not_found",
        )
    if "port is already allocated" in said:
        return OperationError(
            INTERNAL_ERROR, f"{what}: {said}", {**details, "retryable": True}, reason="port_taken"
        )
    if "no space left on device" in said:
        hint = (
            "free space on the engine's disk (`docker system df` shows its use; prune removes what no "
            "sandbox uses), then repeat the call"
        )
        return OperationError(
            INTERNAL_ERROR,
            f"{what}: {said}; {hint}",
            {**details, "retryable": True, "hint": hint},
            reason="disk_full",
        )
    return OperationError(INTERNAL_ERROR, f"{what}: {said}", details, reason="docker_failed")


def _last_reason(error: BaseException) -> str:
    text = f"{type(error).__name__}: {error}"
    seen: BaseException | None = error
    for depth in range(8):
        if depth:
            seen = seen.__cause__ or seen.__context__ if seen is not None else None
        if type(seen).__module__ == "builtins" and isinstance(seen, OSError) and seen.errno is not None:
            return f"{type(seen).__name__}: {seen.strerror or seen}"
    return " ".join(text.split())[:300]


def _current_context() -> str | None:
    import json

    folder = os.environ.get("DOCKER_CONFIG") or os.path.expanduser("~/.docker")
    try:
        with open(os.path.join(folder, "config.json"), encoding="utf-8") as file:
            value = json.load(file).get("currentContext")
    except (OSError, ValueError, AttributeError):
        return None
    return str(value) if value else None


def _context_endpoint(name: str, source: str) -> str:
    from docker.context import ContextAPI

    try:
        context = ContextAPI.get_context(name)
    except Exception:  # docker-py reads the user's files here, and raises errors of many kinds
        context = None
    host = context.Host if context is not None else None
    if not host:
        hint = "`docker context ls` shows the names; unset DOCKER_CONTEXT or run `docker context use default`"
        message = f"{source} names the docker context {name}, which does not exist; {hint}"
        raise OperationError(
            INTERNAL_ERROR,
            message,
            {"context": name, "source": source, "hint": hint},
            reason="docker_context_missing",
        )
    return str(host)
