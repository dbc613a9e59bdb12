"""Requests to the agents of sandboxes: pooled connections, one request in flight on each.

On a fresh connection both ends prove that they know the sandbox's secret (eos_agent/wire/proof.py) before a
request is sent: connect(2) to a published port succeeds even without an agent, and the port may now belong to
another program. On an idle connection the agent first answers a `sandbox_daemon_ready`. So a request is sent
once, and only to the sandbox's agent.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import time
from collections.abc import AsyncGenerator, Awaitable, Mapping
from contextlib import asynccontextmanager
from typing import Any, NamedTuple, Protocol

from eos_agent.wire import proof, protocol
from eos_agent.wire.protocol import INTERNAL_ERROR, OperationError
from eos_mcp import catalog
from eos_mcp.agent_client.line_socket import LineSocket, TooLong, check_owner

CONNECT_TIMEOUT_S = 5.0
READY_TIMEOUT_S = 5.0
RECONNECT_S = 10.0  # longer than a container needs to restart its agent
PAUSES_S = (0.02, 0.05, 0.1, 0.2, 0.3)
TRUSTED_IDLE_S = 0.05  # connections of a killed agent end within moments; a readiness request costs 0.2 ms
POOL_SIZE = 16
# Seconds after the last look-up or proof of a port in which the proof alone protects against a moved port.
SEEN_S = 1.0
LOOK_S = 2.0  # wait for an engine that hangs; then the known port of the container is used
BROKEN = (OSError, EOFError, TooLong, ValueError)
"""A connection that broke, or a peer that speaks no protocol of ours."""


class AgentTarget(Protocol):
    """The address of an agent and the secret (`token`) that both ends know; it is not sent to an agent that
    `proves`.

    With a `socket_path` that unix socket is used; host and port then only distinguish one start of the agent
    from another.
    """

    @property
    def host(self) -> str: ...
    @property
    def port(self) -> int: ...
    @property
    def token(self) -> str: ...
    @property
    def sandbox_id(self) -> str: ...
    @property
    def socket_path(self) -> str | None: ...
    @property
    def proves(self) -> bool: ...


class Targets(Protocol):
    """`Manager.target`: raises OperationError for a sandbox that is unknown or not ready."""

    def __call__(self, sandbox_id: str, *, refresh: bool = False) -> Awaitable[AgentTarget]: ...


class NotThere(Exception):
    """The agent of the sandbox does not answer at the address."""


class Pooled(NamedTuple):
    line: LineSocket
    address: tuple[str, int]
    used_at: float


class AgentPool:
    """The connections of one gateway."""

    def __init__(self, targets: Targets) -> None:
        """`targets` gives the present address of a sandbox's agent. Each request asks for it, since a
        restarted container has other ports.
        """
        self._targets = targets
        self._idle: dict[str, list[Pooled]] = {}
        self._reaching: dict[str, asyncio.Lock] = {}
        self._seen: dict[str, float] = {}

    async def request(
        self, sandbox_id: str, op: str, args: Mapping[str, Any], *, request_id: str, timeout_s: float | None
    ) -> dict[str, Any]:
        """Send a request; return the agent's reply, which may be an error envelope. See `request_line`."""
        line = await self.request_line(sandbox_id, op, args, request_id=request_id, timeout_s=timeout_s)
        return decoded(line, op)

    async def request_line(
        self,
        sandbox_id: str,
        op: str,
        args: Mapping[str, Any],
        *,
        request_id: str,
        timeout_s: float | None,
    ) -> bytes:
        """Send a request; return the agent's reply as it came, a JSON object without a newline. A reply
        without the key `"error"` is a result.

        Args:
            timeout_s: for request and reply together; None: as long as the connection lasts.
        Raises:
            OperationError: as `targets` raises; internal_error with reason forward_timeout,
                sandbox_unreachable or sandbox_gone.
        """
        try:
            async with asyncio.timeout(timeout_s):
                return await self._request(sandbox_id, op, args, request_id)
        except TimeoutError:
            raise _late(sandbox_id, op, timeout_s) from None

    @asynccontextmanager
    async def stream(
        self, sandbox_id: str, op: str, args: Mapping[str, Any], *, request_id: str
    ) -> AsyncGenerator[tuple[socket.socket, bytes]]:
        """Send a request whose reply is a stream, on a separate connection that closes at the end of the
        block. Yield the socket, for a thread that reads it with blocking calls, and the bytes received
        already.

        Raises:
            OperationError: as `request`; an error reply is the first line of the stream, for the reader.
        """
        line, target = await self._connection(sandbox_id)
        line.unwatch()
        try:
            data = protocol.encode_request(
                op, args, request_id=request_id, sandbox_id=sandbox_id, **_token(target)
            )
            try:
                await line.send(data)
            except BROKEN as error:
                raise _gone(op, error) from None
            yield line.socket, bytes(line.pending)
        finally:
            line.close()

    def forget(self, sandbox_id: str) -> None:
        """Close the idle connections of a sandbox that is gone."""
        for pooled in self._idle.pop(sandbox_id, ()):
            pooled.line.close()
        self._reaching.pop(sandbox_id, None)
        self._seen.pop(sandbox_id, None)

    def seen(self, sandbox_id: str) -> None:
        """Note that the agent was found at its present address."""
        self._seen[sandbox_id] = time.monotonic()

    def close(self) -> None:
        for sandbox_id in list(self._idle):
            self.forget(sandbox_id)

    def _at_rest(self, target: AgentTarget) -> Pooled | None:
        """Take an idle connection to the agent on which nothing has arrived. The agent may have died since:
        see TRUSTED_IDLE_S.
        """
        idle = self._idle.get(target.sandbox_id)
        while idle:
            pooled = idle.pop()
            if pooled.address == (target.host, target.port) and pooled.line.at_rest():
                return pooled
            pooled.line.close()
        return None

    def _keep(self, sandbox_id: str, line: LineSocket, address: tuple[str, int]) -> None:
        """Keep a connection for the next request, or close it. A kept connection is closed as soon as the
        agent closes its end.
        """
        idle = self._idle.setdefault(sandbox_id, [])
        if len(idle) < POOL_SIZE and not line.pending:
            pooled = Pooled(line, address, time.monotonic())
            idle.append(pooled)
            line.watch(lambda: self._left(sandbox_id, pooled))
        else:
            line.close()

    def _left(self, sandbox_id: str, pooled: Pooled) -> None:
        pooled.line.close()
        with contextlib.suppress(ValueError):
            self._idle.get(sandbox_id, []).remove(pooled)

    async def _request(self, sandbox_id: str, op: str, args: Mapping[str, Any], request_id: str) -> bytes:
        attempts = 2 if _is_read(op) else 1
        while True:
            attempts -= 1
            line, target = await self._connection(sandbox_id)
            try:
                reply = await _ask(line, _request_data(target, op, args, request_id))
            except BROKEN as error:
                line.close()
                self.forget(sandbox_id)  # its other connections end the same way
                if attempts == 0:
                    raise _gone(op, error) from None
                continue
            except BaseException:
                line.close()
                raise
            self._keep(sandbox_id, line, (target.host, target.port))
            self.seen(sandbox_id)
            return reply

    async def _connection(self, sandbox_id: str) -> tuple[LineSocket, AgentTarget]:
        """Return a connection on which the agent of the sandbox has answered."""
        target = await self._targets(sandbox_id)
        kept = await self._kept(target)
        if kept is not None:
            return kept, target
        with contextlib.suppress(NotThere):
            target = await self._looked_at(target)
            return await _open(target), target
        async with self._reaching.setdefault(sandbox_id, asyncio.Lock()):
            return await self._reach(sandbox_id)

    async def _looked_at(self, target: AgentTarget) -> AgentTarget:
        """Look up the port of a sandbox again, unless that was done within SEEN_S: another program may listen
        there now.

        The proof shows that the connection ends at the agent. It does not show that no other program relays
        the bytes; at the port that the engine names, no program does.
        """
        if (
            target.socket_path is not None
            or time.monotonic() - self._seen.get(target.sandbox_id, -SEEN_S) < SEEN_S
        ):
            return target
        try:
            async with asyncio.timeout(LOOK_S):
                found = await self._targets(target.sandbox_id, refresh=True)
        except TimeoutError:
            return target
        except OperationError as error:
            if error.details.get("reason") in ("docker_unreachable", "docker_failed"):
                return target
            raise
        self.seen(target.sandbox_id)
        return found

    async def _reach(self, sandbox_id: str) -> tuple[LineSocket, AgentTarget]:
        """Look up the address again (a restart moves the ports, a local agent is started again) and try for
        RECONNECT_S.
        """
        for pooled in self._idle.pop(sandbox_id, ()):
            pooled.line.close()
        deadline, tries = time.monotonic() + RECONNECT_S, 0
        while True:
            # The first look-up is without a refresh: the previous holder of the lock may have found the
            # agent.
            target = await self._targets(sandbox_id, refresh=tries > 0)
            try:
                return await _open(target), target
            except NotThere as error:
                if time.monotonic() > deadline:
                    details = {
                        "sandbox_id": sandbox_id,
                        "retryable": True,
                        "hint": (
                            "see inspect_sandbox and the log of the sandbox; start_sandbox starts a "
                            "stopped one"
                        ),
                    }
                    message = (
                        f"the agent of sandbox {sandbox_id} does not answer at "
                        f"{target.host}:{target.port}: {error}"
                    )
                    raise OperationError(
                        INTERNAL_ERROR, message, details, reason="sandbox_unreachable"
                    ) from None
            if tries > 0:
                await asyncio.sleep(PAUSES_S[min(tries, len(PAUSES_S)) - 1])
            tries += 1

    async def _kept(self, target: AgentTarget) -> LineSocket | None:
        while (pooled := self._at_rest(target)) is not None:
            if time.monotonic() - pooled.used_at < TRUSTED_IDLE_S:
                return pooled.line
            with contextlib.suppress(NotThere):
                await _prove(pooled.line, target)
                return pooled.line
        return None


