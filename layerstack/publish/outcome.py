"""The results of a publish and of a preview."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from layerstack.errors import LayerStackError
from layerstack.model.conflict import Conflict, Notice
from layerstack.model.manifest import Manifest


class Published(NamedTuple):
    """The result of a publish. `manifest` is the head after this publish; a no-op has the unchanged head and
    no layer.
    """

    no_op: bool
    manifest: Manifest
    layer_id: str | None
    source_count: int
    ignored_count: int
    notices: tuple[Notice, ...]
    dropped: tuple[str, ...]
    """Paths that were left out: FIFOs, sockets, devices, and half-written files of a killed process."""
    rewritten: Mapping[str, str] = MappingProxyType({})
    """Commit of the work in hex -> the commit that replaces it."""
    kept_refs: tuple[str, ...] = ()
    """Refs that keep published commits which no branch has any more."""


class Preview(NamedTuple):
    """The result that a publish on the present head would have."""

    would_publish: bool
    no_op: bool
    head_version: int
    source_count: int
    ignored_count: int
    conflicts: tuple[Conflict, ...]
    notices: tuple[Notice, ...]
    dropped: tuple[str, ...]
    refused: LayerStackError | None = None
    """The quota or limit that a publish without conflicts would meet."""
