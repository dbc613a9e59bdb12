"""The powers of this machine, each found by one trial. `python tests/probes.py` prints the list.

A test asks with `@pytest.mark.needs("overlay")`. With EOS_REQUIRE="overlay,dockerd,..." a skip is a failure
(tests/conftest.py).
"""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from typing import NamedTuple

if __name__ == "__main__":  # run as a file: the checkout is what `tests` is found in
    sys.path[:0] = [os.path.dirname(os.path.dirname(os.path.abspath(__file__)))]

from agent_image import native_init
from eos_agent.kernel.cgroups import Groups, Limits, Wanted, open_groups
from layerstack.kernel import syscalls
from tests import build_tools, casefold_fs, conformance_suite, images, in_namespace, inspector


class Power(NamedTuple):
    """One power: available or not, and the reason if not."""

    on: bool
    reason: str


def _short(text: str) -> str:
    return " ".join(text.split())[:160]


def _says(done: subprocess.CompletedProcess[str]) -> str:
    return _short(done.stderr or done.stdout or f"exit code {done.returncode}")


def _run(*argv: str, timeout_s: float = 60) -> subprocess.CompletedProcess[str]:
    return subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=timeout_s)


def mount_overlay(folder: str, options: str) -> None:
    """One overlay mount over directories made in `folder`, a write through it, and the end of it; in a mount
    namespace of one's own.
    """
    for name in ("lower", "upper", "work", "merged"):
        os.mkdir(os.path.join(folder, name))
    os.chdir(folder)
    syscalls.mount("overlay", "merged", "overlay", 0, f"lowerdir=lower,upperdir=upper,workdir=work,{options}")
    with open("merged/file", "w") as file:
        file.write("x")
    syscalls.umount("merged")
    assert os.path.exists("upper/file")


def _overlay_in(parent: str, namespace: str) -> None:
    options = "userxattr" if namespace == "user" else "redirect_dir=on,index=off,metacopy=off"
    with tempfile.TemporaryDirectory(prefix="eos-probe-", dir=parent) as folder:
        os.chmod(folder, 0o777)

        def try_it() -> None:
            inner = os.path.join(folder, "user")
            os.mkdir(inner)
            mount_overlay(inner, options)

        in_namespace.call(namespace, try_it)


@functools.cache
def scratch_root() -> str:
    """Return a directory with a short name whose file system can have an upperdir: /tmp, unless /tmp is an
    overlay.
    """
    namespace = "trusted" if os.geteuid() == 0 else "user"
    for path in (os.environ.get("EOS_TEST_DIR", ""), "/tmp", "/var/tmp", "/dev/shm"):
        if path and len(path) <= 40 and os.access(path, os.W_OK):
            try:
                _overlay_in(path, namespace)
            except Exception:
                continue
            return path
    return "/tmp"


def _root() -> None:
    if os.geteuid():
        raise RuntimeError(f"runs as uid {os.geteuid()}")


def _overlay() -> None:
    _overlay_in(scratch_root(), "trusted" if os.geteuid() == 0 else "user")


def _userns() -> None:
    _overlay_in(scratch_root(), "user")


def _uid() -> None:
    _root()
    found = in_namespace.call("uid", os.getuid)
    if found != in_namespace.ORDINARY_UID:
        raise RuntimeError(f"became uid {found}")


def _dockerd() -> None:
    if shutil.which("docker") is None:
        raise RuntimeError("no docker program")
    done = _run("docker", "version", "--format", "{{.Server.Version}}")
    if done.returncode:
        raise RuntimeError(_says(done))


def _inspector() -> None:
    found = inspector.command()
    with tempfile.TemporaryDirectory(prefix="eos-probe-") as home:
        environment = {**os.environ, **found.env, "HOME": home}
        argv = [*found.argv, "--cli", "--help"]
        done = subprocess.run(
            argv, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60
        )
    if done.returncode:
        raise RuntimeError(_says(done))


def _conformance() -> None:
    conformance_suite.command()


