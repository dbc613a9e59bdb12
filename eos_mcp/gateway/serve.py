"""Lifetime of a gateway: own the state directory, listen, start the manager, serve, stop when idle or by
signal.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import sys
import time
from typing import TYPE_CHECKING, Any

from eos_agent.wire import protocol
from eos_agent.wire.protocol import OPERATION_FAILED, OperationError
from eos_mcp.config import paths
from eos_mcp.config.load import Config, ConfigError, load
from eos_mcp.config.log import log
from eos_mcp.gateway import listen, ownership, serve_options
from eos_mcp.gateway.departed import DepartedClients
from eos_mcp.gateway.listen import Listener, ListenError
from eos_mcp.gateway.router import ManagerProtocol, Router, base_info
from eos_mcp.gateway.serve_options import ServeOptions
from eos_mcp.gateway.server import GatewayServer
from eos_mcp.gateway_client import sync
from eos_mcp.gateway_client.sync import GatewayEndpoint

if TYPE_CHECKING:
    from eos_mcp.manager.manager import Manager

PREDECESSOR_S = 20.0
GRACE_S = 5.0
CLOSE_S = 15.0
REFUSE_S = 2.0


class StartError(Exception):
    """The reason, for a person, why this gateway cannot serve."""


def run(chosen: ServeOptions) -> int:
    """Serve until stopped; returns the exit status. A failure to start is reported on standard error and to
    clients that already wait.
    """
    if chosen.listen_fd is not None:
        _close_others(chosen.listen_fd)
    owner = ownership.Ownership()
    listeners: list[Listener] = []
    extra_pid_file: str | None = None
    try:
        try:
            settings = load(chosen.config_yaml, relative_to=chosen.relative_to)
            owner.claim(wait_s=PREDECESSOR_S if chosen.listen_fd is not None else 0)
            token = serve_options.token_of(chosen)
            listeners = _listeners(chosen, settings.gateway.bind_addr)
            extra_pid_file = chosen.pid_file or settings.gateway.pid_path
            if extra_pid_file is not None:
                _write_pid(extra_pid_file)
        except ConfigError as error:
            where = chosen.config_yaml
            raise StartError(
                error.message if where is None or where in error.message else f"{where}: {error.message}"
            ) from None
        except (ownership.AlreadyRunning, ListenError) as error:
            raise StartError(str(error)) from None
        except OperationError as error:
            raise StartError(error.message) from None
        except OSError as error:
            raise StartError(f"{error.strerror}: {error.filename}") from None
        for name in paths.VARIABLES:  # a relative path starts from the caller's directory, which is left here
            if os.environ.get(name):
                os.environ[name] = os.path.abspath(os.environ[name])
        os.chdir("/")
        return asyncio.run(_Life(chosen, settings, token, listeners).run())
    except StartError as error:
        log("start_failed", pid=os.getpid(), error=str(error))
        _tell_waiting(chosen, str(error))
        return 1
    finally:
        for listener in listeners:
            with contextlib.suppress(OSError):
                listen.unlink_own(listener)
            listener.socket.close()
        if extra_pid_file is not None:
            _remove_pid(extra_pid_file)
        owner.release()


class _Life:
    def __init__(self, chosen: ServeOptions, settings: Config, token: str, listeners: list[Listener]) -> None:
        self.chosen, self.settings, self.token, self.listeners = chosen, settings, token, listeners
        self.stopping = asyncio.Event()
        self.started_at = time.time()
        self.manager: ManagerProtocol | None = None

    async def run(self) -> int:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop, signal.Signals(number).name)
        try:
            manager = self.manager = _manager(self.settings, self.chosen.backend)
        except OSError as error:
            raise StartError(f"{error.strerror or error}: {error.filename}") from None
        gateway = self.settings.gateway
        contract = gateway.results == "contract"
        router = Router(manager, manager.forwarder, info=self._info, contract_results=contract)
        limit = self.chosen.max_connections or gateway.max_concurrent_connections
        departed = router.departed
        server = GatewayServer(
            self.listeners,
            self.token,
            router.answer,
            max_connections=limit,
            holding=lambda: departed.holding,
        )
        try:
            try:
                await manager.start()
            except OperationError as error:
                raise StartError(error.message) from None
            except OSError as error:
                raise StartError(f"{error.strerror or error}: {error.filename}") from None
            server.start()
            log(
                "ready",
                pid=os.getpid(),
                endpoints=[str(one.endpoint) for one in self.listeners],
                backend=self.chosen.backend,
                state_dir=paths.state_dir(),
            )
            for warning in self._warnings():
                log("config_invalid", error=warning)
            await self._until_stopped(
                server, manager, gateway.idle_exit_s if self.chosen.listen_fd is not None else 0
            )
            await self._leave(server, departed)
        finally:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(CLOSE_S):
                    await manager.close()
        log("stopped", pid=os.getpid())
        return 0

    def _stop(self, name: str) -> None:
        if not self.stopping.is_set():
            log("stopping", signal=name)
        self.stopping.set()

    async def _until_stopped(
        self, server: GatewayServer, manager: ManagerProtocol, idle_exit_s: float
    ) -> None:
        """Wait for a signal, or for `idle_exit_s` without a request and without a sandbox."""
        while not self.stopping.is_set():
            idle_s = time.monotonic() - server.last_request_at
            if idle_exit_s and not server.busy and manager.sandbox_count() == 0 and idle_s >= idle_exit_s:
                log("idle", idle_s=round(idle_s))
                return
            wait_s = (
                None
                if not idle_exit_s
                else max(0.05, min(idle_exit_s - idle_s if idle_s < idle_exit_s else 1.0, 60.0))
            )
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.stopping.wait(), wait_s)

    async def _leave(self, server: GatewayServer, departed: DepartedClients) -> None:
        """Remove the sockets under the start lock, and serve every client that connected before."""
        departed.stop()
        await server.stop_accepting()
        lock = sync.StartLock()
        await asyncio.to_thread(lock.__enter__)
        try:
            for listener in self.listeners:
                with contextlib.suppress(OSError):
                    listen.unlink_own(listener)
            server.accept_pending()
            for listener in self.listeners:
                listener.socket.close()
        finally:
            lock.__exit__()
        await server.finish(GRACE_S)

    def _warnings(self) -> list[str]:
        """Report a mistake in the agent's sections, which stops create_sandbox but not the gateway."""
        problem = self.settings.agent_problem()
        return [] if problem is None else [f"create_sandbox would fail: {'; '.join(problem.splitlines())}"]

    def _info(self) -> dict[str, Any]:
        backends: Any = getattr(self.manager, "backends", None)
        return {
            **base_info(),
            "backends": backends() if callable(backends) else {},
            "backend": self.chosen.backend,
            "pid": os.getpid(),
            "endpoints": [str(listener.endpoint) for listener in self.listeners],
            "state_dir": paths.state_dir(),
            "started_unix_ms": int(self.started_at * 1000),
            "sandboxes": 0 if self.manager is None else self.manager.sandbox_count(),
            "warnings": self._warnings(),
        }


