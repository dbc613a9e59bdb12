"""One request to the gateway: find the gateway, start one when none listens, send a line, read the progress
frames and the reply.

Standard library only and light to import: a command line program runs for a few dozen milliseconds.
"""

from __future__ import annotations

import errno
import os
import socket
import stat
import sys
from collections.abc import Callable, Mapping

from eos_agent.machine import private_dirs
from eos_agent.wire import protocol
from eos_agent.wire.protocol import CONFIG_ERROR, CONNECTION_ERROR, OperationError
from eos_mcp.config import paths, token_file
from eos_mcp.gateway_client import faults
from eos_mcp.gateway_client.faults import NoReply
from eos_mcp.gateway_client.frames import ReplyParser, UnusableReply, encode_line

TYPE_CHECKING = False  # importing `typing` is a tenth of a command line's life
if TYPE_CHECKING:
    from typing import Any, NamedTuple
else:
    from eos_agent.wire.namedtuple import NamedTuple

SOCKET_ENV = "SANDBOX_GATEWAY_SOCKET"
TOKEN_ENV = "SANDBOX_GATEWAY_AUTH_TOKEN"
SOCKET_PATH_MAX = 100  # sun_path has 108 bytes on Linux, 104 on macOS
BACKLOG = 256
LOG_MAX_BYTES = 4 * 1024 * 1024  # a longer log is renamed when the next gateway starts


class GatewayEndpoint(NamedTuple):
    kind: str  # "unix" | "tcp"
    path: str = ""
    host: str = ""
    port: int = 0

    def __str__(self) -> str:
        if self.kind == "unix":
            return f"unix://{self.path}"
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class GatewaySettings(NamedTuple):
    """The address and token for requests. `token` None: read the token file once the gateway listens."""

    endpoint: GatewayEndpoint
    token: str | None
    autostart: bool

    def __repr__(self) -> str:
        return (
            f"GatewaySettings(endpoint={self.endpoint}, token={'set' if self.token else None}, "
            f"autostart={self.autostart})"
        )


def parse_endpoint(text: str) -> GatewayEndpoint:
    """Parse `HOST:PORT`, `tcp://HOST:PORT`, `unix:///ABS/PATH` or an absolute path of at most 100 bytes.

    Raises:
        ValueError: the text is none of these; the message names the fault.
    """
    if text.startswith("npipe://"):
        raise ValueError(f"named pipes are not supported here: {text}")
    if text.startswith(("unix://", "/")):
        path = text.removeprefix("unix://")
        if not path.startswith("/") or path.endswith("/"):
            raise ValueError(f"a unix endpoint needs an absolute path, as in unix:///run/x.sock: {text}")
        if "\0" in path or len(os.fsencode(path)) > SOCKET_PATH_MAX:
            raise ValueError(
                f"a unix socket path may have {SOCKET_PATH_MAX} bytes, this one has "
                f"{len(os.fsencode(path))}: {path}"
            )
        return GatewayEndpoint("unix", path=path)
    host, colon, port = text.removeprefix("tcp://").rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        colon = ""
    if not colon or not host or not port.isascii() or not port.isdigit() or int(port) > 65535 or "/" in host:
        raise ValueError(f"not an endpoint: {text!r} (use HOST:PORT, tcp://HOST:PORT or unix:///ABS/PATH)")
    return GatewayEndpoint("tcp", host=host, port=int(port))


