"""What `pip install` gives a user: source archive -> wheel -> an installation that has every file and works
by itself.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from collections.abc import Generator
from pathlib import Path
from typing import NamedTuple

import pytest

from agent_image import native_init
from tests import one_bundle
from tests.conftest import drop_dir, make_short_dir

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = {
    "layerstack": "layerstack",
    "eos_mcp": "eos_mcp",
    "agent_image/eos_agent": "eos_agent",
    "agent_image": "agent_image",
}


class Installed(NamedTuple):
    prefix: Path
    site: Path

    def run(self, *argv: str) -> str:
        """Standard output of a program that sees this installation first, and the libraries of the test run
        behind it.
        """
        path = f"{self.site}:{sysconfig.get_path('purelib')}"
        env = {
            "PATH": os.environ["PATH"],
            "PYTHONPATH": path,
            "PYTHONSAFEPATH": "1",
            "HOME": str(self.prefix),
        }
        done = subprocess.run(
            argv, cwd="/", env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        return done.stdout


@pytest.fixture(scope="module")
def installed() -> Generator[Installed]:
    folder = Path(make_short_dir("eos-w-"))
    try:
        hatchling = [sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", str(folder)]
        subprocess.run(hatchling, cwd=ROOT, check=True, capture_output=True)
        (archive,) = folder.glob("*.tar.gz")
        with tarfile.open(archive) as tar:
            # filters came with Python 3.11.4
            tar.extraction_filter = getattr(tarfile, "data_filter", lambda member, _path: member)
            tar.extractall(folder / "source")
        (source,) = (folder / "source").iterdir()
        pip = [
            sys.executable,
            "-m",
            "pip",
            "--disable-pip-version-check",
            "--no-input",
            "install",
            "--quiet",
            "--no-index",
            "--no-deps",
        ]
        pip += [
            "--no-build-isolation",
            "--no-compile",
            "--ignore-installed",
            "--prefix",
            str(folder / "prefix"),
            str(source),
        ]
        subprocess.run(pip, check=True, capture_output=True)
        site = folder / "prefix" / Path(sysconfig.get_path("purelib")).relative_to(sys.prefix)
        yield Installed(folder / "prefix", site)
    finally:
        drop_dir(str(folder))


def test_the_installation_has_every_file_of_the_packages_with_its_mode(installed: Installed) -> None:
    wanted: dict[str, bool] = {}
    for source, package in PACKAGES.items():
        for folder, names, files in os.walk(ROOT / source):
            names[:] = [
                n for n in names if n != "__pycache__" and not (source == "agent_image" and n == "eos_agent")
            ]
            for file in files:
                path = Path(folder, file)
                wanted[str(Path(package, path.relative_to(ROOT / source)))] = os.access(path, os.X_OK)
    for name in (
        "eos_mcp/demo/project/dot-gitignore",
        "eos_mcp/demo/history/1/bin/tally",
        "agent_image/Dockerfile",
    ):
        assert name in wanted
    for package in ("layerstack", "eos_agent", "eos_mcp"):
        assert f"{package}/py.typed" in wanted
    missing = [name for name in wanted if not (installed.site / name).is_file()]
    assert not missing, missing
    if os.geteuid():
        assert not [
            name
            for name, executable in wanted.items()
            if executable != os.access(installed.site / name, os.X_OK)
        ]
    modes = [
        name
        for name, executable in wanted.items()
        if executable != bool((installed.site / name).stat().st_mode & 0o100)
    ]
    assert not modes, modes


def test_the_programs_start_from_the_installation(installed: Installed) -> None:
    assert installed.run(str(installed.prefix / "bin" / "eos"), "--version").startswith("eos ")
    for program in ("sandbox-manager-cli", "sandbox-runtime-cli", "sandbox-observability-cli", "eos-mcp"):
        assert installed.run(str(installed.prefix / "bin" / program), "--version")
    where = installed.run(
        sys.executable,
        "-c",
        "import eos_mcp, eos_agent, layerstack; print(eos_mcp.__file__, eos_agent.__file__, "
        "layerstack.__file__)",
    )
    assert all(path.startswith(str(installed.site)) for path in where.split())


def test_the_installation_makes_the_bundle_that_the_checkout_makes(installed: Installed) -> None:
    out = installed.prefix / "bundle"
    made = installed.run(sys.executable, "-m", "agent_image.build", str(out)).strip()
    assert made == one_bundle.made().sha
    assert sorted(os.listdir(out / "bin")) == ["python3", "sandbox-daemon"]


def test_a_platform_wheel_brings_the_native_init_for_each_libc(tmp_path: Path) -> None:
    if (
        native_init.make(str(ROOT / "agent_image/eos_agent/init" / native_init.SOURCE), str(tmp_path / "try"))
        is False
    ):
        assert not any(map(shutil.which, ("musl-gcc", "gcc"))), "a compiler is here and makes no program"
        return
    environment = {**os.environ, "EOS_WHEEL": "platform"}
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True, env=environment)
    (wheel,) = tmp_path.glob("*.whl")
    machine = platform.machine()
    assert wheel.name.endswith(f"-py3-none-manylinux2014_{machine}.musllinux_1_1_{machine}.whl")
    with zipfile.ZipFile(wheel) as archive:
        program = Path(archive.extract(f"eos_agent/init/{native_init.NAME}", tmp_path))
    program.chmod(0o755)
    assert subprocess.run([program, "--version"], capture_output=True, check=True).stdout == native_init.SAYS
