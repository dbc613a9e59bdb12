"""The images that the tests run in: eos-test/debian, eos-test/busybox, eos-test/musl, eos-test/empty, made by
`docker import`, once.

    python tests/images.py            make what is missing
    python tests/images.py busybox    only that one
    python tests/images.py --again    make all of them again

Nothing is pulled. The Debian tree comes from debootstrap and the mirror that apt uses on this machine; its
tar is kept in $XDG_CACHE_HOME/eos-tests, keyed by suite, packages and recipe. An image has the recipe's key
as a label; with another key it is made again.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import io
import os
import shutil
import stat
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable, Generator
from typing import NamedTuple

DEBIAN_PACKAGES = ("git", "procps", "python3", "make", "ninja-build", "sqlite3", "tcc", "libc6-dev")
"""Packages of the image: real build tools and a database; the C compiler `cc` is tcc, a download of 0.3 MB
instead of gcc's 45.
"""
LABEL = "eos.test.recipe"
PASSWD = b"root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/nonexistent:/bin/false\n"
GROUP = b"root:x:0:\nnogroup:x:65534:\n"

LIBC_NAME_C = """
#include <stdio.h>
int main(void) {
#ifdef __GLIBC__
    puts("glibc");
#else
    puts("musl");
#endif
    return 0;
}
"""


class ImageUnavailable(Exception):
    """Error for a missing source of the image; the text names the package."""


class Recipe(NamedTuple):
    """The recipe of an image: its key, and the function that writes its tree as an uncompressed tar."""

    key: str
    write_tar: Callable[[str], None]
    changes: tuple[str, ...]


def cache_dir() -> str:
    """Return the directory of the tars, outside every checkout."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    path = os.path.join(base, "eos-tests")
    os.makedirs(path, exist_ok=True)
    return path


@contextlib.contextmanager
def _lock(name: str) -> Generator[None]:
    """Hold a lock over all processes of this user, so that one makes images at a time."""
    with open(os.path.join(cache_dir(), f"{name}.lock"), "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _run(
    *argv: str, data: bytes | None = None, stdin_path: str | None = None, timeout_s: float = 300
) -> bytes:
    with open(stdin_path, "rb") if stdin_path else contextlib.nullcontext(subprocess.DEVNULL) as stdin:
        if data is not None:
            done = subprocess.run(argv, input=data, capture_output=True, timeout=timeout_s)
        else:
            done = subprocess.run(argv, stdin=stdin, capture_output=True, timeout=timeout_s)
    if done.returncode:
        raise ImageUnavailable(
            f"{' '.join(argv[:3])} failed: {done.stderr.decode(errors='replace').strip()[-600:]}"
        )
    return done.stdout


