"""What may be the name of an image, and which directory can be a root: found before anything is copied,
reported as the caller's mistake.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from eos_agent.wire.protocol import OperationError
from eos_mcp.providers import image_name


@pytest.mark.parametrize(
    "image",
    ["a\nb", "../containers/x", "a/../b", "a//b", "/a", "a?x=1", "-a", "no name", "xé", "a" * 600, "a\0b"],
)
def test_what_would_be_another_path_of_the_engines_api_is_refused_as_no_reference(image: str) -> None:
    with pytest.raises(OperationError) as caught:
        image_name.check_reference(image)
    assert (caught.value.kind, caught.value.details["reason"], caught.value.details["argument"]) == (
        "invalid_request",
        "bad_image",
        "image",
    )
    assert "\n" not in caught.value.message


@pytest.mark.parametrize(
    "image",
    [
        "ubuntu",
        "ubuntu:24.04",
        "localhost:5000/a/b_c-d:X",
        "[::1]:5000/a",
        "a@sha256:" + "0" * 64,
        "sha256:0c5b",
    ],
)
def test_every_form_that_an_engine_takes_passes(image: str) -> None:
    image_name.check_reference(image)


def shell_file(root: Path) -> None:
    (root / "usr/bin").mkdir(parents=True)
    (root / "usr/bin/dash").write_text("#!")
    (root / "usr/bin/dash").chmod(0o755)


def linked(root: Path) -> None:
    """As Debian: /bin is a link, sh is another; one of them is absolute, and means this root."""
    shell_file(root)
    (root / "bin").symlink_to("/usr/bin")
    (root / "usr/bin/sh").symlink_to("../../../../usr/bin/dash")


def only_outside(root: Path) -> None:
    """Followed on the host, this would be a shell."""
    (root / "bin").mkdir()
    (root / "bin/sh").symlink_to(os.path.realpath("/bin/sh"))


def in_a_circle(root: Path) -> None:
    (root / "bin").symlink_to("bin")


def not_executable(root: Path) -> None:
    linked(root)
    (root / "usr/bin/dash").chmod(0o644)


@pytest.mark.parametrize(
    ("made", "there"), [(linked, True), (only_outside, False), (in_a_circle, False), (not_executable, False)]
)
def test_a_shell_counts_where_a_command_would_find_it(
    tmp_path: Path, made: Callable[[Path], None], there: bool
) -> None:
    made(tmp_path)
    assert image_name.has_shell(str(tmp_path)) is there


def test_a_root_without_a_shell_or_that_is_none_is_named_with_its_fault(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for image, reason, said in (
        (f"rootfs:{tmp_path}", "no_shell", f"{tmp_path} has no /bin/sh"),
        (f"rootfs:{tmp_path}/none", "image_not_found", "does not exist"),
        (f"rootfs:{tmp_path}/file", "image_not_found", "is not a directory"),
        ("rootfs:", "image_not_found", "the path is missing"),
        ("rootfs:rel", "image_not_found", "must be absolute"),
    ):
        with pytest.raises(OperationError) as caught:
            image_name.check_rootfs(image)
        assert (caught.value.kind, caught.value.details["reason"]) == ("invalid_request", reason)
        assert said in caught.value.message and caught.value.details["hint"]
    linked(tmp_path)
    assert image_name.check_rootfs(f"rootfs:{tmp_path}") == str(tmp_path)