def discover(*, endpoint: str | None = None, token: str | None = None) -> GatewaySettings:
    """Find the gateway: flag, then environment, then this user's own socket and token file. Reads only.

    Raises:
        OperationError: config_error.
    """
    text = endpoint if endpoint is not None else os.environ.get(SOCKET_ENV)
    try:
        place = parse_endpoint(text) if text else parse_endpoint(paths.socket_path())
    except ValueError as error:
        raise OperationError(CONFIG_ERROR, str(error), reason="bad_endpoint") from None
    if endpoint is not None and not endpoint:
        raise OperationError(CONFIG_ERROR, "the gateway endpoint is empty", reason="bad_endpoint")
    for source, value in (("--gateway-auth-token", token), (TOKEN_ENV, os.environ.get(TOKEN_ENV))):
        if value is not None:
            if not value.strip():
                raise OperationError(CONFIG_ERROR, f"{source} is blank", reason="blank_token")
            return GatewaySettings(place, value, place.kind == "unix")
    return GatewaySettings(place, token_file.read(), place.kind == "unix")


def connect(settings: GatewaySettings, *, timeout_s: float | None = None) -> socket.socket:
    """Connect to the gateway; start one first when no process listens on a unix endpoint.

    Do not wait for readiness: the new gateway inherits the listening socket, whose backlog holds the
    connection.
    Raises:
        OperationError: connection_error that names the endpoint and the next step.
    """
    endpoint = settings.endpoint
    try:
        return _dial(endpoint, timeout_s)
    except OSError as error:
        if not settings.autostart or not isinstance(error, (FileNotFoundError, ConnectionRefusedError)):
            raise _unreachable(endpoint, error) from None
    try:
        return _start_and_dial(settings, timeout_s)
    except OSError as error:
        raise _unreachable(endpoint, error) from None


def call(
    settings: GatewaySettings,
    op: str,
    args: Mapping[str, Any],
    *,
    sandbox_id: str | None = None,
    request_id: str | None = None,
    on_progress: Callable[[str], None] | None = None,
    timeout_s: float | None = None,
) -> dict[str, Any]:
    """Send one request and return the gateway's reply, which may be an error envelope.

    Args:
        timeout_s: longest wait for the next bytes; None: no limit, since the gateway has its own budgets.
    Raises:
        OperationError: connection_error or protocol_error when no reply came; config_error for a bad token
            file.
    """
    request_id = request_id or protocol.new_request_id()
    this = faults.GatewayCall(str(settings.endpoint), op, request_id, of_server=False)
    with connect(settings, timeout_s=timeout_s) as connection:
        token = settings.token if settings.token is not None else token_file.read()
        line = encode_line(
            op,
            args,
            sandbox_id=sandbox_id,
            request_id=request_id,
            token=token,
            stream_logs=on_progress is not None,
        )
        sent: OSError | None = None
        try:
            connection.sendall(line)
        except OSError as error:
            sent = error  # the gateway may have answered and closed without reading all of it
        try:
            return _receive(connection, on_progress)
        except (OSError, NoReply) as error:
            raise this.error(sent or error) from None


def bind_unix(path: str) -> socket.socket:
    """Listen on a unix socket of mode 0600 at `path` and replace a stale socket; the caller holds the start
    lock.

    Raises:
        OSError: EEXIST, `path` is not a socket: connect(2) fails with ECONNREFUSED for a plain file as for a
            stale socket.
    """
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        try:
            if not stat.S_ISSOCK(os.lstat(path).st_mode):
                raise FileExistsError(errno.EEXIST, "exists and is not a socket; move it away first", path)
            os.unlink(path)
        except FileNotFoundError:
            pass
        listener.bind(path)
        os.chmod(path, 0o600)  # before listen(2): until then no connect succeeds
        listener.listen(BACKLOG)
    except BaseException:
        listener.close()
        raise
    return listener


class StartLock:
    """Lock that a process holds while it examines and replaces the socket file: `with StartLock():`."""

    def __enter__(self) -> None:
        import fcntl

        path = paths.start_lock_path()
        private_dirs.make(os.path.dirname(path))
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._fd, fcntl.LOCK_EX)

    def __exit__(self, *_: object) -> None:
        os.close(self._fd)


