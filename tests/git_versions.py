"""Other versions of git, to compare with in the soak: 2.25 of Ubuntu 20.04 and the newest of Debian, from
their package pools, unpacked into the cache and never installed.

    python tests/git_versions.py      make them, print name and version of each

The newest needs a newer C library than this machine has: the dynamic loader of its own suite executes it.
"""

from __future__ import annotations

import functools
import lzma
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import urllib.request
from typing import NamedTuple

if __package__ in (None, ""):
    sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from tests.images import cache_dir, debian_source

UBUNTU = "http://archive.ubuntu.com/ubuntu"
NEWEST = ("git", "libc6", "libpcre2-8-0", "zlib1g")
TIMEOUT_S = 120.0
WRAPPER = """#!/bin/sh
export GIT_EXEC_PATH="{root}/core"
exec "{root}/{loader}" --library-path "{root}/{libraries}" --argv0 git "{root}/usr/bin/git" "$@"
"""


class GitUnavailable(Exception):
    """Error for a version that cannot be downloaded; the text names the source."""


class Suite(NamedTuple):
    mirror: str
    suite: str
    packages: tuple[str, ...]


class GitVersion(NamedTuple):
    name: str
    bin_dir: str
    """Directory that comes first in PATH."""

    @property
    def environment(self) -> dict[str, str]:
        return {"PATH": f"{self.bin_dir}{os.pathsep}{os.environ['PATH']}"}


def _fetch(url: str) -> bytes:
    try:
        with urllib.request.urlopen(url, timeout=TIMEOUT_S) as answer:
            data: bytes = answer.read()
    except OSError as error:
        raise GitUnavailable(f"{url}: {error}") from None
    return data


def _pool_paths(source: Suite) -> dict[str, str]:
    """Read the suite's index: package -> its file in the pool."""
    raw = _fetch(f"{source.mirror}/dists/{source.suite}/main/binary-amd64/Packages.xz")
    found: dict[str, str] = {}
    for stanza in lzma.decompress(raw).decode().split("\n\n"):
        fields = dict(line.split(": ", 1) for line in stanza.splitlines() if ": " in line and line[0] != " ")
        if fields.get("Package") in source.packages:
            found[fields["Package"]] = fields["Filename"]
    return found


def _unpack(source: Suite, root: str) -> None:
    paths = _pool_paths(source)
    for package in source.packages:
        with tempfile.NamedTemporaryFile(suffix=".deb") as file:
            file.write(_fetch(f"{source.mirror}/{paths[package]}"))
            file.flush()
            subprocess.run(["dpkg", "-x", file.name, root], check=True, timeout=TIMEOUT_S)


def _make(name: str, source: Suite) -> GitVersion:
    if platform.machine() != "x86_64" or shutil.which("dpkg") is None:
        raise GitUnavailable(f"git {name}: packages are for x86_64 and need dpkg")
    root = os.path.join(cache_dir(), f"git-{name}")
    if not os.path.isdir(root):
        making = tempfile.mkdtemp(dir=cache_dir())
        try:
            _unpack(source, making)
            (_wrap if len(source.packages) > 1 else _wrap_plainly)(making, root)
            os.rename(making, root)
        finally:
            shutil.rmtree(making, ignore_errors=True)
    return GitVersion(name, os.path.join(root, "bin"))


def _write_program(path: str, text: str) -> None:
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w") as file:
        file.write(text)
    os.chmod(path, 0o755)


def _wrap_plainly(making: str, root: str) -> None:
    _write_program(
        f"{making}/bin/git",
        f'#!/bin/sh\nexport GIT_EXEC_PATH="{root}/usr/lib/git-core"\nexec "{root}/usr/bin/git" "$@"\n',
    )


def _wrap(making: str, root: str) -> None:
    """Replace each link to git among its commands by the program that calls the loader."""
    loader = next(
        os.path.relpath(os.path.join(folder, file), making)
        for folder, _, files in os.walk(making)
        for file in files
        if file.startswith("ld-linux")
    )
    text = WRAPPER.format(root=root, loader=loader, libraries="usr/lib/x86_64-linux-gnu")
    shutil.copytree(f"{making}/usr/lib/git-core", f"{making}/core", symlinks=True)
    os.unlink(f"{making}/core/git")
    _write_program(f"{making}/core/git", text)
    _write_program(f"{making}/bin/git", text)


@functools.cache
def older() -> GitVersion:
    """Git 2.25.1. Raises GitUnavailable."""
    return _make("2.25", Suite(UBUNTU, "focal", ("git",)))


@functools.cache
def newest() -> GitVersion:
    """The git of Debian's unstable suite, from the mirror of this machine. Raises GitUnavailable."""
    return _make("newest", Suite(debian_source()[0].rstrip("/"), "sid", NEWEST))


if __name__ == "__main__":
    for version in (older(), newest()):
        shown = subprocess.run(
            ["git", "version"], env={**os.environ, **version.environment}, capture_output=True, timeout=60
        )
        print(version.name, version.bin_dir, shown.stdout.decode().strip() or shown.stderr.decode())
