"""Output and exit status of a program: the result on standard output, one error envelope on standard
error.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping

from eos_agent.wire import protocol
from eos_agent.wire.protocol import INVALID_REQUEST, OperationError

TYPE_CHECKING = False  # importing `typing` is a tenth of a command line's life
if TYPE_CHECKING:
    from typing import Any, TextIO

OK, FAILED, USAGE, REJECTED = 0, 1, 2, 3


def write(text: bytes) -> None:
    """Write to standard output; a closed pipe is not an error."""
    _write(sys.stdout, text)


def write_error(text: bytes) -> None:
    _write(sys.stderr, text)


def harmless(text: bytes) -> bytes:
    """Escape unprintable characters of a JSON text.

    C1 controls and bidirectional marks control a terminal as ASCII controls do; JSON itself escapes only the
    latter.
    """
    if text.isascii() and b"\x7f" not in text:
        return text
    return "".join(
        c if c.isprintable() or c == "\n" else _escaped(c) for c in text.decode("utf-8", "replace")
    ).encode()


def shown(line: str) -> bytes:
    """Escape a line for a terminal, which a file name must not control."""
    safe = "".join(
        c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode() for c in line
    )
    return safe.encode("utf-8", "replace") + b"\n"


def _escaped(c: str) -> str:
    raw = c.encode("utf-16-be")
    return "".join(f"\\u{raw[at]:02x}{raw[at + 1]:02x}" for at in range(0, len(raw), 2))


def _write(stream: TextIO, text: bytes) -> None:
    try:
        stream.flush()
        stream.buffer.write(text)
        stream.buffer.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def page(text: str) -> int:
    write(text.rstrip("\n").encode() + b"\n")
    return OK


def own_error(error: OperationError, *, details: bool) -> None:
    """Print an error that this program itself found; with `details` False its details are empty, as
    the contract has it for the three programs.
    """
    envelope(protocol.error_envelope(error.kind, error.message, error.details if details else {}))


def envelope(reply: Mapping[str, Any]) -> None:
    write_error(harmless(protocol.encode(reply)))


def result(reply: Mapping[str, Any], *, pretty: bool, field: str | None) -> None:
    """Print the result as one compact line, indented, or one field of it.

    Raises:
        OperationError: invalid_request, when the result has no such field.
    """
    value: Any = reply
    if field is not None:
        value = pick(reply, field)
        if isinstance(value, str):
            text = value.encode("utf-8", "replace") + b"\n"
            write(text if not sys.stdout.isatty() else b"".join(map(shown, value.split("\n"))))
            return
    if pretty:
        import json

        write(harmless(json.dumps(value, indent=2, ensure_ascii=False).encode("utf-8", "replace") + b"\n"))
    else:
        write(harmless(protocol.encode(value)))


def _step(value: Any, part: str) -> Any:
    return value[int(part)] if isinstance(value, list) else _object(value)[part]  # pyright: ignore[reportUnknownVariableType]


def pick(result: Mapping[str, Any], path: str) -> Any:
    """Return the field `a.b.0` of a result: keys of objects, indexes of arrays.

    Raises:
        OperationError: invalid_request.
    """
    value: Any = result
    for part in path.split("."):
        try:
            value = _step(value, part)
        except (KeyError, IndexError, ValueError):
            details = {"argument": "--field", "value": path}
            raise OperationError(
                INVALID_REQUEST, f"the result has no field {path}", details, reason="no_such_field"
            ) from None
    return value


def progress_printer(started: float) -> Callable[[str], None]:
    """Return a printer of `[progress S.SSSs] MESSAGE`; seconds since `started`, of time.monotonic()."""

    def show(message: str) -> None:
        write_error(shown(f"[progress {time.monotonic() - started:.3f}s] {message}"))

    return show


def exit_status(reply: Mapping[str, Any], *, propagate: bool, fail_on_reject: bool) -> int:
    """Return 0 for a result and 1 for an error. `propagate`: the command's own status; `fail_on_reject`: 3
    for a refused publish.
    """
    if protocol.is_error(reply):
        refused = bool(_object(_object(reply["error"]).get("details")).get("publish_rejection"))
        return REJECTED if fail_on_reject and refused else FAILED
    code = reply.get("exit_code")
    if propagate and isinstance(code, int) and not isinstance(code, bool) and code != 0:
        return code & 0xFF if code > 0 else 128 - code  # a shell's status for "killed by signal N"
    return REJECTED if fail_on_reject and reply.get("publish_rejected") is True else OK


def _object(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}  # pyright: ignore[reportUnknownVariableType]
