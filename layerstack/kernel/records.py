"""Records: small JSON files of the store with a format number and a checksum. A file that `write` did not
write raises StoreCorrupt with its name.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
from collections.abc import Generator
from typing import IO, Any

from layerstack.errors import StoreCorrupt
from layerstack.kernel.fsync import Step, no_step, replacing

FORMAT, SESSION_FORMAT = 1, 2
"""The format of records, and that of a session.json with checkpoints, which no program may read that does not
know these.
"""

_DAMAGE = (errno.EIO, errno.EUCLEAN, errno.EBADMSG, errno.EISDIR, errno.ENOTDIR, errno.ELOOP)
"""errnos for a file that is itself damaged: a bad block, a broken inode, another kind of file in its place.
Any other errno may be temporary.
"""


_plain = json.JSONEncoder(separators=(",", ":"), ensure_ascii=True).encode
_sorted = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=True).encode


def _canonical(body: dict[str, Any]) -> bytes:
    return _sorted(body).encode()


def dump(body: dict[str, Any], *, number: int = FORMAT) -> bytes:
    """Give the bytes of a record. `body` contains JSON values, `number` is its format."""
    full = {"format": number, **body}
    return _plain({**full, "sha256": hashlib.sha256(_canonical(full)).hexdigest()}).encode() + b"\n"


def write(
    path: str, body: dict[str, Any], *, step: Step = no_step, name: str = "", number: int = FORMAT
) -> None:
    """Write the record to `path`; durable on return."""
    with replacing(path, step=step, name=name) as file:
        file.write(dump(body, number=number))


def parse(data: bytes, path: str, *, newest: int = FORMAT) -> dict[str, Any]:
    """Parse a record of a format up to `newest`. Raises StoreCorrupt, naming `path`, for any other format or
    any damage.
    """

    def wrong(what: str) -> StoreCorrupt:
        return StoreCorrupt(f"{path}: {what}", details={"file": path})

    try:
        value: Any = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise wrong(f"not JSON ({error})") from None
    if not isinstance(value, dict):
        raise wrong("not a JSON object")
    body: dict[str, Any] = value  # pyright: ignore[reportUnknownVariableType]
    stored = body.pop("sha256", None)
    number = body.get("format")
    if type(number) is not int or not FORMAT <= number <= newest:
        raise wrong(f"format is {number!r}, known is {FORMAT}{'' if newest == FORMAT else f' to {newest}'}")
    if stored != hashlib.sha256(_canonical(body)).hexdigest():
        raise wrong("the checksum does not match its content")
    del body["format"]
    if dump(body, number=number) != data:
        raise wrong(
            "the values and the checksum match, the spelling of the JSON differs from what was written"
        )
    return body


def content(path: str) -> bytes:
    """Read a file of the store. Raises StoreCorrupt, naming it, when it is damaged and cannot be read; else
    OSError.
    """
    with reading(path) as file:
        return file.read()


@contextlib.contextmanager
def reading(path: str) -> Generator[IO[bytes]]:
    """Open a file of the store. Raises as `content`, also for reads in the block."""
    try:
        with open(path, "rb") as file:
            yield file
    except OSError as error:
        if error.errno not in _DAMAGE:
            raise
        raise StoreCorrupt(f"{path}: cannot be read: {error.strerror}", details={"file": path}) from error


def read(path: str, *, newest: int = FORMAT) -> dict[str, Any]:
    """Read the record at `path`. Raises StoreCorrupt, naming it, when it is missing or damaged."""
    try:
        data = content(path)
    except FileNotFoundError:
        raise StoreCorrupt(f"{path}: missing", details={"file": path}) from None
    return parse(data, path, newest=newest)


def read_session(folder: str) -> dict[str, Any]:
    """Read session.json in the folder of a session. Raises as `read`."""
    return read(f"{folder}/session.json", newest=SESSION_FORMAT)
