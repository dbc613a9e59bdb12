"""A version of the stack as a value: its number and its layers, newest first. Frozen, JSON, no I/O."""

from __future__ import annotations

import functools
import hashlib
import json
import re
from collections.abc import Iterable
from typing import Any, NamedTuple, NewType, cast

from layerstack.errors import StoreCorrupt

LayerId = NewType("LayerId", str)
"""`B000001-base`, `L<version:06>-<8 hex>` (published) or `S<version:06>-<8 hex>` (squashed)."""

SCHEMA_VERSION = 1
BASE_ID = LayerId("B000001-base")
FIRST_VERSION = 1
LOWER_LIMIT = 500
"""Most lower directories of one mount. Source: OVL_MAX_STACK, fs/overlayfs/params.h."""

_ID = re.compile(r"B000001-base|[LS][0-9]{6,}-[0-9a-f]{8}")
_WRITTEN = re.compile(
    rb'\{"schema_version":1,"version":([1-9][0-9]{0,17}),"layers":\[(\{.*\})\],"sha256":"[0-9a-f]{64}"\}\n',
    re.DOTALL,
)
_WRITTEN_LAYER = re.compile(r'\{"layer_id":"(B000001-base|[LS][0-9]{6,}-[0-9a-f]{8})","path":"[^"]*"\}')


def is_layer_id(value: object) -> bool:
    """Check whether `value` is a well-formed layer id."""
    return isinstance(value, str) and _ID.fullmatch(value) is not None


class LayerRef(NamedTuple):
    """One layer of a manifest."""

    layer_id: LayerId
    path: str
    """Relative to the root of the store: `layers/<id>` or `base/B000001-base`."""

    @property
    def is_base(self) -> bool:
        """True for the base, the lowest layer."""
        return self.layer_id == BASE_ID


@functools.lru_cache(maxsize=4096)
def reference(layer_id: str) -> LayerRef:
    """Give the reference to a layer of that id, with the path at which the store keeps it."""
    return LayerRef(LayerId(layer_id), f"base/{layer_id}" if layer_id == BASE_ID else f"layers/{layer_id}")


def published_id(version: int, digest: str) -> LayerId:
    """Give the id of the layer that makes `version`; `digest` is the layer's SHA-256 in hex."""
    return LayerId(f"L{version:06d}-{digest[:8]}")


def squashed_id(version: int, digest: str, replaced: Iterable[str]) -> LayerId:
    """Give the id of the layer that replaces the layers `replaced` in a squash; `version` is the version that
    the squash makes. Runs of different layers with equal trees get different ids.
    """
    return LayerId(f"S{version:06d}-{hashlib.sha256(' '.join((digest, *replaced)).encode()).hexdigest()[:8]}")


def _canonical(value: object) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True).encode()