def decoded(line: bytes, op: str) -> dict[str, Any]:
    """Decode the line of a reply.

    Raises:
        OperationError: internal_error, reason sandbox_gone: it is not a JSON object.
    """
    try:
        return _object(line)
    except BROKEN as error:
        raise _gone(op, error) from None


async def _open(target: AgentTarget) -> LineSocket:
    """Connect, and have the agent of the sandbox prove itself.

    Raises:
        NotThere: the agent did not prove itself; neither the secret nor a request was sent.
    """
    try:
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            connected = await (
                _dial(target.host, target.port)
                if target.socket_path is None
                else _dial_unix(target.socket_path)
            )
    except (OSError, TimeoutError) as error:
        raise NotThere(str(error) or "no answer to connect") from None
    line = LineSocket(connected)
    await _prove(line, target, fresh=True)
    return line


async def _dial(host: str, port: int) -> socket.socket:
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    family, kind, number, _, address = found[0]
    connected = socket.socket(family, kind, number)
    try:
        connected.setblocking(False)
        await loop.sock_connect(connected, address)
        for option, value in (
            ("TCP_NODELAY", 1),
            ("TCP_KEEPIDLE", 5),
            ("TCP_KEEPINTVL", 2),
            ("TCP_KEEPCNT", 3),
        ):
            if hasattr(socket, option):
                connected.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
        connected.setsockopt(
            socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1
        )  # a container that vanishes sends no FIN
    except BaseException:
        connected.close()
        raise
    return connected


