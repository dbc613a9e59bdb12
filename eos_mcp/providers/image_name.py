"""Check names of images, and directories that serve as an image. A mistake is the caller's (invalid_request),
and is reported before the workspace is copied.

    host              this machine's own file system
    rootfs:/abs/dir   a directory that holds a root file system
    ubuntu:24.04      anything else is a name that the engine knows
"""

from __future__ import annotations

import os

from eos_agent.wire.protocol import INVALID_REQUEST, OperationError

HOST_IMAGE = "host"
ROOTFS_PREFIX = "rootfs:"
REFERENCE_CHARACTERS = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-/:@+[]")
REFERENCE_MAX = 512
LINKS_MAX = 40
"""Most symlinks that the kernel follows in one path; more are ELOOP (path_resolution(7))."""


def is_local(image: str) -> bool:
    return image == HOST_IMAGE or image.startswith(ROOTFS_PREFIX)


def check_reference(image: str) -> None:
    """Refuse a string that cannot be the name of an image: it would become part of a path of the engine's
    API.

    Raises:
        OperationError: invalid_request, reason bad_image.
    """
    parts = image.split("/")
    if (
        REFERENCE_CHARACTERS.issuperset(image)
        and len(image) <= REFERENCE_MAX
        and not {"", ".", ".."}.intersection(parts)
        and image[0] != "-"
    ):
        return
    raise bad_image(
        image, "not an image reference such as ubuntu:24.04 or registry.example/team/app@sha256:…"
    )


def bad_image(image: str, why: str) -> OperationError:
    shown = image if len(image) <= 200 else f"{image[:200]}…"
    shown = shown if shown.isprintable() else repr(shown)
    hint = "take a local image such as ubuntu:24.04; host and rootfs:/abs/dir need no Docker"
    details = {"argument": "image", "image": image[:REFERENCE_MAX], "hint": hint}
    return OperationError(INVALID_REQUEST, f"image {shown}: {why}; {hint}", details, reason="bad_image")


def check_rootfs(image: str) -> str:
    """Return the directory of `rootfs:/abs/dir`.

    Raises:
        OperationError: invalid_request: image_not_found when it is not a directory, no_shell when it has no
            shell to run commands, not_readable when this user may not search it.
    """
    root = image.removeprefix(ROOTFS_PREFIX)
    details = {
        "argument": "image",
        "image": image,
        "hint": "rootfs:/abs/dir names an existing directory that holds a root file system",
    }

    def refused(why: str, reason: str) -> OperationError:
        shown = image if image.isprintable() else repr(image)
        return OperationError(
            INVALID_REQUEST, f"image {shown}: {why}; {details['hint']}", details, reason=reason
        )

    if not os.path.isabs(root) or "\0" in root:
        raise refused("the path must be absolute" if root else "the path is missing", "image_not_found")
    if not os.path.isdir(root):
        raise refused(
            f"{root} is not a directory" if os.path.lexists(root) else f"{root} does not exist",
            "image_not_found",
        )
    if not os.access(root, os.R_OK | os.X_OK):
        raise refused(f"{root} cannot be read by the user that runs the gateway", "not_readable")
    if not has_shell(root):
        raise refused(f"{root} has no /bin/sh, which commands need", "no_shell")
    return root


def has_shell(root: str) -> bool:
    """Tell whether `/bin/sh` is an executable file for a process whose root is `root`; symlinks are resolved
    in that root.
    """
    parts, at, links = ["bin", "sh"], root, 0
    while parts:
        part = parts.pop(0)
        if part in ("", "."):
            continue
        if part == "..":
            at = os.path.dirname(at) if at != root else root
            continue
        where = os.path.join(at, part)
        try:
            target = os.readlink(where)
        except OSError:  # not a symlink, or missing
            at = where
            continue
        links += 1
        if links > LINKS_MAX:
            return False
        if target.startswith("/"):
            at = root
        parts[:0] = target.split("/")
    return os.path.isfile(at) and os.access(at, os.X_OK)
