"""Where `make` has its environment: in the checkout, or where that cannot be written, elsewhere; nobody's
folder is emptied for it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from layerstack.kernel import syscalls

ROOT = Path(__file__).resolve().parent.parent


def checkout(folder: Path) -> Path:
    made = folder / "with a space, ö"
    (made / ".ci").mkdir(parents=True)
    for name in (".ci/venv", "pyproject.toml", "requirements.lock"):
        shutil.copy(ROOT / name, made / name)
    return made


def asked(at: Path, *words: str, **env: str) -> tuple[int, str, str]:
    clean = {
        name: value
        for name, value in os.environ.items()
        if name not in ("EOS_VENV", "XDG_CACHE_HOME", "HOME")
    }
    done = subprocess.run(
        [str(at / ".ci/venv"), *words], env={**clean, **env}, capture_output=True, text=True, timeout=60
    )
    return done.returncode, done.stdout.strip(), done.stderr.strip()


def test_the_environment_lies_in_the_checkout_or_where_it_is_said(tmp_path: Path) -> None:
    made = checkout(tmp_path)
    assert asked(made, "where", HOME="/h") == (0, ".venv", "")
    assert asked(made, "where", HOME="/h", EOS_VENV="/somewhere else") == (0, "/somewhere else", "")
    assert asked(made, "where", HOME="/h", EOS_VENV="beside") == (0, f"{made}/beside", "")


def _read_only(made: Path) -> None:
    syscalls.mount(str(made), str(made), None, syscalls.MS_BIND)
    syscalls.mount("none", str(made), None, syscalls.MS_BIND | syscalls.MS_REMOUNT | syscalls.MS_RDONLY)
    code, first, _ = asked(made, "where", HOME="/h")
    assert code == 0 and first.startswith("/h/.cache/eos-venv/with a space, ö-")
    assert asked(made, "where", HOME="/h", XDG_CACHE_HOME="/c")[1] == first.replace("/h/.cache", "/c")
    assert asked(made, "caches", HOME="/h")[1] == f"{first}.caches"
    code, said, why = asked(made, "where")
    assert code == 1 and not said and "EOS_VENV" in why


def test_a_checkout_that_cannot_be_written_has_it_in_the_cache_or_says_what_to_name(
    tmp_path: Path, in_mount_namespace: Callable[..., Any]
) -> None:
    made = checkout(tmp_path)
    os.chmod(tmp_path, 0o755)
    in_mount_namespace(_read_only, made)


@pytest.mark.parametrize("what", ["runtime", "dev"])
def test_a_folder_with_something_else_in_it_is_left_alone(tmp_path: Path, what: str) -> None:
    made = checkout(tmp_path)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/work.txt").write_text("mine")
    code, _, why = asked(made, what, HOME="/h", EOS_VENV=str(tmp_path / "mine"))
    assert code == 1 and "holds something else" in why and "EOS_VENV" in why
    assert (tmp_path / "mine/work.txt").read_text() == "mine"