def _need(program: str, package: str) -> str:
    path = shutil.which(program, path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin:/usr/local/sbin")
    if path is None:
        raise ImageUnavailable(f"{program} is not installed (package {package})")
    return path


def _add(
    tar: tarfile.TarFile, name: str, data: bytes | None = None, *, mode: int = 0o644, link: str | None = None
) -> None:
    info = tarfile.TarInfo(name)
    info.mode = mode
    if link is not None:
        info.type, info.linkname = tarfile.SYMTYPE, link
        tar.addfile(info)
    elif data is None:
        info.type = tarfile.DIRTYPE
        tar.addfile(info)
    else:
        info.size = len(data)
        tar.addfile(info, io.BytesIO(data))


def static_busybox() -> str:
    path = _need("busybox", "busybox-static")
    with open(path, "rb") as file:
        head = file.read(1 << 16)
    if b"/ld-linux" in head or b"/ld-musl" in head:
        raise ImageUnavailable(f"{path} is not static (package busybox-static)")
    return path


def _busybox_tree(tar: tarfile.TarFile) -> None:
    busybox = static_busybox()
    for name, mode in (
        ("bin", 0o755),
        ("dev", 0o755),
        ("etc", 0o755),
        ("proc", 0o555),
        ("root", 0o700),
        ("sys", 0o555),
        ("tmp", 0o1777),
    ):
        _add(tar, name, mode=mode)
    _add(tar, "etc/passwd", PASSWD)
    _add(tar, "etc/group", GROUP)
    with open(busybox, "rb") as file:
        _add(tar, "bin/busybox", file.read(), mode=0o755)
    for applet in sorted(set(_run(busybox, "--list").decode().split()) - {"busybox"}):
        _add(tar, f"bin/{applet}", link="busybox")


def _write_busybox(path: str) -> None:
    with tarfile.open(path, "w") as tar:
        _busybox_tree(tar)


def _musl_loader() -> str:
    for folder in ("/lib", "/usr/lib"):
        with contextlib.suppress(FileNotFoundError):
            for name in sorted(os.listdir(folder)):
                if name.startswith("ld-musl-"):
                    return os.path.join(folder, name)
    raise ImageUnavailable("no musl loader in /lib (package musl)")


def _write_musl(path: str) -> None:
    """Make the tree of eos-test/musl: busybox as shell; musl as the only libc; and, with musl-gcc,
    /bin/libc-name, a program linked with musl.
    """
    loader = _musl_loader()
    with tarfile.open(path, "w") as tar, tempfile.TemporaryDirectory() as scratch:
        _busybox_tree(tar)
        _add(tar, "lib", mode=0o755)
        with open(loader, "rb") as file:
            _add(tar, f"lib/{os.path.basename(loader)}", file.read(), mode=0o755)
        compiler = shutil.which("musl-gcc")
        if compiler:
            program = os.path.join(scratch, "libc-name")
            _run(compiler, "-O1", "-s", "-x", "c", "-o", program, "-", data=LIBC_NAME_C.encode())
            with open(program, "rb") as file:
                _add(tar, "bin/libc-name", file.read(), mode=0o755)


def _write_empty(path: str) -> None:
    with tarfile.open(path, "w"):
        pass


def debian_source() -> tuple[str, str]:
    """Return (mirror, suite) of apt on this machine: the target whose codename is the release's own."""
    _need("apt-get", "apt")
    release: dict[str, str] = {}
    with open("/etc/os-release") as file:
        for line in file:
            name, _, value = line.strip().partition("=")
            release[name] = value.strip('"')
    codename = release.get("VERSION_CODENAME", "")
    found = (
        _run(
            "apt-get",
            "indextargets",
            "--format",
            "$(REPO_URI) $(CODENAME) $(COMPONENT)",
            "Created-By: Packages",
        )
        .decode()
        .split("\n")
    )
    targets = [line.split() for line in found if len(line.split()) == 3]
    for mirror, suite, component in targets:
        if suite == codename and component == "main":
            return mirror, suite
    raise ImageUnavailable(f"apt knows no mirror with the suite {codename!r} (apt-get update?)")


def _debian_key() -> str:
    _, suite = debian_source()
    return hashlib.sha256(f"4 {suite} {' '.join(DEBIAN_PACKAGES)}".encode()).hexdigest()[:12]


def _write_debian(path: str) -> None:
    mirror, suite = debian_source()
    kept = os.path.join(cache_dir(), f"debian-{suite}-{_debian_key()}.tar")
    if not os.path.exists(kept):
        if os.geteuid():
            raise ImageUnavailable("debootstrap needs root")
        debootstrap = _need("debootstrap", "debootstrap")
        with tempfile.TemporaryDirectory(dir=cache_dir()) as scratch:
            tree = os.path.join(scratch, "tree")
            _run(
                debootstrap,
                "--variant=minbase",
                f"--include={','.join(DEBIAN_PACKAGES)}",
                suite,
                tree,
                mirror,
                timeout_s=600,
            )
            for name in (
                "var/cache/apt/archives",
                "var/lib/apt/lists",
                "usr/share/doc",
                "usr/share/man",
                "usr/share/locale",
            ):
                shutil.rmtree(os.path.join(tree, name), ignore_errors=True)
                os.makedirs(os.path.join(tree, name), exist_ok=True)
            with contextlib.suppress(FileExistsError):
                os.symlink("tcc", os.path.join(tree, "usr/bin/cc"))
            partial = os.path.join(scratch, "tar")
            _run("tar", "--numeric-owner", "--exclude=./dev/*", "-C", tree, "-cf", partial, ".")
            os.rename(partial, kept)
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
    os.symlink(kept, path)


def _file_key(*paths: str) -> str:
    digest = hashlib.sha256()
    for path in paths:
        with open(path, "rb") as file:
            digest.update(hashlib.sha256(file.read()).digest())
    return digest.hexdigest()[:12]


def recipe(name: str) -> Recipe:
    """Return the recipe of `name` on this machine; ImageUnavailable when something is missing."""
    if name == "empty":
        return Recipe("1", _write_empty, ())
    if name == "busybox":
        return Recipe("1-" + _file_key(static_busybox()), _write_busybox, ("CMD /bin/sh",))
    if name == "musl":
        compiler = "with" if shutil.which("musl-gcc") else "without"
        return Recipe(
            f"1-{_file_key(static_busybox(), os.path.realpath(_musl_loader()))}-{compiler}",
            _write_musl,
            ("CMD /bin/sh",),
        )
    if name == "debian":
        path = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
        return Recipe("1-" + _debian_key(), _write_debian, ("CMD /bin/bash", f"ENV PATH={path}"))
    raise ValueError(f"no image {name!r}; there are {', '.join(NAMES)}")


NAMES = ("empty", "busybox", "musl", "debian")


def _present(reference: str) -> str | None:
    """Return the recipe key of the image that the engine has under this name."""
    done = subprocess.run(
        ["docker", "image", "inspect", "--format", f'{{{{index .Config.Labels "{LABEL}"}}}}', reference],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=60,
    )
    return done.stdout.decode().strip() if done.returncode == 0 else None


def ensure(name: str, *, again: bool = False) -> str:
    """Make the image when the engine lacks it or has one of another recipe; return its reference,
    `eos-test/<name>:latest`.
    """
    reference = f"eos-test/{name}:latest"
    with _lock(f"image-{name}"):
        made = recipe(name)
        if not again and _present(reference) == made.key:
            return reference
        with tempfile.TemporaryDirectory(dir=cache_dir()) as scratch:
            path = os.path.join(scratch, "image.tar")
            made.write_tar(path)
            assert stat.S_ISREG(os.stat(path).st_mode)
            changes = [f"LABEL {LABEL}={made.key}", *made.changes]
            argv = [
                "docker",
                "import",
                *(word for change in changes for word in ("--change", change)),
                "-",
                reference,
            ]
            _run(*argv, stdin_path=path)
    return reference


def main(argv: list[str]) -> int:
    """Make the named images, or all; return 1 when one cannot be made."""
    again = "--again" in argv
    failed = 0
    for name in [a for a in argv if not a.startswith("-")] or NAMES:
        try:
            print(f"{ensure(name, again=again)} ready", flush=True)
        except ImageUnavailable as error:
            failed = 1
            print(f"eos-test/{name}: {error}", file=sys.stderr, flush=True)
    return failed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
