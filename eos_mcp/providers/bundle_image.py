"""Build the bundle inside an image that has python3, when this machine is not Linux or has another
architecture than the engine.
"""

from __future__ import annotations

import io
import os
import tarfile
import tempfile
from collections.abc import Iterable, Iterator
from typing import Any

from agent_image import build
from eos_agent.wire.protocol import INTERNAL_ERROR, OperationError
from eos_mcp.providers.volumes import read_file
from layerstack.kernel import fsync


def build_in(client: Any, base_image: str, cache_dir: str) -> build.Bundle:
    """Build agent_image/Dockerfile FROM `base_image`, without a network, and copy the tree to
    `<cache_dir>/<sha>`. Image and container are removed.

    Raises:
        OperationError: internal_error, reason bundle_failed, with the end of the build's output.
    """
    from docker.errors import BuildError

    mark = os.urandom(8).hex()
    with tempfile.TemporaryFile() as context:
        for piece in build.build_context():
            context.write(piece)
        context.seek(0)
        try:
            image, _ = client.images.build(
                fileobj=context,
                custom_context=True,
                buildargs={"BASE": base_image, "BUILD": mark},
                network_mode="none",
                rm=True,
                forcerm=True,
            )
        except BuildError as error:
            said = [str(line.get("stream") or line.get("error") or "").strip() for line in error.build_log]
            output = "; ".join(line for line in said if line)[-600:]
            _drop_stages(client, mark)
            raise OperationError(
                INTERNAL_ERROR, f"building the bundle FROM {base_image}: {output}", reason="bundle_failed"
            ) from error
    try:
        helper = client.containers.create(
            image.id, entrypoint=["/never-started"], network_mode="none", labels={"eos.shared": "true"}
        )
        try:
            sha = read_file(helper, "/eos/bundle.sha").decode().strip()
            stream, _ = helper.get_archive("/eos/bundle")
            _unpack(stream, sha, cache_dir)
        finally:
            helper.remove(v=True, force=True)
    finally:
        client.images.remove(image.id, force=True)
        _drop_stages(client, mark)
    path = os.path.join(cache_dir, sha)
    found = build.tree_hash(path)
    if found != sha:
        fsync.remove_tree(path)
        raise OperationError(
            INTERNAL_ERROR,
            f"the bundle built FROM {base_image} arrived as {found}, not as {sha}",
            reason="bundle_failed",
        )
    return build.Bundle(path, sha)


def _drop_stages(client: Any, mark: str) -> None:
    """Remove the images of the stages before the last: untagged, with the label of this build."""
    client.images.prune(filters={"dangling": True, "label": f"eos.bundle.build={mark}"})


def _unpack(stream: Iterable[bytes], sha: str, cache_dir: str) -> None:
    path = os.path.join(cache_dir, sha)
    staging = os.path.join(cache_dir, f".unpacking-{os.getpid()}-{os.urandom(4).hex()}")
    build.make_cache(cache_dir)
    os.mkdir(staging, 0o700)
    try:
        with tarfile.open(fileobj=io.BufferedReader(_Pieces(stream)), mode="r|") as tar:
            # filters came with Python 3.11.4
            tar.extraction_filter = getattr(tarfile, "tar_filter", lambda member, _path: member)
            tar.extractall(staging)
        build.put(os.path.join(staging, "bundle"), path, sha)
    finally:
        fsync.remove_tree(staging)


class _Pieces(io.RawIOBase):
    """A binary stream over an iterator of bytes."""

    def __init__(self, pieces: Iterable[bytes]) -> None:
        self._pieces: Iterator[bytes] = iter(pieces)
        self._rest = b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int:
        if not self._rest:
            self._rest = next(self._pieces, b"")
        count = min(len(buffer), len(self._rest))
        buffer[:count] = self._rest[:count]
        self._rest = self._rest[count:]
        return count