async def _dial_unix(path: str) -> socket.socket:
    connected = socket.socket(socket.AF_UNIX)
    try:
        connected.setblocking(False)
        await asyncio.get_running_loop().sock_connect(connected, path)
        check_owner(connected, path)
    except BaseException:
        connected.close()
        raise
    return connected


def _token(target: AgentTarget) -> dict[str, Any]:
    """Return the token for an agent of an older version, which cannot prove itself; empty for a unix socket,
    which needs no token.
    """
    return (
        {} if target.proves or target.socket_path is not None else {protocol.DAEMON_TOKEN_KEY: target.token}
    )


def _request_data(target: AgentTarget, op: str, args: Mapping[str, Any], request_id: str) -> bytes:
    """Encode a request on a connection that is kept afterwards."""
    return protocol.encode_request(
        op,
        args,
        request_id=request_id,
        sandbox_id=target.sandbox_id,
        **{protocol.KEEP_ALIVE_KEY: True},
        **_token(target),
    )


def _is_read(op: str) -> bool:
    """Tell whether an operation only reads, so that it may be sent again after a connection broke."""
    operation = catalog.find(op)
    return operation is not None and operation.read_only


async def _prove(line: LineSocket, target: AgentTarget, *, fresh: bool = False) -> None:
    """Have the agent of the sandbox answer; else close the connection and raise.

    Args:
        fresh: proofs were not exchanged on this connection yet.
    Raises:
        NotThere: the agent does not answer, or another program does.
        OperationError: server_busy.
    """
    try:
        async with asyncio.timeout(READY_TIMEOUT_S):
            ping = _request_data(target, "sandbox_daemon_ready", {}, protocol.new_request_id())
            if fresh and target.proves:
                ping = await _exchange_proofs(line, target) + ping
            reply = _object(await _ask(line, ping))
        if reply.get("status") == "ready" and reply.get("sandbox_id") in (None, target.sandbox_id):
            return
        refusal: dict[str, Any] | None = reply.get("error")
        if refusal is not None and refusal.get("kind") == protocol.SERVER_BUSY:
            raise OperationError(
                protocol.SERVER_BUSY,
                str(refusal.get("message")),
                {"retryable": True, **refusal.get("details", {})},
            )
        raise NotThere(
            "another program answers there" if refusal is None else f"it answered {json.dumps(refusal)[:200]}"
        )
    except (OSError, EOFError, TimeoutError, TooLong, ValueError, proof.WrongProof) as error:
        line.close()
        raise NotThere(str(error) or type(error).__name__) from None
    except BaseException:
        line.close()
        raise