def _manager(settings: Config, backend: str) -> Manager:
    from eos_mcp.manager.manager import Manager

    instance = settings.manager.docker.gateway_instance_id or ownership.instance_id()
    return Manager(settings, paths.state_dir(), backend=backend, instance_id=instance)


def _listeners(chosen: ServeOptions, bind_addr: str | None) -> list[Listener]:
    """Return the listeners: the requested endpoint and, for every gateway, this user's own socket."""
    found: list[Listener] = []
    own = GatewayEndpoint("unix", path=paths.socket_path())
    try:
        wanted = chosen.endpoint
        if chosen.listen_fd is not None:
            wanted = wanted or own
            found.append(listen.inherited(chosen.listen_fd, wanted))
            also = [sync.parse_endpoint(bind_addr)] if bind_addr else []
        else:
            also = [wanted or sync.parse_endpoint(bind_addr or serve_options.DEFAULT_ENDPOINT)]
        for endpoint in (*also, own):
            if any(endpoint == listener.endpoint for listener in found):
                continue
            if endpoint.kind == "tcp":
                found.append(listen.tcp(endpoint))
                continue
            with sync.StartLock():
                found.append(listen.unix(endpoint.path))
    except BaseException:
        for listener in found[1 if chosen.listen_fd is not None else 0 :]:
            listen.unlink_own(listener)
            listener.socket.close()
        if chosen.listen_fd is not None and found:
            found[0].socket.detach()  # clients in its backlog still get the reason
        raise
    return found


def _tell_waiting(chosen: ServeOptions, why: str) -> None:
    """Send the reason to clients in the backlog of a handed-over socket, instead of breaking their
    connections.
    """
    if chosen.listen_fd is None:
        return
    envelope = OperationError(
        OPERATION_FAILED, f"the gateway could not start: {why}", reason="gateway_start_failed"
    ).envelope()
    with contextlib.suppress(OSError), socket.socket(fileno=os.dup(chosen.listen_fd)) as listening:
        listening.setblocking(False)
        if chosen.endpoint is not None and chosen.endpoint.kind == "unix":
            with sync.StartLock():
                os.unlink(chosen.endpoint.path)
        while True:
            connected, _ = listening.accept()
            with connected:
                connected.settimeout(REFUSE_S)
                connected.sendall(protocol.encode(envelope))
                connected.shutdown(socket.SHUT_WR)
                while connected.recv(65536):
                    pass


def _close_others(listen_fd: int) -> None:
    """Close inherited descriptors except the one that a client handed over: others (pipes of its caller) must
    not stay open in this process.
    """
    os.closerange(3, listen_fd)
    os.closerange(listen_fd + 1, 65536)


def _write_pid(path: str) -> None:
    os.makedirs(os.path.dirname(path), exist_ok=True)
    temporary = f"{path}.{os.getpid()}"
    with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600), "w") as file:
        file.write(f"{os.getpid()}\n")
    os.replace(temporary, path)


def _remove_pid(path: str) -> None:
    with contextlib.suppress(OSError):
        with open(path) as file:
            mine = file.read().strip() == str(os.getpid())
        if mine:
            os.unlink(path)


def main(words: list[str]) -> int:
    """`sandbox-gateway serve …`."""
    if words[:1] in (["help"], ["--help"], ["-h"]) or words[1:2] in (["--help"], ["-h"]):
        sys.stdout.write(serve_options.usage())
        return 0
    if words[:1] != ["serve"]:
        sys.stderr.write(serve_options.usage())
        return 2
    try:
        chosen = serve_options.parse(words[1:])
    except serve_options.ServeUsageError as error:
        sys.stderr.write(f"sandbox-gateway: {error}\n")
        return 2
    return run(chosen)