class Manifest(NamedTuple):
    """A version of the stack. `version` rises by one per publish and per squash; `layers` is newest first and
    ends with the base.
    """

    version: int
    layers: tuple[LayerRef, ...]

    @property
    def layer_ids(self) -> tuple[LayerId, ...]:
        """Newest first, the base last."""
        return tuple([layer.layer_id for layer in self.layers])

    @property
    def root_hash(self) -> str:
        """SHA-256 in hex of the list of layers: two versions of the same layers have the same one."""
        return hashlib.sha256(_canonical([[layer.layer_id, layer.path] for layer in self.layers])).hexdigest()

    def with_layer(self, layer_id: LayerId) -> Manifest:
        """Give the next version: this one with a layer on top."""
        return Manifest(self.version + 1, (reference(layer_id), *self.layers))

    def to_json(self) -> dict[str, Any]:
        return {
            "schema_version": SCHEMA_VERSION,
            "version": self.version,
            "layers": [{"layer_id": layer.layer_id, "path": layer.path} for layer in self.layers],
        }

    def dump(self) -> bytes:
        """Give the bytes of the file: compact JSON with a checksum over the rest, so that a flipped bit is an
        error and not another version.
        """
        return dump_listed(self.version, _LISTED.of(self.layers))

    @classmethod
    def from_json(cls, value: object, *, source: str = "manifest") -> Manifest:
        """Make the manifest of a parsed document.

        Raises:
            StoreCorrupt: not a manifest, or of an unknown schema; `details.file` is `source`.
        """

        def wrong(what: str) -> StoreCorrupt:
            return StoreCorrupt(f"{source}: {what}", details={"file": source})

        if not isinstance(value, dict):
            raise wrong("not a JSON object")
        body: dict[str, Any] = value  # pyright: ignore[reportUnknownVariableType]
        if body.get("schema_version") != SCHEMA_VERSION:
            raise wrong(f"schema_version is {body.get('schema_version')!r}, known is {SCHEMA_VERSION}")
        version, listed = body.get("version"), body.get("layers")
        if not isinstance(version, int) or isinstance(version, bool) or version < FIRST_VERSION:
            raise wrong(f"version is {version!r}, not a number from {FIRST_VERSION} on")
        if not isinstance(listed, list):
            raise wrong("layers is not a list")
        layers: list[LayerRef] = []
        entries: list[Any] = listed  # pyright: ignore[reportUnknownVariableType]
        for entry in entries:
            if not isinstance(entry, dict):
                raise wrong("an entry of layers is not an object")
            named: dict[str, Any] = entry  # pyright: ignore[reportUnknownVariableType]
            layer_id = named.get("layer_id")
            if not isinstance(layer_id, str) or not _ID.fullmatch(layer_id):
                raise wrong(f"{layer_id!r} is not a layer id")
            ref = reference(layer_id)
            if named.get("path") != ref.path:
                raise wrong(f"path of {layer_id} is {named.get('path')!r}, not {ref.path!r}")
            layers.append(ref)
        if not layers or not layers[-1].is_base or len(set(layers)) != len(layers):
            raise wrong("layers must differ and end with the base")
        return cls(version, tuple(layers))

    @classmethod
    def load(cls, data: bytes, *, source: str) -> Manifest:
        """Parse what `dump` wrote. Raises StoreCorrupt, naming `source`, for anything else."""
        if (quick := _load_written(data)) is not None:
            return quick
        try:
            value: Any = json.loads(data)
        except (ValueError, RecursionError) as error:
            raise StoreCorrupt(f"{source}: not JSON ({error})", details={"file": source}) from None
        if isinstance(value, dict):
            stored: Any = value.pop("sha256", None)  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
            if stored != hashlib.sha256(_canonical(value)).hexdigest():  # pyright: ignore[reportUnknownArgumentType]
                raise StoreCorrupt(
                    f"{source}: the checksum does not match its content", details={"file": source}
                )
        found = cls.from_json(cast(object, value), source=source)
        if found.dump() != data:
            raise StoreCorrupt(
                f"{source}: the values and the checksum match, the spelling of the JSON differs from what "
                f"was written",
                details={"file": source},
            )
        return found


def listed(layers: Iterable[LayerRef]) -> bytes:
    """Give the layers as a manifest file lists them. Unless a squash came between, the list of an older
    version is the end of the list of a newer one.
    """
    return ",".join([f'{{"layer_id":"{layer_id}","path":"{path}"}}' for layer_id, path in layers]).encode()


class _ListedLayers:
    """Cache the last result of `listed`: the next version's list is one entry longer."""

    def __init__(self) -> None:
        self._kept: tuple[tuple[LayerRef, ...], bytes] = ((), b"")

    def of(self, layers: tuple[LayerRef, ...]) -> bytes:
        before, data = self._kept
        if not before or layers != before:
            data = listed(layers[:1]) + b"," + data if before and layers[1:] == before else listed(layers)
            self._kept = (layers, data)
        return data


_LISTED = _ListedLayers()


def lists_the_end_of(data: bytes, layers: bytes) -> bool:
    """Check whether the layers in the manifest file `data` are the last ones of `layers` (as `listed` gives
    them). False may also mean that the file is damaged.
    """
    start, end = data.find(b'"layers":[{') + 10, data.rfind(b'],"sha256":"')
    return 10 <= start < end and layers.endswith(data[start:end])


def dump_listed(version: int, layers: bytes) -> bytes:
    """Give the bytes of the manifest of `version`; `layers` as `listed` gives them. A layer id needs no
    escape in JSON.
    """
    canonical = b'{"layers":[%s],"schema_version":%d,"version":%d}' % (layers, SCHEMA_VERSION, version)
    digest = hashlib.sha256(canonical).hexdigest().encode()
    return b'{"schema_version":%d,"version":%d,"layers":[%s],"sha256":"%s"}\n' % (
        SCHEMA_VERSION,
        version,
        layers,
        digest,
    )


def _load_written(data: bytes) -> Manifest | None:
    """Parse bytes that are exactly what `dump` writes; None for anything else, which is then parsed in full.

    Takes a tenth of the time of reading JSON: a store has as many of these files as openable versions, each
    as long as its list of layers.
    """
    found = _WRITTEN.fullmatch(data)
    if found is None:
        return None
    layers = tuple(map(reference, _WRITTEN_LAYER.findall(found[2].decode("ascii", "replace"))))
    if not layers or not layers[-1].is_base or len(set(layers)) != len(layers):
        return None
    manifest = Manifest(int(found[1]), layers)
    return manifest if manifest.dump() == data else None