async def _exchange_proofs(line: LineSocket, target: AgentTarget) -> bytes:
    """Have the agent prove itself; return the gateway's own proof, a line to send.

    Raises:
        proof.WrongProof: the agent's proof is wrong.
    """
    nonce = proof.new_nonce()
    reply = _object(await _ask(line, protocol.encode(proof.hello(target.sandbox_id, nonce))))
    return protocol.encode(proof.check(target.token, target.sandbox_id, nonce, reply))


async def _ask(line: LineSocket, data: bytes) -> bytes:
    """Send a line to an agent; return the line that it answers, a JSON object by its first and last byte."""
    received = await line.ask(data, protocol.MAX_LINE_BYTES)
    if not (received.startswith(b"{") and received.endswith(b"}")):
        raise ValueError("the reply is not a JSON object")
    return received


def _object(line: bytes) -> dict[str, Any]:
    try:
        value = json.loads(line)
    except RecursionError:
        raise ValueError("the reply is nested too deeply") from None
    if not isinstance(value, dict):
        raise ValueError("the reply is not a JSON object")
    if not isinstance(value.get("error", {}), dict):  # pyright: ignore[reportUnknownMemberType]
        raise ValueError("the error in the reply is not a JSON object")
    return value  # pyright: ignore[reportUnknownVariableType]


def _gone(what: str, error: Exception) -> OperationError:
    """Return the error for a broken connection: it is unknown how much of the request was performed."""
    details = {"retryable": True, "hint": "check what was done with a read operation, then repeat the call"}
    message = f"the connection to the sandbox broke during {what}: {str(error) or type(error).__name__}"
    return OperationError(INTERNAL_ERROR, message, details, reason="sandbox_gone")


def _late(sandbox_id: str, op: str, timeout_s: float | None) -> OperationError:
    details = {
        "retryable": False,
        "hint": "the sandbox continues to work on it; check the result with a read operation",
    }
    message = f"sandbox {sandbox_id} did not answer {op} within {timeout_s:g} s"
    return OperationError(INTERNAL_ERROR, message, details, reason="forward_timeout")
