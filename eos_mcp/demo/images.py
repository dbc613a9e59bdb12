"""Choose the image of the demo: a local one that has /bin/sh, else one made from the host's static busybox,
else none. Nothing is pulled.
"""

from __future__ import annotations

import io
import shutil
import subprocess
import tarfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import docker

BUSYBOX_IMAGE = "eos-demo/busybox:latest"
LOOK_AT_MOST = 8


class ImageChoice(NamedTuple):
    image: str
    backend: str
    why: str


def holds(container: Any, path: str) -> bool:
    """Return True when a container, running or not, has `path`."""
    from docker.errors import APIError

    try:
        container.get_archive(path)
    except APIError:
        return False
    return True


def has_shell(engine: docker.DockerClient, image: str) -> bool:
    """Return True when `image` has /bin/sh and awk, checked in a container that is never started."""
    container: Any = engine.containers.create(image, ["/bin/sh"], labels={"eos.demo": "probe"})
    try:
        return holds(container, "/bin/sh") and any(
            holds(container, path) for path in ("/usr/bin/awk", "/bin/awk")
        )
    finally:
        container.remove(force=True, v=True)


def local_image(engine: docker.DockerClient) -> str | None:
    """Return the smallest tagged local image that can run the demo's shell; at most eight are checked."""
    images: list[Any] = sorted(
        (i for i in engine.images.list() if i.tags), key=lambda i: int(i.attrs.get("Size", 0))
    )
    for image in images[:LOOK_AT_MOST]:
        if int(image.attrs.get("Size", 0)) and has_shell(engine, image.tags[0]):
            return str(image.tags[0])
    return None


def is_static(program: str) -> bool:
    """Return True for an ELF program without a loader (no PT_INTERP, elf(5))."""
    raw = Path(program).read_bytes()
    if raw[:5] != b"\x7fELF\x02":
        return False
    offset, size, count = (
        int.from_bytes(raw[32:40], "little"),
        int.from_bytes(raw[54:56], "little"),
        int.from_bytes(raw[56:58], "little"),
    )
    return all(
        int.from_bytes(raw[offset + n * size : offset + n * size + 4], "little") != 3 for n in range(count)
    )


def busybox_image(engine: docker.DockerClient) -> str | None:
    """Import an image that holds the host's static busybox and a link for each of its programs; None without
    one.
    """
    program = shutil.which("busybox")
    if program is None or not is_static(program):
        return None
    names = subprocess.run(
        [program, "--list"], capture_output=True, text=True, check=True, timeout=10
    ).stdout.split()
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for name, mode in (("bin", 0o755), ("tmp", 0o1777), ("root", 0o700)):
            entry = tarfile.TarInfo(name)
            entry.type, entry.mode = tarfile.DIRTYPE, mode
            tar.addfile(entry)
        tar.add(program, "bin/busybox")
        for name in names:
            if name != "busybox":
                link = tarfile.TarInfo(f"bin/{name}")
                link.type, link.linkname = tarfile.SYMTYPE, "busybox"
                tar.addfile(link)
    repository, _, tag = BUSYBOX_IMAGE.partition(":")
    api: Any = engine.api
    api.import_image_from_data(out.getvalue(), repository=repository, tag=tag)
    return BUSYBOX_IMAGE


def choose(image: str | None, backend: str) -> ImageChoice:
    """Choose image and backend, with the reason; `auto` uses Docker when an engine answers and has, or can
    get, an image.
    """
    if backend == "local" or (image is not None and (image == "host" or image.startswith("rootfs:"))):
        return ImageChoice(image or "host", "local", "the local provider was asked for")
    if image is not None:
        return ImageChoice(image, "docker", "the image was asked for")
    from eos_agent.wire.protocol import OperationError
    from eos_mcp.providers.engine import connect

    try:
        engine, _ = connect(None, timeout_s=10)
    except OperationError as error:
        if backend == "docker":
            raise
        return ImageChoice(
            "host",
            "local",
            f"no Docker engine answers ({error.message}): the local provider runs straight on this machine",
        )
    found = local_image(engine)
    if found is not None:
        return ImageChoice(found, "docker", "a local image that has /bin/sh")
    made = busybox_image(engine)
    if made is not None:
        return ImageChoice(made, "docker", "made from this machine's static busybox")
    if backend == "docker":
        raise OperationError(
            "invalid_request",
            "no local image has /bin/sh and there is no static busybox",
            reason="image_not_found",
        )
    return ImageChoice(
        "host",
        "local",
        "Docker has no image with /bin/sh and there is no static busybox: the local provider is used",
    )
