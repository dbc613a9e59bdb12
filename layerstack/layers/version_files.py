"""Files of openable versions, `manifests/<version>.json`: small ones, since the layers of an older version
are the end of the head's list.

    {"schema_version":2,"version":V,"top":"<id of its newest layer>","sha256"}

The layers of a version are those of the head that are not newer than it; `top` is the first of them, or a
layer that a squash has merged into that one since. A version inside a squashed run no longer exists. Older
stores have a whole manifest in each file (schema 1), which is read too.

A publication syncs the name of the file and not its bytes, since the head's manifest says the same (ADR
0060). After a power cut it may be `lost`: the version is then as the head says, and the next open writes the
file again.
"""

from __future__ import annotations

import bisect
import hashlib
import json
from collections.abc import Sequence
from typing import Any, NamedTuple

from layerstack.errors import StoreCorrupt
from layerstack.layers.index import Layer
from layerstack.model.manifest import FIRST_VERSION, SCHEMA_VERSION, LayerId, LayerRef, Manifest, is_layer_id

NAMED_SCHEMA = 2


class VersionRecord(NamedTuple):
    """Content of the file of a version."""

    version: int
    top: LayerId
    """The newest layer that it had when the file was written."""
    layers: tuple[LayerRef, ...] | None
    """All layers, newest first, if the file is one of schema 1."""


def dump(version: int, top: str) -> bytes:
    """Give the bytes of the file of a version. A layer id needs no escape in JSON."""
    canonical = b'{"schema_version":%d,"top":"%s","version":%d}' % (NAMED_SCHEMA, top.encode(), version)
    digest = hashlib.sha256(canonical).hexdigest().encode()
    return b'{"schema_version":%d,"version":%d,"top":"%s","sha256":"%s"}\n' % (
        NAMED_SCHEMA,
        version,
        top.encode(),
        digest,
    )


def lost(data: bytes) -> bool:
    """Check whether a power cut left the file without its bytes. It is smaller than a block: all of them are
    lost, or none.
    """
    return not data.strip(b"\0")


def load(data: bytes, *, source: str) -> VersionRecord:
    """Parse the file of a version. Raises StoreCorrupt, naming `source`, for bytes that neither `dump` nor
    `Manifest.dump` wrote.
    """
    try:
        value: Any = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise StoreCorrupt(f"{source}: not JSON ({error})", details={"file": source}) from None
    body: dict[str, Any] = value if isinstance(value, dict) else {}  # pyright: ignore[reportUnknownVariableType]
    schema = body.get("schema_version")
    if schema == SCHEMA_VERSION:
        manifest = Manifest.load(data, source=source)
        return VersionRecord(manifest.version, manifest.layers[0].layer_id, manifest.layers)
    if schema != NAMED_SCHEMA:
        raise StoreCorrupt(
            f"{source}: schema_version is {schema!r}, known are 1 and {NAMED_SCHEMA}",
            details={"file": source},
        )
    version, top = body.get("version"), str(body.get("top"))
    if type(version) is not int or version < FIRST_VERSION or not is_layer_id(top):
        raise StoreCorrupt(f"{source}: names version {version!r} and layer {top!r}", details={"file": source})
    if dump(version, top) != data:
        text = (
            f"{source}: the checksum does not match its content, or the spelling of the JSON differs "
            f"from what was written"
        )
        raise StoreCorrupt(text, details={"file": source})
    return VersionRecord(version, LayerId(top), None)


def place(layers: Sequence[Layer], version: int) -> int | None:
    """Find where the layers of a version begin among those of a stack, newest first; None: the version is
    inside a squashed run.

    Cost: a bisection.
    """
    at = bisect.bisect_left(layers, -version, key=lambda layer: -layer.version)
    return None if at and layers[at - 1].first_version <= version else at