def _loopfs() -> None:
    _root()
    with tempfile.TemporaryDirectory(prefix="eos-probe-", dir=scratch_root()) as folder:
        backing = os.path.join(folder, "disk")
        with open(backing, "wb") as file:
            file.truncate(8 << 20)
        done = _run("mkfs.ext4", "-q", "-F", backing)
        if done.returncode:
            raise RuntimeError(_says(done))

        def try_it() -> None:
            target = os.path.join(folder, "mnt")
            os.mkdir(target)
            mounted = _run("mount", "-o", "loop", backing, target)
            if mounted.returncode:
                raise RuntimeError(_says(mounted))
            syscalls.umount(target)

        in_namespace.call("trusted", try_it)


def _fuse() -> None:
    _root()
    with tempfile.TemporaryDirectory(prefix="eos-probe-", dir=scratch_root()) as folder:

        def try_it() -> None:
            fd, target = casefold_fs.open_device(folder), os.path.join(folder, "mnt")
            os.mkdir(target)
            syscalls.mount("eos-probe", target, "fuse", 0, f"fd={fd},rootmode=40000,user_id=0,group_id=0")
            os.close(fd)
            syscalls.umount(target)

        in_namespace.call("trusted", try_it)


def _limited() -> Groups:
    """Make a cgroup with its own limits, as root; the caller closes it."""
    _root()
    limits = Limits(memory_max_bytes=64 << 20, pids_max=64)
    with tempfile.TemporaryDirectory(prefix="eos-probe-") as folder:
        return open_groups("eos-probe", folder, Wanted(limits, limits))


def _cgroups() -> None:
    """Try limits and the freezer in cgroups of either version."""
    with contextlib.closing(_limited()) as groups:
        if None in (groups.unified, groups.applied.memory_max_bytes, groups.applied.pids_max):
            raise RuntimeError(groups.reason or "no cgroups of version 2")


def _cgroups2() -> None:
    """Try limits by the controllers of version 2."""
    with contextlib.closing(_limited()) as groups:
        missing = {"memory", "pids"} - set(groups.unified.controllers if groups.unified else ())
        if missing:
            raise RuntimeError(f"version 2 has no controllers here: {', '.join(sorted(missing))}")


def _debootstrap() -> None:
    _root()
    images.debian_source()
    if shutil.which("debootstrap", path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin") is None:
        raise RuntimeError("no debootstrap (package debootstrap)")


def _busybox() -> None:
    images.static_busybox()


def _musl() -> None:
    if shutil.which("musl-gcc") is None:
        raise RuntimeError("no musl-gcc (package musl-tools)")


def _cc() -> None:
    from eos_agent.init import native

    with tempfile.TemporaryDirectory() as folder:
        source = os.path.join(os.path.dirname(os.path.abspath(native.__file__)), native_init.SOURCE)
        if not native_init.make(source, os.path.join(folder, native_init.NAME)):
            raise RuntimeError(
                f"no compiler that makes a static program ({', '.join(native_init.COMPILERS)})"
            )


def _cargo() -> None:
    build_tools.cargo()


def _typescript() -> None:
    build_tools.tsc()


PROBES: dict[str, Callable[[], None]] = {
    "root": _root,
    "uid": _uid,
    "overlay": _overlay,
    "userns": _userns,
    "dockerd": _dockerd,
    "conformance": _conformance,
    "inspector": _inspector,
    "loopfs": _loopfs,
    "fuse": _fuse,
    "cgroups": _cgroups,
    "cgroups2": _cgroups2,
    "debootstrap": _debootstrap,
    "busybox": _busybox,
    "musl": _musl,
    "cc": _cc,
    "cargo": _cargo,
    "typescript": _typescript,
}
"""Trial of each power: it raises when the machine lacks the power; the exception's text is the reason."""


@functools.cache
def power(name: str) -> Power:
    """The power `name`, tried at the first question and remembered; KeyError for a name that is not in
    PROBES.
    """
    probe = PROBES[name]
    try:
        probe()
    except Exception as error:
        last = str(error).strip().split("\n")[-1]
        return Power(False, _short(last) or type(error).__name__)
    return Power(True, "")


def describe() -> list[str]:
    """Return one line for the available powers, and one for each missing power."""
    found = {name: power(name) for name in PROBES}
    on = " ".join(name for name, p in found.items() if p.on)
    return [
        f"powers on: {on or 'none'}",
        *(f"power off: {name}: {p.reason}" for name, p in found.items() if not p.on),
    ]


if __name__ == "__main__":
    print("\n".join(describe()))