def spawn_gateway(
    listener: socket.socket | None,
    arguments: list[str],
    *,
    environment: Mapping[str, str],
    log: str | None = None,
) -> int:
    """Start a gateway in a new process session (setsid(2)) with its output in `log`; return its pid. The
    arguments hold no token.
    """
    import fcntl

    log = log or paths.log_path()
    os.makedirs(os.path.dirname(log), 0o700, exist_ok=True)
    try:
        if os.stat(log).st_size > LOG_MAX_BYTES:
            os.replace(log, log + ".1")
    except FileNotFoundError:
        pass
    main = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "gateway", "__main__.py")
    argv = [sys.executable, "-P", main, "serve"]
    log_flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    actions: list[tuple[Any, ...]] = [
        (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
        (os.POSIX_SPAWN_OPEN, 1, log, log_flags, 0o600),
        (os.POSIX_SPAWN_DUP2, 1, 2),
    ]
    handed = -1
    if listener is not None:
        handed = fcntl.fcntl(
            listener.fileno(), fcntl.F_DUPFD_CLOEXEC, 10
        )  # above 3, the number of the descriptor in the child
        actions.append((os.POSIX_SPAWN_DUP2, handed, 3))
        argv += ["--listen-fd", "3"]
    try:
        return os.posix_spawn(
            sys.executable, [*argv, *arguments], dict(environment), file_actions=actions, setsid=True
        )
    finally:
        if handed >= 0:
            os.close(handed)


def _start_and_dial(settings: GatewaySettings, timeout_s: float | None) -> socket.socket:
    path = settings.endpoint.path
    paths.make_folder(path)
    with StartLock():
        try:
            return _dial(settings.endpoint, timeout_s)
        except (FileNotFoundError, ConnectionRefusedError):
            pass
        environment = dict(os.environ)
        if TOKEN_ENV not in environment:
            if settings.token is not None and not os.path.exists(paths.token_file()):
                environment[TOKEN_ENV] = settings.token
            else:
                token_file.ensure()
        with bind_unix(path) as listener:
            try:
                spawn_gateway(listener, ["--gateway-endpoint", f"unix://{path}"], environment=environment)
            except OSError:
                os.unlink(path)
                raise
            return _dial(settings.endpoint, timeout_s)


def _dial(endpoint: GatewayEndpoint, timeout_s: float | None) -> socket.socket:
    if endpoint.kind == "tcp":
        return socket.create_connection((endpoint.host, endpoint.port), timeout_s)
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.settimeout(timeout_s)
        connection.connect(endpoint.path)
    except BaseException:
        connection.close()
        raise
    return connection


def _receive(connection: socket.socket, on_progress: Callable[[str], None] | None) -> dict[str, Any]:
    """Return the first frame that is not progress."""
    parser = ReplyParser()
    while True:
        try:
            frame = parser.frame()
        except UnusableReply as error:
            raise NoReply(faults.UNUSABLE, str(error)) from None
        if frame is None:
            chunk = connection.recv(262144)
            if not chunk:
                raise NoReply(faults.CUT if parser.inside else faults.CLOSED)
            parser.feed(chunk)
        elif not isinstance(frame, str):
            return frame
        elif on_progress is not None:
            on_progress(frame)


def _unreachable(endpoint: GatewayEndpoint, error: OSError) -> OperationError:
    step = (
        "start it with bin/start-sandbox-docker-gateway or `sandbox-gateway serve`"
        if endpoint.kind == "tcp"
        else f"see {paths.log_path()}"
    )
    message = f"no gateway at {endpoint}: {error.strerror or error}; {step}"
    if error.filename is not None:  # the start failed: the gateway cannot write its files
        step = f"set {paths.STATE_DIR_ENV} to a directory that you can write"
        message = (
            f"no gateway at {endpoint}, and none can be started: {error.filename}: {error.strerror}; {step}"
        )
    return OperationError(
        CONNECTION_ERROR, message, {"endpoint": str(endpoint)}, reason="gateway_unreachable"
    )
